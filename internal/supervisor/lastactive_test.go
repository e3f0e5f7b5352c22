package supervisor

import (
	"encoding/json"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient/hostile"
)

// TestIdleClockSurvivesARestart: the idle clock of a sandbox goes on from its
// last activity when the server is restarted, and from what is stored of that
// when the server crashes, which is at most a minute old.
func TestIdleClockSurvivesARestart(t *testing.T) {
	for name, crash := range map[string]bool{"stopped": false, "crashed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testIdleClockSurvivesARestart(t, crash) })
		})
	}
}

func testIdleClockSurvivesARestart(t *testing.T, crash bool) {
	const idle = 10 * time.Minute
	w := newWorldIn(t, t.TempDir())
	w.tune = func(o *Options) { o.ActivityEvery = 20 * time.Second }
	open := func() (*Supervisor, func()) {
		srv, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		return srv.s, func() {
			if crash {
				srv.crash()
			}
			if err := srv.s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	s, end := open()
	settings := lifecycle.Settings{IdleTimeout: idle, OnTimeout: lifecycle.Pause, AutoResume: true}
	id := create(t, s, CreateRequest{Settings: settings})
	var last time.Time
	for range 3 { // it is used for three minutes, and then left alone
		time.Sleep(time.Minute)
		last = time.Now()
		lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort})
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
	}
	for range 3 {
		time.Sleep(2 * time.Minute)
		end()
		time.Sleep(30 * time.Second) // no server is there
		s, end = open()
	}
	defer w.powerOff()
	defer end()
	time.Sleep(idle)
	r := record(t, s, id)
	if r.State != lifecycle.Paused {
		t.Fatalf("it is %s", r.Situation())
	}
	early := time.Duration(0)
	if crash {
		early = time.Minute
	}
	if got := r.PausedAt.Sub(last); got < idle-early || got > idle+time.Second {
		t.Errorf("it was paused %s after its last activity, want %s", got, idle)
	}
}

// TestProcessesAreNoRequestsAfterARestart: where only requests refresh the timeout,
// a process that works through restarts of the server does not move its end, though
// the idle timeout waits for it.
func TestProcessesAreNoRequestsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Minute
		w := newWorldIn(t, t.TempDir())
		w.tune = func(o *Options) { o.ActivityEvery = 20 * time.Second }
		w.told = func(*program) (agentapi.Activity, error) {
			p := agentapi.Process{PID: 7, Root: 7, Command: "serve", Since: time.Now(), LastProgress: time.Now()}
			return agentapi.Activity{Now: time.Now(), Processes: []agentapi.Process{p}}, nil
		}
		defer w.powerOff()
		srv := w.mustOpen(t)
		settings := lifecycle.Settings{Timeout: timeout, IdleTimeout: time.Minute, OnTimeout: lifecycle.Pause, RefreshOnActivity: lifecycle.RefreshOnRequests}
		id := create(t, srv.s, CreateRequest{Settings: settings})
		time.Sleep(2 * time.Minute)
		mustAcquire(t, srv.s, id, Access{Port: counterPort}).Release()
		last := time.Now()
		for range 3 {
			time.Sleep(2 * time.Minute)
			if err := srv.s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second) // no server is there
			srv = w.mustOpen(t)
		}
		defer func() { _ = srv.s.Stop(t.Context()) }()
		time.Sleep(timeout)
		r := record(t, srv.s, id)
		if got := r.PausedAt.Sub(last); r.State != lifecycle.Paused || r.PausedFor != lifecycle.CauseTimeout || got < timeout || got > timeout+time.Minute {
			t.Errorf("it is %s, paused for %s %s after its last request, want %s", r.Situation(), r.PausedFor, got, timeout)
		}
	})
}

// TestStalledStream: a stream in which nothing moves is told when it stops
// counting, once.
func TestStalledStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldIn(t, t.TempDir())
		w.tune = func(o *Options) { o.ActivityEvery = 20 * time.Second }
		srv, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		defer w.powerOff()
		defer func() { _ = srv.s.Stop(t.Context()) }()
		s := srv.s
		settings := lifecycle.Settings{IdleTimeout: time.Hour, StallAfter: time.Minute, OnTimeout: lifecycle.Pause}
		id := create(t, s, CreateRequest{Settings: settings})
		lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort, Stream: true})
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
		opened := time.Now()
		stalls := func() (at []time.Duration) {
			t.Helper()
			events, err := s.Events(t.Context(), id, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.Type == lifecycle.EntryStalled {
					if e.Detail != "stream to port 8000" {
						t.Errorf("it says %q", e.Detail)
					}
					at = append(at, e.At.Sub(opened).Round(time.Second))
				}
			}
			return at
		}
		time.Sleep(10 * time.Minute)
		if got := stalls(); len(got) != 1 || got[0] != time.Minute {
			t.Errorf("stalled after %v, want once after a minute", got)
		}
		lease.Progress(1)
		time.Sleep(10 * time.Minute)
		if got := stalls(); len(got) != 2 {
			t.Errorf("stalled after %v, want again after it had moved", got)
		}
	})
}

// TestSilentProcessStalls: a process that makes no progress keeps a sandbox awake
// until it stalls, and at most a second longer, however seldom the sandbox is looked
// at.
func TestSilentProcessStalls(t *testing.T) {
	for _, stallAfter := range []time.Duration{time.Second, 61 * time.Second, 10 * time.Minute, 30 * time.Minute} {
		for name, settings := range map[string]lifecycle.Settings{
			"soon idle": {IdleTimeout: 5 * time.Second}, "late idle": {IdleTimeout: 20 * time.Minute},
			"refreshed": {Timeout: 90 * time.Second, RefreshOnActivity: lifecycle.RefreshOnWork},
		} {
			t.Run(fmt.Sprint(name, ", ", stallAfter), func(t *testing.T) {
				w := newHostileWorld(t)
				synctest.Test(t, func(t *testing.T) {
					srv := w.mustOpen(t)
					defer w.close(t, srv)
					settings.StallAfter, settings.OnTimeout = stallAfter, lifecycle.Kill
					checkSilentProcess(t, w, srv.s, settings)
				})
			})
		}
	}
}

func checkSilentProcess(t *testing.T, w *hostileWorld, s *Supervisor, settings lifecycle.Settings) {
	id := create(t, s, CreateRequest{Settings: settings})
	progress := time.Now()
	answer := reports(agentapi.Process{PID: 7, Root: 7, Command: "sleep 9000", Since: progress, LastProgress: progress})
	w.answer.Store(&answer)
	unused := settings.IdleTimeout + settings.Timeout // one of them
	time.Sleep(settings.StallAfter + unused + time.Minute)
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	at := map[lifecycle.EntryType]time.Duration{}
	for _, e := range events {
		at[e.Type] = e.At.Sub(progress)
	}
	stalled, want := at[lifecycle.EntryStalled], settings.StallAfter
	if stalled < want || stalled > max(want, unused)+time.Second { // nobody looks before it may be unused
		t.Errorf("hold.stalled %s after the last progress, want %s", stalled, want)
	}
	ended, want := at[lifecycle.EntryTerminated], want+unused
	if ended < want || ended > want+time.Second {
		t.Errorf("it ended %s after the last progress, want %s, or a second more", ended, want)
	}
}

// reports is an agent that says that a process is all there is, whatever it is
// asked.
func reports(p agentapi.Process) func(net.Conn) {
	return hostile.AfterHead(func(c net.Conn) {
		said, err := json.Marshal(agentapi.Activity{Now: time.Now(), Processes: []agentapi.Process{p}})
		if err == nil {
			_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
		}
		if err != nil {
			c.Close()
		}
	})
}
