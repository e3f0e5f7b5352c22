package supervisor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
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

const (
	// bytesPerInode is how many bytes of a limit allow for one file, as many as
	// on a disk of that size formatted for general use.
	bytesPerInode = 16 << 10
	// scarceSpace is the free space below which a sandbox past its limit is ended
	// rather than paused: a pause writes too.
	scarceSpace = 64 << 20
	// leastSlack is what a sandbox that woke past its limit may write at least,
	// so that it can be helped from inside: programs that it runs may be copied.
	leastSlack = 32 << 20
)

// disk is what is known of a sandbox's files. It is guarded by box.mu.
type disk struct {
	stack  []string // the frozen layers that were measured
	frozen layer.Usage
	taken  int64 // bytes of all its files at the last look

	generation int64       // of what follows
	tried      layer.Usage // what was taken when it was to be paused
	past       string      // why its runtime is being ended
}

// guardDisk keeps sandboxes within their limits on disk until the supervisor
// stops.
func (s *Supervisor) guardDisk(every time.Duration) {
	var last unix.Statfs_t
	var at time.Time
	for s.sleep(every) {
		st, err := s.statfs()
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
// limit: nothing is lost, and it can be helped from inside when it has woken.
// If there is no room for a pause, the runtime is ended.
func (b *box) limitDisk() {
	sb := b.snapshot()
	limit := limitOf(sb.Config.Limits.DiskMiB)
	if limit == (layer.Usage{}) || sb.Record.Op != nil || sb.Record.State != lifecycle.Running {
		return
	}
	frozen, taken, err := b.measure(sb, limit)
	if err != nil {
		b.s.log.Warn("files could not be measured", "sandbox", b.id, "err", err)
		return
	}
	b.noteTaken(taken.Bytes)
	most := limit
	if frozen.Exceeds(limit) {
		most = slack(frozen, limit)
	}
	if !taken.Exceeds(most) {
		return
	}
	detail := fmt.Sprintf("its files take %s, and its limit is %d MiB", describe(taken, limit), sb.Config.Limits.DiskMiB)
	b.stopPast(sb, detail, func() bool { return b.tries(sb.Record.Generation, taken, limit) })
}

// stopPast pauses a sandbox because of what is past its limit, if that is to be
// tried, and ends its runtime if there is no room for a pause.
func (b *box) stopPast(sb store.Sandbox, detail string, try func() bool) {
	if b.s.checkSpace(scarceSpace) != nil {
		b.endPast(sb, detail+"; the disk had no room for a pause")
		return
	}
	if try() {
		b.s.work.Go(func() { b.pauseFull(detail) })
	}
}

func (b *box) noteTaken(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disk.taken = bytes
}

// limitOf is what a limit allows; zero if there is none.
func limitOf(diskMiB int) layer.Usage {
	bytes := int64(diskMiB) << 20
	return layer.Usage{Bytes: bytes, Files: bytes / bytesPerInode}
}

// slack is how much may be had where there was too much before.
func slack(had, limit layer.Usage) layer.Usage {
	bytes := max(limit.Bytes/64, leastSlack)
	return layer.Usage{Bytes: max(had.Bytes, limit.Bytes) + bytes, Files: max(had.Files, limit.Files) + bytes/bytesPerInode}
}

// describe says what is past the limit.
func describe(taken, limit layer.Usage) string {
	if taken.Bytes > limit.Bytes {
		return fmt.Sprintf("%d MiB", taken.Bytes>>20)
	}
	return fmt.Sprintf("%d inodes, one for each %d KiB", taken.Files, bytesPerInode>>10)
}

// measure returns what a sandbox's frozen layers take, and those with its top
// and what is open and has no name. A top that is past all bounds is not
// measured to its end.
func (b *box) measure(sb store.Sandbox, limit layer.Usage) (frozen, taken layer.Usage, err error) {
	if frozen, err = b.frozenUsage(sb.Record.Checkpoint); err != nil {
		return frozen, frozen, err
	}
	top, err := b.s.o.Layers.Usage(runtimeID(b.id, sb.Record.Launch), slack(limit, limit))
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
		u, err := b.s.o.Layers.Usage(id, layer.Usage{Bytes: math.MaxInt64, Files: math.MaxInt64})
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

// tries reports whether a pause is to be tried: not again and again where it
// fails, but each time that more has been taken.
func (b *box) tries(generation int64, taken, limit layer.Usage) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.disk.generation == generation && !taken.Exceeds(slack(b.disk.tried, limit)) {
		return false
	}
	b.disk.generation, b.disk.tried, b.disk.past = generation, taken, ""
	return true
}

func (b *box) pauseFull(detail string) {
	err := b.pause(b.s.ctx, lifecycle.Memory, lifecycle.Meta{Cause: lifecycle.CauseDisk, Detail: detail})
	if err != nil && !errdef.Is(err, errdef.NotFound) {
		b.s.log.Warn("sandbox past its limit on disk not paused", "sandbox", b.id, "err", err)
	}
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
