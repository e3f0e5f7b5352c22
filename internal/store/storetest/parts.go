package storetest

import (
	"fmt"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// commitFilled commits a record that fill has made: it is about to go back to a snapshot,
// which is there only for that.
func commitFilled(t *testing.T, s store.Store, sb store.Sandbox, entries ...lifecycle.Entry) {
	t.Helper()
	lender := sandbox("lender", 1)
	lent := store.Snapshot{ID: "lent", Checkpoint: lifecycle.Checkpoint{Stack: sb.Parts()}}
	if err := s.CommitSnapshot(t.Context(), lent, lender, nil); err != nil {
		t.Fatal(err)
	}
	commit(t, s, sb, entries...)
	removeSnapshot(t, s, "lent")
	commit(t, s, terminated("lender"))
	forget(t, s, "lender")
}

func removeSnapshot(t *testing.T, s store.Store, id string) {
	t.Helper()
	if err := s.RemoveSnapshot(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// memoryOf returns a checkpoint with a memory image over layers.
func memoryOf(image string, layers ...string) lifecycle.Checkpoint {
	return lifecycle.Checkpoint{ID: image, Mode: lifecycle.Memory, Stack: layers}
}

// asleepAt returns a sandbox that sleeps with a checkpoint.
func asleepAt(id string, cp lifecycle.Checkpoint) store.Sandbox {
	sb := sandbox(id, 1)
	sb.Record.State, sb.Record.Checkpoint = lifecycle.Paused, &cp
	return sb
}

// wantNeeded holds which of some parts somebody needs but one.
func wantNeeded(t *testing.T, s store.Store, but string, want map[string]bool) {
	t.Helper()
	for part, wanted := range want {
		if got, err := s.Needed(t.Context(), part, but); err != nil || got != wanted {
			t.Errorf("that %s is needed by others than %q: %v, %v, want %v", part, but, got, err, wanted)
		}
	}
}

// testParts: it is known who needs which layers and images, from commit to commit.
func testParts(t *testing.T, h harness) {
	s := h.open(t)
	first := memoryOf("i1", "l1", "l2")
	commit(t, s, asleepAt("a", first))
	wantNeeded(t, s, "", map[string]bool{"i1": true, "l1": true, "l2": true, "l3": false})
	wantNeeded(t, s, "a", map[string]bool{"i1": false, "l1": false})
	take := func(snap store.Snapshot, of store.Sandbox) {
		t.Helper()
		if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, of), nil); err != nil {
			t.Fatal(err)
		}
	}
	take(store.Snapshot{ID: "s1", Name: "n", Checkpoint: first}, asleepAt("a", first))
	take(store.Snapshot{ID: "files", Checkpoint: first.Files()}, asleepAt("a", first))
	commit(t, s, asleepAt("a", memoryOf("i2", "l1", "l3")))
	s = h.reopen(t, s)
	wantNeeded(t, s, "", map[string]bool{"i1": true, "l2": true, "l3": true})
	wantNeeded(t, s, "s1", map[string]bool{"i1": false, "l2": true, "l1": true})
	take(store.Snapshot{ID: "s2", Name: "n", Replaces: "s1", Drops: []string{"files"}, Checkpoint: memoryOf("i2", "l1", "l3")}, asleepAt("a", memoryOf("i2", "l1", "l3")))
	wantNeeded(t, s, "", map[string]bool{"i1": false, "l2": false, "l1": true})

	dying := asleepAt("a", memoryOf("i2", "l1", "l3"))
	dying.Record.State, dying.Record.Op = lifecycle.Terminated, &lifecycle.Operation{}
	commit(t, s, dying)
	wantNeeded(t, s, "s2", map[string]bool{"i2": true, "l1": true}) // there may be a runtime yet
	gone := terminated("a")
	commit(t, s, gone)
	wantNeeded(t, s, "s2", map[string]bool{"i2": false, "l1": false})
	removeSnapshot(t, s, "s2")
	wantNeeded(t, s, "", map[string]bool{"i2": false, "l1": false, "l3": false})

	undo := store.Snapshot{ID: "undo", Undo: true, Checkpoint: memoryOf("i4", "l4")}
	take(undo, asleepAt("b", memoryOf("i4", "l4")))
	take(undo, asleepAt("b", memoryOf("i5", "l4"))) // the answer to the first was lost
	wantNeeded(t, s, "b", map[string]bool{"i4": true, "i5": false})
}

// testAdoption: a sandbox goes on from what a snapshot has, while that is there.
func testAdoption(t *testing.T, h harness) {
	s := h.open(t)
	cp := memoryOf("i1", "l1")
	created := lifecycle.Entry{Type: lifecycle.EntryCreated, At: epoch}
	source := asleepAt("source", cp)
	commit(t, s, source)
	unlent := asleepAt("early", cp)
	wantCode(t, s.Commit(t.Context(), unlent, []lifecycle.Entry{created}), "snapshot_gone") // it is another's own
	if err := s.CommitSnapshot(t.Context(), store.Snapshot{ID: "s1", Checkpoint: cp}, latest(t, s, source), nil); err != nil {
		t.Fatal(err)
	}
	imported := lifecycle.Entry{Type: lifecycle.EntryImported, Op: "i9", At: epoch}
	wantCode(t, s.Commit(t.Context(), asleepAt("early", memoryOf("i8", "l8")), []lifecycle.Entry{imported}), "snapshot_gone") // a fork asleep
	commit(t, s, asleepAt("arrived", memoryOf("i9", "l9")), imported)
	commit(t, s, asleepAt("child", cp), created)
	back := sandbox("back", 1)
	commit(t, s, back)
	back.Record.Op = &lifecycle.Operation{Restore: &lifecycle.Restore{Checkpoint: cp, Snapshot: "s1"}}
	commit(t, s, back)
	s = h.reopen(t, s)
	removeSnapshot(t, s, "s1")
	wantNeeded(t, s, "source", map[string]bool{"i1": true, "l1": true})
	late := asleepAt("late", cp)
	wantCode(t, s.Commit(t.Context(), late, []lifecycle.Entry{created}), "snapshot_gone")
	restored := []lifecycle.Entry{{Type: lifecycle.EntryRestored, At: epoch}}
	own := latest(t, s, asleepAt("source", memoryOf("i0", "l1")))
	wantCode(t, s.Commit(t.Context(), own, restored), "snapshot_gone")
	wantNeeded(t, s, "", map[string]bool{"i0": false})
	back = asleepAt("back", cp) // it has needed it since it was asked to go back
	commit(t, s, back, restored...)
	commit(t, s, asleepAt("child", memoryOf("i3", "l1", "l3")))
	if n := len(sandboxes(t, s)); n != 4 {
		t.Errorf("%d sandboxes, want 4", n)
	}
}

// testAdoptionWriters: of those that start from a snapshot while it is removed, each has
// it or is told that it is gone.
func testAdoptionWriters(t *testing.T, h harness) {
	s := h.open(t)
	cp := memoryOf("i1", "l1")
	if err := s.CommitSnapshot(t.Context(), store.Snapshot{ID: "s1", Checkpoint: cp}, sandbox("source", 1), nil); err != nil {
		t.Fatal(err)
	}
	won := race(t, errdef.NotFound, func(w int) error {
		if w == writers/2 {
			return s.RemoveSnapshot(t.Context(), "s1")
		}
		return s.Commit(t.Context(), asleepAt(fmt.Sprint(w), cp), []lifecycle.Entry{{Type: lifecycle.EntryCreated, At: epoch}})
	})
	has := len(sandboxes(t, s)) - 1
	if won != has+1 {
		t.Errorf("%d started, of which %d are there", won-1, has)
	}
	wantNeeded(t, s, "", map[string]bool{"i1": has > 0, "l1": has > 0})
}

// testPartsOfServers: what another server needs is called so on its own disk.
func testPartsOfServers(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	commit(t, one, asleepAt("a", memoryOf("i1", "l1")))
	commit(t, two, asleepAt("b", memoryOf("i2", "l2")))
	if err := two.CommitSnapshot(t.Context(), store.Snapshot{ID: "s", Checkpoint: memoryOf("i3", "l1")}, latest(t, two, asleepAt("b", memoryOf("i2", "l2"))), nil); err != nil {
		t.Fatal(err)
	}
	wantNeeded(t, one, "", map[string]bool{"i1": true, "l1": true, "i2": false, "l2": false, "i3": false})
	wantNeeded(t, two, "", map[string]bool{"i1": false, "l1": true, "i2": true, "l2": true, "i3": true})
	wantNeeded(t, one, "a", map[string]bool{"i1": false, "l1": false})
}
