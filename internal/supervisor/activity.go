package supervisor

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

const (
	// pollTimeout bounds one look.
	pollTimeout = 2 * time.Second
	// fresh is how long what was seen may be used.
	fresh = 50 * time.Millisecond
)

// activityLocked is what the lifecycle needs to know of what goes on.
func (b *box) activityLocked(now time.Time) lifecycle.Activity {
	return b.work.Activity(b.sb.Record, now)
}

// lastActiveLocked returns when the sandbox was active last, and the same without
// processes.
func (b *box) lastActiveLocked(now time.Time) (active, requested time.Time) {
	return b.work.LastActive(b.sb, now)
}

// mustLookLocked reports whether a deadline that has come rests on what goes on
// inside, processes or leases, and that is not known freshly.
func (b *box) mustLookLocked(d lifecycle.Deadline, now time.Time) bool {
	about := d.Clock == lifecycle.ClockIdle || d.Clock == lifecycle.ClockRecheck ||
		d.Clock == lifecycle.ClockTimeout && b.sb.Record.Settings.RefreshOnActivity != lifecycle.NoRefresh
	return about && !now.Before(d.At) && b.work.Age(now) > fresh && b.inst != nil
}

// lookAndFire looks at the processes inside and then lets the timer fire.
func (b *box) lookAndFire() {
	b.mu.Lock()
	inst := b.inst
	if inst == nil || b.polling {
		b.mu.Unlock()
		return
	}
	b.polling = true
	b.mu.Unlock()
	b.s.work.Go(func() {
		defer func() {
			b.mu.Lock()
			b.polling = false
			b.mu.Unlock()
			b.fire()
		}()
		b.look(b.s.ctx, inst)
	})
}

// lookableLocked returns the runtime that can be asked what goes on inside; nil
// while there is none, or it may be frozen.
func (b *box) lookableLocked() runtime.Instance {
	if b.sb.Record.Op != nil {
		return nil
	}
	return b.inst
}

// servedBy returns the runtime of a sandbox that can be asked, nil for none, and
// what writes to its event log.
func servedBy(s *Supervisor, id string) (runtime.Instance, func(lifecycle.Entry) error) {
	b, err := s.box(id)
	if err != nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lookableLocked(), audited(b)
}

// agent returns the agent of a runtime of the sandbox.
func (b *box) agent(inst runtime.Instance) agentclient.Agent {
	return b.s.guests.Agent(inst, b.id)
}

// look asks the agent what is going on.
func (b *box) look(ctx context.Context, inst runtime.Instance) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	ignored := b.ignored.Load()
	seen, err := b.agent(inst).Activity(ctx, ignored-b.ignoredTold.Load())
	now := ids.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.ignoredTold.Store(ignored)
	}
	if b.inst != inst || err != nil && b.lookableLocked() == nil {
		return // it was about to sleep
	}
	if err != nil {
		if b.work.Miss(now) {
			b.s.log.Warn("sandbox gives no telemetry; its idle timeout is held back", "sandbox", b.id, "err", err)
		}
		return
	}
	b.logStalls(b.work.Look(agentclient.ToHostClock(seen, now), b.sb.Record, now), now)
}

// logStalls logs what has stopped counting.
func (b *box) logStalls(stalled []string, now time.Time) {
	for _, what := range stalled {
		e := lifecycle.Entry{Type: lifecycle.EntryStalled, At: now, Detail: what}
		if err := b.logEntry(e); err != nil {
			b.s.log.Error("event could not be logged", "sandbox", b.id, "type", e.Type, "err", err)
		}
	}
}

// reportStalledAccesses logs the requests and streams that have stopped counting.
func (b *box) reportStalledAccesses(now time.Time) {
	b.logStalls(b.work.StalledAccesses(b.sb.Record.Settings, now), now)
}
