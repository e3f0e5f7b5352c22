package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// replicas is the part of a store with the copies of checkpoints.
type replicas struct{ s *Store }

// PutReplica implements store.Replicas.
func (x replicas) PutReplica(_ context.Context, r store.Replica) (*store.Replica, error) {
	if err := x.s.lock(); err != nil {
		return nil, err
	}
	d := x.s.d
	defer d.mu.Unlock()
	if err := x.mayHave(r); err != nil {
		return nil, err
	}
	r.At, r.Offered = r.At.UTC(), ""
	before, had := d.replicas[r.Of()]
	d.replicas[r.Of()] = r
	if r.Snapshot != "" {
		d.changed(store.KindSnapshots)
	}
	if !had {
		return nil, nil
	}
	return &before, nil
}

// mayHave refuses a replica of what this server does not have.
func (x replicas) mayHave(r store.Replica) error {
	if r.Snapshot != "" {
		i := x.s.d.snapshot(r.Snapshot)
		if i < 0 {
			return store.ErrSnapshotNotFound(r.Snapshot)
		}
		return x.s.own("snapshot", r.Snapshot, x.s.d.snaps[i].owner)
	}
	has, err := x.s.d.known(r.Sandbox)
	if err != nil {
		return err
	}
	if err := x.s.own("sandbox", r.Sandbox, has.given.Owner); err != nil {
		return err
	}
	if has.given.Record.State == lifecycle.Terminated {
		return store.ErrSandboxNotFound(r.Sandbox)
	}
	return nil
}

// Replica implements store.Replicas.
func (x replicas) Replica(_ context.Context, id string) (store.Replica, error) {
	x.s.d.mu.Lock()
	defer x.s.d.mu.Unlock()
	r, has := x.s.d.replicas[id]
	if !has {
		return r, store.ErrReplicaNotFound(id)
	}
	return r, nil
}

// Replicas implements store.Replicas.
func (x replicas) Replicas(_ context.Context, owner string) ([]store.Replica, error) {
	d := x.s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []store.Replica
	for _, r := range d.replicas {
		has := d.boxes[r.Sandbox].given.Owner
		if r.Snapshot != "" {
			has = d.snaps[d.snapshot(r.Snapshot)].owner
		}
		if owner == "" || owner == has {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b store.Replica) int {
		return cmp.Or(cmp.Compare(a.Snapshot, b.Snapshot), cmp.Compare(a.Sandbox, b.Sandbox))
	})
	return all, nil
}

// TakeSnapshot implements store.Replicas.
func (x replicas) TakeSnapshot(_ context.Context, was store.Snapshot, made lifecycle.Checkpoint, config store.Config) (store.Snapshot, error) {
	if err := x.s.lock(); err != nil {
		return store.Snapshot{}, err
	}
	d := x.s.d
	defer d.mu.Unlock()
	i := d.snapshot(was.ID)
	if i < 0 {
		return store.Snapshot{}, store.ErrSnapshotNotFound(was.ID)
	}
	snap, err := d.snaps[i].read(d)
	if err != nil {
		return snap, err
	}
	r := d.replicas[snap.ID]
	if err := r.TakesSnapshot(was, snap, x.s.server, store.Given(d.all(), x.s.server, snap.Owner)); err != nil {
		return snap, err
	}
	snap.Checkpoint, snap.Config, snap.Owner = made, config, x.s.server
	data, err := encode(snap)
	if err != nil {
		return snap, err
	}
	d.parts.drop(snap.ID, d.snaps[i].parts)
	d.snaps[i] = snapshot{snap.ID, snap.Key, snap.Name, snap.Owner, snap.DiskMiB(), snap.Config.Build != "", snap.Checkpoint.Parts(), data}
	d.parts.hold(snap.ID, d.snaps[i].parts, true)
	r.Checkpoint = made.ID
	d.replicas[snap.ID] = r
	d.changed(store.KindSnapshots)
	return d.snaps[i].read(d)
}

// Offer implements store.Replicas.
func (x replicas) Offer(_ context.Context, sandbox, checkpoint, to string) error {
	if err := x.s.lock(); err != nil {
		return err
	}
	d := x.s.d
	defer d.mu.Unlock()
	has, err := d.known(sandbox)
	if err != nil {
		return err
	}
	if err := x.s.own("sandbox", sandbox, has.given.Owner); err != nil {
		return err
	}
	r, is := d.replicas[sandbox]
	if to != "" {
		if err := r.Offers(has.given, checkpoint); err != nil {
			return err
		}
	}
	if r.Offered = to; is {
		d.replicas[sandbox] = r
	}
	return nil
}

// Take implements store.Replicas.
func (x replicas) Take(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	d := x.s.d
	return x.s.commit(ctx, sb, entries, beside{
		may: func(has store.Sandbox) error {
			if has.ID == "" {
				return store.ErrChanged(sb.ID)
			}
			return d.replicas[sb.ID].Takes(sb, has, x.s.server, store.Gone(d.all(), x.s.server, has.Owner))
		},
		also: func() {
			if r, has := d.replicas[sb.ID]; has { // unless it has ended
				r.Checkpoint, r.Offered = sb.Record.Checkpoint.ID, ""
				d.replicas[sb.ID] = r
			}
			d.changed(store.KindOwners)
		},
	})
}
