package gvisor

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/drowse-dev/drowse/internal/ownthread"
)

// control speaks with the processes of one runtime. It is not safe for
// concurrent use. What gVisor keeps on disk of a runtime, and what is said on its
// control socket, differs from one version of gVisor to the next: a runtime of
// another version is spoken with by a process of its own build (remote).
type control interface {
	about() about
	start() error
	restore(image string) error
	freeze() error
	thaw() error
	// stopped reports whether every task inside has stopped.
	stopped() (bool, error)
	checkpoint(dir string) error
	namer
}

// namer sets the host name of a runtime that runs.
type namer interface{ setHostname(name string) error }

// about is what a runtime is like.
type about struct {
	id            string // by which gVisor knows it
	running       bool   // it has been started, and has not ended
	sentry, gofer int    // processes
	memoryLimit   int64
	tasks         int64 // that it may have; 0 where another build has not said
	lateRoot      bool  // the file server made the root its own
}

// local is a control by the gVisor that is linked into this process.
type local struct {
	d *Driver
	c *container.Container
}

func (l local) about() about {
	return about{
		id:          l.c.ID,
		running:     l.c.IsSandboxRunning() && (l.c.Status == container.Running || l.c.Status == container.Paused),
		sentry:      l.c.SandboxPid(),
		gofer:       l.c.GoferPid.Load(),
		memoryLimit: *l.c.Spec.Linux.Resources.Memory.Limit,
		tasks:       l.c.Spec.Linux.Resources.Pids.Limit,
		lateRoot:    l.c.Spec.Root.Path == lateRootDir(l.c.BundleDir),
	}
}

// gVisor's tool joins the guest's network namespace and returns to the one that
// /proc/self shows, which need not be that of the thread, and does not say when it
// could not.
func (l local) start() error {
	return ownthread.Run(func() error { return l.c.Start(l.d.conf) })
}

func (l local) freeze() error { return l.c.Sandbox.Pause(l.c.ID) }
func (l local) thaw() error   { return l.c.Sandbox.Resume(l.c.ID) }

func (l local) restore(image string) error {
	if err := ownthread.Run(func() error { return l.c.Restore(l.d.conf, image, false, false, nil) }); err != nil {
		return err
	}
	return l.carryOn()
}

// carryOn lets the first process go on. A guest may have stopped it before the
// capture, under a gVisor that does not shield it, and nothing inside would end that.
func (l local) carryOn() error {
	if err := l.c.SignalContainer(unix.SIGCONT, false); err != nil {
		return fmt.Errorf("let the first process go on: %w", err)
	}
	return nil
}

// checkpoint leaves the runtime frozen, because it was before, when gVisor is
// told to leave it running; without that it would end the runtime, also when the
// image could not be written.
func (l local) checkpoint(dir string) error {
	return l.c.Checkpoint(l.d.conf, dir, sandbox.CheckpointOpts{Resume: true, Compression: statefile.CompressionLevelNone})
}

func (l local) stopped() (bool, error) {
	stacks, err := l.c.Sandbox.Stacks()
	if err != nil {
		return false, err
	}
	return allStopped(stacks), nil
}

// allStopped reports whether every task goroutine among the stacks of a sentry
// is stopped.
func allStopped(stacks string) bool {
	tasks := 0
	for g := range strings.SplitSeq(stacks, "\n\n") {
		if !strings.Contains(g, "kernel.(*Task).run(") {
			continue
		}
		tasks++
		if !strings.Contains(g, "kernel.(*Task).doStop(") {
			return false
		}
	}
	return tasks > 0
}

// dial connects to the sentry's controller. The path of its socket may be longer than
// one that a socket is named by.
func (l local) dial() (*urpc.Client, error) {
	socket, err := unix.Open(l.c.Sandbox.GetControlSocketPath(), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the controller's socket: %w", err)
	}
	defer unix.Close(socket)
	return client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d", socket))
}
