package edge

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestNothingIsSmuggled sends ambiguous and malformed requests, each followed
// by a plain one on the same connection, to servers that are less strict than
// the edge. Behind it, net/http and nginx must see exactly the requests that
// the edge saw, with the same bodies; whatever else is in the bytes, hidden as
// a second request to somebody who reads them in another way, must never come
// out as one.
func TestNothingIsSmuggled(t *testing.T) {
	log := &served{}
	backend := &witness{}
	direct := httptest.NewServer(backend)
	defer direct.Close()
	behind, _ := startNginx(t, direct.Listener.Addr().String())
	cases := smugglingCases()
	if len(cases) < 300 {
		t.Errorf("only %d cases", len(cases))
	}
	for _, server := range []struct{ name, addr string }{{"net/http", direct.Listener.Addr().String()}, {"nginx", behind}, {"passed on, net/http", direct.Listener.Addr().String()}} {
		f := newFleet(t, nil)
		f.dial = func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server.addr)
		}
		edge := ""
		if strings.HasPrefix(server.name, "passed on") {
			edge = f.servePair(t, func(a, _ *Options) { a.AccessLog, a.Log = true, slog.New(log) }).a
		} else {
			edge = f.serveWith(t, Options{AccessLog: true, Log: slog.New(log)})
		}
		edge = strings.TrimPrefix(edge, "http://")
		refused := 0
		for _, c := range cases {
			log.take()
			backend.take()
			answers := sendRaw(t, edge, c.raw)
			edgeSaw, backendSaw := log.take(), backend.take()
			if !slices.Equal(edgeSaw, backendSaw) {
				t.Errorf("%s, %s: the edge saw %q, the server behind it %q\nsent: %q\nanswers: %q", server.name, c.name, edgeSaw, backendSaw, c.raw, answers)
			}
			first := status(answers)
			switch {
			case c.status != 0 && first != c.status:
				t.Errorf("%s, %s: answered %d, want %d\nsent: %q", server.name, c.name, first, c.status, c.raw)
			case first >= 500 && first != 501 && first != 505:
				t.Errorf("%s, %s: answered %d\nsent: %q", server.name, c.name, first, c.raw)
			}
			if first >= 400 || first == 0 {
				refused++
			}
		}
		t.Logf("%s: %d of %d cases refused, the others understood alike", server.name, refused, len(cases))
	}
}

type rawCase struct {
	name   string
	raw    string
	status int // of the first answer; 0 if it is left to the edge
}

const (
	hidden = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n"
	after  = "GET /after HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n"
)

// smugglingCases makes the corpus.
func smugglingCases() []rawCase {
	var cases []rawCase
	add := func(status int, name, raw string) {
		cases = append(cases, rawCase{name: name, raw: raw + after, status: status})
	}
	post := func(fields, body string) string {
		return "POST /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n" + fields + "\r\n" + body
	}
	codings := []string{
		"Transfer-Encoding: chunked", "transfer-encoding:chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked ", "Transfer-Encoding: CHUNKED",
		"Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked", "Transfer-Encoding:  chunked\t",
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunkedx", "Transfer-Encoding: x, chunked", "Transfer-Encoding: chunked, x", "Transfer-Encoding: chunked, identity",
		"Transfer-Encoding: identity, chunked", "Transfer-Encoding: identity", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: 'chunked'", "Transfer-Encoding: chunked;q=1",
		"Transfer-Encoding: chun\x00ked", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding: chunked\x0c", "Transfer-Encoding: \xa0chunked", "Transfer-Encoding: chünked",
		"Transfer-Encoding:\r\n chunked", "Transfer-Encoding: x\r\n chunked", "Transfer-Encoding:", "Transfer-Encoding: ,chunked", "Transfer-Encoding: chunked,",
		"Transfer-Encoding: gzip", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding: x\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"Transfer_Encoding: chunked", "Transfer-Encoding\x00: chunked", "X: y\nTransfer-Encoding: chunked", "X: y\rTransfer-Encoding: chunked", "X: y\r\n\tTransfer-Encoding: chunked",
		"Transfer-Encoding: chunked\nX: y", "\xefTransfer-Encoding: chunked", "Transfer-Encodinг: chunked", "TransferEncoding: chunked", "Transfer-Encoding: chunked\r\r\nX: y",
	}
	for _, coding := range codings {
		body := "0\r\n\r\n" + hidden
		add(0, "CL.TE "+coding, post(fmt.Sprintf("Content-Length: %d\r\n%s\r\n", len(body), coding), body))
		add(0, "TE.CL "+coding, post(fmt.Sprintf("%s\r\nContent-Length: 4\r\n", coding), fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)))
		add(0, "TE "+coding, post(coding+"\r\n", "5\r\nhello\r\n0\r\n\r\n"))
	}
	for _, length := range []string{
		"5", "05", "+5", "-5", "5 ", " 5", "5\t", "0x5", "5,5", "5, 5", "5,6", "5;", "5.0", "5e0", "5_0", "٥", "", "\"5\"", "5 5", "5\x00", "5\x0b", "99999999999999999999",
		"18446744073709551621", "9223372036854775807", "five", "5\r\n 5", "5\r\nContent-Length: 5", "5\r\nContent-Length: 0", "0\r\nContent-Length: 5", "5\r\ncontent-length: 6",
	} {
		add(0, "length "+length, post("Content-Length: "+length+"\r\n", "hello"))
	}
	for _, name := range []string{"Content-Length ", "Content-Length\t", " Content-Length", "Content_Length", "Content-Length\x00", "\x0bContent-Length", "Content-Length\r", "X: y\nContent-Length", "X: y\rContent-Length"} {
		add(400, "length named "+name, post(name+": 5\r\n", "hello"))
	}
	for _, chunks := range []string{
		"5\r\nhello\r\n0\r\n\r\n", "05\r\nhello\r\n0\r\n\r\n", "5;x\r\nhello\r\n0\r\n\r\n", "5;x=\"y\"\r\nhello\r\n0;z\r\n\r\n", "5 ;x\r\nhello\r\n0\r\n\r\n", "5\t\r\nhello\r\n0\r\n\r\n",
		" 5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "-1\r\nhello\r\n0\r\n\r\n", "5\nhello\n0\n\n", "5\r\nhello\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n",
		"5\r\nhello0\r\n\r\n", "4\r\nhello\r\n0\r\n\r\n", "6\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n", "5\r\nhello\r\n0\r\n\n", "5\r\nhello\r\n00000000000000000\r\n\r\n",
		"100000000000000005\r\nhello\r\n0\r\n\r\n", "g\r\nhello\r\n0\r\n\r\n", "\r\nhello\r\n0\r\n\r\n", ";x\r\nhello\r\n0\r\n\r\n", "5\rhello\r\n0\r\n\r\n", "5\r\r\nhello\r\n0\r\n\r\n",
		"5;x\ny\r\nhello\r\n0\r\n\r\n", "5;\x00\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\nX: y\r\n\r\n", "5\r\nhello\r\n0\r\nX : y\r\n\r\n", "5\r\nhello\r\n0\r\nX\r\n\r\n",
		"5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n", "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n0\r\nX: y\n\r\n", "0\r\n\r\n" + hidden,
		"2;\n7\r\nxx\r\n0\r\n\r\n" + hidden, "5\r\nhello\r\n0;\n\r\n\r\n", "5\r\nhello\r\n-0\r\n\r\n", "5\r\nhello\r\n0 \r\n\r\n", "5\u2028\r\nhello\r\n0\r\n\r\n",
	} {
		add(0, "chunks "+chunks, post("Transfer-Encoding: chunked\r\n", chunks))
	}
	for _, line := range []string{
		"GET /case HTTP/1.1 ", "GET  /case HTTP/1.1", "GET\t/case HTTP/1.1", "GET /case\tHTTP/1.1", " GET /case HTTP/1.1", "GET /case", "GET /case HTTP/1.10", "GET /case HTTP/01.1",
		"GET /case HTTP/0.9", "GET /case HTTP/3.0", "GET /case http/1.1", "GET /case HTTP/1.1\rX: y", "GET /ca se HTTP/1.1", "GET /case#x HTTP/1.1", "GET case HTTP/1.1", "GET * HTTP/1.1",
		"GET http://other.test/case HTTP/1.1", "GET http://localhost@other.test/case HTTP/1.1", "GET //other.test/case HTTP/1.1", "GET ftp://localhost/case HTTP/1.1",
		"CONNECT localhost:22 HTTP/1.1", "G\x00T /case HTTP/1.1", "GET /ca\x00se HTTP/1.1", "GET /case\x7f HTTP/1.1", "GET /case HTTP/1.1 HTTP/1.1", "{} /case HTTP/1.1", "GET /case HTTP/1.1\x0b", "\x16\x03\x01 / HTTP/1.1",
	} {
		status := 400
		switch {
		case strings.HasPrefix(line, "CONNECT"):
			status = 405
		case strings.HasSuffix(line, "HTTP/0.9"), strings.HasSuffix(line, "HTTP/3.0"):
			status = 505
		case strings.HasPrefix(line, "GET //"):
			status = 200 // a path, if an odd one
		}
		add(status, "line "+line, line+"\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n")
	}
	for _, fields := range []string{
		"X: y\nZ: w", "X: y\rZ: w", "X: y\r\r\nZ: w", "X : y", "X\t: y", " X: y", "X: y\r\n z", "X: y\r\n\tz", ": y", "X", "X y", "X\x00: y", "X: \x00", "X: y\x00z", "X: \x08", "X: \x7f",
		"X(: y", "X,: y", "Ä: y", "\"X\": y", "Host: localhost", "host: other.test", "X: y\r\nHost : localhost", "Connection: content-length", "Connection: Transfer-Encoding", "Connection: host",
		"Connection: close, host", "Connection: (", "X: y\r\n: z",
	} {
		add(400, "fields "+fields, "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"+fields+"\r\n\r\n")
	}
	for _, host := range []string{"localhost/x", "local host", "localhost\\x", "a@localhost", "localhost#", "localhost?x", "localhost,other.test", "localhost\x00", "<localhost>"} {
		add(400, "host "+host, "GET /case HTTP/1.1\r\nHost: "+host+"\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n")
	}
	for _, port := range []string{"0", "-1", "65536", "80 ", "8000x", "0x1f40", "8 000", "+8000", "٨", "99999999999999999999"} {
		if strings.TrimSpace(port) != "80" { // trimmed as every value is: a good port
			add(400, "port "+port, "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: "+port+"\r\n\r\n")
		}
	}
	add(400, "no host", "GET /case HTTP/1.1\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n")
	add(414, "long target", "GET /"+strings.Repeat("a", maxTarget+1)+" HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n\r\n")
	add(431, "long head", "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\nX: "+strings.Repeat("a", maxHead)+"\r\n\r\n")
	add(431, "many fields", "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"+strings.Repeat("X: y\r\n", 300)+"\r\n")
	add(200, "body of a GET", "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\nContent-Length: 5\r\n\r\nhello")
	add(200, "upgrade that is not answered", "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
	routed := "GET /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"
	for _, fields := range []string{
		"E2b-Sandbox-Id: ione", "E2b-Sandbox-Id: itwo", "e2b-sandbox-id: itwo", "E2B-SANDBOX-ID:itwo", "E2b-Sandbox-Id:", "E2b-Sandbox-Port: 8000", "E2b-Sandbox-Port: 1", "e2b-sandbox-port:", "E2b-Sandbox-Id : itwo", "E2b-Sandbox-Port\t: 1",
	} {
		add(400, "routing "+fields, routed+fields+"\r\n\r\n")
	}
	// A body where hardly anybody expects one, and a length of nothing.
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "PATCH", "PUT", "PROPFIND", "get", "M-SEARCH"} {
		begin := method + " /case HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"
		add(0, "a request as body of "+method, begin+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden))
		add(0, "a request in chunks of "+method, begin+fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden))
		add(0, "nothing as body of "+method, begin+"Content-Length: 0\r\n\r\n")
	}
	// Protocols that are asked for and not spoken: what follows is a request.
	for _, upgrade := range []string{
		"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\nSec-WebSocket-Key: x", "Connection: Upgrade\r\nUpgrade: websocket, h2c", "Upgrade: websocket", "Connection: Upgrade", "Connection: Upgrade\r\nUpgrade:", "Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.3",
	} {
		add(0, "upgrade "+upgrade, routed+upgrade+"\r\n\r\n")
		add(0, "upgrade with a body "+upgrade, routed+upgrade+fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden))
	}
	return cases
}

// sendRaw sends bytes and returns all that comes back.
func sendRaw(t *testing.T, addr, raw string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testmode.Patience()))
	_, _ = io.WriteString(conn, raw) // it may be refused before it is all sent
	_ = conn.(*net.TCPConn).CloseWrite()
	answers, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("no end after %q\nsent: %q", answers, raw)
	}
	return string(answers)
}

// status returns that of the first answer; 0 if there is none.
func status(answers string) (code int) {
	_, _ = fmt.Sscanf(answers, "HTTP/1.1 %d", &code)
	return code
}

// witness is a server that keeps what it is asked.
type witness struct {
	mu   sync.Mutex
	seen []string
}

// ServeHTTP implements http.Handler.
func (s *witness) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // broken off by the edge: not a request
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%s %s %d", r.Method, strings.SplitN(r.RequestURI, "?", 2)[0], len(body)))
}

func (s *witness) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// served keeps what the edge's access log says was answered from inside. It is
// written after the answer, so it is asked for a little later.
type served struct{ witness }

// Enabled implements slog.Handler.
func (*served) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (s *served) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "request" {
		return nil
	}
	var method, path string
	var received, status int64
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "method":
			method = a.Value.String()
		case "path":
			path = a.Value.String()
		case "received":
			received = a.Value.Int64()
		case "status":
			status = a.Value.Int64()
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch status {
	case http.StatusOK:
	case http.StatusSwitchingProtocols:
		s.seen = append(s.seen, fmt.Sprintf("tunnel %s %d", path, received))
		return nil
	default:
		return nil
	}
	s.seen = append(s.seen, fmt.Sprintf("%s %s %d", method, path, received))
	return nil
}

// WithAttrs implements slog.Handler.
func (s *served) WithAttrs([]slog.Attr) slog.Handler { return s }

// WithGroup implements slog.Handler.
func (s *served) WithGroup(string) slog.Handler { return s }

// startNginx starts an nginx in front of a server. It speaks HTTP/1.1, and
// HTTP/2 at another address.
func startNginx(t *testing.T, backend string) (addr, addr2 string) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("%v: script/deps test installs it", err)
	}
	dir := t.TempDir()
	addr, addr2 = freeAddr(t), freeAddr(t)
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`
daemon off; master_process off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 256; }
http {
	access_log off; merge_slashes off; underscores_in_headers on; ignore_invalid_headers off;
	large_client_header_buffers 8 64k;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	map $http_upgrade $connection_upgrade { default upgrade; "" close; }
	server { listen %[2]s; listen %[4]s http2; location / { proxy_pass http://%[3]s; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_request_buffering off;
		proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; } }
}`, dir, addr, backend, addr2)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", config)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return addr, addr2
		}
		if time.Now().After(end) {
			t.Fatalf("nginx does not answer: %v", err)
		}
	}
}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
