// Package launch brings the runtimes of sandboxes up: a new one, from nothing or
// from a checkpoint, or one that a server before this has left running.
//
// Starts wait for their turn, so that thousands that are asked for at once do not
// take the whole machine, nor do those of one API key. The package decides nothing
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

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/template"
)

// Options is what a launcher works with.
type Options struct {
	Driver      runtime.Driver
	Layers      *layer.Store
	Templates   *template.Store
	Checkpoints checkpoint.Reader
	Guests      agentclient.Host
	RunDir      string // for mount points
	// Mounts returns where the volumes of a sandbox are that is about to run, whose
	// layers are mounted at rootfs and whose agent is at a path in them.
	Mounts func(c store.Config, rootfs, agent string) ([]runtime.Mount, error)
	// Sharers returns among how many sandboxes the CPU time of a key is divided.
	Sharers func(key string) int
	Log     *slog.Logger
}

// Launcher starts and finds runtimes. It is safe for concurrent use.
type Launcher struct {
	o     Options
	turns chan struct{}  // bounds how many runtimes the host starts at once
	keys  quota.Launches // bounds how many sandboxes of one key are on their way up
}

// New returns a launcher.
func New(o Options) *Launcher {
	return &Launcher{o: o, turns: make(chan struct{}, 2*goruntime.NumCPU())}
}

// Turns returns how many runtimes are started at once.
func (l *Launcher) Turns() int { return cap(l.turns) }

// Of returns how many sandboxes of a key are on their way up, those that wait for
// a turn included.
func (l *Launcher) Of(key string) int { return l.keys.Of(key) }

// Underway returns how many keys have sandboxes on their way up, and how many
// turns are taken.
func (l *Launcher) Underway() (keys, turns int) { return l.keys.Keys(), len(l.turns) }

// turn waits for a turn at what the host does to start a runtime. done ends it,
// and may be called twice.
func (l *Launcher) turn(ctx context.Context) (done func(), err error) {
	select {
	case l.turns <- struct{}{}:
		return sync.OnceFunc(func() { <-l.turns }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Start is a runtime that is to be started.
type Start struct {
	ID         string // of the runtime
	Key        string // the API key whose sandbox it is
	Generation int64
	Checkpoint *lifecycle.Checkpoint // to go on from; nil for a fresh start
	Suspect    bool                  // the checkpoint was found to be damaged: nothing of it is left to be verified later
	Sandbox    func() store.Sandbox  // as it is when its turn comes
	Gate       *egress.Gate
}

// Launch starts a runtime and brings its agent up to date. detail says what is not
// as one would expect. How long the guest takes is its own affair: it counts
// against its API key alone, and the turns are for the host's work.
func (l *Launcher) Launch(ctx context.Context, s Start) (inst runtime.Instance, detail string, err error) {
	leave, err := l.keys.Enter(ctx, s.Key)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	done, err := l.turn(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	if err := failpoint.Fail(failpoint.Launch); err != nil {
		return nil, "", err
	}
	sb := s.Sandbox()
	t, err := l.o.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return nil, "", err
	}
	var stack []string
	var image checkpoint.Image
	if s.Checkpoint != nil {
		stack = s.Checkpoint.Stack
		if image, detail, err = l.o.Checkpoints.ForWake(ctx, sb, *s.Checkpoint, t, s.Suspect); err != nil {
			return nil, "", err
		}
	}
	if t, err = l.o.Templates.Closed(ctx, t); err != nil {
		return nil, "", err
	}
	if inst, err = l.boot(ctx, l.spec(s, sb, t, image), sb.Config, t, stack, image); err != nil {
		return nil, "", err
	}
	done()
	return inst, detail, checkpoint.Behind(inst, image, l.greet(ctx, s, inst, sb, t, image))
}

// spec returns what the runtime is to be.
func (l *Launcher) spec(s Start, sb store.Sandbox, t template.Template, image checkpoint.Image) runtime.Spec {
	spec := Spec(sb.Config.Limits)
	spec.Args = []string{t.AgentAt()}
	spec.ID, spec.Rootfs, spec.Network = s.ID, filepath.Join(l.o.RunDir, s.ID), s.Gate
	spec.Sharers, spec.Build, spec.Unread = l.o.Sharers(sb.Config.Key), image.Build, image.Unread
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
	if err := l.o.Layers.Mount(spec.Rootfs, t.Trees, stack, spec.ID); err != nil {
		return nil, err
	}
	if spec.Mounts, err = l.o.Mounts(c, spec.Rootfs, t.AgentAt()); err != nil {
		return nil, err
	}
	if image.ID == "" {
		inst, err = l.o.Driver.Start(ctx, spec)
	} else {
		inst, err = l.o.Driver.Restore(ctx, spec, l.o.Layers.ImageDir(image.ID))
	}
	switch {
	case err == nil:
		return inst, failpoint.Fail(failpoint.Booted)
	case image.ID != "" && len(spec.Mounts) > 0:
		return nil, fmt.Errorf("%w (what it had open on its volumes must be there: put back what was removed while it slept)", err)
	}
	return nil, err
}

// greet brings the agent of a runtime up to date.
func (l *Launcher) greet(ctx context.Context, s Start, inst runtime.Instance, sb store.Sandbox, t template.Template, image checkpoint.Image) error {
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
	failed := lifecycle.StartFailed{Op: op, Detail: err.Error()}
	if e, ok := errors.AsType[*errdef.Error](err); ok && (e.Code == checkpoint.CodeDamaged || e.Code == checkpoint.CodeUnreadable) {
		failed.Detail, failed.Damaged, failed.Unreadable = e.Message, e.Code == checkpoint.CodeDamaged, e.Code == checkpoint.CodeUnreadable
	}
	return failed
}
