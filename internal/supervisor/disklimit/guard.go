package disklimit

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/sweep"
)

const (
	// ScarceSpace is the free space below which a sandbox past its limit is ended
	// rather than paused: a pause writes too.
	ScarceSpace = 64 << 20
	// mostFailedPauses is how many pauses of a sandbox past its limit may fail before
	// its runtime is ended.
	mostFailedPauses = 2
	// sideBySide is how many sandboxes are measured at a time.
	sideBySide = 4
	// askedShare is the part of the time, inverted, for which a sandbox is measured at
	// most because its programs ask, and quick how long they wait for that.
	askedShare = 4
	quick      = 50 * time.Millisecond
)

// Options are what a guard works with.
type Options struct {
	Layers *layer.Store
	Space  *space.Disk
	// LimitVolume measures a volume that sandboxes have which run, and says what is
	// past its limit; "" if nothing is.
	LimitVolume func(ctx context.Context, id string) string
	// Remove ends a runtime.
	Remove func(ctx context.Context, runtime string) error
	// EachRunning calls f for every sandbox that runs.
	EachRunning func(f func(*Tenant))
	// Go runs something in the background. The ctx that it gets ends with the server.
	Go  func(f func(ctx context.Context))
	Log *slog.Logger
}

// Guard keeps sandboxes within their limits on disk. It is safe for concurrent use.
type Guard struct{ o Options }

// NewGuard returns a guard that does nothing before Run.
func NewGuard(o Options) *Guard { return &Guard{o} }

// Run keeps sandboxes within their limits until ctx ends.
func (g *Guard) Run(ctx context.Context, every time.Duration) {
	var watch Watch
	for insist.Sleep(ctx, every) {
		st, err := g.o.Space.Stat()
		if err != nil {
			g.o.Log.Warn("limits on disk are not looked after", "err", err)
			continue
		}
		if watch.Due(st, time.Now()) {
			g.LimitAll(ctx)
			g.LimitVolumes(ctx)
		}
	}
}

// LimitAll measures all sandboxes that run, and stops those that are past their limits.
// Some are measured side by side: those that come after one with very many files would
// fill the disk meanwhile.
func (g *Guard) LimitAll(ctx context.Context) {
	var all errgroup.Group
	all.SetLimit(sideBySide)
	g.o.EachRunning(func(t *Tenant) {
		all.Go(func() error {
			t.Limit(ctx)
			return nil
		})
	})
	_ = all.Wait()
}

// LimitVolumes measures the volumes that running sandboxes have. Where one takes
// more than its limit, all of these sandboxes are stopped as one is that is past
// its own, whichever of them writes.
func (g *Guard) LimitVolumes(ctx context.Context) {
	users := map[string][]*Tenant{}
	g.o.EachRunning(func(t *Tenant) {
		sb := t.sandbox.Snapshot()
		if sb.Record.Op != nil {
			return
		}
		for _, m := range sb.Config.Volumes {
			if !slices.Contains(users[m.Volume], t) {
				users[m.Volume] = append(users[m.Volume], t)
			}
		}
	})
	for id, tenants := range users {
		past := g.o.LimitVolume(ctx, id)
		if past == "" {
			continue
		}
		for _, t := range tenants {
			if sb := t.sandbox.Snapshot(); runs(sb) {
				t.stop(ctx, sb, past)
			}
		}
	}
}

func runs(sb store.Sandbox) bool {
	return sb.Record.State == lifecycle.Running && sb.Record.Op == nil
}

// Sandbox is the owner of a sandbox, as its limit sees it.
type Sandbox interface {
	calls.Sandbox
	// Serving returns the sandbox as it was committed last, and the runtime that
	// serves; nil for none.
	Serving() (store.Sandbox, runtime.Instance)
}

// Tenant is a sandbox that takes room on the disk. It is safe for concurrent use.
// No method of its Sandbox is called with its lock held.
type Tenant struct {
	*Meter
	guard   *Guard
	sandbox Sandbox
	asked   sync.Mutex // held while it is measured for one that asks

	mu         sync.Mutex
	generation int64  // of what follows
	stopping   bool   // a pause is being tried
	failed     int    // how often one was not possible
	past       string // why its runtime is being ended
}

// Tenant returns a sandbox of which nothing is known yet.
func (g *Guard) Tenant(sandbox Sandbox) *Tenant {
	return &Tenant{Meter: NewMeter(g.o.Layers), guard: g, sandbox: sandbox}
}

// Limit measures a running sandbox, and pauses it if it takes more than its
// limit: nothing is lost, and it can be helped from inside when it has woken. What
// cannot be measured counts as past the limit. If a pause is not possible, the
// runtime is ended.
func (t *Tenant) Limit(ctx context.Context) {
	sb, inst := t.sandbox.Serving()
	if !runs(sb) {
		return
	}
	past, err := t.Look(ctx, sb, inst)
	switch {
	case err != nil:
		t.stopUncounted(ctx, sb, err)
	case past != "":
		t.stop(ctx, sb, past)
	}
}

// Disk returns what a sandbox's programs see of its disk.
func (t *Tenant) Disk() runtime.Disk {
	limit := t.sandbox.Snapshot().Config.Limits.DiskMiB
	if limit == 0 {
		return runtime.Disk{}
	}
	return runtime.Disk{Limit: quota.OfSandbox(limit), Taken: t.Taken()}
}

// Use returns what is taken of a sandbox's limit, as measured last, and the limit;
// without one, of the disk that its files are on.
func (t *Tenant) Use() (used, total int64, err error) {
	if d := t.Disk(); d != (runtime.Disk{}) {
		return d.Taken.Bytes, d.Limit.Bytes, nil
	}
	st, err := t.guard.o.Space.Stat()
	if err != nil {
		return 0, 0, err
	}
	return int64(st.Blocks-min(st.Bfree, st.Blocks)) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Tell tells a sandbox's programs of its disk for as long as its runtime is there, and
// ctx has not ended. It returns at once.
func (t *Tenant) Tell(ctx context.Context, inst runtime.Instance) {
	teller, ok := inst.(runtime.DiskTeller)
	if !ok {
		return
	}
	go func() {
		before := t.Disk()
		if before == (runtime.Disk{}) {
			return
		}
		err := teller.TellDisk(ctx, before, func(ctx context.Context) runtime.Disk {
			t.lookFor(ctx)
			return t.Disk()
		})
		if err != nil {
			t.guard.o.Log.Warn("sandbox does not see its limit on disk", "sandbox", t.sandbox.Snapshot().ID, "err", err)
		}
	}()
}

// lookFor measures a sandbox for one that asks, who waits for it only where that is
// quick.
func (t *Tenant) lookFor(ctx context.Context) {
	at, took := t.last()
	if time.Since(at) < askedShare*took || !t.asked.TryLock() {
		return
	}
	look := func(ctx context.Context) {
		defer t.asked.Unlock()
		t.Limit(ctx)
	}
	if took > quick {
		t.guard.o.Go(look)
		return
	}
	look(ctx)
}

// stopUncounted stops a sandbox that could not be measured, if it has not ended or
// begun to change meanwhile.
func (t *Tenant) stopUncounted(ctx context.Context, sb store.Sandbox, err error) {
	t.guard.o.Log.Warn("files could not be measured", "sandbox", sb.ID, "err", err)
	if ctx.Err() == nil && t.runsOn(sb) {
		t.stop(ctx, sb, fmt.Sprintf("its files could not be counted, which is taken for more than its limit: %v", err))
	}
}

// runsOn reports whether a sandbox still runs in the same generation, with no
// operation in flight.
func (t *Tenant) runsOn(sb store.Sandbox) bool {
	now := t.sandbox.Snapshot()
	return runs(now) && now.Record.Generation == sb.Record.Generation
}

// stop pauses a sandbox because of what is past its limit, and ends its runtime if
// there is no room for a pause.
func (t *Tenant) stop(ctx context.Context, sb store.Sandbox, detail string) {
	if t.guard.o.Space.Check(ScarceSpace) != nil {
		t.end(ctx, sb, detail+"; the disk had no room for a pause")
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.generation != sb.Record.Generation {
		t.generation, t.failed, t.past = sb.Record.Generation, 0, ""
	}
	if !t.stopping {
		t.stopping = true
		t.guard.o.Go(func(ctx context.Context) { t.pause(ctx, sb, detail) })
	}
}

// pause pauses a sandbox that is past its limit. Where that fails for good, its
// runtime is ended: a limit that is not kept is none.
func (t *Tenant) pause(ctx context.Context, sb store.Sandbox, detail string) {
	err := calls.PauseAnyhow(ctx, t.sandbox, lifecycle.Meta{Cause: lifecycle.CauseDisk, Detail: detail})
	t.mu.Lock()
	t.stopping = false
	if err != nil {
		t.failed++
	}
	last := t.failed >= mostFailedPauses || tooManyFiles(err)
	t.mu.Unlock()
	if err == nil || errdef.Is(err, errdef.NotFound) || ctx.Err() != nil || !t.runsOn(sb) {
		return
	}
	t.guard.o.Log.Warn("sandbox past its limit on disk not paused", "sandbox", sb.ID, "err", err)
	if last {
		t.end(ctx, sb, fmt.Sprintf("%s; it could not be paused: %v", detail, err))
	}
}

// end ends the runtime that is past its limit: what it has written since it was
// last paused goes.
func (t *Tenant) end(ctx context.Context, sb store.Sandbox, detail string) {
	now, inst := t.sandbox.Serving()
	if now.Record.Generation != sb.Record.Generation || inst == nil {
		return
	}
	t.mu.Lock()
	t.generation, t.past = sb.Record.Generation, detail
	t.mu.Unlock()
	t.guard.o.Log.Warn("sandbox past its limit on disk is ended", "sandbox", sb.ID, "detail", detail)
	if err := t.guard.o.Remove(context.WithoutCancel(ctx), sweep.RuntimeID(sb.ID, sb.Record.Launch)); err != nil {
		t.guard.o.Log.Error("runtime past its limit on disk not removed", "sandbox", sb.ID, "err", err)
	}
}

// Past says why the runtime of a generation was ended; empty if it was not.
func (t *Tenant) Past(generation int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.generation != generation {
		return ""
	}
	return t.past
}
