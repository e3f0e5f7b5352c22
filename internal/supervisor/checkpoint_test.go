package supervisor

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestCheckpointIsNoActivity: checkpoints at intervals move no clock. The
// sandbox falls asleep when it would without them, with all that it did.
func TestCheckpointIsNoActivity(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		began := time.Now()
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{
			IdleTimeout: 25 * time.Minute, OnTimeout: lifecycle.Pause, AutoResume: true, CheckpointEvery: 10 * time.Minute,
		}})
		checkServes(t, srv, id, 1, 1)
		time.Sleep(15 * time.Minute)
		x, err := srv.s.Explain(t.Context(), id)
		if err != nil || len(x.Deadlines) == 0 || x.Sandbox.Record.Generation != 2 {
			t.Fatalf("after a checkpoint: %+v, %v", x, err)
		}
		time.Sleep(15 * time.Minute)
		paused := map[lifecycle.Cause][]time.Duration{}
		events, err := srv.s.Events(t.Context(), id, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Type == lifecycle.EntryPaused {
				paused[e.Cause] = append(paused[e.Cause], e.At.Sub(began).Round(time.Second))
			}
		}
		if got, want := paused[lifecycle.CauseCheckpoint], []time.Duration{10 * time.Minute, 20 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("checkpoints at %s, want %s", got, want)
		}
		if got, want := paused[lifecycle.CauseIdle], []time.Duration{25 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("idle at %s, want %s", got, want)
		}
		checkServes(t, srv, id, 4, 2)
		w.end(t, srv)
	})
}

// holdRestores has no restore of the first server end. The first of them closes
// the channel.
func (w *world) holdRestores() <-chan struct{} {
	restoring := make(chan struct{})
	began := sync.OnceFunc(func() { close(restoring) })
	w.meddle = func(ctx context.Context, srv *server, at point, _ string) error {
		if at != atRestore || srv.number > 1 {
			return nil
		}
		began()
		<-ctx.Done()
		return ctx.Err()
	}
	return restoring
}

// TestCheckpointIsCarriedOn: a server that ends between a checkpoint and the
// wake after it, killed or told to, leaves the wake to the next.
func TestCheckpointIsCarriedOn(t *testing.T) {
	ends := map[string]func(t *testing.T, srv *server){
		"killed": func(_ *testing.T, srv *server) {
			srv.crash()
			_ = srv.s.Stop(context.Background())
		},
		"told to stop": func(t *testing.T, srv *server) {
			if err := srv.s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			srv.crash()
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				restoring := w.holdRestores()
				srv := w.mustOpen(t)
				// Traffic may not wake it: nothing else will.
				id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{
					OnTimeout: lifecycle.Kill, CheckpointEvery: lifecycle.MinCheckpointEvery,
				}})
				checkServes(t, srv, id, 1, 1)
				<-restoring
				end(t, srv)
				srv = w.mustOpen(t)
				checkServes(t, srv, id, 2, 2)
				w.end(t, srv)
			})
		})
	}
}

// TestActivityBeforeACarriedCheckpoint: a server that finishes the checkpoint of
// another does not know when the sandbox was used last, and takes none of the
// time that activity has given it.
func TestActivityBeforeACarriedCheckpoint(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		restoring := w.holdRestores()
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{
			Timeout: 10 * time.Minute, OnTimeout: lifecycle.Pause, RefreshOnActivity: lifecycle.RefreshOnWork, CheckpointEvery: 599 * time.Second,
		}})
		time.Sleep(5 * time.Minute)
		checkServes(t, srv, id, 1, 1) // until the 15th minute
		<-restoring
		time.Sleep(5 * time.Second)
		srv.crash()
		_ = srv.s.Stop(context.Background())
		srv = w.mustOpen(t) // in the 11th
		time.Sleep(4 * time.Minute)
		if rec := record(t, srv.s, id); rec.State != lifecycle.Running {
			t.Errorf("it is %s in the 15th minute", rec.Situation())
		}
		w.end(t, srv)
	})
}
