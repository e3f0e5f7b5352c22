package sandbox0

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// The error codes of sandbox0.
const (
	codeBadRequest      = "bad_request"
	codeUnauthorized    = "unauthorized"
	codeForbidden       = "forbidden"
	codeNotFound        = "not_found"
	codeConflict        = "conflict"
	codeQuota           = "quota_exceeded"
	codeUnavailable     = "unavailable"
	codeResumeFailed    = "sandbox_resume_failed"
	codeInternal        = "internal_error"
	codeNotSupported    = "not_supported" // ours: sandbox0 has everything
	codeInvalid         = "invalid_request"
	codeContextNotFound = "context_not_found"
	codeNotRunning      = "process_not_running"
	codeFinished        = "process_finished"
	codeBufferFull      = "input_buffer_full"
	codeNoPTY           = "pty_unavailable"
	codeExecTimeout     = "exec_timeout"
	codeFileNotFound    = "file_not_found"
	codeDirNotFound     = "directory_not_found"
	codePathExists      = "path_exists"
	codePermission      = "permission_denied"
	codeNotDirectory    = "path_not_directory"
	codeNotFile         = "path_not_file"
	codeTooLarge        = "file_too_large"
)

// detail is what is wrong, as clients read it.
type detail struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

// failure is an error of the dialect's own.
type failure struct {
	status  int
	code    string
	message string
}

func (f *failure) Error() string { return f.message }

func fail(status int, code, format string, args ...any) error {
	return &failure{status, code, fmt.Sprintf(format, args...)}
}

// codes are those of the classes of error.
var codes = map[errdef.Class]string{
	errdef.NotFound:     codeNotFound,
	errdef.Exists:       codeConflict,
	errdef.Invalid:      codeBadRequest,
	errdef.WrongState:   codeConflict,
	errdef.Conflict:     codeConflict,
	errdef.Exhausted:    codeQuota,
	errdef.Unavailable:  codeUnavailable,
	errdef.Fenced:       codeUnavailable,
	errdef.Unauthorized: codeUnauthorized,
	errdef.Forbidden:    codeForbidden,
	errdef.Unsupported:  codeNotSupported,
	errdef.Internal:     codeInternal,
}

// resumeFailures are the codes of a resume that failed.
var resumeFailures = []string{"resume_failed", "checkpoint_damaged", "checkpoint_unreadable"}

// statusAndCode returns how an error is answered.
func statusAndCode(e *errdef.Error) (int, string) {
	switch {
	case e.Code == "body_too_large":
		return errdef.Status(e), codeTooLarge
	case e.Code == "not_resumable", e.Class == errdef.Unfit:
		return http.StatusServiceUnavailable, codeUnavailable
	case slices.Contains(resumeFailures, e.Code):
		return http.StatusServiceUnavailable, codeResumeFailed
	case e.Class == errdef.Unsupported && e.Context["field"] != nil:
		// A field is at fault; clients know the code of a bad request alone.
		return http.StatusBadRequest, codeBadRequest
	}
	return errdef.Status(e), cmp.Or(codes[e.Class], codeInternal)
}

// failed makes the response to an error, and logs it if it is ours.
func (c *call) failed(err error) httpapi.Response {
	if f, ok := errors.AsType[*failure](err); ok {
		return respond(f.status, detail{Code: f.code, Message: f.message})
	}
	e := dialect.Tell(c.r, c.log, err)
	status, code := statusAndCode(e)
	entry, _ := errdef.Lookup(e.Code)
	remedy := cmp.Or(e.Remedy, entry.Remedy)
	switch { // the catalogue names the native API's description
	case e.Code == "invalid_request":
		remedy = e.Remedy
	case e.Code == "unknown_field" && e.Context["meant"] == nil:
		remedy = "leave it out"
	}
	message := e.Message
	if remedy != "" {
		message += ": " + remedy
	}
	facts := map[string]any{"reason": e.Code}
	for name, value := range e.Context {
		facts[name] = value
	}
	res := respond(status, detail{Code: code, Message: message, Details: facts})
	maps.Copy(res.Header, dialect.HeaderOf(e))
	return res
}

// respond writes an error as clients read it.
func respond(status int, d detail) httpapi.Response {
	h := http.Header{}
	reason, _ := d.Details["reason"].(string)
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && !errdef.Lasting(reason) {
		h.Set("Retry-After", "1")
	}
	res, err := httpapi.Encode(status, h, envelope{Error: &d})
	if err != nil {
		panic("internal error: sandbox0: an error that cannot be encoded: " + err.Error())
	}
	return res
}
