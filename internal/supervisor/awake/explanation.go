package awake

import (
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Explanation says why a sandbox is in the state it is in and what happens
// next.
type Explanation struct {
	Sandbox store.Sandbox
	Holds   []Hold // those that count first
	// LastActive is when it was active last: now, while a hold counts.
	LastActive time.Time
	// Deadlines are the clocks that run, earliest first. While a hold counts,
	// the idle timeout is not among them.
	Deadlines []lifecycle.Deadline
	Blindness Blindness
	// Fault is why a sandbox that sleeps cannot wake; nil if nothing is known of
	// that.
	Fault error
	// Refusals are the last things outside that it did not get through to, newest
	// first, as far as this server has seen them.
	Refusals []egress.Refusal
	// Gone is the server that has it, where that is gone; empty otherwise.
	Gone string
	// Transitions are the last entries of the event log, newest first.
	Transitions []store.Event
}

// AsStored explains a sandbox by what is stored of it alone, for a server that does not
// have it: what keeps it awake is not known.
func AsStored(sb store.Sandbox, now time.Time) Explanation {
	act := lifecycle.Activity{Last: sb.ActiveAt}
	if act.Last.Before(sb.Record.StartedAt) {
		act.Last = sb.Record.StartedAt
	}
	act.Requests.Last = sb.RequestedAt
	e := Explanation{Sandbox: sb, LastActive: sb.ActiveAt, Deadlines: sb.Record.Deadlines(act)}
	e.Deadlines = slices.DeleteFunc(e.Deadlines, func(d lifecycle.Deadline) bool { return d.Clock == lifecycle.ClockIdle && d.At.Before(now) })
	slices.SortStableFunc(e.Deadlines, func(x, y lifecycle.Deadline) int { return x.At.Compare(y.At) })
	return e
}

// SoftEnd returns the end of the soft timeout if the activity ended now.
func SoftEnd(r lifecycle.Record, act lifecycle.Activity, now time.Time) time.Time {
	if act.Busy {
		act.Last = now
	}
	if act.Requests.Busy {
		act.Requests.Last = now
	}
	return r.SoftEnd(act)
}
