// Package agentclient is the server's client of the agents inside of sandboxes. A
// guest is hostile: an answer takes bounded time and memory, whatever comes, and
// what a guest said is fit to be kept, logged and shown.
package agentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Agent is the agent of a runtime.
type Agent struct {
	inst   runtime.Instance
	secret string
}

// Of returns the agent of a runtime, which knows its host by a secret.
func Of(inst runtime.Instance, secret string) Agent { return Agent{inst, secret} }

// Init waits for the agent to answer, and tells it what differs from before.
func (a Agent) Init(ctx context.Context, req agentapi.InitRequest) error {
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	return a.call(ctx, http.MethodPost, "/init", body, nil)
}

// Sync makes the guest write back what it has not, and learn that it is about to
// sleep.
func (a Agent) Sync(ctx context.Context) error {
	return a.call(ctx, http.MethodPost, agentapi.PathSync, nil, nil)
}

// Activity asks what goes on inside, and tells how many bytes of traffic since
// it was last asked count for nothing. The times are by the guest's clock.
func (a Agent) Activity(ctx context.Context, ignored int64) (agentapi.Activity, error) {
	var said activityAnswer
	path := fmt.Sprintf("%s?%s=%d", agentapi.PathActivity, agentapi.ParamIgnored, ignored)
	if err := a.call(ctx, http.MethodGet, path, nil, &said); err != nil {
		return agentapi.Activity{}, err
	}
	return said.activity(), nil
}

// Relieve makes the agent end the largest processes, until they held so many
// bytes of memory, and returns which it says that it ended.
func (a Agent) Relieve(ctx context.Context, bytes int64) ([]agentapi.EndedProcess, error) {
	var said reliefAnswer
	path := fmt.Sprintf("%s?%s=%d", agentapi.PathRelieve, agentapi.ParamBytes, bytes)
	if err := a.call(ctx, http.MethodPost, path, nil, &said); err != nil {
		return nil, err
	}
	return said.ended(), nil
}

// Log asks for the lines of the agent's log after one of them. There are nils
// among them.
func (a Agent) Log(ctx context.Context, after int64) ([]*agentapi.LogLine, error) {
	var said logAnswer
	path := fmt.Sprintf("%s?%s=%d", agentapi.PathLog, agentapi.ParamAfter, after)
	err := a.call(ctx, http.MethodGet, path, nil, &said)
	return said.Lines[:], err
}

// What an agent may say: the guest is hostile.
const (
	maxHeader  = 16 << 10
	maxAnswer  = 2 << 20   // more than the longest true report of activity
	maxMessage = 128 << 10 // more than the longest chunk of output
	maxError   = 300       // bytes of its words in an error
)

// Client returns a client for one request to the agent, or a few. It goes
// nowhere else, whatever it is told.
func Client(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Error is an error with words of the agent in it, as it may be kept,
// logged and shown.
type Error struct{ cause error }

func (e Error) Error() string { return human.Line(e.cause.Error(), maxError) }

func (e Error) Unwrap() error { return e.cause }

// call does one private request to the agent. It ends with the runtime, whose
// network just falls silent.
func (a Agent) call(ctx context.Context, method, path string, body []byte, answer any) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-a.inst.Exited():
			cancel(runtime.ErrExited)
		case <-ctx.Done():
		}
	}()
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(agentapi.HeaderInit, a.secret)
	web := Client(func(ctx context.Context) (net.Conn, error) { return runtime.DialPatiently(ctx, a.inst, agentapi.Port) })
	resp, err := web.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", path, Error{err})
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return &StatusError{path, resp.StatusCode}
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("%s: %w", path, Error{err})
	}
	return nil
}

// Quote returns an error with words of a guest in it, fit to be kept and shown.
func Quote(err error) error { return Error{err} }
