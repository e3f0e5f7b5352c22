package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestNothingIsSmuggledByWebSocket asks for WebSockets in odd and in malformed
// ways, with a hidden request right behind that a proxy takes for frames where it
// believes in a tunnel that the server has not opened, and the other way round. The
// edge and the server must agree for each connection on what was a request and what
// went through a tunnel, to the byte. Servers that open tunnels strictly, whenever
// they are asked, whether they are asked or not, and never are behind it, and nginx
// stands beside it.
func TestNothingIsSmuggledByWebSocket(t *testing.T) {
	cases := socketCases()
	if len(cases) < 300 {
		t.Errorf("only %d cases", len(cases))
	}
	for name, opens := range map[string]func(*http.Request) bool{
		"strict":  asksProperly,
		"lenient": func(r *http.Request) bool { return r.Header.Get("Upgrade") != "" },
		"lying":   func(*http.Request) bool { return true },
		"never":   func(*http.Request) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &perCase{seen: map[string][]string{}}
			backend := &socketServer{opens: opens, perCase: perCase{seen: map[string][]string{}}}
			direct := httptest.NewServer(backend)
			defer direct.Close()
			beside, _ := startNginx(t, direct.Listener.Addr().String())
			f := newFleet(t, nil)
			f.dial = func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", direct.Listener.Addr().String())
			}
			edge := strings.TrimPrefix(f.serveWith(t, Options{AccessLog: true, Log: slog.New(log)}), "http://")

			byNginx := make([][]string, len(cases))
			each(len(cases), func(i int) {
				if name == "lying" {
					return // nginx waits for more of the server
				}
				talkSocket(t, beside, cases[i].request(i))
				byNginx[i] = backend.settle(i, 100*time.Millisecond, func([]string) bool { return false })
			})
			backend.clear()
			var mu sync.Mutex
			tunnels, alike := 0, 0
			each(len(cases), func(i int) {
				c := cases[i]
				answers := talkSocket(t, edge, c.request(i))
				got := status(strings.TrimPrefix(answers, "HTTP/1.1 100 Continue\r\n\r\n"))
				var edgeSaw []string
				// A tunnel that nobody asked for, and that nothing came through, is none. A
				// request whose answer the client has not waited for the server may have seen.
				requested := func(saw []string) []string {
					left := log.of(leftBy(i))
					return slices.DeleteFunc(slices.Clone(saw), func(text string) bool {
						return slices.Contains(left, text) || got == http.StatusBadGateway && text == fmt.Sprintf("tunnel /case/%d 0", i)
					})
				}
				backendSaw := requested(backend.settle(i, 10*time.Second, func(saw []string) bool {
					edgeSaw = log.of(i)
					return slices.Equal(requested(saw), edgeSaw)
				}))
				if !slices.Equal(edgeSaw, backendSaw) {
					t.Errorf("%s: the edge saw %q, the server behind it %q\nsent: %q\nanswers: %q", c.name, edgeSaw, backendSaw, c.request(i), answers)
				}
				if c.refused && got < 400 {
					t.Errorf("%s: answered %d, and should be refused\nsent: %q", c.name, got, c.request(i))
				}
				opened := strings.Contains(strings.Join(backendSaw, " "), "tunnel")
				if (got == http.StatusSwitchingProtocols) != opened {
					t.Errorf("%s: answered %d, and the server has opened a tunnel: %v", c.name, got, opened)
				}
				mu.Lock()
				defer mu.Unlock()
				if opened {
					tunnels++
				}
				if slices.Equal(backendSaw, byNginx[i]) {
					alike++
				}
			})
			t.Logf("%d cases, %d tunnels; %d came out as by nginx", len(cases), tunnels, alike)
			if opensSome := name != "never"; opensSome != (tunnels > 0) {
				t.Errorf("%d tunnels", tunnels)
			}
		})
	}
}

// each calls f for 0 to n-1, some at a time: the end of a connection can take the
// edge seconds, for the sake of the client.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	turns := make(chan struct{}, 64)
	for i := range n {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			f(i)
		})
	}
	all.Wait()
}

// asksProperly reports whether a request is a WebSocket's handshake (RFC 6455 §4.2.1).
func asksProperly(r *http.Request) bool {
	has := func(name, token string) bool {
		for _, value := range r.Header.Values(name) {
			for part := range strings.SplitSeq(value, ",") {
				if strings.EqualFold(strings.TrimSpace(part), token) {
					return true
				}
			}
		}
		return false
	}
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) && has("Connection", "upgrade") && has("Upgrade", "websocket") &&
		r.Header.Get("Sec-Websocket-Version") == "13" && len(r.Header.Get("Sec-Websocket-Key")) == 24
}

// perCase keeps what was seen, by the number in the path.
type perCase struct {
	mu   sync.Mutex
	seen map[string][]string
}

var caseNumber = regexp.MustCompile(`/(\d+)$`)

func (p *perCase) note(path, text string) {
	p.noteAs(caseOf(path), text)
}

func (p *perCase) noteAs(number, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[number] = append(p.seen[number], text)
}

func caseOf(path string) string {
	if m := caseNumber.FindStringSubmatch(path); m != nil {
		return m[1]
	}
	return "?"
}

// leftBy is the number under which requests of a case are kept whose client has
// not waited for the answer.
func leftBy(i int) int { return -1 - i }

// of returns what was seen of a case, in an order that is always the same.
func (p *perCase) of(i int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(slices.Values(p.seen[fmt.Sprint(i)]))
}

func (p *perCase) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.seen)
}

// settle returns what was seen of a case once that is right, or after a while: what
// is noted is noted after the answer.
func (p *perCase) settle(i int, wait time.Duration, right func([]string) bool) []string {
	for end := time.Now().Add(wait); ; time.Sleep(2 * time.Millisecond) {
		saw := p.of(i)
		if right(saw) || time.Now().After(end) {
			return saw
		}
	}
}

// Enabled implements slog.Handler.
func (*perCase) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler: it keeps what the edge's access log says.
func (p *perCase) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "request" {
		return nil
	}
	fields := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool {
		fields[a.Key] = a.Value
		return true
	})
	method, path, received := fields["method"].String(), fields["path"].String(), fields["received"].Int64()
	switch fields["status"].Int64() {
	case http.StatusSwitchingProtocols:
		p.note(path, fmt.Sprintf("tunnel %s %d", path, received))
	case http.StatusOK, http.StatusUpgradeRequired:
		p.note(path, fmt.Sprintf("%s %s %d", method, path, received))
	case 0: // the client has not waited: kept by another number
		if n, err := strconv.Atoi(caseOf(path)); err == nil {
			p.noteAs(fmt.Sprint(leftBy(n)), fmt.Sprintf("%s %s %d", method, path, received))
		}
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (p *perCase) WithAttrs([]slog.Attr) slog.Handler { return p }

// WithGroup implements slog.Handler.
func (p *perCase) WithGroup(string) slog.Handler { return p }

// socketServer opens tunnels as it likes, and keeps what it is asked.
type socketServer struct {
	perCase
	opens func(*http.Request) bool
}

// ServeHTTP implements http.Handler.
func (s *socketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.SplitN(r.RequestURI, "?", 2)[0]
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // broken off by the edge: not a request
	}
	if !s.opens(r) || strings.HasPrefix(path, "/smuggled") {
		if r.Header.Get("Upgrade") != "" {
			w.WriteHeader(http.StatusUpgradeRequired)
		}
		s.note(path, fmt.Sprintf("%s %s %d", r.Method, path, len(body)))
		return
	}
	conn, both, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(testmode.Patience()))
	n, _ := io.Copy(io.Discard, both)
	s.note(path, fmt.Sprintf("tunnel %s %d", path, int64(len(body))+n))
}

// talkSocket sends bytes, ends its side once something was answered, and returns
// the answers.
func talkSocket(t *testing.T, addr, raw string) string {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testmode.Patience()))
	_, _ = io.WriteString(conn, raw)
	in := bufio.NewReader(conn)
	_, _ = in.Peek(1)
	_ = conn.(*net.TCPConn).CloseWrite()
	answers, err := io.ReadAll(in)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("no end after %q\nsent: %q", answers, raw)
	}
	return string(answers)
}

// socketCase is one way to ask for a WebSocket. {n} in it is its number.
type socketCase struct {
	name, raw string
	refused   bool // by the edge
}

func (c socketCase) request(i int) string { return strings.ReplaceAll(c.raw, "{n}", fmt.Sprint(i)) }

// socketCases makes the corpus.
func socketCases() (cases []socketCase) {
	const (
		route  = "Host: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"
		behind = "GET /smuggled/{n} HTTP/1.1\r\n" + route + "\r\n"
		key    = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
		good   = "Sec-WebSocket-Version: 13\r\n" + key
	)
	add := func(refused bool, name, raw string) { cases = append(cases, socketCase{name, raw, refused}) }
	ask := func(fields string) string { return "GET /case/{n} HTTP/1.1\r\n" + route + fields + "\r\n" }
	// Every way to name the protocol with every way to say that the field is for this hop.
	upgrades := []string{
		"Upgrade: websocket", "upgrade:websocket", "UPGRADE: WebSocket", "Upgrade:\twebsocket\t", "Upgrade: websocket/13", "Upgrade: websocket, h2c", "Upgrade: h2c, websocket",
		"Upgrade: websocket\r\nUpgrade: h2c", "Upgrade: h2c", "Upgrade: TLS/1.0", "Upgrade:", "Upgrade: ,websocket", "Upgrade: \"websocket\"", "Upgrade: xwebsocket", "X: y",
	}
	connections := []string{
		"Connection: Upgrade", "connection:upgrade", "Connection: keep-alive, Upgrade", "Connection: upgrade, close", "Connection: close", "Connection: keep-alive", "Connection: Upgrade\r\nConnection: close",
		"Connection: Upgrade, Sec-WebSocket-Key", "Connection: Upgrade, Upgrade", "Connection: ,Upgrade,", "Connection: xUpgrade", "Connection:", "X-Connection: Upgrade",
	}
	for _, u := range upgrades {
		for _, c := range connections {
			add(false, u+" | "+c, ask(u+"\r\n"+c+"\r\n"+good)+behind)
		}
	}
	const both = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
	for _, version := range []string{"", "0", "7", "8", "12", "14", "777", "013", "13, 8", "8, 13", "+13", "-13", "13.0", "١٣", "thirteen", "13;x", "13\r\nSec-WebSocket-Version: 8", "99999999999999999999"} {
		add(false, "version "+version, ask(both+key+"Sec-WebSocket-Version: "+version+"\r\n")+behind)
	}
	for _, k := range []string{"", "x", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA===", "!!!!!!!!!!!!!!!!!!!!!!==", "AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Key: BBBBBBBBBBBBBBBBBBBBBB==", strings.Repeat("A", 4096), "AAAAAAAAAAAAAAAAAAAAAA==, x"} {
		add(false, "key "+k, ask(both+"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+k+"\r\n")+behind)
	}
	for _, method := range []string{"POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE", "get", "PROPFIND", "CONNECT", "PRI"} {
		add(method == "CONNECT", "method "+method, strings.Replace(ask(both+good), "GET", method, 1)+behind)
	}
	for _, version := range []string{"HTTP/1.0", "HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/1.1 ", "http/1.1", "HTTP/1.01", ""} {
		add(version != "HTTP/1.0" && version != "HTTP/1.2", "line "+version, strings.Replace(ask(both+good), "HTTP/1.1", version, 1)+behind)
	}
	// A body in front of the frames: where the tunnel begins is the question.
	for _, body := range []string{
		"Content-Length: 5\r\n\r\nhello", "Content-Length: 0\r\n\r\n", "Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\nX: y\r\n\r\n",
	} {
		for _, method := range []string{"GET", "POST", "PUT"} {
			raw := strings.TrimSuffix(strings.Replace(ask(both+good), "GET", method, 1), "\r\n") + body
			add(false, method+" with "+body, raw+behind)
		}
	}
	for _, body := range []string{
		"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "Content-Length: +5\r\n\r\nhello",
		"Content-Length : 5\r\n\r\nhello", "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "Content-Length: 5\n\r\nhello", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	} {
		add(true, "with "+body, strings.TrimSuffix(ask(both+good), "\r\n")+body+behind)
	}
	for _, fields := range []string{
		"Upgrade : websocket", "Upgrade\t: websocket", " Upgrade: websocket", "Upgrade:\r\n websocket", "Upgrade: web\x00socket", "Upgrade: websocket\x0b", "Upgrade: websocket\rX: y", "Upgrade: websocket\nX: y", "Upgrade\x00: websocket",
		"Connection: Upgrade\x00", "Connection:\r\n\tUpgrade", "Connection : Upgrade", "Connection: Upgrade, host", "Connection: Upgrade, content-length", "Connection: Upgrade, transfer-encoding", "Sec-WebSocket-Key : x", "Sec-WebSocket-Key: \x00",
		"Host: localhost", "E2b-Sandbox-Id: itwo", "E2b-Sandbox-Port: 1", "Sec-WebSocket-Protocol: x\ny", "Sec-WebSocket-Extensions: x\r y",
	} {
		add(true, "fields "+fields, ask(both+good+fields+"\r\n")+behind)
	}
	for _, fields := range []string{
		"Sec-WebSocket-Protocol: chat", "Sec-WebSocket-Protocol: a, b, c", "Sec-WebSocket-Protocol: ,", "Sec-WebSocket-Extensions: permessage-deflate", "Sec-WebSocket-Extensions: x; y=\"z\"", "Origin: null", "Origin: http://other.test",
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA", "Keep-Alive: timeout=5", "Proxy-Connection: Upgrade", "TE: trailers", "Expect: 100-continue", ":protocol: websocket",
	} {
		add(strings.HasPrefix(fields, ":"), "with "+fields, ask(both+good+fields+"\r\n")+behind)
	}
	// What comes behind: frames, halves of frames, and what looks like the answer.
	for _, early := range []string{
		"", "\x81\x00", "\x81\x85\x00\x00\x00\x00hello", "\x88\x80\x00\x00\x00\x00", "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x81", "\x00\x00\x00", "\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"\x16\x03\x01\x00\x05hello", strings.Repeat("\x89\x80\x00\x00\x00\x00", 100), strings.Repeat("x", 20000),
	} {
		add(false, fmt.Sprintf("behind it %.20q", early), ask(both+good)+early)
	}
	return cases
}
