package supervisor

import (
	"bytes"
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
	"github.com/drowse-dev/drowse/internal/human"
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

// succeedHost makes this server the host of an agent that knows another one by
// token.
func (s *Supervisor) succeedHost(ctx context.Context, inst runtime.Instance, id, token string) error {
	body, err := json.Marshal(agentapi.InitRequest{HostSecret: s.agentToken(id)})
	if err != nil {
		return err
	}
	return callAgentAs(ctx, inst, token, http.MethodPost, "/init", body, nil)
}

// What an agent may say: the guest is hostile.
const (
	maxAgentHeader  = 16 << 10
	maxAgentAnswer  = 2 << 20   // more than the longest true report of activity
	maxAgentMessage = 128 << 10 // more than the longest chunk of output
	maxAgentError   = 300       // bytes of its words in an error
)

// agentClient returns a client for one request to the agent, or a few. It goes
// nowhere else, whatever it is told.
func agentClient(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxAgentHeader,
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// agentError is an error with words of the agent in it, as it may be kept,
// logged and shown.
type agentError struct{ cause error }

func (e agentError) Error() string { return human.Line(e.cause.Error(), maxAgentError) }
func (e agentError) Unwrap() error { return e.cause }

var errRuntimeExited = errors.New("the runtime exited")

// callAgent does one private request to the agent of a runtime.
func (s *Supervisor) callAgent(ctx context.Context, inst runtime.Instance, id, method, path string, body []byte, answer any) error {
	return callAgentAs(ctx, inst, s.agentToken(id), method, path, body, answer)
}

// callAgentAs is callAgent with the secret by which an agent knows its host. It
// ends with the runtime, whose network just falls silent.
func callAgentAs(ctx context.Context, inst runtime.Instance, token, method, path string, body []byte, answer any) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-inst.Exited():
			cancel(errRuntimeExited)
		case <-ctx.Done():
		}
	}()
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(agentapi.HeaderInit, token)
	client := agentClient(func(ctx context.Context) (net.Conn, error) { return dialPatiently(ctx, inst, agentapi.Port) })
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", path, agentError{err})
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s: the agent answered %d", path, resp.StatusCode)
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxAgentAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("%s: %w", path, agentError{err})
	}
	return nil
}

// activityAnswer is agentapi.Activity as a hostile agent may send it: with no
// more in it than a true one has, however much there was. An array takes what
// it has room for; a slice would take a hundred times the answer's length.
type activityAnswer struct {
	Now       time.Time                                `json:"now"`
	Processes [agentapi.MaxProcesses]*agentapi.Process `json:"processes"`
	Leases    [agentapi.MaxLeases]*agentapi.HeldWork   `json:"leases"`
	LastEnd   time.Time                                `json:"lastEnd"`
}

// activity returns what was said, fit to be kept and shown.
func (a *activityAnswer) activity() agentapi.Activity {
	seen := agentapi.Activity{Now: a.Now, LastEnd: a.LastEnd}
	for _, p := range a.Processes {
		if p != nil {
			p.Command = human.Line(p.Command, agentapi.MaxCommand)
			seen.Processes = append(seen.Processes, *p)
		}
	}
	for _, l := range a.Leases {
		if l != nil {
			l.ID = human.Line(l.ID, agentapi.MaxReason)
			l.Reason = human.Line(l.Reason, agentapi.MaxReason)
			seen.Leases = append(seen.Leases, *l)
		}
	}
	return seen
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
	if err != nil {
		err = agentError{err}
	}
	s.log.Info("hook "+name, "sandbox", sb.ID, "dur", time.Since(began), "err", err)
}

// execAsRoot runs a command to its end, or kills it when ctx ends.
func (s *Supervisor) execAsRoot(ctx context.Context, inst runtime.Instance, sb store.Sandbox, command string) error {
	web := agentClient(func(ctx context.Context) (net.Conn, error) { return inst.Dial(ctx, agentapi.Port) })
	client := processconnect.NewProcessClient(web, "http://agent", connect.WithReadMaxBytes(maxAgentMessage))
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
			return nil, errRuntimeExited
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(agentPoll):
		}
	}
}
