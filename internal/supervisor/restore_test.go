package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func take(t *testing.T, s *Supervisor, id string, req SnapshotRequest) store.Snapshot {
	t.Helper()
	snap, err := s.TakeSnapshot(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func restore(t *testing.T, s *Supervisor, id string, req RestoreRequest) (undo string) {
	t.Helper()
	_, undo, err := s.Restore(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	return undo
}

func wake(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

// wantAllGone waits for the end of snapshots that go by themselves, as what sandboxes
// were before they went back does after theirs.
func (b *bench) wantAllGone(s *Supervisor) {
	b.t.Helper()
	testmode.Eventually(b.t, "the end of all snapshots", func() bool { return len(s.AllSnapshots()) == 0 })
	stopped, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := s.Stop(stopped); err != nil {
		b.t.Fatal(err)
	}
	b.wantNothingLeft()
}

// TestRestore takes a sandbox back, running and paused, over a restart of the
// server, and back again to what it was before. Each time its memory and files are
// those of that moment. One state before is kept, which ends with the sandbox.
func TestRestore(t *testing.T) {
	for name, asleep := range map[string]bool{"running": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s, stop := b.open()
			id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}})
			wantCount(t, s, id, 1, 1)
			put(t, s, id, "before")
			snap := take(t, s, id, SnapshotRequest{Name: "one"})
			wantCount(t, s, id, 2, 1)
			wantCount(t, s, id, 3, 1)
			put(t, s, id, "after")
			generation := int64(1)
			back := func(req RestoreRequest) string {
				t.Helper()
				if asleep {
					if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
				}
				was := record(t, s, id)
				undo := restore(t, s, id, req)
				is := record(t, s, id)
				if is.Situation() != was.Situation() || !is.EndAt.Equal(was.EndAt) {
					t.Errorf("it became %+v, was %+v", is, was)
				}
				if asleep {
					wake(t, s, id)
				}
				generation++
				return undo
			}

			first := back(RestoreRequest{Snapshot: idOf(t, s, "one")})
			wantFiles(t, s, id, "before")
			wantCount(t, s, id, 2, generation)
			if kept, err := s.Snapshot("", first); err != nil || !kept.Undo || kept.Sandbox != id {
				t.Errorf("the state before: %+v, %v", kept, err)
			}
			stop()
			s, _ = b.open()

			second := back(RestoreRequest{}) // what it was before the restore
			wantFiles(t, s, id, "before", "after")
			wantCount(t, s, id, 4, generation)
			if _, err := s.Snapshot("", first); !errdef.Is(err, errdef.NotFound) {
				t.Errorf("the state before the one before: %v", err)
			}
			if undo := back(RestoreRequest{Snapshot: snap.ID, Discard: true}); undo != "" {
				t.Errorf("%q keeps what was to be discarded", undo)
			}
			wantFiles(t, s, id, "before")
			wantCount(t, s, id, 2, generation)
			if all := s.AllSnapshots(); len(all) != 2 || s.Undo(id) != second {
				t.Errorf("snapshots %+v", all)
			}
			if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
				t.Fatal(err)
			}
			pauseAndWake(t, s, id)
			generation++
			wantFiles(t, s, id, "before")
			wantCount(t, s, id, 3, generation)
			back(RestoreRequest{Snapshot: second})
			wantFiles(t, s, id, "before")
			wantCount(t, s, id, 3, generation)
			kill(t, s, id)
			b.wantAllGone(s)
		})
	}
}

// TestRestoreThatIsRefused leaves the sandbox as it was.
func TestRestoreThatIsRefused(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	mine := CreateRequest{Config: store.Config{Key: "k", Limits: store.Limits{DiskMiB: 100}}}
	id, other := create(t, s, mine), create(t, s, mine)
	wantCount(t, s, id, 1, 1)
	files := take(t, s, id, SnapshotRequest{Mode: lifecycle.Filesystem})
	for want, req := range map[string]RestoreRequest{
		"snapshot_not_found":      {Snapshot: "none"},
		"undo_not_found":          {},
		"snapshot_of_other":       {Snapshot: take(t, s, other, SnapshotRequest{}).ID},
		"snapshot_without_memory": {Snapshot: files.ID, Mode: lifecycle.Memory},
	} {
		if _, _, err := s.Restore(t.Context(), id, req); code(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	kill(t, s, other)
	limited(t, s, store.KeyLimits{DiskMiB: 1})
	if _, _, err := s.Restore(t.Context(), id, RestoreRequest{Snapshot: files.ID}); !errdef.Is(err, errdef.Exhausted) {
		t.Errorf("without room for the state before: %v", err)
	}
	wantCount(t, s, id, 2, 1)
	kill(t, s, id)
	if _, _, err := s.Restore(t.Context(), id, RestoreRequest{Snapshot: files.ID, Discard: true}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("of one that has ended: %v", err)
	}
	for _, snap := range s.AllSnapshots() {
		if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
			t.Error(err)
		}
	}
	b.wantNothingLeft()
}

// TestRestoreThatFails: without what it was before, a sandbox does not go back. The
// snapshot may be deleted meanwhile.
func TestRestoreThatFails(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	var atCheckpoint func() error
	b.set(func() { b.checkpoint = func() error { return atCheckpoint() } })
	atCheckpoint = func() error { return nil }
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	snap := take(t, s, id, SnapshotRequest{})
	atCheckpoint = func() error { return errors.New("no space left on device") }
	if _, _, err := s.Restore(t.Context(), id, RestoreRequest{Snapshot: snap.ID}); code(err) != "restore_failed" {
		t.Errorf("%v", err)
	}
	wantCount(t, s, id, 2, 1)
	atCheckpoint = func() error { return s.RemoveSnapshot(context.Background(), snap.ID, "") }
	restore(t, s, id, RestoreRequest{Snapshot: snap.ID})
	wantCount(t, s, id, 2, 2)
	if _, err := s.Snapshot("", snap.ID); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("the snapshot: %v", err)
	}
	kill(t, s, id)
	b.wantAllGone(s)
}

// TestRestoreOfFiles boots a sandbox from the files of a snapshot that has memory
// too. Of a paused one, that is also true of what it was paused with.
func TestRestoreOfFiles(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	put(t, s, id, "before")
	snap := take(t, s, id, SnapshotRequest{})
	put(t, s, id, "after")
	restore(t, s, id, RestoreRequest{Snapshot: snap.ID, Mode: lifecycle.Filesystem})
	wantFiles(t, s, id, "before")
	wantCount(t, s, id, 1, 2)
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	asleep := take(t, s, id, SnapshotRequest{})
	undo := restore(t, s, id, RestoreRequest{Snapshot: asleep.ID, Mode: lifecycle.Filesystem})
	stop()
	s, _ = b.open()
	wake(t, s, id)
	wantCount(t, s, id, 1, 3)
	pauseAndWake(t, s, id) // which drops the checkpoint that has the files alone
	wantCount(t, s, id, 2, 4)
	restore(t, s, id, RestoreRequest{Snapshot: asleep.ID, Discard: true})
	wantCount(t, s, id, 2, 5)
	restore(t, s, id, RestoreRequest{Snapshot: undo, Discard: true})
	wantCount(t, s, id, 2, 6)
	for _, of := range []string{snap.ID, asleep.ID} {
		if err := s.RemoveSnapshot(t.Context(), of, ""); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, s, id)
	b.wantAllGone(s)
}

// TestRestoreToTheCheckpoint takes a paused sandbox back to a snapshot of the very
// checkpoint that it has.
func TestRestoreToTheCheckpoint(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	snap := take(t, s, id, SnapshotRequest{})
	undo := restore(t, s, id, RestoreRequest{Snapshot: snap.ID})
	for _, ref := range []string{snap.ID, undo} {
		if err := s.RemoveSnapshot(t.Context(), ref, ""); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	s, _ = b.open()
	wake(t, s, id)
	wantCount(t, s, id, 2, 2)
	kill(t, s, id)
	b.wantNothingLeft()
}

// TestRestoreOutlivesTheSnapshot: what a sandbox went back to is its own, also when
// nothing of what it was before is kept.
func TestRestoreOutlivesTheSnapshot(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	put(t, s, id, "before")
	snap := take(t, s, id, SnapshotRequest{})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	restore(t, s, id, RestoreRequest{Snapshot: snap.ID, Discard: true})
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	wake(t, s, id)
	wantCount(t, s, id, 2, 2)
	wantFiles(t, s, id, "before")
	kill(t, s, id)
	b.wantNothingLeft()
}

// TestLayerOfAnother: a layer outlives the sandbox that it is named after, when a
// snapshot alone needs it, also when the server was restarted.
func TestLayerOfAnother(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	first := take(t, s, id, SnapshotRequest{})
	wantCount(t, s, id, 1, 1)
	put(t, s, id, "before")
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	second := take(t, s, id, SnapshotRequest{})
	restore(t, s, id, RestoreRequest{Snapshot: first.ID, Discard: true})
	stop()
	s, _ = b.open()
	kill(t, s, id)
	child := from(t, s, second.ID)
	wantFiles(t, s, child, "before")
	wantCount(t, s, child, 2, 1)
	for _, snap := range s.AllSnapshots() {
		if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
			t.Error(err)
		}
	}
	kill(t, s, child)
	b.wantNothingLeft()
}

// TestStartsAndEndsTogether: sandboxes that start from a snapshot while it is removed have
// all of it, or are refused, and of those that share it and end at once the last removes
// it.
func TestStartsAndEndsTogether(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	put(t, s, id, "before")
	snap := take(t, s, id, SnapshotRequest{})
	all := []string{id, from(t, s, snap.ID)}
	made := make([]string, 6)
	var work sync.WaitGroup
	for i := range made {
		work.Go(func() {
			if i == len(made)/2 {
				if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
					t.Error(err)
				}
				return
			}
			sb, err := s.Create(t.Context(), CreateRequest{Snapshot: snap.ID})
			if err != nil && !errdef.Is(err, errdef.NotFound) {
				t.Error(err)
			}
			made[i] = sb.ID
		})
	}
	work.Wait()
	for _, id := range made {
		if id == "" {
			continue
		}
		all = append(all, id)
		wantFiles(t, s, id, "before")
	}
	pauseAndWake(t, s, all[1])
	for _, id := range all {
		work.Go(func() { kill(t, s, id) })
	}
	work.Wait()
	b.wantAllGone(s) // what is left to the last goes behind its end
}

// ask wakes a sandbox, if it sleeps, and returns what its program counts to.
func (srv *server) ask(t *testing.T, id string) int64 {
	t.Helper()
	lease, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	n, err := askThrough(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// interruption is what happens to a server at one step of a restore.
type interruption struct {
	fault           string // crash, error, or lost: the step succeeds, and its answer is lost
	asleep, discard bool
	step            int64
}

// TestInterruptedRestore has a server crash, or fail, at every step of a restore at
// which something is stored or changes outside. Afterwards the sandbox is what it was
// before, or what the snapshot is with what it was before kept; the answer is true;
// and nothing is left of either when both are removed.
func TestInterruptedRestore(t *testing.T) {
	for _, i := range []interruption{
		{fault: "crash"}, {fault: "crash", asleep: true}, {fault: "crash", discard: true}, {fault: "crash", asleep: true, discard: true},
		{fault: "error"}, {fault: "error", asleep: true}, {fault: "error", discard: true}, {fault: "error", asleep: true, discard: true},
		{fault: "lost"}, {fault: "lost", asleep: true}, {fault: "lost", discard: true}, {fault: "lost", asleep: true, discard: true},
	} {
		t.Run(fmt.Sprintf("%s, asleep %v, discard %v", i.fault, i.asleep, i.discard), func(t *testing.T) {
			back := 0
			for i.step = 1; ; i.step++ {
				w := newWorld(t)
				struck, restored := false, false
				synctest.Test(t, func(t *testing.T) { struck, restored = i.try(t, w) })
				if t.Failed() {
					t.Fatalf("at step %d", i.step)
				}
				if restored {
					back++
				}
				if !struck {
					break
				}
			}
			t.Logf("%d steps, restored after %d", i.step-1, back)
			if i.step < 2 || back == 0 {
				t.Errorf("%d steps, restored after %d", i.step-1, back)
			}
		})
	}
}

// try carries out a restore with one interruption.
func (i interruption) try(t *testing.T, w *world) (struck, restored bool) {
	var armed atomic.Bool
	var steps atomic.Int64
	strike := func(srv *server) error {
		if !armed.Load() || steps.Add(1) != i.step {
			return nil
		}
		if i.fault == "crash" {
			srv.crash()
			return errDead
		}
		return errors.New("a fault")
	}
	w.meddle = func(_ context.Context, srv *server, _ point, _ string) error {
		if i.fault == "lost" {
			return nil
		}
		return strike(srv)
	}
	w.hooks = func(srv *server) memstore.Hooks {
		var h memstore.Hooks
		if i.fault != "lost" {
			h.Before = func(memstore.Commit) error { return strike(srv) }
		}
		if i.fault != "error" {
			h.After = func(memstore.Commit) error { return strike(srv) }
		}
		return h
	}
	srv := w.mustOpen(t)
	id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
	srv.ask(t, id)
	snap := take(t, srv.s, id, SnapshotRequest{})
	srv.ask(t, id)
	srv.ask(t, id)
	if i.asleep {
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	armed.Store(true)
	_, _, err := srv.s.Restore(srv.ctx, id, RestoreRequest{Snapshot: snap.ID, Discard: i.discard})
	time.Sleep(time.Minute) // what follows, and what is tried again
	armed.Store(false)
	struck = steps.Load() >= i.step
	srv.crash() // what is stored must be what was said
	_ = srv.s.Stop(context.Background())
	srv = w.mustOpen(t)
	time.Sleep(time.Minute)

	restored = record(t, srv.s, id).Restored != nil
	if err == nil && !restored {
		t.Error("it did not go back, and the answer was that it did")
	}
	if err != nil && restored && i.fault != "crash" && !store.IsUnlearned(err) {
		t.Errorf("it went back, and the answer was %v", err)
	}
	if got, want := srv.s.Undo(id) != "", restored && !i.discard; got != want {
		t.Errorf("restored %v, and what it was before is kept: %v", restored, got)
	}
	want := int64(4)
	if restored {
		want = 2
	}
	if n := srv.ask(t, id); n != want {
		t.Errorf("it counts to %d, want %d", n, want)
	}
	if restored && !i.discard {
		restore(t, srv.s, id, RestoreRequest{Discard: true})
		if n := srv.ask(t, id); n != 4 {
			t.Errorf("undone, it counts to %d, want 4", n)
		}
	}
	if err := srv.s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Error(err)
	}
	kill(t, srv.s, id)
	time.Sleep(time.Minute)
	if all := srv.s.AllSnapshots(); len(all) != 0 {
		t.Errorf("snapshots left: %+v", all)
	}
	for _, dir := range subdirs {
		entries, err := os.ReadDir(filepath.Join(srv.dir, dir))
		if err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
	w.end(t, srv)
	return struck, restored
}
