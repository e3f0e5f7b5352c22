package memstore

import (
	"cmp"
	"context"
	"maps"
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
	has, err := d.known(r.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := x.s.own("sandbox", r.Sandbox, has.given.Owner); err != nil {
		return nil, err
	}
	if has.given.Record.State == lifecycle.Terminated {
		return nil, store.ErrSandboxNotFound(r.Sandbox)
	}
	r.At, r.Offered = r.At.UTC(), ""
	before, had := d.replicas[r.Sandbox]
	d.replicas[r.Sandbox] = r
	if !had {
		return nil, nil
	}
	return &before, nil
}

// Replica implements store.Replicas.
func (x replicas) Replica(_ context.Context, sandbox string) (store.Replica, error) {
	x.s.d.mu.Lock()
	defer x.s.d.mu.Unlock()
	r, has := x.s.d.replicas[sandbox]
	if !has {
		return r, store.ErrReplicaNotFound(sandbox)
	}
	return r, nil
}

// Replicas implements store.Replicas; they come by sandbox.
func (x replicas) Replicas(context.Context) ([]store.Replica, error) {
	x.s.d.mu.Lock()
	defer x.s.d.mu.Unlock()
	return slices.SortedFunc(maps.Values(x.s.d.replicas), func(a, b store.Replica) int { return cmp.Compare(a.Sandbox, b.Sandbox) }), nil
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
