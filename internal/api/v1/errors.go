package v1

import (
	"cmp"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

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
	e := dialect.Tell(c.r, c.log, err)
	body := errorDetail{Code: e.Code, Message: e.Message, Cause: s.cause(c, e), Remediation: remedyOf(e), Context: s.context(c, e)}
	header := dialect.HeaderOf(e)
	status := errdef.Status(e)
	if status == http.StatusServiceUnavailable && !errdef.Lasting(e.Code) {
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
	if reason, is := e.Context["reason"].(lifecycle.Reason); is && lifecycle.Ended(e) {
		return string(reason)
	}
	if rec, ok := s.record(c, e); ok && e.Class == errdef.Unavailable && rec.LastError != "" {
		return rec.LastError
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
