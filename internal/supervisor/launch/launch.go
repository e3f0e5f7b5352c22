// Package launch brings the runtimes of sandboxes up: a new one, from nothing or
// from a checkpoint, or one that a server before this has left running.
//
// Starts wait for their turn, so that thousands that are asked for at once do not
// take the whole machine, nor do those of one API key: keys take turns, and one has
// as many as make half of the CPUs work while there are others. What takes as
// long as a sandbox makes it take is done without a turn, and bounded by key: its
// layers are verified before, and its guest is waited for after. The package decides nothing
// about a sandbox and stores nothing: after an error, what there is of the runtime
// is for its caller to remove.
package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/trace"
)

// Options is what a launcher works with.
type Options struct {
	Driver      runtime.Driver
	Layers      *layer.Store
	Templates   *template.Store
	Checkpoints Checkpoints
	Guests      agentclient.Host
	RunDir      string // for mount points
	// Mounts returns where the volumes of a sandbox are that is about to run, whose
	// layers are mounted at rootfs and whose agent is at a path in them.
	Mounts func(c store.Config, rootfs, agent string) ([]runtime.Mount, error)
	// Sharers returns among how many sandboxes the CPU time of a key is divided.
	Sharers func(key string) int
	Log     *slog.Logger
}

// Checkpoints verifies what a sandbox goes on from.
type Checkpoints interface {
	Ready(ctx context.Context, cp lifecycle.Checkpoint, suspect bool) error
	ForWake(ctx context.Context, sb store.Sandbox, cp lifecycle.Checkpoint, t template.Template, suspect bool) (image checkpoint.Image, detail string, err error)
}

// Launcher starts and finds runtimes. It is safe for concurrent use.
type Launcher struct {
	o        Options
	turns    *ration.Fair  // bounds how many runtimes the host starts at once
	keys     *ration.Turns // bounds how many sandboxes of one key are on their way up
	verifies *ration.Turns // bounds how many of those are verified at once
}

// New returns a launcher.
func New(o Options) *Launcher {
	cpus := goruntime.NumCPU()
	return &Launcher{o: o, turns: ration.NewFair(2*cpus, cpus/2), keys: ration.NewTurns(quota.MaxLaunches), verifies: ration.NewTurns(cpus)}
}

// Turns returns how many runtimes are started at once.
func (l *Launcher) Turns() int { return l.turns.Places() }

// Of returns how many sandboxes of a key are on their way up, those that wait for
// a turn included.
func (l *Launcher) Of(key string) int { return l.keys.Of(key) }

// Underway returns how many keys have sandboxes on their way up, and how many
// turns are taken.
func (l *Launcher) Underway() (keys, turns int) { return l.keys.Keys(), l.turns.Taken() }

// Start is a runtime that is to be started.
type Start struct {
	ID         string // of the runtime
	Key        string // the API key whose sandbox it is
	Generation int64
	Checkpoint *lifecycle.Checkpoint // to go on from; nil for a fresh start
	Suspect    bool                  // the checkpoint was found to be damaged: nothing of it is left to be verified later
	Sandbox    func() store.Sandbox  // as it is when its turn comes
	Gate       *egress.Gate
	Disk       runtime.Disk
}

// Launch starts a runtime and brings its agent up to date. detail says what is not
// as one would expect. How much there is to verify, and how long the guest takes, is
// the sandbox's own affair: it counts against its API key alone, and the turns are for
// the host's work.
func (l *Launcher) Launch(ctx context.Context, s Start) (inst runtime.Instance, detail string, err error) {
	waited := trace.Start(ctx, "wait for others of the key")
	leave, err := l.keys.Enter(ctx, s.Key)
	waited()
	if err != nil {
		return nil, "", err
	}
	defer leave()
	image, detail, err := l.verify(ctx, s)
	if err != nil {
		return nil, "", err
	}
	waited = trace.Start(ctx, "wait for a turn")
	done, err := l.turns.Enter(ctx, s.Key)
	waited()
	if err != nil {
		return nil, "", err
	}
	defer done()
	if err := failpoint.Fail(failpoint.Launch); err != nil {
		return nil, "", err
	}
	sb := s.Sandbox()
	t, err := l.template(ctx, sb)
	if err != nil {
		return nil, "", err
	}
	if inst, err = l.boot(ctx, l.spec(s, sb, t, image), sb.Config, t, s.stack(), image); err != nil {
		return nil, "", err
	}
	done()
	return inst, detail, checkpoint.Behind(inst, image, l.greet(ctx, s, inst, sb, t, image))
}

// thawPatience is how long a runtime that was thawed may take to serve, without its hook:
// after that there is time to start another.
const thawPatience = 5 * time.Second

// Thaw has a runtime go on that has stayed frozen since it was captured as the checkpoint,
// and brings its agent up to date. What the agent is told is sent before: it lies ready in
// the runtime's network, which is not frozen. After an error the runtime may run, and its
// agent may have been told: it is of no use any more.
func (l *Launcher) Thaw(ctx context.Context, s Start, near *lightsleep.Approach) error {
	defer near.Close()
	inst, sb := near.Instance, s.Sandbox()
	ctx, cancel := context.WithTimeout(ctx, thawPatience+sb.Config.Hooks.PostResume.Budget)
	defer cancel()
	t, err := l.o.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return err
	}
	var opened sync.WaitGroup
	opened.Go(func() { l.OpenNetwork(inst, sb.ID, s.Gate) }) // its rules may have changed; the gate judges each connection in any case
	defer opened.Wait()
	told := make(chan error, 1)
	go func() {
		if planted.In(planted.UntoldThaw) {
			told <- nil
			return
		}
		told <- l.greet(ctx, s, near, sb, t, checkpoint.Image{})
	}()
	thawed := trace.Start(ctx, "thaw the runtime")
	err = inst.Thaw(ctx)
	thawed()
	if err == nil {
		err = failpoint.Fail(failpoint.GoesOn)
	}
	if err != nil {
		cancel()
		<-told
		return err
	}
	return <-told
}

// verify verifies what the runtime goes on from, if it does.
func (l *Launcher) verify(ctx context.Context, s Start) (image checkpoint.Image, detail string, err error) {
	if s.Checkpoint == nil {
		return checkpoint.Image{}, "", nil
	}
	if err := l.o.Checkpoints.Ready(ctx, *s.Checkpoint, s.Suspect); err != nil {
		return checkpoint.Image{}, "", err
	}
	waited := trace.Start(ctx, "wait to verify the checkpoint")
	leave, err := l.verifies.Enter(ctx, s.Key)
	waited()
	if err != nil {
		return checkpoint.Image{}, "", err
	}
	defer leave()
	defer trace.Start(ctx, "verify the checkpoint")()
	sb := s.Sandbox()
	t, err := l.o.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return checkpoint.Image{}, "", err
	}
	return l.o.Checkpoints.ForWake(ctx, sb, *s.Checkpoint, t, s.Suspect)
}

// template returns the template of a sandbox, without what the host keeps closed.
func (l *Launcher) template(ctx context.Context, sb store.Sandbox) (template.Template, error) {
	t, err := l.o.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return template.Template{}, err
	}
	defer trace.Start(ctx, "hide the host's closed files")()
	return l.o.Templates.Closed(ctx, t)
}

// stack returns the frozen layers that the runtime starts over.
func (s Start) stack() []string {
	if s.Checkpoint == nil {
		return nil
	}
	return s.Checkpoint.Stack
}

// spec returns what the runtime is to be.
func (l *Launcher) spec(s Start, sb store.Sandbox, t template.Template, image checkpoint.Image) runtime.Spec {
	spec := Spec(sb.Config.Limits)
	spec.Args = []string{t.AgentAt()}
	spec.ID, spec.Owner = s.ID, sb.Config.Key
	spec.Rootfs, spec.Network = filepath.Join(l.o.RunDir, s.ID), s.Gate
	spec.Disk = s.Disk
	spec.Sharers, spec.Build = l.o.Sharers(sb.Config.Key), image.Build
	spec.Unread, spec.AllFirst, spec.Late = image.Unread, image.AllFirst, image.Late
	return spec
}

// initialHostname is the name until the agent sets the sandbox's own.
const initialHostname = "drowse"

// Spec returns what every runtime with these limits is like, whichever sandbox it
// becomes: all but its ID and Rootfs.
func Spec(l store.Limits) runtime.Spec {
	return runtime.Spec{
		Args:     []string{template.AgentPath},
		Hostname: initialHostname,
		Limits:   runtime.Limits{CPUs: l.CPUs, MemoryMiB: l.MemoryMiB, PIDs: l.PIDs},
	}
}

// boot starts afresh, or from a memory image.
func (l *Launcher) boot(ctx context.Context, spec runtime.Spec, c store.Config, t template.Template, stack []string, image checkpoint.Image) (inst runtime.Instance, err error) {
	mounted := trace.Start(ctx, "mount layers")
	err = l.o.Layers.Mount(spec.Rootfs, t.Trees, stack, spec.ID)
	if err == nil {
		spec.Mounts, err = l.o.Mounts(c, spec.Rootfs, t.AgentAt())
	}
	mounted()
	if err != nil {
		return nil, err
	}
	if image.ID == "" {
		within, started := trace.Within(ctx, "start the runtime")
		inst, err = l.o.Driver.Start(within, spec)
		started()
	} else {
		within, restored := trace.Within(ctx, "restore the runtime")
		inst, err = l.o.Driver.Restore(within, spec, l.o.Layers.ImageDir(image.ID))
		restored()
	}
	if err != nil {
		return nil, err
	}
	return inst, failpoint.Fail(failpoint.Booted)
}

// greet brings the agent of a runtime up to date.
func (l *Launcher) greet(ctx context.Context, s Start, inst runtime.Instance, sb store.Sandbox, t template.Template, image checkpoint.Image) error {
	ctx, greeted := trace.Within(ctx, "wait for the agent")
	defer greeted()
	if cp := s.Checkpoint; image.ID != "" && cp.AgentToken != "" {
		if err := l.o.Guests.Succeed(ctx, inst, sb.ID, cp.AgentToken); err != nil {
			return fmt.Errorf("agent of %s, which comes from another server: %w", s.ID, err)
		}
	}
	if err := l.o.Guests.Init(ctx, inst, sb, t, s.Generation); err != nil {
		return fmt.Errorf("agent of %s: %w", s.ID, err)
	}
	if s.Checkpoint != nil {
		l.o.Guests.RunHook(ctx, inst, sb, "post_resume", sb.Config.Hooks.PostResume)
	}
	return failpoint.Fail(failpoint.Launched)
}

// Failed returns what the lifecycle is told of a start that failed.
func Failed(op string, err error) lifecycle.StartFailed {
	failed := lifecycle.StartFailed{Op: op, Detail: outcome.Words(err)}
	if e, ok := errors.AsType[*errdef.Error](err); ok && (e.Code == checkpoint.CodeDamaged || e.Code == checkpoint.CodeUnreadable) {
		failed.Detail, failed.Damaged, failed.Unreadable = e.Message, e.Code == checkpoint.CodeDamaged, e.Code == checkpoint.CodeUnreadable
	}
	return failed
}
