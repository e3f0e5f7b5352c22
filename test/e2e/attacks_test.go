package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// attack is one way in which a tenant does its worst.
type attack struct {
	name  string
	shows string // what keeps it from hurting the neighbour
	least int    // how often it must have struck to have been an attack
	// begin returns when the attack is under way. It goes on in the background
	// until ctx ends.
	begin func(ctx context.Context, a *attacker)
}

var attacks = []attack{
	{"requests hidden in bodies", "a connection to a user's server is kept only after a request without a body", 10, smuggle},
	{"more files than the disk limit", "usage is measured, and the sandbox paused or ended", 1, fillDisk},
	{"deep trees and odd names", "trees are walked by descriptor, in bounded memory", 1, plantHostileTree},
	{"hundreds of thousands of files", "layers are packed, and a pause reads what has changed alone", 1, plantFiles},
	{"forks without pause", "launches are bounded by key, and turns are short", 2, manyForks},
	{"20,000 hard links", "listings are streamed, and a link counts as an entry", 1, plantLinks},
	{"hooks that take 20 s", "a start's turn covers the host's work; guests hold up their own key only", 6, slowHooks},
	{"oversized fields", "every field has a limit", 20, largeFields},
	{"bodies without an end", "bytes in flight are bounded by key, by address and in all", 16, unfinishedBodies},
	{"heads without an end", "heads are bounded by address, and have a deadline", 200, unfinishedHeads},
	{"fork bombs", "the cgroup bounds processes and CPU time", 2, forkBombs},
	{"all memory, again and again", "the largest process is ended, or the sandbox that asked", 2, eatMemory},
	{"descriptors", "each sandbox's kernel has descriptors of its own", 2, eatDescriptors},
	{"idle connections to the outside", "descriptors and buffers of the way out are bounded by key", 2, idleOutside},
	{"watchers over changing files", "watches are bounded in each sandbox", 64, watchers},
	{"terminals nobody reads", "output waits in the sandbox, within a bound", 40, terminals},
	{"busy kernels", "contexts are bounded, and run on the sandbox's CPU", 16, kernels},
	{"endless output and refused requests", "what is not read is not kept, and values in the log are cut", 100, floodLogs},
	{"events, and hundreds who follow them", "an event is a row, and followers wait for free", 50, floodEvents},
	{"webhooks to dead hosts", "each webhook waits for itself", 2, deadWebhooks},
	{"readers that do not read", "what a stream may buffer is bounded", 100, slowReaders},
	{"creates and kills without pause", "launches are bounded by key, and turns are short", 4, manyCreates},
}

// deafServer answers with the path, and reads no body: what is left of it is the
// next request on that connection.
const deafServer = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        text = self.path.encode()
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.end_headers()
        self.wfile.write(text)
    do_POST = do_GET
    def log_message(*_): pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
`

func smuggle(ctx context.Context, a *attacker) {
	for _, sb := range a.sandboxes(ctx, 1, client.CreateOptions{}) {
		a.leaveRunning(ctx, sb, "python3", "-c", deafServer)
		var n atomic.Int64
		a.forever(ctx, 4, func(int) error {
			body := "GET /stolen HTTP/1.1\r\nHost: x\r\n\r\n"
			resp, err := a.do(sb.Request(ctx, http.MethodPost, guestPort, "/bad", strings.NewReader(body)))
			if err != nil {
				return err
			}
			resp.Body.Close()
			path := fmt.Sprintf("/visitor-%d", n.Add(1))
			if resp, err = a.do(sb.Request(ctx, http.MethodGet, guestPort, path, nil)); err != nil {
				return err
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err == nil && string(got) != path {
				a.t.Errorf("a visitor of %s got %q", path, got)
			}
			return err
		})
	}
}

// leaveRunning starts a command that nobody hears of again.
func (a *attacker) leaveRunning(ctx context.Context, sb *client.Sandbox, args ...string) bool {
	p, err := sb.Start(ctx, client.Command{Args: args})
	if err != nil {
		return false
	}
	p.Detach()
	return true
}

func fillDisk(ctx context.Context, a *attacker) {
	o := sleeper
	o.DiskMiB = 64
	all := a.sandboxes(ctx, 2, o)
	a.forever(ctx, len(all), func(i int) error {
		a.hit()
		_, err := all[i].Run(ctx, client.Command{Args: []string{"sh", "-c", "dd if=/dev/zero of=big.$$ bs=1M count=300; rm -f big.*"}})
		if errors.Is(err, client.ErrNotFound) {
			if next := a.sandboxes(ctx, 1, o); len(next) == 1 {
				all[i] = next[0]
			}
		}
		return err
	})
}

// nap puts a sandbox to sleep and wakes it.
func (a *attacker) nap(ctx context.Context, sb *client.Sandbox) error {
	if err := a.c.Pause(ctx, sb.ID); err != nil && !errors.Is(err, client.ErrConflict) {
		return err
	}
	_, err := a.c.Resume(ctx, sb.ID, 10*time.Minute)
	return err
}

// plantAndNap has sandboxes run a script, and then sleep and wake without end.
func plantAndNap(ctx context.Context, a *attacker, n int, args ...string) {
	all := a.sandboxes(ctx, n, sleeper)
	planted := make([]atomic.Bool, len(all))
	a.forever(ctx, len(all), func(i int) error {
		if !planted[i].Load() {
			exit, err := all[i].Run(ctx, client.Command{Args: args})
			if err != nil || exit.Code != 0 {
				return errors.Join(err, errors.New(exit.Status))
			}
			planted[i].Store(true)
			return nil
		}
		return a.nap(ctx, all[i])
	})
}

func plantHostileTree(ctx context.Context, a *attacker) {
	plantAndNap(ctx, a, 2, "python3", "-c", makeHostileTree, "all")
}

func plantLinks(ctx context.Context, a *attacker) {
	plantAndNap(ctx, a, 1, "python3", "-c", `
import os
for _ in range(12):
    os.mkdir("n" * 200); os.chdir("n" * 200)
open("file", "w").close()
for i in range(20000):
    os.link("file", "l" * 200 + str(i))
`)
}

// plantFiles has a sandbox make so many files, which its pauses and wakes go through.
func plantFiles(ctx context.Context, a *attacker) {
	plantAndNap(ctx, a, 1, "python3", "-c", `
import os
for i in range(200):
    os.mkdir(str(i))
    for j in range(1000):
        open("%d/%d" % (i, j), "w").close()
`)
}

func manyForks(ctx context.Context, a *attacker) {
	all := a.sandboxes(ctx, 2, sleeper)
	a.forever(ctx, len(all), func(i int) error {
		children, err := client.NewSnapshots(a.c).Fork(ctx, all[i].ID, client.ForkOptions{Count: 4})
		for _, child := range children {
			if child.Sandbox != nil {
				err = errors.Join(err, a.c.Kill(ctx, child.Sandbox.ID))
			}
		}
		return err
	})
}

func slowHooks(ctx context.Context, a *attacker) {
	o := sleeper
	hook := client.Hook{Command: "sleep 20", Timeout: 20 * time.Second}
	o.Hooks = client.Hooks{PostResume: hook}
	all := a.sandboxes(ctx, 8, o)
	each(len(all), len(all), func(i int) { _ = a.c.Pause(ctx, all[i].ID) })
	a.forever(ctx, len(all), func(i int) error {
		a.hit()
		return a.nap(ctx, all[i])
	})
	wait(ctx, time.Second) // until they are on their way up
}

func largeFields(ctx context.Context, a *attacker) {
	large := func(n int) string { return strings.Repeat("x", n) }
	var id string
	for _, sb := range a.sandboxes(ctx, 1, client.CreateOptions{}) {
		id = sb.ID
	}
	bodies := [][3]string{
		{"POST", "/sandboxes", `{"templateID": "base", "metadata": {"a": "` + large(1<<20-100) + `"}}`},
		{"POST", "/sandboxes", `{"templateID": "` + large(1<<20-100) + `"}`},
		{"POST", "/sandboxes", `{"templateID": "base", "envVars": {"a": "` + large(1<<20-100) + `"}}`},
		{"PATCH", "/v1/sandboxes/" + id, `{"metadata": {"a": "` + large(16000) + `"}}`},
		{"POST", "/v1/sandboxes/" + id + "/holds", `{"reason": "` + large(100) + `", "ttlSeconds": 600}`},
		{"GET", "/v1/sandboxes?metadata=a=" + large(30000), ""},
	}
	a.forever(ctx, 6, func(i int) error { return a.control(ctx, bodies[i][0], bodies[i][1], bodies[i][2]) })
}

// unfinished keeps connections on which all but the end was sent.
func (a *attacker) unfinished(ctx context.Context, n int, sent []byte) {
	a.forever(ctx, n, func(int) error {
		conn, err := a.dial(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if _, err := conn.Write(sent); err != nil {
			return err
		}
		a.hit()
		_, _ = io.Copy(io.Discard, conn) // until it is cut off
		// To connect again without a pause costs the client more than the server.
		wait(ctx, 200*time.Millisecond)
		return errors.New("cut off")
	})
	wait(ctx, time.Second)
}

func unfinishedBodies(ctx context.Context, a *attacker) {
	head := fmt.Sprintf("POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.key.Text, 1<<20)
	a.unfinished(ctx, 100, []byte(head+strings.Repeat(" ", 1<<20-1)))
}

func unfinishedHeads(ctx context.Context, a *attacker) {
	a.unfinished(ctx, 1000, []byte("GET / HTTP/1.1\r\nHost: x\r\nX-Fill: "+strings.Repeat("x", 63<<10)))
}

func forkBombs(ctx context.Context, a *attacker) {
	a.again(ctx, 2, client.CreateOptions{PIDs: 512}, "bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 20")
}

func eatMemory(ctx context.Context, a *attacker) {
	a.again(ctx, 2, client.CreateOptions{}, "python3", "-c", "held = []\nwhile True: held.append(b'x' * (1 << 20))")
}

func eatDescriptors(ctx context.Context, a *attacker) {
	a.again(ctx, 2, client.CreateOptions{}, "bash", "-c", `for i in 1 2 3 4; do python3 -c '
import os, time
held = []
while True:
    try: held.append(open("/etc/passwd")); held.append(os.pipe())
    except OSError: time.sleep(0.1)
' & done; wait`)
}

func idleOutside(ctx context.Context, a *attacker) {
	a.again(ctx, 2, client.CreateOptions{}, "python3", "-c", `
import socket, time
held = []
while True:
    try: held.append(socket.create_connection(("`+goodAddr+`", 443 if len(held) % 2 else 80), 5))
    except OSError: time.sleep(0.05)
`)
}

func watchers(ctx context.Context, a *attacker) {
	all := a.sandboxes(ctx, 2, client.CreateOptions{})
	for _, sb := range all {
		a.leaveRunning(ctx, sb, "sh", "-c", "cd; while :; do for i in 1 2 3 4 5 6 7 8 9; do mkdir -p d$i/e; echo >d$i/e/f; done; rm -rf d*; done")
	}
	a.forever(ctx, 4*len(all), func(i int) error {
		req, err := all[i/4].Request(ctx, http.MethodPost, agentPort, "/filesystem.Filesystem/CreateWatcher", strings.NewReader(`{"path": "/home/user", "recursive": true}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := a.do(req, nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
}

// unread is an output that takes nothing more after its first bytes.
type unread struct{ ctx context.Context }

// Write implements io.Writer.
func (u unread) Write([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, u.ctx.Err()
}

func terminals(ctx context.Context, a *attacker) {
	all := a.sandboxes(ctx, 2, client.CreateOptions{})
	a.forever(ctx, 40*len(all), func(i int) error {
		p, err := all[i/40].Shell(ctx, client.Command{Args: []string{"yes", "a line on a terminal"}, Stdout: unread{ctx}})
		if err != nil {
			return err
		}
		a.hit()
		_, err = p.Wait()
		return err
	})
}

func kernels(ctx context.Context, a *attacker) {
	for _, sb := range a.sandboxes(ctx, 2, client.CreateOptions{MemoryMiB: 1024}) {
		token, err := a.token(ctx, sb.ID)
		if err != nil {
			continue
		}
		call := func(path, body string, into any) error {
			req, err := sb.Request(ctx, http.MethodPost, interpreterPort, path, strings.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("X-Access-Token", token)
			resp, err := a.do(req, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if into != nil {
				return json.NewDecoder(resp.Body).Decode(into)
			}
			a.hit()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
		a.forever(ctx, 8, func(int) error {
			var made struct{ ID string }
			if err := call("/contexts", `{"language": "python"}`, &made); err != nil {
				return err
			}
			a.hit()
			return call("/execute", fmt.Sprintf(`{"context_id": %q, "code": "while True: print('x' * 1000)"}`, made.ID), nil)
		})
	}
}

// token returns what opens a sandbox's agent.
func (a *attacker) token(ctx context.Context, id string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.s.addr+"/sandboxes/"+id, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("X-Api-Key", a.key.Text)
	resp, err := a.do(req, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var of struct{ EnvdAccessToken string }
	err = json.NewDecoder(resp.Body).Decode(&of)
	return of.EnvdAccessToken, err
}

func floodLogs(ctx context.Context, a *attacker) {
	all := a.sandboxes(ctx, 2, client.CreateOptions{})
	for _, sb := range all {
		for range 4 { // whose output waits for somebody to read it
			a.leaveRunning(ctx, sb, "yes", strings.Repeat("a line of the flood ", 50))
		}
		a.background.Go(func() {
			_, _ = sb.Run(ctx, client.Command{Args: []string{"yes", "read as fast as it comes"}, Stdout: io.Discard})
		})
	}
	a.forever(ctx, 4, func(int) error { return a.control(ctx, "GET", "/sandboxes/"+strings.Repeat("no-such-one", 500), "") })
}

func floodEvents(ctx context.Context, a *attacker) {
	all := a.sandboxes(ctx, 4, sleeper)
	for range 200 {
		a.background.Go(func() {
			for _, err := range a.c.Follow(ctx, client.EventOptions{}) {
				if err != nil {
					return
				}
			}
		})
	}
	a.unread(ctx, 300, func() (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.s.addr+"/v1/events?follow=true", nil)
	})
	a.forever(ctx, 2*len(all), func(i int) error {
		if i == 0 {
			return a.nap(ctx, all[0])
		}
		_, err := a.c.Hold(ctx, all[i/2].ID, client.HoldOptions{ID: fmt.Sprint("hold-", i), For: time.Minute, Reason: "no reason"})
		if err != nil {
			return err
		}
		return a.c.ReleaseHold(ctx, all[i/2].ID, fmt.Sprint("hold-", i))
	})
}

func deadWebhooks(ctx context.Context, a *attacker) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	if err != nil {
		a.t.Error(err)
		return
	}
	urls := []string{"http://" + silent.Addr().String(), "http://127.0.0.1:1", "http://" + evilAddr + ":81"}
	var ids []string
	for i, url := range urls {
		var made struct{ ID string }
		a.server.call(ctx, "POST", "/events/webhooks", fmt.Sprintf(`{"name": "dead-%d", "url": %q, "signatureSecret": %q, "events": [
			"sandbox.lifecycle.created", "sandbox.lifecycle.paused", "sandbox.lifecycle.resumed", "sandbox.lifecycle.killed"]}`, i, url, hookSecret), &made)
		ids = append(ids, made.ID)
	}
	a.background.Go(func() {
		<-ctx.Done()
		silent.Close()
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, id := range ids {
			got, err := a.raw(after, "DELETE", "/events/webhooks/"+id, http.Header{"X-Api-Key": {apiKey}}, nil)
			if err != nil || got.status/100 != 2 {
				a.t.Errorf("delete webhook: %d %s, %v", got.status, got.body, err)
			}
		}
	})
	all := a.sandboxes(ctx, 3, sleeper)
	a.forever(ctx, len(all), func(i int) error { return a.nap(ctx, all[i]) })
}

func slowReaders(ctx context.Context, a *attacker) {
	for _, sb := range a.sandboxes(ctx, 1, client.CreateOptions{}) {
		if _, err := sb.Run(ctx, client.Command{Args: []string{"truncate", "-s", "1G", "large"}}); err != nil {
			continue
		}
		a.unread(ctx, 300, func() (*http.Request, error) {
			return sb.Request(ctx, http.MethodGet, agentPort, "/files?path=large&username=user", nil)
		})
	}
	wait(ctx, time.Second)
}

// unread makes so many requests whose answers nobody reads until ctx ends. Those that
// are refused are made again.
func (a *attacker) unread(ctx context.Context, width int, request func() (*http.Request, error)) {
	a.forever(ctx, width, func(int) error {
		req, err := request()
		if err != nil {
			return err
		}
		req.Header.Set("X-Api-Key", a.key.Text)
		conn, err := a.dial(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if err := errors.Join(conn.(*net.TCPConn).SetReadBuffer(4096), req.Write(conn)); err != nil {
			return err
		}
		var first [12]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil || string(first[9:]) != "200" {
			return fmt.Errorf("%q, %w", first, err)
		}
		a.hit()
		<-ctx.Done()
		return nil
	})
}

func manyCreates(ctx context.Context, a *attacker) {
	a.forever(ctx, 8, func(int) error {
		made := a.sandboxes(ctx, 1, client.CreateOptions{})
		if len(made) == 0 {
			return errors.New("refused")
		}
		return a.c.Kill(ctx, made[0].ID)
	})
}
