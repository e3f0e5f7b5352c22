package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/commits"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// activeStale is how old the last activity that is stored may be, by more than
// the time between two looks, of a sandbox that has been active since.
const activeStale = 30 * time.Second

// keepActivity stores the last activity of sandboxes again and again, so that a
// server that comes after this one knows it; and tells of requests that stall,
// for which no timer is set.
func (s *Supervisor) keepActivity(every time.Duration) {
	for s.sleep(every) {
		s.each(func(b *box) {
			b.mu.Lock()
			b.reportStalledAccesses(ids.Now())
			b.mu.Unlock()
			if err := b.storeActivity(activeStale); err != nil {
				s.log.Warn("last activity could not be stored", "sandbox", b.id, "err", err)
			}
		})
	}
}

// storeAllActivity stores the last activity of all sandboxes, for a server that
// stops.
func (s *Supervisor) storeAllActivity(ctx context.Context) error {
	var errs []error
	s.each(func(b *box) {
		if ctx.Err() == nil {
			errs = append(errs, b.storeActivity(0))
		}
	})
	return errors.Join(errs...)
}

// storeActivity commits the last activity if what is stored is older, and than
// stale too, where a clock measures it. In the middle of an operation that stores it by itself.
func (b *box) storeActivity(stale time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := ids.Now()
	last, requested := b.lastActiveLocked(t)
	if b.inst == nil || !b.last.Known() || !b.sb.Record.Settings.MeasuresWork() || b.sb.Record.Op != nil || !last.After(b.sb.ActiveAt) || t.Sub(b.sb.ActiveAt) < stale {
		return nil
	}
	next := b.sb
	next.ActiveAt, next.RequestedAt = last, requested
	return b.s.commits.Commit(&b.last, &commits.Change{Sandbox: next, Stored: func(sb store.Sandbox) { b.sb = sb }})
}
