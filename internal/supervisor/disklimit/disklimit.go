// Package disklimit keeps sandboxes within their limits on disk, their own and those
// of their volumes. It measures them when the disk's free space has shrunk: nothing
// else tells when a guest writes. A sandbox past its limit is paused, as any caller
// can have it paused. If that is not possible its runtime is ended, and Past says
// why: a limit always takes effect.
package disklimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// When sandboxes are measured.
const (
	// shrunkBytes and shrunkFiles are how much less there must be free than at the
	// last look.
	shrunkBytes, shrunkFiles = 32 << 20, 4096
	// anyway is how long a look that nothing calls for is put off.
	anyway = 30 * time.Second
)

// Watch says when to measure. It is for one goroutine.
type Watch struct {
	last unix.Statfs_t
	at   time.Time
}

// Due reports whether to measure now, with so much free on the disk.
func (w *Watch) Due(st unix.Statfs_t, now time.Time) bool {
	shrunk := (int64(w.last.Bavail)-int64(st.Bavail))*st.Bsize >= shrunkBytes || int64(w.last.Ffree)-int64(st.Ffree) >= shrunkFiles
	if !shrunk && now.Sub(w.at) < anyway {
		w.last.Bavail, w.last.Ffree = max(w.last.Bavail, st.Bavail), max(w.last.Ffree, st.Ffree)
		return false
	}
	w.last, w.at = st, now
	return true
}

// Meter measures the files of one sandbox. It is safe for concurrent use.
type Meter struct {
	layers *layer.Store

	mu     sync.Mutex
	stack  []string // the frozen layers that were measured, which never change
	frozen layer.Usage
	taken  int64 // bytes of all its files at the last look
	woke   int64 // the same at the last look before the sandbox woke
	of     int64 // the generation that woke so; 0 before the first look
}

// NewMeter returns a meter of a sandbox with its files in layers.
func NewMeter(layers *layer.Store) *Meter { return &Meter{layers: layers} }

// Look measures a sandbox that runs, and says what is past its limit; "" if nothing
// is. One that woke past its limit may take a little more.
func (m *Meter) Look(ctx context.Context, sb store.Sandbox, inst runtime.Instance) (past string, err error) {
	limit := quota.OfSandbox(sb.Config.Limits.DiskMiB)
	frozen, taken, err := m.measure(ctx, sb, inst, limit)
	if err != nil {
		return "", err
	}
	had := frozen
	had.Bytes = max(had.Bytes, m.note(sb.Record.Generation, taken.Bytes))
	most := limit
	if had.Exceeds(limit) {
		most = quota.Slack(had, limit)
	}
	if !taken.Exceeds(most) {
		return "", nil
	}
	return "its files take " + quota.Describe(taken, limit, "its"), nil
}

// note notes what a look has found, and returns what the sandbox took before it woke.
// Files that are open and have no name are in no frozen layer, so that these alone do
// not tell. It is 0 where nothing was measured before, as after a server's start.
func (m *Meter) note(generation, taken int64) (woke int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of != generation {
		m.of, m.woke = generation, m.taken
	}
	m.taken = taken
	return m.woke
}

// Taken returns how many bytes a sandbox took at the last look.
func (m *Meter) Taken() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken
}

// measure returns what a sandbox's frozen layers take, and those with its top and
// what is open and has no name. A top that is past all bounds is not measured to
// its end.
func (m *Meter) measure(ctx context.Context, sb store.Sandbox, inst runtime.Instance, limit layer.Usage) (frozen, taken layer.Usage, err error) {
	if frozen, err = m.frozenUsage(ctx, sb.Record.Checkpoint); err != nil {
		return frozen, frozen, err
	}
	// To remove a file of a frozen layer writes a name that hides it. Who makes room
	// takes no more for that. Names that hide the template's count all the same: there
	// may be any number of these.
	enough := quota.Slack(limit, limit)
	enough.Files, enough.NameBytes = enough.Files+frozen.Files, enough.NameBytes+frozen.NameBytes
	top, whiteouts, err := m.layers.Usage(ctx, sweep.RuntimeID(sb.ID, sb.Record.Launch), enough)
	if err != nil {
		return frozen, frozen, err
	}
	taken = frozen.Plus(top).Minus(whiteouts.Least(frozen))
	if d, ok := inst.(runtime.DiskMeter); ok {
		unlinked, err := d.Unlinked()
		if err != nil {
			return frozen, taken, err
		}
		taken.Bytes += unlinked
	}
	return frozen, taken, nil
}

// frozenUsage returns what the layers of a checkpoint take.
func (m *Meter) frozenUsage(ctx context.Context, cp *lifecycle.Checkpoint) (layer.Usage, error) {
	if cp == nil {
		return layer.Usage{}, nil
	}
	m.mu.Lock()
	known, sum := slices.Equal(m.stack, cp.Stack), m.frozen
	m.mu.Unlock()
	if known {
		return sum, nil
	}
	sum = layer.Usage{}
	for _, id := range cp.Stack {
		u, _, err := m.layers.Usage(ctx, id, layer.Unbounded)
		if err != nil {
			return layer.Usage{}, err
		}
		sum = sum.Plus(u)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stack, m.frozen = cp.Stack, sum
	return sum, nil
}

// tooManyFiles reports whether a pause failed because of the number of files.
func tooManyFiles(err error) bool {
	e, ok := errors.AsType[*errdef.Error](err)
	return ok && e.Code == "too_many_files"
}
