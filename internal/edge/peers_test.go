package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// authority makes the certificates of a database's servers.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{pool: x509.NewCertPool()}
	own := a.issue(t, "authority")
	a.cert, a.key = own.Leaf, own.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

// issue returns a certificate; the first one is the authority's.
func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: a.cert == nil,
	}
	parent, signer := form, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, form, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// peerLink is how a server sees the other one, which has what holds says.
type peerLink struct {
	name, addr string // of the other
	config     *tls.Config
	holds      func(id string) bool

	leaves bool // the other stops

	mu    sync.Mutex
	err   error    // that Holder returns
	stops []string // servers that it returns first; they stop, and cannot be reached
	asked int
	dials int
}

func (l *peerLink) Holder(_ context.Context, id string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if len(l.stops) > 0 {
		first := l.stops[0]
		l.stops = l.stops[1:]
		return first, nil
	}
	if l.err != nil || !l.holds(id) {
		return "", l.err
	}
	return l.name, nil
}

// Stops implements Peers.
func (l *peerLink) Stops(_ context.Context, server string) bool { return l.leaves || server != l.name }

func (l *peerLink) Dial(ctx context.Context, server, protocol string) (net.Conn, error) {
	l.mu.Lock()
	l.dials++
	l.mu.Unlock()
	if server != l.name {
		return nil, fmt.Errorf("no server %s", server)
	}
	config := l.config.Clone()
	config.NextProtos = []string{protocol}
	d := tls.Dialer{Config: config}
	return d.DialContext(ctx, "tcp", l.addr)
}

func (l *peerLink) counts() (asked, dials int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked, l.dials
}

// cable is a listener whose connections can be torn.
type cable struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cable) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// tear ends the connections as the kernel does with those of a process that was killed:
// without a word of TLS.
func (c *cable) tear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// pair is two servers of one database. The sandbox of the fleet is at b.
type pair struct {
	a, b string // URLs
	link *peerLink
	back *peerLink // b's
	wire *cable
	sa   *Server
	sb   *Server
	home *fleet // a's
}

// all is a fleet whose List has what is at another server too.
type all struct {
	*fleet
	others *fleet
}

func (f all) List(context.Context) ([]store.Sandbox, error) {
	return []store.Sandbox{f.sb, f.others.sb}, nil
}

// EnvdToken implements Sandboxes.
func (f all) EnvdToken(id string) string {
	if id == f.sb.ID {
		return "token of " + id
	}
	return f.others.EnvdToken(id)
}

func (f *fleet) servePair(t *testing.T, change func(a, b *Options)) *pair {
	t.Helper()
	home := newFleet(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "home %s", r.RequestURI) })
	home.sb = store.Sandbox{ID: "itwo", Config: store.Config{Secure: true}, Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t)
	certA, certB := ca.issue(t, "srv-a"), ca.issue(t, "srv-b")
	p := &pair{home: home, wire: &cable{Listener: tcp}}
	p.link = &peerLink{name: "srv-b", addr: tcp.Addr().String(), holds: func(id string) bool { return id == f.sb.ID },
		config: &tls.Config{Certificates: []tls.Certificate{certA}, RootCAs: ca.pool, ServerName: "srv-b"}}
	p.back = &peerLink{name: "srv-a", holds: func(id string) bool { return id != f.sb.ID }}
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "control %s", r.URL.Path) })
	a := Options{Sandboxes: all{home, f}, Domain: "example.test", Log: discardLog, Control: control, Peers: p.link}
	b := Options{Sandboxes: f, Domain: "example.test", Log: discardLog, Control: control, Peers: p.back}
	if change != nil {
		change(&a, &b)
	}
	p.sb = NewServer(b)
	done := make(chan error, 1)
	ln := tls.NewListener(p.wire, &tls.Config{Certificates: []tls.Certificate{certB}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool,
		NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true})
	go func() { done <- p.sb.ServePeers(ln) }()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	p.b = f.run(t, p.sb)
	p.sa = NewServer(a)
	p.a = f.run(t, p.sa)
	return p
}

// recorder is a server that keeps the bytes of what it is asked, and answers by path.
func recorder(t *testing.T, f *fleet, answers map[string]string) (take func() string) {
	var mu sync.Mutex
	var seen bytes.Buffer
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		var took bytes.Buffer
		tee := bufio.NewReaderSize(io.TeeReader(br, &took), 16) // reads no further than it must
		for {
			r, err := http.ReadRequest(tee)
			if err != nil {
				return
			}
			if r.Header.Get("Expect") != "" {
				fmt.Fprint(c, "HTTP/1.1 100 Continue\r\n\r\n")
			}
			_, _ = io.Copy(io.Discard, r.Body)
			mu.Lock()
			seen.Write(took.Bytes())
			mu.Unlock()
			took.Reset()
			answer, ok := answers[r.URL.Path]
			if !ok {
				answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
			}
			fmt.Fprint(c, answer)
			if strings.Contains(answer, "close") {
				return
			}
		}
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		defer seen.Reset()
		return seen.String()
	}
}

// TestPassedOnByteForByte sends requests to the server that has the sandbox, and to one
// that has not: the sandbox sees the same bytes, and the client gets the same.
func TestPassedOnByteForByte(t *testing.T) {
	f := newFleet(t, nil)
	large := strings.Repeat("large ", 100_000)
	take := recorder(t, f, map[string]string{
		"/none":     "HTTP/1.1 204 No Content\r\nX-a: 1\r\nx-A: 2\r\n\r\n",
		"/same":     "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\nETag: \"x\"\r\n\r\n",
		"/head":     "HTTP/1.1 200 Fine\r\nContent-Length: 10\r\n\r\n",
		"/chunks":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-Sum: 3\r\n\r\n",
		"/close":    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
		"/hints":    "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"/large":    fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(large), large),
		"/location": "HTTP/1.1 302 Found\r\nLocation: /other\r\nSet-Cookie: a=b; Path=/\r\nNEL: x\r\nKeep-Alive: 3\r\nContent-Length: 0\r\n\r\n",
		"/bad":      "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
	})
	p := f.servePair(t, nil)
	send := func(url, raw string) string {
		conn, br := talk(t, url)
		go fmt.Fprint(conn, raw+rawHead("GET /last HTTP/1.1")+"Connection: close\r\n\r\n")
		data, err := io.ReadAll(br)
		if err != nil {
			t.Errorf("%q: %v after %q", raw[:40], err, data)
		}
		return string(data)
	}
	for name, raw := range map[string]string{
		"GET":               rawHead("GET / HTTP/1.1") + "\r\n",
		"path":              rawHead("GET /a//b/../c%2f?x=%zz;y HTTP/1.1") + "\r\n",
		"odd fields":        rawHead("GET / HTTP/1.1") + "x-ODD: a\r\nX-odd:b\r\nX-Odd:\t c \r\nx-Empty:\r\nCookie: a=b\r\nCookie: c=d\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
		"own Forwarded":     rawHead("GET / HTTP/1.1") + "Drowse-Forwarded: for=192.0.2.1; secure=1\r\ndrowse-forwarded: for=192.0.2.2; secure=1\r\n\r\n",
		"HEAD":              rawHead("HEAD /head HTTP/1.1") + "\r\n",
		"POST":              rawHead("POST / HTTP/1.1") + "Content-Length: 5\r\n\r\nhello",
		"GET with a body":   rawHead("GET / HTTP/1.1") + "Content-Length: 5\r\n\r\nhello",
		"chunked":           rawHead("POST / HTTP/1.1") + "Transfer-Encoding: Chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n00\r\nX-Sum: 1\r\n\r\n",
		"Expect":            rawHead("PUT / HTTP/1.1") + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
		"large":             rawHead("PUT /large HTTP/1.1") + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(large)) + large,
		"204":               rawHead("GET /none HTTP/1.1") + "\r\n",
		"304":               rawHead("GET /same HTTP/1.1") + "\r\n",
		"chunked answer":    rawHead("GET /chunks HTTP/1.1") + "\r\n",
		"until the end":     rawHead("GET /close HTTP/1.1") + "\r\n",
		"103":               rawHead("GET /hints HTTP/1.1") + "\r\n",
		"bad answer":        rawHead("GET /bad HTTP/1.1") + "\r\n",
		"HTTP/1.0":          rawHead("GET /chunks HTTP/1.0") + "\r\n",
		"keep-alive of 1.0": rawHead("GET / HTTP/1.0") + "Connection: keep-alive\r\n\r\n",
		"absolute target":   rawHead("GET http://localhost/x?y HTTP/1.1") + "\r\n",
		"asterisk":          rawHead("OPTIONS * HTTP/1.1") + "\r\n",
		"options":           rawHead("GET / HTTP/1.1") + "Connection: X-Gone, keep-alive\r\nX-Gone: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n\r\n",
		"upgrade refused":   rawHead("GET / HTTP/1.1") + "Connection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"label":             "GET /x HTTP/1.1\r\nhost: 8000-IONE.sbx.test\r\n\r\n",
		"below a path":      "GET /s/ione/8000/location HTTP/1.1\r\nHost: example.test\r\n\r\n",
		"many fields":       rawHead("GET / HTTP/1.1") + strings.Repeat("X: y\r\n", 253) + "\r\n",
		"large head":        rawHead("GET / HTTP/1.1") + "X: " + strings.Repeat("y", maxHead-110) + "\r\n\r\n",
		"reserved":          "GET /init HTTP/1.1\r\nHost: 49983-ione.sbx.test\r\n\r\n",
		"several":           strings.Repeat(rawHead("POST / HTTP/1.1")+"Content-Length: 1\r\n\r\nx", 5),
		"malformed next":    rawHead("POST / HTTP/1.1") + "Content-Length: 5\r\n\r\nhello" + "GET / HTTP/1.1\r\nA : b\r\n\r\n",
	} {
		want, wantSeen := send(p.b, raw), take()
		got, seen := send(p.a, raw), take()
		if seen != wantSeen {
			t.Errorf("%s: the sandbox saw %.2000q\nwant %.2000q", name, seen, wantSeen)
		}
		if slices.Contains([]string{"reserved", "bad answer", "malformed next"}, name) { // which the server words itself, the fields in any order
			got, want = sorted(got), sorted(want)
		}
		if got != want {
			t.Errorf("%s: the client got %.2000q\nwant %.2000q", name, got, want)
		}
		if wantSeen == "" && name != "reserved" {
			t.Errorf("%s: it did not come to the sandbox: %.2000q", name, want)
		}
	}
}

func sorted(answer string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(answer, "\r\n")), "\r\n")
}

// TestPassedOnConnections holds that one connection of a client has requests for both
// servers, and that they share one connection between these.
func TestPassedOnConnections(t *testing.T) {
	f := newFleet(t, echo)
	p := f.servePair(t, nil)
	conn, br := talk(t, p.a)
	ask := func(i int) {
		t.Helper()
		method, field := "GET", ""
		if i%3 == 0 {
			method, field = "POST", "Content-Length: 0\r\n"
		}
		fmt.Fprint(conn, rawHead(fmt.Sprintf("%s /%d HTTP/1.1", method, i))+field+"\r\n")
		if _, got := readAnswer(t, br, method); got != fmt.Sprintf("%s /%d", method, i) {
			t.Fatalf("answer %d: %q", i, got)
		}
		fmt.Fprintf(conn, "GET /%d HTTP/1.1\r\nHost: 8000-itwo.sbx.test\r\n\r\n", i)
		if _, got := readAnswer(t, br, "GET"); got != fmt.Sprintf("home /%d", i) {
			t.Fatalf("answer %d from here: %q", i, got)
		}
	}
	for i := range 100 {
		ask(i)
	}
	if _, dials := p.link.counts(); dials != 1 {
		t.Errorf("%d connections to the other server, want 1", dials)
	}
	for i := 100; i < 110; i++ {
		p.wire.tear() // as when it is started anew
		ask(i)
	}
	f.wantReleased(t)
	p.home.wantReleased(t)
}

func TestPassedOnStreams(t *testing.T) {
	t.Run("upgrade", func(t *testing.T) {
		f := newFleet(t, nil)
		rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
			_, _ = http.ReadRequest(br)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello ")
			data, _ := io.ReadAll(br)
			fmt.Fprintf(c, "got %d", len(data))
		})
		conn, br := talk(t, f.servePair(t, nil).a)
		fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly")
		if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "websocket" {
			t.Fatal(resp, err)
		}
		fmt.Fprint(conn, strings.Repeat("x", 300_000))
		_ = conn.(*net.TCPConn).CloseWrite()
		if data, err := io.ReadAll(br); string(data) != "hello got 300005" || err != nil {
			t.Errorf("%q, %v", data, err)
		}
		f.wantReleased(t)
	})
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		t.Run("both ways by "+name, func(t *testing.T) {
			defer client.CloseIdleConnections()
			f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				rc := http.NewResponseController(w)
				_ = rc.EnableFullDuplex()
				in := bufio.NewScanner(r.Body)
				for in.Scan() { // each line is answered before the next is sent
					fmt.Fprintln(w, "got", in.Text())
					_ = rc.Flush()
				}
			})
			pr, pw := io.Pipe()
			req := request2(t, f.servePair(t, nil).a, pr)
			go fmt.Fprintln(pw, "line 0")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			out := bufio.NewScanner(resp.Body)
			for i := range 5 {
				if !out.Scan() || out.Text() != fmt.Sprintf("got line %d", i) {
					t.Fatalf("answer %d: %q, %v", i, out.Text(), out.Err())
				}
				fmt.Fprintf(pw, "line %d\n", i+1)
			}
			pw.Close()
		})
	}
	t.Run("a cut says why", func(t *testing.T) {
		f := newFleet(t, connectServer(false))
		resp := ask(t, f.servePair(t, nil).a, "/", openPort, nil)
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		f.set(func() { close(f.cut) })
		data, err := io.ReadAll(resp.Body)
		if err != nil || !bytes.Contains(data, []byte("put to sleep")) {
			t.Errorf("%q, %v", data, err)
		}
	})
}

func TestPassedOnByHTTP2(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s %s %q %q %q", r.Proto, r.RequestURI, data, r.Host, r.Header["Cookie"], r.Header[HeaderForwarded])
		w.Header().Set("X-Sum", "of "+r.Trailer.Get("X-Up"))
	})
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	for name, config := range map[string]*tls.Config{"h2c": nil, "TLS": {Certificates: authority.TLS.Certificates}} {
		p := f.servePair(t, func(a, b *Options) { a.TLS, b.TLS = config, config })
		client := http2Client(t)
		scheme := "http://"
		if config != nil {
			scheme = "https://"
			transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			transport.Protocols.SetHTTP2(true)
			t.Cleanup(transport.CloseIdleConnections)
			client.Transport = transport
		}
		for _, kind := range []string{"text/plain", "application/grpc"} {
			for i := range 10 {
				var texts []string
				for _, url := range []string{p.b, p.a} {
					url = strings.Replace(url, "http://", scheme, 1)
					req, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("%s/a%%2Fb//c?i=%d", url, i), io.MultiReader(strings.NewReader("body")))
					req.Host = "8000-ione.sbx.test"
					req.Header.Set("Content-Type", kind)
					req.Header.Add("Cookie", "a=b; c=d")
					req.Header.Add(HeaderForwarded, "own")
					req.Header.Add(HeaderForwarded, "second")
					req.Trailer = http.Header{"X-Up": {"42"}}
					resp, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					texts = append(texts, body(t, resp))
					if resp.ProtoMajor != 2 || resp.Trailer.Get("X-Sum") != "of 42" {
						t.Errorf("%s, %s: %s, trailer %v", name, kind, resp.Proto, resp.Trailer)
					}
					resp.Body.Close()
				}
				if texts[0] != texts[1] || !strings.Contains(texts[0], `"own" "second"`) {
					t.Errorf("%s, %s: %s\nwant %s", name, kind, texts[1], texts[0])
				}
			}
		}
		if _, dials := p.link.counts(); dials != 1+10 {
			t.Errorf("%s: %d connections, want one for all and one for each of gRPC", name, dials)
		}
	}
	f.wantReleased(t)
}

// TestPassedOnIsAdmittedThere: what opens a sandbox is looked at by the server that has it.
func TestPassedOnIsAdmittedThere(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %q", r.RequestURI, r.Header.Get("Cookie"))
	})
	f.sb.Config.PrivatePorts = true
	p := f.servePair(t, nil)
	const chrome = "User-Agent: Mozilla/5.0\r\nSec-Fetch-Mode: navigate\r\n"
	conn, br := talk(t, p.a)
	for _, c := range []struct {
		path, host, fields string
		status             int
		want               string
	}{
		{"/a", "8000-ione.sbx.test", "", 403, "is missing"},
		{"/a", "8000-ione.sbx.test", "E2b-Traffic-Access-Token: traffic-token\r\n", 200, `/a ""`},
		{"/a", "8000-ione.sbx.test", "E2b-Traffic-Access-Token: other\r\n", 403, "is invalid"},
		{"/a?drowse_preview=preview-ione-8000&y=2", "8000-ione.sbx.test", "", 200, `/a?y=2 ""`},
		{"/s/ione/8000/a?drowse_preview=preview-ione-8000", "example.test", chrome, 303, ""},
		{"/s/ione/8000/a", "example.test", chrome + "Cookie: drowse_preview=preview-ione-8000; c=d\r\n", 200, `/a "c=d"`},
		{"/files?path=x&username=u&signature=" + escape(agentapi.Sign("x", agentapi.OperationRead, "u", "envd-token", nil)), "localhost", "", 200, "/files?path=x"},
		{"/files?path=x&username=u&signature=v1_none", "localhost", "", 400, "belongs to no sandbox"},
		{"/health", "localhost", "X-Access-Token: envd-token\r\n", 200, "/health"},
	} {
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", c.path, c.host, c.fields)
		resp, got := readAnswer(t, br, "GET")
		if resp.StatusCode != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.fields, resp.StatusCode, got, c.status, c.want)
		}
		if c.status == 303 && (resp.Header.Get("Location") != "/s/ione/8000/a" || resp.Cookies()[0].Path != "/s/ione/8000/") {
			t.Errorf("preview: %v", resp.Header)
		}
	}
}

// TestPassedOnIsTheClients: the server that has the sandbox takes the client for its own.
func TestPassedOnIsTheClients(t *testing.T) {
	logA, logB := make(lines, 10), make(lines, 10)
	f := newFleet(t, echo)
	p := f.servePair(t, func(a, b *Options) {
		a.AccessLog, a.Log = true, slog.New(slog.NewJSONHandler(logA, nil))
		b.AccessLog, b.Log = true, slog.New(slog.NewJSONHandler(logB, nil))
		b.Limits.PerClient = 1
	})
	// More connections come from the other server than a client may have.
	var bound []net.Conn
	for range 3 {
		c, err := p.link.Dial(t.Context(), "srv-b", "http/1.1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		bound = append(bound, c)
	}
	for protocol, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{DialContext: from("127.0.0.5")}}, "2": http2Client(t)} {
		client.Transport.(*http.Transport).DialContext = from("127.0.0.5")
		resp, err := client.Do(request2(t, p.a, nil))
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
		resp.Body.Close()
		client.CloseIdleConnections()
		for name, log := range map[string]lines{"srv-b": logA, "": logB} {
			var line struct{ Client, Server, Sandbox, Protocol string }
			if err := json.Unmarshal(<-log, &line); err != nil {
				t.Fatal(err)
			}
			if line.Client != "127.0.0.5" || line.Server != name || line.Sandbox != "ione" || name != "" && line.Protocol != protocol {
				t.Errorf("%s: logged %+v", protocol, line)
			}
		}
	}
	for _, c := range bound {
		fmt.Fprint(c, rawHead("GET / HTTP/1.1")+HeaderForwarded+": for=192.0.2.7; secure=0; hop=1\r\n\r\n")
		if resp, _ := readAnswer(t, bufio.NewReader(c), "GET"); resp.StatusCode != http.StatusOK {
			t.Errorf("%s", resp.Status)
		}
		var line struct{ Client string }
		if err := json.Unmarshal(<-logB, &line); err != nil || line.Client != "192.0.2.7" {
			t.Errorf("%v, %v", line, err)
		}
	}
}

// from dials from an address.
func from(addr string) func(context.Context, string, string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return d.DialContext
}

// TestControlPlaneOfPeers: what another server passes on to the control plane comes from
// the client that the first field tells of. Without it, nothing is answered.
func TestControlPlaneOfPeers(t *testing.T) {
	f := newFleet(t, echo)
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %v %t %d %q", host, err, r.TLS != nil, Hops(r.Context()), r.Header[HeaderForwarded])
	})
	p := f.servePair(t, func(_, b *Options) { b.Control = control })
	for _, protocol := range []string{"http/1.1", "h2"} {
		transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return p.link.Dial(ctx, "srv-b", protocol)
		}}
		transport.Protocols.SetHTTP1(protocol == "http/1.1")
		transport.Protocols.SetUnencryptedHTTP2(protocol == "h2")
		defer transport.CloseIdleConnections()
		for _, c := range []struct {
			fields []string
			status int
			want   string
		}{
			{[]string{"for=192.0.2.1; secure=1; hop=1"}, 200, "192.0.2.1 <nil> true 1 []"},
			{[]string{"for=2001:db8::1; secure=0; hop=4", "for=192.0.2.2; secure=1"}, 200, `2001:db8::1 <nil> false 4 ["for=192.0.2.2; secure=1"]`},
			{[]string{"for=unknown; secure=0; hop=2"}, 200, " <nil> false 2 []"},
			{nil, 400, "begin with a field Drowse-Forwarded"},
			{[]string{"for=192.0.2.1"}, 400, "begin with a field"},
			{[]string{"for=192.0.2.1; secure=1"}, 400, "begin with a field"},
			{[]string{"for=192.0.2.1; secure=1; hop=0"}, 400, "begin with a field"},
			{[]string{"for=x; secure=1; hop=1"}, 400, "begin with a field"},
			{[]string{"secure=1; for=192.0.2.1"}, 400, "begin with a field"},
		} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.test/x", nil) // a name that is none on loopback
			req.Header[HeaderForwarded] = c.fields
			resp, err := (&http.Client{Transport: transport}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, resp); resp.StatusCode != c.status || !strings.Contains(got, c.want) {
				t.Errorf("%s, %q: %d %s, want %d %s", protocol, c.fields, resp.StatusCode, got, c.status, c.want)
			}
			resp.Body.Close()
		}
	}
	// On the public listener the field says nothing.
	req, _ := http.NewRequest(http.MethodGet, p.b, nil)
	req.Header.Set(HeaderForwarded, "for=192.0.2.1; secure=1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, want := body(t, resp), `127.0.0.1 <nil> false 0 ["for=192.0.2.1; secure=1"]`; got != want {
		t.Errorf("public: %s, want %s", got, want)
	}
}

// TestStrangersAreNoPeers: only who has a certificate of the database is one.
func TestStrangersAreNoPeers(t *testing.T) {
	f := newFleet(t, echo)
	p := f.servePair(t, nil)
	other := newAuthority(t)
	for name, certificates := range map[string][]tls.Certificate{"none": nil, "another authority's": {other.issue(t, "srv-a")}} {
		config := p.link.config.Clone()
		config.Certificates, config.NextProtos = certificates, []string{"http/1.1"}
		conn, err := tls.Dial("tcp", p.link.addr, config)
		if err != nil {
			continue
		}
		defer conn.Close()
		fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+HeaderForwarded+": for=192.0.2.7; secure=0; hop=1\r\n\r\n")
		if data, err := io.ReadAll(conn); err == nil || len(data) > 0 {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

// TestPassedOnInACircle: of servers that take each other for the one that has a sandbox, one
// answers in the end: that it has gone to another.
func TestPassedOnInACircle(t *testing.T) {
	f := newFleet(t, echo)
	p := f.servePair(t, nil)
	p.link.holds = func(string) bool { return true }
	p.back.name, p.back.addr, p.back.config, p.back.holds = p.link.name, p.link.addr, p.link.config, p.link.holds // a circle of one
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		defer client.CloseIdleConnections()
		before, _ := p.back.counts()
		req := request2(t, p.a, nil)
		req.Header.Set(headerSandbox, "iother")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		wantJSON(t, resp, http.StatusServiceUnavailable, "has just taken the sandbox over")
		if asked, _ := p.back.counts(); asked-before != MostHops {
			t.Errorf("%s: other servers were asked %d times who has it, want %d", name, asked-before, MostHops)
		}
	}
	p.link.holds = func(string) bool { return false }
	wantJSON(t, ask(t, p.a, "/", openPort, nil), http.StatusBadGateway, "The sandbox was not found")
}

// TestOtherServerIsDown: that its server does not answer says nothing of the sandbox.
func TestOtherServerIsDown(t *testing.T) {
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		t.Run(name, func(t *testing.T) {
			defer client.CloseIdleConnections()
			begun := make(chan struct{})
			f := newFleet(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				close(begun)
				<-r.Context().Done()
			})
			p := f.servePair(t, nil)
			want := func(message, server string, interrupted bool) {
				t.Helper()
				resp, err := client.Do(request2(t, p.a, strings.NewReader("body")))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				a := wantJSON(t, resp, http.StatusServiceUnavailable, message)
				if a.ErrorCode != "server_unreachable" || a.SandboxID != "ione" || a.Server != server || a.Interrupted != interrupted || resp.Header.Get("Retry-After") != "1" {
					t.Errorf("%+v, %v", a, resp.Header)
				}
				if strings.Contains(a.Message, "not found") {
					t.Errorf("an SDK takes this for a sandbox that is gone: %s", a.Message)
				}
			}
			p.link.err = errors.New("no database")
			want("could not be had from another", "", false)
			p.link.err = lifecycle.Record{State: lifecycle.Terminated, Tombstone: &lifecycle.Tombstone{Reason: lifecycle.Killed, At: time.Unix(0, 0)}}.Over()
			resp, err := client.Do(request2(t, p.a, strings.NewReader("body")))
			if err != nil {
				t.Fatal(err)
			}
			if a := wantJSON(t, resp, http.StatusBadGateway, "The sandbox was not found"); a.ErrorCode != "sandbox_terminated" || a.Reason != string(lifecycle.Killed) {
				t.Errorf("it has ended on a server that is gone: %+v", a)
			}
			resp.Body.Close()
			p.link.err = nil
			go func() {
				<-begun
				p.wire.tear()
			}()
			want("broke before it answered", "srv-b", true)
			p.wire.Close()
			want("could not be reached", "srv-b", false)
		})
	}
}

// TestOtherServerStops: a request of which a server got nothing that stops goes to the one that has
// the sandbox then, with its whole body; one that never gets there is answered.
func TestOtherServerStops(t *testing.T) {
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		for _, kind := range []string{"text/plain", "application/grpc"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				defer client.CloseIdleConnections()
				f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
					data, err := io.ReadAll(r.Body)
					fmt.Fprintf(w, "%s %s, %v", r.Method, data, err)
				})
				p := f.servePair(t, nil)
				send := func(method string, content io.Reader) *http.Response {
					t.Helper()
					req := request2(t, p.a, content)
					req.Method = method
					req.Header.Set("Content-Type", kind)
					resp, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { resp.Body.Close() })
					return resp
				}
				for content, r := range map[string]io.Reader{"": nil, "body": strings.NewReader("body"), strings.Repeat("x", 1<<20): io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)))} {
					method := http.MethodPost
					if r == nil {
						method = http.MethodGet
					}
					p.link.stops = []string{"srv-old", "srv-older"}
					if got, want := body(t, send(method, r)), method+" "+content+", <nil>"; got != want {
						t.Errorf("%s with %d bytes: %.99q (%d), want %.99q", method, len(content), got, len(got), want)
					}
				}
				p.link.stops = slices.Repeat([]string{"srv-old"}, 100)
				wantJSON(t, send(http.MethodPost, strings.NewReader("body")), http.StatusServiceUnavailable, "could not be reached")
				if tries := 100 - len(p.link.stops); tries != 1+mostAgain {
					t.Errorf("the request was passed on %d times, want %d", tries, 1+mostAgain)
				}
				f.wantReleased(t)
			})
		}
	}
}

// TestOtherServerStopsTooLate: a request that a server has got is not sent to another, also one that the
// transport would send again because of its header.
func TestOtherServerStopsTooLate(t *testing.T) {
	var got atomic.Int64
	var p *pair
	f := newFleet(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			got.Add(1)
			_ = p.wire.Close()
			p.wire.tear()
			<-r.Context().Done()
		}
	})
	p = f.servePair(t, nil)
	p.link.leaves = true
	client := http2Client(t)
	for _, again := range []bool{false, true} {
		req := request2(t, p.a, nil)
		if again {
			req.Header.Set("Idempotency-Key", "one")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if !again {
			_ = body(t, resp) // its connection is kept
			continue
		}
		before, _ := p.link.counts()
		if a := wantJSON(t, resp, http.StatusServiceUnavailable, "broke before it answered"); !a.Interrupted || got.Load() != 1 {
			t.Errorf("it was carried out %d times: %+v", got.Load(), a)
		}
		if asked, _ := p.link.counts(); asked != before {
			t.Error("it was looked for again")
		}
	}
}

// TestGoneSinceAdmission: a sandbox that goes to another server while a request waits for it is
// found there.
func TestGoneSinceAdmission(t *testing.T) {
	f := newFleet(t, echo)
	p := f.servePair(t, nil)
	p.home.set(func() {
		p.home.sb.ID = "ione"
		p.home.err = errdef.New(errdef.NotFound, "sandbox_not_found", "it has gone")
	})
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		defer client.CloseIdleConnections()
		for _, there := range []bool{true, false} {
			p.link.holds = func(string) bool { return there }
			resp, err := client.Do(request2(t, p.a, nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if !there {
				wantJSON(t, resp, http.StatusBadGateway, "The sandbox was not found")
			} else if got := body(t, resp); resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s: %s", name, resp.Status, got)
			}
		}
	}
}

// TestOtherServerBreaksOff: half an answer is not taken for a whole one, in any framing.
func TestOtherServerBreaksOff(t *testing.T) {
	for name, answer := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"end":    "HTTP/1.1 200 OK\r\n\r\nhalf",
	} {
		for _, how := range []string{"killed", "cut"} {
			for protocol, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
				t.Run(name+" "+how+" "+protocol, func(t *testing.T) {
					defer client.CloseIdleConnections()
					f := newFleet(t, nil)
					rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
						_, _ = http.ReadRequest(br)
						_, _ = io.WriteString(c, answer)
						_, _ = io.Copy(io.Discard, br)
					})
					p := f.servePair(t, nil)
					resp, err := client.Do(request2(t, p.a, nil))
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					if _, err := io.ReadFull(resp.Body, make([]byte, len("half"))); err != nil {
						t.Fatal(err)
					}
					if how == "killed" {
						p.wire.tear()
					} else {
						f.set(func() { close(f.cut) })
					}
					if data, err := io.ReadAll(resp.Body); err == nil {
						t.Errorf("it ended with %q as if it were whole", data)
					}
				})
			}
		}
	}
}

// TestOtherServerResetsAStream: a client that still sends sees the end of its stream.
func TestOtherServerResetsAStream(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	})
	pr, pw := io.Pipe()
	defer pw.Close()
	req := request2(t, f.servePair(t, nil).a, pr)
	req.Header.Set("Content-Type", "application/grpc")
	resp, err := http2Client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f.set(func() { close(f.cut) })
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(resp.Body)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended as if it were whole")
		}
	case <-time.After(testmode.Patience()):
		t.Fatal("it does not end")
	}
}

// TestOtherServerCutsAnUpload: a client that has sent a part, and sends nothing more for now,
// sees the end of its stream.
func TestOtherServerCutsAnUpload(t *testing.T) {
	begun := make(chan struct{})
	f := newFleet2(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, len("a part")))
		close(begun)
		_, _ = io.Copy(io.Discard, r.Body)
	})
	pr, pw := io.Pipe()
	defer pw.Close()
	req := request2(t, f.servePair(t, nil).a, pr)
	ended := make(chan error, 1)
	go func() {
		resp, err := http2Client(t).Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	if _, err := io.WriteString(pw, "a part"); err != nil {
		t.Fatal(err)
	}
	<-begun
	f.set(func() { close(f.cut) })
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it was answered, as if it had come to its end")
		}
	case <-time.After(testmode.Patience()):
		t.Fatal("it does not end")
	}
}

// TestOtherServerGoesBeforeAnUpload: a client none of whose body was sent is answered, also
// where the connection to that server was kept from a request before.
func TestOtherServerGoesBeforeAnUpload(t *testing.T) {
	f := newFleet2(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	p := f.servePair(t, nil)
	client := http2Client(t)
	resp, err := client.Do(request2(t, p.a, strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	pr, pw := io.Pipe()
	defer pw.Close()
	req := request2(t, p.a, pr)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if a := wantJSON(t, resp, http.StatusServiceUnavailable, ""); a.ErrorCode != codeUnreachable {
			t.Errorf("%+v", a)
		}
	}()
	for late := time.After(testmode.Patience()); ; {
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond): // it is on a connection some time
			p.wire.tear()
		case <-late:
			t.Fatal("it does not end")
		}
	}
}

// TestWhenBroken: what broke a connection is known also when the request is tried on another; and one that
// was sent, and may have been carried out, does not count as unsent where there was no other.
func TestWhenBroken(t *testing.T) {
	conn := func() *peerConn {
		broken, breakUp := context.WithCancelCause(t.Context())
		return &peerConn{nil, broken, breakUp}
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		first, second, called := conn(), conn(), make(chan struct{}, 2)
		ctx, end := WhenBroken(t.Context(), method, func() { called <- struct{}{} })
		trace := httptrace.ContextClientTrace(ctx)
		down := &unreachable{errors.New("refused")}
		if lost, err := end(down); lost != nil || err != down {
			t.Errorf("no connection was had, and %v broke it: %v", lost, err)
		}
		dead := conn()
		dead.breakUp(io.EOF)
		trace.GotConn(httptrace.GotConnInfo{Conn: dead})
		if lost, err := end(down); !errors.Is(lost, io.EOF) || err != down || len(called) > 0 {
			t.Errorf("nothing was sent on a connection that was dead: %v, %v; the body was ended: %t", lost, err, len(called) > 0)
		}
		trace.GotConn(httptrace.GotConnInfo{Conn: first})
		trace.WroteHeaders()
		first.breakUp(io.ErrUnexpectedEOF)
		<-called
		if lost, err := end(down); !errors.Is(lost, io.ErrUnexpectedEOF) || Unsent(err) != isSafe(method) {
			t.Errorf("%s was sent, and broke by %v; then it was unsent: %v", method, lost, err)
		}
		trace.GotConn(httptrace.GotConnInfo{Conn: second})
		trace.WroteHeaders()
		if lost, err := end(nil); !errors.Is(lost, io.ErrUnexpectedEOF) || err != nil {
			t.Errorf("the first connection broke by %v, %v", lost, err)
		}
		second.breakUp(io.EOF)
		if lost, _ := end(nil); !errors.Is(lost, io.EOF) {
			t.Errorf("the second connection broke by %v", lost)
		}
	}
}

// TestClientOfAnotherServerLeaves: its request ends at the server that has the sandbox.
func TestClientOfAnotherServerLeaves(t *testing.T) {
	for name, client := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		t.Run(name, func(t *testing.T) {
			begun, ended := make(chan struct{}), make(chan struct{})
			f := newFleet(t, func(_ http.ResponseWriter, r *http.Request) {
				close(begun)
				<-r.Context().Done()
				close(ended)
			})
			ctx, cancel := context.WithCancel(t.Context())
			req := request2(t, f.servePair(t, nil).a, nil).WithContext(ctx)
			go func() {
				<-begun
				cancel()
			}()
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
				t.Error("it was answered")
			}
			select {
			case <-ended:
			case <-time.After(testmode.Patience()):
				t.Fatal("the request goes on")
			}
			f.wantReleased(t)
		})
	}
}

// TestPeersEndWithTheServer: connections of other servers end as those of clients do.
func TestPeersEndWithTheServer(t *testing.T) {
	hold := make(chan struct{})
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		if r.URL.Path == "/held" {
			<-hold
		}
		fmt.Fprint(w, "all")
	})
	p := f.servePair(t, nil)
	body(t, ask(t, p.a, "/", openPort, nil)) // leaves an idle connection
	held := ask(t, p.a, "/held", openPort, nil)
	done := make(chan error, 1)
	go func() { done <- p.sb.Shutdown(context.Background()) }()
	for end := time.Now().Add(testmode.Patience()); !p.sb.isClosing(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not close")
		}
	}
	close(hold)
	if got := body(t, held); got != "all" {
		t.Errorf("the request under way got %q", got)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testmode.Patience()):
		t.Fatal("it does not end")
	}
}

// TestKeptPeerConnectionsAreSwept: one to a server that is idle is closed after a while.
func TestKeptPeerConnectionsAreSwept(t *testing.T) {
	f := newFleet(t, echo)
	p := f.servePair(t, nil)
	body(t, ask(t, p.a, "/", openPort, nil))
	g := p.sa.upstreams.generations["server srv-b"]
	idle := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.ports[agentapi.Port].idle)
	}
	for end := time.Now().Add(testmode.Patience()); idle() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no connection was kept")
		}
	}
	p.sa.upstreams.sweep(time.Now().Add(agentIdle / 2))
	if idle() != 1 {
		t.Error("it was closed early")
	}
	p.sa.upstreams.sweep(time.Now().Add(2 * agentIdle))
	if idle() != 0 {
		t.Error("it is kept for ever")
	}
}

func TestCutForwarded(t *testing.T) {
	const begin, end = "GET / HTTP/1.1\r\n", "Host: x\r\n\r\n"
	for head, want := range map[string]string{
		begin + "Drowse-Forwarded: for=192.0.2.1; secure=1; hop=3\r\n" + end:                        begin + end,
		begin + "A: b\r\ndROWSE-fORWARDED:for=192.0.2.1; secure=1; hop=3 \r\n" + end:                begin + "A: b\r\n" + end,
		begin + "Drowse-Forwarded: for=192.0.2.1; secure=1; hop=3\r\nDrowse-Forwarded: x\r\n" + end: begin + "Drowse-Forwarded: x\r\n" + end,
		begin + "Drowse-Forwarded: x\r\nDrowse-Forwarded: for=192.0.2.1; secure=1; hop=3\r\n" + end: "",
		begin + "Drowse-Forwarded : for=192.0.2.1; secure=1; hop=3\r\n" + end:                       "",
		begin + "X-Drowse-Forwarded: for=192.0.2.1; secure=1; hop=3\r\n" + end:                      "",
		begin + end: "",
		"GET /Drowse-Forwarded: HTTP/1.1\r\n" + end: "",
	} {
		rest, from, ok := cutForwarded(head)
		if ok != (want != "") || ok && (rest != want || from != (origin{netip.MustParseAddr("192.0.2.1"), true, 3})) {
			t.Errorf("%q: %q %+v %t", head, rest, from, ok)
		}
	}
	if longest := netip.MustParseAddr("fd00:aaaa:bbbb:cccc:dddd:eeee:ffff:abcd"); maxForwarded < len(HeaderForwarded+": \r\n")+len(forwardedValue(longest, true, MostHops)) {
		t.Error("maxForwarded is too little")
	}
}
