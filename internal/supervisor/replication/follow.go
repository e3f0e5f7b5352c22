package replication

import (
	"context"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
)

// Follow is told each commit of a sandbox of this server, and what its record was before. It
// does not wait.
func (r *Replicator) Follow(before lifecycle.Record, sb store.Sandbox) {
	rec := sb.Record
	switch {
	case rec.State == lifecycle.Terminated:
		if before.State != lifecycle.Terminated {
			r.Ended(sb.ID)
		}
	case rec.Checkpoint == nil:
	case rec.State == lifecycle.Paused && rec.Op == nil, before.Phase() == lifecycle.Pausing && rec.Phase() == lifecycle.Resuming:
		r.Slept(sb.ID, store.CopyOf(*rec.Checkpoint))
	}
}

// Describe returns a sandbox of this server with where its checkpoint is.
func (r *Replicator) Describe(sb store.Sandbox) store.Sandbox {
	if r.o.Blobs == nil || sb.Record.Checkpoint == nil || sb.Record.State == lifecycle.Terminated {
		return sb
	}
	sb.Durability = store.Local
	switch state := r.State(sb.ID, store.CopyOf(*sb.Record.Checkpoint)); {
	case state.Complete:
		sb.Durability = store.Replicated
	case state.Err != nil:
		sb.Unreplicated = state.Err.Error()
	}
	return sb
}

// Open returns the copy of the checkpoint of a sandbox of another server, or of a snapshot as a
// sandbox, and what the database says of it. It is store.ErrNotReplicated where that is of another checkpoint.
func (r *Replicator) Open(ctx context.Context, sb store.Sandbox) (*replica.Reader, store.Replica, error) {
	if r.o.Blobs == nil {
		return nil, store.Replica{}, errdef.New(errdef.Conflict, "not_replicated", "this server was started without --blobs, and cannot read the copy of %s", sb.ID).
			WithRemedy("start it with the --blobs that it had")
	}
	has, err := r.o.Store.Replica(ctx, sb.ID)
	if errdef.Is(err, errdef.NotFound) || err == nil && (sb.Record.Checkpoint == nil || !store.Covers(has.Checkpoint, store.CopyOf(*sb.Record.Checkpoint))) {
		return nil, has, store.ErrNotReplicated(sb.ID)
	}
	if err != nil {
		return nil, has, err
	}
	x, err := replica.ReadIndex(ctx, r.o.Blobs, copyOf(has))
	if err != nil {
		return nil, has, err
	}
	return replica.Open(ctx, r.o.Blobs, x), has, nil
}
