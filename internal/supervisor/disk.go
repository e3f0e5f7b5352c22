package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/disklimit"
)

// scarceSpace is the free space below which a sandbox past its limit is ended
// rather than paused: a pause writes too.
const scarceSpace = 64 << 20

// disk is what is known of a sandbox's files. It is guarded by box.mu.
type disk struct {
	meter *disklimit.Meter // has a lock of its own

	generation int64  // of what follows
	stopping   bool   // a pause is being tried
	failed     int    // how often one was not possible
	past       string // why its runtime is being ended
}

// guardDisk keeps sandboxes within their limits on disk until the supervisor
// stops.
func (s *Supervisor) guardDisk(every time.Duration) {
	var watch disklimit.Watch
	for s.sleep(every) {
		st, err := s.space.Stat()
		if err != nil {
			s.log.Warn("limits on disk are not looked after", "err", err)
			continue
		}
		if watch.Due(st, time.Now()) {
			s.eachRunning((*box).limitDisk)
			s.limitVolumes()
		}
	}
}

// limitDisk measures a running sandbox, and pauses it if it takes more than its
// limit: nothing is lost, and it can be helped from inside when it has woken. What
// cannot be measured counts as past the limit. If a pause is not possible, the
// runtime is ended.
func (b *box) limitDisk() {
	b.mu.Lock()
	sb, inst := b.sb, b.inst
	b.mu.Unlock()
	if sb.Record.Op != nil || sb.Record.State != lifecycle.Running {
		return
	}
	past, err := b.disk.meter.Look(b.s.ctx, sb, inst)
	switch {
	case err != nil:
		b.stopUncounted(sb, err)
	case past != "":
		b.stopPast(sb, past)
	}
}

// stopUncounted stops a sandbox that could not be measured, if it has not ended or
// begun to change meanwhile.
func (b *box) stopUncounted(sb store.Sandbox, err error) {
	b.s.log.Warn("files could not be measured", "sandbox", b.id, "err", err)
	if b.s.ctx.Err() == nil && b.runsOn(sb) {
		b.stopPast(sb, disklimit.Uncounted(err))
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
