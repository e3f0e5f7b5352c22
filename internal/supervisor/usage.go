package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// sample measures all sandboxes that run every so often, until the supervisor
// stops. It asks the host, not what runs inside, so it is no activity and wakes
// nothing.
func (s *Supervisor) sample(every time.Duration) {
	insist.Every(s.ctx, every, func() {
		running := 0
		s.each(func(b *box) {
			if b.takeSample() {
				running++
			}
		})
		s.fleet.Add(running)
	})
}

// takeSample adds a sample if the sandbox serves, and reports whether it does. Of
// one that sleeps less is kept, of one that has ended nothing.
func (b *box) takeSample() (serves bool) {
	b.mu.Lock()
	inst := b.inst
	if inst == nil {
		b.meter.Settle(outcome.Alive(&b.sb) != nil)
	}
	b.mu.Unlock()
	if inst == nil {
		return false
	}
	b.fetchLogSometimes(inst)
	used, err := usage.Of(inst)
	diskUsed, diskTotal, diskErr := b.tenant.Use()
	if err := errors.Join(err, diskErr); err != nil {
		b.s.log.Debug("sandbox could not be measured", "sandbox", b.id, "err", err) // it may just have ended
		return true
	}
	found := usage.Measured{At: time.Now(), Usage: used, DiskUsed: diskUsed, DiskTotal: diskTotal}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inst != inst {
		return false
	}
	found.CPUs = b.sb.Config.Limits.CPUs
	b.meter.Add(inst, found)
	return true
}

// Samples returns what a sandbox that has not ended used in a time, oldest
// first; zero times bound nothing. A sandbox is not woken for it.
func (s *Supervisor) Samples(_ context.Context, id string, from, to time.Time) ([]usage.Sample, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := outcome.Alive(&b.sb); err != nil {
		return nil, err
	}
	return b.meter.Between(from, to), nil
}

// LastSample returns the last sample of a sandbox; false if there is none.
func (s *Supervisor) LastSample(id string) (usage.Sample, bool) {
	b, err := s.box(id)
	if err != nil {
		return usage.Sample{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.meter.Last()
}

// Fleet returns how many sandboxes ran in a time, oldest first; zero times bound
// nothing.
func (s *Supervisor) Fleet(_ context.Context, from, to time.Time) []usage.FleetSample {
	return s.fleet.Between(from, to)
}
