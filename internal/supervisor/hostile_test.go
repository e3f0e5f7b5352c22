package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient/hostile"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

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
	for name, answer := range hostile.Agents {
		t.Run(name, func(t *testing.T) {
			w := newHostileWorld(t)
			synctest.Test(t, func(t *testing.T) {
				answer := hostile.AfterHead(answer)
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
	if err := srv.s.Pause(t.Context(), id, PauseRequest{Mode: lifecycle.Filesystem}); err != nil {
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
		answer := hostile.AfterHead(func(c net.Conn) {
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
		const span = 3 * time.Second
		time.Sleep(span)
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
		if looks := int(span/(250*time.Millisecond)) + 1; stalls == 0 || stalls > looks*awake.MostStalls {
			t.Errorf("%d stalls logged, want some, and %d at most for each of %d looks", stalls, awake.MostStalls, looks)
		}
		w.answer.Store(nil)
		killHostile(t, w, srv, id)
		w.close(t, srv)
	})
}
