package mitos

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/human"
)

const (
	defaultExecTime = 30 * time.Second
	// deadlineCode is the exit code of a command that was killed at its deadline,
	// which the SDK makes an exception of.
	deadlineCode = 124
	// notStarted is that of one that could not be started, as in a shell.
	notStarted = 127
	// keepalive is how often the agent says that a quiet command still runs, in
	// seconds.
	keepalive = "50"
	// killGrace bounds the last call for a command whose caller has gone.
	killGrace = 5 * time.Second
)

// output is a piece of what a command writes. In JSON, bytes are base64.
type output struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
}

// exited is the end of a command.
type exited struct {
	Exit exit `json:"exit"`
}

type exit struct {
	ExitCode   int     `json:"exitCode"`
	ExecTimeMS float64 `json:"execTimeMs,omitempty"`
	Error      string  `json:"error,omitempty"` // why it was not started
}

// execStream runs a command to its end. If the client goes away first, the command
// is killed: so its SDK stops what it runs in the background.
func execStream(s *server, c *call) error {
	words, err := c.message(execBody)
	if err != nil {
		return err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(c.ctx, seconds(words, defaultExecTime))
	defer cancel()
	r := running{guest: s.guest(c).Guest}
	err = r.start(ctx, startOf(words))
	end := exit{}
	switch refusal, _ := errors.AsType[*connect.Error](err); {
	case err == nil:
		end, err = r.follow(c.out)
	case refusal != nil && !asksForMore(err) && notStartable(refusal):
		end, err = exit{ExitCode: notStarted, Error: human.Line(refusal.Message(), mostWords)}, nil
	}
	if err != nil && isDeadline(ctx, c.ctx, err) {
		end, err = exit{ExitCode: deadlineCode}, nil
	}
	if err != nil {
		if c.ctx.Err() != nil && !asksForMore(err) || errors.Is(err, errGone) {
			r.kill(c.ctx)
		}
		return err
	}
	end.ExecTimeMS = milliseconds(time.Since(begin))
	return c.out.finish(exited{end})
}

// seconds returns the time that a call grants.
func seconds(words map[string]body.Said, otherwise time.Duration) time.Duration {
	if w, given := words["timeoutSeconds"]; given {
		return w.Value.(time.Duration)
	}
	return otherwise
}

// asksForMore reports whether an error is one of the supervisor.
func asksForMore(err error) bool {
	_, ours := asError(err)
	return ours
}

// notStartable reports whether the agent refused a command because of what it is.
func notStartable(e *connect.Error) bool {
	switch e.Code() {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeFailedPrecondition:
		return true
	}
	return false
}

// isDeadline reports whether an error is the end of ctx by its time, and not by
// that of the call.
func isDeadline(ctx, call context.Context, err error) bool {
	if asksForMore(err) || call.Err() != nil {
		return false
	}
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || connect.CodeOf(err) == connect.CodeDeadlineExceeded
}

// startOf returns what the agent is to run: a command alone goes through a shell,
// one with arguments does not.
func startOf(words map[string]body.Said) *processpb.StartRequest {
	p := &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", words["command"].Value.(string)}}
	if w, given := words["args"]; given && len(w.Value.([]string)) > 0 {
		p.Cmd, p.Args = words["command"].Value.(string), w.Value.([]string)
	}
	if w, given := words["env"]; given {
		p.Envs = w.Value.(map[string]string)
	}
	if w, given := words["cwd"]; given {
		p.Cwd = new(w.Value.(string))
	}
	return &processpb.StartRequest{Process: p, Stdin: new(false)}
}

// running is a process in a sandbox.
type running struct {
	guest guest.Guest
	*guest.Process
}

// start returns when the process runs.
func (r *running) start(ctx context.Context, what *processpb.StartRequest) (err error) {
	req := connect.NewRequest(what)
	req.Header().Set(agentapi.HeaderKeepalive, keepalive)
	r.Process, err = r.guest.Start(ctx, req)
	return err
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// sender is where output goes.
type sender interface{ send(message any) error }

// follow passes the output on until the process has ended.
func (r *running) follow(to sender) (exit, error) {
	defer r.Close()
	for {
		event, err := r.Next()
		if err != nil {
			return exit{}, err
		}
		if end := event.GetEnd(); end != nil {
			return exit{ExitCode: codeOf(end)}, nil
		}
		piece := output{Stdout: event.GetData().GetStdout(), Stderr: event.GetData().GetStderr()}
		if pty := event.GetData().GetPty(); len(pty) > 0 {
			piece.Stdout = pty
		}
		if len(piece.Stdout)+len(piece.Stderr) == 0 {
			continue
		}
		if err := to.send(piece); err != nil {
			return exit{}, err
		}
	}
}

// codeOf is the code by which a shell would report an end.
func codeOf(end *processpb.ProcessEvent_EndEvent) int {
	if signal := agentpb.SignalOf(end.GetStatus()); signal != 0 && !end.GetExited() {
		return 128 + int(signal)
	}
	return int(end.GetExitCode())
}

func (r *running) selector() *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: r.PID}}
}

// kill ends the process, if it was started, for a caller who has gone.
func (r *running) kill(ctx context.Context) {
	if r.Process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
	defer cancel()
	_, _ = r.guest.Processes().SendSignal(ctx, connect.NewRequest(&processpb.SendSignalRequest{Process: r.selector(), Signal: processpb.Signal_SIGNAL_SIGKILL}))
}
