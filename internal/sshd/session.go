package sshd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// What a client may set of the environment of one session.
const (
	maxVariables     = 200
	maxVariableBytes = 64 << 10
)

// exitFailed is the exit status of a session whose program did not run, or of
// which it is not known how it ended; as of drowse exec.
const exitFailed = 125

// session is one program that a client starts, and what it asked for before.
type session struct {
	ctx   context.Context
	guest *client.Sandbox
	ch    ssh.Channel
	in    *input
	env   map[string]string
	bytes int          // of env
	size  *client.Size // of the terminal that was asked for; nil for none
	term  string

	running sync.WaitGroup
	mu      sync.Mutex
	begun   bool
	process *client.Process // nil until it runs
	window  *client.Size    // what the client's window has become since; nil for no change

	fitting sync.Mutex // held while the terminal is resized; taken before mu
}

func serveSession(ctx context.Context, guest *client.Sandbox, from *intake, offer ssh.NewChannel) {
	ch, requests, err := offer.Accept()
	if err != nil {
		return
	}
	in := from.open(ch)
	defer in.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errGone)
	s := &session{ctx: ctx, guest: guest, ch: ch, in: in, env: map[string]string{}}
	for r := range requests {
		ok := s.handle(r)
		if r.WantReply {
			_ = r.Reply(ok.done, nil)
		}
		if ok.then != nil {
			s.running.Go(ok.then)
		}
	}
	cancel(errGone) // the client has closed the session
	s.running.Wait()
}

// outcome is what a request of a client leads to.
type outcome struct {
	done bool
	then func() // after the answer
}

func (s *session) handle(r *ssh.Request) outcome {
	switch r.Type {
	case "env":
		var v struct{ Name, Value string }
		return outcome{done: ssh.Unmarshal(r.Payload, &v) == nil && s.setEnv(v.Name, v.Value)}
	case "pty-req":
		var v struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}
		if ssh.Unmarshal(r.Payload, &v) != nil || s.started() {
			return outcome{}
		}
		s.term, s.size = v.Term, sizeOf(v.Cols, v.Rows)
		return outcome{done: true}
	case "window-change":
		var v struct{ Cols, Rows, Width, Height uint32 }
		if ssh.Unmarshal(r.Payload, &v) != nil {
			return outcome{}
		}
		s.mu.Lock()
		s.window = sizeOf(v.Cols, v.Rows)
		s.mu.Unlock()
		return outcome{done: true, then: s.fit}
	case "signal":
		var v struct{ Name string }
		if ssh.Unmarshal(r.Payload, &v) != nil {
			return outcome{}
		}
		return outcome{done: true, then: func() { s.signal(v.Name) }}
	case "shell":
		return s.start(client.Command{Args: []string{"/bin/bash", "-l"}, Terminal: s.size})
	case "exec":
		var v struct{ Command string }
		if ssh.Unmarshal(r.Payload, &v) != nil {
			return outcome{}
		}
		return s.start(client.Command{Args: []string{"/bin/bash", "-c", v.Command}, Terminal: s.size})
	case "subsystem":
		var v struct{ Name string }
		if ssh.Unmarshal(r.Payload, &v) != nil || v.Name != "sftp" {
			return outcome{}
		}
		return s.start(client.Command{Args: []string{agentapi.Program, agentapi.SFTPProgram}})
	}
	return outcome{} // such as the client's agent and its display
}

// sizeOf is a terminal's size; of one that does not know its own, the usual one.
func sizeOf(cols, rows uint32) *client.Size {
	const most = 10_000
	if cols == 0 || rows == 0 {
		cols, rows = 80, 24
	}
	return &client.Size{Cols: int(min(cols, most)), Rows: int(min(rows, most))}
}

func (s *session) setEnv(name, value string) bool {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") || s.started() {
		return false
	}
	if len(s.env) >= maxVariables || s.bytes+len(name)+len(value) > maxVariableBytes {
		return false
	}
	s.env[name] = value
	s.bytes += len(name) + len(value)
	return true
}

func (s *session) started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// start runs a program, once.
func (s *session) start(cmd client.Command) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return outcome{}
	}
	s.begun = true
	return outcome{done: true, then: func() { s.run(cmd) }}
}

func (s *session) run(cmd client.Command) {
	defer finish(s.ch)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.env, s.in, s.ch, s.ch.Stderr()
	start := s.guest.Start
	if cmd.Terminal != nil {
		if s.term != "" {
			s.env["TERM"] = s.term
		}
		start = s.guest.Shell // which sets what a terminal needs
	}
	p, err := start(s.ctx, cmd)
	if err != nil {
		s.failed(err)
		return
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	s.running.Go(s.fit) // the window may have changed before
	exit, err := p.Wait()
	switch {
	case s.ctx.Err() != nil:
		hangUp(s.ctx, p, cmd.Terminal != nil)
	case err != nil && exit == (client.Exit{}):
		s.failed(err)
	default:
		s.exited(exit)
	}
}

// failed says why a program did not run, or that it is not known how it ended.
func (s *session) failed(err error) {
	fmt.Fprintf(s.ch.Stderr(), "drowse: %s\r\n", printable(err.Error()))
	s.exitStatus(exitFailed)
}

func (s *session) exited(exit client.Exit) {
	if exit.Reason != "" {
		fmt.Fprintf(s.ch.Stderr(), "drowse: %s\r\n", printable(exit.Reason))
	}
	name, ok := signalNames[exit.Signal]
	if !ok {
		s.exitStatus(exit.ShellCode())
		return
	}
	_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Name    string
		Dumped  bool
		Message string
		Lang    string
	}{Name: name, Message: exit.Status}))
}

func (s *session) exitStatus(code int) {
	_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

func (s *session) program() *client.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// fit makes the terminal, if there is one, as large as the client's window is now.
func (s *session) fit() {
	s.fitting.Lock()
	defer s.fitting.Unlock()
	s.mu.Lock()
	p, window := s.process, s.window
	s.mu.Unlock()
	if p != nil && window != nil {
		_ = p.Resize(s.ctx, *window) // it has none, or the next change tries again
	}
}

// signal passes on those of a client's signals that a sandbox's agent sends.
func (s *session) signal(name string) {
	p := s.program()
	switch {
	case p == nil:
	case name == "KILL":
		_ = p.Kill(s.ctx)
	case name == "TERM" || name == "HUP" || name == "INT":
		_ = p.Terminate(s.ctx)
	}
}

// signalNames are the names of RFC 4254, section 6.10, by Linux's numbers, which
// are those of a sandbox wherever its client runs.
var signalNames = map[syscall.Signal]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE",
	14: "ALRM", 15: "TERM",
}
