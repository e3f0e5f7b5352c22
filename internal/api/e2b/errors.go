package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// statuses maps the classes of error to HTTP. Retry-After is sent with none of
// them, but to a key that calls too often: SDKs retry a 429 that carries one, and a
// limit on sandboxes is not lifted by waiting; a 503 they do not retry at all.
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
	errdef.Unsupported:  http.StatusBadRequest,
	errdef.Unfit:        http.StatusNotImplemented,
	errdef.Internal:     http.StatusInternalServerError,
}

// exceptions are the codes for which HTTP has a status of its own.
var exceptions = map[string]int{
	codeBodyTooLarge: http.StatusRequestEntityTooLarge,
	codeBodyTimedOut: http.StatusRequestTimeout,
	codeMethod:       http.StatusMethodNotAllowed,
	codeKeyReused:    http.StatusUnprocessableEntity,
	// A pause that is answered with 409 has the SDKs say that the sandbox sleeps already.
	lifecycle.NotCapturable: http.StatusBadRequest,
}

// Values of error_code that begin here. The others are errdef codes.
const (
	codeInvalidRequest   = "invalid_request"
	codeBodyTooLarge     = "body_too_large"
	codeBodyTimedOut     = "body_timed_out"
	codeTimeoutTooLarge  = "timeout_too_large"
	codeNotSupported     = "not_supported"
	codeAgentUnreachable = "agent_unreachable"
	codeInternal         = "internal_server_error"
	codeTimedOut         = "timed_out"
	codeCanceled         = "canceled"
	codeMethod           = "method_not_allowed"

	codeTemplateNotFound = "template_not_found"     // of Sandboxes.Create
	codeSandboxNotFound  = "sandbox_not_found"      // of Sandboxes: nothing more is known
	codeNotRunning       = "not_running"            // of Sandboxes.SetTimeout and Refresh
	codeKeyReused        = "idempotency_key_reused" // of Sandboxes.Create
	codeVolumeExists     = "volume_exists"          // of Volumes.CreateVolume
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
var belowSandbox = regexp.MustCompile(`^(/v[0-9]+)?/sandboxes/[^/]+/.`)

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

// translate puts an error into the dialect.
func (c *call) translate(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if errors.Is(err, context.Canceled) && c.r.Context().Err() != nil {
		return fail(http.StatusServiceUnavailable, codeCanceled, "the request was canceled by the client") // nobody reads it
	}
	e, ok := errors.AsType[*errdef.Error](err)
	switch {
	case !ok && errors.Is(err, context.DeadlineExceeded):
		c.log.Warn("request timed out", "err", err)
		return fail(http.StatusGatewayTimeout, codeTimedOut, "it took too long: ask for the sandbox's state and try again")
	case !ok:
		return c.internal("", err)
	case e.Class == errdef.NotFound && c.sandbox != "":
		return sandboxNotFound(c.sandbox, e)
	}
	status, known := exceptions[e.Code]
	if !known {
		status, known = statuses[e.Class]
	}
	if !known || status == http.StatusInternalServerError {
		return c.internal(e.Code, err)
	}
	if status == http.StatusServiceUnavailable || e.Class == errdef.Unfit {
		c.log.Warn("request could not be served", "err", err)
	}
	if status == http.StatusServiceUnavailable && errdef.Lasting(e.Code) {
		status = http.StatusInternalServerError // of a 503 the SDKs say "please retry"
	}
	f := &failure{Code: status, Message: e.Error(), ErrorCode: e.Code, Header: dialect.Allowed(e)}
	if e.Code == auth.CodeRate {
		f.Header.Set("Retry-After", "1")
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

// internal hides the cause from the client.
func (c *call) internal(code string, err error) *failure {
	if code == "" {
		code = codeInternal
	}
	return fail(http.StatusInternalServerError, code, "internal error: the server's log has the cause under request %s", dialect.Hide(c.log, err))
}
