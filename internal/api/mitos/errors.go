package mitos

import (
	"cmp"
	"context"
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

// said is how mitos says an error: a status of HTTP, and a code that its SDK
// makes a class of.
type said struct {
	status int
	code   string // empty for drowse's own code
}

// classes says it for each class of error. Mitos has no words for conflicts; its
// SDK passes codes through that it does not know.
var classes = map[errdef.Class]said{
	errdef.NotFound:     {http.StatusNotFound, "not_found"},
	errdef.Exists:       {http.StatusConflict, ""},
	errdef.Invalid:      {http.StatusBadRequest, "invalid_input"},
	errdef.WrongState:   {http.StatusConflict, ""},
	errdef.Conflict:     {http.StatusConflict, ""},
	errdef.Exhausted:    {http.StatusTooManyRequests, "rate_limited"},
	errdef.Unavailable:  {http.StatusServiceUnavailable, "internal"},
	errdef.Unauthorized: {http.StatusUnauthorized, "unauthorized"},
	errdef.Forbidden:    {http.StatusForbidden, "forbidden"},
	errdef.Unsupported:  {http.StatusNotImplemented, "unimplemented"},
	errdef.Unfit:        {http.StatusNotImplemented, "unimplemented"},
	errdef.Internal:     {http.StatusInternalServerError, "internal"},
}

// codes says it for those codes of drowse that mitos has words of its own for.
var codes = map[string]said{
	"body_timed_out":         {http.StatusRequestTimeout, "invalid_input"},
	"body_too_large":         {http.StatusRequestEntityTooLarge, "body_too_large"},
	"canceled":               {499, "canceled"},
	"exec_timeout":           {http.StatusGatewayTimeout, "deadline_exceeded"},
	"idempotency_key_reused": {http.StatusUnprocessableEntity, ""},
	"key_limit_reached":      {http.StatusTooManyRequests, "quota_exceeded"},
	"method_not_allowed":     {http.StatusMethodNotAllowed, "invalid_input"},
	"timed_out":              {http.StatusGatewayTimeout, "internal"},
	"timeout_too_large":      {http.StatusBadRequest, "timeout_too_large"},
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
	said
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
	p := problem{said: sayingOf(e), Message: e.Message, Context: map[string]any{}}
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
			p.said = said{http.StatusGone, "idle_timeout"}
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

func sayingOf(e *errdef.Error) said {
	if as, ok := codes[e.Code]; ok {
		return as
	}
	if as, ok := classes[e.Class]; ok {
		return as
	}
	return classes[errdef.Internal]
}

// classify returns the error as the client may see it.
func (c *call) classify(err error) *errdef.Error {
	switch {
	case dialect.Panicked(err):
		return c.hidden(err)
	case c.r.Context().Err() != nil, errors.Is(err, errGone):
		return errdef.New(errdef.Unavailable, "canceled", "the request was canceled by the client") // nobody reads it
	}
	e, ok := errors.AsType[*errdef.Error](err)
	if inside, isRPC := errors.AsType[*connect.Error](err); !ok && isRPC {
		e, ok = ofAgent(inside), true
	}
	switch {
	case !ok && c.ctx.Err() != nil:
		return errdef.New(errdef.Unauthorized, "api_key_unknown", "the API key was revoked or has expired while the call was under way")
	case !ok && errors.Is(err, context.DeadlineExceeded):
		c.log.Warn("request timed out", "err", err)
		return errdef.New(errdef.Unavailable, "timed_out", "it took too long")
	case !ok || e.Class == errdef.Internal:
		return c.hidden(err)
	case e.Class == errdef.Unavailable, e.Class == errdef.Unfit:
		c.log.Warn("request could not be served", "err", err)
	}
	return e
}

// hidden is what a client sees of an error of ours.
func (c *call) hidden(err error) *errdef.Error {
	id := dialect.Hide(c.log, err)
	return errdef.New(errdef.Internal, "internal_server_error", "internal error: the server's log has the cause under request %s", id).With("request", id)
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
