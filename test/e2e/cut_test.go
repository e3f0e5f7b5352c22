package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/client"
)

// cut is something under way in a sandbox, and what it must end with.
type cut struct {
	name  string
	ended chan error // how it ended; nil is a clean end
	want  func(error) bool
}

// TestCut pauses and kills a sandbox while requests of every form are under
// way: each is ended soon, and none of them as if it were complete. What has no
// answer yet gets one that says why.
func TestCut(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		do   func(*server, context.Context, string) error
		code string // of the answer to what has none yet
	}{
		{"pause", func(s *server, ctx context.Context, id string) error { return s.client.Pause(ctx, id) }, "put_to_sleep"},
		{"kill", func(s *server, ctx context.Context, id string) error { return s.client.Kill(ctx, id) }, "sandbox_terminated"},
	} {
		t.Run(end.name, func(t *testing.T) {
			ctx := deadline(t, 2*time.Minute)
			s := startServer(t)
			g, other := s.startGuest(ctx, client.CreateOptions{}), s.startGuest(ctx, client.CreateOptions{})
			h2 := newRoute(t, g, "http", h2c)
			h2.url = fmt.Sprintf("http://%s/s/%s/%d", s.addr, g.sb.ID, guestPort) // by path: one connection for both
			cuts := []cut{
				g.download(ctx, "/blob?bytes=100000000000"),
				g.download(ctx, "/blob?bytes=100000000000&chunked"),
				g.download(ctx, "/stream"),
				g.download(ctx, "/open"),
				g.uploadWithoutEnd(ctx, "Content-Length: 100000000000", "0123456789abcdef"),
				g.uploadWithoutEnd(ctx, "Transfer-Encoding: chunked", "10\r\n0123456789abcdef\r\n"),
				g.openSocket(ctx),
				h2.downloadStream(ctx, t, "/stream"),
				h2.downloadStream(ctx, t, "/blob?bytes=100000000000"),
				h2.uploadStream(ctx, t),
				(&route{guest: g, http: &http.Client{}, url: h2.url}).unanswered(ctx, "HTTP/1.1", end.code),
				h2.unanswered(ctx, "HTTP/2", end.code),
			}
			// Another stream of the same connection, to another sandbox, goes on.
			neighbour := &route{guest: other, http: h2.http, url: fmt.Sprintf("http://%s/s/%s/%d", s.addr, other.sb.ID, guestPort)}
			events := bufio.NewReader(neighbour.do(ctx, t, http.MethodGet, "/stream", nil, http.StatusOK).Body)

			begin := time.Now()
			ending := make(chan error, 1)
			go func() { ending <- end.do(s, ctx, g.sb.ID) }()
			for _, c := range cuts {
				select {
				case err := <-c.ended:
					t.Logf("%s: broken off within %s: %v", c.name, since(begin), err)
					if !c.want(err) {
						t.Errorf("%s ended with %v", c.name, err)
					}
				case <-time.After(promptly):
					t.Errorf("%s is still open after %s", c.name, since(begin))
				}
			}
			if err := <-ending; err != nil {
				t.Error(err)
			}
			t.Logf("%s took %s", end.name, since(begin))
			for range 50 {
				if _, err := events.ReadString('\n'); err != nil {
					t.Fatalf("a stream of another sandbox: %v", err)
				}
			}
			if n := h2.dials.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// isReset is what a client sees of a connection that was reset.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isAskedToReturn is what a client sees of a WebSocket that was ended with a
// reason.
func isAskedToReturn(err error) bool {
	return websocket.CloseStatus(err) == websocket.StatusServiceRestart
}

// dial connects to the server and begins a request to the guest.
func (g *guest) dial(ctx context.Context, method, target, field string) net.Conn {
	t := g.s.t
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", g.s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if field != "" {
		field += "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, target, g.host(guestPort), field); err != nil {
		t.Fatal(err)
	}
	return conn
}

// download reads an answer without end, of which some has come.
func (g *guest) download(ctx context.Context, target string) cut {
	t := g.s.t
	t.Helper()
	conn := g.dial(ctx, http.MethodGet, target, "")
	if _, err := io.ReadFull(conn, make([]byte, 200)); err != nil {
		t.Fatal(err)
	}
	return ending("GET "+target, isReset, func() error {
		_, err := io.Copy(io.Discard, conn)
		return err
	})
}

// uploadWithoutEnd sends the same piece of a body again and again.
func (g *guest) uploadWithoutEnd(ctx context.Context, field, piece string) cut {
	conn := g.dial(ctx, http.MethodPost, "/sink", field)
	started := make(chan struct{})
	c := ending("POST with "+field, isReset, func() error {
		var err error
		for i := 0; err == nil; i++ {
			if i == 100 {
				close(started)
			}
			_, err = io.WriteString(conn, piece)
			time.Sleep(100 * time.Microsecond)
		}
		return err
	})
	<-started
	return c
}

// openSocket reads a WebSocket on which nothing happens.
func (g *guest) openSocket(ctx context.Context) cut {
	t := g.s.t
	t.Helper()
	conn, err := g.webSocket(ctx, "/ws?id=cut")
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(ctx, conn, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	return ending("WebSocket", isAskedToReturn, func() error {
		_, _, err := conn.Read(ctx)
		return err
	})
}

// streamError is what net/http makes of RST_STREAM: any struct like this.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("stream %d: code %d", e.StreamID, e.Code) }

func isStreamReset(err error) bool {
	_, ok := errors.AsType[streamError](err)
	return ok
}

func (r *route) downloadStream(ctx context.Context, t *testing.T, target string) cut {
	t.Helper()
	body := r.do(ctx, t, http.MethodGet, target, nil, http.StatusOK).Body
	if _, err := io.ReadFull(body, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	return ending("HTTP/2 GET "+target, isStreamReset, func() error {
		_, err := io.Copy(io.Discard, body)
		return err
	})
}

// uploadStream is an upload by HTTP/2 that gets no answer before its end.
func (r *route) uploadStream(ctx context.Context, t *testing.T) cut {
	t.Helper()
	body, pieces := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/sink", body)
	if err != nil {
		t.Fatal(err)
	}
	c := ending("HTTP/2 POST", isStreamReset, func() error {
		resp, err := r.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	for range 100 {
		if _, err := pieces.Write([]byte("0123456789abcdef")); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// unanswered is a GET that the guest has and does not answer. The server does.
func (r *route) unanswered(ctx context.Context, protocol, code string) cut {
	t := r.s.t
	t.Helper()
	target := r.url + "/linger?id=" + url.QueryEscape(protocol)
	c := ending(protocol+" GET without an answer", func(err error) bool { return err == nil }, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return err
		}
		resp, err := r.http.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var got struct {
			ErrorCode   string `json:"error_code"`
			Interrupted bool   `json:"interrupted"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusBadGateway || got.ErrorCode != code || !got.Interrupted {
			return fmt.Errorf("%s, %+v, want 502 and %s", resp.Status, got, code)
		}
		return nil
	})
	eventually(t, promptly, "the request is with the guest", func() error { return r.endedAs(ctx, protocol, "there") })
	return c
}

// TestExecIsCut: the command line says why a command's output ended.
func TestExecIsCut(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	for _, tt := range []struct {
		name, want string
		do         func(id string) error
	}{
		{"pause", "the sandbox was put to sleep", func(id string) error { return s.client.Pause(ctx, id) }},
		{"kill", ": Killed", func(id string) error { return s.client.Kill(ctx, id) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sb := s.create(ctx, client.CreateOptions{})
			cmd := exec.CommandContext(ctx, drowseBinary, "exec", sb.ID, "--", "sh", "-c", "while :; do echo tick; sleep 0.1; done")
			cmd.Env = []string{"DROWSE_URL=http://" + s.addr, "DROWSE_API_KEY=" + apiKey}
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "tick\n" {
				t.Errorf("it printed %q, %v", line, err)
			}
			if err := tt.do(sb.ID); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 125 {
				t.Errorf("it ended with %v, want exit status 125", err)
			}
			if text := said.String(); !strings.Contains(text, tt.want) || !strings.Contains(text, "drowse why "+sb.ID) || strings.Contains(text, "not found") {
				t.Errorf("it said %q, want %q and what to do", text, tt.want)
			}
		})
	}
}

// ending runs what ends only by being cut.
func ending(name string, want func(error) bool, run func() error) cut {
	c := cut{name, make(chan error, 1), want}
	go func() { c.ended <- run() }()
	return c
}
