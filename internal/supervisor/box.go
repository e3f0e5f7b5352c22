package supervisor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/commits"
	"github.com/drowse-dev/drowse/internal/supervisor/disklimit"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/starved"
	"github.com/drowse-dev/drowse/internal/supervisor/takeover"
	"github.com/drowse-dev/drowse/internal/supervisor/tasks"
	"github.com/drowse-dev/drowse/internal/supervisor/timers"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/trace"
)

// box is the owner of one sandbox.
type box struct {
	s     *Supervisor
	id    string
	timer timers.Place
	gate  *egress.Gate // what it reaches outside

	disowned    atomic.Pointer[error] // another server has it; nil otherwise
	ignored     atomic.Int64          // bytes of traffic that counts for nothing
	ignoredTold atomic.Int64          // of them, how many the agent knows of

	// mu orders everything that happens to the sandbox. It is held while a
	// change is committed, never while an effect is carried out. It is taken
	// after Supervisor.mu where both are.
	mu        sync.Mutex
	sb        store.Sandbox
	inst      runtime.Instance   // of the serving generation; nil when there is none
	unwatch   context.CancelFunc // ends what follows inst
	bed       *lightsleep.Bed    // where its runtime stays while it sleeps lightly
	sharers   int                // among how many its key's CPU time is divided; 0 if inst was not told
	desk      *leases.Desk       // those on the serving generation
	waiters   []*waiter          // accesses that wait for the sandbox to serve
	work      awake.Work
	starved   starved.Count // for want of memory
	polling   bool          // the agent is being asked what goes on
	releasing sync.Mutex    // held while what is left of it is removed
	tenant    *disklimit.Tenant
	meter     usage.Meter
	journal   journal.Journal
	traces    trace.Book
	fault     checkpoint.Finding
	ended     calls.Waiting
	last      commits.Last
	moves     bool      // to another server
	tasks     tasks.Set // the work of effects in flight, by operation id

	unfit *errdef.Error // what the host lacked at the last start; nil for nothing

	takings map[string]*taking // what the snapshots are to be that are being asked for, by operation id

	merging bool                    // layers of the stack are being merged
	merged  *lifecycle.LayersMerged // not committed yet; nil for none
}

func newBox(s *Supervisor, sb store.Sandbox) *box {
	sb.Owner = s.o.Store.Self()
	b := &box{s: s, id: sb.ID, sb: sb, ended: calls.Waiting{}}
	b.last = commits.Last{Mu: &b.mu, Learned: b.learned, Left: func(server string) { b.background(func(context.Context) { disown(b, server) }) }}
	b.tenant = s.guard.Tenant(asked{b})
	b.desk, b.bed = leases.New(&b.mu), bedOf(b)
	b.gate = s.outside.Gate(sb.ID, sb.Config, audited(b))
	b.setGate()
	if s.o.Traced != nil {
		b.traces.Ended = func(op trace.Operation) { s.o.Traced(sb.ID, op) }
	}
	return b
}

// Place implements timers.Timed.
func (b *box) Place() *timers.Place { return &b.timer }

func (b *box) snapshot() store.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb
}

// serving returns the sandbox, and the runtime that serves; nil for none.
func (b *box) serving() (store.Sandbox, runtime.Instance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb, b.inst
}

// apply lets ev happen to the sandbox: decide, commit, then act.
func (b *box) apply(ev lifecycle.Event) (lifecycle.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.applyLocked(ev)
}

func (b *box) applyLocked(ev lifecycle.Event) (lifecycle.Result, error) {
	return b.applyWithLocked(ev, nil, func(lifecycle.Result) {})
}

// applyWithLocked also keeps a snapshot, in the same commit, if the event applies. Once that has
// changed the sandbox, then is called, also where the commit was learned of only later.
func (b *box) applyWithLocked(ev lifecycle.Event, snap *store.Snapshot, then func(lifecycle.Result)) (lifecycle.Result, error) {
	if planted.In(planted.DeafKill) && ev.Kind() == (lifecycle.KillRequested{}).Kind() && b.sb.Record.Phase() == lifecycle.Resuming {
		return lifecycle.Result{Record: b.sb.Record}, nil
	}
	if err := b.settleLocked(); err != nil {
		return lifecycle.Result{Record: b.sb.Record}, err
	}
	if snap == nil {
		snap = b.s.Before(b.sb, ev)
	}
	if b.moves && takeover.Waits(ev) {
		return lifecycle.Result{Record: b.sb.Record, Verdict: lifecycle.Waits}, nil
	}
	if b.sb.Record.Overdue(ev, ids.Now()) {
		if res, err := b.applyLocked(lifecycle.TimerFired{Op: ids.NewOp()}); err != nil {
			return res, err
		}
	}
	res, err := lifecycle.Step(b.sb.Record, ev, ids.Now())
	if err := b.s.tenure.Allows(b.sb.Record.Op, res.Record.Op); err != nil {
		return lifecycle.Result{Record: b.sb.Record}, err
	}
	if err != nil {
		return res, err
	}
	if planted.In(planted.ReusedGeneration) && res.Changed && res.Record.Phase() == lifecycle.Resuming {
		res.Record.Op.Generation = res.Record.Generation
	}
	if !res.Changed && (snap == nil || res.Verdict != lifecycle.Applies) { // an effect may be due all the same
		b.actAll(res.Effects)
		return res, nil
	}
	next := b.sb
	next.Record = res.Record
	if b.inst != nil {
		next.ActiveAt, next.RequestedAt = b.lastActiveLocked(ids.Now())
	}
	if res.Record.State == lifecycle.Terminated && res.Record.Op == nil {
		next = fields.Remembered(next)
	}
	next.Config = next.Config.Settled(next.Record)
	makeRoom(b, next)
	if err := b.s.slots.Move(b.sb, next); err != nil {
		return lifecycle.Result{Record: b.sb.Record}, err
	}
	durable := next
	if planted.In(planted.FleetingEnd) && b.sb.Record.State == lifecycle.Running {
		durable.Record.EndAt = b.sb.Record.EndAt
	}
	b.bed.Approach(durable.Record)
	err = b.s.commits.Commit(&b.last, &commits.Change{Sandbox: durable, Was: b.sb.Record.Op, Entries: res.Entries, Snapshot: snap,
		Refused: func() { _ = b.s.slots.Move(next, b.sb) }, // giving back never fails
		Stored: func(sb store.Sandbox) {
			next.Rev = sb.Rev
			b.changedLocked(next, res)
			then(res)
		},
	})
	if err != nil {
		return lifecycle.Result{Record: b.sb.Record}, err
	}
	return res, nil
}

// changedLocked has a sandbox be what has been committed, by what was decided.
func (b *box) changedLocked(next store.Sandbox, res lifecycle.Result) {
	before, was := b.sb.Record, b.sb.Config
	b.sb = next
	if was.Before != nil && next.Config.Before == nil {
		b.setGate()
	}
	b.s.Announce()
	if b.sb.Ended() && (before.Tombstone == nil || before.Op != nil) {
		bury(b)
	}
	b.noteCancel(res.Entries)
	b.arm()
	b.bed.Follow(b.sb.Record)
	b.s.replicas.Follow(before, b.sb)
	b.report(before, res)
	b.actAll(res.Effects)
	b.grantLocked()
	b.mergeLocked(before)
}

func (b *box) actAll(effects []lifecycle.Effect) {
	for _, e := range effects {
		b.act(e)
	}
}

// noteCancel counts the access that cancelled a pause as activity: it gets its
// lease only now, and the idle clock must not run out before.
func (b *box) noteCancel(entries []lifecycle.Entry) {
	for _, e := range entries {
		if e.Type == lifecycle.EntryPauseCancelled {
			b.work.Last = ids.Now()
		}
	}
}

// arm sets the timer to the sandbox's next deadline.
func (b *box) arm() {
	t := ids.Now()
	act := b.activityLocked(t)
	d, ok := b.sb.Record.NextDeadline(act)
	if !ok {
		b.s.timers.Clear(b)
		return
	}
	if !t.Before(d.At) {
		// What has come takes effect by precedence, not by what came first: an
		// announcement that was missed must not put a pause among the ends.
		d, _ = b.sb.Record.Due(act, t)
	}
	// Rounded up: now is truncated, and firing before it reaches the deadline
	// would only arm it again.
	b.s.timers.Set(b, d.At.Add(time.Microsecond-1).Truncate(time.Microsecond), b.sb.Record.Settings.Pauses(d.Clock))
}

// fire lets a deadline that has come take effect. What it means is looked up again.
func (b *box) fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := ids.Now()
	b.reportStalledAccesses(t)
	act := b.activityLocked(t)
	d, ok := b.sb.Record.Due(act, t)
	if !ok {
		b.arm()
		return
	}
	if b.mustLookLocked(d, t) {
		go b.lookAndFire()
		return
	}
	if _, err := b.applyLocked(lifecycle.TimerFired{Op: ids.NewOp(), Activity: act}); err != nil {
		b.s.log.Error("timer could not be applied", "sandbox", b.id, "err", err)
		if b.disowned.Load() == nil {
			b.s.timers.Set(b, t.Add(storeRetry), false)
		}
		return
	}
	b.s.metrics.Late(d, t)
	if d.Clock == lifecycle.ClockRecheck {
		b.arm()
	}
}

// request lets ev happen, and returns what tells the end of the operation that is then in flight:
// the one that ev began or joined, or has to wait for. It is nil if there is none.
func (b *box) request(ev lifecycle.Event) (lifecycle.Result, <-chan calls.Ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if calls.EarlyPhase() != lifecycle.None {
		if res, told, ok := b.answerEarly(ev); ok {
			return res, told, nil
		}
	}
	res, err := b.applyLocked(ev)
	if err != nil {
		return res, nil, err
	}
	return res, b.awaitLocked(), nil
}

// awaitLocked registers for the end of the operation in flight, or else of a move; nil
// if there is none.
func (b *box) awaitLocked() <-chan calls.Ending {
	if op := b.sb.Record.Op; op != nil || !b.moves {
		return b.ended.For(op)
	}
	return b.ended.For(&lifecycle.Operation{ID: takeover.Op})
}

// unserveLocked ends the leases of the serving runtime; it is about to go.
func (b *box) unserveLocked() {
	b.inst = nil
	if b.unwatch != nil {
		b.unwatch()
	}
	b.s.resharing.Note(b.sb.Config.Key)
	b.desk.Cut(outcome.Cut(b.sb))
}

// serveLocked makes inst what leases are given on.
func (b *box) serveLocked(inst runtime.Instance) {
	b.inst, b.sharers = inst, 0
	b.s.resharing.Note(b.sb.Config.Key)
	if _, ok := inst.(runtime.Sharer); ok { // it may have another part from before
		b.s.work.Go(b.takeShare)
	}
	b.desk.Reopen()
	b.s.Board.Watch(b.id, inst, b.sb.Config.Services)
	ctx, cancel := context.WithCancel(b.s.ctx)
	b.unwatch = cancel
	b.watch(ctx, inst)
	b.tenant.Tell(ctx, inst)
	b.work.Begin(ids.Now())
	b.arm()
	if b.s.o.SampleEvery > 0 { // what the next sample is compared with
		b.s.work.Go(func() { b.takeSample() })
	}
}
