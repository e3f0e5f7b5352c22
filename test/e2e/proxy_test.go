package e2e

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// proxyPassword is what no sandbox, answer or file of the state directory has.
const proxyPassword = "hidden-9f31c7d2a4"

// proxies is a proxy of the internet that wants a login.
type proxies struct {
	mu    sync.Mutex
	asked []string // for which addresses
}

func (p *proxies) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// newProxy lets one listen at an address of the internet, which serves by SOCKS or by
// CONNECT.
func (in *internet) newProxy(at string, serve func(p *proxies, in *internet, c net.Conn)) *proxies {
	p := &proxies{}
	var ln net.Listener
	in.inside(func() {
		var err error
		ln, err = net.Listen("tcp4", at)
		must(in.t, err)
	})
	if ln == nil {
		in.t.FailNow()
	}
	in.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(p, in, c)
			}()
		}
	}()
	return p
}

func (p *proxies) socks(in *internet, c net.Conn) {
	var b [600]byte
	read := func(n int) []byte {
		if _, err := io.ReadFull(c, b[:n]); err != nil {
			return make([]byte, n)
		}
		return b[:n]
	}
	if !slices.Contains(read(int(read(2)[1])), 2) {
		_, _ = c.Write([]byte{5, 0xff})
		return
	}
	_, _ = c.Write([]byte{5, 2})
	user := string(read(int(read(2)[1])))
	if password := string(read(int(read(1)[0]))); user != "me" || password != proxyPassword {
		_, _ = c.Write([]byte{1, 1})
		return
	}
	_, _ = c.Write([]byte{1, 0})
	ask := slices.Clone(read(10))
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ask[4:8])), binary.BigEndian.Uint16(ask[8:]))
	p.join(in, c, to.String(), "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00", "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00")
}

func (p *proxies) connect(in *internet, c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c)) // the client says no more before the answer
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	r.Header["Authorization"] = r.Header["Proxy-Authorization"]
	if user, password, _ := r.BasicAuth(); user != "me" || password != proxyPassword {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	p.join(in, c, r.Host, "HTTP/1.1 200 Connection established\r\n\r\n", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
}

// join connects a client to an address, and answers whether that worked.
func (p *proxies) join(in *internet, c net.Conn, to, yes, no string) {
	p.mu.Lock()
	p.asked = append(p.asked, to)
	p.mu.Unlock()
	var out net.Conn
	in.inside(func() { out, _ = net.DialTimeout("tcp4", to, 30*time.Second) })
	if out == nil {
		_, _ = io.WriteString(c, no)
		return
	}
	defer out.Close()
	_, _ = io.WriteString(c, yes)
	go func() { _, _ = io.Copy(out, c); out.Close() }()
	_, _ = io.Copy(c, out)
}

// TestEgressProxy: what the rules allow goes through the proxy of the sandbox, what
// they do not never gets there, and its password is nowhere.
func TestEgressProxy(t *testing.T) {
	w := newWorld(t)
	p, byHTTP := w.newProxy(evilAddr+":1080", (*proxies).socks), w.newProxy(evilAddr+":3128", (*proxies).connect)
	via := &client.EgressProxy{Address: "evil.test:1080", Username: "me", Password: proxyPassword}
	sb := w.create(w.ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true), DenyOut: []string{evilAddr}, EgressProxy: via})
	good := w.curl(sb, "http://good.test/")
	if !strings.Contains(good, goodAddr) || !slices.Equal(p.seen(), []string{goodAddr + ":80"}) {
		t.Fatalf("got %q; the proxy was asked for %v", good, p.seen())
	}
	w.expect(sb, map[string]string{"http://evil.test/": "refused", "http://" + evilAddr: "refused", "http://10.0.0.1/": "refused", "http://" + goodAddr + ":81": "refused"})
	if got := p.seen(); !slices.Equal(got, []string{goodAddr + ":80", goodAddr + ":81"}) {
		t.Errorf("the proxy was asked for %v", got)
	}
	if text := w.why(w.ctx, sb.ID); !strings.Contains(text, "the egress proxy did not connect on") {
		t.Errorf("why says nothing of it:\n%s", text)
	}
	// It is the sandbox's over a sleep.
	w.pause(w.ctx, sb.ID)
	if got := w.curl(sb, "http://good.test/"); got != good {
		t.Errorf("after a sleep: %q", got)
	}
	info, err := w.server.client.Get(w.ctx, sb.ID)
	if err != nil || info.EgressProxy == nil || *info.EgressProxy != (client.EgressProxy{Address: via.Address, Username: "me"}) {
		t.Errorf("%+v, %v", info.EgressProxy, err)
	}
	if _, out := run(w.ctx, t, sb, "sh", "-c", "env; cat /proc/1/environ /proc/1/cmdline"); strings.Contains(out, proxyPassword) {
		t.Error("the sandbox has the password")
	}
	for _, m := range w.each() {
		if at := holding(t, m.home, proxyPassword); len(at) > 0 {
			t.Errorf("the password is in %v", at)
		}
	}
	// Another login, another proxy, and none.
	patch := func(p *client.EgressProxy) {
		t.Helper()
		if _, err := w.server.client.Patch(w.ctx, sb.ID, client.PatchOptions{EgressProxy: p}); err != nil {
			t.Fatal(err)
		}
	}
	before := len(p.seen())
	for reason, proxy := range map[string]*client.EgressProxy{
		"proxy login":       {Address: via.Address, Username: "me", Password: "wrong"},
		"proxy unreachable": {Address: evilAddr + ":9", Username: "me", Password: proxyPassword},
	} {
		patch(proxy)
		if got := w.curl(sb, "http://good.test/"); got != "refused" {
			t.Errorf("%s: %q", reason, got)
		}
		x, err := w.server.client.Explain(w.ctx, sb.ID)
		if err != nil || len(x.Refusals) == 0 || x.Refusals[0].Reason != reason {
			t.Errorf("want %s: %+v, %v", reason, x.Refusals, err)
		}
	}
	patch(&client.EgressProxy{Address: "http://evil.test:3128", Username: "me", Password: proxyPassword})
	if got := w.curl(sb, "http://good.test/"); got != good || !slices.Equal(byHTTP.seen(), []string{goodAddr + ":80"}) {
		t.Errorf("by CONNECT: %q; the proxy was asked for %v", got, byHTTP.seen())
	}
	w.expect(sb, map[string]string{"http://10.0.0.1/": "refused", "http://" + goodAddr + ":81": "refused"})
	if got := byHTTP.seen(); !slices.Equal(got, []string{goodAddr + ":80", goodAddr + ":81"}) {
		t.Errorf("by CONNECT the proxy was asked for %v", got)
	}
	patch(&client.EgressProxy{Address: "http://evil.test:3128", Username: "me", Password: "wrong"})
	if got := w.curl(sb, "http://good.test/"); got != "refused" || len(byHTTP.seen()) != 2 {
		t.Errorf("by CONNECT with a wrong password: %q; the proxy was asked for %v", got, byHTTP.seen())
	}
	patch(&client.EgressProxy{})
	if got := w.curl(sb, "http://good.test/"); got != good || len(p.seen()) != before {
		t.Errorf("without a proxy: %q; the proxy was asked for %v", got, p.seen())
	}
	for _, address := range []string{"127.0.0.1:1080", "10.0.0.1:1080", "169.254.169.254:80"} {
		if _, err := w.server.client.Patch(w.ctx, sb.ID, client.PatchOptions{EgressProxy: &client.EgressProxy{Address: address, Password: proxyPassword}}); err == nil || strings.Contains(err.Error(), proxyPassword) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// holding returns the files of a state directory, not of what is below it, that
// have a text: the database is there, and below it are also the host's own files.
func holding(t *testing.T, dir, text string) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	searched := 0
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // a directory, or what comes and goes
		}
		searched++
		if strings.Contains(string(data), text) {
			files = append(files, path)
		}
	}
	if err != nil || searched == 0 {
		t.Errorf("searched %d files: %v", searched, err)
	}
	return files
}
