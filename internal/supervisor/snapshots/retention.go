package snapshots

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Change is what becomes of a snapshot that stays; nil leaves a thing as it is.
type Change struct {
	Pinned    *bool
	ExpiresAt *time.Time // the zero time for never
}

// ChangeSnapshot changes how long a snapshot is kept.
func (s *Shelf) ChangeSnapshot(ctx context.Context, id string, c Change) (store.Snapshot, error) {
	snap, release, err := s.toChange(id)
	if err != nil {
		return snap, err
	}
	defer release()
	if err := OfTemplate(snap); err != nil {
		return snap, err
	}
	if snap.Undo {
		return snap, errdef.New(errdef.Invalid, "undo_is_kept", "%s keeps what sandbox %s was before its last restore, and is kept as long as that", snap.ID, snap.Sandbox).
			WithRemedy("restore the sandbox to it, then take a snapshot")
	}
	if c.Pinned != nil {
		snap.Pinned = *c.Pinned
	}
	if c.ExpiresAt != nil {
		snap.ExpiresAt = c.ExpiresAt.UTC().Truncate(time.Microsecond)
	}
	if err := s.o.Store.ChangeSnapshot(context.WithoutCancel(ctx), snap); err != nil {
		return snap, fmt.Errorf("change snapshot %s: %w", snap.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[snap.ID] = snap
	s.look()
	return s.o.described(snap), nil
}

// surplus returns the snapshots of the same sandbox, by the same key, that are too
// many if this one is made. Those that are pinned do not count, and neither do those
// that were not to make room for others. The caller holds mu.
func (s *Shelf) surplus(made store.Snapshot) []store.Snapshot {
	if made.KeepLast == 0 {
		return nil
	}
	var older []store.Snapshot
	for _, snap := range s.byID {
		if s.o.has(snap) && snap.KeepLast > 0 && snap.Sandbox == made.Sandbox && snap.Key == made.Key && !snap.Pinned && snap.ID != made.Replaces {
			older = append(older, snap)
		}
	}
	slices.SortFunc(older, newestFirst)
	return older[min(made.KeepLast-1, len(older)):]
}

// look has Expire look again at what expires when. The caller holds mu.
func (s *Shelf) look() {
	select {
	case s.looks <- struct{}{}:
	default: // it is going to
	}
}

// expireRetry is how long to wait before another try to remove what has expired.
const expireRetry = 10 * time.Second

// Expire removes snapshots when they expire, until ctx ends.
func (s *Shelf) Expire(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.looks:
		case <-timer.C:
		}
		next, failed := s.removeExpired(ctx)
		if failed {
			timer.Reset(expireRetry)
		} else if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// removeExpired removes those whose time has come, and returns when the next one's
// comes; zero for never.
func (s *Shelf) removeExpired(ctx context.Context) (next time.Time, failed bool) {
	now := time.Now()
	for _, snap := range s.OwnSnapshots() {
		switch end := snap.ExpiresAt; {
		case end.IsZero() || snap.Pinned:
		case end.After(now):
			if next.IsZero() || end.Before(next) {
				next = end
			}
		default:
			if err := s.RemoveSnapshot(ctx, snap.ID, ""); err != nil && !errdef.Is(err, errdef.NotFound) {
				s.o.Log.Error("expired snapshot could not be removed", "snapshot", snap.ID, "err", err)
				failed = true
			}
		}
	}
	return next, failed
}
