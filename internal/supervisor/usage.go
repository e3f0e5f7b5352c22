package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Sample is what a sandbox used at a time.
type Sample struct {
	At time.Time
	// CPUPercent is how much of its CPUs it used since the sample before; 0 in the
	// first of a generation.
	CPUPercent float64
	Memory     int64 // bytes
	Cache      int64 // bytes
	// DiskUsed is what its own layers take of its limit, DiskTotal, as measured
	// last; without a limit they are of the disk that its files are on.
	DiskUsed  int64
	DiskTotal int64
}

// FleetSample is how many sandboxes ran at a time.
type FleetSample struct {
	At         time.Time
	Running    int
	StartsRate float64 // starts and wakes in a second, since the sample before
}

// How many samples are kept. Those of a sandbox take 64 bytes each, also while
// it sleeps.
const (
	mostSamples       = 360
	mostSamplesAsleep = 60
	mostFleetSamples  = 2000
)

// series is samples over time, oldest first, in bounded room: when it is full,
// the older half of them is joined in pairs. So it covers all the time, the
// last of it most finely.
type series[T any] struct{ kept []T }

// add appends a sample. join makes one of two that follow each other.
func (h *series[T]) add(s T, most int, join func(older, newer T) T) {
	h.thin(most-1, join)
	h.kept = append(h.kept, s)
}

// thin leaves no more than so many samples, at least two.
func (h *series[T]) thin(most int, join func(older, newer T) T) {
	for len(h.kept) > max(most, 2) {
		pairs := max(len(h.kept)/4, 1)
		thinner := make([]T, 0, len(h.kept)-pairs)
		for i := range pairs {
			thinner = append(thinner, join(h.kept[2*i], h.kept[2*i+1]))
		}
		h.kept = append(thinner, h.kept[2*pairs:]...)
	}
}

// between returns a copy of the samples of a time, both ends included to the
// second. A zero end is none.
func (h *series[T]) between(from, to time.Time, at func(T) time.Time) []T {
	var found []T
	for _, s := range h.kept {
		second := at(s).Unix()
		if (from.IsZero() || second >= from.Unix()) && (to.IsZero() || second <= to.Unix()) {
			found = append(found, s)
		}
	}
	return found
}

// joinSamples keeps the peaks.
func joinSamples(a, b Sample) Sample {
	b.CPUPercent = max(a.CPUPercent, b.CPUPercent)
	b.Memory, b.Cache = max(a.Memory, b.Memory), max(a.Cache, b.Cache)
	b.DiskUsed = max(a.DiskUsed, b.DiskUsed)
	return b
}

func joinFleet(a, b FleetSample) FleetSample {
	b.Running, b.StartsRate = max(a.Running, b.Running), max(a.StartsRate, b.StartsRate)
	return b
}

// meter is what is known of what one sandbox uses. It is guarded by box.mu.
type meter struct {
	samples series[Sample]
	inst    runtime.Instance // that was measured last
	at      time.Time        // when, on the monotonic clock
	cpu     time.Duration
}

// fleet is what is known of all sandboxes together.
type fleet struct {
	starts atomic.Int64 // since the last sample

	mu      sync.Mutex
	samples series[FleetSample]
	at      time.Time // of the last sample, on the monotonic clock
}

// sample measures all sandboxes that run every so often, until the supervisor
// stops. It asks the host, not what runs inside, so it is no activity and wakes
// nothing.
func (s *Supervisor) sample(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		running := 0
		s.each(func(b *box) {
			if b.takeSample() {
				running++
			}
		})
		s.fleet.add(running)
	}
}

// note counts the starts and wakes among the entries of the event log.
func (f *fleet) note(e lifecycle.Entry) {
	if e.Type == lifecycle.EntryRunning || e.Type == lifecycle.EntryResumed && e.Cause != lifecycle.CauseCheckpoint {
		f.starts.Add(1)
	}
}

func (f *fleet) add(running int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := time.Now()
	rate := 0.0
	if elapsed := t.Sub(f.at).Seconds(); !f.at.IsZero() && elapsed > 0 {
		rate = float64(f.starts.Swap(0)) / elapsed
	}
	f.at = t
	f.samples.add(FleetSample{At: now(), Running: running, StartsRate: rate}, mostFleetSamples, joinFleet)
}

// takeSample adds a sample if the sandbox serves, and reports whether it does. Of
// one that sleeps less is kept, of one that has ended nothing.
func (b *box) takeSample() (serves bool) {
	b.mu.Lock()
	inst := b.inst
	if inst == nil {
		b.settleLocked()
	}
	b.mu.Unlock()
	if inst == nil {
		return false
	}
	b.fetchLogSometimes(inst)
	used, err := usageOf(inst)
	diskUsed, diskTotal, diskErr := b.diskOf()
	if err := errors.Join(err, diskErr); err != nil {
		b.s.log.Debug("sandbox could not be measured", "sandbox", b.id, "err", err) // it may just have ended
		return true
	}
	at := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inst != inst {
		return false
	}
	m := &b.meter
	s := Sample{At: now(), Memory: used.Memory, Cache: used.Cache, DiskUsed: diskUsed, DiskTotal: diskTotal}
	if elapsed := at.Sub(m.at); m.inst == inst && elapsed > 0 {
		share := float64(used.CPU-m.cpu) / float64(elapsed) / float64(max(b.sb.Config.Limits.CPUs, 1))
		s.CPUPercent = 100 * min(max(share, 0), 1)
	}
	m.inst, m.at, m.cpu = inst, at, used.CPU
	m.samples.add(s, mostSamples, joinSamples)
	return true
}

// settleLocked keeps little of a sandbox that does not serve.
func (b *box) settleLocked() {
	b.meter.inst = nil
	if alive(b.sb) != nil {
		b.meter.samples.kept = nil
	}
	b.meter.samples.thin(mostSamplesAsleep, joinSamples)
}

func usageOf(inst runtime.Instance) (runtime.Usage, error) {
	m, ok := inst.(runtime.UsageMeter)
	if !ok {
		return runtime.Usage{}, fmt.Errorf("a %T does not tell what it uses", inst)
	}
	return m.Usage()
}

// diskOf returns what is taken of a sandbox's limit, as measured last, and the
// limit; without one, of the disk that its files are on.
func (b *box) diskOf() (used, total int64, err error) {
	b.mu.Lock()
	taken, limit := b.disk.taken, limitOf(b.sb.Config.Limits.DiskMiB)
	b.mu.Unlock()
	if limit.Bytes > 0 {
		return taken, limit.Bytes, nil
	}
	st, err := b.s.space.Stat()
	if err != nil {
		return 0, 0, err
	}
	return int64(st.Blocks-min(st.Bfree, st.Blocks)) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Samples returns what a sandbox that has not ended used in a time, oldest
// first; zero times bound nothing. A sandbox is not woken for it.
func (s *Supervisor) Samples(_ context.Context, id string, from, to time.Time) ([]Sample, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := alive(b.sb); err != nil {
		return nil, err
	}
	return b.meter.samples.between(from, to, func(s Sample) time.Time { return s.At }), nil
}

// LastSample returns the last sample of a sandbox; false if there is none.
func (s *Supervisor) LastSample(id string) (Sample, bool) {
	b, err := s.box(id)
	if err != nil {
		return Sample{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.meter.samples.kept
	if len(kept) == 0 {
		return Sample{}, false
	}
	return kept[len(kept)-1], true
}

// Fleet returns how many sandboxes ran in a time, oldest first; zero times bound
// nothing.
func (s *Supervisor) Fleet(_ context.Context, from, to time.Time) []FleetSample {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return s.fleet.samples.between(from, to, func(s FleetSample) time.Time { return s.At })
}
