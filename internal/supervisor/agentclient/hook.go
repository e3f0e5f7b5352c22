package agentclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// hookTag names a hook's process to the agent.
const hookTag = "drowse-hook"

// hookGrace bounds the killing of a hook that did not end in time.
const hookGrace = time.Second

// RunAsRoot runs a command inside to its end, or kills it when ctx ends. token is
// what the agent wants of everybody; empty for none.
func (a Agent) RunAsRoot(ctx context.Context, token, command string) error {
	if err := a.run(ctx, token, command); err != nil {
		return Error{err}
	}
	return nil
}

func (a Agent) run(ctx context.Context, token, command string) error {
	web := Client(func(ctx context.Context) (net.Conn, error) { return a.inst.Dial(ctx, agentapi.Port) })
	agent := processconnect.NewProcessClient(web, "http://agent", agentpb.Bounded(maxMessage))
	start := &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", command}}, Tag: new(hookTag)}
	stream, err := agent.Start(ctx, asRoot(token, start))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if end := stream.Msg().GetEvent().GetEnd(); end != nil {
			if end.GetExitCode() != 0 || !end.GetExited() {
				return errors.New(end.GetStatus())
			}
			return nil
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("no end: %w", stream.Err())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hookGrace)
	defer cancel()
	kill := &process.SendSignalRequest{
		Process: &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: hookTag}},
		Signal:  process.Signal_SIGNAL_SIGKILL,
	}
	if _, err := agent.SendSignal(ctx, asRoot(token, kill)); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("it did not end in time and could not be killed: %w", err)
	}
	return errors.New("it did not end in time and was killed")
}

// asRoot makes a request to the agent in the name of root.
func asRoot[T any](token string, message *T) *connect.Request[T] {
	req := connect.NewRequest(message)
	req.Header().Set("Authorization", "Basic cm9vdDo=") // no password: it selects the user
	if token != "" {
		req.Header().Set(agentapi.HeaderAccessToken, token)
	}
	return req
}
