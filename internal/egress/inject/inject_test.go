package inject

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const (
	host        = "example.com" // for which httptest has a certificate
	value       = "the/value+of=the secret"
	placeholder = "drowse-secret-0123"
)

var patience = testmode.Patience()

// world is an opener between a guest and a server.
type world struct {
	t      *testing.T
	opener *Opener
	server *httptest.Server
	trust  *x509.CertPool // of the guest
	plain  bool           // the guest speaks without TLS
	addr   string         // of the server
	dialed func(net.Conn) // sees each connection to it; nil for none

	mu       sync.Mutex
	secrets  []Secret
	arrived  []string // requests as they came, with their headers
	uses     []Use
	unlogged error
	refused  []egress.Reason
	told     []egress.Reason // as the source is
}

// Watches implements Source.
func (w *world) Watches(uint16) bool { return true }

// Takes implements Source.
func (w *world) Takes(string, uint16) bool { return true }

// For implements Source.
func (w *world) For(string, uint16) ([]Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.secrets), nil
}

// Used implements Source.
func (w *world) Used(u Use) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unlogged == nil {
		w.uses = append(w.uses, u)
	}
	return w.unlogged
}

// Refused implements Source.
func (w *world) Refused(_ string, why egress.Reason) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, why)
}

// Authority implements Source.
func (w *world) Authority() (*Authority, error) { return authority() }

var authority = sync.OnceValues(func() (*Authority, error) { return NewAuthority([]byte("a seed of the tests"), "ab") })

func newWorld(t *testing.T, handle http.HandlerFunc) *world {
	t.Helper()
	w := &world{t: t, trust: x509.NewCertPool(), secrets: []Secret{{
		Name: "token", Placeholder: placeholder, Value: value, Life: context.Background(),
		Headers: []Insert{{"Authorization", "Bearer {}"}},
	}}}
	a, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	w.trust.AppendCertsFromPEM([]byte(a.PEM))
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.arrived = append(w.arrived, fmt.Sprintf("%s %s %s %v %s", r.Method, r.Host, r.RequestURI, r.Header, body))
		w.mu.Unlock()
		if handle != nil {
			handle(rw, r)
		}
	}))
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	w.addr = w.server.Listener.Addr().String()
	roots := x509.NewCertPool()
	roots.AddCert(w.server.Certificate())
	w.opener = &Opener{Source: w, Roots: roots}
	return w
}

// connect makes a connection of the guest, and returns what tells the end of it.
func (w *world) connect() (net.Conn, <-chan egress.Reason) {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer ln.Close()
	guest, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	in, err := ln.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	ended, gone := make(chan egress.Reason, 1), make(chan struct{})
	go func() {
		defer close(gone)
		ended <- w.opener.Carry(egress.Taken{
			Conn: in, Name: host, Port: 443, TLS: !w.plain,
			Dial: func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				out, err := d.DialContext(ctx, "tcp", w.addr)
				if err == nil && w.dialed != nil {
					w.dialed(out)
				}
				return out, err
			},
			Refuse: func(why egress.Reason) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.refused = append(w.refused, why)
			},
		})
		_ = in.Close()
	}()
	w.t.Cleanup(func() {
		_ = guest.Close()
		select {
		case <-gone:
		case <-time.After(patience):
			w.t.Error("the connection is carried on without a guest")
		}
	})
	_ = guest.SetDeadline(time.Now().Add(patience))
	if w.plain {
		return guest, ended
	}
	return tls.Client(guest, &tls.Config{ServerName: host, RootCAs: w.trust}), ended
}

// send sends bytes and returns all that comes back. They must make somebody close
// the connection.
func (w *world) send(text string) string {
	w.t.Helper()
	c, _ := w.connect()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	answer, _ := io.ReadAll(c)
	return string(answer)
}

func (w *world) saw() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.arrived, "\n")
}

func (w *world) why() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.refused)
}

const get = "GET /a?b=c HTTP/1.1\r\nHost: " + host + "\r\n"

// TestInto puts a value wherever it belongs, and nowhere else.
func TestInto(t *testing.T) {
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, c := range map[string]struct {
		send       string
		query      []Insert
		want, deny []string
	}{
		"header set":      {send: get + "\r\n", want: []string{"Authorization:[Bearer " + value + "]"}},
		"header replaced": {send: get + "authorization: x\r\nAuthorization: y\r\n\r\n", want: []string{"Authorization:[Bearer " + value + "]"}},
		"other header":    {send: get + "X-Key: k " + placeholder + "\r\n\r\n", want: []string{"X-Key:[k " + value + "]"}},
		"cookie":          {send: get + "Cookie: a=" + placeholder + "; b=1\r\n\r\n", want: []string{"a=" + value + "; b=1"}},
		"basic":           {send: get + "X-Basic: " + basic("me:"+placeholder) + "\r\n\r\n", want: []string{basic("me:" + value)}},
		"path":            {send: "GET /bot" + placeholder + "/x%2Fy HTTP/1.1\r\nHost: " + host + "\r\n\r\n", want: []string{"/bot" + "the%2Fvalue+of=the%20secret" + "/x%2Fy "}},
		"query":           {send: "GET /?key=" + placeholder + "&a;b=%zz HTTP/1.1\r\nHost: " + host + "\r\n\r\n", want: []string{"/?key=the%2Fvalue%2Bof%3Dthe+secret&a;b=%zz"}},
		"parameter": {
			send: "GET /?k%65y=mine&a=b&key HTTP/1.1\r\nHost: " + host + "\r\n\r\n", query: []Insert{{"key", "{}"}},
			want: []string{"/?a=b&key=the%2Fvalue%2Bof%3Dthe+secret "}, deny: []string{"mine"},
		},
		"body":      {send: "POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 18\r\n\r\n" + placeholder, want: []string{placeholder}},
		"name case": {send: "GET / HTTP/1.1\r\nHost: EXAMPLE.com:443\r\n\r\n", want: []string{"EXAMPLE.com:443"}},
		"absolute":  {send: "GET https://" + host + "/abs HTTP/1.1\r\nHost: " + host + "\r\n\r\n", want: []string{"GET example.com /abs"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.secrets[0].Query = c.query
			answer := w.send(strings.Replace(c.send, "\r\n", "\r\nConnection: close\r\n", 1))
			if !strings.HasPrefix(answer, "HTTP/1.1 200") {
				t.Errorf("the answer is %q", answer)
			}
			for _, text := range append(c.want, "Bearer "+value) {
				if !strings.Contains(w.saw(), text) {
					t.Errorf("the server saw %q, without %q", w.saw(), text)
				}
			}
			for _, text := range c.deny {
				if strings.Contains(w.saw(), text) {
					t.Errorf("the server saw %q, with %q", w.saw(), text)
				}
			}
			if want := fmt.Sprint([]Use{{[]string{"token"}, host, strings.Fields(c.send)[0]}}); fmt.Sprint(w.uses) != want {
				t.Errorf("uses %v, want %s", w.uses, want)
			}
		})
	}
}

// TestHostileRequests lets no request through that some reader could take for one
// to another host, or for two.
func TestHostileRequests(t *testing.T) {
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	for name, c := range map[string]struct {
		send, answer, why string
		arrives           int // requests; each for the host, with the value once
	}{
		"other host":              {"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "421", "other host", 0},
		"other port":              {"GET / HTTP/1.1\r\nHost: " + host + ":8443\r\n\r\n", "421", "other host", 0},
		"address":                 {"GET / HTTP/1.1\r\nHost: 203.0.113.1\r\n\r\n", "421", "other host", 0},
		"longer name":             {"GET / HTTP/1.1\r\nHost: " + host + ".evil.test\r\n\r\n", "421", "other host", 0},
		"user in host":            {"GET / HTTP/1.1\r\nHost: " + host + "@evil.test\r\n\r\n", "4", "", 0},
		"no host":                 {"GET / HTTP/1.1\r\n\r\n", "400", "", 0},
		"HTTP/1.0 without host":   {"GET / HTTP/1.0\r\n\r\n", "421", "other host", 0},
		"two hosts":               {"GET / HTTP/1.1\r\nHost: " + host + "\r\nHost: evil.test\r\n\r\n", "400", "", 0},
		"absolute form":           {"GET https://evil.test/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "421", "other host", 0},
		"absolute form, plain":    {"GET http://evil.test/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "421", "other host", 0},
		"connect":                 {"CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + ":443\r\n\r\n", "405", "protocol", 0},
		"trace":                   {"TRACE / HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "405", "protocol", 0},
		"options of all":          {"OPTIONS * HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "405", "protocol", 0},
		"HTTP/2 prior knowledge":  {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "", "", 0},
		"HTTP/0.9":                {"GET /\r\n", "400", "", 0},
		"line feed in a header":   {get + "X: a\nHost: evil.test\r\n\r\n", "400", "", 0},
		"folded header":           {get + "Connection: close\r\nX: a\r\n Host: evil.test\r\n\r\n", "", "", -1},
		"blank before the colon":  {get + "Host : evil.test\r\n\r\n", "400", "", 0},
		"NUL":                     {get + "X: a\x00b\r\n\r\n", "400", "", 0},
		"length and chunked":      {"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "", "", -1},
		"two lengths":             {"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\nContent-Length: 43\r\n\r\n" + smuggled, "400", "", 0},
		"signed length":           {"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: +43\r\n\r\n" + smuggled, "400", "", 0},
		"strange coding":          {"POST / HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled, "501", "", 0},
		"two codings":             {"POST / HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled, "", "", 0},
		"body of a get":           {get + "Connection: close\r\nContent-Length: 43\r\n\r\n" + smuggled, "200", "", 1},
		"chunk of bad size":       {"POST / HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + smuggled, "", "", -1},
		"pipelined, another host": {get + "\r\n" + smuggled, "421", "other host", 1},
		"pipelined":               {get + "\r\n" + get + "\r\n" + get + "Connection: close\r\n\r\n", "200", "", 3},
		"hop by hop":              {get + "Connection: authorization, close\r\n\r\n", "200", "", 1},
		"large head":              {get + "X: " + strings.Repeat("a", 1<<17) + "\r\n\r\n", "431", "", 0},
		"upgrade to h2c":          {get + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", "200", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			answer := w.send(c.send)
			if c.answer != "" && !strings.Contains(answer, " "+c.answer) {
				t.Errorf("the answer is %q, want %s", answer, c.answer)
			}
			if c.why != "" && !strings.Contains(w.why(), c.why) {
				t.Errorf("refused for %s, want %s", w.why(), c.why)
			}
			if strings.Contains(answer, value) {
				t.Errorf("the answer has the value: %q", answer)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if c.arrives >= 0 && len(w.arrived) != c.arrives {
				t.Errorf("arrived: %q, want %d", w.arrived, c.arrives)
			}
			for _, r := range w.arrived {
				// What was meant as a second request may be a body or a value, never a head.
				if f := strings.Fields(r); f[1] != host || f[2] == "/smuggled" || strings.Count(r, value) != 1 {
					t.Errorf("arrived: %q", r)
				}
			}
		})
	}
}

// TestEcho takes the value out of the heads of answers, whatever kind they are.
func TestEcho(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		sent := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		rw.Header().Set("Link", "<"+sent+">")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("X-Coded", base64.StdEncoding.EncodeToString([]byte(sent)))
		rw.Header().Set("Location", "https://evil.test/?stolen="+r.URL.Query().Get("q")+"&k=the%2Fvalue%2Bof%3Dthe+secret")
		rw.Header().Set("Trailer", "X-Late")
		rw.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(rw, "body")
		rw.Header().Set("X-Late", sent)
	})
	answer := w.send("GET /?q=" + placeholder + " HTTP/1.1\r\nHost: " + host + "\r\nTE: trailers\r\nConnection: close\r\n\r\n")
	for _, text := range []string{
		"103 Early Hints", "Link: <" + placeholder + ">", "302 Found", "X-Coded: " + placeholder, "X-Late: " + placeholder,
		"?stolen=" + placeholder + "&k=" + placeholder,
	} {
		if !strings.Contains(answer, text) {
			t.Errorf("the answer %q is without %q", answer, text)
		}
	}
	for _, text := range []string{value, "the%2Fvalue", base64.StdEncoding.EncodeToString([]byte(value))} {
		if strings.Contains(answer, text) {
			t.Errorf("the answer %q has %q", answer, text)
		}
	}
}

// TestWebSocket passes on what follows a request that has the value.
func TestWebSocket(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		c, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = fmt.Fprintf(buf, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %s\r\n\r\n", value, r.Header.Get("Authorization"))
		_ = buf.Flush()
		line, _ := buf.ReadString('\n')
		_, _ = buf.WriteString("got " + line)
		_ = buf.Flush()
	})
	c, _ := w.connect()
	_, _ = io.WriteString(c, get+"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	var head bytes.Buffer
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		b, err := r.ReadByte()
		if err != nil {
			t.Fatalf("after %q: %v", head.String(), err)
		}
		head.WriteByte(b)
	}
	if text := head.String(); !strings.HasPrefix(text, "HTTP/1.1 101 ") || strings.Contains(text, value) || !strings.Contains(text, "X-Echo: Bearer "+placeholder) {
		t.Errorf("the answer is %q", text)
	}
	_, _ = io.WriteString(c, "a message\n")
	if line, err := r.ReadString('\n'); line != "got a message\n" {
		t.Errorf("then came %q, %v", line, err)
	}
	if !strings.Contains(w.saw(), "Bearer "+value) {
		t.Errorf("the server saw %q", w.saw())
	}
}

// TestClientsThatDoNotTrust are told of, whether they break the greeting off or
// leave after it.
func TestClientsThatDoNotTrust(t *testing.T) {
	greet := func(c net.Conn, config *tls.Config) error {
		config.ServerName = host
		secured := tls.Client(c, config)
		err := secured.Handshake()
		_ = secured.Close()
		return err
	}
	for name, c := range map[string]struct {
		config *tls.Config
		want   egress.Reason
	}{
		"other authorities": {&tls.Config{RootCAs: x509.NewCertPool()}, egress.ReasonDistrusted},
		"pinned": {&tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
			return errors.New("it is another key")
		}}, egress.ReasonDistrusted},
		"leaves":        {&tls.Config{InsecureSkipVerify: true}, egress.ReasonDistrusted},
		"HTTP/2 alone":  {&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, egress.ReasonProtocol},
		"an old client": {&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, egress.ReasonProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			secured, ended := w.connect()
			c.config.MinVersion = max(c.config.MinVersion, tls.VersionTLS10)
			_ = greet(secured.(*tls.Conn).NetConn(), c.config)
			select {
			case why := <-ended:
				if why != c.want || fmt.Sprint(w.told) != fmt.Sprint([]egress.Reason{c.want}) {
					t.Errorf("it ended for %q, and %q was told; want %q", why, w.told, c.want)
				}
			case <-time.After(patience):
				t.Error("it does not end")
			}
			if w.saw() != "" {
				t.Errorf("arrived: %s", w.saw())
			}
		})
	}
}

// TestServersThatAreNotTrusted get nothing.
func TestServersThatAreNotTrusted(t *testing.T) {
	w := newWorld(t, nil)
	w.opener.Roots = x509.NewCertPool()
	answer := w.send(get + "Connection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 502") || !strings.Contains(answer, "could not be verified") || strings.Contains(answer, value) {
		t.Errorf("the answer is %q", answer)
	}
	if w.saw() != "" || w.why() != "[certificate]" {
		t.Errorf("arrived %q, refused for %s", w.saw(), w.why())
	}
}

// TestUnlogged does not do what cannot be logged.
func TestUnlogged(t *testing.T) {
	w := newWorld(t, nil)
	w.unlogged = errors.New("the disk is full")
	answer := w.send(get + "Connection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 503") || w.saw() != "" || w.why() != "[not logged]" {
		t.Errorf("the answer is %q, arrived %q, refused for %s", answer, w.saw(), w.why())
	}
}

// TestEndOfASecret breaks off a request that has it, and leaves the next one
// without it.
func TestEndOfASecret(t *testing.T) {
	began := make(chan bool, 1)
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begun")
		_ = http.NewResponseController(rw).Flush()
		began <- true
		<-r.Context().Done()
	})
	life, end := context.WithCancel(context.Background())
	w.secrets[0].Life = life
	c, _ := w.connect()
	_, _ = io.WriteString(c, get+"\r\n")
	<-began
	end()
	answer, err := io.ReadAll(c)
	if err == nil && strings.HasSuffix(string(answer), "0\r\n\r\n") {
		t.Errorf("the answer came to an end in order: %q", answer)
	}
	w.mu.Lock()
	w.secrets = nil
	w.mu.Unlock()
	c, _ = w.connect()
	_, _ = io.WriteString(c, get+"Authorization: Bearer "+placeholder+"\r\n\r\n")
	<-began
	if w.mu.Lock(); !strings.Contains(w.arrived[1], "Bearer "+placeholder) {
		t.Errorf("arrived: %q", w.arrived)
	}
	w.mu.Unlock()
}

// TestConnectionsAreLetGo keeps nothing of the connections to a server that ends one
// after each answer, while the sandbox keeps its own.
func TestConnectionsAreLetGo(t *testing.T) {
	const requests = 20
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Connection", "close") })
	var made, collected atomic.Int64
	w.dialed = func(out net.Conn) {
		made.Add(1)
		runtime.AddCleanup(out.(*net.TCPConn), func(n *atomic.Int64) { n.Add(1) }, &collected)
	}
	c, _ := w.connect()
	answers := bufio.NewReader(c)
	for range requests {
		if _, err := io.WriteString(c, get+"\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
	}
	if made.Load() != requests {
		t.Fatalf("%d connections were made", made.Load())
	}
	// The last may be in use still.
	for deadline := time.Now().Add(patience); collected.Load() < requests-1; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("of %d connections that have ended, %d are kept", requests-1, requests-1-collected.Load())
		}
	}
}

// TestPlain is refused with an answer that can be read, unless the secret allows
// it.
func TestPlain(t *testing.T) {
	w := newWorld(t, nil)
	w.plain = true
	answer := w.send(get + "Connection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 403") || !strings.Contains(answer, "without TLS") || w.saw() != "" {
		t.Errorf("the answer is %q, arrived %q", answer, w.saw())
	}
	plain := httptest.NewServer(w.server.Config.Handler)
	defer plain.Close()
	w.addr = plain.Listener.Addr().String()
	w.secrets = append(w.secrets, Secret{Name: "open", Placeholder: "drowse-secret-4567", Value: "open-value", Plain: true, Headers: []Insert{{"X-Open", "{}"}}, Life: context.Background()})
	answer = w.send(strings.Replace(get, host, host+":443", 1) + "Connection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200") || !strings.Contains(w.saw(), "open-value") || strings.Contains(w.saw(), value) {
		t.Errorf("the answer is %q, arrived %q", answer, w.saw())
	}
}

// TestAuthorityIsSteady is what lets a sandbox that was asleep go on.
func TestAuthorityIsSteady(t *testing.T) {
	made := map[string]bool{}
	for range 3 {
		a, err := NewAuthority([]byte("seed"), "name")
		if err != nil {
			t.Fatal(err)
		}
		made[a.PEM] = true
		leaf, err := a.Leaf("a.test")
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(a.PEM))
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "a.test", Roots: pool}); err != nil {
			t.Error(err)
		}
	}
	for _, other := range [][2]string{{"seed", "other"}, {"another seed", "name"}} {
		a, err := NewAuthority([]byte(other[0]), other[1])
		if err != nil {
			t.Fatal(err)
		}
		made[a.PEM] = true
	}
	if len(made) != 3 {
		t.Errorf("%d certificates, want 3", len(made))
	}
}
