package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/store"
)

// raw2 sends a request by HTTP/2 as it is told to, and returns the status.
func raw2(t *testing.T, url string, fields ...string) string {
	t.Helper()
	conn, _ := talk(t, url)
	fmt.Fprint(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true, EndStream: true})
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		}
	}
}

// TestHTTP2PathsBeginWithASlash: net/http takes a whole URL for a :path, which
// the server inside would be asked for.
func TestHTTP2PathsBeginWithASlash(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	for path, want := range map[string]string{
		"/ok": "200", "http://other.test/x": "400", "foo:bar": "400", "x": "400", "*": "400", "http:/s/ione/8000/": "400", "//x": "200",
	} {
		got := raw2(t, url, ":method", "GET", ":scheme", "http", ":authority", "localhost", ":path", path, "e2b-sandbox-id", "ione", "e2b-sandbox-port", "8000")
		if got != want && !(want == "400" && got == "PROTOCOL_ERROR") {
			t.Errorf(":path %q was answered %s, want %s", path, got, want)
		}
	}
}

// TestRoutingHeadersAreThereOnce: two readers could take different ones.
func TestRoutingHeadersAreThereOnce(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	for _, more := range []string{"E2b-Sandbox-Id: itwo", "e2b-sandbox-id: ione", "E2b-Sandbox-Port: 8001", "E2B-SANDBOX-PORT: 8000", "E2b-Sandbox-Id:"} {
		conn, br := talk(t, url)
		fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+more+"\r\n\r\n")
		if resp, got := readAnswer(t, br, "GET"); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("with %q: %d %s", more, resp.StatusCode, got)
		}
		name, value, _ := strings.Cut(more, ":")
		got := raw2(t, url, ":method", "GET", ":scheme", "http", ":authority", "localhost", ":path", "/",
			"e2b-sandbox-id", "ione", "e2b-sandbox-port", "8000", strings.ToLower(name), strings.TrimSpace(value))
		if got != "400" {
			t.Errorf("with %q by HTTP/2: %s", more, got)
		}
	}
}

// TestStrangersNamesOnLoopback: a page whose name was given the address
// 127.0.0.1 reads nothing.
func TestStrangersNamesOnLoopback(t *testing.T) {
	f := newFleet(t, echo)
	url := f.serve(t)
	for _, c := range []struct {
		head string
		want int
	}{
		{"GET /metrics HTTP/1.1\r\nHost: attacker.test:3000\r\n", 421},
		{"GET /s/ione/8000/ HTTP/1.1\r\nHost: attacker.test\r\n", 421},
		{"GET /files?path=a&signature=v1_x HTTP/1.1\r\nHost: attacker.test\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: localhost.attacker.test\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: notexample.test\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: example.test.attacker.test\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: attacker.test\r\nX-API-Key: e2b_1\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: localhost:3000\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: app.localhost\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: [::1]:3000\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: api.example.test\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: EXAMPLE.test\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: 8000-ione.anything.test\r\n", 200},
		{"GET / HTTP/1.0\r\n", 200},
	} {
		conn, br := talk(t, url)
		fmt.Fprint(conn, c.head+"\r\n")
		if resp, got := readAnswer(t, br, "GET"); resp.StatusCode != c.want {
			t.Errorf("%q: %d %s, want %d", c.head, resp.StatusCode, got, c.want)
		}
	}
	if got := raw2(t, url, ":method", "GET", ":scheme", "http", ":authority", "attacker.test", ":path", "/metrics"); got != "421" {
		t.Errorf("by HTTP/2: %s", got)
	}
}

// TestPagesBelowAPathHaveTheirOwnOrigin, and say nothing for all of it.
func TestPagesBelowAPathHaveTheirOwnOrigin(t *testing.T) {
	whole := []string{"Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Report-To", "NEL", "Origin-Agent-Cluster", "Cross-Origin-Opener-Policy"}
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range whole {
			w.Header().Set(name, "x")
		}
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		w.Header().Add("Set-Cookie", "a=b; Path =/; Domain =example.test")
		w.Header().Add("Set-Cookie", "c=d; Path= /")
		w.Header().Add("Set-Cookie", "e=f;\tpath\t=\t/")
	})
	url := f.serve(t)
	check := func(way string, h http.Header, below bool) {
		t.Helper()
		for _, name := range whole {
			if (h.Get(name) == "") != below {
				t.Errorf("%s: %s is %q", way, name, h.Get(name))
			}
		}
		policies := h.Values("Content-Security-Policy")
		if got := strings.Join(policies, "|"); strings.Contains(got, "|sandbox ") != below || !strings.HasPrefix(got, "default-src 'self'") {
			t.Errorf("%s: policies %q", way, got)
		}
		for _, cookie := range h.Values("Set-Cookie") {
			if below && (!strings.Contains(cookie, "Path=/s/ione/8000/") || strings.Contains(cookie, "example.test")) {
				t.Errorf("%s: cookie %q", way, cookie)
			}
		}
	}
	for host, head := range map[string]string{"path": "GET /s/ione/8000/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "header": rawHead("GET / HTTP/1.1") + "\r\n"} {
		conn, br := talk(t, url)
		fmt.Fprint(conn, head)
		resp, _ := readAnswer(t, br, "GET")
		check(host, resp.Header, host == "path")
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", url+"/s/ione/8000/", nil)
	resp, err := http2Client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	check("HTTP/2", resp.Header, true)
}

// manyFleet has many sandboxes, and counts how often they are all looked at.
type manyFleet struct {
	*fleet
	lists atomic.Int64
	n     int
}

func (f *manyFleet) List(context.Context) ([]store.Sandbox, error) {
	f.lists.Add(1)
	list := make([]store.Sandbox, f.n)
	for i := range list {
		list[i] = f.sb
		list[i].ID = fmt.Sprintf("i%d", i)
	}
	list[len(list)-1].ID = "ione"
	return list, nil
}

func (f *manyFleet) EnvdToken(id string) string { return "token of " + id }

// TestValidSignaturesAreSearchedForInBounds: a search that found something was free,
// so that a tenant who signed one path after another of its own sandbox had every
// sandbox looked at for each, and kept the searches of all others waiting.
func TestValidSignaturesAreSearchedForInBounds(t *testing.T) {
	f := &manyFleet{fleet: newFleet(t, echo), n: 1000}
	f.sb.Config.Secure = true
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		s := newSigners()
		find := func(client, path, token string) (string, error) {
			p := signed{path: path, operation: agentapi.OperationRead, user: "user"}
			p.signature = agentapi.Sign(p.path, p.operation, p.user, token, nil)
			return s.find(t.Context(), f, p, netip.MustParseAddr(client))
		}
		for i := range 1000 {
			if id, err := find("192.0.2.1", fmt.Sprint("/", i), "token of ione"); id != "ione" || err != nil {
				t.Fatalf("path %d: %q, %v", i, id, err)
			}
		}
		if n := f.lists.Load(); n != 1 {
			t.Errorf("1000 paths of one sandbox took %d searches", n)
		}

		// One who has more sandboxes than are remembered goes from one to the next.
		refused := 0
		for i := range 900 {
			id := fmt.Sprint("i", i)
			switch got, err := find("192.0.2.1", "/a", "token of "+id); {
			case errors.Is(err, errTooManySearches):
				refused++
			case got != id || err != nil:
				t.Fatalf("%s: %q, %v", id, got, err)
			}
		}
		if n := f.lists.Load(); n > 50 || int(n)+refused != 901 {
			t.Errorf("900 sandboxes took %d searches, and %d were refused", n, refused)
		}
		if id, err := find("192.0.2.2", "/b", "token of ione"); id != "ione" || err != nil {
			t.Errorf("from another address: %q, %v", id, err)
		}
	})
}

// TestSignaturesAreNotSearchedForEachRequest: each unknown one cost a look at
// every sandbox, without a credential.
func TestSignaturesAreNotSearchedForEachRequest(t *testing.T) {
	f := &manyFleet{fleet: newFleet(t, echo), n: 1000}
	f.sb.Config.Secure = true
	s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog})
	url := f.run(t, s)
	get := func(path, signature string) int {
		resp, err := http.Get(url + "/files?path=" + path + "&username=user&signature=" + escape(signature))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	good := agentapi.Sign("/a", agentapi.OperationRead, "user", "token of ione", nil)
	for range 100 {
		if got := get("/a", good); got != http.StatusOK {
			t.Fatalf("a good URL was answered %d", got)
		}
	}
	if n := f.lists.Load(); n != 1 {
		t.Errorf("100 requests with one signature took %d searches", n)
	}
	refused := 0
	for i := range 200 {
		if got := get("/a", fmt.Sprintf("v1_%d", i)); got == http.StatusTooManyRequests {
			refused++
		} else if got != http.StatusBadRequest {
			t.Fatalf("a bad signature was answered %d", got)
		}
	}
	if n := f.lists.Load(); n > 60 || refused < 100 {
		t.Errorf("200 bad signatures took %d searches, %d were refused", n, refused)
	}
	if got := get("/a", good); got != http.StatusOK {
		t.Errorf("afterwards a good URL was answered %d", got)
	}
	before := f.lists.Load()
	if got := get(strings.Repeat("x", 5000), good); got != http.StatusBadRequest || f.lists.Load() != before {
		t.Errorf("a path longer than a file's was answered %d, and searched for", got)
	}
}
