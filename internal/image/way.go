package image

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// way is how one pull or push reaches its registry, and where that sends it. All
// that package remote and blob ask for goes this way.
//
// The caller has named the registry, which may be anywhere: on this machine, or in a
// private network. Where its redirects and its token service are, the registry
// says, and the owner of their names says what addresses these have. So a
// connection elsewhere must not lead further inside than the registry itself was
// found: a registry on the internet reaches no private address through the server,
// and one in a private network none of this machine. The address is judged when the
// connection is made, after all names have been resolved.
type way struct {
	registry string // the host of the registry, without a port
	zone     func(netip.Addr) egress.Zone

	mu      sync.Mutex
	proxies map[string]bool // that the operator has given the server, as they are dialled
	met     bool            // the registry
	found   egress.Zone     // where the registry was, the outermost place of several
}

// dialer bounds what a registry that does not answer costs.
var dialer = net.Dialer{Timeout: 20 * time.Second, KeepAlive: 30 * time.Second}

// wayTo returns a transport to the registry of a repository. Its idle connections
// are the caller's to close.
func wayTo(repo name.Repository, zone func(netip.Addr) egress.Zone) *http.Transport {
	host := (&url.URL{Host: repo.RegistryStr()}).Hostname()
	w := &way{registry: host, zone: zone, proxies: map[string]bool{}}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext, t.Proxy = w.dial, w.proxy
	t.ResponseHeaderTimeout = stallAfter
	t.DisableCompression = true // how far data expands is bounded where it is unpacked
	return t
}

// proxy implements http.Transport.Proxy.
func (w *way) proxy(r *http.Request) (*url.URL, error) {
	at, err := http.ProxyFromEnvironment(r)
	if at != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.proxies[proxyAddress(at)] = true
	}
	return at, err
}

// proxyAddress returns the address that is dialled for a proxy.
func proxyAddress(at *url.URL) string {
	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[at.Scheme]
	}
	return net.JoinHostPort(at.Hostname(), port)
}

// dial implements http.Transport.DialContext.
func (w *way) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := dialer
	d.Control = func(_, at string, _ syscall.RawConn) error { return w.judge(addr, at) }
	conn, err := d.DialContext(ctx, network, addr)
	if err == nil {
		w.arrived(addr, conn.RemoteAddr().String())
	}
	return conn, err
}

// judge refuses a connection to an address that leads too far inside.
func (w *way) judge(named, at string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.proxies[named] {
		return nil
	}
	zone := w.zoneOf(at)
	switch {
	case zone == egress.Nowhere:
	case w.met && zone <= w.found, !w.met && w.isRegistry(named), zone == egress.Outside:
		return nil
	}
	return errdef.New(errdef.Invalid, "image_invalid", "the registry %s leads to %s, which is at %s: that is further inside than the registry itself, or where no registry is", w.registry, named, at).
		WithRemedy("look at where the registry redirects to, and at the addresses of those names; a registry in a private network may lead to others there")
}

// arrived notes where the registry was found. With several addresses, or ones that
// change, the outermost counts: who owns the name may have put in the others.
func (w *way) arrived(named, at string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRegistry(named) || w.proxies[named] {
		return
	}
	zone := w.zoneOf(at)
	if w.met {
		zone = min(zone, w.found)
	}
	w.met, w.found = true, zone
}

func (w *way) isRegistry(named string) bool {
	host, _, err := net.SplitHostPort(named)
	return err == nil && strings.EqualFold(host, w.registry)
}

func (w *way) zoneOf(at string) egress.Zone {
	to, err := netip.ParseAddrPort(at)
	if err != nil { // no address that this knows
		return egress.Nowhere
	}
	return w.zone(to.Addr())
}

// documentTime is how long a registry may take for one answer that is no layer.
const documentTime = time.Minute

// bounded is a transport whose answers end, in bytes and in time: package remote
// reads some of them to their end, however far that is. Only layers are as long as
// they like, which are bounded where they are unpacked.
type bounded struct{ http.RoundTripper }

// layerRequest is the key of a context whose requests are for layers.
type layerRequest struct{}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	layer := r.Context().Value(layerRequest{}) != nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent)
	if !layer {
		body := resp.Body
		resp.Body = &document{ReadCloser: body, left: maxDocument, late: time.AfterFunc(documentTime, func() { _ = body.Close() })}
	}
	return resp, nil
}

// document is a body of at most so many bytes.
type document struct {
	io.ReadCloser
	left int64
	late *time.Timer
}

// Read implements io.Reader.
func (d *document) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p[:min(int64(len(p)), d.left+1)])
	if d.left -= int64(n); d.left < 0 {
		return 0, tooLarge("the registry sends a manifest, a configuration or another answer of more than %d MiB", maxDocument>>20)
	}
	return n, err
}

// Close implements io.Closer.
func (d *document) Close() error {
	d.late.Stop()
	return d.ReadCloser.Close()
}
