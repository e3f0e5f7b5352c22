package lifecycle

import "time"

const (
	// announceBefore is how long before the soft timeout ends it is announced.
	announceBefore = 60 * time.Second
	// TombstoneKept is how long a terminated sandbox answers from its
	// tombstone.
	TombstoneKept = 30 * 24 * time.Hour
)

// Activity is what was observed of work in a running sandbox. It is not part
// of the record, because it changes with every request.
type Activity struct {
	Busy bool // a hold counts
	// Since is when the last hold ended or the last activity happened, if the
	// sandbox is not busy.
	Since time.Time
	// Last is when the last activity happened or the last hold ended, busy or not.
	Last time.Time
	// Recheck is when a busy sandbox must be looked at again; zero if whoever
	// ends the hold will tell.
	Recheck time.Time
	// Requests is what was observed of requests, streams and leases alone, which
	// RefreshOnRequests goes by.
	Requests Work
}

// Work is whether something is in progress, and when it was last.
type Work struct {
	Busy bool
	Last time.Time
}

// Clock names a deadline of a record.
type Clock string

// The clocks, in order of precedence where several are due.
const (
	ClockLifetime  Clock = "maxLifetime"
	ClockRetention Clock = "pausedRetention"
	ClockTimeout   Clock = "timeout"
	ClockIdle      Clock = "idleTimeout"
	// ClockCheckpoint ends nothing: what runs is checkpointed and runs on.
	ClockCheckpoint Clock = "checkpointEvery"
	// The rest belong to the machinery.
	ClockOperation Clock = "operation" // the operation in flight must end
	ClockRecheck   Clock = "recheck"   // activity must be looked at again
	ClockAnnounce  Clock = "announce"  // the soft timeout is near
	ClockTombstone Clock = "tombstone" // the record may be forgotten
)

// Deadline is when a clock runs out.
type Deadline struct {
	Clock Clock
	At    time.Time
}

// maxDeadlines is how many a record has at most.
const maxDeadlines = 5

// Deadlines returns every deadline of the record, in order of precedence.
func (r Record) Deadlines(a Activity) []Deadline {
	return r.appendDeadlines(make([]Deadline, 0, maxDeadlines), a)
}

func (r Record) appendDeadlines(ds []Deadline, a Activity) []Deadline {
	if r.State == Terminated {
		if r.Op != nil {
			return append(ds, Deadline{ClockOperation, r.Op.Deadline})
		}
		return append(ds, Deadline{ClockTombstone, r.Tombstone.At.Add(TombstoneKept)})
	}
	if r.Settings.MaxLifetime > 0 {
		ds = append(ds, Deadline{ClockLifetime, r.CreatedAt.Add(r.Settings.MaxLifetime)})
	}
	switch {
	case r.Op != nil:
		return append(ds, Deadline{ClockOperation, r.Op.Deadline})
	case r.State == Paused && r.Settings.PausedRetention > 0:
		return append(ds, Deadline{ClockRetention, r.PausedAt.Add(r.Settings.PausedRetention)})
	case r.State == Running:
		return r.appendRunning(ds, a)
	}
	return ds
}

func (r Record) appendRunning(ds []Deadline, a Activity) []Deadline {
	if end := r.SoftEnd(a); !end.IsZero() && !r.refreshes(a) {
		ds = append(ds, Deadline{ClockTimeout, r.notBeforeRetry(end, r.Settings.OnTimeout)})
		if near := end.Add(-announceBefore); near.After(r.StartedAt) && !r.Announced.Equal(end) {
			ds = append(ds, Deadline{ClockAnnounce, near})
		}
	}
	if r.Settings.IdleTimeout > 0 && !a.Busy {
		ds = append(ds, Deadline{ClockIdle, r.notBeforeRetry(r.idleEnd(a), r.Settings.IdleAction())})
	}
	if every := r.Settings.CheckpointEvery; every > 0 {
		ds = append(ds, Deadline{ClockCheckpoint, later(later(r.StartedAt, r.PausedAt).Add(every), r.PauseRetryAt)})
	}
	if r.Settings.MeasuresWork() && a.Busy && !a.Recheck.IsZero() {
		ds = append(ds, Deadline{ClockRecheck, a.Recheck})
	}
	return ds
}

// idleEnd returns when a sandbox that is not busy has been idle long enough.
func (r Record) idleEnd(a Activity) time.Time {
	end := r.heldUntil(later(a.Since, r.StartedAt)).Add(r.Settings.IdleTimeout)
	if r.EndIsLive {
		end = later(end, r.EndAt)
	}
	return end
}

// heldUntil returns when the last lease ends, since at the earliest. A lease is
// work until its end, whatever is observed.
func (r Record) heldUntil(since time.Time) time.Time {
	until := later(since, r.LeaseEndedAt)
	for _, l := range r.Leases {
		until = later(until, l.Until)
	}
	return until
}

// SoftEnd returns when the soft timeout ends if nothing happens after that activity;
// zero for never.
func (r Record) SoftEnd(a Activity) time.Time {
	if r.EndAt.IsZero() || r.Settings.RefreshOnActivity == NoRefresh {
		return r.EndAt
	}
	last := r.refreshing(a).Last
	if !r.endsAtOnce() {
		last = r.heldUntil(last)
	}
	if !last.After(r.EndSetAt) {
		return r.EndAt
	}
	return later(r.EndAt, last.Add(r.Settings.Timeout))
}

// refreshes reports whether work in progress keeps the soft timeout from
// firing.
func (r Record) refreshes(a Activity) bool {
	return r.Settings.RefreshOnActivity != NoRefresh && r.refreshing(a).Busy && !r.endsAtOnce()
}

// refreshing returns the part of the activity that begins the soft timeout anew.
func (r Record) refreshing(a Activity) Work {
	if r.Settings.RefreshOnActivity == RefreshOnRequests {
		return a.Requests
	}
	return Work{Busy: a.Busy, Last: a.Last}
}

// endsAtOnce reports whether the soft timeout was set to end when it was set,
// which work does not put off.
func (r Record) endsAtOnce() bool { return !r.EndAt.After(r.EndSetAt) }

// notBeforeRetry holds automatic pauses back while they back off.
func (r Record) notBeforeRetry(at time.Time, action Action) time.Time {
	if action == Pause {
		return later(at, r.PauseRetryAt)
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// NextDeadline returns the earliest deadline of the record, and false if there
// is none.
func (r Record) NextDeadline(a Activity) (Deadline, bool) {
	var next Deadline
	for _, d := range r.appendDeadlines(make([]Deadline, 0, maxDeadlines), a) {
		if next.Clock == "" || d.At.Before(next.At) {
			next = d
		}
	}
	return next, next.Clock != ""
}

// Overdue reports whether a clock has run out that an event would cancel, because it wakes what
// sleeps: TimerFired comes before it then.
func (r Record) Overdue(ev Event, now time.Time) bool {
	switch ev.(type) {
	case AccessRequested, ConnectRequested, ResumeRequested:
		_, is := r.Due(Activity{}, now)
		return is && r.State == Paused && r.Op == nil
	}
	return false
}

// Due returns the deadline of highest precedence that has come, and false if
// none has. It is the one that TimerFired acts on.
func (r Record) Due(a Activity, now time.Time) (Deadline, bool) {
	for _, d := range r.appendDeadlines(make([]Deadline, 0, maxDeadlines), a) {
		if !now.Before(d.At) {
			return d, true
		}
	}
	return Deadline{}, false
}
