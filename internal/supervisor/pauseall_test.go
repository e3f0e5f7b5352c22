package supervisor

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestShutdownPausesWhatStarts: of what a server that stops has begun to start, nothing runs on.
// Time is virtual.
func TestShutdownPausesWhatStarts(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		damaged := ""
		w.meddle = func(_ context.Context, _ *server, at point, id string) error {
			if slow.Load() && (at == atStart || at == atRestore) {
				time.Sleep(5 * time.Second)
				if sandboxOf(id) == damaged {
					return errors.New("a fault")
				}
			}
			return nil
		}
		srv := w.mustOpen(t)
		var asleep []string
		for range 2 {
			id := create(t, srv.s, CreateRequest{Settings: sleepy})
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			asleep = append(asleep, id)
		}
		damaged = asleep[1]
		slow.Store(true)
		for _, id := range asleep {
			go func() { _, _ = srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}) }()
		}
		made := make(chan string, 1)
		go func() { made <- create(t, srv.s, CreateRequest{Settings: sleepy}) }()
		time.Sleep(time.Second)
		if !srv.s.Starting() {
			t.Error("none is being started")
		}
		if left := srv.s.PauseAll(t.Context()); left != 0 {
			t.Errorf("%d sandboxes run on", left)
		}
		synctest.Wait()
		if srv.s.Starting() {
			t.Error("one is being started")
		}
		for _, id := range append(asleep, <-made) {
			if rec := record(t, srv.s, id); rec.State != lifecycle.Paused || rec.Op != nil {
				t.Errorf("%s, which was being started, is %s with the operation %+v", id, rec.State, rec.Op)
			}
		}
		slow.Store(false)
		w.end(t, srv)
	})
}

// TestStopWaitsForRequests: a server that stops knows of each request that waits for a sandbox, also
// while none is being started. Time is virtual.
func TestStopWaitsForRequests(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			if at == atCheckpoint {
				time.Sleep(5 * time.Second)
			}
			return nil
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		for name, wait := range map[string]func() error{
			"a request for its port": func() error {
				lease, err := srv.s.Acquire(t.Context(), id, Access{Port: 8000})
				if err == nil {
					lease.Release()
				}
				return err
			},
			"a connect": func() error {
				_, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour})
				return err
			},
		} {
			paused := make(chan error, 1)
			go func() { paused <- srv.s.Pause(t.Context(), id, PauseRequest{}) }()
			time.Sleep(time.Second)
			if srv.s.Starting() {
				t.Errorf("%s: none waits for it yet", name)
			}
			waited := make(chan error, 1)
			go func() { waited <- wait() }()
			time.Sleep(time.Second)
			if rec := record(t, srv.s, id); rec.Phase() != lifecycle.Pausing || !srv.s.Starting() {
				t.Errorf("%s waits, while the sandbox is %s: %t", name, rec.Situation(), srv.s.Starting())
			}
			if err := errors.Join(<-paused, <-waited); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			if srv.s.Starting() {
				t.Errorf("%s waits no more", name)
			}
		}
		w.end(t, srv)
	})
}
