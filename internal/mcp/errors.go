package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// failure is what an agent is told of a call that failed.
type failure struct {
	Message string `json:"message" jsonschema:"what happened"`
	Code    string `json:"code,omitempty" jsonschema:"stable name of the kind of error"`
	State   string `json:"sandbox_state,omitempty" jsonschema:"state of the sandbox now"`
	Next    string `json:"next_step,omitempty" jsonschema:"what to do about it"`
}

// Error returns the failure as JSON, which is the text of the tool's result.
func (f *failure) Error() string {
	text, err := encode(map[string]*failure{"error": f})
	if err != nil {
		return f.Message
	}
	return text
}

// refused is an error of the input.
func refused(next, format string, args ...any) error {
	return &failure{Message: fmt.Sprintf(format, args...), Code: "invalid_argument", Next: next}
}

// steps are what to do in the words of the tools, by the class of the error. The
// first that fits counts.
var steps = []struct {
	class error
	step  string
}{
	{client.ErrUnreachable, "no drowse server answers: start one with drowse serve, or point this MCP server to it with DROWSE_URL or --url"},
	{client.ErrUnauthorized, "the API key is missing or not valid: set DROWSE_API_KEY for this MCP server; over HTTP, send the key as a bearer token"},
	{client.ErrNotRunning, "the sandbox sleeps and calls do not wake it, or it has ended: call resume, or why to see what happened"},
	{client.ErrInterrupted, "the sandbox was paused or killed meanwhile, or the server stopped; whether the command runs on is not known: call why"},
	{client.ErrUnavailable, "try again in a moment"},
}

// codes are steps by the server's code, where its own words name no tool.
var codes = map[string]string{
	"sandbox_not_found":  "list_sandboxes lists the sandboxes; create_sandbox makes one",
	"not_paused":         "call pause first",
	"not_running":        "call resume first",
	"hold_not_found":     "why lists the holds",
	"template_not_found": "list_templates lists the templates",
	"snapshot_not_found": "list_snapshots lists the snapshots; snapshot takes one",
	"unauthenticated":    "the sandbox has no such user: leave out user, or name another, such as root",
}

// stateWithin bounds the look at a sandbox after something failed.
const stateWithin = 5 * time.Second

// explain turns the error of a call into a failure, with the sandbox's state now.
func (c call) explain(ctx context.Context, id string, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{Message: plain(err.Error())}
	for _, s := range steps {
		if errors.Is(err, s.class) {
			f.Next = s.step
			break
		}
	}
	e, ok := errors.AsType[*client.Error](err)
	if ok {
		f.Code = e.Code
		f.Next = cmp.Or(codes[e.Code], f.Next, plain(e.Remediation))
	}
	if id == "" || errors.Is(err, client.ErrUnreachable) || f.Next == steps[1].step {
		return f
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateWithin)
	defer cancel()
	switch info, err := c.Find(ctx, id); {
	case errors.Is(err, client.ErrNotFound):
		f.State, f.Next = "not found", codes["sandbox_not_found"]
	case err == nil && info.Tombstone != nil:
		f.State = fmt.Sprintf("%s: %s", info.State, info.Tombstone.Reason)
		f.Next = "it cannot come back: create_sandbox makes a new one, also from a snapshot"
	case err == nil:
		f.State = stateOf(info)
		if e != nil && e.Status == http.StatusNotFound {
			f.Next = cmp.Or(f.Next, "check the path: list_files lists a directory")
		}
	}
	return f
}

// stateOf names the state, with the operation in flight.
func stateOf(i client.Info) string {
	if i.Phase == "" {
		return string(i.State)
	}
	return fmt.Sprintf("%s (%s)", i.State, i.Phase)
}
