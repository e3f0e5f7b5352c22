package image

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/drowse-dev/drowse/internal/egress"
)

// inside is a server at another address than registries here.
type inside struct {
	*httptest.Server
	asked atomic.Int64
}

func newInside(t *testing.T, answer http.HandlerFunc) *inside {
	t.Helper()
	s := &inside{}
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		answer(w, r)
	}))
	s.Listener.Close()
	s.Listener = ln
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// zones says where registries are here, and where the server inside is.
func zones(registry, inner egress.Zone) func(netip.Addr) egress.Zone {
	return func(a netip.Addr) egress.Zone {
		if a == netip.MustParseAddr("127.0.0.2") {
			return inner
		}
		return registry
	}
}

// TestPullLeadsNoFurtherInside: whatever a registry answers, it makes the server ask
// nobody who is further inside than it is itself.
func TestPullLeadsNoFurtherInside(t *testing.T) {
	inner := newInside(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"token":"t"}`) })
	var at string
	var leads atomic.Value // which requests
	leads.Store("none")
	at = registryAt(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch what := leads.Load().(string); {
			case r.Method != http.MethodGet:
			case what == "realm" && r.Header.Get("Authorization") == "":
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s"`, inner.URL))
				w.WriteHeader(http.StatusUnauthorized)
				return
			case what != "none" && strings.HasPrefix(r.URL.Path, what):
				http.Redirect(w, r, inner.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	img := imageWith(t, layerOf(t, item{name: "x", data: "1"}))
	push(t, at+"/img:1", img)
	layers, _ := img.Layers()
	layer, _ := layers[0].Digest()
	for _, what := range []string{"/v2/", "/v2/img/manifests/", "/v2/img/blobs/", "/v2/img/blobs/" + layer.String(), "realm"} {
		for _, z := range []struct{ registry, inner egress.Zone }{
			{egress.Outside, egress.Network}, {egress.Outside, egress.Machine}, {egress.Network, egress.Machine}, {egress.Machine, egress.Nowhere},
		} {
			leads.Store(what)
			s := newStore(t)
			s.zone = zones(z.registry, z.inner)
			_, _, err := pulled(t, s, at+"/img:1")
			if n := inner.asked.Swap(0); n != 0 || err == nil {
				t.Errorf("a registry in zone %d that leads %s to zone %d: %d requests there, %v", z.registry, what, z.inner, n, err)
			}
		}
	}
}

// TestPullIsLedBeside: a registry may keep layers elsewhere, where that is no further
// inside: on the internet, or in the same private network.
func TestPullIsLedBeside(t *testing.T) {
	var real string
	var behind atomic.Pointer[http.Handler]
	inner := newInside(t, func(w http.ResponseWriter, r *http.Request) { (*behind.Load()).ServeHTTP(w, r) })
	var leads atomic.Bool
	real = registryAt(t, func(next http.Handler) http.Handler {
		behind.Store(&next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if leads.Load() && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, inner.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	img := imageWith(t, layerOf(t, item{name: "x", data: "1"}))
	layers, _ := img.Layers()
	conf, _ := img.ConfigName()
	push(t, real+"/img:1", img)
	layer, _ := layers[0].Digest()
	leads.Store(true)
	for _, zone := range []egress.Zone{egress.Outside, egress.Network, egress.Machine} {
		w := newWay(real, zones(zone, zone))
		web := &http.Client{Transport: w}
		for _, path := range []string{"/v2/", "/v2/img/blobs/" + conf.String(), "/v2/img/blobs/" + layer.String()} {
			resp, err := web.Get("http://" + real + path)
			if err != nil {
				t.Fatalf("zone %d: %v", zone, err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("zone %d: %s: %s", zone, path, resp.Status)
			}
		}
		w.CloseIdleConnections()
	}
	if inner.asked.Load() != 6 {
		t.Errorf("%d requests went beside", inner.asked.Load())
	}
}

func newWay(registry string, zone func(netip.Addr) egress.Zone) *http.Transport {
	repo, err := name.NewRepository(registry + "/img")
	if err != nil {
		panic(err)
	}
	return wayTo(repo, zone)
}

// TestWay: who owns the name of a registry gains nothing by changing its address.
func TestWay(t *testing.T) {
	const registry, elsewhere = "registry.example:443", "elsewhere.example:80"
	const public, private, machine, metadata = "203.0.113.1:443", "10.0.0.1:443", "127.0.0.1:443", "169.254.169.254:443"
	for name, c := range map[string]struct {
		found []string // where the registry was
		named string
		at    string
		ok    bool
	}{
		"the registry, at first":               {nil, registry, private, true},
		"at another port":                      {nil, "REGISTRY.example:80", machine, true},
		"at no address of a registry":          {nil, registry, metadata, false},
		"another host, at first":               {nil, elsewhere, private, false},
		"another host, in the open":            {nil, elsewhere, public, true},
		"the registry has moved inside":        {[]string{public}, registry, private, false},
		"the registry has moved outside":       {[]string{private}, registry, public, true},
		"beside":                               {[]string{private}, elsewhere, private, true},
		"further in":                           {[]string{private}, elsewhere, machine, false},
		"inside, when it was outside before":   {[]string{public, private}, elsewhere, private, false},
		"inside, when it was outside since":    {[]string{private, public}, elsewhere, private, false},
		"metadata, of a registry on a machine": {[]string{machine}, elsewhere, metadata, false},
		"a proxy of the operator":              {[]string{public}, "proxy.example:3128", machine, true},
		"beside that proxy":                    {[]string{public}, "proxy.example:22", machine, false},
	} {
		w := &way{registry: "registry.example", zone: egress.ZoneOf, proxies: map[string]bool{"proxy.example:3128": true}}
		for _, at := range c.found {
			w.arrived(registry, at)
		}
		if err := w.judge(c.named, c.at); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// endless answers without an end.
func endless(w http.ResponseWriter, sent *atomic.Int64) {
	chunk := []byte(strings.Repeat(" ", 64<<10))
	for {
		n, err := w.Write(chunk)
		if sent.Add(int64(n)); err != nil {
			return
		}
	}
}

// TestAnswersWithoutAnEnd: of a registry's answer no more is read than there can be.
func TestAnswersWithoutAnEnd(t *testing.T) {
	var sent atomic.Int64
	var of atomic.Value
	of.Store("none")
	at := registryAt(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			what := of.Load().(string)
			if what == "lie" && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/manifests/1") {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
				before, after, _ := strings.Cut(rec.Body.String(), `"config":{`)
				_, after, _ = strings.Cut(after, `"digest":`)
				fmt.Fprintf(w, `%s"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":%s`, before, int64(1)<<40, after)
				return
			}
			if what == "lie" {
				what = "/blobs/"
			}
			if r.Method == http.MethodGet && what != "none" && strings.Contains(r.URL.Path, what) {
				endless(w, &sent)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	img := imageWith(t, layerOf(t, item{name: "x", data: "1"}))
	push(t, at+"/img:1", img)
	layers, _ := img.Layers()
	layer, _ := layers[0].Digest()
	for what, code := range map[string]string{
		"/manifests/": "image_too_large", "lie": "image_too_large", layer.String(): "image_damaged",
	} {
		of.Store(what)
		sent.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := newStore(t).Pull(ctx, at+"/img:1", nil, nil, func(Image) error { return nil })
		cancel()
		// What is under way in the sockets comes on top.
		if n := sent.Load(); codeOf(err) != code || n > maxDocument+64<<20 {
			t.Errorf("%s without an end: %v, after %d MiB were sent; want %s", what, err, n>>20, code)
		}
	}
	of.Store("none")
	if _, _, err := pulled(t, newStore(t), at+"/img:1"); err != nil {
		t.Errorf("with an end: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAnswersThatTrickle: a document that does not come to its end is given up.
func TestAnswersThatTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		stop := make(chan struct{})
		go func() {
			for {
				if _, err := out.Write([]byte(" ")); err != nil {
					close(stop)
					return
				}
				time.Sleep(10 * time.Second)
			}
		}()
		b := bounded{roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: in}, nil
		})}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry/v2/", nil)
		began := time.Now()
		resp, err := b.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(resp.Body)
		if took := time.Since(began); err == nil || took > documentTime {
			t.Errorf("it ended after %v: %v", took, err)
		}
		<-stop
	})
}
