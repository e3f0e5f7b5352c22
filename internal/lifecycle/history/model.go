package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// The changes that the model knows. There are none when nothing fails but
// these.
const (
	created        = Kind(lifecycle.EntryCreated)
	running        = Kind(lifecycle.EntryRunning)
	pausing        = Kind(lifecycle.EntryPausing)
	paused         = Kind(lifecycle.EntryPaused)
	pauseCancelled = Kind(lifecycle.EntryPauseCancelled)
	resuming       = Kind(lifecycle.EntryResuming)
	resumed        = Kind(lifecycle.EntryResumed)
	timeoutSet     = Kind(lifecycle.EntryTimeoutSet)
	expiring       = Kind(lifecycle.EntryExpiring)
	terminated     = Kind(lifecycle.EntryTerminated)
)

// The changes that there are besides when servers come and go.
const (
	pauseFailed  = Kind(lifecycle.EntryPauseFailed)
	resumeFailed = Kind(lifecycle.EntryResumeFailed)
	runtimeLost  = Kind(lifecycle.EntryRuntimeLost)
	moved        = Kind(lifecycle.EntryMoved)
)

// state is a sandbox as the sequential model has it. It is compared with ==.
type state struct {
	is         lifecycle.State
	phase      lifecycle.Phase
	generation int64
	count      int64 // the memory of the program inside
	saved      int64 // that of the last checkpoint
	slept      bool  // there is one
	// fresh says that the state was entered in this instant. Those who waited
	// for that are told of it then, and not later.
	fresh bool
	// end of the soft timeout in microseconds, 0 unless the sandbox runs. The log
	// does not tell it: until somebody is told it is the least that it can be.
	end  int64
	told bool
	// before is the end that has just been replaced, 0 if none has.
	before int64
	reason lifecycle.Reason
	// carried is the end with which it goes on after a move, and whether that was told.
	carried     int64
	carriedTold bool
	// automatic is of the pause in flight. An explicit one that joins it is not
	// told.
	automatic bool
}

func (s state) String() string {
	text := fmt.Sprintf("%s %s, generation %d, count %d", s.is, s.phase, s.generation, s.count)
	if s.is == lifecycle.Running {
		text += ", until " + clock(time.UnixMicro(s.end))
		if !s.told {
			text += " at least"
		}
	}
	return text + " " + string(s.reason)
}

func (s state) hash() uint64 {
	h := uint64(14695981039346656037)
	for _, n := range []uint64{uint64(len(s.is)), uint64(len(s.phase)), uint64(s.generation), uint64(s.count), uint64(s.end)} {
		h = (h ^ n) * 1099511628211
	}
	return h
}

// model returns the sequential model of a sandbox with the history's settings.
func (h History) model() porcupine.Model {
	m := model{h.Settings, h.Servers, h.previous()}
	return porcupine.Model{
		Init: func() any { return state{is: lifecycle.Pending} },
		Step: func(s, in, _ any) (bool, any) {
			if next, ok := m.step(s.(state), in.(*Op)); ok {
				return true, next
			}
			return false, nil
		},
		Hash:              func(s any) uint64 { return s.(state).hash() },
		DescribeOperation: func(in, _ any) string { return in.(*Op).String() },
		DescribeState:     func(s any) string { return s.(state).String() },
	}
}

type model struct {
	lifecycle.Settings
	servers bool
	// previous is the number that was told before each that was, by the generation in which
	// that was counted. What lies between was counted by callers who were told nothing.
	previous map[told]int64
}

// told is a number that a caller was told, and the generation that counted to it.
type told struct{ generation, count int64 }

func (h History) previous() map[told]int64 {
	previous := map[told]int64{}
	for _, line := range h.lines() {
		var all []told
		for _, o := range line {
			all = append(all, told{o.Generation, o.Count})
		}
		slices.SortFunc(all, func(x, y told) int { return cmp.Compare(x.count, y.count) })
		last := int64(0)
		for i, x := range all {
			if i == 0 || x.count != all[i-1].count {
				previous[x] = last
			}
			last = x.count
		}
	}
	return previous
}

// step returns the state after o, or false if o cannot have happened in s.
func (m model) step(s state, o *Op) (state, bool) {
	if o.Client == 0 {
		return m.changes(s, o)
	}
	next, ok := m.answers(s, o)
	if !waits(o) {
		next.fresh, next.before = false, 0
	}
	return next, ok
}

// waits reports whether o may be a call that made the change which has just
// happened, or waited for it.
func waits(o *Op) bool {
	switch o.Kind {
	case Create, Pause, Resume, Connect, SetTimeout:
		return true
	}
	return false
}

// serves reports whether leases are given without a wait.
func (s state) serves() bool { return s.is == lifecycle.Running && s.phase == lifecycle.None }

func (s state) sleeps() bool { return s.is == lifecycle.Paused && s.phase == lifecycle.None }

// drains reports whether leases may be given all the same: while an automatic
// pause drains that access does not cancel. When its barrier goes up is not told.
func (m model) drains(s state) bool {
	return s.phase == lifecycle.Pausing && s.automatic && !m.AutoResume
}

// changes returns the state after what the log tells of.
func (m model) changes(s state, o *Op) (state, bool) {
	due := o.At.UnixMicro() >= s.end
	next := s
	next.fresh, next.before = true, 0
	switch o.Kind {
	case created:
		next.phase = lifecycle.Creating
		return next, s.is == lifecycle.Pending && s.phase == lifecycle.None
	case running:
		return next.started(o).atLeast(o.At.Add(m.Timeout)), s.phase == lifecycle.Creating && o.Generation == 1
	case pausing:
		asked := o.Cause == lifecycle.CauseCall || m.servers && o.Cause == lifecycle.CauseMove
		next.phase, next.automatic = lifecycle.Pausing, !asked
		return next, s.serves() && (asked || due && m.OnTimeout == lifecycle.Pause || m.servers && o.Cause == lifecycle.CauseShutdown)
	case paused:
		next.is, next.phase, next.end, next.told = lifecycle.Paused, lifecycle.None, 0, true
		next.saved, next.slept = s.count, true
		if o.Cause == lifecycle.CauseMove {
			next.carried, next.carriedTold = s.end, s.told
		}
		return next, s.phase == lifecycle.Pausing
	case pauseCancelled:
		next.phase = lifecycle.None
		return next.atLeast(o.At.Add(m.afterWake())), s.phase == lifecycle.Pausing && m.AutoResume
	case resuming:
		next.phase = lifecycle.Resuming
		byMove := m.servers && o.Cause == lifecycle.CauseMove
		if !byMove {
			next.carried = 0
		}
		return next, s.sleeps() && (o.Cause == lifecycle.CauseCall || m.AutoResume || byMove && s.carried != 0)
	case resumed:
		ok := s.phase == lifecycle.Resuming && o.Generation == s.generation+1
		if o.Cause == lifecycle.CauseMove {
			next.end, next.told, next.carried = s.carried, s.carriedTold, 0
			return next.started(o), ok
		}
		least := o.At
		if o.Cause == lifecycle.CauseAccess {
			least = least.Add(m.afterWake())
		}
		return next.started(o).atLeast(least), ok
	case timeoutSet:
		next.before = s.end
		return next.atLeast(o.At), s.serves()
	case expiring:
		next.fresh = false
		return next, s.serves()
	case terminated:
		next = state{is: lifecycle.Terminated, generation: s.generation, reason: o.Reason, told: true}
		up := s.serves() || m.servers && s.phase == lifecycle.Pausing // which its server has not ended
		expired := up && due && m.OnTimeout == lifecycle.Kill && o.Reason == lifecycle.TimeoutExpired
		return next, s.is != lifecycle.Terminated && (expired || o.Reason == lifecycle.Killed || m.servers && s.endsWithServer(o.Reason))
	}
	if m.servers {
		return m.faults(s, o)
	}
	return s, false
}

// faults returns the state after a change that there is only when servers come and go.
func (m model) faults(s state, o *Op) (state, bool) {
	next := s
	next.fresh, next.before = true, 0
	switch o.Kind {
	case pauseFailed: // its server stopped, and has found it running again
		next.phase = lifecycle.None
		return next, s.phase == lifecycle.Pausing
	case resumeFailed:
		next.phase = lifecycle.None
		return next, s.phase == lifecycle.Resuming
	case runtimeLost: // the one thing by which what was told is forgotten: as far as the last checkpoint
		next.is, next.phase, next.end, next.told = lifecycle.Paused, lifecycle.None, 0, true
		next.count = s.saved
		return next, s.is == lifecycle.Running && s.slept
	case moved:
		next.fresh = s.fresh
		return next, s.sleeps()
	}
	return s, false
}

// endsWithServer reports whether the end is that of a sandbox without a checkpoint, whose
// server has lost its runtime.
func (s state) endsWithServer(why lifecycle.Reason) bool {
	return s.is == lifecycle.Running && !s.slept && why == lifecycle.RuntimeLost || s.phase == lifecycle.Creating && why == lifecycle.CreateFailed
}

func (s state) started(o *Op) state {
	s.is, s.phase, s.generation = lifecycle.Running, lifecycle.None, o.Generation
	return s
}

// afterWake is the soft timeout that a wake by traffic begins.
func (m model) afterWake() time.Duration { return max(m.Timeout, lifecycle.MinAutoResume) }

// answers returns the state after a call, and whether it can have been answered
// so.
func (m model) answers(s state, o *Op) (state, bool) {
	switch o.Outcome {
	case Awake:
		return s, s.serves()
	case Asleep:
		return s, s.sleeps() && (o.Kind != Access || !m.AutoResume)
	case Ended:
		return s, s.is == lifecycle.Terminated && (o.Reason == "" || o.Reason == s.reason)
	case Unreachable:
		return s, s.is == lifecycle.Terminated || s.sleeps() && !m.AutoResume
	case OK:
		return m.succeeds(s, o)
	}
	return s, false
}

func (m model) succeeds(s state, o *Op) (state, bool) {
	same := o.Generation == s.generation
	switch o.Kind {
	case Create:
		return s.learns(o), s.fresh && s.serves() && same && s.allows(o)
	case Access:
		return s, (s.serves() || m.drains(s)) && same
	case Count: // a lease stays good while the barrier is up
		ok := s.is == lifecycle.Running && same && s.count == m.previous[told{o.Generation, o.Count}]
		s.count = o.Count
		return s, ok
	case Cut:
		return s, !s.serves() || o.Generation != 0 && !same // not every caller is told of whose lease
	case Pause:
		return s, s.fresh && s.sleeps()
	case Resume:
		return s.learns(o), s.fresh && s.serves() && same && s.allows(o)
	case Connect:
		shortens := s.setBy(o) && o.End.UnixMicro() <= s.before
		enough := !o.End.Before(o.At.Add(o.Timeout))
		return s.learns(o), s.serves() && same && s.allows(o) && enough && !shortens
	case SetTimeout:
		again := s.told && s.allows(o) // in the same instant, which is no change
		return s.learns(o), s.serves() && (s.setBy(o) || again)
	case Move:
		return s, s.is != lifecycle.Terminated
	case Kill:
		return s, s.is == lifecycle.Terminated
	case Read:
		return s.read(o)
	}
	return s, false
}

func (s state) read(o *Op) (state, bool) {
	ok := o.State == s.is && o.Generation == s.generation && o.Reason == s.reason
	switch s.is {
	case lifecycle.Pending, lifecycle.Terminated: // the log tells nothing of the phase
		return s, ok
	case lifecycle.Running:
		return s.learns(o), ok && o.Phase == s.phase && s.allows(o)
	}
	return s, ok && o.Phase == s.phase
}

// atLeast says that the soft timeout ends then or later.
func (s state) atLeast(end time.Time) state {
	s.end, s.told = end.UnixMicro(), false
	return s
}

// setBy reports whether o is the call that has just set the soft timeout.
func (s state) setBy(o *Op) bool {
	return s.fresh && s.before != 0 && !s.told && o.End.UnixMicro() == s.end+o.Timeout.Microseconds()
}

// learns takes the end of the soft timeout from what a caller was told.
func (s state) learns(o *Op) state {
	if !o.End.IsZero() {
		s.end, s.told, s.before = o.End.UnixMicro(), true, 0
	}
	return s
}

// allows reports whether a caller can have been told of that end, or was told of
// none.
func (s state) allows(o *Op) bool {
	if s.told && !o.End.IsZero() {
		return o.End.UnixMicro() == s.end
	}
	return o.End.IsZero() || o.End.UnixMicro() >= s.end
}
