package egress

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestParseProxy(t *testing.T) {
	for text, want := range map[string]Proxy{
		"proxy.example.com:1080":            {Host: "proxy.example.com", Port: 1080},
		"socks5://Proxy.Example.com.:1080/": {Host: "proxy.example.com", Port: 1080},
		"http://203.0.113.7:3128":           {Host: "203.0.113.7", Port: 3128, HTTP: true},
		"203.0.113.7:1":                     {Host: "203.0.113.7", Port: 1},
		"[::ffff:203.0.113.7]:1080":         {Host: "203.0.113.7", Port: 1080},
		"":                                  {}, "proxy.example.com": {}, "proxy.example.com:0": {}, "proxy.example.com:65536": {}, ":1080": {},
		"https://proxy.example.com:1": {}, "socks4://proxy.example.com:1": {}, "user:pass@proxy.example.com:1080": {}, "http://u:p@proxy.example.com:1": {},
		"127.0.0.1:1080": {}, "10.1.2.3:1080": {}, "169.254.169.254:80": {}, "0.0.0.0:80": {}, "[::1]:1080": {}, "[2001:db8::1]:1080": {}, "[::ffff:10.0.0.1]:1080": {},
		"localhost:1080": {}, "x.localhost:1080": {}, "127.1:1080": {}, "0x7f000001:1080": {}, "2130706433:80": {}, "a b:1080": {}, "proxy.example.com:1080/path": {}, "a\r\nb:1": {},
	} {
		got, err := ParseProxy(text, "")
		if got.Host != want.Host || got.Port != want.Port || got.HTTP != want.HTTP || (err == nil) != (want.Host != "") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if _, err := ParseProxy("p.test:1", strings.Repeat("x", 256)); err == nil {
		t.Error("a long username is taken")
	}
	if _, err := ParseProxy("http://p.test:1", "a:b"); err == nil {
		t.Error("a username that HTTP cannot send is taken")
	}
	if CheckPassword(strings.Repeat("x", 255)) != nil || CheckPassword(strings.Repeat("x", 256)) == nil {
		t.Error("passwords of 255 bytes are the longest")
	}
}

// crossing is a world in which nobody is but a proxy.
type crossing struct {
	*loop
	mu    sync.Mutex
	tried []string
	proxy net.Listener
}

const proxyAddr = "203.0.113.7"

func (x *crossing) Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	x.mu.Lock()
	x.tried = append(x.tried, to.String())
	x.mu.Unlock()
	if to.Addr().String() != proxyAddr {
		return nil, errors.New("only the proxy is there")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", x.proxy.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// newCrossing is a world with a proxy that does with each connection what serve
// says.
func newCrossing(t *testing.T, serve func(net.Conn)) (*crossing, *Gate) {
	l, _ := newLoop(t)
	l.names["proxy.test"], l.names["inside.test"] = []string{proxyAddr}, []string{"10.0.0.9"}
	x := &crossing{loop: l, proxy: listen(t)}
	go func() {
		for {
			c, err := x.proxy.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	return x, NewGate(x, NewRoom(), "key", func(Reason) {})
}

// socks is a proxy as it should be, which answers with what it was asked for and is
// an echo then. With a name it wants a login.
func socks(name, password string) func(net.Conn) {
	return func(c net.Conn) {
		var b [300]byte
		must := func(n int) []byte { _, _ = io.ReadFull(c, b[:n]); return b[:n] }
		n := int(must(2)[1])
		offered := slices.Clone(must(n))
		if name == "" {
			_, _ = c.Write([]byte{5, 0})
		} else {
			if !slices.Contains(offered, 2) {
				_, _ = c.Write([]byte{5, 0xff})
				return
			}
			_, _ = c.Write([]byte{5, 2})
			u := string(must(int(must(2)[1])))
			p := string(must(int(must(1)[0])))
			if u != name || p != password {
				_, _ = c.Write([]byte{1, 1})
				return
			}
			_, _ = c.Write([]byte{1, 0})
		}
		ask := slices.Clone(must(10))
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ask[4:8])), binary.BigEndian.Uint16(ask[8:]))
		if to.Port() == 1 {
			_, _ = c.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0})
			return
		}
		_, _ = c.Write(append(append([]byte{5, 0, 0, 3, 4}, "name"...), 0, 1))
		_, _ = io.WriteString(c, to.String()+"\n")
		_, _ = io.Copy(c, c)
	}
}

// connects is the same by CONNECT.
func connects(login string) func(net.Conn) {
	return func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil || r.Method != http.MethodConnect {
			return
		}
		if got := r.Header.Get("Proxy-Authorization"); login != "" && got != "Basic "+base64.StdEncoding.EncodeToString([]byte(login)) {
			_, _ = io.WriteString(c, "HTTP/1.1 407 No\r\nContent-Length: 3\r\n\r\nno\n")
			return
		}
		if strings.HasSuffix(r.Host, ":1") {
			_, _ = io.WriteString(c, "HTTP/1.1 502 No\r\n\r\n")
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.0 200 Yes\r\nVia: x\r\n\r\n"+r.Host+"\n")
		_, _ = io.Copy(c, c)
	}
}

func through(t *testing.T, g *Gate, address, username, password string, allow ...string) {
	t.Helper()
	p, err := ParseProxy(address, username)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		p.Password = func() (string, error) { return password, nil }
	}
	deny := []string{"203.0.113.66"}
	if len(allow) > 0 {
		deny = []string{Everything}
	}
	policy, err := NewPolicy(true, allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	g.Set(policy.Through(p))
}

// TestProxies: what is allowed goes to the proxy, which is told an address; what is
// not never does.
func TestProxies(t *testing.T) {
	for what, c := range map[string]struct {
		serve                       func(net.Conn)
		address, username, password string
		names                       bool
		to, want                    string // what the proxy says that it was asked for
		why                         Reason
	}{
		"socks":                     {socks("", ""), "proxy.test:1080", "", "", false, "203.0.113.10:22", "203.0.113.10:22", ""},
		"socks with a login":        {socks("me", "pass"), proxyAddr + ":1080", "me", "pass", false, "203.0.113.10:22", "203.0.113.10:22", ""},
		"socks, wrong password":     {socks("me", "pass"), "proxy.test:1080", "me", "other", false, "203.0.113.10:22", "", ReasonProxyLogin},
		"socks, no credentials":     {socks("me", "pass"), "proxy.test:1080", "", "", false, "203.0.113.10:22", "", ReasonProxyLogin},
		"socks, needless login":     {socks("", ""), "proxy.test:1080", "me", "pass", false, "203.0.113.10:22", "", ReasonProxyBroken},
		"socks, nobody there":       {socks("", ""), "proxy.test:1080", "", "", false, "203.0.113.10:1", "", ReasonProxyRefused},
		"http":                      {connects(""), "http://proxy.test:3128", "", "", false, "203.0.113.10:22", "203.0.113.10:22", ""},
		"http with a login":         {connects("me:pa:ss"), "http://proxy.test:3128", "me", "pa:ss", false, "203.0.113.10:22", "203.0.113.10:22", ""},
		"http, wrong password":      {connects("me:pass"), "http://proxy.test:3128", "me", "other", false, "203.0.113.10:22", "", ReasonProxyLogin},
		"http, nobody there":        {connects(""), "http://proxy.test:3128", "", "", false, "203.0.113.10:1", "", ReasonProxyRefused},
		"by name":                   {socks("", ""), "proxy.test:1080", "", "", true, "11.51.100.200:80", "203.0.113.10:80", ""},
		"no such proxy":             {socks("", ""), "gone.test:1080", "", "", false, "203.0.113.10:22", "", ReasonProxyGone},
		"proxy inside":              {socks("", ""), "inside.test:1080", "", "", false, "203.0.113.10:22", "", ReasonProxyGone},
		"proxy on this machine":     {socks("", ""), "host.test:1080", "", "", false, "203.0.113.10:22", "", ReasonProxyGone},
		"proxy does not listen":     {socks("", ""), "203.0.113.99:1080", "", "", false, "203.0.113.10:22", "", ReasonProxyGone},
		"denied":                    {socks("", ""), "proxy.test:1080", "", "", false, "203.0.113.66:22", "", ReasonDenied},
		"closed":                    {socks("", ""), "proxy.test:1080", "", "", false, "10.0.0.1:22", "", ReasonClosed},
		"its own address is denied": {socks("", ""), "proxy.test:1080", "", "", true, "203.0.113.7:80", "203.0.113.10:80", ""},
	} {
		t.Run(what, func(t *testing.T) {
			x, g := newCrossing(t, c.serve)
			var allow []string
			if c.names {
				allow = []string{"good.test"}
			}
			through(t, g, c.address, c.username, c.password, allow...)
			in := arrive(t, g, c.to)
			_ = in.SetDeadline(time.Now().Add(testmode.Patience()))
			if c.names {
				_, _ = io.WriteString(in, request)
			}
			r := bufio.NewReader(in)
			got, err := r.ReadString('\n')
			if strings.TrimSpace(got) != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
			if c.want != "" && !c.names {
				if _, err := io.WriteString(in, "ping\n"); err != nil {
					t.Error(err)
				}
				if got, err := r.ReadString('\n'); got != "ping\n" {
					t.Errorf("%q, %v", got, err)
				}
			}
			if c.why != "" {
				testmode.Eventually(t, "the reason is known", func() bool { return slices.Equal(reasons(g), []Reason{c.why}) })
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			for _, to := range x.tried {
				host, _, _ := net.SplitHostPort(to)
				if c.why == ReasonDenied || c.why == ReasonClosed || host != proxyAddr && host != "203.0.113.99" {
					t.Errorf("it connected to %s", to)
				}
			}
		})
	}
}

// TestHostileProxies: whatever a proxy answers, the connection ends, with what is
// to blame, and little is read.
func TestHostileProxies(t *testing.T) {
	say := func(steps ...string) func(net.Conn) {
		return func(c net.Conn) {
			var b [512]byte
			for _, s := range steps {
				if _, err := c.Read(b[:]); err != nil {
					return
				}
				if _, err := io.WriteString(c, s); err != nil {
					return
				}
			}
		}
	}
	endless := func(what string) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, what); err != nil {
					return
				}
			}
		}
	}
	for what, c := range map[string]struct {
		http  bool
		serve func(net.Conn)
		why   Reason
	}{
		"ends":                    {false, func(net.Conn) {}, ReasonProxyBroken},
		"resets":                  {false, func(c net.Conn) { reset(c.(*net.TCPConn)) }, ReasonProxyBroken},
		"resets a CONNECT":        {true, func(c net.Conn) { reset(c.(*net.TCPConn)) }, ReasonProxyBroken},
		"another version":         {false, say("\x04\x00"), ReasonProxyBroken},
		"a way not offered":       {false, say("\x05\x02"), ReasonProxyBroken},
		"half an answer":          {false, say("\x05\x00", "\x05\x00\x00\x01\x01"), ReasonProxyBroken},
		"another kind of address": {false, say("\x05\x00", "\x05\x00\x00\x07\x01\x02\x03\x04\x05\x06"), ReasonProxyBroken},
		"success of another":      {false, say("\x05\x00", "\x04\x00\x00\x01\x01\x02\x03\x04\x05\x06"), ReasonProxyBroken},
		"refuses, and goes on":    {false, say("\x05\x00", "\x05\x01"+strings.Repeat("x", 1<<16)), ReasonProxyRefused},
		"zeros without end":       {false, endless(strings.Repeat("\x00", 1<<16)), ReasonProxyBroken},
		"a head without end":      {true, endless("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 1<<16)), ReasonProxyBroken},
		"fields without end":      {true, endless("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n"), ReasonProxyBroken},
		"no answer of HTTP":       {true, say("SSH-2.0-x\r\n\r\n"), ReasonProxyBroken},
		"an answer in between":    {true, say("HTTP/1.1 103 Early\r\n\r\n"), ReasonProxyBroken},
		"redirects":               {true, say("HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n"), ReasonProxyRefused},
	} {
		t.Run(what, func(t *testing.T) {
			_, g := newCrossing(t, c.serve)
			address := "proxy.test:1080"
			if c.http {
				address = "http://" + address
			}
			through(t, g, address, "", "")
			in := arrive(t, g, "203.0.113.10:22")
			_ = in.SetDeadline(time.Now().Add(testmode.Patience()))
			if data, err := io.ReadAll(in); err == nil || len(data) != 0 {
				t.Errorf("the sandbox reads %.80q, %v", data, err)
			}
			testmode.Eventually(t, "the reason is known", func() bool { return slices.Equal(reasons(g), []Reason{c.why}) })
			testmode.Eventually(t, "room is given back", func() bool { d, b := g.room.Of("key"); return d == 0 && b == 0 })
		})
	}
}

// TestHangingProxies: an answer that does not come, or comes a byte at a time, ends
// with the time that a connection may take.
func TestHangingProxies(t *testing.T) {
	for _, drip := range []bool{false, true} {
		for _, p := range []Proxy{{Host: "proxy.test", Port: 1}, {Host: "proxy.test", Port: 1, HTTP: true}} {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				go func() {
					var b [512]byte
					for {
						if _, err := far.Read(b[:]); err != nil {
							return
						}
					}
				}()
				go func() {
					for drip {
						time.Sleep(time.Second)
						if _, err := far.Write([]byte("\x05")); err != nil {
							return
						}
					}
				}()
				begun := time.Now()
				_ = near.SetDeadline(begun.Add(dialTime))
				err := p.ask(near, netip.MustParseAddrPort("203.0.113.10:22"))
				if took := time.Since(begun); err == nil || took > dialTime {
					t.Errorf("%+v, drip %t: %v after %s", p, drip, err, took)
				}
				near.Close()
				far.Close()
				time.Sleep(2 * time.Second) // for what drips to notice
			})
		}
	}
}

// TestLostPassword: without its password a proxy is not asked, and nothing goes
// past it.
func TestLostPassword(t *testing.T) {
	for _, address := range []string{"proxy.test:1080", "http://proxy.test:3128"} {
		_, g := newCrossing(t, func(c net.Conn) {
			var b [2]byte
			_, _ = io.ReadFull(c, b[:])
			_, _ = c.Write([]byte{5, 2})
			_, _ = io.Copy(io.Discard, c)
		})
		p, err := ParseProxy(address, "me")
		if err != nil {
			t.Fatal(err)
		}
		p.Password = func() (string, error) { return "", errors.New("it is on another server") }
		policy, err := NewPolicy(true, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		g.Set(policy.Through(p))
		in := arrive(t, g, "203.0.113.10:22")
		_ = in.SetDeadline(time.Now().Add(testmode.Patience()))
		if data, err := io.ReadAll(in); err == nil || len(data) > 0 {
			t.Errorf("%s: %q, %v", address, data, err)
		}
		testmode.Eventually(t, "the reason is known", func() bool { return slices.Equal(reasons(g), []Reason{ReasonProxyLogin}) })
	}
}
