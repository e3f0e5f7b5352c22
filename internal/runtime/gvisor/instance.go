package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
	"github.com/drowse-dev/drowse/internal/runtime/netns"
)

// instance implements runtime.Instance.
type instance struct {
	d      *Driver
	id     string
	ns     *os.File // the network namespace; closed when the runtime is gone
	out    *netns.Outlet
	group  group
	exited chan struct{}

	loaded chan struct{} // closed when all of its memory is there, or never will be
	damage atomic.Pointer[imageserver.Damage]

	peer        *peer       // the build that it runs; nil for this one
	tookTooMuch atomic.Bool // memory, and was ended for it

	mu     sync.Mutex
	c      control
	weight weight
	frozen bool
	lifted bool // it reads and writes as fast as it can until the next Thaw
	// reserve is how far the kernel's limit of memory lies above what the runtime
	// may take; 0 without a watch.
	reserve int64
	unsure  bool // a freeze or thaw has failed, and may have happened all the same
}

func newInstance(d *Driver, id string, c control, by *peer, out *netns.Outlet) (*instance, error) {
	is := c.about()
	sentry, err := openProcess(is.sentry)
	if err != nil {
		return nil, fmt.Errorf("watch runtime %s: %w", id, err)
	}
	gofer, err := openProcess(is.gofer)
	if err != nil {
		sentry.Close()
		return nil, fmt.Errorf("watch the files of runtime %s: %w", id, err)
	}
	nsFile, err := os.Open(netnsOf(d.bundle(id)).Path)
	if err != nil {
		sentry.Close()
		gofer.Close()
		return nil, fmt.Errorf("watch runtime %s: %w", id, err)
	}
	i := &instance{d: d, id: id, ns: nsFile, out: out, group: groupOf(d.bundle(id), is.id), exited: make(chan struct{}), loaded: make(chan struct{}), peer: by, c: c}
	if err := i.findFrozen(); err != nil {
		sentry.Close()
		gofer.Close()
		nsFile.Close()
		return nil, err
	}
	go i.watch(sentry)
	go endTogether(gofer, sentry)
	i.followLoading(is.sentry)
	return i, nil
}

// openProcess returns a process as a file that is readable when it has exited.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL of the pid 0
		return nil, errdef.New(errdef.NotFound, "runtime_not_found", "process %d has exited", pid)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// watch waits, without a thread of its own, for the sentry to exit.
func (i *instance) watch(sentry *os.File) {
	defer close(i.exited)
	defer i.ns.Close()
	defer sentry.Close()
	awaitExit(sentry)
	_ = i.out.Close() // it was only listening
}

// endTogether kills the sentry when the file server has exited, without which
// nothing inside can open a file. A restored sentry does not see to that itself.
func endTogether(gofer, sentry *os.File) {
	defer gofer.Close()
	awaitExit(gofer)
	killProcess(sentry)
}

// killProcess kills a process that may have exited.
func killProcess(process *os.File) {
	raw, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

func awaitExit(process *os.File) {
	raw, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
}

// ID implements runtime.Instance.
func (i *instance) ID() string { return i.id }

// Exited implements runtime.Instance.
func (i *instance) Exited() <-chan struct{} { return i.exited }

// Dial implements runtime.Instance.
func (i *instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	raw, err := i.ns.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", i.id, err)
	}
	var conn net.Conn
	cerr := raw.Control(func(fd uintptr) { conn, err = netns.Dial(ctx, int(fd), port) })
	if err := errors.Join(cerr, err); err != nil {
		return nil, fmt.Errorf("dial port %d of %s: %w", port, i.id, err)
	}
	return conn, nil
}

// SetNetwork implements runtime.Networked.
func (i *instance) SetNetwork(n runtime.Network) error {
	if err := i.out.Set(n); err != nil {
		return fmt.Errorf("change the network of %s: %w", i.id, err)
	}
	return nil
}

// Freeze implements runtime.Instance. gVisor counts freezes, cannot be asked
// for the count, and dies of a thaw too many; so that a server that finds the
// runtime again knows that it may be frozen, a mark is left before.
func (i *instance) Freeze(ctx context.Context) error {
	// A capture waits for all of the memory. Until that is there, it may as well run.
	select {
	case <-i.loaded:
	case <-i.exited:
	case <-ctx.Done():
		return ctx.Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.makeSure(); err != nil || i.frozen {
		return err
	}
	if err := failpoint.Fail(failpoint.FreezeMark); err != nil {
		return err
	}
	if err := os.WriteFile(i.mark(), nil, 0o600); err != nil {
		return fmt.Errorf("freeze %s: %w", i.id, err)
	}
	if err := failpoint.Fail(failpoint.Freeze); err != nil {
		return err
	}
	i.liftDisks() // a task that waits for the disk stops when it is done
	err := i.c.freeze()
	if err == nil {
		err = failpoint.Fail(failpoint.Frozen)
	}
	if err != nil {
		i.unsure = true
		return fmt.Errorf("freeze %s: %w", i.id, err)
	}
	i.frozen = true
	return nil
}

// Thaw implements runtime.Instance.
func (i *instance) Thaw(context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.makeSure(); err != nil {
		return err
	}
	if i.lifted {
		i.boundDisks()
	}
	if !i.frozen {
		return nil
	}
	if err := failpoint.Fail(failpoint.Thaw); err != nil {
		return err
	}
	i.lowerLimit()
	err := i.c.thaw()
	if err == nil {
		err = failpoint.Fail(failpoint.Thawed)
	}
	if err != nil {
		i.unsure = true
		return fmt.Errorf("thaw %s: %w", i.id, err)
	}
	i.frozen = false
	if err := os.Remove(i.mark()); err != nil {
		return fmt.Errorf("thaw %s: %w", i.id, err)
	}
	return nil
}

func (i *instance) mark() string { return filepath.Join(i.d.bundle(i.id), "may-be-frozen") }

// makeSure finds out what came of a freeze or thaw that has failed.
func (i *instance) makeSure() error {
	if !i.unsure {
		return nil
	}
	if err := i.findFrozen(); err != nil {
		return err
	}
	i.unsure = false
	return nil
}

// findFrozen finds out whether a runtime that has the mark is frozen: then each
// of its tasks has stopped.
func (i *instance) findFrozen() error {
	if _, err := os.Stat(i.mark()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	stopped, err := i.c.stopped()
	if err != nil {
		return fmt.Errorf("look at the tasks of %s: %w", i.id, err)
	}
	i.frozen = stopped
	return nil
}

// Checkpoint implements runtime.Instance.
func (i *instance) Checkpoint(_ context.Context, dir string) error {
	return i.capture(dir, func() error { return i.c.checkpoint(dir) })
}

// capture has a memory image written into dir. write is called with mu held.
func (i *instance) capture(dir string, write func() error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := failpoint.Fail(failpoint.Checkpoint); err != nil {
		return err
	}
	i.liftLimit()
	if err := write(); err != nil {
		if i.d.log != nil { // all of it is there alone
			i.d.log.Warn("memory was not captured", "runtime", i.id, "err", err)
		}
		return fmt.Errorf("checkpoint %s: %w", i.id, explainCapture(err))
	}
	keepFirstUse(i, dir)
	return failpoint.Fail(failpoint.Checkpointed)
}

// maxError bounds what an error of gVisor may say: it can carry a dump of the
// guest's kernel, after its first line.
const maxError = 300

// brief returns err with the part of its text that a person can use.
func brief(err error) error {
	text := err.Error()
	if strings.Contains(text, unix.ENOSPC.Error()) {
		return unix.ENOSPC
	}
	line, _, more := strings.Cut(text, "\n")
	if !more && len(text) <= maxError {
		return err
	}
	return errors.New(human.Line(strings.TrimRight(line, ": "), maxError))
}
