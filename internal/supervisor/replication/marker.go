package replication

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// The database says which copies are complete, and knows nothing of a bucket that is emptied
// or exchanged. So each server has a marker in the store, and looks for it when it starts.

// mostMarker bounds what is read of a marker, whose presence is all that counts.
const mostMarker = 1 << 10

// marker is that of a Replicator's server.
type marker struct{ *Replicator }

func (r marker) key() string { return r.o.Prefix + "/servers/" + r.o.Server }

// found waits until the store says whether it has the marker; true if ctx ends before.
func (r marker) found(ctx context.Context) bool {
	for {
		_, err := r.o.Blobs.Get(ctx, r.key(), mostMarker)
		switch {
		case err == nil, errdef.CodeOf(err) == "blob_too_large":
			r.noteFound(true)
			return true
		case errdef.Is(err, errdef.NotFound):
			r.noteFound(false)
			return false
		case ctx.Err() != nil:
			return true
		}
		pause(ctx, r.unanswered(err))
	}
}

// unanswered notes that the store does not answer, and returns when to ask again.
func (r marker) unanswered(err error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now()
	r.failStore(now, result{err: err, store: true})
	r.tell()
	return r.again.Sub(now)
}

// noteFound notes that the store answers, and whether it has the marker: if not, all copies
// that were in it are gone, and what sleeps is copied again.
func (r marker) noteFound(there bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = 0
	r.logUp()
	if there {
		return
	}
	lost := 0
	for id, s := range r.sandboxes {
		if s.replica == nil {
			continue
		}
		if s.has(s.wanted) { // the others do not sleep here, or are copied anyway
			lost++
			s.since, s.rests = r.o.Now(), false
			r.pending[id] = s
		}
		s.doubt(*s.replica)
		s.lost = r.pending[id] == s
	}
	if lost > 0 {
		r.o.Log.Warn("the object storage has lost the copies of this server, or is another one than before; all sandboxes that sleep and all snapshots are copied again", "store", r.o.Blobs, "copies", lost)
	}
	r.tell()
}

// put puts the marker, once everything that was lost has its copy again: else a server
// that starts anew before would not know that it is lost.
func (r marker) put(ctx context.Context) {
	if !r.awaitLost(ctx) {
		return
	}
	for n := 1; ctx.Err() == nil; n++ {
		err := r.o.Blobs.Put(ctx, r.key(), []byte(r.o.Server))
		if err == nil {
			return
		}
		if n == 1 && ctx.Err() == nil {
			r.o.Log.Warn("the marker of this server cannot be written to the object storage; trying again. Until it is there, a start of the server copies all sandboxes that sleep and all snapshots", "err", err)
		}
		pause(ctx, backoff(n))
	}
}

// awaitLost waits until nothing that was lost is to be copied any more; false if ctx has
// ended.
func (r marker) awaitLost(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.lost() {
		if !r.await(ctx) {
			return false
		}
	}
	return true
}

// lost reports whether something that was lost is still to be copied. The caller holds mu.
func (r marker) lost() bool {
	for _, s := range r.pending {
		if s.lost && !s.rests {
			return true
		}
	}
	return false
}

// pause waits for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	due := time.NewTimer(d)
	defer due.Stop()
	select {
	case <-due.C:
	case <-ctx.Done():
	}
}
