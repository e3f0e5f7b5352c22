package edge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/sandboxid"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// rawHead is the beginning of a request for port 8000 of the sandbox, without
// its end.
func rawHead(line string) string {
	return line + "\r\nHost: localhost\r\nE2b-Sandbox-Id: ione\r\nE2b-Sandbox-Port: 8000\r\n"
}

// talk opens a connection to the edge.
func talk(t *testing.T, url string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testmode.Patience()))
	return conn, bufio.NewReader(conn)
}

// readAnswer reads one answer with its body.
func readAnswer(t *testing.T, br *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(data)
}

// rawUpstream is a server whose every connection is served by a function.
func rawUpstream(t *testing.T, f *fleet, serve func(n int, c net.Conn, br *bufio.Reader)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			}()
		}
	}()
	f.dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", ln.Addr().String())
	}
}

func TestOneConnectionForBothPlanes(t *testing.T) {
	f := newFleet(t, echo)
	conn, br := talk(t, f.serve(t))
	for range 3 {
		fmt.Fprint(conn, rawHead("GET /in HTTP/1.1")+"\r\n")
		if _, got := readAnswer(t, br, "GET"); got != "GET /in" {
			t.Errorf("sandbox: %q", got)
		}
		fmt.Fprint(conn, "POST /out HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		if _, got := readAnswer(t, br, "POST"); got != "control /out" {
			t.Errorf("control plane: %q", got)
		}
	}
}

func TestControlPlane(t *testing.T) {
	control := http.NewServeMux()
	control.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v %d", data, err, r.ContentLength)
	})
	control.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 100_000)) })
	control.HandleFunc("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	control.HandleFunc("/unread", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "early") })
	control.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
	control.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	f := newFleet(t, echo)
	url := f.serveWith(t, Options{Control: control})

	conn, br := talk(t, url)
	for _, c := range []struct{ send, want string }{
		{"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", "hello <nil> 5"},
		{"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nX: y\r\n\r\n", "abc <nil> -1"},
		{"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", " <nil> 0"},
		{"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", strings.Repeat("x", 100_000)},
		{"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", ""},
		{"POST /unread HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", "early"},
		{"GET /missing HTTP/1.1\r\nHost: localhost\r\n\r\n", "404 page not found\n"},
	} {
		fmt.Fprint(conn, c.send)
		if _, got := readAnswer(t, br, "GET"); got != c.want {
			t.Errorf("%q: %.100q", c.send, got)
		}
	}
	// What is left unread, and of unknown length, ends the connection: it is said.
	other, obr := talk(t, url)
	fmt.Fprint(other, "POST /unread HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	if resp, got := readAnswer(t, obr, "POST"); got != "early" || !resp.Close {
		t.Errorf("%q, close %v", got, resp.Close)
	}
	fmt.Fprint(conn, "HEAD /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
	readAnswer(t, br, "HEAD")
	fmt.Fprint(conn, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if line, _ := br.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("waiting for 100: %q", line)
	}
	_, _ = br.ReadString('\n')
	fmt.Fprint(conn, "ok")
	if _, got := readAnswer(t, br, "POST"); got != "ok <nil> 2" {
		t.Errorf("after 100: %q", got)
	}
	fmt.Fprint(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, _ := events.ReadString('\n'); line != fmt.Sprintf("event %d\n", i) {
			t.Errorf("event %d: %q", i, line)
		}
	}
	conn.Close() // and the handler ends, or the server would not at the test's end

	conn, br = talk(t, url)
	fmt.Fprint(conn, "GET /panic HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := br.ReadByte(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an aborted answer ended with %v, want a reset", err)
	}
}

func TestOldClientsGetPlainBodies(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "abc")
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "def")
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("GET / HTTP/1.0")+"\r\n")
	resp, got := readAnswer(t, br, "GET")
	if got != "abcdef" || len(resp.TransferEncoding) > 0 || !resp.Close {
		t.Errorf("%q, %+v", got, resp)
	}
}

func TestPipelinedRequests(t *testing.T) {
	f := newFleet(t, echo)
	conn, br := talk(t, f.serve(t))
	for i := range 10 {
		fmt.Fprint(conn, rawHead(fmt.Sprintf("POST /%d HTTP/1.1", i))+"Content-Length: 3\r\n\r\nabc")
	}
	for i := range 10 {
		if _, got := readAnswer(t, br, "POST"); got != fmt.Sprintf("POST /%d", i) {
			t.Errorf("answer %d: %q", i, got)
		}
	}
}

func TestContinue(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		data, _ := io.ReadAll(r.Body) // which sends the 100
		fmt.Fprintf(w, "%s", data)
	})
	url := f.serve(t)
	conn, br := talk(t, url)
	for range 2 {
		fmt.Fprint(conn, rawHead("PUT / HTTP/1.1")+"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != http.StatusContinue {
			t.Fatalf("first answer %+v, %v", resp, err)
		}
		fmt.Fprint(conn, "hello")
		if _, got := readAnswer(t, br, "PUT"); got != "hello" {
			t.Errorf("%q", got)
		}
	}
	fmt.Fprint(conn, rawHead("PUT /refused HTTP/1.1")+"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	resp, _ := readAnswer(t, br, "PUT")
	if resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Errorf("%+v", resp)
	}
}

func TestTrailers(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "of "+r.Trailer.Get("X-Up"))
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("POST / HTTP/1.1")+"Transfer-Encoding: chunked\r\nTrailer: X-Up\r\n\r\n1\r\na\r\n0\r\nX-Up: 42\r\n\r\n")
	resp, _ := readAnswer(t, br, "POST")
	if got := resp.Trailer.Get("X-Sum"); got != "of 42" {
		t.Errorf("trailer %q", got)
	}
}

// TestHalfAnAnswerIsNoAnswer: what breaks inside breaks outside, in each
// framing.
func TestHalfAnAnswerIsNoAnswer(t *testing.T) {
	for name, answer := range map[string]string{
		"length":         "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"bad chunks":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nxyz\r\n",
		"cut in a chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
				_, _ = http.ReadRequest(br)
				_, _ = io.WriteString(c, answer)
			})
			conn, br := talk(t, f.serve(t))
			fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
			if _, err := io.ReadAll(br); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client's connection ended with %v, want a reset", err)
			}
		})
	}
}

func TestBadAnswersBecome502(t *testing.T) {
	says := map[string]string{
		"no HTTP":         "is not HTTP/1.1: ",
		"ambiguous":       "is not HTTP/1.1: ",
		"bare LF":         "is not HTTP/1.1: a line does not end with CR LF",
		"two lengths":     "is not HTTP/1.1: ",
		"enormous header": "a head of more than 256 KiB",
	}
	for name, answer := range map[string]string{
		"nothing":         "",
		"no HTTP":         "SSH-2.0-OpenSSH_9.2\r\n\r\n",
		"half a head":     "HTTP/1.1 200 OK\r\nContent-",
		"ambiguous":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"switch unasked":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"bare LF":         "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
		"two lengths":     "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n",
		"enormous header": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxAnswerHead) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
				_, _ = http.ReadRequest(br)
				_, _ = io.WriteString(c, answer)
			})
			conn, br := talk(t, f.serve(t))
			fmt.Fprint(conn, rawHead("POST / HTTP/1.1")+"Content-Length: 1\r\n\r\nx")
			if resp, text := readAnswer(t, br, "POST"); resp.StatusCode != http.StatusBadGateway || !strings.Contains(text, cmp.Or(says[name], "broke before it answered")) {
				t.Errorf("status %d: %s", resp.StatusCode, text)
			}
			// And the client's connection goes on.
			fmt.Fprint(conn, "GET /still HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if _, got := readAnswer(t, br, "GET"); got != "control /still" {
				t.Errorf("afterwards: %q", got)
			}
		})
	}
}

func TestAnswersThatEndWithTheConnection(t *testing.T) {
	f := newFleet(t, nil)
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		_, _ = http.ReadRequest(br)
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
	if resp, got := readAnswer(t, br, "GET"); got != "all of it" || !resp.Close {
		t.Errorf("%q, close %v", got, resp.Close)
	}
}

func TestClientThatGoesAwayCancels(t *testing.T) {
	gone := make(chan struct{}, 1)
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		gone <- struct{}{}
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	select {
	case <-gone:
	case <-time.After(testmode.Patience()):
		t.Error("the sandbox's server was not told")
	}
}

func TestClientThatGoesAwayWhileWaiting(t *testing.T) {
	f := newFleet(t, echo)
	waiting, gone := make(chan struct{}), make(chan struct{})
	f.wait = func(ctx context.Context) error {
		close(waiting)
		<-ctx.Done()
		close(gone)
		return ctx.Err()
	}
	conn, _ := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
	<-waiting
	conn.Close()
	select {
	case <-gone:
	case <-time.After(testmode.Patience()):
		t.Error("it still waits for the sandbox")
	}
}

// TestKeptConnectionThatWasClosed: a server may close an idle connection just
// when it is used again. What changes nothing is sent again; the rest never
// travels on a kept connection.
func TestKeptConnectionThatWasClosed(t *testing.T) {
	f := newFleet(t, nil)
	var asked atomic.Int64
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		asked.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") // and close, unannounced
	})
	conn, br := talk(t, f.serve(t))
	for i := range 20 {
		if i%2 == 0 {
			fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
		} else {
			fmt.Fprint(conn, rawHead("POST / HTTP/1.1")+"Content-Length: 1\r\n\r\nx")
		}
		if resp, got := readAnswer(t, br, "GET"); got != "ok" {
			t.Fatalf("request %d: %d %q", i, resp.StatusCode, got)
		}
	}
	if n := asked.Load(); n != 20 {
		t.Errorf("the server was asked %d times for 20 requests", n)
	}
}

// TestServerOfOneConnection: a kept connection must not keep other requests
// from a server that takes one connection at a time.
func TestServerOfOneConnection(t *testing.T) {
	f := newFleet(t, nil)
	var one sync.Mutex
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		one.Lock()
		defer one.Unlock()
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(5 * time.Millisecond)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	url := f.serve(t)
	begin := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 5 {
				ask(t, url, "/", openPort, func(r *http.Request) {
					if i%2 == 1 {
						r.Method = http.MethodPost
					}
				})
			}
		})
	}
	wg.Wait()
	// Waiting for one idle connection to be given up takes 2 s and more.
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("40 requests took %s", took)
	}
}

func TestKeptConnectionsDoNotSurviveTheirGeneration(t *testing.T) {
	f := newFleet(t, nil)
	ended := make(chan int, 10)
	rawUpstream(t, f, func(n int, c net.Conn, br *bufio.Reader) {
		defer func() { ended <- n }()
		for {
			if _, err := http.ReadRequest(br); err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
		}
	})
	url := f.serve(t)
	if got := body(t, ask(t, url, "/", openPort, nil)); got != "0" {
		t.Errorf("connection %s", got)
	}
	if got := body(t, ask(t, url, "/", openPort, nil)); got != "0" {
		t.Errorf("connection %s: the first one was not kept", got)
	}
	f.set(func() { close(f.cut); f.cut = make(chan struct{}) })
	if n := <-ended; n != 0 {
		t.Errorf("connection %d ended", n)
	}
	if got := body(t, ask(t, url, "/", openPort, nil)); got != "1" {
		t.Errorf("connection %s after the cut", got)
	}
}

func TestTunnelEnds(t *testing.T) {
	f := newFleet(t, nil)
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		_, _ = http.ReadRequest(br)
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello ")
		data, _ := io.ReadAll(br) // until the client ends its direction
		fmt.Fprintf(c, "got %d", len(data))
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"Connection: Upgrade\r\nUpgrade: x\r\n\r\nearly")
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, strings.Repeat("x", 300_000))
	_ = conn.(*net.TCPConn).CloseWrite()
	data, err := io.ReadAll(br)
	if string(data) != "hello got 300005" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
}

// TestTunnelBeginsBehindTheBody: a server may switch before it has read the body of
// the request that asked for it. What the client sends next is the body still, and
// two that read it at once would have torn it.
func TestTunnelBeginsBehindTheBody(t *testing.T) {
	f := newFleet(t, nil)
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		body, _ := io.ReadAll(r.Body)
		rest, _ := io.ReadAll(br)
		fmt.Fprintf(c, "body %d, tunnel %s", len(body), rest)
	})
	conn, br := talk(t, f.serve(t))
	fmt.Fprint(conn, rawHead("POST / HTTP/1.1")+"Connection: Upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		fmt.Fprintf(conn, "400\r\n%s\r\n", strings.Repeat("b", 1024))
	}
	fmt.Fprint(conn, "0\r\n\r\nhello")
	_ = conn.(*net.TCPConn).CloseWrite()
	data, err := io.ReadAll(br)
	if string(data) != "body 102400, tunnel hello" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
}

func TestLargeBodies(t *testing.T) {
	const size = 8 << 20
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", r.Header.Get("Content-Length"))
		_, _ = io.Copy(w, r.Body)
	})
	url := f.serve(t)
	resp := ask(t, url, "/", openPort, func(r *http.Request) {
		r.Method, r.ContentLength, r.Body = http.MethodPost, size, io.NopCloser(io.LimitReader(zeros{}, size))
	})
	n, err := io.Copy(io.Discard, resp.Body)
	if n != size || err != nil {
		t.Errorf("%d bytes came back, %v", n, err)
	}
}

// TestRefusalOfALargeBody: a client that sent all of a body before it looked for an
// answer met a closed connection, and not the reason why the body was refused.
func TestRefusalOfALargeBody(t *testing.T) {
	const chunks, chunk = 32, 1 << 20
	f := newFleet(t, nil)
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	})
	conn, br := talk(t, f.serveWith(t, Options{Control: refuse}))
	fmt.Fprint(conn, "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
	data := fmt.Appendf(nil, "%x\r\n%s\r\n", chunk, strings.Repeat("x", chunk))
	for i := range chunks {
		if _, err := conn.Write(data); err != nil {
			t.Fatalf("chunk %d: %v", i, err)
		}
	}
	if resp, got := readAnswer(t, br, "POST"); resp.StatusCode != http.StatusRequestEntityTooLarge || got != "too large\n" {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
}

func TestLimits(t *testing.T) {
	hold := make(chan struct{})
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); <-hold })
	defer close(hold)
	url := f.serveWith(t, Options{Limits: Limits{PerSandbox: 1, PerClient: 3, IdleStream: 700 * time.Millisecond}})

	first, br := talk(t, url)
	fmt.Fprint(first, rawHead("GET / HTTP/1.1")+"\r\n")
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	second, br2 := talk(t, url)
	fmt.Fprint(second, rawHead("GET / HTTP/1.1")+"\r\n")
	resp, got := readAnswer(t, br2, "GET")
	if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(got, `"connectionLimit":1`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("second request: %d %s", resp.StatusCode, got)
	}
	talk(t, url)
	_, br4 := talk(t, url)
	if resp, _ := readAnswer(t, br4, "GET"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("fourth connection: %d", resp.StatusCode)
	}
	// The first stream carries nothing and is broken off.
	if _, err := io.ReadAll(br); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the idle stream ended with %v, want a reset", err)
	}
}

func TestSlowHead(t *testing.T) {
	f := newFleet(t, echo)
	s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog})
	s.headPatience = 300 * time.Millisecond
	url := f.run(t, s)
	for _, begin := range []string{"", "GET / HT", rawHead("GET / HTTP/1.1")} {
		conn, br := talk(t, url)
		fmt.Fprint(conn, begin)
		resp, _ := readAnswer(t, br, "GET")
		if resp.StatusCode != http.StatusRequestTimeout || !resp.Close {
			t.Errorf("after %q: %d", begin, resp.StatusCode)
		}
	}
}

func TestUnderAPathPrefix(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.Header().Set("Set-Cookie", r.URL.Query().Get("cookie"))
		w.Header().Set("X-Path", r.URL.Path)
		w.WriteHeader(http.StatusFound)
	})
	conn, br := talk(t, f.serve(t))
	for _, c := range []struct{ to, cookie, wantTo, wantCookie string }{
		{"/login?x=y", "a=b; Path=/; HttpOnly", "/s/ione/8000/login?x=y", "a=b; Path=/s/ione/8000/; HttpOnly"},
		{"next", "a=b", "next", "a=b"},
		{"http://example.test/a%2Fb", "a=b; Domain=example.test; path=/x", "http://example.test/s/ione/8000/a%2Fb", "a=b; Path=/s/ione/8000/x"},
		{"//example.test", "a=b; Path=rel", "//example.test/s/ione/8000/", "a=b; Path=rel"},
		{"https://elsewhere.test/", "a=b;Secure", "https://elsewhere.test/", "a=b;Secure"},
		{"mailto:somebody@example.test", "a=b", "mailto:somebody@example.test", "a=b"},
	} {
		fmt.Fprintf(conn, "GET /s/ione/8000/app?to=%s&cookie=%s HTTP/1.1\r\nHost: example.test\r\n\r\n", escape(c.to), escape(c.cookie))
		resp, _ := readAnswer(t, br, "GET")
		if got := resp.Header.Get("Location"); got != c.wantTo {
			t.Errorf("Location %q became %q, want %q", c.to, got, c.wantTo)
		}
		if got := resp.Header.Get("Set-Cookie"); got != c.wantCookie {
			t.Errorf("cookie %q became %q, want %q", c.cookie, got, c.wantCookie)
		}
		if got := resp.Header.Get("X-Path"); got != "/app" {
			t.Errorf("the sandbox was asked for %s", got)
		}
	}
}

func TestPreviewLinks(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s cookies=%q", r.RequestURI, r.Header.Get("Cookie"))
	})
	f.sb.Config.PrivatePorts = true
	const good = "preview-ione-8000"
	const chrome = "User-Agent: Mozilla/5.0\r\nSec-Fetch-Mode: navigate\r\n"
	conn, br := talk(t, f.serve(t))
	send := func(path, fields string) (*http.Response, string) {
		t.Helper()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 8000-ione.sbx.test\r\n%s\r\n", path, fields)
		return readAnswer(t, br, "GET")
	}
	if resp, _ := send("/a", ""); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without a token: %d", resp.StatusCode)
	}
	resp, got := send("/a?x=1&drowse_preview="+good+"&y=2", "")
	if resp.StatusCode != http.StatusOK || got != `/a?x=1&y=2 cookies=""` {
		t.Errorf("with a token: %d %s", resp.StatusCode, got)
	}
	resp, _ = send("/a?x=1&drowse_preview="+good, chrome)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/a?x=1" {
		t.Errorf("browser: %d %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	for path, want := range map[string]string{
		"//other.test/x": "/.//other.test/x", `/\other.test`: `/./\other.test`, "/": "/", "/..//other.test": "/..//other.test", "/%2f/other.test": "/%2f/other.test",
	} { // a browser stays where the cookie is for
		if resp, _ := send(path+"?drowse_preview="+good, chrome); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != want {
			t.Errorf("browser with %s: %d %s", path, resp.StatusCode, resp.Header.Get("Location"))
		}
	}
	cookie := resp.Cookies()[0]
	if cookie.Value != good || !cookie.HttpOnly || cookie.Path != "/" || cookie.SameSite != http.SameSiteLaxMode || cookie.Secure {
		t.Errorf("cookie %+v", cookie)
	}
	resp, got = send("/b", chrome+"Cookie: a=b; drowse_preview="+good+"; c=d\r\n")
	if resp.StatusCode != http.StatusOK || got != `/b cookies="a=b; c=d"` {
		t.Errorf("with the cookie: %d %s", resp.StatusCode, got)
	}
	resp, _ = send("/b", chrome+"Cookie: drowse_preview=old\r\n")
	if c := resp.Cookies(); resp.StatusCode != http.StatusForbidden || len(c) != 1 || c[0].MaxAge >= 0 {
		t.Errorf("with an old cookie: %d %v", resp.StatusCode, c)
	}
	if resp, _ := send("/b?drowse_preview=preview-ione-8001", ""); resp.StatusCode != http.StatusForbidden {
		t.Errorf("another port's token: %d", resp.StatusCode)
	}
	if _, got := send("/b", "E2b-Traffic-Access-Token: traffic-token\r\nCookie: drowse_preview=old\r\n"); !strings.HasPrefix(got, "/b ") {
		t.Errorf("with the traffic token: %s", got)
	}
	fmt.Fprintf(conn, "GET /s/ione/8000/a?drowse_preview=%s HTTP/1.1\r\nHost: example.test\r\n%s\r\n", good, chrome)
	resp, _ = readAnswer(t, br, "GET")
	if c := resp.Cookies(); resp.Header.Get("Location") != "/s/ione/8000/a" || len(c) != 1 || c[0].Path != "/s/ione/8000/" {
		t.Errorf("by path: %s %v", resp.Header.Get("Location"), c)
	}
}

// TestHTTP2 serves both planes by HTTP/2, with TLS and without.
func TestHTTP2(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %q", r.Proto, r.RequestURI, data, r.Header.Get("Cookie"))
	})
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	for name, o := range map[string]Options{"h2c": {}, "TLS": {TLS: &tls.Config{Certificates: authority.TLS.Certificates}}} {
		t.Run(name, func(t *testing.T) {
			url := f.serveWith(t, o)
			transport := &http.Transport{Protocols: new(http.Protocols)}
			if o.TLS != nil {
				url = strings.Replace(url, "http://", "https://", 1)
				transport.Protocols.SetHTTP2(true)
				transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			} else {
				transport.Protocols.SetUnencryptedHTTP2(true)
			}
			defer transport.CloseIdleConnections()
			client := http.Client{Transport: transport}
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					req, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("%s/a%%2Fb//c?i=%d", url, i), strings.NewReader("body"))
					req.Header.Set(headerSandbox, "ione")
					req.Header.Set(headerPort, "8000")
					req.Header.Add("Cookie", "a=b; c=d")
					resp, err := client.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					data, _ := io.ReadAll(resp.Body)
					if want := fmt.Sprintf(`HTTP/1.1 /a%%2Fb//c?i=%d body "a=b; c=d"`, i); resp.ProtoMajor != 2 || string(data) != want {
						t.Errorf("%s: %s, want %s", resp.Proto, data, want)
					}
				})
			}
			wg.Wait()
			resp, err := client.Get(url + "/plain")
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, resp); got != "control /plain" {
				t.Errorf("control plane: %q", got)
			}
		})
	}
}

// TestTLS serves HTTP/1.1 with TLS.
func TestTLS(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	})
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS != nil) })
	url := f.serveWith(t, Options{TLS: &tls.Config{Certificates: authority.TLS.Certificates}, Control: control})
	raw, _ := talk(t, url)
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	br := bufio.NewReader(conn)
	for range 3 {
		fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
		if resp, _ := readAnswer(t, br, "GET"); resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, got := readAnswer(t, br, "GET"); got != "true" {
		t.Errorf("the control plane sees TLS: %s", got)
	}
	fmt.Fprint(conn, rawHead("GET /wait HTTP/1.1")+"\r\n")
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * watchEvery) // the client is watched by now
	f.set(func() { close(f.cut) })
	if _, err := io.ReadAll(br); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the cut stream ended with %v, want an error", err)
	}
}

func TestTellsThePrivatePathsOfTheAgent(t *testing.T) {
	f := newFleet(t, echo)
	conn, br := talk(t, f.serve(t))
	for _, path := range []string{"/init", "/%69nit", "//init", "/x/../init", "/./init/", "/drowse/activity"} {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %d-ione.sbx.test\r\n\r\n", path, agentapi.Port)
		if resp, got := readAnswer(t, br, "POST"); resp.StatusCode != http.StatusNotFound || !strings.Contains(got, "reserved") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
	if acquired, _ := f.seen(); len(acquired) > 0 {
		t.Errorf("the sandbox was asked for: %+v", acquired)
	}
}

// FuzzRoutes holds that no request makes routing panic, and that what it finds
// is a sandbox's id and a port.
func FuzzRoutes(f *testing.F) {
	f.Add("8000-ione.sbx.test", "/x", "", "")
	f.Add("localhost:3000", "/s/ione/8000/x?y", "", "")
	f.Add("[::1]:3000", "/files?signature=x", "ione", "8000")
	f.Fuzz(func(t *testing.T, host, path, id, port string) {
		h := http.Header{}
		h.Set(headerSandbox, id)
		h.Set(headerPort, port)
		r := &request{method: http.MethodGet, host: host, target: "/" + strings.TrimPrefix(path, "/"), header: header2{h}}
		if !routes(r) || r.way.find == nil {
			return
		}
		target, err := r.way.find(r, hostName(r.host))
		if err != nil {
			return
		}
		if !sandboxid.Possible(target.id) || target.port < 1 || target.port > 65535 || !strings.HasPrefix(target.path, "/") {
			t.Errorf("%+v", target)
		}
		_, _ = isReserved(target)
		withoutPreview(target.path)
		_, _ = previewToken(r)
	})
}

// TestCrowdSharesConnections: when many requests come at once, one that can use a
// connection that another has done with waits for that for a moment. A slow machine
// misses the moment, and tries again.
func TestCrowdSharesConnections(t *testing.T) {
	shared := false
	testmode.Eventually(t, "a request waits for another's connection", func() bool {
		whole := t.Run("crowd", func(t *testing.T) { shared = crowdShares(t) })
		return shared || !whole
	})
}

// crowdShares holds the answers to as many requests as are a crowd, sends one more, and
// answers one: whether the last has waited, and has gone over that one's connection.
func crowdShares(t *testing.T) bool {
	f := newFleet(t, nil)
	var opened, received atomic.Int64
	answers := make(chan struct{}) // lets one be answered
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		opened.Add(1)
		for {
			if _, err := http.ReadRequest(br); err != nil {
				return
			}
			received.Add(1)
			<-answers
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	s, url := serving(t, f)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(answers)
	send := func() {
		conn, br := talk(t, url)
		fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"\r\n")
		wg.Go(func() {
			if _, got := readAnswer(t, br, "GET"); got != "ok" {
				t.Errorf("%q", got)
			}
		})
	}
	waits := func() bool {
		s.upstreams.mu.Lock()
		g := s.upstreams.generations["ione"]
		s.upstreams.mu.Unlock()
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.portLocked(openPort).waiting) > 0
	}
	for range crowd {
		send()
	}
	testmode.Eventually(t, "the crowd is there", func() bool { return received.Load() == crowd })
	send()
	waited := false
	testmode.Eventually(t, "one more waits, or arrives", func() bool {
		waited = waits()
		return waited || received.Load() > crowd
	})
	if waited {
		answers <- struct{}{}
		testmode.Eventually(t, "one more arrives after an answer", func() bool { return received.Load() > crowd })
	}
	t.Logf("waited: %v; %d connections for %d requests", waited, opened.Load(), received.Load())
	return waited && opened.Load() == crowd
}

// TestAccessLog holds that either protocol logs the same of a request.
func TestAccessLog(t *testing.T) {
	log := make(lines, 10)
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "answer")
	})
	url := f.serveWith(t, Options{AccessLog: true, Log: slog.New(slog.NewJSONHandler(log, nil))})
	for protocol, client := range map[string]*http.Client{"1.1": http.DefaultClient, "2": http2Client(t)} {
		req := request2(t, url, strings.NewReader("body"))
		req.URL.RawQuery = "token=secret"
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		var line map[string]any
		if err := json.Unmarshal(<-log, &line); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"level": "INFO", "msg": "request", "sandbox": "ione", "port": float64(openPort), "method": "POST", "path": "/",
			"host": strings.TrimPrefix(url, "http://"), "protocol": protocol, "status": 200.0, "sent": 6.0, "received": 4.0,
			"client": "127.0.0.1", "woke": false,
		}
		for _, varies := range []string{"time", "dur"} {
			if line[varies] == nil {
				t.Errorf("%s: no %s", protocol, varies)
			}
			delete(line, varies)
		}
		if !maps.Equal(line, want) {
			t.Errorf("logged %v\nwant   %v", line, want)
		}
	}
}

// lines is a log.
type lines chan []byte

// Write implements io.Writer.
func (l lines) Write(p []byte) (int, error) {
	l <- bytes.Clone(p)
	return len(p), nil
}

// TestHostMask has the server inside see another host than the client asked
// for, and what it says of that host come out right.
func TestHostMask(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://"+r.Host+"/elsewhere")
		fmt.Fprintf(w, "%s %q", r.Host, r.Header["X-Forwarded-Host"])
	})
	f.sb.Config.HostMask = "${PORT}.inside.test:${PORT}"
	url := f.serve(t)
	host := strings.TrimPrefix(url, "http://")
	for protocol, client := range map[string]*http.Client{"1.1": http.DefaultClient, "2": http2Client(t)} {
		for target, location := range map[string]string{"/": "http://8000.inside.test:8000/elsewhere", "/s/ione/8000/": url + "/s/ione/8000/elsewhere"} {
			req := request2(t, url, nil)
			req.URL.Path = target
			if target != "/" {
				req.Header.Del(headerSandbox)
				req.Header.Del(headerPort)
			}
			req.Header.Set("X-Forwarded-Host", "forged.test")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := body(t, resp), fmt.Sprintf("8000.inside.test:8000 [%q]", host); got != want {
				t.Errorf("%s %s: it saw %s, want %s", protocol, target, got, want)
			}
			if got := resp.Header.Get("Location"); got != location {
				t.Errorf("%s %s: Location %s, want %s", protocol, target, got, location)
			}
		}
	}
	resp := ask(t, url, "/files", agentapi.Port, func(r *http.Request) { r.Host = "localhost" })
	if got := body(t, resp); got != "localhost []" {
		t.Errorf("the agent saw %s, want no mask", got)
	}
}

// TestHTTPSPorts speaks TLS with servers inside, whatever their certificate.
func TestHTTPSPorts(t *testing.T) {
	f := newFleet(t, nil)
	f.upstream.Close()
	f.upstream = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, rw)
			return
		}
		data, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%v %d", r.TLS != nil, len(data))
	}))
	f.upstream.StartTLS()
	t.Cleanup(f.upstream.Close)
	f.sb.Config.HTTPSPorts = []int{openPort}
	url := f.serve(t)
	for protocol, client := range map[string]*http.Client{"1.1": http.DefaultClient, "2": http2Client(t)} {
		for _, size := range []int{4, 3 << 20} {
			resp, err := client.Do(request2(t, url, strings.NewReader(strings.Repeat("x", size))))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := body(t, resp), fmt.Sprintf("true %d", size); got != want {
				t.Errorf("HTTP/%s: %s, want %s", protocol, got, want)
			}
		}
	}
	conn, br := talk(t, url)
	fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"Connection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	fmt.Fprintln(conn, "hello")
	if line, err := br.ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("echo %q, %v", line, err)
	}

	// A server that does not speak TLS is no server on this port.
	f.dial = newFleet(t, echo).dialUpstream
	resp = ask(t, url, "/", openPort, func(*http.Request) {})
	if got := body(t, resp); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("plain server on an HTTPS port: %s %s", resp.Status, got)
	}
}

// TestClientThatLeavesWithItsAnswer: what a client that goes away tears down is
// not kept for others, even if it had its whole answer by then.
func TestClientThatLeavesWithItsAnswer(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		client, _ := net.Pipe()
		inside, _ := net.Pipe()
		c := &conn{in: stream{conn: client}, cancel: func() {}}
		if !c.bind(inside) {
			t.Fatal("not bound")
		}
		if leaves {
			c.breakOff() // as the watcher does
		}
		if kept := c.unbind(); kept == leaves {
			t.Errorf("the client left: %v; the connection to the sandbox is kept: %v", leaves, kept)
		}
	}
}
