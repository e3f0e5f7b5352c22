package supervisor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
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
