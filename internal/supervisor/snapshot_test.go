package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// put writes a file into a sandbox that runs.
func put(t *testing.T, s *Supervisor, id, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.rootfs(sweep.RuntimeID(id, record(t, s, id).Launch)), name), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantFiles holds which of the files a running sandbox has.
func wantFiles(t *testing.T, s *Supervisor, id string, want ...string) {
	t.Helper()
	var got []string
	for _, name := range []string{"before", "after", "own"} {
		if _, err := os.Stat(filepath.Join(s.rootfs(sweep.RuntimeID(id, record(t, s, id).Launch)), name)); err == nil {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", id, got, want)
	}
}

func from(t *testing.T, s *Supervisor, ref string) string {
	t.Helper()
	sb, err := s.Create(t.Context(), CreateRequest{Snapshot: ref, Settings: lifecycle.Settings{Timeout: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

func pauseAndWake(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

func kill(t *testing.T, s *Supervisor, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.Kill(t.Context(), id, ""); err != nil {
			t.Error(err)
		}
	}
}

// TestSnapshotThatIsRefused is told why by code: a name that the store finds taken, when
// the capture of one that runs is done, is so whenever it is asked for.
func TestSnapshotThatIsRefused(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	other := create(t, s, CreateRequest{})
	b.set(func() {
		b.checkpoint = func() error { // another server on the same store takes the name
			sb, err := s.Find(t.Context(), other)
			if err != nil {
				return err
			}
			return s.o.Store.CommitSnapshot(t.Context(), store.Snapshot{ID: "s00000000000000000001", Name: "mine", Sandbox: other, CreatedAt: time.Now().UTC()}, sb, nil)
		}
	})
	id := create(t, s, CreateRequest{})
	_, err := s.TakeSnapshot(t.Context(), id, SnapshotRequest{Name: "mine"})
	hasCode(t, "a snapshot of a name that was taken meanwhile", err, "snapshot_exists", "")
	if !errdef.Is(err, errdef.Exists) || !strings.Contains(err.Error(), "it runs on") {
		t.Errorf("%v", err)
	}
	wantCount(t, s, id, 1, 1)
}

// TestSnapshot takes snapshots of a sandbox that runs, with and without a pause
// before, and of one that sleeps. Each outlives its source and a restart, starts
// several sandboxes that are independent of each other, and goes without a trace.
func TestSnapshot(t *testing.T) {
	for name, prepare := range map[string]func(s *Supervisor, id string){
		"running":          func(*Supervisor, string) {},
		"running, resumed": func(s *Supervisor, id string) { pauseAndWake(t, s, id) },
		"paused": func(s *Supervisor, id string) {
			if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s, stop := b.open()
			source := create(t, s, CreateRequest{Config: store.Config{Env: map[string]string{"A": "1"}}})
			wantCount(t, s, source, 1, 1)
			put(t, s, source, "before")
			prepare(s, source)
			was := record(t, s, source)
			snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: "one"})
			if err != nil {
				t.Fatal(err)
			}
			is := record(t, s, source)
			if is.Situation() != was.Situation() || is.Generation != was.Generation || !is.EndAt.Equal(was.EndAt) || is.Launch != was.Launch {
				t.Errorf("the source became %+v, was %+v", is, was)
			}
			if _, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: "one"}); code(err) != "snapshot_exists" {
				t.Errorf("a second one of that name: %v", err)
			}
			if is.State == lifecycle.Running {
				wantCount(t, s, source, 2, was.Generation)
				put(t, s, source, "after")
			}

			first := from(t, s, idOf(t, s, "one"))
			wantCount(t, s, first, 2, 1)
			wantFiles(t, s, first, "before")
			put(t, s, first, "own")
			pauseAndWake(t, s, first)
			wantCount(t, s, first, 3, 2)
			wantFiles(t, s, first, "before", "own")
			kill(t, s, source)

			second := from(t, s, snap.ID)
			wantCount(t, s, second, 2, 1)
			wantFiles(t, s, second, "before")
			if env := func() string { sb, _ := s.Get(t.Context(), second); return sb.Config.Env["A"] }(); env != "1" {
				t.Errorf("A is %q in its environment", env)
			}
			kill(t, s, first)
			stop()

			s, _ = b.open()
			if got, err := s.Snapshot("", "one"); err != nil || got.ID != snap.ID || got.Sandbox != source {
				t.Errorf("after a restart: %+v, %v", got, err)
			}
			third := from(t, s, snap.ID)
			wantCount(t, s, third, 2, 1)
			wantCount(t, s, second, 3, 1)
			grandchild, err := s.TakeSnapshot(t.Context(), third, SnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.RemoveSnapshot(t.Context(), idOf(t, s, "one"), ""); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Create(t.Context(), CreateRequest{Snapshot: snap.ID}); !errdef.Is(err, errdef.NotFound) {
				t.Errorf("create from a snapshot that is gone: %v", err)
			}
			pauseAndWake(t, s, second)
			wantCount(t, s, second, 4, 2)
			wantFiles(t, s, second, "before")
			kill(t, s, second, third)
			fourth := from(t, s, grandchild.ID)
			wantCount(t, s, fourth, 3, 1)
			wantFiles(t, s, fourth, "before")
			if err := s.RemoveSnapshot(t.Context(), grandchild.ID, ""); err != nil {
				t.Fatal(err)
			}
			kill(t, s, fourth)
			b.wantNothingLeft()
		})
	}
}

// TestLineage: a sandbox knows what it comes from, over forks and snapshots, a
// restart, and its end.
func TestLineage(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	source := create(t, s, CreateRequest{})
	first := take(t, s, source, SnapshotRequest{Name: "one"})
	child := from(t, s, idOf(t, s, "one"))
	pauseAndWake(t, s, child)
	forked, err := s.Fork(t.Context(), child, ForkRequest{Count: 1})
	if err != nil || forked[0].Err != nil {
		t.Fatal(err, forked)
	}
	grandchild := forked[0].Sandbox.ID
	own := take(t, s, grandchild, SnapshotRequest{})
	if _, _, err := s.Restore(t.Context(), grandchild, RestoreRequest{Snapshot: own.ID, Discard: true}); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = b.open()
	kill(t, s, grandchild)
	x, err := s.Explain(t.Context(), grandchild)
	if err != nil {
		t.Fatal(err)
	}
	got := x.Sandbox.Config.Lineage
	if len(got) != 2 || got[0].Sandbox != child || got[0].Generation != 2 || got[0].Snapshot != "" ||
		got[1].Sandbox != source || got[1].Generation != 1 || got[1].Snapshot != first.ID || got[1].Name != "one" || !got[1].At.Equal(first.CreatedAt) {
		t.Errorf("it comes from %+v", got)
	}
	if r := x.Sandbox.Record.Restored; r == nil || r.Snapshot != own.ID || r.At.IsZero() {
		t.Errorf("it went back to %+v", r)
	}
	kill(t, s, source, child)
}

// TestFork has a sandbox go on as several, which share nothing but the past.
func TestFork(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	source := create(t, s, CreateRequest{Config: store.Config{Metadata: map[string]string{"of": "me"}}, Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
	wantCount(t, s, source, 1, 1)
	put(t, s, source, "before")
	children, err := s.Fork(t.Context(), source, ForkRequest{Count: quota.MaxLaunches + 2})
	if err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, source, 2, 1)
	var ids []string
	for i, c := range children {
		if c.Err != nil {
			t.Fatalf("child %d: %v", i, c.Err)
		}
		ids = append(ids, c.Sandbox.ID)
		if set := c.Sandbox.Record.Settings; !set.AutoResume || set.Timeout != time.Hour || c.Sandbox.Config.Metadata["of"] != "me" {
			t.Errorf("child %d is %+v", i, c.Sandbox)
		}
		for range i {
			_, _, _ = count(t.Context(), s, c.Sandbox.ID)
		}
		wantCount(t, s, c.Sandbox.ID, int64(i)+2, 1)
	}
	if all := s.AllSnapshots(); len(all) > 0 {
		t.Errorf("snapshots left: %+v", all)
	}
	kill(t, s, source)
	for i, id := range ids {
		pauseAndWake(t, s, id)
		wantCount(t, s, id, int64(i)+3, 2)
		wantFiles(t, s, id, "before")
	}
	events, err := s.o.Store.LastEvents(t.Context(), source, 20)
	if err != nil || !slices.ContainsFunc(events, func(e store.Event) bool {
		return e.Type == lifecycle.EntryForked && strings.HasPrefix(e.Detail, "18 of 18: ")
	}) {
		t.Errorf("events %+v, %v", events, err)
	}
	if _, err := s.Fork(t.Context(), ids[0], ForkRequest{Count: 101}); code(err) != "fork_count_invalid" {
		t.Errorf("101 children: %v", err)
	}
	kill(t, s, ids...)
	b.wantNothingLeft()
}

// TestForkAsleep: a child that is to sleep never runs before it is resumed, also over
// a restart of the server. Its first run goes on from the memory of the source.
func TestForkAsleep(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	source := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
	wantCount(t, s, source, 1, 1)
	put(t, s, source, "before")
	before := b.started()
	children, err := s.Fork(t.Context(), source, ForkRequest{Count: 2, Asleep: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		if c.Err != nil || c.Sandbox.Record.State != lifecycle.Paused {
			t.Fatalf("a child is %s, %v", c.Sandbox.Record.State, c.Err)
		}
	}
	if n := b.started() - before; n != 0 {
		t.Errorf("%d runtimes were started", n)
	}
	kill(t, s, source)
	stop()
	s, _ = b.open()
	for i, c := range children {
		wantCount(t, s, c.Sandbox.ID, 2, 2)
		wantFiles(t, s, c.Sandbox.ID, "before")
		if i == 0 {
			pauseAndWake(t, s, c.Sandbox.ID)
			wantCount(t, s, c.Sandbox.ID, 3, 3)
		}
		kill(t, s, c.Sandbox.ID)
	}
	b.wantNothingLeft()
}

// TestSnapshotFixesOptions: what memory needs cannot be asked for otherwise.
func TestSnapshotFixesOptions(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	source := create(t, s, CreateRequest{})
	snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	limits := snap.Config.Limits
	for name, c := range map[string]store.Config{
		"memory":  {Limits: store.Limits{MemoryMiB: limits.MemoryMiB + 64}},
		"CPUs":    {Limits: store.Limits{CPUs: limits.CPUs + 1}},
		"volumes": {Volumes: []store.VolumeMount{{Name: "x", Path: "/x"}}},
	} {
		if _, err := s.Create(t.Context(), CreateRequest{Template: snap.ID, Config: c}); code(err) != "snapshot_fixes_option" {
			t.Errorf("other %s: %v", name, err)
		}
	}
	for _, name := range []string{"Upper", "x:default", "default/x", "-x", "a b", strings.Repeat("x", 129), snap.ID} {
		if _, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: name}); code(err) != "snapshot_name_invalid" {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	kill(t, s, source)
	if _, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("of one that has ended: %v", err)
	}
	b.wantNothingLeft()
}

// TestSnapshotThatFails leaves the sandbox as it was, and nothing behind.
func TestSnapshotThatFails(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	failing := true
	b.set(func() {
		b.checkpoint = func() error {
			if failing {
				return errors.New("no space left on device")
			}
			return nil
		}
	})
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	if _, err := s.TakeSnapshot(t.Context(), id, SnapshotRequest{Name: "x"}); code(err) != "snapshot_failed" {
		t.Errorf("%v", err)
	}
	wantCount(t, s, id, 2, 1)
	b.set(func() { failing = false })
	if _, err := s.TakeSnapshot(t.Context(), id, SnapshotRequest{Name: "x"}); err != nil { // the name is free
		t.Error(err)
	}
	if err := s.RemoveSnapshot(context.Background(), idOf(t, s, "x"), ""); err != nil {
		t.Error(err)
	}
	kill(t, s, id)
	b.wantNothingLeft()
}

// TestChildThatDies: one whose runtime is lost before its first pause goes back to
// the snapshot, also when that is deleted and its source has ended.
func TestChildThatDies(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	source := create(t, s, CreateRequest{})
	wantCount(t, s, source, 1, 1)
	snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	child := from(t, s, snap.ID)
	wantCount(t, s, child, 2, 1)
	kill(t, s, source)
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	b.crash(record(t, s, child), child)
	testmode.Eventually(t, "the loss", func() bool { return record(t, s, child).State == lifecycle.Paused })
	if _, err := s.Connect(t.Context(), child, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, child, 2, 2)
	kill(t, s, child)
	b.wantNothingLeft()
}

// TestSnapshotOfFiles is of a sandbox that was paused without its memory.
func TestSnapshotOfFiles(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	source := create(t, s, CreateRequest{})
	wantCount(t, s, source, 1, 1)
	put(t, s, source, "before")
	if err := s.Pause(t.Context(), source, PauseRequest{Mode: lifecycle.Filesystem}); err != nil {
		t.Fatal(err)
	}
	snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{})
	if err != nil || snap.Checkpoint.Mode != lifecycle.Filesystem {
		t.Fatalf("%+v, %v", snap, err)
	}
	// Without memory, the limits are for the sandbox to say.
	sb, err := s.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: lifecycle.Settings{Timeout: time.Hour}, Config: store.Config{Limits: store.Limits{MemoryMiB: 1024}}})
	if err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, sb.ID, 1, 1)
	wantFiles(t, s, sb.ID, "before")
	kill(t, s, source, sb.ID)
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	b.wantNothingLeft()
}

// TestSnapshotsCountForTheKey: a thousand snapshots of one sandbox would fill the
// disk, and its own limit is that of one. Each counts for what it may come to keep,
// also over a restart, and those of forks count for nothing.
func TestSnapshotsCountForTheKey(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	bound := func() { limited(t, s, store.KeyLimits{DiskMiB: 1600}) }
	bound()
	req := of("k", 200)
	req.Config.Limits.DiskMiB = 400
	source := create(t, s, req)
	take := func(name string) error {
		_, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: name, Key: "k"})
		return err
	}
	uses := func(when string, want int) {
		t.Helper()
		if got := s.KeyUse("k").DiskMiB; got != want {
			t.Errorf("%s: the key has %d MiB, want %d", when, got, want)
		}
	}
	if err := take("one"); err != nil {
		t.Fatal(err)
	}
	uses("with a snapshot", 1000)
	if err := s.Pause(t.Context(), source, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := take("two"); err != nil {
		t.Fatal(err)
	}
	wantLimit(t, take("three"), "maxDiskMiB", 1600, 600, 1600)
	if err := take("two"); code(err) != "snapshot_exists" {
		t.Errorf("a name that is taken: %v", err)
	}
	uses("after refusals", 1600)
	stop()
	s, _ = b.open()
	bound()
	uses("after a restart", 1600)
	wantLimit(t, take("three"), "maxDiskMiB", 1600, 600, 1600)
	if err := s.RemoveSnapshot(t.Context(), idOf(t, s, "one"), ""); err != nil {
		t.Fatal(err)
	}
	uses("with one removed", 1000)
	children, err := s.Fork(t.Context(), source, ForkRequest{Count: 1, Key: "k"})
	if err != nil || children[0].Err != nil {
		t.Fatal(children, err)
	}
	uses("with a child", 1400)
	kill(t, s, source, children[0].Sandbox.ID)
	uses("with a snapshot alone", 600)
	if err := s.RemoveSnapshot(t.Context(), idOf(t, s, "two"), ""); err != nil {
		t.Fatal(err)
	}
	uses("in the end", 0)
	b.wantNothingLeft()
}

// TestKillDuringASnapshot holds the capture up: the sandbox goes on to serve, a
// pause waits, and a kill does not.
func TestKillDuringASnapshot(t *testing.T) {
	b := newBench(t)
	captures, goOn := make(chan struct{}), make(chan struct{})
	b.set(func() {
		b.checkpoint = func() error {
			close(captures)
			<-goOn
			return nil
		}
	})
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	taken, paused := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.TakeSnapshot(t.Context(), id, SnapshotRequest{Name: "x"})
		taken <- err
	}()
	<-captures
	if at := record(t, s, id).Situation(); at != lifecycle.Situation(lifecycle.Snapshotting) {
		t.Errorf("it is %s", at)
	}
	go func() { paused <- s.Pause(t.Context(), id, PauseRequest{}) }()
	lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort})
	if err != nil {
		t.Fatalf("an access: %v", err)
	}
	lease.Release()
	killed := make(chan error, 1)
	go func() { killed <- s.Kill(t.Context(), id, "") }()
	testmode.Eventually(t, "the end", func() bool { return record(t, s, id).State == lifecycle.Terminated })
	close(goOn)
	for what, answer := range map[string]chan error{"snapshot": taken, "pause": paused} {
		if err := <-answer; !errdef.Is(err, errdef.NotFound) {
			t.Errorf("the %s: %v", what, err)
		}
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
	if all := s.AllSnapshots(); len(all) > 0 {
		t.Errorf("snapshots: %+v", all)
	}
	b.wantNothingLeft()
}

// TestSnapshotReplaces has a name pass from one snapshot to the next: what nobody
// needs of the first is gone, and what started from it goes on.
func TestSnapshotReplaces(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	source := create(t, s, CreateRequest{})
	take := func(replace string) store.Snapshot {
		t.Helper()
		snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: "one", Replace: replace})
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	put(t, s, source, "before")
	first := take("")
	child := from(t, s, idOf(t, s, "one"))
	put(t, s, source, "after")
	second := take(first.ID)
	if _, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Name: "one", Replace: first.ID}); code(err) != "snapshot_exists" {
		t.Errorf("in place of one that has not the name any more: %v", err)
	}
	if got, err := s.Snapshot("", "one"); err != nil || got.ID != second.ID || got.Replaces != first.ID {
		t.Errorf("the name is of %+v, %v", got, err)
	}
	if _, err := s.Snapshot("", first.ID); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("the one replaced: %v", err)
	}
	wantFiles(t, s, from(t, s, idOf(t, s, "one")), "before", "after")
	pauseAndWake(t, s, child)
	wantFiles(t, s, child, "before")
	stop()

	s, _ = b.open()
	if all := s.AllSnapshots(); len(all) != 1 || all[0].ID != second.ID {
		t.Errorf("after a restart: %+v", all)
	}
	third := take(second.ID) // of one that nothing has started from since
	if err := s.RemoveSnapshot(t.Context(), third.ID, ""); err != nil {
		t.Fatal(err)
	}
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range all {
		kill(t, s, sb.ID)
	}
	b.wantNothingLeft()
}

// TestSnapshotWithoutMemory has sandboxes boot from the files alone, of one that runs
// and of one that sleeps.
func TestSnapshotWithoutMemory(t *testing.T) {
	for name, prepare := range map[string]func(s *Supervisor, id string){
		"running": func(*Supervisor, string) {},
		"paused": func(s *Supervisor, id string) {
			if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s, stop := b.open()
			source := create(t, s, CreateRequest{})
			wantCount(t, s, source, 1, 1)
			put(t, s, source, "before")
			prepare(s, source)
			snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Mode: lifecycle.Filesystem})
			if err != nil || snap.Checkpoint.Mode != lifecycle.Filesystem {
				t.Fatalf("%+v, %v", snap, err)
			}
			if _, err := s.Connect(t.Context(), source, WakeRequest{Timeout: time.Hour}); err != nil {
				t.Fatal(err)
			}
			wantCount(t, s, source, 2, record(t, s, source).Generation)
			kill(t, s, source)
			stop()

			s, _ = b.open()
			child := from(t, s, snap.ID)
			wantCount(t, s, child, 1, 1) // it has booted
			wantFiles(t, s, child, "before")
			pauseAndWake(t, s, child)
			wantCount(t, s, child, 2, 2)
			kill(t, s, child)
			if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
				t.Fatal(err)
			}
			b.wantNothingLeft()
		})
	}
}

// TestImageOfAnother: a sandbox that started from the files of another, which sleeps,
// does not take its memory image away, also when the server was restarted.
func TestImageOfAnother(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	source := create(t, s, CreateRequest{})
	wantCount(t, s, source, 1, 1)
	if err := s.Pause(t.Context(), source, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	snap, err := s.TakeSnapshot(t.Context(), source, SnapshotRequest{Mode: lifecycle.Filesystem})
	if err != nil {
		t.Fatal(err)
	}
	children := []string{from(t, s, snap.ID), from(t, s, snap.ID)}
	if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	stop()
	s, _ = b.open()
	pauseAndWake(t, s, children[0])
	kill(t, s, children...)
	if _, err := s.Connect(t.Context(), source, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, source, 2, 2)
	kill(t, s, source)
	b.wantNothingLeft()
}

// disk returns how many layers and images there are.
func (b *bench) disk() (n int) {
	b.t.Helper()
	for _, dir := range []string{"layers", "images"} {
		entries, err := os.ReadDir(filepath.Join(b.dir, dir))
		if err != nil {
			b.t.Fatal(err)
		}
		n += len(entries)
	}
	return n
}

// TestSnapshotsKeepLast: many snapshots in a row, of which the last three are
// kept, take no more of the disk than the first three. One that is pinned stays, and
// so do those of other sandboxes and keys, and one that was taken to stay.
func TestSnapshotsKeepLast(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id, other := create(t, s, CreateRequest{}), create(t, s, CreateRequest{})
	keep := map[string]bool{}
	for _, req := range []SnapshotRequest{{Pinned: true, KeepLast: 9}, {Key: "another", KeepLast: 9}, {}} {
		keep[take(t, s, id, req).ID] = true
	}
	keep[take(t, s, other, SnapshotRequest{KeepLast: 9}).ID] = true
	var last []string
	most := 0
	rounds := testmode.Choose(30, 100)
	for i := range rounds {
		put(t, s, id, fmt.Sprint(i))
		if i == rounds/2 {
			stop()
			s, _ = b.open()
		}
		last = append(last, take(t, s, id, SnapshotRequest{KeepLast: 3}).ID)
		if i < 10 {
			most = max(most, b.disk())
		} else if n := b.disk(); n > most+2 { // of one that is being removed
			t.Fatalf("%d layers and images after snapshot %d, and at most %d after the first ones", n, i, most)
		}
	}
	for _, id := range last[len(last)-3:] {
		keep[id] = true
	}
	all := s.AllSnapshots()
	if len(all) != len(keep) || slices.ContainsFunc(all, func(snap store.Snapshot) bool { return !keep[snap.ID] }) {
		t.Errorf("kept %+v, want %v", all, keep)
	}
	child := from(t, s, last[len(last)-3])
	wantCount(t, s, child, 1, 1)
	kill(t, s, id, other, child)
	for _, snap := range all {
		if err := s.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
			t.Error(err)
		}
	}
	b.wantNothingLeft()
}

// TestNamesOfSnapshots: a name is that of an API key. The names that one key's template
// was built to are not for its own snapshots, and the other way round; what other keys
// call theirs does not matter, also where two take a name at once.
func TestNamesOfSnapshots(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	named := func(key, name, build string) error {
		_, err := s.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: key, Name: name, Build: build})
		return err
	}
	for _, c := range []struct{ key, name, build, code string }{
		{"a", "x", "b1", ""}, {"a", "x:v1", "b1", ""}, {"a", "x:v2", "", "snapshot_exists"}, {"a", "x", "", "snapshot_exists"}, {"a", "xx", "", ""},
		{"b", "x:v2", "", ""}, {"b", "x", "", ""}, {"b", "x:v3", "b2", "snapshot_exists"}, {"b", "x", "b2", "snapshot_exists"},
		{"a", "x:v2", "b1", ""}, {"a", "x:v2", "b1", "snapshot_exists"}, {"b", "x:v2", "", "snapshot_exists"}, {"c", "x:v2", "b3", ""},
	} {
		if err := named(c.key, c.name, c.build); code(err) != c.code {
			t.Errorf("%s of %s, build %q: %v, want %q", c.name, c.key, c.build, err, c.code)
		}
	}
	var all sync.WaitGroup
	for i, build := range []string{"", "b1"} {
		for _, key := range []string{"d", "e"} {
			all.Go(func() {
				if err := named(key, fmt.Sprintf("race:v%d", i), build); err != nil && code(err) != "snapshot_exists" {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	of := map[string]int{}
	for _, snap := range s.AllSnapshots() {
		if strings.HasPrefix(snap.Name, "race:") {
			of[snap.Key]++
		}
	}
	if of["d"] != 1 || of["e"] != 1 {
		t.Errorf("of a snapshot and a result at once there are %v, want one for each key", of)
	}
	// A template has its names before it has a result. That is known before the sandbox
	// is asked for anything, or else when the snapshot commits.
	build := func(name string) error {
		return s.o.Store.PutTemplate(t.Context(), store.Template{ID: "t" + name, Key: "f", Name: name})
	}
	if err := build("built"); err != nil {
		t.Fatal(err)
	}
	if err := named("f", "built", "b4"); err != nil {
		t.Errorf("its own result: %v", err)
	}
	b.set(func() { b.checkpoint = func() error { return build("late") } })
	id = create(t, s, CreateRequest{})
	for _, name := range []string{"built", "built:v1"} {
		if err := named("f", name, ""); code(err) != "snapshot_exists" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := named("f", "late:v1", ""); err == nil || !strings.Contains(err.Error(), `"late"`) {
		t.Errorf("with a template that was asked for meanwhile: %v", err)
	}
	if rec := record(t, s, id); rec.Situation() != lifecycle.Situation(lifecycle.Running) {
		t.Errorf("it is %s", rec.Situation())
	}
	stop()
	s, _ = b.open() // with all of them
	for key, build := range map[string]string{"a": "b1", "b": "", "c": "b3"} {
		if snap, err := s.Snapshot(key, "x:v2"); err != nil || snap.Key != key || snap.Config.Build != build {
			t.Errorf("to %s it is %+v, %v", key, snap, err)
		}
	}
}

// TestSnapshotExpires: one goes when its time has come, also if that was while no
// server ran, and unless it is pinned.
func TestSnapshotExpires(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{})
	soon := func() time.Time { return time.Now().Add(200 * time.Millisecond) }
	gone := func(ref string) func() bool {
		return func() bool {
			_, err := s.Snapshot("", ref)
			return errdef.Is(err, errdef.NotFound)
		}
	}
	pinned := take(t, s, id, SnapshotRequest{ExpiresAt: soon(), Pinned: true})
	late := take(t, s, id, SnapshotRequest{ExpiresAt: time.Now().Add(time.Hour)})
	testmode.Eventually(t, "the end of the first", gone(take(t, s, id, SnapshotRequest{ExpiresAt: soon()}).ID))
	asleep := take(t, s, id, SnapshotRequest{ExpiresAt: soon()})
	stop()
	time.Sleep(300 * time.Millisecond)
	s, _ = b.open()
	testmode.Eventually(t, "the end of one that expired meanwhile", gone(asleep.ID))
	if all := s.AllSnapshots(); len(all) != 2 {
		t.Errorf("kept %+v", all)
	}
	if _, err := s.ChangeSnapshot(t.Context(), late.ID, snapshots.Change{ExpiresAt: new(soon())}); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the end of the one that was changed", gone(late.ID))
	if _, err := s.ChangeSnapshot(t.Context(), pinned.ID, snapshots.Change{Pinned: new(false)}); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the end of the one that was pinned", gone(pinned.ID))
	if _, err := s.ChangeSnapshot(t.Context(), pinned.ID, snapshots.Change{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("of one that is gone: %v", err)
	}
	kill(t, s, id)
	b.wantAllGone(s)
}

// idOf returns the id of the snapshot of a name, of which there is one.
func idOf(t *testing.T, s *Supervisor, name string) string {
	t.Helper()
	for _, snap := range s.AllSnapshots() {
		if snap.Name == name {
			return snap.ID
		}
	}
	t.Fatalf("there is no snapshot %s", name)
	return ""
}
