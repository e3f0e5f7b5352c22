package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/agent/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
)

// agentPoll is how often an agent that does not listen yet is tried again.
const agentPoll = 2 * time.Millisecond

// initAgent waits for the agent to answer and tells it everything that differs
// in this generation. When it returns, the sandbox can serve.
func (s *Supervisor) initAgent(ctx context.Context, inst runtime.Instance, sb store.Sandbox, generation int64) error {
	token := ""
	if sb.Config.Secure {
		token = s.EnvdToken(sb.ID)
	}
	body, err := json.Marshal(agentapi.InitRequest{
		EnvVars:     sb.Config.Env,
		AccessToken: &token,
		Timestamp:   time.Now().UTC(),
		DefaultUser: "user",
		SandboxID:   sb.ID,
		TemplateID:  sb.Config.Template,
		Generation:  &generation,
	})
	if err != nil {
		return err
	}
	return s.callAgent(ctx, inst, sb.ID, http.MethodPost, "/init", body, nil)
}

// hookTag names a hook's process to the agent.
const hookTag = "drowse-hook"

// hookGrace bounds the killing of a hook that did not end in time.
const hookGrace = time.Second

// runHook runs a command inside, as root, for as long as its budget allows.
// Then it is killed, before the sandbox is frozen or serves.
func (s *Supervisor) runHook(ctx context.Context, inst runtime.Instance, sb store.Sandbox, name string, h store.Hook) {
	if h.Command == "" || inst == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.Budget)
	defer cancel()
	began := time.Now()
	err := s.execAsRoot(ctx, inst, sb, h.Command)
	s.log.Info("hook "+name, "sandbox", sb.ID, "dur", time.Since(began), "err", err)
}

// execAsRoot runs a command to its end, or kills it when ctx ends.
func (s *Supervisor) execAsRoot(ctx context.Context, inst runtime.Instance, sb store.Sandbox, command string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return inst.Dial(ctx, agentapi.Port)
	}}
	client := processconnect.NewProcessClient(&http.Client{Transport: transport}, "http://agent", connect.WithReadMaxBytes(maxAgentAnswer))
	start := &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", command}}, Tag: new(hookTag)}
	stream, err := client.Start(ctx, asRoot(s, sb, start))
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
	if _, err := client.SendSignal(ctx, asRoot(s, sb, kill)); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("it did not end in time and could not be killed: %w", err)
	}
	return errors.New("it did not end in time and was killed")
}

// asRoot makes a request to the agent in the name of root.
func asRoot[T any](s *Supervisor, sb store.Sandbox, message *T) *connect.Request[T] {
	req := connect.NewRequest(message)
	req.Header().Set("Authorization", "Basic cm9vdDo=") // no password: it selects the user
	if sb.Config.Secure {
		req.Header().Set(agentapi.HeaderAccessToken, s.EnvdToken(sb.ID))
	}
	return req
}

// dialPatiently connects to a port that will be listened on soon.
func dialPatiently(ctx context.Context, inst runtime.Instance, port int) (net.Conn, error) {
	for {
		conn, err := inst.Dial(ctx, port)
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-inst.Exited():
			return nil, errors.New("the runtime exited")
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(agentPoll):
		}
	}
}
