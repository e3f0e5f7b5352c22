package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/template"
)

// storeRetry is how long to wait before reporting again what the store did not
// take.
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
		t := b.taking
		b.spawn(e.Op, func(ctx context.Context) { t.capture(ctx, e.Op) })
	case lifecycle.ShortenDrain:
		b.shortenDrainLocked()
	case lifecycle.AbortCapture:
		if t := b.tasks[e.Op]; t != nil {
			t.cancel()
		}
	case lifecycle.ReleaseRuntime:
		b.unserveLocked()
		b.background(func(ctx context.Context) { b.releaseRuntime(ctx, e.Launch) })
	case lifecycle.DropCheckpoint:
		current, exports := b.sb.Record.Checkpoint, b.exportsInFlight()
		b.background(func(context.Context) {
			awaitExports(exports)
			b.dropCheckpoint(e.Checkpoint, current)
		})
	case lifecycle.DropLayers:
		exports := b.exportsInFlight()
		b.background(func(context.Context) {
			awaitExports(exports)
			b.dropLayers(e.Layers)
		})
	case lifecycle.ReleaseAll:
		inst := b.inst
		b.unserveLocked()
		for _, t := range b.tasks {
			t.cancel()
		}
		tasks := b.tasksInFlight()
		b.background(func(ctx context.Context) { b.releaseAll(ctx, e.Op, inst, tasks) })
	case lifecycle.Forget:
		b.background(b.forgetRecord)
	}
}

// spawn runs the work of an operation, which can be told to stop. It also
// stops when the supervisor does.
func (b *box) spawn(op string, f func(context.Context)) {
	ctx, cancel := context.WithCancel(b.s.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	b.tasks[op] = t
	b.s.work.Go(func() {
		defer func() {
			cancel()
			b.mu.Lock()
			if b.tasks[op] == t {
				delete(b.tasks, op)
			}
			b.mu.Unlock()
			close(t.done)
		}()
		f(ctx)
	})
}

// background runs work that is carried to its end also while the supervisor
// stops.
func (b *box) background(f func(context.Context)) {
	ctx := context.WithoutCancel(b.s.ctx)
	b.s.work.Go(func() { f(ctx) })
}

// How long to wait before removing again what could not be removed, and how
// often a sandbox that has ended is tried while its kill waits.
const (
	firstRemovalRetry = time.Second
	maxRemovalRetry   = time.Minute
	removalTries      = 3
)

// insist removes something that nobody will ask for again, and tries again in
// the background for as long as it fails. What the end of the supervisor leaves,
// the next one sweeps up.
func (s *Supervisor) insist(remove func() error, failed string, args ...any) {
	try := func() bool {
		err := remove()
		if err != nil {
			s.log.Error(failed, append(args, "err", err)...)
		}
		return err == nil
	}
	if try() {
		return
	}
	s.retries.Go(func() {
		for wait := firstRemovalRetry; s.sleep(wait) && !try(); wait = min(2*wait, maxRemovalRetry) {
		}
	})
}

// sleep returns false at once when the supervisor stops.
func (s *Supervisor) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (b *box) tasksInFlight() []*task {
	var tasks []*task
	for _, t := range b.tasks {
		tasks = append(tasks, t)
	}
	return tasks
}

// tell reports an outcome until the store takes it: the world has changed, and
// the record must follow.
func (b *box) tell(ev lifecycle.Event) lifecycle.Result {
	for {
		res, err := b.apply(ev)
		if err == nil {
			return res
		}
		b.s.log.Error("outcome could not be recorded", "sandbox", b.id, "event", ev.Kind(), "err", err)
		if !b.s.sleep(storeRetry) {
			return res
		}
	}
}

// start carries out StartRuntime.
func (b *box) start(ctx context.Context, e lifecycle.Effect) {
	id := runtimeID(b.id, e.Launch)
	inst, detail, err := b.launch(ctx, id, e)
	b.noteFault(e.Checkpoint, err)
	b.noteStart(err)
	if err != nil {
		b.s.log.Warn("runtime did not start", "sandbox", b.id, "runtime", id, "err", err)
		b.discard(id)
		if b.s.ctx.Err() != nil && b.snapshot().Record.Checkpointing() {
			return // it was running: the next server wakes it
		}
		b.tell(startFailed(e.Op, err))
		return
	}
	if !b.commitStart(lifecycle.StartSucceeded{Op: e.Op, Detail: detail}, inst) {
		b.discard(id)
		return
	}
	b.watch(inst, e.Generation)
}

// commitStart reports the start, and makes the runtime the serving one in the
// same instant.
func (b *box) commitStart(ev lifecycle.StartSucceeded, inst runtime.Instance) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	goesOn, up, last := b.sb.Record.Checkpointing(), b.work.Up, b.work.Last
	res, err := b.applyLocked(ev)
	if err == nil && res.Changed {
		b.serveLocked(inst)
		switch {
		case goesOn && !up.IsZero(): // a checkpoint is no activity
			b.work.Up, b.work.Last = up, last
			b.arm()
		case goesOn: // begun by the server before, which took with it what it knew
			b.continueClocksLocked()
			b.arm()
		}
		b.grantLocked()
		return true
	}
	if err != nil {
		b.s.log.Error("start could not be recorded", "sandbox", b.id, "err", err)
		go b.tell(lifecycle.StartFailed{Op: ev.Op, Detail: err.Error()})
	}
	return false
}

// watch reports a runtime that ends by itself.
func (b *box) watch(inst runtime.Instance, generation int64) {
	watchMemory(b, inst)
	go func() {
		select {
		case <-inst.Exited():
		case <-b.s.ctx.Done():
			return
		}
		b.mu.Lock()
		expected := b.inst != inst
		b.mu.Unlock()
		if !expected {
			b.tell(b.autopsy(inst, generation))
		}
	}()
}

// autopsy says what a runtime that ended by itself ended of.
func (b *box) autopsy(inst runtime.Instance, generation int64) lifecycle.RuntimeGone {
	gone := lifecycle.RuntimeGone{Generation: generation, Detail: "its process exited"}
	if past := b.wasPast(generation); past != "" {
		gone.Reason, gone.Detail = lifecycle.OutOfDisk, past
		return gone
	}
	w, ok := inst.(runtime.LimitWitness)
	if !ok {
		return gone
	}
	limit, err := w.EndedBy()
	if err != nil {
		b.s.log.Warn("no trace of how a runtime ended", "sandbox", b.id, "runtime", inst.ID(), "err", err)
	}
	switch limits := b.snapshot().Config.Limits; limit {
	case runtime.MemoryLimit:
		gone.Reason = lifecycle.OutOfMemory
		gone.Detail = fmt.Sprintf("its processes and files in memory took more than its limit of %d MiB, and it was ended", limits.MemoryMiB)
	case runtime.PIDsLimit:
		gone.Reason = lifecycle.OutOfProcesses
		gone.Detail = fmt.Sprintf("its processes and their threads took its limit of %d tasks on the host, and its runtime could not go on without another", limits.PIDs)
	}
	return gone
}

// launch starts a runtime and brings its agent up to date. detail says what is
// not as one would expect. How long the guest takes is its own affair: it
// counts against its API key alone, and the server's turns are for the host's
// work.
func (b *box) launch(ctx context.Context, id string, e lifecycle.Effect) (inst runtime.Instance, detail string, err error) {
	leave, err := b.s.launches.Enter(ctx, b.snapshot().Config.Key)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	done, err := b.s.turn(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	if err := failpoint.Fail(failpoint.Launch); err != nil {
		return nil, "", err
	}
	sb := b.snapshot()
	t, err := b.s.o.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return nil, "", err
	}
	var stack []string
	var image checkpoint.Image
	if e.Checkpoint != nil {
		stack = e.Checkpoint.Stack
		begin := time.Now()
		image, detail, err = b.s.checkpoints.Image(ctx, *e.Checkpoint, t, sb.Record.Settings)
		b.s.spend(sb.Config.Key, begin)
		if err != nil {
			return nil, "", err
		}
	}
	if t, err = b.s.o.Templates.Closed(ctx, t); err != nil {
		return nil, "", err
	}
	b.s.meetVolumes(sb.Config)
	spec := RuntimeSpec(sb.Config.Limits)
	spec.Args = []string{t.AgentAt()}
	spec.ID, spec.Rootfs, spec.Network, spec.Mounts = id, b.s.rootfs(id), b.gate, b.s.Mounts(sb.Config)
	spec.Sharers, spec.Build = b.s.sharersOf(sb.Config.Key), image.Build
	if err := b.s.o.Layers.Mount(spec.Rootfs, t.Trees, stack, id); err != nil {
		return nil, "", err
	}
	if inst, err = b.s.o.boot(ctx, spec, image.ID); err != nil {
		return nil, "", err
	}
	if err := failpoint.Fail(failpoint.Booted); err != nil {
		return nil, "", err
	}
	done()
	if cp := e.Checkpoint; image.ID != "" && cp.AgentToken != "" {
		if err := b.s.succeedHost(ctx, inst, sb.ID, cp.AgentToken); err != nil {
			return nil, "", fmt.Errorf("agent of %s, which comes from another server: %w", id, err)
		}
	}
	if err := b.initAgent(ctx, inst, sb, t, e.Generation); err != nil {
		return nil, "", fmt.Errorf("agent of %s: %w", id, err)
	}
	if e.Checkpoint != nil {
		b.runHook(ctx, inst, sb, "post_resume", sb.Config.Hooks.PostResume)
	}
	return inst, detail, failpoint.Fail(failpoint.Launched)
}

// RuntimeSpec returns what every runtime with these limits is like, whichever
// sandbox it becomes: all but its ID and Rootfs.
func RuntimeSpec(l store.Limits) runtime.Spec {
	return runtime.Spec{
		Args:     []string{template.AgentPath},
		Hostname: initialHostname,
		Limits:   runtime.Limits{CPUs: l.CPUs, MemoryMiB: l.MemoryMiB, PIDs: l.PIDs},
	}
}

// initialHostname is the name until the agent sets the sandbox's own.
const initialHostname = "drowse"

func startFailed(op string, err error) lifecycle.StartFailed {
	failed := lifecycle.StartFailed{Op: op, Detail: err.Error()}
	if e, ok := errors.AsType[*errdef.Error](err); ok && (e.Code == checkpoint.CodeDamaged || e.Code == checkpoint.CodeUnreadable) {
		failed.Detail, failed.Damaged, failed.Unreadable = e.Message, e.Code == checkpoint.CodeDamaged, e.Code == checkpoint.CodeUnreadable
	}
	return failed
}

// boot starts afresh, or from a memory image.
func (o Options) boot(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	if image == "" {
		return o.Driver.Start(ctx, spec)
	}
	inst, err := o.Driver.Restore(ctx, spec, o.Layers.ImageDir(image))
	if err != nil && len(spec.Mounts) > 0 {
		err = fmt.Errorf("%w (what it had open on its volumes must be there: put back what was removed while it slept)", err)
	}
	return inst, err
}

// capture carries out CaptureRuntime: the two-phase pause. Up to the commit
// the runtime is only frozen, and any failure thaws it.
func (b *box) capture(ctx context.Context, e lifecycle.Effect) {
	b.mu.Lock()
	inst, sb := b.inst, b.sb
	b.mu.Unlock()
	image := e.Op
	var c capturing
	cp, freed, err := b.tryCapture(ctx, inst, sb, image, &c)
	ready := lifecycle.CaptureReady{Op: e.Op, Checkpoint: cp, Freed: freed}
	if sb.Record.Checkpointing() { // it wakes at once, and is never found asleep
		ready.Merged = b.waitingMerge()
	}
	if err == nil && b.tell(ready).Verdict == lifecycle.Applies {
		return
	}
	// Not committed: failed, cancelled, or overtaken by a kill. After a cancel an
	// access waits, and is not made to wait for the disk; after a failure what
	// follows may need the space.
	b.s.o.Layers.AbandonImage(image)
	var discarding sync.WaitGroup
	discarding.Go(func() {
		c.sealing.Wait()
		b.s.insist(func() error { return b.s.o.Layers.RemoveImage(image) }, "partial image could not be removed", "sandbox", b.id)
	})
	defer discarding.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		discarding.Wait()
	}
	b.mu.Lock()
	overtaken := b.inst != inst
	b.mu.Unlock()
	if !overtaken {
		b.resumeService(inst, e.Op, c.frozen, err)
	}
}

// capturing is what a capture leaves behind that does not commit.
type capturing struct {
	frozen  bool           // the runtime may be
	sealing sync.WaitGroup // what still works on the image
}

// resumeService lets a runtime whose pause did not commit go on.
func (b *box) resumeService(inst runtime.Instance, op string, frozen bool, cause error) {
	if frozen && !planted.In(planted.ForgottenThaw) && !b.thaw(inst) {
		return
	}
	b.mu.Lock()
	b.uncutLocked()
	b.mu.Unlock()
	detail := ""
	if b.s.ctx.Err() != nil {
		detail = "the server is stopping"
	} else if cause != nil && !errors.Is(cause, context.Canceled) {
		detail = cause.Error()
	}
	b.tell(lifecycle.CaptureEnded{Op: op, Detail: detail})
}

// thawRetry is how long to wait before another try to thaw a runtime.
const thawRetry = time.Second

// thaw thaws the serving runtime, however often it takes: nobody can use it
// until then. It gives up, with false, when something else has become of the
// sandbox, or is up to the next server.
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
		b.mu.Lock()
		overtaken := b.inst != inst
		b.mu.Unlock()
		if overtaken {
			return false
		}
	}
}

// tryCapture freezes the runtime and makes a durable, checksummed checkpoint
// of it, and says what memory its release will give back. Memory and files are
// taken in the same frozen window.
func (b *box) tryCapture(ctx context.Context, inst runtime.Instance, sb store.Sandbox, image string, c *capturing) (cp lifecycle.Checkpoint, freed int64, err error) {
	cp = lifecycle.Checkpoint{ID: image, Mode: sb.Record.Op.Mode}
	if inst == nil {
		return cp, 0, errors.New("the runtime is gone")
	}
	if err := b.s.space.Check(space.Least); err != nil {
		return cp, 0, err
	}
	// Before the freeze, and beside the drain: it can take a second.
	var m layer.Manifest
	var look errgroup.Group
	look.Go(func() (err error) {
		m, err = b.s.checkpoints.Manifest(ctx, sb, cp, inst)
		return err
	})
	if err := errors.Join(b.drainLeases(ctx), look.Wait()); err != nil {
		return cp, 0, err
	}
	if err := failpoint.Fail(failpoint.Drained); err != nil {
		return cp, 0, err
	}
	b.runHook(ctx, inst, sb, "pre_pause", sb.Config.Hooks.PrePause)
	b.fetchLastLog(ctx, inst)
	c.frozen = true // from here on it is thawed if this fails
	runtime.LiftDiskRates(inst)
	if cp.Mode == lifecycle.Filesystem || sb.Record.Settings.MeasuresWork() {
		// Without a checkpoint nothing else makes the guest's kernel write back;
		// and the agent, if it watches processes, learns when the sleep begins.
		if err := b.agent(inst).Sync(ctx); err != nil {
			return cp, 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return cp, 0, err
	}
	if err := inst.Freeze(ctx); err != nil {
		return cp, 0, err
	}
	freed = memoryOf(inst, b.s.log) // before the capture, which takes some itself
	if cp.Mode == lifecycle.Memory {
		m.HostFiles = b.s.checkpoints.HostFiles(inst, sb)
		dir, err := b.s.o.Layers.NewImage(image)
		if err != nil {
			return cp, 0, err
		}
		if err := inst.Checkpoint(ctx, dir); err != nil {
			return cp, 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return cp, 0, err
	}
	if previous := sb.Record.Checkpoint; planted.In(planted.EarlyDrop) && previous != nil {
		_ = b.s.o.Layers.RemoveImage(previous.ID)
	}
	begin := time.Now()
	err = b.makeDurable(ctx, inst.ID(), sb.Record.Checkpoint, &cp, m, &c.sealing)
	b.s.spend(sb.Config.Key, begin)
	if err != nil {
		return cp, 0, err
	}
	return cp, freed, errors.Join(b.s.space.Check(space.Wake), ctx.Err(), failpoint.Fail(failpoint.Captured))
}

// memoryOf returns what a runtime takes of the machine's memory; 0 where that is
// not known.
func memoryOf(inst runtime.Instance, log *slog.Logger) int64 {
	meter, ok := inst.(runtime.UsageMeter)
	if !ok {
		return 0
	}
	used, err := meter.Usage()
	if err != nil {
		log.Warn("memory could not be measured", "runtime", inst.ID(), "err", err)
	}
	return used.Memory
}

// makeDurable seals what a capture wrote. The layer comes after the image:
// taking the image can make the guest's kernel write files back. A cancel does
// not wait for the disk to take the image; it does for the layer, which must
// not be walked while the guest changes it.
func (b *box) makeDurable(ctx context.Context, top string, previous, cp *lifecycle.Checkpoint, m layer.Manifest, sealing *sync.WaitGroup) error {
	frozen, err := b.s.o.Layers.Freeze(ctx, top)
	if err != nil {
		return err
	}
	cp.Bytes = frozen.Bytes
	cp.Layers = map[string]string{}
	if previous != nil {
		cp.Stack = slices.Clone(previous.Stack)
		maps.Copy(cp.Layers, previous.Layers)
	}
	if frozen.Changed {
		cp.Stack = append(cp.Stack, top)
		cp.Layers[top] = frozen.Digest
	}
	if cp.Mode != lifecycle.Memory {
		return nil
	}
	type seal struct {
		digest  string
		written int64
		err     error
	}
	done := make(chan seal, 1)
	m.Stack = cp.Stack
	sealing.Go(func() {
		var s seal
		s.digest, s.written, s.err = b.s.o.Layers.Seal(m)
		done <- s
	})
	select {
	case s := <-done:
		cp.Digest, cp.Bytes = s.digest, frozen.Bytes+s.written
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// discard removes a runtime that never served, with its files.
func (b *box) discard(id string) {
	ctx := context.WithoutCancel(b.s.ctx)
	b.s.insist(func() error { return b.removeRuntime(ctx, id, false) }, "failed runtime could not be removed", "sandbox", b.id, "runtime", id)
}

// removeRuntime destroys a runtime and its mounts, and its layer unless keep.
// Each goes after what uses it is gone.
func (b *box) removeRuntime(ctx context.Context, id string, keep bool) error {
	if err := failpoint.Fail(failpoint.Remove); err != nil {
		return err
	}
	if err := b.s.o.Driver.Remove(ctx, id); err != nil {
		return err
	}
	if keep {
		return layer.Unmount(b.s.rootfs(id))
	}
	return b.removeFiles(id)
}

// removeFiles removes the mounts and the layer of a runtime that is gone. While
// the layer is there, it is known that there may be mounts.
func (b *box) removeFiles(id string) error {
	if err := layer.Unmount(b.s.rootfs(id)); err != nil {
		return err
	}
	return b.s.RemoveLayer(b.id, id)
}

// releaseRuntime carries out ReleaseRuntime. The layer stays if the checkpoint
// builds on it.
func (b *box) releaseRuntime(ctx context.Context, launch int64) {
	id := runtimeID(b.id, launch)
	b.s.insist(func() error {
		cp := b.snapshot().Record.Checkpoint
		keep := cp != nil && slices.Contains(cp.Stack, id)
		return b.removeRuntime(ctx, id, keep)
	}, "runtime could not be released", "sandbox", b.id, "runtime", id)
}

// dropCheckpoint carries out DropCheckpoint: the image, and the layers that the
// current checkpoint does not build on.
func (b *box) dropCheckpoint(old, current *lifecycle.Checkpoint) {
	b.s.insist(func() error {
		errs := []error{b.s.RemoveImage(b.id, old.ID)}
		for _, id := range old.Stack {
			if current == nil || !slices.Contains(current.Stack, id) {
				errs = append(errs, b.s.RemoveLayer(b.id, id))
			}
		}
		return errors.Join(errs...)
	}, "old checkpoint could not be removed", "sandbox", b.id)
}

// releaseAll carries out ReleaseAll.
func (b *box) releaseAll(ctx context.Context, op string, inst runtime.Instance, tasks []*task) {
	b.awaitTasks(ctx, tasks)
	sb := b.snapshot()
	if hook := sb.Config.Hooks.PreKill; hook.Command != "" && inst != nil {
		// A kill in the middle of a pause finds it frozen.
		if err := inst.Thaw(ctx); err != nil {
			b.s.log.Warn("runtime could not be thawed for its last hook", "sandbox", b.id, "err", err)
		}
		b.runHook(ctx, inst, sb, "pre_kill", hook)
	}
	for n := 1; ; n++ {
		err := b.removeEverything(ctx)
		if err == nil {
			break
		}
		b.s.log.Error("sandbox could not be released", "sandbox", b.id, "try", n, "err", err)
		if n == removalTries || !b.s.sleep(firstRemovalRetry) {
			return // the operation's deadline brings it round again
		}
	}
	failpoint.Pass(failpoint.Gone)
	b.tell(lifecycle.ReleaseDone{Op: op})
	b.s.space.Restore()
}

// taskPatience is how long the work of an operation may take to stop when told.
const taskPatience = 2 * time.Second

// awaitTasks waits until nothing is at work on the sandbox any more. What waits
// for a runtime that does not answer, which cannot be told to stop, sees its
// connection end with the runtime.
func (b *box) awaitTasks(ctx context.Context, tasks []*task) {
	patience := time.NewTimer(taskPatience)
	defer patience.Stop()
	for _, t := range tasks {
		select {
		case <-t.done:
			continue
		case <-patience.C:
		}
		if err := b.removeRuntimes(ctx); err != nil {
			b.s.log.Error("runtime that does not answer could not be removed", "sandbox", b.id, "err", err)
		}
		<-t.done
	}
}

// removeRuntimes destroys what runtimes there are of the sandbox, and their
// mounts.
func (b *box) removeRuntimes(ctx context.Context) error {
	runtimes, err := b.s.o.Driver.List(ctx)
	if err != nil {
		return err
	}
	if err := failpoint.Fail(failpoint.KillAll); err != nil {
		return err
	}
	var errs []error
	for _, id := range runtimes {
		if sandboxOf(id) == b.id {
			errs = append(errs, b.removeRuntime(ctx, id, true))
		}
	}
	return errors.Join(errs...)
}

func (b *box) removeEverything(ctx context.Context) error {
	b.s.removals <- struct{}{}
	defer func() { <-b.s.removals }()
	if err := b.removeRuntimes(ctx); err != nil {
		return err // what still runs needs its files
	}
	rec := b.snapshot().Record
	var errs []error
	for _, id := range b.possibleLayers(rec) {
		if b.s.o.Layers.LayerRemains(id) {
			errs = append(errs, b.removeFiles(id))
		}
	}
	if cp := rec.Checkpoint; cp != nil {
		errs = append(errs, b.s.RemoveImage(b.id, cp.ID))
	}
	return errors.Join(append(errs, b.journal.Remove(b.s.logs(), b.id))...)
}

// possibleLayers returns the ids of all layers that the sandbox may have. Listing
// those of all sandboxes would take longer the more there are.
func (b *box) possibleLayers(rec lifecycle.Record) []string {
	var ids []string
	for n := range rec.Launches {
		ids = append(ids, runtimeID(b.id, n+1))
	}
	if rec.Checkpoint != nil {
		ids = append(ids, rec.Checkpoint.Stack...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.merged != nil {
		ids = append(ids, b.merged.Into)
	}
	return ids
}

// forgetRecord carries out Forget.
func (b *box) forgetRecord(ctx context.Context) {
	if err := b.s.o.Store.Forget(ctx, b.id); err != nil && !errdef.Is(err, errdef.NotFound) {
		b.s.log.Error("tombstone could not be removed", "sandbox", b.id, "err", err)
		b.s.timers.Set(b, now().Add(time.Hour), false)
		return
	}
	b.s.forget(b.id)
	b.s.creates.Forget(b.snapshot().Config, b)
}

// turn waits for a turn at what the host does to start a runtime. done ends it,
// and may be called twice.
func (s *Supervisor) turn(ctx context.Context) (done func(), err error) {
	select {
	case s.starts <- struct{}{}:
		return sync.OnceFunc(func() { <-s.starts }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
