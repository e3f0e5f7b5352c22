package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

const (
	pipeChunk = 32 << 10
	ptyChunk  = 16 << 10

	// pipeGrace is how long, after a process has exited, the agent waits for
	// the end of output that a descendant may still hold open: long enough for
	// the last words of a pipeline, short enough for `server &`.
	pipeGrace = 150 * time.Millisecond

	// maxPipe is the most an unprivileged process can make a pipe hold.
	maxPipe = 1 << 20

	// retention is how long Connect still finds a process that has ended.
	retention = 30 * time.Second

	// killWait bounds how long a SIGKILL call waits for the death it caused.
	killWait = 2 * time.Second
)

// process is a process started for a client, from its fork until retention
// after its end.
type process struct {
	pid    uint32
	config *processpb.ProcessConfig
	tag    *string
	child  *child
	reaper *reaper
	out    output
	stdin  input
	tty    *os.File

	// hangUpWord is by which the host says that the client has gone which started a
	// terminal and wants it hung up then; empty if it is to stay. starter is that client.
	hangUpWord string
	starter    *processSubscriber

	// root is told of every byte in or out.
	root *root

	// expired is set when the process was killed at its deadline.
	expired atomic.Bool
	// starved says what was ended for want of memory: the process, or one that
	// it started.
	starved  atomic.Pointer[string]
	deadline *awakeTimer

	readers []*os.File
	drained sync.WaitGroup
}

func newProcess(r *reaper, c *child, p *plumbing, config *processpb.ProcessConfig, tag *string) *process {
	proc := &process{pid: uint32(c.pid), config: config, tag: tag, child: c, reaper: r, tty: p.tty, root: &root{child: c}}
	proc.stdin.file = p.stdin
	proc.stdin.token = make(chan struct{}, 1)
	if p.tty != nil {
		proc.root.watched = proc.out.watched
		proc.stdin.file = p.tty
		proc.readers = []*os.File{p.tty}
		return proc
	}
	proc.readers = []*os.File{p.stdout, p.stderr}
	return proc
}

// run starts reading the output. It is separate from newProcess so that the
// client that started the process can subscribe before the first byte. At the
// end exited is called before any client is told of it, and ended after.
func (p *process) run(exited, ended func()) {
	p.drained.Add(len(p.readers))
	if p.tty != nil {
		go p.pump(p.tty, ptyChunk, ptyEvent)
	} else {
		go p.pump(p.readers[0], pipeChunk, stdoutEvent)
		go p.pump(p.readers[1], pipeChunk, stderrEvent)
	}
	go p.supervise(exited, ended)
}

// limit kills the process once it has run, awake, for d.
func (p *process) limit(d time.Duration) {
	p.deadline = afterAwake(d, func() {
		p.expired.Store(true)
		_, _ = p.signal(syscall.SIGKILL)
	})
}

// supervise waits for the exit, then for the output, then tells the end.
func (p *process) supervise(exited, ended func()) {
	<-p.child.done
	if p.deadline != nil {
		p.deadline.stop()
	}
	limit := time.Now().Add(pipeGrace)
	for _, f := range p.readers {
		_ = f.SetReadDeadline(limit)
	}
	p.drained.Wait()
	if p.tty == nil {
		p.stdin.abandon()
	}
	exited()
	p.out.finish(p.endEvent())
	ended()
}

func (p *process) alive() bool {
	select {
	case <-p.child.done:
		return false
	default:
		return true
	}
}

// pump publishes what f yields until its end or, once the process has exited
// and the grace set by supervise is over, until f is empty for the moment.
// After that a terminal is closed, which hangs up who still uses it; a pipe is
// read and discarded, for a descendant that still writes must neither block
// nor die of SIGPIPE.
func (p *process) pump(f *os.File, size int, wrap func([]byte) *processpb.ProcessEvent) {
	// Not before the process is gone: closing a terminal hangs it up, and the
	// process may live on after its last descriptor of it.
	defer func() { <-p.child.done; f.Close() }()
	buf := make([]byte, size)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			p.root.touch(n)
			p.out.publish(buf[:n], wrap)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			p.drained.Done()
			return
		}
	}
	_ = f.SetReadDeadline(time.Time{})
	p.drainAvailable(f, buf, wrap)
	p.drained.Done()
	if f != p.tty {
		_, _ = io.CopyBuffer(p.root, f, buf)
	}
}

// drainAvailable publishes what f holds now: the pump may have been busy with
// a slow subscriber all through the grace. It stops at what a pipe can hold,
// for the writer may be endless.
func (p *process) drainAvailable(f *os.File, buf []byte, wrap func([]byte) *processpb.ProcessEvent) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < maxPipe; {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), buf) })
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		p.root.touch(n)
		p.out.publish(buf[:n], wrap)
		total += n
	}
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// signal delivers sig and reports false if the process has ended. SIGKILL
// takes the whole group, so that a killed shell leaves no command behind; any
// other signal is for the process alone, which may have its own mind about its
// children. On a terminal a shell's commands are in groups of their own: those
// are hung up, as they would be if somebody closed the window.
func (p *process) signal(sig syscall.Signal) (bool, error) {
	kill := sig == syscall.SIGKILL
	sent, err := p.reaper.signal(p.child, sig, kill)
	if sent && err == nil && kill && p.tty != nil {
		hangUpSession(p.child.pid)
	}
	return sent, err
}

// hangUp takes the terminal away, as when a window is closed or an SSH client goes.
// The kernel tells the foreground by SIGHUP, and a shell its jobs; Linux tells the
// leader too, gVisor does not.
func (p *process) hangUp() {
	_ = p.tty.Close()
	_, _ = p.reaper.signal(p.child, syscall.SIGHUP, false)
	_, _ = p.reaper.signal(p.child, syscall.SIGCONT, false) // if it is stopped
}

// awaitDeath waits until the pid is free, for a while.
func (p *process) awaitDeath(ctx context.Context) {
	limit := time.NewTimer(killWait)
	defer limit.Stop()
	select {
	case <-p.child.done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// resize is without effect on a process without terminal.
func (p *process) resize(size *processpb.PTY_Size) error {
	if p.tty == nil || size == nil {
		return nil
	}
	return resizePTY(p.tty, size)
}

func stdoutEvent(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Stdout{Stdout: b}})
}

func stderrEvent(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Stderr{Stderr: b}})
}

func ptyEvent(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Pty{Pty: b}})
}

func dataEvent(d *processpb.ProcessEvent_DataEvent) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: d}}
}

func startEvent(pid uint32) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Start{
		Start: &processpb.ProcessEvent_StartEvent{Pid: pid}}}
}

func keepaliveEvent() *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Keepalive{
		Keepalive: &processpb.ProcessEvent_KeepAlive{}}}
}

// endEvent words a wait status as Go's os package does; SDKs show the text.
func endEvent(status syscall.WaitStatus) *processpb.ProcessEvent {
	end := &processpb.ProcessEvent_EndEvent{ExitCode: -1}
	if status.Exited() {
		end.ExitCode = int32(status.ExitStatus())
		end.Exited = true
		end.Status = "exit status " + strconv.Itoa(status.ExitStatus())
	} else {
		end.Status = "signal: " + status.Signal().String()
		if status.CoreDump() {
			end.Status += " (core dumped)"
		}
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_End{End: end}}
}

// endEvent says how the process ended, and of what if the agent knows.
func (p *process) endEvent() *processpb.ProcessEvent {
	event := endEvent(p.child.status)
	if why := p.starved.Load(); why != nil && event.GetEnd().GetExitCode() != 0 {
		event.GetEnd().Error = why
	}
	return event
}

// input serialises writes to a process's stdin or terminal.
type input struct {
	file *os.File // nil: none

	// token holds one element while somebody writes or closes; it guards
	// closed.
	token  chan struct{}
	closed bool
}

var errNoStdin = errors.New("the process has no open stdin")

// write blocks while the process does not read, until ctx is done.
func (in *input) write(ctx context.Context, data []byte) error {
	if err := in.acquire(ctx); err != nil {
		return err
	}
	defer in.release()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = in.file.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := in.file.Write(data)
	if !stop() {
		<-interrupted
		_ = in.file.SetWriteDeadline(time.Time{})
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// close waits its turn, so that it comes after input already accepted.
func (in *input) close(ctx context.Context) error {
	if err := in.acquire(ctx); err != nil {
		return err
	}
	defer in.release()
	in.closed = true
	return in.file.Close()
}

// abandon closes the pipe of a process that has ended. A writer that is
// blocked on it, because a descendant has it open, is released.
func (in *input) abandon() {
	if in.file != nil {
		in.file.Close()
	}
}

func (in *input) acquire(ctx context.Context) error {
	if in.file == nil {
		return errNoStdin
	}
	select {
	case in.token <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if in.closed {
		in.release()
		return errNoStdin
	}
	return nil
}

func (in *input) release() { <-in.token }
