package mitos

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// classes are mitos' codes for the classes of error; its SDK makes classes of them.
// Mitos has no words for conflicts: those keep drowse's code, which the SDK passes on.
var classes = map[errdef.Class]string{
	errdef.NotFound:     "not_found",
	errdef.Invalid:      "invalid_input",
	errdef.Exhausted:    "rate_limited",
	errdef.Unavailable:  "internal",
	errdef.Fenced:       "internal",
	errdef.Unauthorized: "unauthorized",
	errdef.Forbidden:    "forbidden",
	errdef.Unsupported:  "unimplemented",
	errdef.Unfit:        "unimplemented",
	errdef.Internal:     "internal",
}

// codes are mitos' words for codes of drowse that are not those of their class.
var codes = map[string]string{
	"body_too_large":    "body_too_large",
	"canceled":          "canceled",
	"exec_timeout":      "deadline_exceeded",
	"key_limit_reached": "quota_exceeded",
	"timeout_too_large": "timeout_too_large",
}

// statuses are those that are others than in the other dialects.
var statuses = map[string]int{
	"canceled":     499,
	"exec_timeout": http.StatusGatewayTimeout,
}

// remedies are the next steps that are others for users of mitos' SDK.
var remedies = map[string]string{
	"not_resumable": "call resume() first",
	"not_running":   "call resume() first",
}

// expired are the ends that mitos calls idle_timeout.
var expired = map[lifecycle.Reason]bool{
	lifecycle.TimeoutExpired: true, lifecycle.IdleTimeout: true, lifecycle.MaxLifetimeExceeded: true, lifecycle.PausedExpired: true,
}

// invalidJSON is an error of a body that is no JSON.
type invalidJSON struct{ error }

func (e invalidJSON) Unwrap() error { return e.error }

// problem is an error as a client sees it.
type problem struct {
	status      int
	code        string
	Message     string
	Cause       string
	Remediation string
	Context     map[string]any
}

// restView is the body of an error of a REST route. The SDK fails on a cause that
// is null.
type restView struct {
	Error restError `json:"error"`
}

type restError struct {
	Code        string         `json:"code"`
	Message     string         `json:"message"`
	Cause       string         `json:"cause"`
	Remediation string         `json:"remediation"`
	Context     map[string]any `json:"context"`
}

// rpcError is an error of a call by RPC.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// fail answers a call with an error: in the last frame of a stream that has begun.
func (c *call) fail(err error) {
	if !c.out.begun {
		c.failed(err).WriteTo(c.w)
		return
	}
	p := c.problem(err)
	c.out.end(&rpcError{p.code, p.text()})
}

// failed makes the response to an error.
func (c *call) failed(err error) httpapi.Response {
	p := c.problem(err)
	header := http.Header{}
	reason, other := p.Context["error_code"].(string)
	if !other {
		reason = p.code
	}
	if (p.status == http.StatusServiceUnavailable || p.status == http.StatusTooManyRequests) && !errdef.Lasting(reason) {
		header.Set("Retry-After", "1")
	}
	if allowed, ok := p.Context["allowed"].([]string); ok && p.status == http.StatusMethodNotAllowed {
		header.Set("Allow", strings.Join(allowed, ", "))
	}
	if c.route == nil && strings.HasPrefix(c.r.URL.Path, service) || c.route != nil && c.route.kind != rest {
		return encode(p.status, header, rpcError{p.code, p.text()})
	}
	return encode(p.status, header, restView{restError{p.code, p.Message, p.Cause, p.Remediation, p.Context}})
}

func encode(status int, header http.Header, body any) httpapi.Response {
	res, err := httpapi.Encode(status, header, body)
	if err != nil {
		panic("internal error: mitos: an error that cannot be encoded: " + err.Error())
	}
	return res
}

// text is all of an error in one, for a form that has one text.
func (p problem) text() string { return p.Message + ": " + p.Remediation }

// problem says an error in mitos' words, and logs it if it is ours.
func (c *call) problem(err error) problem {
	e := c.classify(err)
	p := problem{status: cmp.Or(statuses[e.Code], errdef.Status(e)), code: cmp.Or(codes[e.Code], classes[e.Class]), Message: e.Message, Context: map[string]any{}}
	if _, bad := errors.AsType[invalidJSON](err); bad {
		p.code = "invalid_json"
	}
	p.code = cmp.Or(p.code, e.Code)
	entry, _ := errdef.Lookup(e.Code)
	p.Remediation = remedyOf(e, entry.Remedy)
	p.Cause = cmp.Or(entry.Meaning, e.Message)
	if e.Err != nil && e.Err.Error() != "" && e.Class != errdef.Internal {
		p.Cause = e.Err.Error()
	}
	if reason, ended := e.Context["reason"].(lifecycle.Reason); ended && lifecycle.Ended(e) {
		p.Cause = string(reason)
		if expired[reason] {
			p.status, p.code = http.StatusGone, "idle_timeout"
			p.Remediation = "create a new sandbox, or call set_timeout earlier"
		}
	}
	maps.Copy(p.Context, e.Context)
	if c.named != "" {
		p.Context["sandbox"] = c.named
	}
	if e.Code == "timeout_too_large" {
		p.Context["requested_s"], p.Context["max_timeout_s"] = e.Context["requestedSeconds"], e.Context["allowedSeconds"]
	}
	if p.code != e.Code {
		p.Context["error_code"] = e.Code
	}
	return p
}

// remedyOf returns the next step. Those that are the same for all errors of a code
// point to the documents of other dialects for some.
func remedyOf(e *errdef.Error, usual string) string {
	switch _, meant := e.Context["meant"]; {
	case remedies[e.Code] != "":
		return remedies[e.Code]
	case e.Code == "unknown_field" && !meant:
		return "leave it out"
	case e.Code == "invalid_request" && e.Remedy == "":
		return "correct what the message names"
	}
	return cmp.Or(e.Remedy, usual, "see the message")
}

// classify returns the error as the client may see it.
func (c *call) classify(err error) *errdef.Error {
	_, ok := asError(err)
	inside, isRPC := errors.AsType[*connect.Error](err)
	switch {
	case dialect.Panicked(err):
	case c.r.Context().Err() != nil, errors.Is(err, errGone):
		return errdef.New(errdef.Unavailable, "canceled", "the request was canceled by the client") // nobody reads it
	case !ok && isRPC:
		err = ofAgent(inside)
	case !ok && c.ctx.Err() != nil:
		return errdef.New(errdef.Unauthorized, "api_key_unknown", "the API key was revoked or has expired while the call was under way")
	}
	return dialect.Tell(c.r, c.log, err)
}

// mostWords bounds what an error says in the words of a sandbox, in bytes.
const mostWords = 500

// agentClasses are the classes of the errors of agents.
var agentClasses = map[connect.Code]errdef.Class{
	connect.CodeInvalidArgument: errdef.Invalid, connect.CodeOutOfRange: errdef.Invalid, connect.CodeFailedPrecondition: errdef.Invalid,
	connect.CodeNotFound: errdef.NotFound, connect.CodeAlreadyExists: errdef.Exists, connect.CodePermissionDenied: errdef.Forbidden,
	connect.CodeResourceExhausted: errdef.Exhausted, connect.CodeUnimplemented: errdef.Unsupported,
}

// ofAgent is what an error of the agent in the sandbox is. Its words are those of
// a guest.
func ofAgent(e *connect.Error) *errdef.Error {
	class, known := agentClasses[e.Code()]
	if !known {
		class = errdef.Unavailable
	}
	return errdef.New(class, "agent_refused", "the sandbox says: %s", human.Line(e.Message(), mostWords)).
		WithRemedy("correct what the message names")
}

func asError(err error) (*errdef.Error, bool) { return errors.AsType[*errdef.Error](err) }
