package e2b

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// exceptions are the codes whose status is not that of the other dialects.
var exceptions = map[string]int{
	// A pause that is answered with 409 has the SDKs say that the sandbox sleeps already.
	lifecycle.NotCapturable: http.StatusBadRequest,
}

// Values of error_code that begin here. The others are errdef codes.
const (
	codeInvalidRequest = "invalid_request"
	codeBodyTooLarge   = "body_too_large"
	codeBodyTimedOut   = "body_timed_out"
	codeNotSupported   = "not_supported"
	codeInternal       = "internal_server_error"
	codeTimedOut       = "timed_out"
	codeMethod         = "method_not_allowed"

	codeTemplateNotFound = "template_not_found" // of Sandboxes.Create
	codeSandboxNotFound  = "sandbox_not_found"  // of Sandboxes: nothing more is known
	codeNotRunning       = "not_running"        // of Sandboxes.SetTimeout and Refresh
	codeTimeoutTooLarge  = "timeout_too_large"  // of Sandboxes, and of Snapshots.Fork
	codeTooMany          = "too_many_sandboxes" // of Sandboxes.Create, as of all that wakes one
	codeVolumeExists     = "volume_exists"      // of Volumes.CreateVolume
)

// failure is an error as clients see it. Code repeats the HTTP status: the
// JavaScript SDK reads it there.
type failure struct {
	Code      int         `json:"code"`
	Message   string      `json:"message"`
	ErrorCode string      `json:"error_code,omitempty"`
	Header    http.Header `json:"-"`
}

// Error implements error.
func (f *failure) Error() string { return fmt.Sprintf("%d: %s", f.Code, f.Message) }

func fail(status int, code, format string, args ...any) *failure {
	return &failure{Code: status, Message: fmt.Sprintf(format, args...), ErrorCode: code}
}

func badRequest(format string, args ...any) *failure {
	return fail(http.StatusBadRequest, codeInvalidRequest, format, args...)
}

// belowSandbox is a path below a sandbox.
var belowSandbox = lazyregexp.New(`^(/v[0-9]+)?/sandboxes/[^/]+/.`)

// unknownPath refuses a path that there is not. Below a sandbox it is no 404,
// which clients take for a sandbox that does not exist.
func unknownPath(path string) *failure {
	if belowSandbox.MatchString(path) {
		return fail(http.StatusNotImplemented, codeNotSupported, "this server has no such call on a sandbox; the sandbox is not touched")
	}
	return fail(http.StatusNotFound, "unknown_path", "this path is not part of the API")
}

// failed makes the response to an error, and logs it if it is ours.
func (c *call) failed(err error) httpapi.Response {
	f := c.translate(err)
	res, err := httpapi.Encode(f.Code, f.Header, f)
	if err != nil {
		panic("internal error: e2b: an error that cannot be encoded: " + err.Error())
	}
	return res
}

// translate puts an error into the dialect. Retry-After is sent only to a key that calls
// too often: SDKs retry a 429 that carries one, and a limit on sandboxes is not lifted
// by waiting; a 503 they do not retry at all.
func (c *call) translate(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	e := dialect.Tell(c.r, c.log, err)
	if e.Class == errdef.NotFound && c.sandbox != "" {
		return sandboxNotFound(c.sandbox, e)
	}
	f := &failure{Code: cmp.Or(exceptions[e.Code], errdef.Status(e)), Message: e.Error(), ErrorCode: e.Code, Header: dialect.HeaderOf(e)}
	if most, ok := e.Context["allowed"]; ok && (e.Code == codeTooMany || e.Context["limit"] == "maxRunning") {
		f.Message = fmt.Sprintf("you have reached the maximum number of concurrent E2B sandboxes (%v): %v", most, e) // clients look for that
	}
	if message, ok := aboveCeiling(e); ok {
		f.Message = message
	}
	switch {
	case e.Class == errdef.Unsupported:
		f.Code = http.StatusBadRequest
	case f.Code == http.StatusServiceUnavailable && errdef.Lasting(e.Code):
		f.Code = http.StatusInternalServerError // of a 503 the SDKs say "please retry"
	}
	return f
}

// sandboxNotFound is E2B's sentence, followed by what ended the sandbox where
// that is known.
func sandboxNotFound(id string, e *errdef.Error) *failure {
	f := fail(http.StatusNotFound, e.Code, "Sandbox %q doesn't exist or you don't have access to it", id)
	if e.Code != codeSandboxNotFound && e.Code != "" {
		f.Message += ": " + e.Error()
	}
	return f
}
