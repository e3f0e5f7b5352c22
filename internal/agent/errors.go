package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// class says what kind of failure something is, once for both wire formats.
type class struct {
	code   connect.Code
	status int
	start  string // of HeaderStart; empty for none
}

var (
	invalid         = class{code: connect.CodeInvalidArgument, status: http.StatusBadRequest}
	noCommand       = class{connect.CodeInvalidArgument, http.StatusBadRequest, agentapi.StartNotFound}
	notExecutable   = class{connect.CodeInvalidArgument, http.StatusBadRequest, agentapi.StartNotExecutable}
	unauthenticated = class{code: connect.CodeUnauthenticated, status: http.StatusUnauthorized}
	denied          = class{code: connect.CodePermissionDenied, status: http.StatusForbidden}
	notFound        = class{code: connect.CodeNotFound, status: http.StatusNotFound}
	notAcceptable   = class{code: connect.CodeInvalidArgument, status: http.StatusNotAcceptable}
	exists          = class{code: connect.CodeAlreadyExists, status: http.StatusConflict}
	precondition    = class{code: connect.CodeFailedPrecondition, status: http.StatusBadRequest}
	exhausted       = class{code: connect.CodeResourceExhausted, status: http.StatusTooManyRequests}
	internal        = class{code: connect.CodeInternal, status: http.StatusInternalServerError}
	unknown         = class{code: connect.CodeUnknown, status: http.StatusInternalServerError}

	// SDKs turn 507 into an error of its own; over RPC no code says it, and
	// resource_exhausted would be reported as a rate limit.
	noSpace = class{code: connect.CodeInternal, status: http.StatusInsufficientStorage}
)

// fault is an error whose text is meant for the client.
type fault struct {
	class class
	msg   string
	cause error
}

func (f *fault) Error() string { return f.msg }
func (f *fault) Unwrap() error { return f.cause }

func faultf(c class, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &fault{class: c, msg: err.Error(), cause: errors.Unwrap(err)}
}

// pathFault turns the error of a system call on path into a fault.
func pathFault(path string, err error) error {
	if _, ok := errors.AsType[*fault](err); ok {
		return err
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOENT):
		return faultf(notFound, "path '%s' does not exist", path)
	case errors.Is(err, syscall.ENOTDIR):
		// A file where a directory is needed on the way: nothing is there.
		return faultf(notFound, "path '%s' does not exist: a parent is not a directory", path)
	}
	return faultf(classOf(err), "path '%s': %w", path, rootCause(err))
}

func classOf(err error) class {
	for _, m := range []struct {
		errno syscall.Errno
		class class
	}{
		{syscall.ENOENT, notFound},
		{syscall.ENOTDIR, notFound},
		{syscall.ENOSPC, noSpace},
		{syscall.EDQUOT, noSpace},
		{syscall.EEXIST, exists},
		{syscall.ENOTEMPTY, exists},
		{syscall.ELOOP, precondition},
		{syscall.ENAMETOOLONG, invalid},
		{syscall.EINVAL, invalid},
		{syscall.EISDIR, invalid},
		{syscall.EACCES, denied},
		{syscall.EPERM, denied},
		{syscall.EROFS, denied},
	} {
		if errors.Is(err, m.errno) {
			return m.class
		}
	}
	return internal
}

// rootCause drops the operation and path that os errors repeat.
func rootCause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// rpcError gives an error its Connect code.
func rpcError(err error) *connect.Error {
	if f, ok := errors.AsType[*fault](err); ok {
		c := connect.NewError(f.class.code, errors.New(wireText(f.msg)))
		if f.class.start != "" {
			c.Meta().Set(agentapi.HeaderStart, f.class.start)
		}
		return c
	}
	if c, ok := errors.AsType[*connect.Error](err); ok {
		return c
	}
	return connect.NewError(classOf(err).code, errors.New(wireText(err.Error())))
}

// wireText makes a text that may contain a path safe for protobuf and JSON.
func wireText(s string) string { return strings.ToValidUTF8(s, replacement) }

const replacement = "\uFFFD"

func writeError(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*fault](err); ok {
		writeStatus(w, f.class.status, f.msg)
		return
	}
	writeStatus(w, classOf(err).status, err.Error())
}

func writeStatus(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "internal error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
