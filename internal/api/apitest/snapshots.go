package apitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// Snapshots are those of a server. There is always one that is called "kept", which
// no list has.
type Snapshots struct {
	fake *Fake
	list []store.Snapshot

	taken int
}

// NewSnapshots returns none.
func NewSnapshots(f *Fake) *Snapshots { return &Snapshots{fake: f} }

// TakeSnapshot takes one of a sandbox that has not ended.
func (x *Snapshots) TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	sb, err := x.fake.Get(ctx, id)
	if err != nil {
		return store.Snapshot{}, err
	}
	x.fake.mu.Lock()
	defer x.fake.mu.Unlock()
	x.taken++
	snap := store.Snapshot{
		ID: fmt.Sprintf("s%020d", x.taken), Name: req.Name, CreatedAt: x.fake.Now.Add(time.Duration(x.taken) * time.Microsecond), Key: req.Key, Sandbox: id, Generation: sb.Record.Generation,
		Checkpoint: lifecycle.Checkpoint{ID: "image", Mode: lifecycle.Memory}, Config: sb.Config, Settings: sb.Record.Settings, Bytes: 1 << 20,
		ExpiresAt: req.ExpiresAt, Pinned: req.Pinned, KeepLast: req.KeepLast,
	}
	snap.Config.Build = req.Build
	if req.Mode != "" {
		snap.Checkpoint.Mode = req.Mode
	}
	if i := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return req.Name != "" && has.Name == req.Name }); i >= 0 {
		if x.list[i].ID != req.Replace {
			return store.Snapshot{}, store.ErrSnapshotExists(snap)
		}
		x.list = slices.Delete(x.list, i, i+1)
	}
	x.fake.Actors = append(x.fake.Actors, req.Actor)
	x.list = append(x.list, snap)
	for i, kept := len(x.list)-1, 0; i >= 0 && req.KeepLast > 0; i-- {
		if has := x.list[i]; has.Sandbox != id || has.Pinned || has.KeepLast == 0 {
			continue
		}
		if kept++; kept > req.KeepLast {
			x.list = slices.Delete(x.list, i, i+1)
		}
	}
	return snap, nil
}

// Snapshots returns all, newest first.
func (x *Snapshots) Snapshots() ([]store.Snapshot, error) {
	err := x.fake.enter()
	defer x.fake.mu.Unlock()
	if err != nil {
		return nil, err
	}
	all := slices.Clone(x.list)
	slices.Reverse(all)
	return all, nil
}

// Snapshot returns one.
func (x *Snapshots) Snapshot(ref string) (store.Snapshot, error) {
	err := x.fake.enter()
	defer x.fake.mu.Unlock()
	if err != nil {
		return store.Snapshot{}, err
	}
	i := x.find(ref)
	if i < 0 && ref == "kept" {
		return store.Snapshot{ID: "skept", Name: ref, Key: KeyID}, nil
	}
	if i < 0 {
		return store.Snapshot{}, store.ErrSnapshotNotFound(ref)
	}
	return x.list[i], nil
}

func (x *Snapshots) find(ref string) int {
	return slices.IndexFunc(x.list, func(has store.Snapshot) bool { return has.ID == ref || has.Name == ref })
}

// ChangeSnapshot changes how long one is kept.
func (x *Snapshots) ChangeSnapshot(_ context.Context, ref string, c snapshots.Change) (store.Snapshot, error) {
	err := x.fake.enter()
	defer x.fake.mu.Unlock()
	if err != nil {
		return store.Snapshot{}, err
	}
	i := x.find(ref)
	if i < 0 {
		return store.Snapshot{}, store.ErrSnapshotNotFound(ref)
	}
	if c.Pinned != nil {
		x.list[i].Pinned = *c.Pinned
	}
	if c.ExpiresAt != nil {
		x.list[i].ExpiresAt = *c.ExpiresAt
	}
	return x.list[i], nil
}

// RemoveSnapshot removes one.
func (x *Snapshots) RemoveSnapshot(_ context.Context, ref, actor string) error {
	err := x.fake.enter()
	defer x.fake.mu.Unlock()
	if err != nil {
		return err
	}
	i := x.find(ref)
	if i < 0 {
		return store.ErrSnapshotNotFound(ref)
	}
	x.fake.Actors = append(x.fake.Actors, actor)
	x.list = slices.Delete(x.list, i, i+1)
	return nil
}

// Restore takes a sandbox back to one of its own. Its checkpoint says to which.
func (x *Snapshots) Restore(ctx context.Context, id string, req supervisor.RestoreRequest) (store.Sandbox, string, error) {
	sb, err := x.fake.Get(ctx, id)
	if err != nil {
		return sb, "", err
	}
	x.fake.mu.Lock()
	defer x.fake.mu.Unlock()
	before := slices.IndexFunc(x.list, func(has store.Snapshot) bool { return has.Undo && has.Sandbox == id })
	at := before
	if req.Snapshot != "" {
		at = x.find(req.Snapshot)
	}
	switch {
	case at < 0 && req.Snapshot == "":
		return sb, "", errdef.New(errdef.NotFound, "undo_not_found", "sandbox %s did not go back before", id)
	case at < 0:
		return sb, "", store.ErrSnapshotNotFound(req.Snapshot)
	case x.list[at].Sandbox != id:
		return sb, "", errdef.New(errdef.Invalid, "snapshot_of_other", "snapshot %s was taken of another sandbox", req.Snapshot)
	case req.Mode == lifecycle.Memory && x.list[at].Checkpoint.Mode != lifecycle.Memory:
		return sb, "", errdef.New(errdef.Invalid, "snapshot_without_memory", "snapshot %s has files only", req.Snapshot)
	}
	x.fake.Actors = append(x.fake.Actors, req.Actor)
	sb.Record.Checkpoint = &lifecycle.Checkpoint{ID: "of " + x.list[at].ID, Mode: cmp.Or(req.Mode, x.list[at].Checkpoint.Mode)}
	if x.fake.Sandboxes[id] = sb; req.Discard {
		return sb, "", nil
	}
	if before >= 0 {
		x.list = slices.Delete(x.list, before, before+1)
	}
	x.taken++
	undo := store.Snapshot{
		ID: fmt.Sprintf("s%020d", x.taken), Undo: true, CreatedAt: x.fake.Now.Add(time.Duration(x.taken) * time.Microsecond), Key: sb.Config.Key, Sandbox: id,
		Checkpoint: lifecycle.Checkpoint{ID: "image", Mode: lifecycle.Memory}, Config: sb.Config, Settings: sb.Record.Settings,
	}
	x.list = append(x.list, undo)
	return sb, undo.ID, nil
}

// Fork starts children, of which the fourth and on find no room.
func (x *Snapshots) Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error) {
	sb, err := x.fake.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if req.Count > 100 {
		return nil, errdef.New(errdef.Invalid, "fork_count_invalid", "%d children were asked for", req.Count)
	}
	var children []supervisor.Forked
	for i := range req.Count {
		if i >= 3 {
			children = append(children, supervisor.Forked{Err: errdef.New(errdef.Exhausted, "too_many_sandboxes", "no room")})
			continue
		}
		child := supervisor.CreateRequest{Template: "base", Settings: sb.Record.Settings, Config: sb.Config, Actor: req.Actor}
		child.Config.Key, child.Config.Idempotency = req.Key, nil
		if req.Timeout != nil {
			child.Settings.Timeout = *req.Timeout
		}
		var c supervisor.Forked
		c.Sandbox, c.Err = x.fake.Create(ctx, child)
		children = append(children, c)
	}
	return children, nil
}
