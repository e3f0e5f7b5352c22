// Package disklimit measures what sandboxes take on disk, and says when it is time
// to: nothing tells when a guest writes, but who takes much makes the disk's free
// space shrink. What is to become of a sandbox past its limit is for others to say.
package disklimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	m.mu.Lock()
	m.taken = taken.Bytes
	m.mu.Unlock()
	most := limit
	if frozen.Exceeds(limit) {
		most = quota.Slack(frozen, limit)
	}
	if !taken.Exceeds(most) {
		return "", nil
	}
	return "its files take " + quota.Describe(taken, limit, "its"), nil
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
	top, err := m.layers.Usage(ctx, sweep.RuntimeID(sb.ID, sb.Record.Launch), quota.Slack(limit, limit))
	if err != nil {
		return frozen, frozen, err
	}
	taken = frozen.Plus(top)
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
		u, err := m.layers.Usage(ctx, id, layer.Unbounded)
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

// Uncounted says of a sandbox that could not be measured why it is stopped.
func Uncounted(err error) string {
	return fmt.Sprintf("its files could not be counted, which is taken for more than its limit: %v", err)
}
