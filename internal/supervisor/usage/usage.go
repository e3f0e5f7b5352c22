// Package usage keeps what sandboxes used over time, and how many of them ran,
// in bounded room.
package usage

import (
	"cmp"
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

// Meter is what is known of what one sandbox uses. It has no lock of its own.
type Meter struct {
	samples series[Sample]
	inst    runtime.Instance // that was measured last
	at      time.Time        // when, on the monotonic clock
	cpu     time.Duration
}

// Measured is what was found when a runtime was measured.
type Measured struct {
	At time.Time // on the monotonic clock
	runtime.Usage
	CPUs                float64 // that it may use
	DiskUsed, DiskTotal int64
}

// Add adds a sample of a runtime.
func (m *Meter) Add(inst runtime.Instance, found Measured) {
	s := Sample{At: now(), Memory: found.Memory, Cache: found.Cache, DiskUsed: found.DiskUsed, DiskTotal: found.DiskTotal}
	if elapsed := found.At.Sub(m.at); m.inst == inst && elapsed > 0 {
		share := float64(found.CPU-m.cpu) / float64(elapsed) / cmp.Or(found.CPUs, 1)
		s.CPUPercent = 100 * min(max(share, 0), 1)
	}
	m.inst, m.at, m.cpu = inst, found.At, found.CPU
	m.samples.add(s, mostSamples, joinSamples)
}

// Settle keeps little of a sandbox that does not serve, and nothing of one that
// has ended.
func (m *Meter) Settle(ended bool) {
	m.inst = nil
	if ended {
		m.samples.kept = nil
	}
	m.samples.thin(mostSamplesAsleep, joinSamples)
}

// Between returns the samples of a time, oldest first; zero times bound nothing.
func (m *Meter) Between(from, to time.Time) []Sample {
	return m.samples.between(from, to, func(s Sample) time.Time { return s.At })
}

// Last returns the last sample; false if there is none.
func (m *Meter) Last() (Sample, bool) {
	kept := m.samples.kept
	if len(kept) == 0 {
		return Sample{}, false
	}
	return kept[len(kept)-1], true
}

// Fleet is what is known of all sandboxes together. It is safe for concurrent
// use.
type Fleet struct {
	starts atomic.Int64 // since the last sample

	mu      sync.Mutex
	samples series[FleetSample]
	at      time.Time // of the last sample, on the monotonic clock
}

// Note counts the starts and wakes among the entries of the event log.
func (f *Fleet) Note(e lifecycle.Entry) {
	if e.Type == lifecycle.EntryRunning || e.Type == lifecycle.EntryResumed && !e.Cause.GoesOn() {
		f.starts.Add(1)
	}
}

// Add adds a sample.
func (f *Fleet) Add(running int) {
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

// Between returns the samples of a time, oldest first; zero times bound nothing.
func (f *Fleet) Between(from, to time.Time) []FleetSample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.samples.between(from, to, func(s FleetSample) time.Time { return s.At })
}

// Of returns what a runtime uses now.
func Of(inst runtime.Instance) (runtime.Usage, error) {
	m, ok := inst.(runtime.UsageMeter)
	if !ok {
		return runtime.Usage{}, fmt.Errorf("a %T does not tell what it uses", inst)
	}
	return m.Usage()
}

// now is the time as it is shown: UTC, in microseconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
