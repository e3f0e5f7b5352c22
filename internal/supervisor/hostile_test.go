package supervisor

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/agent/agentpb/process"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// hostileAgents are what may answer instead of an agent. Each has read the
// head of a request.
var hostileAgents = map[string]func(c net.Conn){
	"says nothing":               listen,
	"hangs up":                   func(net.Conn) {},
	"half a status line":         say("HTTP/1.1 2"),
	"half a head":                say("HTTP/1.1 200 OK\r\nContent-Le"),
	"an endless status line":     flood("HTTP/1.1 500 ", "because "),
	"an endless header":          flood("HTTP/1.1 200 OK\r\nX: ", "and so on "),
	"endless headers":            flood("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n"),
	"endless interim answers":    flood("", "HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n"),
	"endless continues":          flood("", "HTTP/1.1 100 Continue\r\n\r\n"),
	"another protocol":           flood("", "SSH-2.0-OpenSSH_9.9\r\n"),
	"HTTP/2":                     say("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"),
	"HTTP/0.9":                   flood("<html>", "hello "),
	"TLS":                        say("\x15\x03\x03\x00\x02\x02\x28"),
	"zeros":                      flood("", strings.Repeat("\x00", 4096)),
	"a switch of protocols":      flood("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "x"),
	"a redirect to itself":       say("HTTP/1.1 307 Temporary Redirect\r\nLocation: /drowse/activity\r\nContent-Length: 0\r\n\r\n"),
	"a redirect elsewhere":       say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"),
	"two lengths":                say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}"),
	"a negative length":          say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
	"a length beyond all bounds": say("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}"),
	"less than announced":        say("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n{"),
	"a chunk of 8 EiB":           say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n{"),
	"an endless chunk size":      flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0"),
	"endless chunk extensions":   flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("x", 3000)+"\r\n \r\n"),
	"endless trailers":           flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "X-More: and more\r\n"),
	"an endless body":            flood("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat(" ", 4096)),
	"an endless string":          flood("HTTP/1.1 200 OK\r\n\r\n{\"now\":\"", strings.Repeat("x", 4096)),
	"endless nesting":            flood("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("[", 4096)),
	"endless processes":          flood("HTTP/1.1 200 OK\r\n\r\n{\"processes\":[{}", strings.Repeat(",{}", 2000)),
	"a drip":                     drip("HTTP/1.1 200 OK\r\nX: ", "x"),
	"a drip of a body":           drip("HTTP/1.1 200 OK\r\n\r\n", " "),
	"a frame of 4 GiB":           say(streaming + "\x00\xff\xff\xff\xff"),
	"frames without end":         flood(streaming, string(outputFrame(1000))),
	"empty frames without end":   flood(streaming, "\x00\x00\x00\x00\x00"),
	"an error of a megabyte":     say(streaming + string(frame(2, []byte(`{"error":{"code":"internal","message":"`+strings.Repeat("m", 1<<20)+`"}}`)))),
}

const streaming = "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n\r\n"

func say(text string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.WriteString(c, text); err == nil {
			listen(c)
		}
	}
}

// listen waits until the other side hangs up.
func listen(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// flood says more and more, a megabyte in each second or so.
func flood(head, more string) func(net.Conn) {
	chunk := strings.Repeat(more, max(1, 4096/len(more)))
	return again(head, chunk, 4*time.Millisecond)
}

func drip(head, more string) func(net.Conn) { return again(head, more, 100*time.Millisecond) }

func again(head, more string, pause time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, head)
		for err == nil {
			time.Sleep(pause)
			_, err = io.WriteString(c, more)
		}
	}
}

func frame(flags byte, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(payload))), payload...)
}

func outputFrame(size int) []byte {
	data := &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: make([]byte, size)}}
	message := &process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: data}}}
	payload, err := proto.Marshal(message)
	if err != nil {
		panic(err)
	}
	return frame(0, payload)
}

// afterHead reads the head of a request before it lets an agent answer.
func afterHead(answer func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				break
			}
		}
		// Nobody else reads what is left of the request.
		go listen(c)
		answer(c)
	}
}

// maxSpent is what the server and the agent together may allocate in all while
// one is lied to by the other.
const maxSpent = 128 << 20

// maxTaken is more than the longest deadline of an operation and what a test
// waits beside it.
const maxTaken = 7 * time.Minute

// maxWords is how long a text of an agent may become in logs and events.
const maxWords = 1 << 10

// hostileWorld has agents that can be told to turn hostile.
type hostileWorld struct {
	*world
	answer atomic.Pointer[func(net.Conn)] // nil while agents are what they should be
	logs   longestLine
}

func newHostileWorld(t *testing.T) *hostileWorld {
	w := &hostileWorld{world: newWorld(t)}
	w.agent = func() func(net.Conn) {
		if f := w.answer.Load(); f != nil {
			return *f
		}
		return nil
	}
	w.log = func(*server) slog.Handler { return slog.NewTextHandler(&w.logs, nil) }
	return w
}

// close ends all, agents whose connection is closed among them.
func (w *hostileWorld) close(t *testing.T, srv *server) {
	t.Helper()
	if err := srv.s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	w.powerOff()
	time.Sleep(time.Minute)
}

// longestLine is a log of which only that is kept.
type longestLine struct{ bytes atomic.Int64 }

func (l *longestLine) Write(p []byte) (int, error) {
	l.bytes.Store(max(l.bytes.Load(), int64(len(p))))
	return len(p), nil
}

// TestHostileAgents has the server deal with agents that answer what no agent
// should, at every time that it asks one. What it does ends, in time, with an
// error of a class if it fails; it neither keeps nor spends much for it; and
// the sandbox can be killed. Time is virtual, and ends only when all goroutines
// have.
func TestHostileAgents(t *testing.T) {
	for name, answer := range hostileAgents {
		t.Run(name, func(t *testing.T) {
			w := newHostileWorld(t)
			synctest.Test(t, func(t *testing.T) {
				answer := afterHead(answer)
				srv := w.mustOpen(t)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for what, do := range map[string]func(*testing.T, *hostileWorld, *server, *func(net.Conn)){
					"start": startHostile, "telemetry": watchHostile, "pause": pauseHostile,
				} {
					began := time.Now()
					do(t, w, srv, &answer)
					if took := time.Since(began); took > maxTaken {
						t.Errorf("%s: took %s", what, took)
					}
					w.answer.Store(nil)
				}
				checkWords(t, w, srv)
				runtime.ReadMemStats(&after)
				if spent := after.TotalAlloc - before.TotalAlloc; spent > maxSpent {
					t.Errorf("%d MiB were allocated", spent>>20)
				}
				w.close(t, srv)
			})
		})
	}
}

// startHostile starts a sandbox whose agent is hostile from the beginning.
func startHostile(t *testing.T, w *hostileWorld, srv *server, answer *func(net.Conn)) {
	w.answer.Store(answer)
	settings := lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill}
	sb, err := srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: settings})
	if err == nil { // an answer, for all that came with it
		killHostile(t, w, srv, sb.ID)
		return
	}
	if _, typed := errors.AsType[*errdef.Error](err); !typed {
		t.Errorf("create: %v, which has no class", err)
	}
	if text := err.Error(); len(text) > maxWords {
		t.Errorf("create: an error of %d bytes", len(text))
	}
}

// watchHostile has an agent turn hostile that is asked what goes on inside.
func watchHostile(t *testing.T, w *hostileWorld, srv *server, answer *func(net.Conn)) {
	id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{IdleTimeout: time.Second, OnTimeout: lifecycle.Kill, StallAfter: time.Second}})
	w.answer.Store(answer)
	time.Sleep(10 * time.Second)
	e, err := srv.s.Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if most := agentapi.MaxProcesses + agentapi.MaxLeases; len(e.Holds) > most {
		t.Errorf("%d holds, want %d at most", len(e.Holds), most)
	}
	killHostile(t, w, srv, id)
}

// pauseHostile has an agent turn hostile before a pause, a hook included.
func pauseHostile(t *testing.T, w *hostileWorld, srv *server, answer *func(net.Conn)) {
	hook := store.Hook{Command: "true", Budget: time.Second}
	id := create(t, srv.s, CreateRequest{Settings: sleepy, Config: store.Config{Hooks: store.Hooks{PrePause: hook}}})
	w.answer.Store(answer)
	if err := srv.s.Pause(t.Context(), id, lifecycle.Filesystem, ""); err != nil {
		if _, typed := errors.AsType[*errdef.Error](err); !typed {
			t.Errorf("pause: %v, which has no class", err)
		}
		if text := err.Error(); len(text) > maxWords {
			t.Errorf("pause: an error of %d bytes", len(text))
		}
	}
	killHostile(t, w, srv, id)
}

// killHostile kills a sandbox, and waits until nothing runs any more.
func killHostile(t *testing.T, w *hostileWorld, srv *server, id string) {
	t.Helper()
	if err := srv.s.Kill(t.Context(), id, ""); err != nil && !errdef.Is(err, errdef.NotFound) {
		t.Errorf("kill: %v", err)
	}
	time.Sleep(time.Minute)
	if left, err := w.machine.Driver().List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left after the kill: %q, %v", left, err)
	}
}

// checkWords looks at what the server has written down.
func checkWords(t *testing.T, w *hostileWorld, srv *server) {
	t.Helper()
	if longest := w.logs.bytes.Load(); longest > maxWords {
		t.Errorf("a line of %d bytes was logged", longest)
	}
	events, err := srv.s.Events(t.Context(), "", 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if len(e.Detail) > maxWords {
			t.Errorf("event %s: a detail of %d bytes", e.Type, len(e.Detail))
		}
	}
	if len(events) > 500 {
		t.Errorf("%d events", len(events))
	}
}

// TestTrueLookingAgent has an agent report, in good form, more than there can
// be: all of it stalled, with new processes each time.
func TestTrueLookingAgent(t *testing.T) {
	w := newHostileWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{IdleTimeout: time.Second, OnTimeout: lifecycle.Kill, StallAfter: time.Minute}})
		var pids atomic.Int64 // an answer may still be written when the next is asked for
		answer := afterHead(func(c net.Conn) {
			var body bytes.Buffer
			now := time.Now()
			past := now.Add(-time.Hour).Format(time.RFC3339)
			fmt.Fprintf(&body, `{"now":%q,"processes":[{"pid":1,"lastProgress":"9999-01-01T00:00:00Z"}`, now.Format(time.RFC3339Nano))
			for range 5000 {
				fmt.Fprintf(&body, `,{"pid":%d,"command":"\u001b[2J%s","lastProgress":%q}`, pids.Add(1), strings.Repeat("x", 300), past)
			}
			body.WriteString(`],"leases":[]}`)
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", body.Len(), body.Bytes())
		})
		w.answer.Store(&answer)
		time.Sleep(10 * time.Second)
		e, err := srv.s.Explain(t.Context(), id)
		if err != nil || len(e.Holds) != agentapi.MaxProcesses {
			t.Errorf("%d holds, %v; want %d", len(e.Holds), err, agentapi.MaxProcesses)
		}
		for _, h := range e.Holds {
			if len(h.Detail) > agentapi.MaxCommand || strings.Contains(h.Detail, "\x1b") {
				t.Fatalf("a hold says %q", h.Detail)
			}
		}
		events, err := srv.s.Events(t.Context(), id, 0, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		stalls := len(slices.DeleteFunc(events, func(e store.Event) bool { return e.Type != lifecycle.EntryStalled }))
		if looks := int(10*time.Second/(250*time.Millisecond)) + 1; stalls == 0 || stalls > looks*maxStallsLogged {
			t.Errorf("%d stalls logged, want some, and %d at most for each of %d looks", stalls, maxStallsLogged, looks)
		}
		w.answer.Store(nil)
		killHostile(t, w, srv, id)
		w.close(t, srv)
	})
}
