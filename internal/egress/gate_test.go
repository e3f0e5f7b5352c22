package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// loop is an Internet of one server on the loopback interface, which stands for
// every address.
type loop struct {
	names   book
	server  net.Listener
	dialed  atomic.Value // the address that was asked for last
	dials   atomic.Int32
	dialing chan struct{} // if not nil, Dial waits until it is closed
}

func (l *loop) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return l.names.Lookup(ctx, host)
}

func (l *loop) Own() ([]netip.Addr, error) { return l.names.Own() }

func (l *loop) Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	l.dialed.Store(to.String())
	l.dials.Add(1)
	if l.dialing != nil {
		<-l.dialing
	}
	if to.Addr() == netip.MustParseAddr("203.0.113.99") {
		return nil, errors.New("nobody is there")
	}
	if to.Addr() == netip.MustParseAddr("203.0.113.98") {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", l.server.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// newLoop returns the world and a gate, and what counts refusals.
func newLoop(t *testing.T) (*loop, *Gate) {
	server := listen(t) // a test may put another in its place
	l := &loop{server: server, names: book{"good.test": {"203.0.113.10"}, "private.test": {"10.0.0.1"}, "host.test": {"11.51.100.1"}}}
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { // an echo
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l, NewGate(l, NewRoom(), "key", func(Reason) {})
}

// arrive makes a connection come to the gate as one to an address. It returns
// the sandbox's end.
func arrive(t *testing.T, g *Gate, to string) *net.TCPConn {
	t.Helper()
	ln := listen(t)
	near, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.carry(ln, far.(*net.TCPConn), netip.MustParseAddrPort(to))
	}()
	t.Cleanup(func() { near.Close(); <-done })
	return near.(*net.TCPConn)
}

// echoed reports whether bytes go through and come back.
func echoed(c net.Conn, text string) bool {
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	if _, err := io.WriteString(c, text); err != nil {
		return false
	}
	back := make([]byte, len(text))
	_, err := io.ReadFull(c, back)
	return err == nil && string(back) == text
}

func reasons(g *Gate) []Reason {
	var list []Reason
	for _, r := range g.Refusals() {
		list = append(list, r.Reason)
	}
	return list
}

const request = "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"

func TestGate(t *testing.T) {
	all := mustPolicy(t, true, nil, []string{"203.0.113.66"})
	names := mustPolicy(t, true, []string{"good.test", "private.test", "host.test", "nowhere.test", "203.0.113.20"}, []string{Everything})
	for name, tt := range map[string]struct {
		policy   Policy
		to, sent string
		dialed   string // empty for none
		why      Reason // empty for none
	}{
		"allowed":                {all, "203.0.113.10:80", "hello", "203.0.113.10:80", ""},
		"denied":                 {all, "203.0.113.66:80", "hello", "", ReasonDenied},
		"closed":                 {all, "169.254.169.254:80", "hello", "", ReasonClosed},
		"this machine":           {all, "11.51.100.1:80", "hello", "", ReasonClosed},
		"mapped and closed":      {all, "[::ffff:10.0.0.1]:80", "hello", "", ReasonClosed},
		"IPv6":                   {all, "[2001:db8::1]:80", "hello", "", ReasonClosed},
		"nobody there":           {all, "203.0.113.99:80", "hello", "203.0.113.99:80", ReasonUnreachable},
		"by name":                {names, "203.0.113.10:80", request, "203.0.113.10:80", ""},
		"by name, another's":     {names, "203.0.113.66:8080", request, "203.0.113.10:8080", ""},
		"no name":                {names, "203.0.113.10:80", "SSH-2.0-x\r\n", "", ReasonName},
		"a name not allowed":     {names, "203.0.113.10:80", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "", ReasonName},
		"a name that is private": {names, "203.0.113.10:80", "GET / HTTP/1.1\r\nHost: private.test\r\n\r\n", "", ReasonClosed},
		"a name of the machine":  {names, "203.0.113.10:80", "GET / HTTP/1.1\r\nHost: host.test\r\n\r\n", "", ReasonClosed},
		"a name of nothing":      {names, "203.0.113.10:80", "GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n", "", ReasonUnresolved},
		"an address next to it":  {names, "203.0.113.20:80", "hello", "203.0.113.20:80", ""},
		"nothing allowed":        {Policy{}, "203.0.113.10:80", "hello", "", ReasonDenied},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := newLoop(t)
			g.Set(tt.policy)
			through := echoed(arrive(t, g, tt.to), tt.sent)
			if through != (tt.why == "") {
				t.Errorf("through: %t", through)
			}
			if dialed, _ := l.dialed.Load().(string); dialed != tt.dialed {
				t.Errorf("dialed %q, want %q", dialed, tt.dialed)
			}
			if tt.why != "" && !slices.Equal(reasons(g), []Reason{tt.why}) {
				t.Errorf("refused for %q, want %q", reasons(g), tt.why)
			}
		})
	}
}

// TestGateChanges breaks off what a new policy does not allow, and nothing else.
func TestGateChanges(t *testing.T) {
	_, g := newLoop(t)
	g.Set(mustPolicy(t, true, nil, nil))
	goes, stays := arrive(t, g, "203.0.113.66:80"), arrive(t, g, "203.0.113.10:80")
	if !echoed(goes, "a") || !echoed(stays, "a") {
		t.Fatal("nothing comes through")
	}
	g.Set(mustPolicy(t, true, nil, []string{"203.0.113.66"}))
	if echoed(goes, "b") {
		t.Error("what is denied now goes on")
	}
	if !echoed(stays, "b") {
		t.Error("what is still allowed was broken off")
	}
	g.Set(mustPolicy(t, true, []string{"good.test"}, []string{Everything}))
	if echoed(stays, "c") {
		t.Error("a connection by address goes on where only names are allowed")
	}
	named := arrive(t, g, "203.0.113.10:80")
	if !echoed(named, request) {
		t.Fatal("the name that is allowed does not come through")
	}
	g.Set(mustPolicy(t, true, []string{"other.test"}, []string{Everything}))
	if echoed(named, "d") {
		t.Error("a connection for a name that is no longer allowed goes on")
	}
}

// TestGateChangesWhileDialing denies an address that is just being connected to.
func TestGateChangesWhileDialing(t *testing.T) {
	l, g := newLoop(t)
	l.dialing = make(chan struct{})
	g.Set(mustPolicy(t, true, nil, nil))
	c := arrive(t, g, "203.0.113.66:80")
	for l.dialed.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	g.Set(mustPolicy(t, false, nil, nil))
	close(l.dialing)
	if echoed(c, "a") {
		t.Error("it came through")
	}
}

// TestGatePasses carries much, and the ends of both directions apart.
func TestGatePasses(t *testing.T) {
	_, g := newLoop(t)
	g.Set(mustPolicy(t, true, nil, nil))
	c := arrive(t, g, "203.0.113.10:80")
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
}

// TestGateBounds refuses connections past the bound, and forgets old refusals.
func TestGateBounds(t *testing.T) {
	_, g := newLoop(t)
	g.Set(mustPolicy(t, true, nil, nil))
	for range maxConns {
		g.conns[&conn{}] = struct{}{}
	}
	if echoed(arrive(t, g, "203.0.113.10:80"), "a") || !slices.Equal(reasons(g), []Reason{ReasonCrowded}) {
		t.Errorf("one too many: refused for %q", reasons(g))
	}
	clear(g.conns)
	for range 2 * keptRefusals {
		g.refuse("x", ReasonDenied)
	}
	if n := len(g.Refusals()); n != keptRefusals {
		t.Errorf("%d refusals are kept", n)
	}
}

// TestServeEnds breaks off what came from sockets that are closed.
func TestServeEnds(t *testing.T) {
	_, g := newLoop(t)
	// The address of this connection is a loopback address: nothing comes
	// through, and what is asked is answered.
	g.Set(mustPolicy(t, true, nil, nil))
	ln := listen(t)
	names, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		g.Serve(ln, names, nil)
	}()
	refused := true
	if c, err := net.Dial("tcp4", ln.Addr().String()); err == nil { // it may be broken off before
		defer c.Close()
		refused = !echoed(c, "a")
	}
	if !refused || !slices.Equal(reasons(g), []Reason{ReasonClosed}) {
		t.Errorf("refused for %q", reasons(g))
	}
	through := arrive(t, g, "203.0.113.10:80")
	if !echoed(through, "a") {
		t.Error("nothing comes through")
	}
	ln.Close()
	names.Close()
	select {
	case <-served:
	case <-time.After(testmode.Patience()):
		t.Fatal("it still serves")
	}
	if !echoed(through, "b") {
		t.Error("what came another way was broken off")
	}
}
