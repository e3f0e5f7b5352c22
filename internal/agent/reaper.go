package agent

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper collects the exit statuses of children. As PID 1 it waits for any
// child, so that orphans adopted from the sandbox's processes do not pile up
// as zombies; that would steal the children of os/exec, which is why nothing
// that runs as PID 1 uses it. Otherwise it waits only for the pids it was told.
//
// A pid can be signalled safely: a child is reaped and marked as gone under
// the same lock under which it is signalled.
type reaper struct {
	any bool

	// ended is told of every exit that is reaped, but of quiet children; under mu;
	// set before run.
	ended func(pid int)

	mu       sync.Mutex
	children map[int]*child
	// starting counts forks whose pid is not yet known. While there are any,
	// a status of an unknown pid may be that of one of them and is kept.
	starting int
	early    map[int]syscall.WaitStatus
}

// child is a process that was started and not forgotten. status may be read
// once done is closed.
type child struct {
	pid    int
	done   chan struct{}
	status syscall.WaitStatus
	quiet  bool // its end is not the end of work
	gone   bool // guarded by reaper.mu
}

func newReaper(any bool) *reaper {
	return &reaper{any: any, children: map[int]*child{}, early: map[int]syscall.WaitStatus{}}
}

// run reaps until stop is closed. SIGCHLD coalesces, so each one means "at
// least one": everything waitable is collected.
func (r *reaper) run(stop <-chan struct{}) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	for {
		r.reap()
		select {
		case <-signals:
		case <-stop:
			return
		}
	}
}

// start forks through fork and registers the pid it returns. Any number may
// run at once: an exit that overtakes its own registration waits in early.
func (r *reaper) start(fork func() (int, error), quiet bool) (*child, error) {
	r.mu.Lock()
	r.starting++
	r.mu.Unlock()

	pid, err := fork()

	r.mu.Lock()
	defer r.mu.Unlock()
	var c *child
	if err == nil {
		c = &child{pid: pid, done: make(chan struct{}), quiet: quiet}
		r.children[pid] = c
		if status, ok := r.early[pid]; ok {
			delete(r.early, pid)
			r.exited(pid, status)
		}
	}
	if r.starting--; r.starting == 0 {
		for pid := range r.early { // nobody's
			r.tell(pid)
		}
		clear(r.early)
	}
	if err == nil && !r.any && !c.gone {
		// The signal for this pid may have come before it was registered.
		r.reapPID(pid)
	}
	return c, err
}

// signal sends sig to c, or to its whole process group. It reports false if c
// has ended: once reaped, its pid may belong to another process.
func (r *reaper) signal(c *child, sig syscall.Signal, group bool) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.gone {
		return false, nil
	}
	pid := c.pid
	if group {
		pid = -pid
	}
	err := syscall.Kill(pid, sig)
	if err == syscall.ESRCH {
		return false, nil // a zombie that is yet to be reaped
	}
	return true, err
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.any {
		for r.reapPID(-1) {
		}
		return
	}
	for pid := range r.children {
		r.reapPID(pid)
	}
}

// reapPID collects one exit of pid, or of any child for -1, and reports
// whether there was one. Callers hold mu.
func (r *reaper) reapPID(pid int) bool {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return false
		}
		r.exited(got, status)
		return true
	}
}

func (r *reaper) exited(pid int, status syscall.WaitStatus) {
	c := r.children[pid]
	if c == nil {
		if r.starting > 0 {
			r.early[pid] = status
		} else {
			r.tell(pid)
		}
		return
	}
	delete(r.children, pid)
	if !c.quiet {
		r.tell(pid)
	}
	c.status, c.gone = status, true
	close(c.done)
}

func (r *reaper) tell(pid int) {
	if r.ended != nil {
		r.ended(pid)
	}
}
