package takeover

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// takeOverSnapshot is TakeOver of a snapshot. Sandboxes start from it as from one that was taken
// here; those of its server that share layers with it keep them.
func (t *Taker) takeOverSnapshot(ctx context.Context, id string) error {
	if _, err := snapshots.OwnerOf(ctx, t.o.Shelf(), id); err != nil { // which reads them again
		return err
	}
	snap, err := t.o.Shelf().Snapshot("", id)
	if err == nil {
		err = t.maySnapshot(ctx, snap) // it is not fetched in vain
	}
	if err != nil {
		return err
	}
	return t.fetch(ctx, t.snapshot(snap, func(a *moving.Arrival, replica store.Replica) error { return t.commitSnapshot(a, snap, replica) }))
}

// snapshot returns how a snapshot is read and judged.
func (t *Taker) snapshot(snap store.Snapshot, commit func(a *moving.Arrival, replica store.Replica) error) of {
	return of{
		open: func(ctx context.Context) (*replica.Reader, store.Replica, error) {
			return t.o.Replicas.Open(ctx, moving.OfSnapshot(snap))
		},
		expect: func(ctx context.Context, m bundle.Manifest) (*moving.Arrival, error) {
			return t.o.Carrier.ExpectSnapshot(ctx, m, snap)
		},
		commit: commit,
	}
}

// maySnapshot returns why the store would refuse now that a snapshot is taken over.
func (t *Taker) maySnapshot(ctx context.Context, snap store.Snapshot) error {
	servers, err := t.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	replica, err := t.o.Store.Replica(ctx, snap.ID)
	if err != nil && !errdef.Is(err, errdef.NotFound) {
		return err
	}
	return replica.TakesSnapshot(snap, snap, t.o.Store.Self(), store.Given(servers, t.o.Store.Self(), snap.Owner))
}

// commitSnapshot commits that this server has a snapshot, whose checkpoint is in its place.
func (t *Taker) commitSnapshot(a *moving.Arrival, snap store.Snapshot, replica store.Replica) error {
	made := store.Remade{Was: snap, Made: a.Checkpoint, Config: a.Config}
	err := t.decide(a.ID, func(ctx context.Context) (bool, error) { return t.has(ctx, made) }, func(ctx context.Context) error {
		_, err := t.o.Store.TakeSnapshot(ctx, made.Was, made.Made, made.Config)
		return err
	})
	if err != nil {
		return err
	}
	t.o.Log.Info("snapshot taken over", "snapshot", snap.ID, "name", snap.Name, "from", snap.Owner)
	t.arriveSnapshots([]store.Remade{made}, []store.Replica{replica})
	return nil
}

// has reports whether this server has snapshots as it has made them.
func (t *Taker) has(ctx context.Context, made ...store.Remade) (bool, error) {
	all, err := t.o.Store.Snapshots(ctx)
	for _, x := range made {
		if !slices.ContainsFunc(all, func(is store.Snapshot) bool {
			return is.ID == x.Was.ID && is.Owner == t.o.Store.Self() && is.Checkpoint.ID == x.Made.ID
		}) {
			return false, err
		}
	}
	return err == nil, err
}

// arriveSnapshots makes snapshots known that were taken, with their copies.
func (t *Taker) arriveSnapshots(made []store.Remade, copies []store.Replica) {
	for i, replica := range copies {
		replica.Checkpoint = store.CopyOf(made[i].Made)
		t.o.Replicas.Taken(replica)
	}
	t.o.Removals.Insist(func() error { return t.o.Shelf().RefreshSnapshots(context.WithoutCancel(t.ctx)) },
		"what was taken over cannot be read yet")
}
