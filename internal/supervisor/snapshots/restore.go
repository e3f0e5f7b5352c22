package snapshots

import (
	"context"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// RestoreRequest says what a sandbox is to go back to.
type RestoreRequest struct {
	Snapshot string          // id; empty for what it was before the last restore
	Mode     lifecycle.Mode  // what comes back; empty for all that the snapshot has
	Discard  bool            // the state before is not kept
	Only     lifecycle.State // that the sandbox must be in; empty for any
	Actor    string
}

// Aim returns what a sandbox goes back to that asks for this. Until release is called,
// there is room for the state before.
func (s *Shelf) Aim(ctx context.Context, sb store.Sandbox, req RestoreRequest) (to lifecycle.Restore, release func(), err error) {
	snap, undo, err := s.own(sb.ID, req.Snapshot)
	if err != nil {
		return to, nil, err
	}
	to = lifecycle.Restore{Checkpoint: snap.Checkpoint, Snapshot: snap.ID}
	switch {
	case req.Mode == lifecycle.Filesystem:
		to.Checkpoint = snap.Checkpoint.Files()
	case req.Mode == lifecycle.Memory && snap.Checkpoint.Mode != lifecycle.Memory:
		err = errdef.New(errdef.Invalid, "snapshot_without_memory", "snapshot %s has files only, and the memory is asked for too", Describe(snap)).
			WithRemedy("leave the mode out: the sandbox boots from the files").With("field", "mode").With("allowed", lifecycle.Filesystem)
	case snap.Checkpoint.Mode == lifecycle.Memory:
		_, err = Configure(snap, sb.Config)
	}
	release = func() {}
	if err == nil && !req.Discard {
		to.Undo = NewID()
		release, err = s.Reserve(ctx, Request{Key: sb.Config.Key, Replace: undo}, sb)
	}
	return to, release, err
}

// own returns a snapshot of a sandbox, and the id of the one that keeps its state before
// the last restore, if any.
func (s *Shelf) own(sandbox, ref string) (snap store.Snapshot, undo string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, has := s.undoOf(sandbox)
	switch {
	case ref != "":
		snap, err = s.find(ref)
	case has:
		snap = last
	default:
		err = errdef.New(errdef.NotFound, "undo_not_found", "sandbox %s has no state from before a restore to go back to", sandbox).
			WithRemedy("name a snapshot of the sandbox, which drowse snapshot ls --sandbox lists")
	}
	if err == nil && snap.Sandbox == sandbox {
		err = s.o.here(snap)
	} else if err == nil {
		err = errdef.New(errdef.Invalid, "snapshot_of_other", "snapshot %s was taken of sandbox %s, and sandbox %s goes back to its own only", Describe(snap), snap.Sandbox, sandbox).
			WithRemedy("start a new sandbox from that snapshot")
	}
	return snap, last.ID, err
}

// undoOf returns the snapshot that keeps what a sandbox was before its last restore.
// The caller holds mu.
func (s *Shelf) undoOf(sandbox string) (store.Snapshot, bool) {
	for _, snap := range s.byID {
		if s.o.has(snap) && snap.Undo && snap.Sandbox == sandbox {
			return snap, true
		}
	}
	return store.Snapshot{}, false
}

// Undo returns the id of the snapshot that keeps what a sandbox was before its last
// restore; empty for none.
func (s *Shelf) Undo(sandbox string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, _ := s.undoOf(sandbox)
	return snap.ID
}

// RemoveUndo removes that of a sandbox that has ended or is on another server now, if there is
// one. It is idempotent.
func RemoveUndo(ctx context.Context, s *Shelf, sandbox string) error {
	id := s.Undo(sandbox)
	if id == "" {
		return nil
	}
	if err := s.RemoveSnapshot(ctx, id, ""); err != nil && !errdef.Is(err, errdef.NotFound) {
		return err
	}
	return nil
}

// EndUndo is RemoveUndo of a sandbox that has ended, however often it takes.
func (s *Shelf) EndUndo(ctx context.Context, sandbox string) {
	s.o.Insist(func() error { return RemoveUndo(ctx, s, sandbox) }, "undo could not be removed", "sandbox", sandbox)
}

// Before returns the snapshot that is to keep what a sandbox is, if the event takes
// it back to another; nil if there is none to be kept.
func (s *Shelf) Before(sb store.Sandbox, ev lifecycle.Event) *store.Snapshot {
	var to *lifecycle.Restore
	var cp lifecycle.Checkpoint
	switch e := ev.(type) {
	case lifecycle.RestoreRequested:
		if sb.Record.Situation() == lifecycle.Situation(lifecycle.Paused) {
			to, cp = &e.To, *sb.Record.Checkpoint
		}
	case lifecycle.CaptureReady:
		if op := sb.Record.Op; op != nil && op.ID == e.Op {
			to, cp = op.Restore, e.Checkpoint
		}
	}
	if to == nil || to.Undo == "" {
		return nil
	}
	snap := s.Of(sb, cp, Request{Key: sb.Config.Key})
	snap.ID, snap.Undo = to.Undo, true
	return &snap
}
