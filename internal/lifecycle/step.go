package lifecycle

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// How long each operation may take before it ends in the safer neighbour, and
// how automatic pauses back off. A pause's deadline allows for writing a large
// memory to a slow disk.
const (
	createDeadline = 60 * time.Second
	pauseDeadline  = 5 * time.Minute
	resumeDeadline = 60 * time.Second
	releaseRetry   = 15 * time.Second
	abortRetry     = 15 * time.Second

	firstPauseRetry = 60 * time.Second
	maxPauseRetry   = 15 * time.Minute

	// mostHindered is how many automatic pauses in a row may fail for what runs inside.
	// The next one leaves the memory out: nothing inside keeps its sandbox awake.
	mostHindered = 3

	maxStartAttempts = 2

	// MinAutoResume is the least soft timeout that a wake by traffic starts:
	// E2B's clients count on five minutes.
	MinAutoResume = 300 * time.Second
)

// Result is what Step decided.
type Result struct {
	Record  Record
	Verdict Verdict
	Changed bool // the record differs and must be persisted before acting
	Effects []Effect
	Entries []Entry
}

// Step returns what ev does to r at time now. The record passed in is not
// modified. The error is non-nil exactly if the verdict is Refused, and is an
// *errdef.Error.
func Step(r Record, ev Event, now time.Time) (Result, error) {
	from := r.Situation()
	rule, ok := table[from][ev.Kind()]
	if !ok {
		panic(fmt.Sprintf("internal error: lifecycle: no rule for %s in %s", ev.Kind(), from))
	}
	if rule.verdict == Refused {
		return Result{Record: r, Verdict: Refused}, rule.refusal(r)
	}
	if rule.verdict != Applies || rule.do == nil {
		return Result{Record: r, Verdict: rule.verdict}, nil
	}
	s := &step{rec: clone(r), from: from, now: now, verdict: Applies}
	rule.do(s, ev)
	if s.verdict == Refused {
		return Result{Record: r, Verdict: Refused}, s.err
	}
	if s.verdict == Stale {
		return Result{Record: r, Verdict: Stale}, nil
	}
	return Result{
		Record: s.rec, Verdict: s.verdict, Changed: !reflect.DeepEqual(r, s.rec),
		Effects: s.effects, Entries: s.finish(),
	}, nil
}

// clone copies what a step may write through a pointer.
func clone(r Record) Record {
	if r.Op != nil {
		op := *r.Op
		r.Op = &op
	}
	return r
}

// step is the scratch space of one Step.
type step struct {
	rec     Record
	from    Situation
	now     time.Time
	verdict Verdict
	err     error
	effects []Effect
	entries []Entry
}

// finish stamps the entries with where the step began and ended.
func (s *step) finish() []Entry {
	for i := range s.entries {
		s.entries[i].From, s.entries[i].To = s.from, s.rec.Situation()
	}
	return s.entries
}

func (s *step) effect(e Effect) {
	if s.rec.Op != nil {
		e.Op = s.rec.Op.ID
	}
	s.effects = append(s.effects, e)
}

// launch begins one more launch of a runtime for the operation in flight.
func (s *step) launch() {
	s.rec.Launches++
	op := s.rec.Op
	op.Launch = s.rec.Launches
	from := s.rec.Checkpoint
	if op.Boot {
		from = new(from.Files())
	}
	s.effect(Effect{Kind: StartRuntime, Launch: op.Launch, Generation: op.Generation, Checkpoint: from})
}

func (s *step) release(launch int64) { s.effect(Effect{Kind: ReleaseRuntime, Launch: launch}) }

func (s *step) abortCapture() { s.effect(Effect{Kind: AbortCapture, Launch: s.rec.Launch}) }

func (s *step) log(t EntryType, op *Operation, detail string) *Entry {
	e := Entry{Type: t, At: s.now, Generation: s.rec.Generation, Detail: detail}
	if op != nil {
		e.Op, e.Cause, e.Actor = op.ID, op.Cause, op.Actor
	}
	s.entries = append(s.entries, e)
	return &s.entries[len(s.entries)-1]
}

// logEnd logs the end of op with how long it took.
func (s *step) logEnd(t EntryType, op *Operation, detail string) *Entry {
	e := s.log(t, op, detail)
	e.Duration = s.now.Sub(op.StartedAt)
	return e
}

// begin puts an operation in flight.
func (s *step) begin(id string, p Phase, m Meta, within time.Duration) *Operation {
	s.rec.Op = &Operation{
		ID: id, Phase: p, Attempt: 1, Cause: m.Cause, Actor: m.Actor,
		StartedAt: s.now, Deadline: s.now.Add(within), Generation: s.rec.Generation,
	}
	return s.rec.Op
}

// owns reports whether op is the operation in flight, and marks the event
// stale otherwise.
func (s *step) owns(op string) bool {
	if s.rec.Op != nil && s.rec.Op.ID == op {
		return true
	}
	s.verdict = Stale
	return false
}

func (s *step) refuse(err error) { s.verdict, s.err = Refused, err }

func create(s *step, ev Event) {
	e := ev.(CreateRequested)
	if err := e.Settings.Validate(); err != nil {
		s.refuse(err)
		return
	}
	s.rec.Settings = e.Settings
	s.rec.CreatedAt = s.now
	op := s.begin(e.Op, Creating, e.Meta, createDeadline)
	op.Generation = 1
	op.Timeout = e.Settings.Timeout
	if e.Checkpoint != nil {
		cp := *e.Checkpoint
		s.rec.Checkpoint, s.rec.PausedAt = &cp, s.now
	}
	s.log(EntryCreated, op, e.Detail)
	s.launch()
}

// imported takes over a sandbox that was paused elsewhere. Its lifetime goes on
// from when it was created there; how long it has been asleep is counted from
// here.
func imported(s *step, ev Event) {
	e := ev.(ImportRequested)
	if err := e.Settings.Validate(); err != nil {
		s.refuse(err)
		return
	}
	created := e.CreatedAt
	if created.After(s.now) { // by a clock that is ahead of ours
		created = s.now
	}
	if life := e.Settings.MaxLifetime; life > 0 && !s.now.Before(created.Add(life)) {
		s.refuse(errdef.New(errdef.Invalid, "lifetime_over", "the sandbox may exist for %s and was created at %s", life, created.Format(time.RFC3339)).
			WithRemedy("nothing can be done with it any more"))
		return
	}
	cp := e.Checkpoint
	s.rec.Settings, s.rec.Checkpoint = e.Settings, &cp
	s.rec.State, s.rec.Generation, s.rec.Launches = Paused, e.Generation, e.Launches
	s.rec.CreatedAt, s.rec.StartedAt, s.rec.PausedAt, s.rec.PausedFor = created, created, s.now, e.Cause
	entry := s.log(EntryImported, nil, e.Detail)
	entry.Op, entry.Actor, entry.Cause, entry.Bytes = e.Op, e.Actor, e.Cause, cp.Bytes
}

func started(s *step, ev Event) {
	e := ev.(StartSucceeded)
	if !s.owns(e.Op) {
		return
	}
	op := s.rec.Op
	s.rec.State = Running
	s.rec.Generation, s.rec.Thawed = op.Generation, e.Thawed
	if !e.Thawed {
		s.rec.Launch = op.Launch
	}
	if c := op.Carry; c != nil {
		s.rec.EndAt, s.rec.EndIsLive, s.rec.Leases = c.EndAt, c.EndIsLive, c.Leases
	} else {
		s.rec.StartedAt = s.now
		s.giveEnd(s.endAfter(op.Timeout), false)
	}
	s.rec.PauseFailures, s.rec.PauseRetryAt, s.rec.LastError, s.rec.Hindered = 0, time.Time{}, "", Hindered{}
	s.rec.Op = nil
	if op.Phase == Creating {
		s.logEnd(EntryRunning, op, "")
		return
	}
	if op.Boot {
		s.effect(Effect{Kind: DropCheckpoint, Checkpoint: s.rec.Checkpoint})
		s.rec.Checkpoint = new(s.rec.Checkpoint.Files())
		e.Detail = "it has booted from its files, as was asked for, and its memory is gone"
	}
	s.logEnd(EntryResumed, op, e.Detail)
}

// giveEnd replaces the end of the soft timeout, whatever activity had moved it
// to.
func (s *step) giveEnd(end time.Time, live bool) {
	s.rec.EndAt, s.rec.EndSetAt, s.rec.EndIsLive = end, s.now, live
}

// endAfter returns the end of a soft timeout that begins now.
func (s *step) endAfter(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return s.now.Add(d)
}

func createFailed(s *step, ev Event) {
	e := ev.(StartFailed)
	if s.owns(e.Op) {
		s.terminate(s.rec.Op.ID, Meta{Cause: CauseFailure}, CreateFailed, e.Detail)
	}
}

func createTimer(s *step, ev Event) {
	if clock := s.due(ev); clock == ClockOperation {
		s.terminate(ev.(TimerFired).Op, Meta{Cause: CauseFailure}, CreateFailed, "it did not start in time")
	}
}

// due returns the clock that has run out, after ending the sandbox if that is
// its lifetime. Without any the event is stale.
func (s *step) due(ev Event) Clock {
	e := ev.(TimerFired)
	d, ok := s.rec.Due(e.Activity, s.now)
	switch {
	case !ok:
		s.verdict = Stale
	case d.Clock == ClockLifetime:
		s.terminate(e.Op, Meta{Cause: CauseTimeout}, MaxLifetimeExceeded, "")
	}
	return d.Clock
}

func createLost(s *step, ev Event) {
	s.terminate(ev.(ServerStarted).Op, Meta{Cause: CauseRecovery}, CreateFailed, "the server stopped while it was being created")
}

func extend(s *step, ev Event) {
	var m Meta
	var timeout time.Duration
	switch e := ev.(type) {
	case ConnectRequested:
		m, timeout = e.Meta, e.Timeout
		if !s.change(e.Change, e.Actor) {
			return
		}
	case ExtendRequested:
		m, timeout = e.Meta, e.Timeout
	}
	end := s.now.Add(timeout)
	switch {
	case s.rec.EndAt.IsZero():
		return
	case timeout == NoLimit:
		s.giveEnd(time.Time{}, false)
	case end.After(s.rec.EndAt):
		s.rec.EndAt = end
	default:
		return // bit-identical: clients compare
	}
	s.log(EntryTimeoutSet, nil, "").Actor = m.Actor
}

func setTimeout(s *step, ev Event) {
	e := ev.(TimeoutSet)
	s.endIn(e.Timeout, e.Actor)
}

// endIn gives a running sandbox another soft timeout.
func (s *step) endIn(timeout time.Duration, actor string) {
	if timeout == NoLimit {
		s.giveEnd(time.Time{}, false)
	} else {
		s.giveEnd(s.now.Add(timeout), true)
	}
	s.rec.PauseRetryAt = time.Time{}
	s.log(EntryTimeoutSet, nil, "").Actor = actor
}

func patch(s *step, ev Event) {
	e := ev.(SettingsPatched)
	switch {
	case e.Timeout != nil && s.rec.State != Running:
		s.refuse(errNotRunning(s.rec))
	case s.change(&e.Patch, e.Actor) && e.Timeout != nil:
		s.endIn(*e.Timeout, e.Actor)
	}
}

// change patches the settings, and reports whether they may be so. A patch that is
// nil changes nothing.
func (s *step) change(p *Patch, actor string) bool {
	if p == nil {
		return true
	}
	settings := p.apply(s.rec.Settings)
	if err := settings.Validate(); err != nil {
		s.refuse(err)
		return false
	}
	s.rec.Settings = settings
	s.log(EntryUpdated, nil, "").Actor = actor
	return true
}

// MaxLeases is how many leases a sandbox may have at once.
const MaxLeases = 100

// openLease adds a lease, or prolongs the one with the same id: that is still
// the same work, so it keeps its beginning and is no news.
func openLease(s *step, ev Event) {
	e := ev.(LeaseRequested)
	l := e.Lease
	l.Since, l.Actor = s.now, e.Actor
	s.dropLeases(func(l Lease) bool { return !l.Until.After(s.now) })
	if i := slices.IndexFunc(s.rec.Leases, func(has Lease) bool { return has.ID == l.ID }); i >= 0 {
		l.Since = s.rec.Leases[i].Since
		s.rec.Leases[i] = l
		return
	}
	if len(s.rec.Leases) >= MaxLeases {
		s.refuse(errdef.New(errdef.Exhausted, "too_many_holds", "the sandbox has %d holds, which is as many as it may have", len(s.rec.Leases)).
			WithRemedy("release some, or prolong one by its id").With("allowed", MaxLeases))
		return
	}
	s.rec.Leases = append(s.rec.Leases, l)
	s.log(EntryHeld, nil, l.Reason).Actor = e.Actor
}

func closeLease(s *step, ev Event) {
	e := ev.(LeaseReleased)
	i := slices.IndexFunc(s.rec.Leases, func(l Lease) bool { return l.ID == e.ID })
	if i < 0 {
		s.refuse(errdef.New(errdef.NotFound, "hold_not_found", "the sandbox has no hold %q", e.ID).
			WithRemedy("it may have run out; list the holds"))
		return
	}
	ended := s.rec.Leases[i].Until // it may have run out
	if ended.After(s.now) {
		ended = s.now
	}
	s.rec.LeaseEndedAt = later(s.rec.LeaseEndedAt, ended)
	s.dropLeases(func(l Lease) bool { return l.ID == e.ID })
	s.log(EntryReleased, nil, e.ID).Actor = e.Actor
}

// dropLeases removes leases without writing to the old record's slice.
func (s *step) dropLeases(drop func(Lease) bool) {
	s.rec.Leases = slices.DeleteFunc(slices.Clone(s.rec.Leases), drop)
}

func pauseExplicit(s *step, ev Event) {
	e := ev.(PauseRequested)
	if e.Generation != 0 && e.Generation != s.rec.Generation {
		s.verdict = Stale
		return
	}
	s.pause(e.Op, e.Meta, e.Mode)
	s.rec.Op.Without = e.Without
}

func (s *step) pause(id string, m Meta, mode Mode) {
	op := s.begin(id, Pausing, m, pauseDeadline)
	op.Cancelable = m.Cause != CauseCall && !m.Cause.GoesOn() && m.Cause != CauseDisk
	op.Mode = mode
	detail := string(mode)
	if m.Detail != "" {
		detail += ": " + m.Detail
	}
	s.log(EntryPausing, op, detail)
	s.effect(Effect{Kind: CaptureRuntime, Launch: s.rec.Launch})
}

func runningTimer(s *step, ev Event) {
	e := ev.(TimerFired)
	switch s.due(ev) {
	case ClockTimeout:
		s.expire(e.Op, CauseTimeout, s.rec.Settings.OnTimeout, TimeoutExpired)
	case ClockIdle:
		s.expire(e.Op, CauseIdle, s.rec.Settings.IdleAction(), IdleTimeout)
	case ClockCheckpoint:
		s.pause(e.Op, Meta{Cause: CauseCheckpoint}, Memory)
	case ClockAnnounce:
		s.rec.Announced = s.rec.SoftEnd(e.Activity)
		s.log(EntryExpiring, nil, string(s.rec.Settings.OnTimeout))
	case ClockRecheck:
		s.verdict = Stale
	}
}

func (s *step) expire(id string, cause Cause, action Action, reason Reason) {
	if action != Pause {
		s.terminate(id, Meta{Cause: cause}, reason, "")
		return
	}
	if h := s.rec.Hindered; h.Times >= mostHindered {
		s.pause(id, Meta{Cause: cause, Detail: WithoutMemory(h.By)}, Filesystem)
		s.rec.Op.Without = h.By
		return
	}
	s.pause(id, Meta{Cause: cause}, s.rec.Settings.pauseMode())
}

func pausedTimer(s *step, ev Event) {
	if s.due(ev) == ClockRetention {
		s.terminate(ev.(TimerFired).Op, Meta{Cause: CauseTimeout}, PausedExpired, "")
	}
}

func forget(s *step, ev Event) {
	if s.due(ev) == ClockTombstone {
		s.effect(Effect{Kind: Forget})
	}
}

func joinPause(s *step, ev Event) {
	s.verdict = Joins
	op, e := s.rec.Op, ev.(PauseRequested)
	switch {
	case op.Canceling, op.Mode != e.Mode, op.Restore != nil:
		s.verdict = Waits // it is being undone, or keeps something else, or wakes again: ask again
	case op.Cause == CauseCheckpoint:
		op.Cause, op.Actor = e.Cause, e.Actor // and it does not wake again
	case op.Cancelable:
		op.Cancelable = false
		s.effect(Effect{Kind: ShortenDrain, Launch: s.rec.Launch})
	}
}

// accessDuringPause cancels an automatic pause, where the access may wake the
// sandbox. Until the barrier is up, an automatic pause keeps no other access
// out either.
func accessDuringPause(s *step, ev Event) {
	op, e := s.rec.Op, ev.(AccessRequested)
	switch {
	case e.Probe && e.Draining:
	case e.Probe && !op.Cause.GoesOn():
		s.refuse(errProbed(s.rec))
	case e.Probe:
		s.verdict = Waits // it is not asleep, and not going to be
	case !op.Cancelable || op.Canceling:
		s.verdict = Waits
	case s.rec.Settings.AutoResume && e.Policy.Wakes():
		s.verdict = Waits
		s.cancelPause()
	case !e.Draining:
		s.verdict = Waits
	}
}

func accessDuringResume(s *step, ev Event) {
	if ev.(AccessRequested).Probe && s.rec.Op.Carry == nil {
		s.refuse(errProbed(s.rec))
		return
	}
	s.verdict = Waits
}

func pausingTimer(s *step, ev Event) {
	if s.due(ev) == ClockOperation {
		if op := s.rec.Op; !op.Canceling {
			op.Cancelable = false
		}
		s.cancelPause()
	}
}

// cancelPause has the pause undone. Only the capture can say that the runtime
// runs on, so it is told until it does.
func (s *step) cancelPause() {
	s.rec.Op.Canceling, s.rec.Op.Deadline = true, s.now.Add(abortRetry)
	s.abortCapture()
}

// captured is the commit point of a pause. A pause that is being undone keeps
// its verdict at Waits: the caller must then thaw and report CaptureEnded.
func captured(s *step, ev Event) {
	e := ev.(CaptureReady)
	if !s.owns(e.Op) {
		return
	}
	op := s.rec.Op
	if op.Canceling {
		s.verdict = Waits
		return
	}
	if op.Restore != nil {
		entry := s.goBack(op, *op.Restore)
		entry.Bytes, entry.Freed = e.Checkpoint.Bytes, e.Freed
		return
	}
	old := s.rec.Checkpoint
	cp := e.Checkpoint
	if e.Rests {
		s.effect(Effect{Kind: RestRuntime, Launch: s.rec.Launch})
	} else {
		s.release(s.rec.Launch)
	}
	if m := e.Merged; m != nil && !e.Rests && cp.merge(*m) { // not under what goes on
		s.effect(Effect{Kind: DropLayers, Layers: m.Merged})
	}
	if old != nil {
		s.effect(Effect{Kind: DropCheckpoint, Checkpoint: old})
	}
	cp.Without = op.Without
	carry := s.sleep(op.Cause, &cp)
	entry := s.logEnd(EntryPaused, op, op.left())
	entry.Bytes = cp.Bytes
	if !e.Rests {
		entry.Freed = e.Freed
	}
	if op.Cause == CauseCheckpoint {
		s.goOn(op, carry)
		return
	}
	if op.Cause == CauseMove {
		s.rec.Moves = &carry
	}
	entry.StartedAt = s.rec.StartedAt
}

// sleep makes a running sandbox a paused one with this checkpoint, and returns what
// it would go on with.
func (s *step) sleep(cause Cause, cp *Checkpoint) Carry {
	carry := Carry{EndAt: s.rec.EndAt, EndIsLive: s.rec.EndIsLive, Leases: s.rec.Leases}
	s.rec.State, s.rec.Checkpoint, s.rec.Op, s.rec.Thawed = Paused, cp, nil, false
	s.rec.PausedAt, s.rec.PausedFor = s.now, cause
	s.rec.EndAt, s.rec.EndIsLive = time.Time{}, false
	s.rec.Leases, s.rec.Moves = nil, nil
	s.rec.PauseFailures, s.rec.PauseRetryAt, s.rec.LastError, s.rec.Hindered = 0, time.Time{}, "", Hindered{}
	return carry
}

// restore begins to take a running sandbox back. Where the state before is to be
// kept, it is captured as by a pause; else its runtime is replaced at once.
func restore(s *step, ev Event) {
	e := ev.(RestoreRequested)
	if !s.only(e.Only) {
		return
	}
	e.Cause = CauseRestore
	if e.To.Undo == "" {
		s.goBack(s.begin(e.Op, Resuming, e.Meta, resumeDeadline), e.To)
		return
	}
	s.pause(e.Op, e.Meta, Memory)
	to := e.To
	s.rec.Op.Restore = &to
}

// goBack is the commit point of a restore: the runtime is released, and the sandbox
// goes on from the snapshot, in the same operation and with its clocks.
func (s *step) goBack(op *Operation, to Restore) *Entry {
	cp, old := to.Checkpoint, s.rec.Checkpoint
	s.release(s.rec.Launch)
	carry := s.sleep(op.Cause, &cp)
	if old != nil {
		s.effect(Effect{Kind: DropCheckpoint, Checkpoint: old})
	}
	s.rec.Restored = &Restored{to.Snapshot, s.now}
	s.logEnd(EntryRestored, op, to.detail())
	op.Restore = nil
	s.goOn(op, carry)
	return &s.entries[len(s.entries)-1]
}

// restoreAsleep needs no operation: the sandbox sleeps on, with another checkpoint.
func restoreAsleep(s *step, ev Event) {
	e := ev.(RestoreRequested)
	if !s.only(e.Only) {
		return
	}
	cp := e.To.Checkpoint
	s.effect(Effect{Kind: DropCheckpoint, Checkpoint: s.rec.Checkpoint})
	s.rec.Checkpoint, s.rec.LastError = &cp, ""
	s.rec.Restored = &Restored{e.To.Snapshot, s.now}
	entry := s.log(EntryRestored, nil, e.To.detail())
	entry.Op, entry.Actor, entry.Cause = e.Op, e.Actor, CauseRestore
}

// detail says what the event log says of a restore.
func (r Restore) detail() string {
	if r.Undo == "" {
		return "to snapshot " + r.Snapshot
	}
	return "to snapshot " + r.Snapshot + "; " + r.Undo + " keeps the state before"
}

// goOn wakes a sandbox that was only to be checkpointed, or to go back. It is the
// same operation still: who waits for its end waits for the wake.
func (s *step) goOn(op *Operation, carry Carry) {
	op.Phase, op.Attempt, op.Deadline = Resuming, 1, s.now.Add(resumeDeadline)
	op.Generation = s.rec.Generation + 1
	op.Carry = &carry
	s.rec.Op = op
	s.launch()
}

// merged replaces layers of the stack by one. It applies only while nothing is
// mounted over them.
func merged(s *step, ev Event) {
	e := ev.(LayersMerged)
	cp := *s.rec.Checkpoint
	if !cp.merge(e) {
		s.verdict = Stale
		return
	}
	s.rec.Checkpoint = &cp
	s.effect(Effect{Kind: DropLayers, Layers: e.Merged})
}

// merge puts a layer in the place of those that it shows, and reports whether
// they are in the stack. What the checkpoint shares with others stays as it is.
func (cp *Checkpoint) merge(m LayersMerged) bool {
	i := indexOf(cp.Stack, m.Merged)
	if i < 0 {
		return false
	}
	cp.Stack = slices.Concat(cp.Stack[:i], []string{m.Into}, cp.Stack[i+len(m.Merged):])
	layers := make(map[string]string, len(cp.Stack))
	for _, id := range cp.Stack {
		if digest, known := cp.Layers[id]; known {
			layers[id] = digest
		}
	}
	layers[m.Into] = m.Digest
	cp.Layers = layers
	if slices.Contains(m.Merged, cp.Copy) {
		cp.Copy = ""
	}
	return true
}

// indexOf returns where in the stack the layers lie, one on the other; -1 if
// they do not.
func indexOf(stack, layers []string) int {
	for i := 0; len(layers) > 0 && i+len(layers) <= len(stack); i++ {
		if slices.Equal(stack[i:i+len(layers)], layers) {
			return i
		}
	}
	return -1
}

func captureEnded(s *step, ev Event) {
	e := ev.(CaptureEnded)
	if !s.owns(e.Op) {
		return
	}
	op := s.rec.Op
	s.rec.Op = nil
	if op.Canceling && op.Cancelable {
		s.giveEnd(s.endAfter(s.wakeTimeout()), false)
		s.logEnd(EntryPauseCancelled, op, "access")
		return
	}
	detail := e.Detail
	if detail == "" {
		detail = "it did not finish in time"
	}
	if op.Restore != nil {
		s.logEnd(EntryRestoreFailed, op, e.told(detail))
		return
	}
	s.rec.LastError = "pause: " + e.told(detail)
	if op.Cause != CauseCall {
		s.rec.PauseRetryAt = s.now.Add(pauseBackoff(s.rec.PauseFailures))
		s.rec.PauseFailures++
	}
	if by := op.Cause; e.Inside && (by == CauseTimeout || by == CauseIdle) && op.Without == "" {
		s.hinder(detail)
	}
	s.logEnd(EntryPauseFailed, op, e.told(detail))
}

func (e CaptureEnded) told(detail string) string {
	if e.NotCapturable {
		return WithoutMemory(detail)
	}
	return detail
}

// hinder counts an automatic pause that failed for what runs inside. That may go on for
// ever, so the next ones come soon.
func (s *step) hinder(by string) {
	s.rec.Hindered = Hindered{s.rec.Hindered.Times + 1, by}
	s.rec.PauseRetryAt = s.now
	if s.rec.Hindered.Times < mostHindered {
		s.rec.PauseRetryAt = s.now.Add(firstPauseRetry)
	}
}

// NotCapturable is why a pause leaves out memory that it was to keep, and why one that
// must not fails.
const NotCapturable = "memory_not_capturable"

// WithoutMemory is what the event log says of memory that was not captured.
func WithoutMemory(by string) string { return NotCapturable + ": " + by }

// NotCapturable returns what keeps memory from being captured, where that is why an
// operation failed that ended with the entry.
func (e Entry) NotCapturable() (by string, so bool) {
	return strings.CutPrefix(e.Detail, WithoutMemory(""))
}

// left is what the event log says of the memory that a pause has left out.
func (op *Operation) left() string {
	if op.Without == "" {
		return ""
	}
	return string(op.Mode) + ": " + WithoutMemory(op.Without)
}

// only reports whether the sandbox is in a state, which is empty for any. It refuses the
// event otherwise.
func (s *step) only(want State) bool {
	switch {
	case want == "" || want == s.rec.State:
		return true
	case want == Paused:
		s.refuse(errNotPaused(s.rec))
	default:
		s.refuse(errNotRunning(s.rec))
	}
	return false
}

// snapshot begins to copy a running sandbox. Nothing else about it changes.
func snapshot(s *step, ev Event) {
	e := ev.(SnapshotRequested)
	if !s.only(e.Only) {
		return
	}
	s.begin(e.Op, Snapshotting, e.Meta, pauseDeadline)
	s.effect(Effect{Kind: CaptureSnapshot, Launch: s.rec.Launch})
}

// snapshotAsleep needs no operation: a checkpoint never changes.
func snapshotAsleep(s *step, ev Event) {
	e := ev.(SnapshotRequested)
	if !s.only(e.Only) {
		return
	}
	entry := s.log(EntrySnapshotted, nil, e.Detail)
	entry.Op, entry.Actor, entry.Cause = e.Op, e.Actor, e.Cause
}

func snapshotTaken(s *step, ev Event) {
	e := ev.(SnapshotTaken)
	if !s.owns(e.Op) {
		return
	}
	op := s.rec.Op
	s.rec.Op = nil
	s.logEnd(EntrySnapshotted, op, e.Detail).Bytes = e.Bytes
}

func snapshotFailed(s *step, ev Event) {
	e := ev.(SnapshotFailed)
	if s.owns(e.Op) {
		s.endSnapshot(CaptureEnded{NotCapturable: e.NotCapturable}.told(e.Detail))
	}
}

func (s *step) endSnapshot(detail string) {
	op := s.rec.Op
	s.rec.Op = nil
	s.logEnd(EntrySnapshotFailed, op, detail)
}

// snapshotTimer has the capture end. Only the capture can say that the runtime
// runs on, so it is told until it does.
func snapshotTimer(s *step, ev Event) {
	if s.due(ev) == ClockOperation {
		s.rec.Op.Deadline = s.now.Add(abortRetry)
		s.abortCapture()
	}
}

func snapshotFound(s *step, ev Event) {
	if !ev.(ServerStarted).Alive {
		s.foundGone(ev.(ServerStarted))
		return
	}
	s.endSnapshot("the server stopped during the snapshot")
}

func pauseBackoff(failures int) time.Duration {
	d := firstPauseRetry
	for range failures {
		if d *= 2; d >= maxPauseRetry {
			return maxPauseRetry
		}
	}
	return d
}

func wake(s *step, ev Event) {
	e := ev.(AccessRequested)
	switch {
	case e.Probe:
		s.refuse(errProbed(s.rec))
		return
	case !s.rec.Settings.AutoResume:
		s.refuse(errAsleep(s.rec))
		return
	case s.rec.Checkpoint.Mode != Memory && !e.Boots && !s.rec.BootsInstead():
		s.refuse(errFilesystemOnly(s.rec))
		return
	case !e.Policy.Wakes():
		s.refuse(errNotWaking(s.rec))
		return
	}
	e.Cause = CauseAccess
	s.resume(e.Meta, s.wakeTimeout(), false)
}

// BootsInstead reports whether traffic may boot a sandbox that sleeps without the memory
// that it was to have: its owner allows that.
func (r Record) BootsInstead() bool {
	return r.Checkpoint != nil && r.Checkpoint.Without != "" && r.Settings.FilesystemFallback
}

// wakeTimeout is the soft timeout that a wake by traffic begins: the original,
// but MinAutoResume at least, and no more than is left of the lifetime.
func (s *step) wakeTimeout() time.Duration {
	d := s.rec.Settings.Timeout
	if d == 0 {
		return 0
	}
	d = max(d, MinAutoResume)
	if life := s.rec.Settings.MaxLifetime; life > 0 {
		d = min(d, s.rec.CreatedAt.Add(life).Sub(s.now))
	}
	return d
}

func resume(s *step, ev Event) {
	switch e := ev.(type) {
	case ConnectRequested:
		s.resumeWith(e.Change, e.Meta, e.Timeout, e.Boot)
	case ResumeRequested:
		s.resumeWith(e.Change, e.Meta, e.Timeout, e.Boot)
	}
}

// resumeWith changes settings in the step that begins the resume, because the
// runtime starts with them. Should the resume fail, they are again as before.
func (s *step) resumeWith(p *Patch, m Meta, timeout time.Duration, boot bool) {
	before := s.rec.Settings
	if !s.change(p, m.Actor) {
		return
	}
	s.resume(m, timeout, boot && s.rec.Checkpoint.Mode == Memory)
	if p != nil {
		s.rec.Op.Before = &before
	}
}

func (s *step) resume(m Meta, timeout time.Duration, boot bool) {
	op := s.begin(m.Op, Resuming, m, resumeDeadline)
	op.Generation = s.rec.Generation + 1
	op.Timeout = max(timeout, 0) // of an operation, zero is no limit
	op.Boot = boot
	if m.Cause == CauseMove {
		op.Carry = s.rec.Moves
	}
	s.rec.Moves = nil
	detail := ""
	if boot {
		detail = "by a boot from its files, without its memory"
	}
	s.log(EntryResuming, op, detail)
	s.launch()
	s.verdict = Waits
}

func resumeFailed(s *step, ev Event) {
	e := ev.(StartFailed)
	if !s.owns(e.Op) {
		return
	}
	if op := s.rec.Op; op.Attempt < maxStartAttempts && !e.Damaged && !e.Unreadable {
		op.Attempt++
		s.launch()
		return
	}
	entry := s.sleepAgain(e.Detail)
	entry.Damaged, entry.Unreadable = e.Damaged, e.Unreadable
}

func resumingTimer(s *step, ev Event) {
	if s.due(ev) == ClockOperation {
		s.sleepAgain("it did not start in time")
	}
}

func resumingFound(s *step, ev Event) {
	if ev.(ServerStarted).Alive {
		s.release(s.rec.Launch)
	}
	if op := s.rec.Op; op.Carry != nil && op.Attempt < maxStartAttempts {
		s.release(op.Launch)
		op.Attempt, op.Deadline = op.Attempt+1, s.now.Add(resumeDeadline)
		s.launch()
		return
	}
	s.sleepAgain("the server stopped while it was being resumed")
}

func (s *step) sleepAgain(detail string) *Entry {
	op := s.rec.Op
	s.release(op.Launch)
	s.rec.Op = nil
	s.rec.LastError = "resume: " + detail
	if op.Before != nil {
		s.rec.Settings = *op.Before
		s.log(EntryUpdated, op, "as before the resume")
	}
	return s.logEnd(EntryResumeFailed, op, detail)
}

func gone(s *step, ev Event) {
	e := ev.(RuntimeGone)
	if e.Generation != s.rec.Generation {
		s.verdict = Stale
		return
	}
	s.lose(cmp.Or(e.Reason, RuntimeExited), e.Detail, CauseFailure)
}

// lose handles a runtime that vanished: the last verified checkpoint if there
// is one, else the end.
func (s *step) lose(reason Reason, detail string, cause Cause) {
	if s.rec.Checkpoint == nil {
		id := "lost"
		if s.rec.Op != nil {
			id = s.rec.Op.ID
		}
		s.terminate(id, Meta{Cause: cause}, reason, detail)
		return
	}
	s.release(s.rec.Launch)
	s.rec.State, s.rec.Op, s.rec.Thawed = Paused, nil, false
	s.rec.EndAt, s.rec.EndIsLive, s.rec.Leases = time.Time{}, false, nil
	s.rec.LastError = fmt.Sprintf("%s in generation %d: fell back to the checkpoint of %s", reason, s.rec.Generation, s.rec.PausedAt.Format(time.RFC3339))
	// The retention counts from here, not from when the checkpoint was made.
	s.rec.PausedAt, s.rec.PausedFor = s.now, cause
	e := s.log(EntryRuntimeLost, nil, reason.with(detail))
	e.Cause, e.StartedAt = cause, s.rec.StartedAt
}

func runningFound(s *step, ev Event) {
	if !ev.(ServerStarted).Alive {
		s.foundGone(ev.(ServerStarted))
	}
}

// foundGone is lose for a runtime that a server does not find when it starts. If it was to be killed
// by now, whatever has happened in it, that is its end.
func (s *step) foundGone(e ServerStarted) {
	set := s.rec.Settings
	if set.RefreshOnActivity == NoRefresh && set.OnTimeout == Kill && !s.rec.EndAt.IsZero() && !s.now.Before(s.rec.EndAt) {
		s.terminate(e.Op, Meta{Cause: CauseTimeout}, TimeoutExpired, "")
		return
	}
	s.lose(RuntimeLost, "its runtime was gone when the server started", CauseRecovery)
}

func pausingFound(s *step, ev Event) {
	if !ev.(ServerStarted).Alive {
		s.foundGone(ev.(ServerStarted))
		return
	}
	op := s.rec.Op
	s.rec.Op = nil
	if op.Restore != nil {
		s.logEnd(EntryRestoreFailed, op, "the server stopped during the restore")
		return
	}
	s.logEnd(EntryPauseFailed, op, "the server stopped during the pause")
}

// takenOver has the sandbox sleep at its checkpoint, on another server. What the one
// before had of it is not here.
func takenOver(s *step, ev Event) {
	e := ev.(TakenOver)
	if s.rec.Checkpoint == nil {
		s.verdict = Stale
		return
	}
	if s.rec.Phase() == Resuming {
		s.sleepAgain("the server stopped while it was being resumed")
	}
	cp, why, cause := e.Checkpoint, "server "+e.From+" is gone, and another goes on with the sandbox", CauseRecovery
	if e.Offered {
		why, cause = "from server "+e.From, CauseMove
	}
	if s.rec.State == Running {
		s.lose(RuntimeLost, why, cause)
	} else {
		entry := s.log(EntryMoved, nil, why)
		entry.Op, entry.Cause, entry.Bytes = e.Op, cause, cp.Bytes
	}
	s.rec.Checkpoint, s.rec.Launches = &cp, e.Launches
	s.effects = nil
}

func pausedFound(s *step, ev Event) {
	if ev.(ServerStarted).Alive {
		s.release(s.rec.Launch)
	}
}

func kill(s *step, ev Event) {
	e := ev.(KillRequested)
	s.terminate(e.Op, e.Meta, Killed, "")
}

// terminate commits the end; what is left of the sandbox goes afterwards.
func (s *step) terminate(id string, m Meta, reason Reason, detail string) {
	if p := s.rec.Phase(); p == Pausing || p == Snapshotting {
		s.abortCapture()
	}
	ran := s.rec.State == Running
	op := s.begin(id, Killing, m, releaseRetry)
	s.rec.State = Terminated
	s.rec.EndAt, s.rec.Leases = time.Time{}, nil
	s.rec.Tombstone = &Tombstone{Reason: reason, Detail: detail, Actor: m.Actor, At: s.now}
	e := s.log(EntryTerminated, op, reason.with(detail))
	if ran {
		e.StartedAt = s.rec.StartedAt
	}
	s.effect(Effect{Kind: ReleaseAll})
}

func released(s *step, ev Event) {
	if s.owns(ev.(ReleaseDone).Op) {
		s.rec.Op = nil
		s.rec.Checkpoint = nil
	}
}

func retryRelease(s *step, ev Event) {
	if _, timer := ev.(TimerFired); timer && s.due(ev) == "" {
		return
	}
	s.rec.Op.Attempt++
	s.rec.Op.Deadline = s.now.Add(releaseRetry)
	s.effect(Effect{Kind: ReleaseAll})
}
