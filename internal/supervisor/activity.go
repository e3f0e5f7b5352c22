package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
)

// How the processes inside are looked at. Only sandboxes with a clock that
// measures work are, and only when that would run out otherwise.
const (
	// pollLeast and pollMost bound how often a busy sandbox is looked at; in
	// between it is a fraction of the idle timeout.
	pollLeast    = 100 * time.Millisecond
	pollMost     = 5 * time.Second
	pollFraction = 4
	// pollTimeout bounds one look.
	pollTimeout = 2 * time.Second
	// fresh is how long what was seen may be used.
	fresh = 50 * time.Millisecond
	// ignoredRequest is what a request that is to be ignored may make a server
	// read and write besides the bodies: heads, a line in a log.
	ignoredRequest = 8 << 10
	// blindPatience is how long missing telemetry holds an idle pause back. It
	// holds a kill back for ever.
	blindPatience = 2 * time.Minute
)

// access is a lease on a generation, seen as a hold.
type access struct {
	id       int64
	kind     HoldKind
	port     int
	counts   bool
	ignored  *atomic.Int64 // where the bytes of traffic to be ignored are counted; nil for other traffic
	since    time.Time
	progress atomic.Int64 // Unix nanoseconds
	stalled  bool         // it was seen to stand still; guarded by box.mu
}

func (a *access) touch() { a.progress.Store(time.Now().UnixNano()) }

// passed notes that bytes have passed.
func (a *access) passed(n int) {
	a.touch()
	if a.ignored != nil {
		a.ignored.Add(int64(n))
	}
}

func (a *access) lastProgress() time.Time { return time.Unix(0, a.progress.Load()).UTC() }

// work is what is known of activity in one sandbox. It is guarded by box.mu.
type work struct {
	accesses map[*access]struct{}
	nextID   int64
	up       time.Time // when this server began to serve the generation
	last     time.Time // of the last access that counts: its beginning or end; zero before the first
	logAt    time.Time // when the agent was last asked for its log

	seen       agentapi.Activity // by the host's clock
	seenAt     time.Time         // zero before the first look in this generation
	stalled    map[int]bool      // pids that were seen to stand still
	blindSince time.Time         // since when looking has failed; zero if it has not
	polling    bool
}

// stalls returns when a hold stops counting if it makes no progress; zero for
// never.
func (b *box) stalls(progress time.Time) time.Time {
	d := b.sb.Record.Settings.StallAfter
	if d <= 0 {
		return time.Time{}
	}
	return progress.Add(d)
}

// eachHoldLocked calls do with every hold, leases of the record included. Those
// of accesses, which can be many at every request, come without a name.
func (b *box) eachHoldLocked(now time.Time, do func(Hold, *access)) {
	add := func(h Hold, until time.Time, counts bool, a *access) {
		h.Until = until
		h.Counts = counts && lasts(until, now)
		do(h, a)
	}
	for a := range b.work.accesses {
		p := a.lastProgress()
		var until time.Time
		if a.counts { // what never counted does not stop to
			until = b.stalls(p)
		}
		add(Hold{Kind: a.kind, Since: a.since, LastProgress: p}, until, a.counts, a)
	}
	for _, p := range b.work.seen.Processes {
		add(Hold{ID: fmt.Sprintf("process-%d", p.PID), Kind: HoldProcess, Detail: p.Command, Since: p.Since, LastProgress: p.LastProgress}, b.stalls(p.LastProgress), true, nil)
	}
	for _, l := range b.work.seen.Leases {
		add(Hold{ID: l.ID, Kind: HoldLease, Detail: l.Reason, Since: l.Since, LastProgress: l.Since}, l.Until, true, nil)
	}
	for _, l := range b.sb.Record.Leases {
		add(Hold{ID: l.ID, Kind: HoldLease, Detail: l.Reason, Since: l.Since, LastProgress: l.Since}, l.Until, true, nil)
	}
}

// lasts reports whether what ends at until, zero for never, goes on.
func lasts(until, now time.Time) bool { return until.IsZero() || now.Before(until) }

// holdsLocked lists every hold: first those that count, by age.
func (b *box) holdsLocked(now time.Time) []Hold {
	var holds []Hold
	b.eachHoldLocked(now, func(h Hold, a *access) {
		if a != nil {
			h.ID, h.Detail = fmt.Sprintf("%s-%d", a.kind, a.id), "port "+strconv.Itoa(a.port)
		}
		holds = append(holds, h)
	})
	slices.SortFunc(holds, func(x, y Hold) int {
		if x.Counts != y.Counts {
			if x.Counts {
				return -1
			}
			return 1
		}
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.ID, y.ID))
	})
	return holds
}

// activityLocked is what the lifecycle needs to know of the holds.
func (b *box) activityLocked(now time.Time) lifecycle.Activity {
	act := lifecycle.Activity{Last: later(b.work.last, b.work.seen.LastEnd)}
	if !b.sb.Record.Settings.MeasuresWork() {
		act.Since = later(b.work.up, act.Last)
		return act
	}
	b.eachHoldLocked(now, func(h Hold, _ *access) {
		switch {
		case h.Counts:
			act.Busy = true
			act.Recheck = earlier(act.Recheck, h.Until)
			if h.Kind == HoldProcess {
				act.Recheck = earlier(act.Recheck, b.work.seenAt.Add(b.pollInterval()))
			}
		case h.Kind == HoldProcess && h.Until.After(b.work.seenAt):
			// Run out since the last look, which is when it may have moved: only
			// another tells.
			act.Busy = true
			act.Recheck = earlier(act.Recheck, later(h.Until, b.work.seenAt.Add(pollLeast)))
		case !h.Until.IsZero():
			// Stalled or run out: it was work until then.
			act.Last = later(act.Last, h.Until)
		}
	})
	act.Since = later(b.work.up, act.Last)
	return b.blindLocked(act, now)
}

func (b *box) pollInterval() time.Duration {
	set, most := b.sb.Record.Settings, pollMost*pollFraction
	if set.IdleTimeout > 0 {
		most = min(most, set.IdleTimeout)
	}
	if set.RefreshOnActivity {
		most = min(most, set.Timeout)
	}
	return max(pollLeast, most/pollFraction)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earlier returns the earlier of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// openAccess registers a lease as a hold.
func (b *box) openAccess(req Access, policy lifecycle.WakePolicy, now time.Time) *access {
	b.work.nextID++
	a := &access{id: b.work.nextID, kind: HoldRequest, port: req.Port, since: now, counts: policy != lifecycle.Ignore && !req.Probe}
	if req.Stream {
		a.kind = HoldStream
	}
	if policy == lifecycle.Ignore {
		a.ignored = &b.ignored
		a.passed(ignoredRequest)
	}
	a.touch()
	if b.work.accesses == nil {
		b.work.accesses = map[*access]struct{}{}
	}
	b.work.accesses[a] = struct{}{}
	if a.counts {
		b.work.last = now
	}
	if a.counts && req.Stream {
		b.arm() // to tell when it stalls; few requests last so long
	}
	return a
}

func (b *box) closeAccess(a *access, now time.Time) {
	delete(b.work.accesses, a)
	if a.counts {
		b.work.last = now
		if b.sb.Record.Settings.MeasuresWork() && !b.accessedLocked(now) {
			b.arm()
		}
	}
}

// accessedLocked reports whether an access keeps the sandbox busy. Then nothing
// need be armed when another one ends: what is armed comes no later than this
// one could stall, or stall and be idle for long enough, and looks again.
func (b *box) accessedLocked(now time.Time) bool {
	for a := range b.work.accesses {
		if a.counts && lasts(b.stalls(a.lastProgress()), now) {
			return true
		}
	}
	return false
}

// mustLookLocked reports whether a deadline that has come rests on what the
// processes inside do, and that is not known freshly.
func (b *box) mustLookLocked(d lifecycle.Deadline, now time.Time) bool {
	about := d.Clock == lifecycle.ClockIdle || d.Clock == lifecycle.ClockRecheck ||
		d.Clock == lifecycle.ClockTimeout && b.sb.Record.Settings.RefreshOnActivity
	return about && !now.Before(d.At) && now.Sub(b.work.seenAt) > fresh && b.inst != nil
}

// lookAndFire looks at the processes inside and then lets the timer fire.
func (b *box) lookAndFire() {
	b.mu.Lock()
	inst := b.inst
	if inst == nil || b.work.polling {
		b.mu.Unlock()
		return
	}
	b.work.polling = true
	b.mu.Unlock()
	b.s.work.Go(func() {
		defer func() {
			b.mu.Lock()
			b.work.polling = false
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

// look asks the agent what is going on.
func (b *box) look(ctx context.Context, inst runtime.Instance) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	ignored := b.ignored.Load()
	seen, err := b.agent(inst).Activity(ctx, ignored-b.ignoredTold.Load())
	now := now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.ignoredTold.Store(ignored)
	}
	if b.inst != inst || err != nil && b.lookableLocked() == nil {
		return // it was about to sleep
	}
	b.work.seenAt = now
	if err != nil {
		if b.work.blindSince.IsZero() {
			b.work.blindSince = now
			b.s.log.Warn("sandbox gives no telemetry; its idle timeout is held back", "sandbox", b.id, "err", err)
		}
		return
	}
	b.work.blindSince = time.Time{}
	b.work.seen = agentclient.ToHostClock(seen, now)
	b.reportStalls(now)
}

// maxStallsLogged bounds what one look writes into the event log: the guest says
// how much there is. What is over is told after the next look.
const maxStallsLogged = 10

// reportStalls logs processes that have stopped counting since they were last
// looked at.
func (b *box) reportStalls(now time.Time) {
	if b.sb.Record.Settings.StallAfter <= 0 {
		return
	}
	standing := map[int]bool{}
	logged := 0
	for _, p := range b.work.seen.Processes {
		stalled := !now.Before(b.stalls(p.LastProgress))
		if stalled && !b.work.stalled[p.PID] {
			if logged++; logged > maxStallsLogged {
				continue
			}
			b.logStall(fmt.Sprintf("process %d: %s", p.PID, p.Command), now)
		}
		if stalled {
			standing[p.PID] = true
		}
	}
	b.work.stalled = standing
}

// reportStalledAccesses is reportStalls for requests and streams.
func (b *box) reportStalledAccesses(now time.Time) {
	if b.sb.Record.Settings.StallAfter <= 0 {
		return
	}
	logged := 0
	for a := range b.work.accesses {
		stalled := a.counts && !now.Before(b.stalls(a.lastProgress()))
		if stalled && !a.stalled {
			if logged++; logged > maxStallsLogged {
				continue
			}
			b.logStall(fmt.Sprintf("%s to port %d", a.kind, a.port), now)
		}
		a.stalled = stalled
	}
}

func (b *box) logStall(what string, now time.Time) {
	e := lifecycle.Entry{Type: lifecycle.EntryStalled, At: now, Detail: what}
	if err := b.logEntry(e); err != nil {
		b.s.log.Error("event could not be logged", "sandbox", b.id, "type", e.Type, "err", err)
	}
}

// blindLocked returns the activity to assume while looking fails: busy for as
// long as that defers the idle timeout.
func (b *box) blindLocked(act lifecycle.Activity, now time.Time) lifecycle.Activity {
	if b.blindnessLocked(now).Defers {
		act.Busy = true
		act.Recheck = earlier(act.Recheck, b.work.seenAt.Add(b.pollInterval()))
	}
	return act
}

// blindnessLocked says what follows while looking fails: the idle timeout is
// deferred for a bounded time, and for ever where it would kill.
func (b *box) blindnessLocked(now time.Time) Blindness {
	blind := Blindness{Since: b.work.blindSince}
	set := b.sb.Record.Settings
	if blind.Since.IsZero() || !set.MeasuresWork() {
		return blind
	}
	if set.IdleTimeout > 0 && set.IdleAction() == lifecycle.Kill || set.RefreshOnActivity && set.OnTimeout == lifecycle.Kill {
		blind.Defers = true
		return blind
	}
	blind.Until = blind.Since.Add(blindPatience)
	blind.Defers = now.Before(blind.Until)
	return blind
}
