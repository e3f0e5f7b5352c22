package v1

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// statuses maps the classes of error to HTTP.
var statuses = map[errdef.Class]int{
	errdef.NotFound:     http.StatusNotFound,
	errdef.Exists:       http.StatusConflict,
	errdef.Invalid:      http.StatusBadRequest,
	errdef.WrongState:   http.StatusConflict,
	errdef.Conflict:     http.StatusConflict,
	errdef.Exhausted:    http.StatusTooManyRequests,
	errdef.Unavailable:  http.StatusServiceUnavailable,
	errdef.Unauthorized: http.StatusUnauthorized,
	errdef.Forbidden:    http.StatusForbidden,
	errdef.Unsupported:  http.StatusNotImplemented,
	errdef.Unfit:        http.StatusNotImplemented,
	errdef.Internal:     http.StatusInternalServerError,
}

// exceptions are the codes for which HTTP has a status of its own.
var exceptions = map[string]int{
	"body_timed_out":         http.StatusRequestTimeout,
	"body_too_large":         http.StatusRequestEntityTooLarge,
	"idempotency_key_reused": http.StatusUnprocessableEntity,
	"method_not_allowed":     http.StatusMethodNotAllowed,
	"timed_out":              http.StatusGatewayTimeout,
}

func statusOf(e *errdef.Error) int {
	if status, ok := exceptions[e.Code]; ok {
		return status
	}
	if status, ok := statuses[e.Class]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// retryAfter is what a client is told to wait, in seconds, where trying again
// may help.
const retryAfter = "1"

// errorView is the body of every answer that is an error.
type errorView struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Code        string         `json:"code" doc:"Stable; GET /v1/errors has all of them."`
	Message     string         `json:"message" doc:"What happened and the state now, for people."`
	Cause       string         `json:"cause" doc:"The cause: the reason of an end, an underlying error, or the meaning of the code."`
	Remediation string         `json:"remediation" doc:"The next step."`
	Context     map[string]any `json:"context" doc:"Facts for programs: sandbox, state, phase, field, requested and allowed values."`
}

// failed makes the response to an error, and logs it if it is ours.
func (s *server) failed(c *call, err error) httpapi.Response {
	e := c.classify(err)
	body := errorDetail{Code: e.Code, Message: e.Message, Cause: s.cause(c, e), Remediation: remedyOf(e), Context: s.context(c, e)}
	header := dialect.Allowed(e)
	status := statusOf(e)
	if status == http.StatusServiceUnavailable && !errdef.Lasting(e.Code) || e.Code == auth.CodeRate {
		header.Set("Retry-After", retryAfter)
	}
	res, err := httpapi.Encode(status, header, errorView{body})
	if err != nil {
		panic("internal error: v1: an error that cannot be encoded: " + err.Error())
	}
	return res
}

// remedyOf returns the next step after an error: its own, or what is known of
// its code. Clients of other servers read it without looking whether it is
// there.
func remedyOf(e *errdef.Error) string {
	entry, _ := errdef.Lookup(e.Code)
	return cmp.Or(e.Remedy, entry.Remedy, "see the message")
}

// classify returns the error as the client may see it.
func (c *call) classify(err error) *errdef.Error {
	if errors.Is(err, context.Canceled) && c.r.Context().Err() != nil {
		return errdef.New(errdef.Unavailable, "canceled", "the request was canceled by the client") // nobody reads it
	}
	e, ok := errors.AsType[*errdef.Error](err)
	switch {
	case !ok && errors.Is(err, context.DeadlineExceeded):
		c.log.Warn("request timed out", "err", err)
		return errdef.New(errdef.Unavailable, "timed_out", "it took too long")
	case !ok || statusOf(e) == http.StatusInternalServerError:
		return internalError(dialect.Hide(c.log, err), e)
	case statusOf(e) == http.StatusServiceUnavailable, e.Class == errdef.Unfit:
		c.log.Warn("request could not be served", "err", err)
	}
	return e
}

// internalError hides the cause from the client, which gets the id under which
// the log has it.
func internalError(id string, e *errdef.Error) *errdef.Error {
	code := "internal_server_error"
	if e != nil && e.Code != "" {
		code = e.Code
	}
	return &errdef.Error{
		Class: errdef.Internal, Code: code, Message: "internal error: the server's log has the cause under request " + id,
		Context: map[string]any{"request": id},
	}
}

// context adds to an error's facts which sandbox it is about and how that is.
func (s *server) context(c *call, e *errdef.Error) map[string]any {
	facts := map[string]any{}
	if c.sandbox != "" {
		facts["sandbox"] = c.sandbox
		if rec, ok := s.record(c, e); ok {
			facts["state"] = rec.State
			facts["phase"] = orNull(string(rec.Phase()))
		}
	}
	for name, value := range e.Context {
		facts[name] = value
	}
	return facts
}

// record looks at the sandbox of a call that failed.
func (s *server) record(c *call, e *errdef.Error) (lifecycle.Record, bool) {
	if c.sandbox == "" || e.Class == errdef.Internal || e.Code == "sandbox_not_found" {
		return lifecycle.Record{}, false
	}
	sb, err := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	return sb.Record, err == nil
}

// cause returns what lies behind an error: what ended the sandbox, what was
// wrapped, why its last operation failed, or else what the code means. It is
// never empty: some clients fail on an error without a cause.
func (s *server) cause(c *call, e *errdef.Error) string {
	if e.Class == errdef.Internal {
		return causeOf(e)
	}
	if rec, ok := s.record(c, e); ok {
		switch {
		case lifecycle.Ended(e) && rec.Tombstone != nil:
			return string(rec.Tombstone.Reason)
		case e.Class == errdef.Unavailable && rec.LastError != "":
			return rec.LastError
		}
	}
	if e.Err != nil && e.Err.Error() != "" {
		return e.Err.Error()
	}
	return causeOf(e)
}

// causeOf returns what the code of an error means.
func causeOf(e *errdef.Error) string {
	entry, _ := errdef.Lookup(e.Code)
	return cmp.Or(entry.Meaning, e.Message)
}

func asError(err error) (*errdef.Error, bool) { return errors.AsType[*errdef.Error](err) }
