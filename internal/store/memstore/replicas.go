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
	take, err := x.takeSnapshot(store.Remade{Was: was, Made: made, Config: config})
	if err != nil {
		return store.Snapshot{}, err
	}
	take()
	return d.snaps[d.snapshot(was.ID)].read(d)
}

// takeSnapshot returns what takes a snapshot over, where that may be.
func (x replicas) takeSnapshot(of store.Remade) (take func(), err error) {
	d := x.s.d
	i := d.snapshot(of.Was.ID)
	if i < 0 {
		return nil, store.ErrSnapshotNotFound(of.Was.ID)
	}
	snap, err := d.snaps[i].read(d)
	if err != nil {
		return nil, err
	}
	r := d.replicas[snap.ID]
	if err := r.TakesSnapshot(of.Was, snap, x.s.server, store.Given(d.all(), x.s.server, snap.Owner)); err != nil {
		return nil, err
	}
	snap.Checkpoint, snap.Config, snap.Owner = of.Made, of.Config, x.s.server
	data, err := encode(snap)
	return func() { x.moveSnapshot(i, snap, r, data) }, err
}

// moveSnapshot stores that a snapshot has another owner, with what that has made of it.
func (x replicas) moveSnapshot(i int, snap store.Snapshot, r store.Replica, data []byte) {
	d := x.s.d
	d.parts.drop(snap.ID, d.snaps[i].parts)
	d.snaps[i] = snapshot{snap.ID, snap.Key, snap.Name, snap.Owner, snap.DiskMiB(), snap.Config.Build != "", snap.Checkpoint.Parts(), data}
	d.parts.hold(snap.ID, d.snaps[i].parts, true)
	r.Checkpoint = store.CopyOf(snap.Checkpoint)
	d.replicas[snap.ID] = r
	d.changed(store.KindSnapshots)
}

// TakeTemplate implements store.Replicas.
func (x replicas) TakeTemplate(_ context.Context, t store.Template, results []store.Remade) error {
	if err := x.s.lock(); err != nil {
		return err
	}
	d := x.s.d
	defer d.mu.Unlock()
	is, known := d.built[t.ID]
	if !known {
		return store.ErrTemplateNotFound(t.ID)
	}
	has, err := is.read()
	if err == nil {
		err = t.Takes(has, x.s.server, d.all())
	}
	if err != nil {
		return err
	}
	takes, left := []func(){}, has.Snapshots()
	for _, of := range results {
		take, err := x.takeSnapshot(of)
		if err != nil {
			return err
		}
		takes = append(takes, take)
		delete(left, of.Was.ID)
	}
	needed := t.Snapshots()
	for id := range left {
		if needed[id] && d.snapshot(id) >= 0 {
			return store.ErrSnapshotNotReplicated(id)
		}
	}
	is.owner = x.s.server
	d.built[t.ID] = is
	if err := x.s.putTemplate(t); err != nil {
		is.owner = has.Owner
		d.built[t.ID] = is
		return err
	}
	for _, take := range takes {
		take()
	}
	for id := range left {
		if i := d.snapshot(id); i >= 0 && d.snaps[i].owner == has.Owner {
			d.removeSnapshot(i)
		}
	}
	return nil
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
				r.Checkpoint, r.Offered = store.CopyOf(*sb.Record.Checkpoint), ""
				d.replicas[sb.ID] = r
			}
			d.changed(store.KindOwners)
		},
	})
}
