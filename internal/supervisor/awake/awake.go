// Package awake knows what goes on in one sandbox: the requests and streams into
// it, the processes and leases that its agent has told of, and the leases of its
// record. It says what of that keeps the sandbox awake, what has stalled, and
// when it was active last. It asks nobody, and reads no clock but that of accesses.
package awake

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// How the processes inside are looked at. Only sandboxes with a clock that
// measures work are, and only when that would run out otherwise.
const (
	// pollLeast and pollMost bound how often a busy sandbox is looked at; in
	// between it is a fraction of the idle timeout.
	pollLeast    = 100 * time.Millisecond
	pollMost     = 5 * time.Second
	pollFraction = 4
	// ignoredRequest is what a request that is to be ignored may make a server
	// read and write besides the bodies: heads, a line in a log.
	ignoredRequest = 8 << 10
	// blindPatience is how long missing telemetry holds an idle pause back. It
	// holds a kill back for ever.
	blindPatience = 2 * time.Minute
)

// Access is a lease on a generation, seen as a hold.
type Access struct {
	id       int64
	kind     HoldKind
	port     int
	counts   bool
	ignored  *atomic.Int64 // where the bytes of traffic to be ignored are counted; nil for other traffic
	since    time.Time
	progress atomic.Int64 // Unix nanoseconds
	stalled  bool         // it was seen to stand still; guarded as Work is
}

func (a *Access) touch() { a.progress.Store(time.Now().UnixNano()) }

// Passed notes that bytes have passed.
func (a *Access) Passed(n int) {
	a.touch()
	if a.ignored != nil {
		a.ignored.Add(int64(n))
	}
}

func (a *Access) lastProgress() time.Time { return time.Unix(0, a.progress.Load()).UTC() }

// Counts reports whether the access keeps the sandbox awake until it stalls.
func (a *Access) Counts() bool { return a.counts }

// IsRequest reports whether the access has a natural end.
func (a *Access) IsRequest() bool { return a.kind == HoldRequest }

// Work is what is known of activity in one sandbox. It has no lock of its own.
type Work struct {
	// Up is when this server began to serve the generation, and Last that of the
	// last access that counts, its beginning or end; zero before the first.
	Up, Last time.Time

	accesses map[*Access]struct{}
	nextID   int64

	seen       agentapi.Activity // by the host's clock
	seenAt     time.Time         // zero before the first look in this generation
	stalled    map[int]bool      // pids that were seen to stand still
	blindSince time.Time         // since when looking has failed; zero if it has not
}

// Begin forgets what belongs to another generation: this one is served from now.
// The idle clock never starts before.
func (w *Work) Begin(now time.Time) {
	w.seen, w.seenAt, w.stalled = agentapi.Activity{}, time.Time{}, nil
	w.blindSince, w.Up, w.Last = time.Time{}, now, time.Time{}
}

// Look keeps what the agent has told, by the host's clock, and returns the
// processes that have stopped counting since the last look.
func (w *Work) Look(seen agentapi.Activity, r lifecycle.Record, now time.Time) (stalled []string) {
	w.seenAt, w.blindSince, w.seen = now, time.Time{}, seen
	return w.stalls(r.Settings, now)
}

// Miss keeps that a look has failed, and reports whether it is the first.
func (w *Work) Miss(now time.Time) bool {
	w.seenAt = now
	if !w.blindSince.IsZero() {
		return false
	}
	w.blindSince = now
	return true
}

// Age returns how long ago the last look was.
func (w *Work) Age(now time.Time) time.Duration { return now.Sub(w.seenAt) }

// Accesses returns how many requests and streams are open.
func (w *Work) Accesses() int { return len(w.accesses) }

// stallsAt returns when a hold stops counting if it makes no progress; zero for
// never.
func stallsAt(set lifecycle.Settings, progress time.Time) time.Time {
	d := set.StallAfter
	if d <= 0 {
		return time.Time{}
	}
	return progress.Add(d)
}

// each calls do with every hold, leases of the record included. Those
// of accesses, which can be many at every request, come without a name.
func (w *Work) each(r lifecycle.Record, now time.Time, do func(Hold, *Access)) {
	add := func(h Hold, until time.Time, counts bool, a *Access) {
		h.Until = until
		h.Counts = counts && lasts(until, now)
		do(h, a)
	}
	for a := range w.accesses {
		p := a.lastProgress()
		var until time.Time
		if a.counts { // what never counted does not stop to
			until = stallsAt(r.Settings, p)
		}
		add(Hold{Kind: a.kind, Since: a.since, LastProgress: p}, until, a.counts, a)
	}
	for _, p := range w.seen.Processes {
		counts, until := r.Settings.CountsProcesses(), time.Time{}
		if counts {
			until = stallsAt(r.Settings, p.LastProgress)
		}
		add(Hold{ID: fmt.Sprintf("process-%d", p.PID), Kind: HoldProcess, Detail: p.Command, Since: p.Since, LastProgress: p.LastProgress}, until, counts, nil)
	}
	for _, l := range w.seen.Leases {
		add(Hold{ID: l.ID, Kind: HoldLease, Detail: l.Reason, Since: l.Since, LastProgress: l.Since}, l.Until, true, nil)
	}
	for _, l := range r.Leases {
		add(Hold{ID: l.ID, Kind: HoldLease, Detail: l.Reason, Since: l.Since, LastProgress: l.Since}, l.Until, true, nil)
	}
}

// lasts reports whether what ends at until, zero for never, goes on.
func lasts(until, now time.Time) bool { return until.IsZero() || now.Before(until) }

// Holds lists every hold: first those that count, by age.
func (w *Work) Holds(r lifecycle.Record, now time.Time) []Hold {
	var holds []Hold
	w.each(r, now, func(h Hold, a *Access) {
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

// Activity is what the lifecycle needs to know of the holds.
func (w *Work) Activity(r lifecycle.Record, now time.Time) lifecycle.Activity {
	act := lifecycle.Activity{Last: later(w.Last, w.seen.LastEnd), Requests: lifecycle.Work{Last: later(w.Last, w.seen.LastRelease)}}
	if !r.Settings.MeasuresWork() {
		act.Since = later(w.Up, act.Last)
		return act
	}
	w.each(r, now, func(h Hold, _ *Access) {
		switch {
		case h.Counts:
			act.Busy = true
			act.Recheck = earlier(act.Recheck, h.Until)
			if h.Kind == HoldProcess {
				act.Recheck = earlier(act.Recheck, w.seenAt.Add(PollInterval(r.Settings)))
			} else {
				act.Requests.Busy = true
			}
		case h.Kind == HoldProcess && h.Until.After(w.seenAt):
			// Run out since the last look, which is when it may have moved: only
			// another tells.
			act.Busy = true
			act.Recheck = earlier(act.Recheck, later(h.Until, w.seenAt.Add(pollLeast)))
		case !h.Until.IsZero():
			// Stalled or run out: it was work until then.
			act.Last = later(act.Last, h.Until)
			if h.Kind != HoldProcess {
				act.Requests.Last = later(act.Requests.Last, h.Until)
			}
		}
	})
	for _, l := range w.seen.Leases {
		if lasts(l.Until, now) { // nobody tells if it is released before
			act.Recheck = earlier(act.Recheck, w.seenAt.Add(PollInterval(r.Settings)))
		}
	}
	act.Since = later(w.Up, act.Last)
	return w.blind(act, r, now)
}

// PollInterval is how often a busy sandbox is looked at.
func PollInterval(set lifecycle.Settings) time.Duration {
	most := pollMost * pollFraction
	if set.IdleTimeout > 0 {
		most = min(most, set.IdleTimeout)
	}
	if set.RefreshOnActivity != lifecycle.NoRefresh {
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

// Opening is an access that begins.
type Opening struct {
	Port   int
	Policy lifecycle.WakePolicy
	Stream bool          // it has no natural end
	Probe  bool          // it only asks whether the sandbox runs
	Ignore *atomic.Int64 // where the bytes of traffic to be ignored are counted
}

// Open registers an access as a hold.
func (w *Work) Open(o Opening, now time.Time) *Access {
	w.nextID++
	a := &Access{id: w.nextID, kind: HoldRequest, port: o.Port, since: now, counts: o.Policy != lifecycle.Ignore && !o.Probe}
	if o.Stream {
		a.kind = HoldStream
	}
	if o.Policy == lifecycle.Ignore {
		a.ignored = o.Ignore
		a.Passed(ignoredRequest)
	}
	a.touch()
	if w.accesses == nil {
		w.accesses = map[*Access]struct{}{}
	}
	w.accesses[a] = struct{}{}
	if a.counts {
		w.Last = now
	}
	return a
}

// BecomeStream notes that a request proved to have no natural end, and reports
// whether that is new.
func (w *Work) BecomeStream(a *Access) bool {
	if _, open := w.accesses[a]; !open || a.kind != HoldRequest {
		return false
	}
	a.kind = HoldStream
	return true
}

// Close ends an access, and reports whether a clock may have begun to run.
func (w *Work) Close(a *Access, r lifecycle.Record, now time.Time) bool {
	delete(w.accesses, a)
	if !a.counts {
		return false
	}
	w.Last = now
	return r.Settings.MeasuresWork() && !w.accessed(r, now)
}

// accessed reports whether an access keeps the sandbox busy. Then nothing
// need be armed when another one ends: what is armed comes no later than this
// one could stall, or stall and be idle for long enough, and looks again.
func (w *Work) accessed(r lifecycle.Record, now time.Time) bool {
	for a := range w.accesses {
		if a.counts && lasts(stallsAt(r.Settings, a.lastProgress()), now) {
			return true
		}
	}
	return false
}

// MostStalls bounds what one look writes into the event log: the guest says
// how much there is. What is over is told after the next look.
const MostStalls = 10

// stalls returns the processes that have stopped counting since they were last
// looked at.
func (w *Work) stalls(set lifecycle.Settings, now time.Time) (new []string) {
	if set.StallAfter <= 0 || !set.CountsProcesses() {
		return nil
	}
	standing := map[int]bool{}
	for _, p := range w.seen.Processes {
		if now.Before(stallsAt(set, p.LastProgress)) {
			continue
		}
		if !w.stalled[p.PID] {
			if len(new) == MostStalls {
				continue
			}
			new = append(new, fmt.Sprintf("process %d: %s", p.PID, p.Command))
		}
		standing[p.PID] = true
	}
	w.stalled = standing
	return new
}

// StalledAccesses returns the requests and streams that have stopped counting
// since it was last asked.
func (w *Work) StalledAccesses(set lifecycle.Settings, now time.Time) (new []string) {
	if set.StallAfter <= 0 {
		return nil
	}
	for a := range w.accesses {
		stalled := a.counts && !now.Before(stallsAt(set, a.lastProgress()))
		if stalled && !a.stalled {
			if len(new) == MostStalls {
				continue
			}
			new = append(new, fmt.Sprintf("%s to port %d", a.kind, a.port))
		}
		a.stalled = stalled
	}
	return new
}

// blind returns the activity to assume while looking fails: busy for as
// long as that defers the idle timeout.
func (w *Work) blind(act lifecycle.Activity, r lifecycle.Record, now time.Time) lifecycle.Activity {
	if w.Blindness(r, now).Defers {
		act.Busy, act.Requests.Busy = true, true // a lease inside may be new
		act.Recheck = earlier(act.Recheck, w.seenAt.Add(PollInterval(r.Settings)))
	}
	return act
}

// Blindness says what follows while looking fails: the idle timeout is
// deferred for a bounded time, and for ever where it would kill.
func (w *Work) Blindness(r lifecycle.Record, now time.Time) Blindness {
	blind := Blindness{Since: w.blindSince}
	set := r.Settings
	if blind.Since.IsZero() || !set.MeasuresWork() {
		return blind
	}
	if set.IdleTimeout > 0 && set.IdleAction() == lifecycle.Kill || set.RefreshOnActivity != lifecycle.NoRefresh && set.OnTimeout == lifecycle.Kill {
		blind.Defers = true
		return blind
	}
	blind.Until = blind.Since.Add(blindPatience)
	blind.Defers = now.Before(blind.Until)
	return blind
}

// Continue lets the clocks that measure activity go on from the last that is stored.
// Where none is, they begin anew, because what went on before is not known.
func (w *Work) Continue(sb store.Sandbox) {
	set := sb.Record.Settings
	if at := sb.ActiveAt; set.MeasuresWork() && !at.IsZero() && at.Before(w.Up) {
		w.Up = at
	}
	w.Last = w.Up
	if at := sb.RequestedAt; set.RefreshOnActivity == lifecycle.RefreshOnRequests && !at.IsZero() && at.Before(w.Up) {
		w.Last = at
	}
}

// LastActive returns when the sandbox was active last, which is now while a hold
// counts; and the same without processes. These are known as they were when they
// were last looked at.
func (w *Work) LastActive(sb store.Sandbox, now time.Time) (active, requested time.Time) {
	r := sb.Record
	active = later(later(sb.ActiveAt, w.Last), later(w.seen.LastEnd, r.StartedAt))
	requested = later(later(sb.RequestedAt, w.Last), later(w.seen.LastRelease, r.StartedAt))
	w.each(r, now, func(h Hold, _ *Access) {
		at := now
		switch {
		case !h.Counts:
			at = h.Until // it was work until then
		case h.Kind == HoldProcess:
			at = w.seenAt
		}
		active = later(active, at)
		if h.Kind != HoldProcess {
			requested = later(requested, at)
		}
	})
	if active.After(now) {
		active = now
	}
	if requested.After(now) {
		requested = now
	}
	return active, requested
}
