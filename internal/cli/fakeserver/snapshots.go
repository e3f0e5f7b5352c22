package fakeserver

import (
	"context"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	kept "github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// snapshots are those of apitest's fake, of sandboxes as clients know them. What
// starts from one begins with nothing.
type snapshots struct {
	s    *Server
	fake *apitest.Snapshots
}

var _ v1.Snapshots = snapshots{}

func (x snapshots) shown(snap store.Snapshot, err error) (store.Snapshot, error) {
	snap.Sandbox = x.s.outer(snap.Sandbox)
	return snap, err
}

// TakeSnapshot implements v1.Snapshots.
func (x snapshots) TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	x.s.enter()
	defer x.s.leave()
	return x.shown(x.fake.TakeSnapshot(ctx, x.s.inner(id), req))
}

// Snapshots implements v1.Snapshots.
func (x snapshots) Snapshots() ([]store.Snapshot, error) {
	x.s.enter()
	defer x.s.leave()
	all, err := x.fake.Snapshots()
	for i := range all {
		all[i], _ = x.shown(all[i], nil)
	}
	return all, err
}

// Snapshot implements v1.Snapshots.
func (x snapshots) Snapshot(key, ref string) (store.Snapshot, error) {
	x.s.enter()
	defer x.s.leave()
	return x.shown(x.fake.Snapshot(key, ref))
}

// ChangeSnapshot implements v1.Snapshots.
func (x snapshots) ChangeSnapshot(ctx context.Context, ref string, c kept.Change) (store.Snapshot, error) {
	x.s.enter()
	defer x.s.leave()
	return x.shown(x.fake.ChangeSnapshot(ctx, ref, c))
}

// RemoveSnapshot implements v1.Snapshots.
func (x snapshots) RemoveSnapshot(ctx context.Context, id, actor string) error {
	x.s.enter()
	defer x.s.leave()
	return x.fake.RemoveSnapshot(ctx, id, actor)
}

// Restore implements v1.Snapshots.
func (x snapshots) Restore(ctx context.Context, id string, req supervisor.RestoreRequest) (store.Sandbox, string, error) {
	x.s.enter()
	defer x.s.leave()
	sb, undo, err := x.fake.Restore(ctx, x.s.inner(id), req)
	sb = x.s.shown(sb)
	return sb, undo, err
}

// Fork implements v1.Snapshots.
func (x snapshots) Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error) {
	x.s.enter()
	defer x.s.leave()
	children, err := x.fake.Fork(ctx, x.s.inner(id), req)
	for i := range children {
		children[i].Sandbox = x.s.shown(children[i].Sandbox)
	}
	return children, err
}
