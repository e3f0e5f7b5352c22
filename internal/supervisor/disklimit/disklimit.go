// Package disklimit keeps sandboxes within their limits on disk, their own and those
// of their volumes. It measures them when the disk's free space has shrunk: nothing
// else tells when a guest writes. A sandbox past its limit is paused, as any caller
// can have it paused. If that is not possible its runtime is ended, and Past says
// why: a limit always takes effect.
package disklimit

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
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
	// recountShare is the part of the time, inverted, for which what a sandbox has hidden
	// is counted at most while it is within its limit.
	recountShare = 20
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
	frozen frozen
	hidden hidden
	taken  layer.Usage   // all its files at the last look
	at     time.Time     // when that ended
	took   time.Duration // and how long it was
	woke   int64         // bytes of its files at the last look before the sandbox woke
	of     int64         // the generation that woke so; 0 before the first look
}

// frozen is what was measured of frozen layers, which never change.
type frozen struct {
	each   map[string]layer.Usage // of the layers of stack
	stack  []string
	all    layer.Usage // of these together
	hidden hidden      // of these, what one hides of another
}

// hidden is what was found that no mount shows of the frozen layers.
type hidden struct {
	layer.Usage
	generation int64       // of the sandbox; what another one hid may be back
	under      layer.Usage // what the top took then
	next       time.Time   // when it may be counted again
}

// NewMeter returns a meter of a sandbox with its files in layers.
func NewMeter(layers *layer.Store) *Meter { return &Meter{layers: layers} }

// Look measures a sandbox that runs, and says what is past its limit; "" if nothing
// is. One that woke past its limit may take a little more.
func (m *Meter) Look(ctx context.Context, sb store.Sandbox, inst runtime.Instance) (past string, err error) {
	begin := time.Now()
	limit := quota.OfSandbox(sb.Config.Limits.DiskMiB)
	lowers, _ := sb.Record.Lowers()
	below, err := m.measureFrozen(ctx, lowers)
	if err != nil {
		return "", err
	}
	had := without(below.all, below.hidden.Usage, limit)
	had.Bytes = max(had.Bytes, m.wokeWith(sb.Record.Generation))
	most := limit
	if had.Exceeds(limit) {
		most = quota.Slack(had, limit)
	}
	all, top, err := m.measure(ctx, sb, inst, below.all, most)
	if err != nil {
		return "", err
	}
	last := m.lastHidden(sb.Record.Generation, below)
	if without(all, last.Usage, limit).Exceeds(most) || top != last.under && time.Now().After(last.next) {
		last = m.countHidden(ctx, sb, below, top, last)
	}
	taken := without(all, last.Usage, limit)
	m.mu.Lock()
	m.taken, m.at = taken, time.Now()
	m.took = m.at.Sub(begin)
	m.mu.Unlock()
	if !taken.Exceeds(most) {
		return "", nil
	}
	return "its files take " + quota.Describe(taken, limit, "its"), nil
}

// without returns what counts of all. A merge gives back what is hidden, but before one
// it is on the disk, and counts where it is more than a limit.
func without(all, hidden, limit layer.Usage) layer.Usage { return all.Minus(hidden.Least(limit)) }

// wokeWith returns what the sandbox took before it woke. Files that are open and have
// no name are in no frozen layer, so that these alone do not tell. It is 0 where nothing
// was measured before, as after a server's start.
func (m *Meter) wokeWith(generation int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of != generation {
		m.of, m.woke = generation, m.taken.Bytes
	}
	return m.woke
}

// Taken returns what a sandbox took at the last look.
func (m *Meter) Taken() layer.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken
}

// last returns when the last look ended, and how long it took.
func (m *Meter) last() (at time.Time, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at, m.took
}

// measure returns what a sandbox's layers take with what is open and has no name, and
// its top alone. A top that is past all bounds is not measured to its end.
func (m *Meter) measure(ctx context.Context, sb store.Sandbox, inst runtime.Instance, below, most layer.Usage) (all, top layer.Usage, err error) {
	top, whiteouts, err := m.layers.Usage(ctx, sweep.RuntimeID(sb.ID, sb.Record.Launch), most.Plus(below))
	if err != nil {
		return all, top, err
	}
	// To remove a file of a frozen layer writes a name that hides it. Who makes room
	// takes no more for that. Names that hide the template's count all the same: there
	// may be any number of these.
	all = below.Plus(top).Minus(whiteouts.Least(below))
	if d, ok := inst.(runtime.DiskMeter); ok {
		unlinked, err := d.Unlinked()
		if err != nil {
			return all, top, err
		}
		all.Bytes += unlinked
	}
	return all, top, nil
}

// lastHidden returns what was last found hidden of the frozen layers. It only grows
// while a sandbox runs, so that an earlier count is never too much.
func (m *Meter) lastHidden(generation int64, below frozen) hidden {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hidden.generation != generation {
		m.hidden = below.hidden
		m.hidden.generation = generation
	}
	return m.hidden
}

// countHidden counts what is hidden of the frozen layers, by each other and by the top.
// What cannot be counted counts as before.
func (m *Meter) countHidden(ctx context.Context, sb store.Sandbox, below frozen, top layer.Usage, last hidden) hidden {
	now, err := m.hiddenOf(ctx, below, sweep.RuntimeID(sb.ID, sb.Record.Launch))
	if err != nil {
		return last
	}
	now.generation, now.under = last.generation, top
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden = now
	return now
}

func (m *Meter) hiddenOf(ctx context.Context, below frozen, top string) (hidden, error) {
	if len(below.stack) == 0 {
		return hidden{}, nil
	}
	begin := time.Now()
	shown, err := layer.Shown(ctx, m.layers, below.stack, top)
	end := time.Now()
	return hidden{Usage: below.all.Minus(shown.Least(below.all)), next: end.Add(recountShare * end.Sub(begin))}, err
}

// measureFrozen measures the frozen layers that a sandbox writes over.
func (m *Meter) measureFrozen(ctx context.Context, stack []string) (frozen, error) {
	m.mu.Lock()
	last := m.frozen
	m.mu.Unlock()
	if slices.Equal(last.stack, stack) {
		return last, nil
	}
	now := frozen{stack: stack, each: map[string]layer.Usage{}}
	for _, id := range stack {
		u, known := last.each[id]
		if !known {
			var err error
			if u, _, err = m.layers.Usage(ctx, id, layer.Unbounded); err != nil {
				return frozen{}, err
			}
		}
		now.each[id], now.all = u, now.all.Plus(u)
	}
	var err error
	if now.hidden, err = m.hiddenOf(ctx, now, ""); err != nil {
		return frozen{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen, m.hidden = now, hidden{}
	return now, nil
}

// tooManyFiles reports whether a pause failed because of the number of files.
func tooManyFiles(err error) bool {
	return errdef.CodeOf(err) == "too_many_files"
}
