package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// stream is an answer of the guest that has no end.
type stream struct {
	io.Closer
	lines *bufio.Reader
}

// open opens a stream and waits for its first event.
func (g *guest) open(ctx context.Context, target string) *stream {
	t := g.s.t
	t.Helper()
	req, err := g.sb.Request(ctx, http.MethodGet, guestPort, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{resp.Body, bufio.NewReader(resp.Body)}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s", target, resp.Status)
	}
	if line, err := s.lines.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatalf("first event %q, %v", line, err)
	}
	return s
}

// toEnd reads until the stream ends, and returns when and how it did.
func (s *stream) toEnd() (time.Time, error) {
	_, err := io.Copy(io.Discard, s.lines)
	return time.Now(), err
}

// promptly is how soon the other end of a connection must learn that it was
// cut. A pause on request waits a second for requests that end by themselves.
const promptly = time.Minute

// TestStreamAcrossPause pauses a sandbox while answers stream out of it: they
// break off, visibly, and after the resume new ones work.
func TestStreamAcrossPause(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	before := g.ask(ctx)
	type end struct {
		at  time.Time
		err error
	}
	server, command := make(chan end, 1), make(chan end, 1)
	events := g.open(ctx, "/stream")
	defer events.Close()
	go func() {
		at, err := events.toEnd()
		server <- end{at, err}
	}()
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "while :; do echo tick; sleep 0.05; done"}, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := p.Wait()
		command <- end{time.Now(), err}
	}()

	begin := time.Now()
	took := s.pause(ctx, g.sb.ID)
	for what, ended := range map[string]chan end{"stream of a server": server, "output of a command": command} {
		select {
		case e := <-ended:
			if e.err == nil {
				t.Errorf("the %s ended cleanly, want broken off", what)
			}
			t.Logf("the %s was cut %s after the pause was asked for: %v", what, e.at.Sub(begin).Round(time.Millisecond), e.err)
			if what == "output of a command" && !errors.Is(e.err, client.ErrInterrupted) {
				t.Errorf("the client says %v, want %v", e.err, client.ErrInterrupted)
			}
		case <-time.After(promptly):
			t.Fatalf("the %s is still open %s after the pause", what, promptly)
		}
	}
	if took > promptly {
		t.Errorf("the pause took %s", took)
	}
	if err := s.is(ctx, g.sb.ID, client.Paused); err != nil {
		t.Error(err)
	}
	t.Logf("pause with two open streams: %s", took.Round(time.Millisecond))

	begin = time.Now()
	again := g.open(ctx, "/stream") // wakes it
	again.Close()
	t.Logf("first event of a new stream %s after the request that woke it", since(begin))
	g.same(before, g.ask(ctx))
	// The command itself was not harmed by the loss of its reader.
	if exit, out := run(ctx, t, g.sb, "ps", "-o", "pid=", "-p", fmt.Sprint(p.PID())); strings.TrimSpace(out) != fmt.Sprint(p.PID()) {
		t.Errorf("ps says %q (%s), want the command of before", out, exit.Status)
	}
}

// TestUpgrade switches protocols through the server, as a WebSocket does.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	s.pause(ctx, g.sb.ID)

	conn, lines := g.upgrade(ctx)
	defer conn.Close()
	for i := range 100 {
		fmt.Fprintf(conn, "line %d\n", i)
		got, err := lines.ReadString('\n')
		if want := fmt.Sprintf("echo line %d\n", i); err != nil || got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	begin := time.Now()
	took := s.pause(ctx, g.sb.ID)
	if err := conn.SetReadDeadline(begin.Add(promptly)); err != nil {
		t.Fatal(err)
	}
	_, err := lines.ReadString('\n')
	if ne, ok := errors.AsType[net.Error](err); err == nil || ok && ne.Timeout() {
		t.Errorf("the connection is still open after the pause: %v", err)
	}
	t.Logf("upgraded connection was cut within %s, the pause took %s", since(begin), took.Round(time.Millisecond))
	again, lines := g.upgrade(ctx)
	defer again.Close()
	fmt.Fprintln(again, "hello")
	if got, err := lines.ReadString('\n'); got != "echo hello\n" {
		t.Errorf("after the resume: %q, %v", got, err)
	}
}

func (g *guest) upgrade(ctx context.Context) (net.Conn, *bufio.Reader) {
	t := g.s.t
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", g.s.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /upgrade HTTP/1.1\r\nHost: %d-%s.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", guestPort, g.sb.ID)
	lines := bufio.NewReader(conn)
	resp, err := http.ReadResponse(lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("answer %s %v, want 101 for websocket", resp.Status, resp.Header)
	}
	return conn, lines
}

// TestBodyNobodyReads sends small bodies to a server that answers without
// looking at them. The answers must be whole, and the client's connection must
// be good for the next request: it is not one that a client may repeat.
func TestBodyNobodyReads(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	dials := 0
	one := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}}
	defer one.CloseIdleConnections()
	const requests = 300
	failed := 0
	for i := range requests {
		body := strings.NewReader(strings.Repeat("x", 1+i))
		req, err := g.sb.Request(ctx, http.MethodPost, guestPort, "/long", body)
		if err != nil {
			t.Fatal(err)
		}
		n, err := int64(0), error(nil)
		resp, err := one.Do(req)
		if err == nil {
			n, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if err == nil && (resp.StatusCode != http.StatusOK || n != 64<<10) {
			err = fmt.Errorf("%s with %d bytes", resp.Status, n)
		}
		if err != nil {
			if failed++; failed < 5 {
				t.Errorf("request %d: %v", i+1, err)
			}
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d requests failed", failed, requests)
	}
	// On a busy machine Go's client gives a connection up by itself, where an answer is
	// there 50 ms before the client has noticed that it has sent the request.
	const most = 1 + requests/100
	if dials > most {
		t.Errorf("the client had to connect %d times, want once", dials)
	}
}

// TestAsleepWithoutAutoResume checks that traffic is refused by a sandbox that
// it may not wake, and leaves it asleep.
func TestAsleepWithoutAutoResume(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{OnTimeout: client.Pause})
	before := g.ask(ctx)
	s.pause(ctx, g.sb.ID)
	for _, port := range []int{guestPort, agentPort} {
		g.checkRefused(ctx, port)
	}
	if err := s.is(ctx, g.sb.ID, client.Paused); err != nil {
		t.Error(err)
	}
	s.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
}

// checkRefused checks that a request to a port is refused, as one to a sandbox
// that traffic may not wake.
func (g *guest) checkRefused(ctx context.Context, port int) {
	t := g.s.t
	t.Helper()
	req, err := g.sb.Request(ctx, http.MethodGet, port, "/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), g.sb.ID) {
		t.Errorf("port %d: %s %s, %v; want 502 that names the sandbox", port, resp.Status, body, err)
	}
}
