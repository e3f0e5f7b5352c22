package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// TestUnlearnedCommits has nobody know of one commit in the life of a sandbox whether it has
// happened, each in turn. Afterwards the log tells of one
// life: what has happened has happened once, and goes on by itself. Time is virtual.
func TestUnlearnedCommits(t *testing.T) {
	for _, happened := range []bool{true, false} {
		t.Run(fmt.Sprintf("happened %t", happened), func(t *testing.T) {
			n := int64(1)
			for struck := true; struck; n++ {
				w := newWorld(t)
				synctest.Test(t, func(t *testing.T) { struck = liveUnlearned(t, w, n, happened) })
				if t.Failed() {
					t.Fatalf("at commit %d", n)
				}
			}
			if n < 8 {
				t.Errorf("a life has %d commits", n)
			}
		})
	}
}

func liveUnlearned(t *testing.T, w *world, at int64, happened bool) (struck bool) {
	var commits atomic.Int64
	var away, done atomic.Bool
	errNone := errors.New("no answer")
	answer := func(memstore.Commit) error {
		switch {
		case done.Load(): // also of what is tried again
		case commits.Add(1) == at:
			done.Store(true)
			away.Store(!happened) // else what is refused could still be told from what is not
			time.AfterFunc(5*time.Second, func() { away.Store(false) })
			return store.ErrUnlearned(errNone)
		}
		return nil
	}
	w.hooks = func(*server) memstore.Hooks {
		h := memstore.Hooks{Before: func(c memstore.Commit) error {
			if away.Load() {
				return errNone
			}
			if !happened && c.Before.ID != "" {
				return answer(c)
			}
			return nil
		}}
		if happened {
			h.After = func(c memstore.Commit) error {
				if c.Before.ID == "" { // of a create, TestCreateUnlearned has
					return nil
				}
				return answer(c)
			}
		}
		return h
	}
	srv := w.mustOpen(t)
	id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
	// Each is asked for once: what nobody knows of goes on without that.
	settled := func() lifecycle.Record {
		time.Sleep(time.Minute)
		rec := record(t, srv.s, id)
		if rec.Op != nil {
			t.Errorf("after a minute it is %s", rec.Situation())
		}
		return rec
	}
	ask := func(do func(ctx context.Context) error, is lifecycle.State) {
		t.Helper()
		err := do(t.Context())
		if got := settled().State; got != is && (err == nil || happened && store.IsUnlearned(err)) {
			t.Errorf("it is %s, want %s; the answer was %v", got, is, err)
		}
	}
	ask(func(ctx context.Context) error {
		_, err := srv.s.SetTimeout(ctx, id, 2*time.Hour, "")
		return err
	}, lifecycle.Running)
	ask(func(ctx context.Context) error {
		_, err := srv.s.TakeSnapshot(ctx, id, SnapshotRequest{Key: "k", Name: "running"})
		return err
	}, lifecycle.Running)
	ask(func(ctx context.Context) error { return srv.s.Pause(ctx, id, PauseRequest{}) }, lifecycle.Paused)
	ask(func(ctx context.Context) error {
		_, err := srv.s.TakeSnapshot(ctx, id, SnapshotRequest{Key: "k", Name: "asleep"})
		return err
	}, lifecycle.Paused)
	ask(func(ctx context.Context) error {
		lease, err := srv.s.Acquire(ctx, id, Access{Port: counterPort})
		if err == nil {
			lease.Release()
		}
		return err
	}, lifecycle.Running)
	if n := srv.ask(t, id); n != 1 {
		t.Errorf("it counts to %d", n)
	}
	ask(func(ctx context.Context) error {
		of, err := srv.s.Snapshot("k", "running")
		if err != nil {
			t.Fatal(err)
		}
		_, undo, err := srv.s.Restore(ctx, id, RestoreRequest{Snapshot: of.ID})
		time.Sleep(time.Minute)
		if err == nil && srv.s.Undo(id) != undo {
			t.Errorf("undone by %q, want %q", srv.s.Undo(id), undo)
		}
		if names := snapshotNames(srv.s); len(names) != 2 {
			t.Errorf("the snapshots are %q", names)
		}
		return err
	}, lifecycle.Running)
	ask(func(ctx context.Context) error { return srv.s.Kill(ctx, id, "") }, lifecycle.Terminated)
	if record(t, srv.s, id).State != lifecycle.Terminated {
		kill(t, srv.s, id)
		settled()
	}
	var log []lifecycle.EntryType
	for _, e := range allEvents(t, srv.s.o.Store) {
		if len(log) > 0 && log[len(log)-1] == e.Type {
			t.Errorf("%s is logged twice", e.Type)
		}
		log = append(log, e.Type)
	}
	for _, kind := range []lifecycle.EntryType{lifecycle.EntryCreated, lifecycle.EntryRunning, lifecycle.EntryTerminated} {
		if n := len(slices.DeleteFunc(slices.Clone(log), func(x lifecycle.EntryType) bool { return x != kind })); n != 1 {
			t.Errorf("%s is logged %d times: %v", kind, n, log)
		}
	}
	running, err := w.machine.Driver().List(context.Background())
	if err != nil || len(running) > 0 {
		t.Errorf("%v runs, %v", running, err)
	}
	w.end(t, srv)
	return done.Load()
}

func snapshotNames(s *Supervisor) (names []string) {
	all, _ := s.Snapshots()
	for _, snap := range all {
		if !snap.Undo {
			names = append(names, snap.Name)
		}
	}
	return names
}

// TestStopInDoubt: a server stops while it is not known whether a pause, a snapshot or a wake has
// happened. What that has made is there for the next one.
func TestStopInDoubt(t *testing.T) {
	for what, c := range map[string]struct {
		asleep bool
		doubt  lifecycle.EntryType
		do     func(ctx context.Context, s *Supervisor, id string) error
	}{
		"pause": {false, lifecycle.EntryPaused, func(ctx context.Context, s *Supervisor, id string) error { return s.Pause(ctx, id, PauseRequest{}) }},
		"snapshot": {false, lifecycle.EntrySnapshotted, func(ctx context.Context, s *Supervisor, id string) error {
			_, err := s.TakeSnapshot(ctx, id, SnapshotRequest{Key: "k", Name: "n"})
			return err
		}},
		"wake": {true, lifecycle.EntryResumed, func(ctx context.Context, s *Supervisor, id string) error {
			_, err := s.Connect(ctx, id, WakeRequest{Timeout: time.Hour})
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				var armed, away atomic.Bool
				errNone := errors.New("no answer")
				w.hooks = func(*server) memstore.Hooks {
					return memstore.Hooks{
						Before: func(memstore.Commit) error {
							if away.Load() {
								return errNone
							}
							return nil
						},
						After: func(did memstore.Commit) error {
							if armed.Load() && slices.ContainsFunc(did.Entries, func(e lifecycle.Entry) bool { return e.Type == c.doubt }) {
								away.Store(true)
								return errNone
							}
							return nil
						},
					}
				}
				srv := w.mustOpen(t)
				id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
				srv.ask(t, id)
				if c.asleep {
					if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
				}
				armed.Store(true)
				told := make(chan error, 1)
				go func() { told <- c.do(srv.ctx, srv.s, id) }()
				time.Sleep(storeRetry / 2)
				if !away.Load() {
					t.Fatal("nothing is in doubt")
				}
				_ = srv.s.Stop(context.Background())
				srv.crash()
				<-told
				armed.Store(false)
				away.Store(false)
				srv = w.mustOpen(t)
				time.Sleep(time.Minute)
				if n := srv.ask(t, id); n != 2 {
					t.Errorf("it counts to %d, want 2", n)
				}
				if snap, err := srv.s.Snapshot("k", "n"); err == nil {
					made, err := srv.s.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}, Config: store.Config{Key: "k"}})
					if err != nil {
						t.Fatal(err)
					}
					if n := srv.ask(t, made.ID); n != 2 {
						t.Errorf("from the snapshot it counts to %d, want 2", n)
					}
				} else if c.doubt == lifecycle.EntrySnapshotted {
					t.Error(err)
				}
				w.end(t, srv)
			})
		})
	}
}
