package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// wakes is how often each server is put to sleep and woken.
var wakes = testmode.Choose(6, 30)

// TestListenersAfterWake pauses servers of all kinds while connections come in,
// from outside and from inside, are cut and are left half open, and wakes them
// with a request. Each time they must answer it, and two more at once: a
// listening socket that a checkpoint has left deaf would not.
func TestListenersAfterWake(t *testing.T) {
	t.Parallel()
	for _, l := range []listener{
		{name: "go", command: "exec ./guest serve"},
		{name: "node", command: "exec node server", server: nodeServer},
		{name: "asyncio", command: "exec python3 server", server: asyncioServer},
		{name: "nginx", command: "exec nginx -e stderr -p . -c server", server: nginxServer},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.run(t)
		})
	}
}

// listener is a server that says hello on port 8000.
type listener struct {
	name    string
	command string
	server  string // a program or configuration, in the file server
}

const nodeServer = `
require('http').createServer((_, res) => res.end('hello from node\n')).listen(8000)
`

const asyncioServer = `
import asyncio

async def answer(reader, writer):
    try:
        while (await reader.readline()).strip():
            pass
        body = b"hello from asyncio\n"
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "0.0.0.0", 8000)
    await server.serve_forever()

asyncio.run(main())
`

const nginxServer = `
daemon off;
worker_processes 2;
pid nginx.pid;
events {}
http {
	access_log off;
	client_body_temp_path nginx;
	proxy_temp_path nginx;
	fastcgi_temp_path nginx;
	uwsgi_temp_path nginx;
	scgi_temp_path nginx;
	server {
		listen 8000;
		location / { return 200 "hello from nginx\n"; }
	}
}
`

func (l listener) run(t *testing.T) {
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)})
	upload(ctx, t, sb)
	if l.server != "" {
		if err := sb.WriteFile(ctx, "server", strings.NewReader(l.server)); err != nil {
			t.Fatal(err)
		}
	}
	s.leave(ctx, sb, l.command)
	s.leave(ctx, sb, fmt.Sprintf("exec ./guest knock 127.0.0.1:%d", guestPort))
	hello := func() error { return l.hello(ctx, sb) }
	eventually(t, 20*time.Second, l.name+" answers", hello)

	var slowest time.Duration
	for wake := range wakes {
		load := l.load(ctx, s, sb)
		load.await(t, 4)
		// While it falls asleep and sleeps, traffic comes and may not wake it.
		s.autoResume(ctx, sb.ID, false)
		s.pause(ctx, sb.ID)
		load.stop()
		if err := s.is(ctx, sb.ID, client.Paused); err != nil {
			t.Fatal(err)
		}
		s.autoResume(ctx, sb.ID, true)

		begin := time.Now()
		if err := hello(); err != nil {
			t.Fatalf("wake %d: %v", wake+1, err)
		}
		slowest = max(slowest, time.Since(begin))
		again := make(chan error, 2)
		for range cap(again) {
			go func() { again <- hello() }()
		}
		for range cap(again) {
			if err := <-again; err != nil {
				t.Fatalf("after wake %d: %v", wake+1, err)
			}
		}
		if x := s.explain(ctx, sb.ID); x.Generation != int64(wake+2) {
			t.Fatalf("wake %d: generation %d, want %d", wake+1, x.Generation, wake+2)
		}
	}
	t.Logf("%s answered after each of %d wakes, within %s", l.name, wakes, slowest.Round(time.Millisecond))
}

// autoResume says whether traffic may wake a sandbox.
func (s *server) autoResume(ctx context.Context, id string, on bool) {
	s.t.Helper()
	if _, err := s.client.Patch(ctx, id, client.PatchOptions{AutoResume: &on}); err != nil {
		s.t.Fatal(err)
	}
}

// hello asks for the greeting once, which may wake the sandbox.
func (l listener) hello(ctx context.Context, sb *client.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, maxAnswer)
	defer cancel()
	req, err := sb.Request(ctx, http.MethodGet, guestPort, "/", nil)
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if want := "hello from " + l.name + "\n"; err != nil || resp.StatusCode != http.StatusOK || string(body) != want {
		return fmt.Errorf("%s %q, %v; want 200 %q", resp.Status, body, err, want)
	}
	return nil
}

// load is traffic to a server: clients that ask again and again, and
// connections on which a request has begun and does not end.
type load struct {
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	answered atomic.Int64
	halfOpen []net.Conn
}

func (l listener) load(ctx context.Context, s *server, sb *client.Sandbox) *load {
	s.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	load := &load{cancel: cancel}
	s.t.Cleanup(load.stop)
	for range 2 {
		load.clients.Go(func() {
			for ctx.Err() == nil {
				if l.hello(ctx, sb) == nil {
					load.answered.Add(1)
				}
				time.Sleep(pollEvery / 2)
			}
		})
	}
	for range 2 {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		if err != nil {
			s.t.Fatal(err)
		}
		load.halfOpen = append(load.halfOpen, conn)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %d-%s.example.test\r\nContent-Length: 1000\r\n\r\nthe beginning", guestPort, sb.ID)
	}
	return load
}

// await waits until so many requests have been answered.
func (l *load) await(t testing.TB, requests int64) {
	t.Helper()
	eventually(t, maxAnswer, "the load is answered", func() error {
		if n := l.answered.Load(); n < requests {
			return fmt.Errorf("%d requests were answered, want %d", n, requests)
		}
		return nil
	})
}

func (l *load) stop() {
	l.cancel()
	l.clients.Wait()
	for _, conn := range l.halfOpen {
		conn.Close()
	}
}
