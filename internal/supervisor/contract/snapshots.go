package contract

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	kept "github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// Snapshots keeps what sandboxes were, and starts others from it.
type Snapshots interface {
	TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error)
	Snapshots() ([]store.Snapshot, error)
	Snapshot(key, ref string) (store.Snapshot, error)
	ChangeSnapshot(ctx context.Context, ref string, c kept.Change) (store.Snapshot, error)
	RemoveSnapshot(ctx context.Context, ref, actor string) error
	Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error)
	Restore(ctx context.Context, id string, req supervisor.RestoreRequest) (store.Sandbox, string, error)
}

// take takes a snapshot, later than the one before.
func (w world) take(id string, req supervisor.SnapshotRequest) store.Snapshot {
	w.t.Helper()
	time.Sleep(time.Second)
	req.Key, req.Actor = "key", "taker"
	snap, err := w.s.Snapshots.TakeSnapshot(w.t.Context(), id, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return snap
}

// listed holds which snapshots there are, newest first.
func (w world) listed(want ...store.Snapshot) {
	w.t.Helper()
	list, err := w.s.Snapshots.Snapshots()
	w.ok("list", err)
	ids := func(list []store.Snapshot) (ids []string) {
		for _, snap := range list {
			ids = append(ids, snap.ID)
		}
		return ids
	}
	if got, want := ids(list), ids(want); !slices.Equal(got, want) {
		w.t.Errorf("the snapshots are %q, want %q", got, want)
	}
}

func takeSnapshots(w world) {
	ctx, s := w.t.Context(), w.s.Snapshots
	var all []store.Snapshot
	for _, sb := range []store.Sandbox{w.create(), w.paused()} {
		memory, files := w.take(sb.ID, supervisor.SnapshotRequest{}), w.take(sb.ID, supervisor.SnapshotRequest{Mode: lifecycle.Filesystem})
		for mode, snap := range map[lifecycle.Mode]store.Snapshot{lifecycle.Memory: memory, lifecycle.Filesystem: files} {
			if snap.Sandbox != sb.ID || snap.Generation != 1 || snap.Key != "key" || snap.Checkpoint.Mode != mode || !kept.IsID(snap.ID) || snap.Config.Metadata["a"] != "b" || snap.Settings.Timeout != time.Hour {
				w.t.Errorf("of %s it is %+v", mode, snap)
			}
		}
		w.is(sb.ID, sb.Record.State, 1)
		if last := w.last(sb.ID); last.Type != lifecycle.EntrySnapshotted || last.Actor != "taker" {
			w.t.Errorf("the last event is %+v", last)
		}
		w.ok("kill", w.s.Kill(ctx, sb.ID, "test"))
		all = append([]store.Snapshot{files, memory}, all...)
		if _, err := s.TakeSnapshot(ctx, sb.ID, supervisor.SnapshotRequest{}); !errdef.Is(err, errdef.NotFound) {
			w.t.Errorf("of one that has ended: %v", describe(err))
		}
	}
	w.listed(all...)
	_, err := s.TakeSnapshot(ctx, "i00000000000000000009", supervisor.SnapshotRequest{})
	w.refused("of no sandbox", err, errdef.NotFound, "sandbox_not_found")
	id := w.create().ID
	built := w.take(id, supervisor.SnapshotRequest{Build: "b1", Name: "built"})
	w.listed(all...) // that of a build is not shown, and stays as it is
	w.refused("remove that of a build", s.RemoveSnapshot(ctx, built.ID, "test"), errdef.Conflict, "snapshot_of_template")
	_, err = s.ChangeSnapshot(ctx, built.ID, kept.Change{ExpiresAt: new(time.Now())})
	w.refused("change that of a build", err, errdef.Conflict, "snapshot_of_template")
	_, err = s.TakeSnapshot(ctx, id, supervisor.SnapshotRequest{Key: built.Key, Name: built.Name, Replace: built.ID})
	w.refused("replace that of a build", err, errdef.Conflict, "snapshot_of_template")
	for _, snap := range all {
		w.ok("remove", s.RemoveSnapshot(ctx, snap.ID, "test"))
	}
	w.listed()
}

func nameSnapshots(w world) {
	ctx, s, id := w.t.Context(), w.s.Snapshots, w.create().ID
	one := w.take(id, supervisor.SnapshotRequest{Name: "team/one:v1"})
	if got, err := s.Snapshot("key", "team/one:v1"); err != nil || got.ID != one.ID || got.Name != one.Name {
		w.t.Errorf("by its name it is %+v, %v", got, err)
	}
	_, err := s.TakeSnapshot(ctx, id, supervisor.SnapshotRequest{Name: one.Name, Key: "key"})
	w.refused("the same name", err, errdef.Exists, "snapshot_exists")
	_, err = s.Snapshot("other", one.Name)
	w.refused("the name of another key", err, errdef.NotFound, "snapshot_not_found")
	theirs, err := s.TakeSnapshot(ctx, id, supervisor.SnapshotRequest{Name: one.Name, Key: "other"})
	w.ok("the same name of another key", err)
	for key, want := range map[string]string{"key": one.ID, "other": theirs.ID} {
		if got, err := s.Snapshot(key, one.Name); err != nil || got.ID != want {
			w.t.Errorf("to %s the name is that of %s, %v; want %s", key, got.ID, err, want)
		}
	}
	w.ok("remove", s.RemoveSnapshot(ctx, theirs.ID, "test"))
	for _, bad := range []string{"One", "-a", "s00000000000000000009", "one:default"} {
		_, err := s.TakeSnapshot(ctx, id, supervisor.SnapshotRequest{Name: bad})
		w.refused(bad, err, errdef.Invalid, "snapshot_name_invalid")
	}
	two := w.take(id, supervisor.SnapshotRequest{Name: one.Name, Replace: one.ID})
	w.listed(two)
	_, err = s.Snapshot("", one.ID)
	w.refused("the replaced one", err, errdef.NotFound, "snapshot_not_found")
	_, err = s.ChangeSnapshot(ctx, one.ID, kept.Change{})
	w.refused("change of it", err, errdef.NotFound, "snapshot_not_found")
	w.refused("remove of it", s.RemoveSnapshot(ctx, one.ID, "test"), errdef.NotFound, "snapshot_not_found")
	_, err = w.s.Create(ctx, supervisor.CreateRequest{Snapshot: one.ID})
	w.refused("create from it", err, errdef.NotFound, "snapshot_not_found")
	_, _, err = s.Restore(ctx, id, supervisor.RestoreRequest{Snapshot: one.ID})
	w.refused("restore to it", err, errdef.NotFound, "snapshot_not_found")
}

// keepSnapshots: snapshots make room for others, expire, and are pinned against both.
func keepSnapshots(w world) {
	ctx, s, id := w.t.Context(), w.s.Snapshots, w.create().ID
	last := supervisor.SnapshotRequest{KeepLast: 2}
	for range 2 {
		w.take(id, last)
	}
	pinned := w.take(id, supervisor.SnapshotRequest{KeepLast: 2, Pinned: true})
	other, own := w.take(w.create().ID, last), w.take(id, supervisor.SnapshotRequest{})
	third, fourth := w.take(id, last), w.take(id, last)
	w.listed(fourth, third, own, other, pinned)

	soon := time.Now().Add(time.Hour).UTC()
	for _, ref := range []string{own.ID, pinned.ID} {
		if got, err := s.ChangeSnapshot(ctx, ref, kept.Change{ExpiresAt: &soon}); err != nil || !got.ExpiresAt.Equal(soon.Truncate(time.Microsecond)) {
			w.t.Errorf("changed it is %+v, %v", got, err)
		}
	}
	yes := true
	if got, err := s.ChangeSnapshot(ctx, third.ID, kept.Change{Pinned: &yes}); err != nil || !got.Pinned || !got.ExpiresAt.IsZero() {
		w.t.Errorf("pinned it is %+v, %v", got, err)
	}
	w.sleep(59 * time.Minute)
	w.listed(fourth, third, own, other, pinned)
	w.sleep(2 * time.Minute)
	w.listed(fourth, third, other, pinned)
}

// fromSnapshots: a sandbox that starts from a snapshot is what it asks for, over what
// the snapshot has.
func fromSnapshots(w world) {
	ctx, source := w.t.Context(), w.create()
	snap := w.take(source.ID, supervisor.SnapshotRequest{Name: "one"})
	for name, req := range map[string]supervisor.CreateRequest{"as a snapshot": {Snapshot: snap.ID}, "as a template": {Template: snap.ID}} {
		req.Settings = lifecycle.Settings{Timeout: 2 * time.Hour}
		req.Config = store.Config{Key: "other", Env: map[string]string{"B": "c"}}
		sb, err := w.s.Create(ctx, req)
		w.ok(name, err)
		c := sb.Config
		if sb.ID == source.ID || c.Template != source.Config.Template || c.Key != "other" || c.Env["A"] != "b" || c.Env["B"] != "c" || len(c.Metadata) > 0 || c.Limits != source.Config.Limits || sb.Record.Settings.Timeout != 2*time.Hour {
			w.t.Errorf("%s it is %+v, %+v", name, c, sb.Record.Settings)
		}
		if l := c.Lineage; len(l) != 1 || l[0].Sandbox != source.ID || l[0].Snapshot != snap.ID || l[0].Name != "one" {
			w.t.Errorf("%s it comes from %+v", name, l)
		}
		w.is(sb.ID, lifecycle.Running, 1)
		if first, err := w.s.Events(ctx, sb.ID, 0, 1); err != nil || len(first) != 1 || !strings.Contains(first[0].Detail, "one") {
			w.t.Errorf("%s its first event is %+v, %v", name, first, err)
		}
	}
	req := supervisor.CreateRequest{Snapshot: snap.ID}
	req.Config.Limits.MemoryMiB = 2 * source.Config.Limits.MemoryMiB
	_, err := w.s.Create(ctx, req)
	w.refused("with other memory", err, errdef.Invalid, "snapshot_fixes_option")
}

func forks(w world) {
	ctx, s, source := w.t.Context(), w.s.Snapshots, w.create()
	short := time.Minute
	children, err := s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 2, Timeout: &short, Key: "other", Actor: "forker"})
	if w.ok("fork", err); len(children) != 2 {
		w.t.Fatalf("there are %d children", len(children))
	}
	for _, c := range children {
		w.ok("child", c.Err)
		got := c.Sandbox
		if got.ID == source.ID || got.Config.Key != "other" || got.Config.Metadata["a"] != "b" || got.Record.Settings.Timeout != short || got.Record.Settings.OnTimeout != lifecycle.Pause {
			w.t.Errorf("a child is %+v, %+v", got.Config, got.Record.Settings)
		}
		if l := got.Config.Lineage; len(l) != 1 || l[0].Sandbox != source.ID || l[0].Snapshot != "" {
			w.t.Errorf("a child comes from %+v", l)
		}
		w.is(got.ID, lifecycle.Running, 1)
	}
	w.is(source.ID, lifecycle.Running, 1)
	if last := w.last(source.ID); last.Type != lifecycle.EntryForked || last.Actor != "forker" {
		w.t.Errorf("the last event is %+v", last)
	}
	w.listed()
	asleep, err := s.Fork(ctx, w.paused().ID, supervisor.ForkRequest{Count: 1, Asleep: true, Name: "child", Key: "key"})
	if w.ok("fork asleep", err); len(asleep) != 1 || asleep[0].Err != nil || asleep[0].Sandbox.Config.Name != "child" {
		w.t.Fatalf("the child is %+v", asleep)
	}
	w.is(asleep[0].Sandbox.ID, lifecycle.Paused, 1)
	again, err := s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 1, Name: "child", Key: "key"})
	if w.ok("fork of a name that is taken", err); len(again) == 1 {
		w.refused("its child", again[0].Err, errdef.Exists, "name_taken")
	}
	life := 2 * time.Hour
	bounded, err := s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 1, MaxLifetime: &life, Key: "key", Only: lifecycle.Running})
	if w.ok("fork with an end", err); len(bounded) != 1 || bounded[0].Sandbox.Record.Settings.MaxLifetime != life {
		w.t.Errorf("the child is %+v", bounded)
	}
	_, err = s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 1, Only: lifecycle.Paused})
	w.refused("fork of a running one, if it is paused", err, errdef.WrongState, "not_paused")
	_, err = s.Fork(ctx, w.paused().ID, supervisor.ForkRequest{Count: 1, Only: lifecycle.Running})
	w.refused("fork of a paused one, if it runs", err, errdef.WrongState, "not_running")
	all, err := s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 1, Name: "child", Key: "key", All: true})
	if w.refused("fork of all or none", err, errdef.Exists, "name_taken"); all != nil {
		w.t.Errorf("there are children: %+v", all)
	}
	for _, count := range []int{0, 101} {
		_, err := s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: count})
		w.refused("fork of so many", err, errdef.Invalid, "fork_count_invalid")
	}
	short = -time.Minute
	_, err = s.Fork(ctx, source.ID, supervisor.ForkRequest{Count: 1, Timeout: &short})
	w.refused("fork for no time", err, errdef.Invalid, "timeout_invalid")
	_, err = s.Fork(ctx, "i00000000000000000009", supervisor.ForkRequest{Count: 1})
	w.refused("fork of no sandbox", err, errdef.NotFound, "sandbox_not_found")
}

func restores(w world) {
	ctx, s := w.t.Context(), w.s.Snapshots
	for state, sb := range map[lifecycle.State]store.Sandbox{lifecycle.Running: w.create(), lifecycle.Paused: w.paused()} {
		_, _, err := s.Restore(ctx, sb.ID, supervisor.RestoreRequest{})
		w.refused("undo of nothing", err, errdef.NotFound, "undo_not_found")
		snap := w.take(sb.ID, supervisor.SnapshotRequest{})
		got, undo, err := s.Restore(ctx, sb.ID, supervisor.RestoreRequest{Snapshot: snap.ID, Actor: "restorer"})
		w.ok("restore", err)
		generation := int64(1)
		if state == lifecycle.Running {
			generation = 2
		}
		if r := got.Record; r.State != state || r.Generation != generation || r.Restored == nil || r.Restored.Snapshot != snap.ID || !r.EndAt.Equal(sb.Record.EndAt) {
			w.t.Errorf("it is %+v", got.Record)
		}
		w.is(sb.ID, state, generation)
		if before, err := s.Snapshot("", undo); err != nil || !before.Undo || before.Sandbox != sb.ID || before.Config.Metadata["a"] != "b" {
			w.t.Errorf("what it was is kept as %+v, %v", before, err)
		}
		_, err = s.ChangeSnapshot(ctx, undo, kept.Change{})
		w.refused("change of that", err, errdef.Invalid, "undo_is_kept")
		events, err := w.s.Events(ctx, sb.ID, 0, 100)
		w.ok("events", err)
		i := slices.IndexFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryRestored })
		if i < 0 || events[i].Actor != "restorer" || events[i].Cause != lifecycle.CauseRestore {
			w.t.Errorf("the events are %v", types(events))
		}
		_, again, err := s.Restore(ctx, sb.ID, supervisor.RestoreRequest{})
		if w.ok("undo", err); again == undo || again == "" {
			w.t.Errorf("the undo is kept as %q, after %q", again, undo)
		}
		_, err = s.Snapshot("", undo)
		w.refused("the first undo", err, errdef.NotFound, "snapshot_not_found")
		if _, none, err := s.Restore(ctx, sb.ID, supervisor.RestoreRequest{Snapshot: snap.ID, Discard: true}); err != nil || none != "" {
			w.t.Errorf("restored without an undo: %q, %v", none, err)
		}
		_, _, err = s.Restore(ctx, w.create().ID, supervisor.RestoreRequest{Snapshot: snap.ID})
		w.refused("restore of another", err, errdef.Invalid, "snapshot_of_other")
		files := w.take(sb.ID, supervisor.SnapshotRequest{Mode: lifecycle.Filesystem})
		_, _, err = s.Restore(ctx, sb.ID, supervisor.RestoreRequest{Snapshot: files.ID, Mode: lifecycle.Memory})
		w.refused("memory of files", err, errdef.Invalid, "snapshot_without_memory")
		w.ok("kill", w.s.Kill(ctx, sb.ID, "test"))
		w.sleep(time.Minute)
		_, err = s.Snapshot("", again)
		w.refused("the undo of one that has ended", err, errdef.NotFound, "snapshot_not_found")
		if _, _, err := s.Restore(ctx, sb.ID, supervisor.RestoreRequest{Snapshot: snap.ID}); !errdef.Is(err, errdef.NotFound) {
			w.t.Errorf("restore of one that has ended: %v", describe(err))
		}
	}
}
