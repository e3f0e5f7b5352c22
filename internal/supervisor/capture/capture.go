// Package capture makes the checkpoint of a sandbox that is being paused: it freezes
// the runtime, and makes its memory and files durable and checksummed, both of the
// same frozen window. Up to its caller's commit the runtime is only frozen, and any
// failure can be undone by a thaw.
package capture

import (
	"context"
	"errors"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/trace"
)

// Options is what a maker works with.
type Options struct {
	Layers      *layer.Store
	Checkpoints checkpoint.Reader
	Guests      agentclient.Host
	Space       *space.Disk
	Ledger      *cost.Ledger
	Log         *slog.Logger
}

// Maker makes checkpoints. Those of many sandboxes at once wait for their turn to write
// to the disk: side by side they would take more memory, and none would be ready sooner.
// It is safe for concurrent use.
type Maker struct {
	Options
	turns *ration.Fair  // bounds how many are written at once
	keys  *ration.Turns // bounds how many of these are of one key
}

// New returns a maker. One API key can have half of the turns: a sentry that a guest has
// taken over can take as long as a pause may to write its image. Beside others it has as
// many as make half of the CPUs work.
func New(o Options) Maker {
	n := goruntime.NumCPU()
	return Maker{Options: o, turns: ration.NewFair(2*n, n/2), keys: ration.NewTurns(n)}
}

// Turns returns how many checkpoints are written at once, and how many of them can be
// of one API key.
func (x Maker) Turns() (all, key int) { return x.turns.Places(), x.turns.Places() / 2 }

// turn waits for a turn. done ends it.
func (x Maker) turn(ctx context.Context, key string) (done func(), err error) {
	defer trace.Start(ctx, "wait for a turn")()
	leave, err := x.keys.Enter(ctx, key)
	if err != nil {
		return nil, err
	}
	release, err := x.turns.Enter(ctx, key)
	if err != nil {
		leave()
		return nil, err
	}
	return func() { release(); leave() }, nil
}

// Capture is a checkpoint that is being made.
type Capture struct {
	Image   string // the id of its memory image
	Sandbox store.Sandbox
	Inst    runtime.Instance
	// Drain ends what goes on inside. An error means that nothing was cut.
	Drain func(context.Context) error
	// Farewell asks the agent for what it alone knows.
	Farewell func(context.Context)
	// Rest asks for a checkpoint beside which the runtime can stay frozen, and go on. Make
	// sets it to false where that is not possible, or too dear.
	Rest bool

	Frozen  bool           // the runtime may be; set by Make
	Inside  bool           // what runs inside takes the time, or has failed; set by Make
	packs   *layer.Packs   // what the image has of others
	copy    string         // the layer that is a copy of what the runtime writes to, or will be
	sealing sync.WaitGroup // what still works on the image
}

// Make makes the checkpoint, and says what memory the release of the runtime will
// give back. After an error there may be some of the checkpoint, for Discard.
func (x Maker) Make(ctx context.Context, c *Capture) (cp lifecycle.Checkpoint, freed int64, err error) {
	sb, inst := c.Sandbox, c.Inst
	cp = lifecycle.Checkpoint{ID: c.Image, Mode: sb.Record.Op.Mode}
	if inst == nil {
		return cp, 0, errors.New("the runtime is gone")
	}
	if err := x.Space.Check(space.Least); err != nil {
		return cp, 0, err
	}
	// The guest cannot be frozen before, and is not to blame for it.
	if err := x.Checkpoints.Whole(ctx, sb.Record.Checkpoint); err != nil {
		return cp, 0, err
	}
	// Before the freeze, and beside the drain: it can take a second.
	var m layer.Manifest
	var look errgroup.Group
	look.Go(func() (err error) {
		defer trace.Start(ctx, "look at the host's files")()
		m, err = x.Checkpoints.Manifest(ctx, sb, cp, inst)
		return err
	})
	drained := trace.Start(ctx, "drain")
	err = c.Drain(ctx)
	drained()
	if err := errors.Join(err, look.Wait()); err != nil {
		return cp, 0, err
	}
	if err := failpoint.Fail(failpoint.Drained); err != nil {
		return cp, 0, err
	}
	if freed, err = x.freeze(ctx, c, cp.Mode); err != nil {
		return cp, 0, err
	}
	// From here on nothing waits for what the guest does. It is frozen already, which an
	// access that cancels the pause undoes at once.
	done, err := x.turn(ctx, sb.Config.Key)
	if err != nil {
		return cp, 0, err
	}
	defer done()
	if cp.Mode == lifecycle.Memory {
		written := trace.Start(ctx, "write the memory")
		m.HostFiles = x.Checkpoints.HostFiles(inst, sb)
		c.packs, err = x.Checkpoints.Write(ctx, inst, c.Image, sb)
		written()
		c.Inside = runtime.IsNotCapturable(err) || ctx.Err() != nil
		if err != nil {
			return cp, 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return cp, 0, err
	}
	c.Inside = false
	if previous := sb.Record.Checkpoint; planted.In(planted.EarlyDrop) && previous != nil {
		_ = x.Layers.RemoveImage(previous.ID)
	}
	begin := time.Now()
	err = x.makeDurable(ctx, c, &cp, m)
	x.Ledger.Spent(sb.Config.Key, time.Since(begin))
	if err != nil {
		return cp, 0, err
	}
	return cp, freed, errors.Join(x.Space.Check(space.Wake), ctx.Err(), failpoint.Fail(failpoint.Captured))
}

// freeze lets the guest do what it must do while it runs, and freezes it. It
// returns the memory that it takes.
func (x Maker) freeze(ctx context.Context, c *Capture, mode lifecycle.Mode) (freed int64, err error) {
	sb, inst := c.Sandbox, c.Inst
	ctx, done := trace.Within(ctx, "freeze")
	defer done()
	c.Inside = true
	x.Guests.RunHook(ctx, inst, sb, "pre_pause", sb.Config.Hooks.PrePause)
	c.Farewell(ctx)
	c.Frozen = true // from here on it is thawed if this fails
	runtime.LiftDiskRates(inst)
	if mode == lifecycle.Filesystem || sb.Record.Settings.MeasuresWork() {
		// Without a checkpoint nothing else makes the guest's kernel write back;
		// and the agent, if it watches processes, learns when the sleep begins.
		if err := x.sync(ctx, c); err != nil {
			c.Inside = !ofHost(err)
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err = inst.Freeze(ctx)
	c.Inside = ctx.Err() != nil
	if err != nil {
		return 0, err
	}
	return x.memoryOf(inst), nil // before the capture, which takes some itself
}

// ofHost reports whether an error says that the host lacks something, which no guest
// brings about.
func ofHost(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC, unix.EIO}, func(lacks error) bool {
		return errors.Is(err, lacks)
	})
}

// lastSync is how long the last resort waits for the guest's kernel to write back.
const lastSync = 30 * time.Second

// sync has the guest's kernel write back. Nothing inside keeps a pause from being made
// by files that is the last resort.
func (x Maker) sync(ctx context.Context, c *Capture) error {
	defer trace.Start(ctx, "sync inside")()
	within, cancel := ctx, context.CancelFunc(func() {})
	last := c.Sandbox.Record.Op.Without != ""
	if last {
		within, cancel = context.WithTimeout(ctx, lastSync)
	}
	defer cancel()
	err := x.Guests.Agent(c.Inst, c.Sandbox.ID).Sync(within)
	if err != nil && last && ctx.Err() == nil {
		x.Log.Warn("sandbox is put to sleep without a last sync", "sandbox", c.Sandbox.ID, "err", err)
		return nil
	}
	return err
}

// memoryOf returns what a runtime takes of the machine's memory; 0 where that is
// not known.
func (x Maker) memoryOf(inst runtime.Instance) int64 {
	meter, ok := inst.(runtime.UsageMeter)
	if !ok {
		return 0
	}
	used, err := meter.Usage()
	if err != nil {
		x.Log.Warn("memory could not be measured", "runtime", inst.ID(), "err", err)
	}
	return used.Memory
}

// makeDurable seals what a capture wrote. The layer comes after the image: taking
// the image can make the guest's kernel write files back. A cancel does not wait
// for the disk to take the image; it does for the layer, which must not be walked
// while the guest changes it.
func (x Maker) makeDurable(ctx context.Context, c *Capture, cp *lifecycle.Checkpoint, m layer.Manifest) error {
	top, frozen, err := x.files(ctx, c)
	if err != nil {
		return err
	}
	cp.Bytes = frozen.Bytes
	cp.Stack, cp.Layers = c.Sandbox.Record.Lowers()
	if frozen.Changed {
		cp.Stack, cp.Layers[top] = append(cp.Stack, top), frozen.Digest
		cp.Copy = c.copy
	}
	if cp.Mode != lifecycle.Memory {
		return nil
	}
	type seal struct {
		digest  string
		written int64
		err     error
	}
	defer trace.Start(ctx, "sync and check the memory")()
	done := make(chan seal, 1)
	m.Stack = cp.Stack
	c.sealing.Go(func() {
		var s seal
		s.digest, s.written, s.err = x.Layers.Seal(m, c.packs)
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

// mostCopied is what a top may have for the runtime to stay. Its files are copied at each
// pause, as long as the guest is frozen. The copy is on the disk until the next pause, and
// counts for no limit.
var mostCopied = layer.Usage{Bytes: 64 << 20, Files: 4000, NameBytes: 1 << 20}

// files makes what the runtime has written durable, as a layer of the checkpoint: as it
// is, where nobody writes to it again, else a copy.
func (x Maker) files(ctx context.Context, c *Capture) (id string, f layer.Frozen, err error) {
	top := c.Inst.ID()
	if c.Rest && x.Layers.HasLayer(top) && !planted.In(planted.SharedTop) {
		id, f, err = x.copyTop(ctx, c)
		if err == nil && c.Rest || ctx.Err() != nil {
			return id, f, err
		}
		if err != nil { // such as a disk that is nearly full: the pause itself needs no copy
			x.Log.Warn("the runtime does not stay: its files could not be copied", "sandbox", c.Sandbox.ID, "err", err)
			c.Rest = false
		}
	}
	defer trace.Start(ctx, "sync and list the files")()
	f, err = x.Layers.Freeze(ctx, top)
	return top, f, err
}

// copyTop makes the layer of a checkpoint beside which the runtime can stay, unless it is
// too large for that. What there is of it after an error is gone.
func (x Maker) copyTop(ctx context.Context, c *Capture) (id string, f layer.Frozen, err error) {
	defer trace.Start(ctx, "copy, sync and list the files")()
	top := c.Inst.ID()
	has, _, err := x.Layers.Usage(ctx, top, mostCopied)
	if c.Rest = err == nil && !has.Exceeds(mostCopied); !c.Rest {
		return "", f, err
	}
	c.copy = sweep.SnapshotLayerID(c.Sandbox.ID, ids.New())
	f, err = layer.CopyTop(ctx, x.Layers, top, c.Image, c.copy, func() error { return x.Space.Check(space.Least) })
	if err != nil {
		err = errors.Join(err, x.Layers.RemoveLayer(c.copy))
		c.copy = ""
	}
	return c.copy, f, err
}

// Abandon has what still works on the image of a capture stop.
func (x Maker) Abandon(c *Capture) { x.Layers.AbandonImage(c.Image) }

// Discard removes what a capture has made that was not committed, as soon as nothing
// works on it any more.
func (x Maker) Discard(c *Capture) error {
	c.sealing.Wait()
	err := x.Layers.RemoveImage(c.Image)
	if c.copy != "" {
		err = errors.Join(err, x.Layers.RemoveLayer(c.copy))
	}
	return err
}
