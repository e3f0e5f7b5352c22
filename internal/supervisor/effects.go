package supervisor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/autopsy"
	"github.com/drowse-dev/drowse/internal/supervisor/capture"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/tasks"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/trace"
)

// storeRetry is how long to wait before reporting again what the store did not take.
const storeRetry = time.Second

// act begins an effect. It is called with b.mu held.
func (b *box) act(e lifecycle.Effect) {
	switch e.Kind {
	case lifecycle.StartRuntime:
		deadline := b.sb.Record.Op.Deadline
		b.spawn(e.Op, func(ctx context.Context) {
			ctx, cancel := context.WithDeadline(ctx, deadline)
			defer cancel()
			b.start(ctx, e)
		})
	case lifecycle.CaptureRuntime:
		b.beginDrainLocked()
		b.spawn(e.Op, func(ctx context.Context) { b.capture(ctx, e) })
	case lifecycle.CaptureSnapshot:
		t := b.takings[e.Op]
		b.spawn(e.Op, func(ctx context.Context) { t.capture(ctx, e.Op) })
	case lifecycle.ShortenDrain:
		b.desk.Shorten(explicitDrain)
	case lifecycle.AbortCapture:
		b.tasks.Stop(e.Op)
	case lifecycle.ReleaseRuntime:
		b.unserveLocked()
		b.background(func(ctx context.Context) { b.releaseRuntime(ctx, e.Launch) })
	case lifecycle.RestRuntime:
		rest(b, e.Launch)
	case lifecycle.DropCheckpoint:
		b.background(func(context.Context) { b.dropCheckpoint(e.Checkpoint) })
	case lifecycle.DropLayers:
		b.background(func(context.Context) { b.dropLayers(e.Layers) })
	case lifecycle.ReleaseAll:
		inst := b.inst
		b.unserveLocked()
		atWork := b.tasks.StopAll()
		b.background(func(ctx context.Context) { b.releaseAll(ctx, e.Op, inst, atWork) })
	case lifecycle.Forget:
		b.background(b.forgetRecord)
	}
}

// spawn runs the work of an operation, which can be told to stop. It also stops when the supervisor does.
func (b *box) spawn(op string, f func(context.Context)) {
	ctx, done := b.tasks.Begin(b.s.ctx, op)
	end := func() {}
	if now := b.sb.Record.Op; now != nil && now.ID == op {
		ctx, end = b.traces.Begin(ctx, string(now.Phase), string(now.Cause))
	}
	b.s.work.Go(func() {
		defer done()
		defer end()
		f(ctx)
	})
}

// background runs work that is carried to its end also while the supervisor stops.
func (b *box) background(f func(context.Context)) {
	ctx := context.WithoutCancel(b.s.ctx)
	b.s.work.Go(func() { f(ctx) })
}

// removalTries is how often the removal of a sandbox that has ended is tried while its kill waits.
const removalTries = 3

// tell reports an outcome until the store takes it: the world has changed, and the record must
// follow. Where it is not known whether it has, the server stops, and the next one finds out.
func (b *box) tell(ev lifecycle.Event) (res lifecycle.Result, known bool) {
	res, err := b.learn(ev, nil, func() {}, true)
	return res, !store.IsUnlearned(err)
}

// learn reports an outcome, with a snapshot unless that is nil, and returns when it is known
// whether the store has taken it. Then is called in that instant, with b.mu held.
func (b *box) learn(ev lifecycle.Event, snap *store.Snapshot, then func(), insists bool) (lifecycle.Result, error) {
	return b.s.commits.Learn(&b.last, func(done func(lifecycle.Result)) (lifecycle.Result, error) {
		return b.applyWithLocked(ev, snap, func(res lifecycle.Result) {
			done(res)
			then()
		})
	}, func(err error) bool {
		_, gone := store.SandboxElsewhere(err, b.id)
		if !gone {
			b.s.log.Error("outcome could not be recorded", "sandbox", b.id, "event", ev.Kind(), "err", err)
		}
		return insists && !gone
	})
}

// start carries out StartRuntime.
func (b *box) start(ctx context.Context, e lifecycle.Effect) {
	s := launch.Start{
		ID: sweep.RuntimeID(b.id, e.Launch), Key: b.snapshot().Config.Key, Generation: e.Generation, Checkpoint: e.Checkpoint, Suspect: b.fault.Suspect(e.Checkpoint),
		Sandbox: b.snapshot, Gate: b.gate, Disk: b.tenant.Disk(),
	}
	inst, detail, err := goOn(ctx, b, s), "", error(nil)
	thawed := inst != nil
	if !thawed {
		inst, detail, err = b.s.launcher.Launch(ctx, s)
		b.fault.Note(e.Checkpoint, err)
		b.noteStart(err)
	}
	if err != nil {
		b.s.log.Warn("runtime did not start", "sandbox", b.id, "runtime", s.ID, "err", err)
		b.discard(s.ID)
		if b.s.ctx.Err() != nil && b.snapshot().Record.Checkpointing() {
			return // it was running: the next server wakes it
		}
		b.tell(launch.Failed(e.Op, err))
		return
	}
	recorded := trace.Start(ctx, "record")
	serves := b.commitStart(lifecycle.StartSucceeded{Op: e.Op, Detail: detail, Thawed: thawed}, inst)
	recorded()
	if !serves {
		b.discard(inst.ID())
	}
}

// commitStart reports the start, and makes the runtime the serving one in the same instant.
func (b *box) commitStart(ev lifecycle.StartSucceeded, inst runtime.Instance) bool {
	b.mu.Lock()
	goesOn, up, last := b.sb.Record.Checkpointing() && b.sb.Record.Op.Cause == lifecycle.CauseCheckpoint, b.work.Up, b.work.Last
	b.mu.Unlock()
	res, err := b.learn(ev, nil, func() {
		b.serveLocked(inst)
		switch {
		case goesOn && !up.IsZero(): // a checkpoint is no activity
			b.work.Up, b.work.Last = up, last
			b.arm()
		case goesOn: // begun by the server before, which took with it what it knew
			b.work.Continue(b.sb)
			b.arm()
		}
		b.grantLocked()
	}, false)
	unknown := store.IsUnlearned(err)
	if err != nil && !unknown {
		go b.tell(lifecycle.StartFailed{Op: ev.Op, Detail: outcome.Words(err)})
	}
	return res.Changed || unknown // then it may serve for the next server
}

// watch reports a runtime that ends by itself while it serves.
func (b *box) watch(ctx context.Context, inst runtime.Instance) {
	watchMemory(ctx, b, inst)
	go func() {
		select {
		case <-inst.Exited():
		case <-ctx.Done():
			return
		}
		if sb, now := b.serving(); now == inst {
			b.tell(b.autopsy(inst, sb.Record.Generation))
		}
	}()
}

// autopsy says what a runtime that ended by itself ended of.
func (b *box) autopsy(inst runtime.Instance, generation int64) lifecycle.RuntimeGone {
	if past := b.tenant.Past(generation); past != "" {
		return lifecycle.RuntimeGone{Generation: generation, Reason: lifecycle.OutOfDisk, Detail: past}
	}
	sb := b.snapshot()
	gone, damage := autopsy.Of(inst, sb.Config.Limits, b.s.log.With("sandbox", b.id))
	gone.Generation = generation
	if damage != nil {
		b.fault.Note(sb.Record.Checkpoint, damage)
	}
	return gone
}

// capture carries out CaptureRuntime: the two-phase pause. Up to the commit the runtime is only
// frozen, and any failure thaws it.
func (b *box) capture(ctx context.Context, e lifecycle.Effect) {
	sb, inst := b.serving()
	c := &capture.Capture{Image: e.Op, Sandbox: sb, Inst: inst, Drain: b.drainLeases, Rest: mayRest(b, sb.Record.Op), Farewell: func(ctx context.Context) { b.fetchLastLog(ctx, inst) }}
	cp, freed, err := b.s.captures.Make(ctx, c)
	ready := lifecycle.CaptureReady{Op: e.Op, Checkpoint: cp, Freed: freed, Rests: c.Rest}
	if op := sb.Record.Op; op != nil && op.Cause == lifecycle.CauseCheckpoint && !c.Rest { // it wakes at once, and is never found asleep
		ready.Merged = b.waitingMerge()
	}
	if err == nil {
		recorded := trace.Start(ctx, "record")
		res, known := b.tell(ready)
		recorded()
		if res.Verdict == lifecycle.Applies || !known {
			return
		}
	}
	// Not committed: failed, cancelled, or overtaken by a kill. After a cancel an
	// access waits, and is not made to wait for the disk; after a failure what
	// follows may need the space.
	b.s.captures.Abandon(c)
	var discarding sync.WaitGroup
	discarding.Go(func() {
		b.s.removals.Insist(func() error { return b.s.captures.Discard(c) }, "partial image could not be removed", "sandbox", b.id)
	})
	defer discarding.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		discarding.Wait()
	}
	if _, now := b.serving(); now == inst {
		b.resumeService(inst, c, err)
	}
}

// resumeService lets a runtime whose pause did not commit go on.
func (b *box) resumeService(inst runtime.Instance, c *capture.Capture, cause error) {
	if c.Frozen && !planted.In(planted.ForgottenThaw) && !b.thaw(inst) {
		return
	}
	b.mu.Lock()
	b.desk.Reopen()
	b.mu.Unlock()
	ended := lifecycle.CaptureEnded{Op: c.Image}
	if b.s.ctx.Err() != nil {
		ended.Detail = "the server is stopping"
	} else {
		ended.Inside, ended.NotCapturable = c.Inside, runtime.IsNotCapturable(cause)
		if cause != nil && !errors.Is(cause, context.Canceled) {
			b.s.log.Warn("sandbox could not be captured", "sandbox", b.id, "err", cause)
			ended.Detail = outcome.Words(cause)
		}
	}
	b.tell(ended)
}

// thawRetry is how long to wait before another try to thaw a runtime.
const thawRetry = time.Second

// thaw thaws the serving runtime, however often it takes: nobody can use it until then. It gives
// up, with false, when something else has become of the sandbox, or is up to the next server.
func (b *box) thaw(inst runtime.Instance) bool {
	for {
		err := inst.Thaw(context.WithoutCancel(b.s.ctx))
		if err == nil {
			return true
		}
		b.s.log.Error("runtime could not be thawed", "sandbox", b.id, "err", err)
		select {
		case <-time.After(thawRetry):
		case <-inst.Exited():
			return false // watch reports it
		case <-b.s.ctx.Done():
			return false
		}
		if _, now := b.serving(); now != inst {
			return false
		}
	}
}

// discard removes a runtime that never served, with its files.
func (b *box) discard(id string) {
	ctx := context.WithoutCancel(b.s.ctx)
	b.s.removals.Insist(func() error { return b.s.remains.Runtime(ctx, id, false) }, "failed runtime could not be removed", "sandbox", b.id, "runtime", id)
}

// releaseRuntime carries out ReleaseRuntime. The layer stays if the checkpoint builds on it.
func (b *box) releaseRuntime(ctx context.Context, launch int64) {
	id := sweep.RuntimeID(b.id, launch)
	b.s.removals.Insist(func() error {
		cp := b.snapshot().Record.Checkpoint
		keep := cp != nil && slices.Contains(cp.Stack, id)
		return b.s.remains.Runtime(ctx, id, keep)
	}, "runtime could not be released", "sandbox", b.id, "runtime", id)
}

// dropCheckpoint carries out DropCheckpoint: what nobody needs any more of it goes.
func (b *box) dropCheckpoint(old *lifecycle.Checkpoint) {
	b.s.removals.Insist(func() error { return b.s.RemoveParts(*old) }, "old checkpoint could not be removed", "sandbox", b.id)
}

// releaseAll carries out ReleaseAll.
func (b *box) releaseAll(ctx context.Context, op string, inst runtime.Instance, atWork []*tasks.Task) {
	if !b.releasing.TryLock() {
		return // its last hook has the time that it was given
	}
	defer b.releasing.Unlock()
	sb := b.snapshot()
	hook := sb.Config.Hooks.PreKill
	// A capture cannot be told to stop. The last hook can run once it is over. What waits
	// for a runtime that does not answer sees its connection end with the runtime.
	tasks.Await(atWork, taskPatience+hook.Budget, func() {
		if err := b.s.remains.Runtimes(ctx, b.id); err != nil {
			b.s.log.Error("runtime that does not answer could not be removed", "sandbox", b.id, "err", err)
		}
	})
	if hook.Command != "" && inst != nil {
		// A kill in the middle of a pause finds it frozen.
		if err := inst.Thaw(ctx); err != nil {
			b.s.log.Warn("runtime could not be thawed for its last hook", "sandbox", b.id, "err", err)
		}
		b.s.guests.RunHook(ctx, inst, sb, "pre_kill", hook)
	}
	for n := 1; ; n++ {
		err := b.s.remains.All(ctx, sb.Config.Key, b.id, b.record, b.unknownLayers)
		if err == nil {
			err = b.journal.Remove(b.s.logs(), b.id)
		}
		if err == nil {
			break
		}
		b.s.log.Error("sandbox could not be released", "sandbox", b.id, "try", n, "err", err)
		if n == removalTries || !b.s.sleep(insist.First) {
			return // the operation's deadline brings it round again
		}
	}
	failpoint.Pass(failpoint.Gone)
	b.tell(lifecycle.ReleaseDone{Op: op})
	if cp := sb.Record.Checkpoint; cp != nil { // that one who ended at the same time has left for the other
		b.dropCheckpoint(cp)
	}
	b.s.space.Restore()
}

// taskPatience is how long the work of an operation may take to stop when told, at least.
const taskPatience = 2 * time.Second

func (b *box) record() lifecycle.Record { return b.snapshot().Record }

// unknownLayers returns the layers of the sandbox that its record does not know.
func (b *box) unknownLayers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.merged == nil {
		return nil
	}
	return []string{b.merged.Into}
}

// forgetRecord carries out Forget.
func (b *box) forgetRecord(ctx context.Context) {
	if err := b.s.o.Store.Forget(ctx, b.id); err != nil && !errdef.Is(err, errdef.NotFound) {
		b.s.log.Error("tombstone could not be removed", "sandbox", b.id, "err", err)
		b.s.timers.Set(b, ids.Now().Add(time.Hour), false)
		return
	}
	b.forgotten()
}

// forgotten follows that the store has forgotten a sandbox.
func (b *box) forgotten() {
	b.s.timers.Clear(b)
	b.s.forget(b.id)
	b.s.creates.Forget(b.snapshot().Config, b)
	b.s.Book.Forget(b.snapshot().Config, b.id)
}

// bury notes that nothing but the tombstone is left of a sandbox.
func bury(b *box) {
	if b.s.Undo(b.id) != "" {
		b.background(func(ctx context.Context) { b.s.EndUndo(ctx, b.id) })
	}
	b.s.EndServices(b.id)
}
