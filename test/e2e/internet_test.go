package e2e

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// The addresses of the internet that these tests have. The host has others.
const (
	goodAddr = "203.0.113.10"
	evilAddr = "203.0.113.66"
	dnsAddr  = "203.0.113.53"
	deadAddr = "203.0.113.99" // nobody's
)

// forbidden addresses are there, too, and routed to from the host: were one not
// refused, it would answer.
var forbidden = []string{"10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "100.100.100.200", "169.254.169.254", "169.254.169.253", "192.0.0.192", "168.63.129.16", "192.0.2.10"}

// internet is a network namespace of servers, next to that of the tests.
type internet struct {
	t    *testing.T
	ns   int    // a descriptor of it
	host string // the host's own address towards it

	mu    sync.Mutex
	names map[string][]string // what names mean
	asked map[string]int      // how often each was asked for
	seen  map[string]int      // requests that each address got
	last  *http.Request       // the last one, without its body
	all   []string            // the target, the host and the headers of each
}

// newInternet makes it, with a route there from the host.
func newInternet(t *testing.T) *internet {
	t.Helper()
	in := &internet{
		t: t, host: "11.51.100.1",
		names: map[string][]string{}, asked: map[string]int{}, seen: map[string]int{},
	}
	in.ns = newNamespace(t)
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "fake0"}, PeerName: "up0", PeerNamespace: netlink.NsFd(in.ns)}
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { must(t, netlink.LinkDel(pair)) })
	raise(t, "fake0", in.host+"/30")
	in.inside(func() {
		raise(t, "lo", goodAddr+"/32", evilAddr+"/32", dnsAddr+"/32")
		for _, a := range forbidden {
			raise(t, "lo", a+"/32")
		}
		raise(t, "up0", "11.51.100.2/30")
	})
	for _, to := range append([]string{"203.0.113.0/24"}, forbidden...) {
		in.route(to)
	}
	in.listen()
	// A new link loses packets until the kernel has noticed its other end.
	eventually(t, startWithin, "the internet answers", func() error {
		c, err := net.DialTimeout("tcp4", goodAddr+":80", time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	return in
}

// newNamespace makes a network namespace that ends with the test.
func newNamespace(t *testing.T) int {
	t.Helper()
	made := make(chan int)
	go func() {
		runtime.LockOSThread() // and ends with it
		must(t, unix.Unshare(unix.CLONE_NEWNET))
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		made <- fd
	}()
	fd := <-made
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	return fd
}

func must(t *testing.T, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// inside runs f on a thread in the namespace. Sockets that it makes stay there.
func (in *internet) inside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and ends with it
		must(in.t, unix.Setns(in.ns, unix.CLONE_NEWNET))
		f()
	}()
	<-done
}

// raise sets a link of this thread's namespace up, with addresses.
func raise(t *testing.T, name string, prefixes ...string) {
	t.Helper()
	h, err := netlink.NewHandle() // in this thread's namespace
	must(t, err)
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Error(err)
		return
	}
	for _, p := range prefixes {
		addr, err := netlink.ParseAddr(p)
		must(t, err)
		must(t, h.AddrAdd(link, addr))
	}
	must(t, h.LinkSetUp(link))
}

// route leads from the host to an address or network of the internet.
func (in *internet) route(to string) {
	prefix, err := netip.ParsePrefix(to)
	if err != nil {
		prefix = netip.PrefixFrom(netip.MustParseAddr(to), 32)
	}
	must(in.t, netlink.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)},
		Gw:  net.ParseIP("11.51.100.2"),
	}))
}

// noRoute makes an address unreachable from the host.
func (in *internet) noRoute(to string) {
	r := &netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(to).To4(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_UNREACHABLE}
	must(in.t, netlink.RouteAdd(r))
	in.t.Cleanup(func() { must(in.t, netlink.RouteDel(r)) })
}

// listen starts servers for HTTP on 80, TLS on 443 and DNS. Each says at which
// address it was reached, and for whom.
func (in *internet) listen() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).IP.String()
		in.mu.Lock()
		in.seen[at]++
		in.last = r
		in.all = append(in.all, fmt.Sprint(at, r.RequestURI, r.Host, r.Header))
		in.mu.Unlock()
		if r.URL.Path == "/stream" {
			fmt.Fprintln(w, "begun")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/echo" {
			w.Header().Set("X-Echo", r.Header.Get("Authorization"))
			w.Header().Set("Location", "https://evil.test/?stolen="+r.URL.Query().Get("key"))
		}
		_, _ = fmt.Fprintf(w, "this is %s for %s", at, r.Host)
	})
	plain := &http.Server{Handler: handler}
	dir := in.t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	authority().issue(in.t, 1, certFile, keyFile)
	secure := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	var web, tlsWeb net.Listener
	var dns net.PacketConn
	in.inside(func() {
		var err error
		web, err = net.Listen("tcp4", ":80")
		must(in.t, err)
		tlsWeb, err = net.Listen("tcp4", ":443")
		must(in.t, err)
		dns, err = net.ListenPacket("udp4", dnsAddr+":53")
		must(in.t, err)
	})
	if in.t.Failed() {
		in.t.FailNow()
	}
	var work sync.WaitGroup
	work.Go(func() { _ = plain.Serve(web) })
	work.Go(func() { _ = secure.ServeTLS(tlsWeb, certFile, keyFile) })
	work.Go(func() { in.serveDNS(dns) })
	in.t.Cleanup(func() {
		_ = plain.Close()
		_ = secure.Close()
		_ = dns.Close()
		work.Wait()
	})
}

func (in *internet) serveDNS(conn net.PacketConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		addrs := in.lookUp(q.Name.String())
		if len(addrs) == 0 {
			m.RCode = dnsmessage.RCodeNameError
		}
		for _, a := range addrs {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: q.Class},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
			})
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

func (in *internet) lookUp(name string) []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked[name]++
	return in.names[name]
}

// name gives a name, with its final dot, other addresses.
func (in *internet) name(name string, addrs ...string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.names[name] = addrs
}

// questions returns how many questions have been asked.
func (in *internet) questions() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	total := 0
	for _, n := range in.asked {
		total += n
	}
	return total
}

// requests returns how many requests an address has got.
func (in *internet) requests(addr string) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.seen[addr]
}

// lastRequest returns the last request that arrived anywhere.
func (in *internet) lastRequest() *http.Request {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.last
}

// arrived returns what has arrived, in one text.
func (in *internet) arrived() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return strings.Join(in.all, "\n")
}
