package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
	pb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
)

const (
	// keepalive is how often the agent says that a quiet process still runs,
	// in seconds, so that nothing on the way takes the stream for dead.
	keepalive = "50"
	// killGrace bounds the last call for a command whose caller has gone.
	killGrace = 5 * time.Second
)

// errOutput says that a command's output had nowhere to go.
var errOutput = errors.New("write the output")

// Command is something to run in a sandbox.
type Command struct {
	// Args is the program, looked up in the sandbox's PATH, and its arguments.
	// There is no shell in between.
	Args []string
	Env  map[string]string // on top of the sandbox's own
	Dir  string            // empty means the user's home directory

	// Stdin feeds the command; nil gives it an empty input. A Read of Stdin
	// that is under way when the command ends is not waited for. If Stdin has a
	// method Taken(n int), it is called when the command has got n more bytes.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil drops it. They are written to
	// from Wait only.
	Stdout io.Writer
	Stderr io.Writer

	// Terminal, if not nil, runs the command on a terminal of this size. All
	// output then goes to Stdout, and the end of Stdin is not passed on.
	Terminal *Size

	// HangUp has the terminal hung up when this client goes, as over SSH: when the
	// context ends, after Detach, or when nothing has been heard of the client for 40
	// seconds. The terminal stays when the sandbox is put to sleep or the server
	// restarts, and without HangUp whatever happens: Attach takes it up again.
	HangUp bool

	// Timeout, if not zero, is when the command is killed; Wait then returns
	// context.DeadlineExceeded. A deadline of the context does the same.
	Timeout time.Duration
}

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows int }

// Exit is how a command ended.
type Exit struct {
	Code   int            // -1 if it was ended by a signal
	Signal syscall.Signal // what ended it; zero if it exited
	Status string         // such as "exit status 2", "signal: killed"
	// Reason is why the sandbox ended the command or a part of it, such as for
	// want of memory; empty if it did not. It has text of the sandbox in it.
	Reason string
}

// ShellCode returns the code by which a shell would report the end: the
// command's own, or 128 and the number of the signal.
func (e Exit) ShellCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// Process is a command that was started.
type Process struct {
	sandbox *Sandbox
	command Command
	rpc     processconnect.ProcessClient
	pid     uint32
	stream  interface {
		Receive() bool
		Err() error
		Close() error
	}
	event  func() *pb.ProcessEvent // that was received last
	missed int64
	cancel context.CancelFunc

	mu       sync.Mutex
	inputErr error // why input did not reach the command
}

// Start runs a command. It returns once the command runs; Wait must then be
// called, or Detach.
//
// If ctx ends, Wait returns but the command runs on.
func (s *Sandbox) Start(ctx context.Context, cmd Command) (*Process, error) {
	if len(cmd.Args) == 0 {
		return nil, errors.New("start: no command")
	}
	p := &Process{sandbox: s, command: cmd, rpc: s.processes()}
	ctx, p.cancel = cmd.context(ctx)
	if err := p.start(ctx); err != nil {
		p.cancel()
		return nil, fmt.Errorf("start %s in sandbox %s: %w", cmd.Args[0], s.ID, err)
	}
	if cmd.Stdin != nil {
		go p.feed(ctx)
	}
	return p, nil
}

// Attach takes up a command that runs, by its process id: one that was started
// before the sandbox slept, or that another client has started. The command gets
// what cmd.Stdin has from now on, and its output from now on goes to cmd's writers.
// The rest of cmd is ignored, but whether it has a Terminal must be as at its start.
// ErrNotFound: it has ended.
func (s *Sandbox) Attach(ctx context.Context, pid int, cmd Command) (*Process, error) {
	p := &Process{sandbox: s, command: cmd, rpc: s.processes(), pid: uint32(pid)}
	ctx, p.cancel = cmd.context(ctx)
	req := connect.NewRequest(&pb.ConnectRequest{Process: p.selector()})
	req.Header().Set(agentpb.HeaderKeepalive, keepalive)
	stream, err := p.rpc.Connect(ctx, req)
	if err == nil {
		p.stream, p.event = stream, func() *pb.ProcessEvent { return stream.Msg().GetEvent() }
		err = p.begin()
	}
	if err == nil {
		p.missed, _ = strconv.ParseInt(stream.ResponseHeader().Get(agentpb.HeaderMissed), 10, 64) // of older servers it is 0
	}
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("attach to process %d in sandbox %s: %w", pid, s.ID, rpcError(err))
	}
	if cmd.Stdin != nil {
		go p.feed(ctx)
	}
	return p, nil
}

// Terminal is a command that runs on a terminal.
type Terminal struct {
	PID     int
	Command string // with its arguments; text of the sandbox
}

// Terminals lists the terminals in a sandbox that clients have made and whose
// commands run, for Attach. It wakes the sandbox, if that may be.
func (s *Sandbox) Terminals(ctx context.Context) ([]Terminal, error) {
	res, err := s.processes().List(ctx, connect.NewRequest(&pb.ListRequest{}))
	if err != nil {
		return nil, fmt.Errorf("list the terminals in sandbox %s: %w", s.ID, rpcError(err))
	}
	var list []Terminal
	pids := strings.Fields(res.Header().Get(agentpb.HeaderTerminals))
	for _, p := range res.Msg.GetProcesses() {
		if slices.Contains(pids, strconv.Itoa(int(p.GetPid()))) {
			config := p.GetConfig()
			list = append(list, Terminal{PID: int(p.GetPid()), Command: strings.Join(append([]string{config.GetCmd()}, config.GetArgs()...), " ")})
		}
	}
	return list, nil
}

// Run runs a command to its end. If ctx ends first, the command is killed.
func (s *Sandbox) Run(ctx context.Context, cmd Command) (Exit, error) {
	p, err := s.Start(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	exit, err := p.Wait()
	if isContext(err) || errors.Is(err, errOutput) {
		// Nobody is left to hear it. Not so where the sandbox went away: a
		// signal might wake it.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
		defer cancel()
		_ = p.Kill(cleanup)
	}
	return exit, err
}

// Shell starts an interactive login shell on a terminal, 80 by 24 unless
// cmd.Terminal says otherwise. cmd.Args, if set, replaces the shell.
func (s *Sandbox) Shell(ctx context.Context, cmd Command) (*Process, error) {
	if len(cmd.Args) == 0 {
		cmd.Args = []string{"/bin/bash", "-i", "-l"}
	}
	if cmd.Terminal == nil {
		cmd.Terminal = &Size{Cols: 80, Rows: 24}
	}
	env := map[string]string{"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
	for k, v := range cmd.Env {
		env[k] = v
	}
	cmd.Env = env
	return s.Start(ctx, cmd)
}

func (s *Sandbox) processes() processconnect.ProcessClient {
	base, routing := s.inside(agentpb.Port)
	return processconnect.NewProcessClient(doer{s, routing}, base.String(), agentpb.Bounded(agentpb.MaxProcess))
}

func (cmd Command) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if cmd.Timeout > 0 {
		return context.WithTimeout(ctx, cmd.Timeout)
	}
	return context.WithCancel(ctx)
}

func (cmd Command) wire() *pb.StartRequest {
	req := &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: cmd.Args[0], Args: cmd.Args[1:], Envs: cmd.Env},
		Stdin:   new(cmd.Stdin != nil),
	}
	if cmd.Dir != "" {
		req.Process.Cwd = &cmd.Dir
	}
	if cmd.Terminal != nil {
		req.Pty = cmd.Terminal.wire()
	}
	return req
}

func (z Size) wire() *pb.PTY {
	return &pb.PTY{Size: &pb.PTY_Size{Cols: uint32(max(z.Cols, 1)), Rows: uint32(max(z.Rows, 1))}}
}

// start opens the stream and waits for its first event.
func (p *Process) start(ctx context.Context) error {
	req := connect.NewRequest(p.command.wire())
	req.Header().Set(agentpb.HeaderKeepalive, keepalive)
	if p.command.HangUp && p.command.Terminal != nil {
		req.Header().Set(agentpb.HeaderHangUp, rand.Text())
	}
	stream, err := p.rpc.Start(ctx, req)
	if err != nil {
		return rpcError(err)
	}
	p.stream, p.event = stream, func() *pb.ProcessEvent { return stream.Msg().GetEvent() }
	return p.begin()
}

// begin waits for the first event, which names the process.
func (p *Process) begin() error {
	if !p.stream.Receive() {
		err := rpcError(p.stream.Err())
		_ = p.stream.Close()
		if err == nil {
			err = fmt.Errorf("%w: it ended before the command ran", ErrInterrupted)
		}
		return err
	}
	p.pid = p.event().GetStart().GetPid()
	return nil
}

// PID returns the process id inside the sandbox. It stays the same while the
// sandbox sleeps and wakes.
func (p *Process) PID() int { return int(p.pid) }

// Missed returns how many bytes of the output of a command that was attached to nobody
// has got, because no client was connected then.
func (p *Process) Missed() int64 { return max(p.missed, 0) }

// Wait writes the command's output to its writers until it ends and returns
// how it did. An error says that this is not known, or that the command ended
// well but did not get all of its input. A writer that takes nothing for
// seconds while megabytes wait has the output cut off by the sandbox, with an
// error; the command runs on.
func (p *Process) Wait() (Exit, error) {
	defer p.close()
	for p.stream.Receive() {
		event := p.event()
		if data := event.GetData(); data != nil {
			if err := p.write(data); err != nil {
				return Exit{}, fmt.Errorf("%w of process %d: %w", errOutput, p.pid, err)
			}
		}
		if end := event.GetEnd(); end != nil {
			return p.ended(end)
		}
	}
	err := rpcError(p.stream.Err())
	if err == nil {
		err = ErrInterrupted
	}
	return Exit{}, fmt.Errorf("wait for process %d in sandbox %s: %w", p.pid, p.sandbox.ID, err)
}

// Detach gives up the command's output and lets it run on.
func (p *Process) Detach() { p.close() }

func (p *Process) close() {
	p.cancel()
	_ = p.stream.Close()
}

func (p *Process) write(data *pb.ProcessEvent_DataEvent) error {
	w, b := p.command.Stdout, data.GetStdout()
	switch {
	case len(data.GetStderr()) > 0:
		w, b = p.command.Stderr, data.GetStderr()
	case len(data.GetPty()) > 0:
		b = data.GetPty()
	}
	if w == nil || len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}

func (p *Process) ended(end *pb.ProcessEvent_EndEvent) (Exit, error) {
	exit := Exit{Code: int(end.GetExitCode()), Status: end.GetStatus()}
	if !end.GetExited() {
		exit.Signal = agentpb.SignalOf(end.GetStatus())
	}
	if why := end.GetError(); why != exit.Status {
		exit.Reason = why
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inputErr != nil && exit.Code == 0 {
		return exit, fmt.Errorf("process %d did not get all of its input: %w", p.pid, p.inputErr)
	}
	return exit, nil
}

// Kill ends the command with SIGKILL. ErrNotFound: it has ended.
func (p *Process) Kill(ctx context.Context) error { return p.signal(ctx, pb.Signal_SIGNAL_SIGKILL) }

// Terminate asks the command to end with SIGTERM. ErrNotFound: it has ended.
func (p *Process) Terminate(ctx context.Context) error {
	return p.signal(ctx, pb.Signal_SIGNAL_SIGTERM)
}

func (p *Process) signal(ctx context.Context, sig pb.Signal) error {
	req := &pb.SendSignalRequest{Process: p.selector(), Signal: sig}
	if _, err := p.rpc.SendSignal(ctx, connect.NewRequest(req)); err != nil {
		return fmt.Errorf("signal process %d in sandbox %s: %w", p.pid, p.sandbox.ID, rpcError(err))
	}
	return nil
}

// Resize tells the command's terminal its new size.
func (p *Process) Resize(ctx context.Context, size Size) error {
	req := &pb.UpdateRequest{Process: p.selector(), Pty: size.wire()}
	if _, err := p.rpc.Update(ctx, connect.NewRequest(req)); err != nil {
		return fmt.Errorf("resize the terminal of process %d in sandbox %s: %w", p.pid, p.sandbox.ID, rpcError(err))
	}
	return nil
}

func (p *Process) selector() *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: p.pid}}
}

// feed copies Stdin to the command until either ends. Wait cancels ctx; it does
// not wait for feed, because nothing can interrupt a Read.
func (p *Process) feed(ctx context.Context) {
	in := startGather(p.command.Stdin)
	defer in.stop()
	taken, _ := p.command.Stdin.(interface{ Taken(n int) })
	var err error
	for err == nil {
		var b []byte
		if b, err = in.next(); err == nil {
			err = p.send(ctx, b)
			if err == nil && taken != nil {
				taken.Taken(len(b))
			}
		}
	}
	if err != io.EOF && ctx.Err() == nil && !wantsNoMore(err) {
		p.mu.Lock()
		p.inputErr = rpcError(err)
		p.mu.Unlock()
	}
	if p.command.Terminal == nil {
		_, _ = p.rpc.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: p.selector()}))
	}
}

func (p *Process) send(ctx context.Context, b []byte) error {
	input := &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: b}}
	if p.command.Terminal != nil {
		input = &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: b}}
	}
	_, err := p.rpc.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: p.selector(), Input: input}))
	return err
}

// wantsNoMore reports whether the agent refused input because the command has
// ended or closed its input, which a writer to a pipe ignores too.
func wantsNoMore(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodeInternal: // the last of older servers
		return true
	}
	return false
}
