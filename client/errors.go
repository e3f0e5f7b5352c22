package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
)

// The classes of failure, for errors.Is. All but the last two are classes of
// *Error.
var (
	ErrInvalid      = errors.New("the request can never succeed as it is")
	ErrUnauthorized = errors.New("no valid credential")
	ErrForbidden    = errors.New("the credential does not suffice")
	ErrNotFound     = errors.New("no such thing")
	ErrConflict     = errors.New("the state does not allow it")
	ErrNotRunning   = errors.New("the sandbox does not run and was not woken")
	ErrLimit        = errors.New("a limit is reached")
	ErrUnavailable  = errors.New("not possible right now")

	ErrUnreachable = errors.New("cannot reach the server")
	ErrInterrupted = errors.New("the connection to the sandbox was cut")
)

// Codes of the errors of Start and Run where the program is the reason, of class
// ErrInvalid.
const (
	CodeCommandNotFound      = agentpb.StartNotFound
	CodeCommandNotExecutable = agentpb.StartNotExecutable
)

// Codes that this package gives where the wire has none.
const (
	codeNotRunning = "sandbox_not_running"
	codePortClosed = "port_closed"
)

// Codes of the server that decide a class, or what this package does.
const (
	codeTimeoutTooLarge = "timeout_too_large" // above the server's ceiling
	codeAsleep          = "not_running"       // a call that needs it to run
	codeNotResumable    = "not_resumable"     // traffic that may not wake it
	codeTerminated      = "sandbox_terminated"
)

// Error is a refusal by the server, or by a sandbox.
type Error struct {
	Status  int    // HTTP status, or the one that belongs to the agent's code
	Code    string // stable machine-readable name; may be empty
	Message string // what happened and the state now, for people

	Cause       string         // what lies behind it, where that is known
	Remediation string         // the next step, for people; may be empty
	Context     map[string]any // facts for programs, as JSON has them

	notReached  bool // the request did not reach its sandbox, which is asleep or has ended
	interrupted bool // the sandbox was paused or killed before it answered
}

// Error returns the message.
func (e *Error) Error() string {
	return cmp.Or(e.Message, fmt.Sprintf("the server answered %d %s", e.Status, http.StatusText(e.Status)))
}

// Is reports whether e is of the class that target names.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrInvalid:
		return e.Status == http.StatusBadRequest || e.Status == http.StatusUnprocessableEntity
	case ErrUnauthorized:
		return e.Status == http.StatusUnauthorized
	case ErrForbidden:
		return e.Status == http.StatusForbidden
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrConflict:
		return e.Status == http.StatusConflict
	case ErrNotRunning:
		return e.Code == codeNotRunning || e.Code == codeAsleep || e.Code == codeNotResumable || e.notReached
	case ErrInterrupted:
		return e.interrupted
	case ErrLimit:
		return e.Status == http.StatusTooManyRequests || e.Status == http.StatusInsufficientStorage ||
			e.Code == codeTimeoutTooLarge
	case context.DeadlineExceeded:
		return e.Code == connect.CodeDeadlineExceeded.String()
	case ErrUnavailable:
		return e.Status >= http.StatusBadGateway && e.Status <= http.StatusGatewayTimeout
	}
	return false
}

// errorOf reads the error that a refusing answer carries.
func errorOf(resp *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return parseError(resp.StatusCode, body)
}

// parseError understands the bodies of the control plane, of the agent's files
// API and of the proxy in front of sandboxes. Only the last names a sandbox.
func parseError(status int, body []byte) *Error {
	var native struct {
		Error *struct {
			Code        string         `json:"code"`
			Message     string         `json:"message"`
			Cause       string         `json:"cause"`
			Remediation string         `json:"remediation"`
			Context     map[string]any `json:"context"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &native) == nil && native.Error != nil {
		n := native.Error
		return &Error{Status: status, Code: n.Code, Message: n.Message, Cause: n.Cause, Remediation: n.Remediation, Context: n.Context}
	}
	var wire struct {
		Message   string `json:"message"`
		ErrorCode string `json:"error_code"`
		SandboxID string `json:"sandboxId"`
		Port      int    `json:"port"`
		Remedy    string `json:"remedy"`
		Reason    string `json:"reason"`
		EndedAt   string `json:"endedAt"`
		PausedAt  string `json:"pausedAt"`

		Interrupted bool `json:"interrupted"`
	}
	if json.Unmarshal(body, &wire) != nil {
		return &Error{Status: status}
	}
	e := &Error{Status: status, Code: wire.ErrorCode, Message: wire.Message, Remediation: wire.Remedy, interrupted: wire.Interrupted}
	switch {
	case status != http.StatusBadGateway || wire.SandboxID == "":
	case wire.Port != 0:
		e.Code = cmp.Or(e.Code, codePortClosed)
	default:
		e.Code, e.notReached = cmp.Or(e.Code, codeNotRunning), !wire.Interrupted
	}
	if wire.SandboxID == "" {
		return e
	}
	e.Context = map[string]any{"sandbox": wire.SandboxID}
	for name, fact := range map[string]string{"reason": wire.Reason, "endedAt": wire.EndedAt, "pausedAt": wire.PausedAt} {
		if fact != "" {
			e.Context[name] = fact
		}
	}
	return e
}

// transportError classifies the failure of a request that got no answer.
func transportError(u *url.URL, err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if isContext(err) {
		return err
	}
	op, ok := errors.AsType[*net.OpError](err)
	if ok && op.Op == "dial" {
		return fmt.Errorf("%w at %s: %w", ErrUnreachable, base(u), cause(op))
	}
	return fmt.Errorf("talk to the server at %s: %w", base(u), err)
}

func base(u *url.URL) string { return u.Scheme + "://" + u.Host }

// cause drops the operation and address that a dial error repeats.
func cause(op *net.OpError) error {
	if dns, ok := errors.AsType[*net.DNSError](op); ok {
		return dns
	}
	if inner := errors.Unwrap(op.Err); inner != nil {
		return inner
	}
	return op.Err
}

// rpcStatus is the HTTP status that belongs to a code of the agent.
var rpcStatus = map[connect.Code]int{
	connect.CodeInvalidArgument:    http.StatusBadRequest,
	connect.CodeFailedPrecondition: http.StatusBadRequest,
	connect.CodeOutOfRange:         http.StatusBadRequest,
	connect.CodeUnauthenticated:    http.StatusUnauthorized,
	connect.CodePermissionDenied:   http.StatusForbidden,
	connect.CodeNotFound:           http.StatusNotFound,
	connect.CodeAlreadyExists:      http.StatusConflict,
	connect.CodeAborted:            http.StatusConflict,
	connect.CodeResourceExhausted:  http.StatusTooManyRequests,
	connect.CodeCanceled:           499,
	connect.CodeUnimplemented:      http.StatusNotImplemented,
	connect.CodeUnavailable:        http.StatusServiceUnavailable,
	connect.CodeDeadlineExceeded:   http.StatusGatewayTimeout,
}

// rpcError turns the failure of a call to the agent into the errors of this
// package.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e // the proxy or the agent refused before the call began
	}
	ce, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok:
		return err
	case connect.IsWireError(ce) && (ce.Code() == connect.CodeUnavailable || ce.Code() == connect.CodeAborted):
		// Only the server in front of the agent says so, when it ends a stream.
		return fmt.Errorf("%w: %s", ErrInterrupted, ce.Message())
	case connect.IsWireError(ce):
		status := cmp.Or(rpcStatus[ce.Code()], http.StatusInternalServerError)
		code := ce.Code().String()
		if start := ce.Meta().Get(agentpb.HeaderStart); start == CodeCommandNotFound || start == CodeCommandNotExecutable {
			code = start
		}
		return &Error{Status: status, Code: code, Message: ce.Message()}
	case isContext(ce), errors.Is(ce, ErrUnreachable):
		return ce.Unwrap()
	}
	return interrupted(ce.Unwrap())
}

// interrupted says that a connection into a sandbox was cut. How, is told only
// where it is more than that it ended.
func interrupted(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return ErrInterrupted
	}
	return fmt.Errorf("%w: %w", ErrInterrupted, err)
}
