package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// The exit codes, as the root help documents them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnauthed    = 4
	exitConflict    = 5
	exitUnreachable = 6
	exitLimit       = 7
	exitCommand     = 125
	exitNotExec     = 126 // as docker exec and shells have it, and the next
	exitNoCommand   = 127
	exitInterrupted = 130
	exitNoReader    = 141 // as of a process that SIGPIPE ended
)

// exitError ends drowse with a code. Without err nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// hinted is an error with its next step.
type hinted struct {
	err  error
	step string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

func hint(err error, format string, args ...any) error {
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// classes gives each class of error its exit code and a next step for when the
// command names none. The first that fits counts.
var classes = []struct {
	class error
	code  int
	step  string
}{
	{client.ErrUnreachable, exitUnreachable, "is the server running? start it with: drowse serve"},
	{client.ErrUnauthorized, exitUnauthed, ""},
	{client.ErrForbidden, exitUnauthed, ""},
	{client.ErrLimit, exitLimit, ""},
	{client.ErrNotFound, exitNotFound, ""},
	{client.ErrConflict, exitConflict, ""},
	{client.ErrNotRunning, exitConflict, "it was killed, or is paused and not woken by requests: drowse ls --all shows which"},
	{client.ErrInvalid, exitUsage, ""},
	{client.ErrUnavailable, exitFailure, "try again in a moment"},
	{client.ErrInterrupted, exitFailure, "the sandbox was paused or killed, or the server stopped: drowse ls --all shows which"},
	{context.DeadlineExceeded, exitFailure, ""},
	{fs.ErrNotExist, exitNotFound, "check the path: it is one of this machine"},
}

// steps are what to do in the words of the command line, by the server's code;
// %s is the sandbox. For other codes the server's own words do.
var steps = map[string]string{
	"not_running":              "wake it with: drowse resume %s",
	"not_paused":               "pause it first: drowse pause %s",
	"sandbox_exists":           "give it another id: drowse import --new-id",
	"key_not_found":            "drowse keys ls lists the keys",
	"webhook_not_found":        "drowse webhooks ls lists them",
	"last_admin_key":           "create another one first: drowse keys create NAME --role admin",
	"hold_not_found":           "drowse hold %s --list lists its holds",
	"preview_not_found":        "drowse preview %s --list lists its links",
	"checkpoint_damaged":       "drowse why %s shows what is damaged",
	"checkpoint_unreadable":    "drowse why %s shows why it cannot wake",
	"auto_resume_needs_pause":  "add --on-timeout pause, or --on-idle pause with an --idle-timeout",
	"auto_resume_needs_memory": "leave out --auto-resume or --pause-mode filesystem, or give it a --service with resume",
	"refresh_needs_timeout":    "give a --timeout",
}

// stepOf returns the next step after a refusal, "" if there is none of ours.
func stepOf(e *client.Error) string {
	id, ok := e.Context["sandbox"].(string)
	if !ok {
		id = "ID"
	}
	if e.Context["endedAt"] != nil {
		return fmt.Sprintf("%s; drowse why %s shows what ended it", cmp.Or(e.Remediation, "create a new one"), id)
	}
	step := steps[e.Code]
	if !strings.Contains(step, "%s") {
		return step
	}
	return fmt.Sprintf(step, id)
}

// explain returns the exit code and the next step for an error.
func explain(err error) (code int, step string) {
	code = exitFailure
	for _, c := range classes {
		if errors.Is(err, c.class) {
			code, step = c.code, c.step
			break
		}
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		step = cmp.Or(stepOf(e), e.Remediation, step)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		code = exitUsage
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if h, ok := errors.AsType[*hinted](err); ok {
		step = h.step
	}
	return code, step
}

// report prints err, if there is something to say, and returns the exit code.
func (a *app) report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		if endless(cmd) {
			return exitInterrupted
		}
		tell(a, complaint{Message: "interrupted", ExitCode: exitInterrupted})
		return exitInterrupted
	}
	if errors.Is(err, errStdout) && errors.Is(err, syscall.EPIPE) {
		return exitNoReader // "| head" has seen enough
	}
	code, step := explain(err)
	if e, ok := errors.AsType[*exitError](err); ok && e.err == nil {
		return code
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		step = cmp.Or(step, fmt.Sprintf("see: %s --help", cmd.CommandPath()))
	}
	what := err.Error()
	if e, ok := err.(*exitError); ok {
		err = e.err
	}
	if e, ok := err.(*errdef.Error); ok { // the server's own words
		what, step = e.Message, e.Remedy
	}
	tell(a, complaint{what, codeOf(err), code, step})
	return code
}

// endless reports whether a command goes on until somebody ends it, which is no
// failure to be told of.
func endless(cmd *cobra.Command) bool {
	for _, name := range []string{"follow", "watch"} {
		if on, err := cmd.Flags().GetBool(name); err == nil && on {
			return true
		}
	}
	return false
}

// complaint is the JSON of what went wrong.
type complaint struct {
	Message  string `json:"message"`
	Code     string `json:"code,omitempty"`     // the server's
	ExitCode int    `json:"exitCode,omitempty"` // of drowse; 0 if it does not end by this
	NextStep string `json:"nextStep,omitempty"`
}

// codeOf returns the stable name of an error, where it has one.
func codeOf(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	return errdef.CodeOf(err)
}

// tell says on stderr what went wrong and what to do, in the format of this
// invocation.
func tell(a *app, c complaint) {
	if a.output != "json" {
		notice(a.Stderr, c.Message, c.NextStep)
		return
	}
	if text, err := marshal(map[string]complaint{"error": c}); err == nil {
		_, _ = fmt.Fprintf(a.Stderr, "%s\n", harmlessJSON(string(text)))
	}
}

// complain tells of something after which the command goes on.
func (a *app) complain(what, step string) { tell(a, complaint{Message: what, NextStep: step}) }

// notice writes text for people.
func notice(w io.Writer, what, step string) {
	_, _ = fmt.Fprintf(w, "drowse: %s\n", cell(what))
	if step != "" {
		_, _ = fmt.Fprintf(w, "  %s\n", cell(step))
	}
}
