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
		if left := srv.s.PauseAll(t.Context()); left != 0 || srv.s.Starting() {
			t.Errorf("%d sandboxes run on; one is being started: %t", left, srv.s.Starting())
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
