package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
)

// When sandboxes are measured. Nothing tells when a guest writes, but who takes
// much makes the disk's free space shrink.
const (
	// shrunkBytes and shrunkFiles are how much less there must be than at the
	// last look.
	shrunkBytes, shrunkFiles = 32 << 20, 4096
	// diskAnyway is how long a look that nothing calls for is put off.
	diskAnyway = 30 * time.Second
)

// scarceSpace is the free space below which a sandbox past its limit is ended
// rather than paused: a pause writes too.
const scarceSpace = 64 << 20

// disk is what is known of a sandbox's files. It is guarded by box.mu.
type disk struct {
	stack  []string // the frozen layers that were measured
	frozen layer.Usage
	taken  int64 // bytes of all its files at the last look

	generation int64  // of what follows
	stopping   bool   // a pause is being tried
	failed     int    // how often one was not possible
	past       string // why its runtime is being ended
}

// guardDisk keeps sandboxes within their limits on disk until the supervisor
// stops.
func (s *Supervisor) guardDisk(every time.Duration) {
	var last unix.Statfs_t
	var at time.Time
	for s.sleep(every) {
		st, err := s.space.Stat()
		if err != nil {
			s.log.Warn("limits on disk are not looked after", "err", err)
			continue
		}
		shrunk := (int64(last.Bavail)-int64(st.Bavail))*st.Bsize >= shrunkBytes || int64(last.Ffree)-int64(st.Ffree) >= shrunkFiles
		if !shrunk && time.Since(at) < diskAnyway {
			last.Bavail, last.Ffree = max(last.Bavail, st.Bavail), max(last.Ffree, st.Ffree)
			continue
		}
		last, at = st, time.Now()
		s.eachRunning((*box).limitDisk)
		s.limitVolumes()
	}
}

// limitDisk measures a running sandbox, and pauses it if it takes more than its
// limit: nothing is lost, and it can be helped from inside when it has woken. What
// cannot be measured counts as past the limit. If a pause is not possible, the
// runtime is ended.
func (b *box) limitDisk() {
	sb := b.snapshot()
	if sb.Record.Op != nil || sb.Record.State != lifecycle.Running {
		return
	}
	limit := quota.OfSandbox(sb.Config.Limits.DiskMiB)
	frozen, taken, err := b.measure(sb, limit)
	if err != nil {
		b.stopUncounted(sb, err)
		return
	}
	b.noteTaken(taken.Bytes)
	most := limit
	if frozen.Exceeds(limit) {
		most = quota.Slack(frozen, limit)
	}
	if taken.Exceeds(most) {
		b.stopPast(sb, "its files take "+quota.Describe(taken, limit, "its"))
	}
}

// stopUncounted stops a sandbox that could not be measured, if it has not ended or
// begun to change meanwhile.
func (b *box) stopUncounted(sb store.Sandbox, err error) {
	b.s.log.Warn("files could not be measured", "sandbox", b.id, "err", err)
	if b.s.ctx.Err() == nil && b.runsOn(sb) {
		b.stopPast(sb, fmt.Sprintf("its files could not be counted, which is taken for more than its limit: %v", err))
	}
}

// runsOn reports whether a sandbox still runs in the same generation, with no
// operation in flight.
func (b *box) runsOn(sb store.Sandbox) bool {
	now := b.snapshot().Record
	return now.State == lifecycle.Running && now.Op == nil && now.Generation == sb.Record.Generation
}

// mostFailedPauses is how many pauses of a sandbox past its limit may fail before
// its runtime is ended.
const mostFailedPauses = 2

// stopPast pauses a sandbox because of what is past its limit, and ends its
// runtime if there is no room for a pause.
func (b *box) stopPast(sb store.Sandbox, detail string) {
	if b.s.space.Check(scarceSpace) != nil {
		b.endPast(sb, detail+"; the disk had no room for a pause")
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disk.generation != sb.Record.Generation {
		b.disk.generation, b.disk.failed, b.disk.past = sb.Record.Generation, 0, ""
	}
	if !b.disk.stopping {
		b.disk.stopping = true
		b.s.work.Go(func() { b.pauseFull(sb, detail) })
	}
}

func (b *box) noteTaken(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disk.taken = bytes
}

// measure returns what a sandbox's frozen layers take, and those with its top
// and what is open and has no name. A top that is past all bounds is not
// measured to its end.
func (b *box) measure(sb store.Sandbox, limit layer.Usage) (frozen, taken layer.Usage, err error) {
	if frozen, err = b.frozenUsage(sb.Record.Checkpoint); err != nil {
		return frozen, frozen, err
	}
	top, err := b.s.o.Layers.Usage(b.s.ctx, runtimeID(b.id, sb.Record.Launch), quota.Slack(limit, limit))
	if err != nil {
		return frozen, frozen, err
	}
	taken = frozen.Plus(top)
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	if m, ok := inst.(runtime.DiskMeter); ok {
		unlinked, err := m.Unlinked()
		if err != nil {
			return frozen, taken, err
		}
		taken.Bytes += unlinked
	}
	return frozen, taken, nil
}

// frozenUsage returns what the layers of a checkpoint take, which never change.
func (b *box) frozenUsage(cp *lifecycle.Checkpoint) (layer.Usage, error) {
	if cp == nil {
		return layer.Usage{}, nil
	}
	b.mu.Lock()
	known, sum := slices.Equal(b.disk.stack, cp.Stack), b.disk.frozen
	b.mu.Unlock()
	if known {
		return sum, nil
	}
	sum = layer.Usage{}
	for _, id := range cp.Stack {
		u, err := b.s.o.Layers.Usage(b.s.ctx, id, layer.Unbounded)
		if err != nil {
			return layer.Usage{}, err
		}
		sum = sum.Plus(u)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disk.stack, b.disk.frozen = cp.Stack, sum
	return sum, nil
}

// pauseFull pauses a sandbox that is past its limit. Where that fails for good,
// its runtime is ended: a limit that is not kept is none.
func (b *box) pauseFull(sb store.Sandbox, detail string) {
	err := b.pause(b.s.ctx, lifecycle.Memory, lifecycle.Meta{Cause: lifecycle.CauseDisk, Detail: detail})
	b.mu.Lock()
	b.disk.stopping = false
	if err != nil {
		b.disk.failed++
	}
	last := b.disk.failed >= mostFailedPauses || tooManyFiles(err)
	b.mu.Unlock()
	if err == nil || errdef.Is(err, errdef.NotFound) || b.s.ctx.Err() != nil || !b.runsOn(sb) {
		return
	}
	b.s.log.Warn("sandbox past its limit on disk not paused", "sandbox", b.id, "err", err)
	if last {
		b.endPast(sb, fmt.Sprintf("%s; it could not be paused: %v", detail, err))
	}
}

func tooManyFiles(err error) bool {
	e, ok := errors.AsType[*errdef.Error](err)
	return ok && e.Code == "too_many_files"
}

// endPast ends the runtime that is past its limit: what it has written since it
// was last paused goes.
func (b *box) endPast(sb store.Sandbox, detail string) {
	b.mu.Lock()
	is := b.sb.Record.Generation == sb.Record.Generation && b.inst != nil
	if is {
		b.disk.generation, b.disk.past = sb.Record.Generation, detail
	}
	b.mu.Unlock()
	if !is {
		return
	}
	b.s.log.Warn("sandbox past its limit on disk is ended", "sandbox", b.id, "detail", detail)
	if err := b.s.o.Driver.Remove(context.WithoutCancel(b.s.ctx), runtimeID(b.id, sb.Record.Launch)); err != nil {
		b.s.log.Error("runtime past its limit on disk not removed", "sandbox", b.id, "err", err)
	}
}

// wasPast says why the runtime of a generation was ended; empty if it was not.
func (b *box) wasPast(generation int64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disk.generation != generation {
		return ""
	}
	return b.disk.past
}
