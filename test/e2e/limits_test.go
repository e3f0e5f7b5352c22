package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// Bounds of TestSlowClients: the goal is a factor of two; the rest is for a
// busy machine.
const (
	slowClients   = 2000
	slowFactor    = 5
	slowAllowance = 50 * time.Millisecond
)

// TestSlowClients lets 2,000 clients send their heads, send their bodies and
// read their answers as slowly as they can. Others must hardly notice.
func TestSlowClients(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	victim, other := s.startGuest(ctx, client.CreateOptions{}), s.startGuest(ctx, client.CreateOptions{})
	before := other.latencies(ctx, 200)

	drip, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	conns := make(chan net.Conn, slowClients)
	for i := range slowClients {
		var conn net.Conn
		switch i % 3 {
		case 0: // a head that never ends
			conn = victim.connect(ctx)
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nX-", victim.host(guestPort))
		case 1: // a body that never ends
			conn = victim.dial(ctx, http.MethodPost, "/sink", "Content-Length: 1000000")
		case 2: // an answer that nobody reads
			conn = victim.dial(ctx, http.MethodGet, "/blob?bytes=100000000", "")
			if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
				t.Fatal(err)
			}
		}
		conns <- conn
	}
	close(conns)
	clients.Go(func() { dripOn(drip, conns) })

	during := other.latencies(ctx, 200)
	t.Logf("200 requests alone: p50 %s, p99 %s; beside %d slow clients: p50 %s, p99 %s", percentile(before, 50), percentile(before, 99),
		slowClients, percentile(during, 50), percentile(during, 99))
	if most := slowFactor*percentile(before, 50) + slowAllowance; percentile(during, 50) > most {
		t.Errorf("half of the requests took more than %s", most)
	}
	// The attack was one: they are all still connected.
	connected, err := s.metric(ctx, "drowse_edge_connections")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f connections", connected)
	if connected < slowClients {
		t.Errorf("the server has %.0f connections, want the %d slow ones and some", connected, slowClients)
	}
}

// dripOn sends one byte on each connection and reads some, again and again.
func dripOn(ctx context.Context, conns <-chan net.Conn) {
	var all []net.Conn
	for c := range conns {
		all = append(all, c)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := all[i%len(all)]
		if i%len(all)%3 == 2 {
			_ = c.SetReadDeadline(time.Now().Add(pollEvery))
			_, _ = c.Read(make([]byte, 1))
		} else {
			_, _ = io.WriteString(c, "x") // refused ones show in the count of connections
		}
	}
}

// connect opens a connection to the server.
func (g *guest) connect(ctx context.Context) net.Conn {
	t := g.s.t
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", g.s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// latencies asks the guest so many times, one after the other.
func (g *guest) latencies(ctx context.Context, n int) []time.Duration {
	t := g.s.t
	t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		req, err := g.sb.Request(ctx, http.MethodPost, guestPort, "/hit?id=latency", nil)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := expect(httpClient, req, http.StatusOK, ""); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(begin)
	}
	return took
}

// TestClientConnections opens more connections than one client may have.
func TestClientConnections(t *testing.T) {
	const most = 20
	ctx := deadline(t, time.Minute)
	s := startServer(t, "--max-client-connections", fmt.Sprint(most))
	httpClient.CloseIdleConnections()
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	health := func() (int, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		if err != nil {
			return 0, err
		}
		open = append(open, conn)
		if _, err := fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", s.addr); err != nil {
			return 0, err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, nil
	}
	eventually(t, goneWithin, "as many connections as allowed", func() error {
		// The one that asked whether the server is up may not have gone yet.
		status, err := health()
		if err == nil && status < 300 && len(open) < most {
			err = fmt.Errorf("%d connections", len(open))
		}
		return err
	})
	if status, err := health(); status != http.StatusTooManyRequests {
		t.Errorf("one connection too many: status %d, %v; want 429", status, err)
	}
	for _, c := range open {
		c.Close()
	}
	eventually(t, goneWithin, "connections are accepted again", func() error {
		status, err := health()
		if err == nil && status >= 300 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

// TestSandboxLimits puts more requests under way in a sandbox than it may have,
// lets streams fall silent, and reads what the server logs of it all.
func TestSandboxLimits(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	silence := testmode.Scaled(4 * time.Second)
	s := startServer(t, "--max-sandbox-requests", "3", "--idle-stream", silence.String(), "--access-log")
	g := s.startGuest(ctx, client.CreateOptions{})

	// Silence ends a stream, and only that does.
	silent, err := g.webSocket(ctx, "/ws?id=silent")
	if err != nil {
		t.Fatal(err)
	}
	lively, err := g.webSocket(ctx, "/ws?id=lively")
	if err != nil {
		t.Fatal(err)
	}
	defer lively.CloseNow()
	ended := make(chan error, 1)
	begin := time.Now()
	go func() {
		_, _, err := silent.Read(ctx)
		ended <- err
	}()
	for end := false; !end; {
		select {
		case err := <-ended:
			t.Logf("a silent stream was broken off after %s: %v", since(begin), err)
			if took := time.Since(begin); !isReset(err) || took < silence {
				t.Errorf("a silent stream ended after %s with %v", took, err)
			}
			end = true
		case <-time.After(100 * time.Millisecond):
			if err := echo(ctx, lively, websocket.MessageText, []byte("still here")); err != nil {
				t.Fatalf("a stream that is not silent: %v", err)
			}
			if time.Since(begin) > silence+testmode.Patience() {
				t.Fatal("a silent stream is still open")
			}
		}
	}
	for begin := time.Now(); time.Since(begin) < silence+time.Second; {
		if err := echo(ctx, lively, websocket.MessageText, []byte("still here")); err != nil {
			t.Fatalf("a stream that is not silent: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := lively.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}

	// The fourth request is one too many, in either protocol.
	events := newRoute(t, g, "http", http1)
	for range 3 {
		events.do(ctx, t, http.MethodGet, "/stream", nil, http.StatusOK)
	}
	for _, r := range []*route{newRoute(t, g, "http", http1), newRoute(t, g, "http", h2c)} {
		var refusal struct{ Code, ConnectionLimit int }
		resp := r.do(ctx, t, http.MethodGet, "/hits?secret=hunter2", nil, http.StatusTooManyRequests)
		if err := json.NewDecoder(resp.Body).Decode(&refusal); err != nil || refusal.Code != 429 || refusal.ConnectionLimit != 3 {
			t.Errorf("refusal %+v, %v", refusal, err)
		}
	}

	// The log has each request, and nothing that opens anything.
	s.checkAccessLog(g)
}

// checkAccessLog checks that requests are logged without what is in their
// queries and headers.
func (s *server) checkAccessLog(g *guest) {
	t := s.t
	t.Helper()
	for _, want := range [][]string{
		{"msg=request", "path=/ws", "status=101", "protocol=1.1"},
		{"msg=request", "path=/hits", "status=429", "protocol=1.1"},
		{"msg=request", "path=/hits", "status=429", "protocol=2"},
		{"msg=request", "port=49983", "path=/files"},
	} {
		want = append(want, g.sb.ID)
		if poll(goneWithin, func() error {
			if s.log.count(want...) == 0 {
				return errors.New("not there yet")
			}
			return nil
		}) != nil {
			t.Errorf("the log has no line with %q", want)
		}
	}
	req, err := g.sb.Request(t.Context(), http.MethodGet, agentPort, "/files", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", "id=silent", req.Header.Get("X-Access-Token"), apiKey} {
		if secret == "" || strings.Contains(s.log.String(), secret) {
			t.Errorf("the log tells %q", secret)
		}
	}
}
