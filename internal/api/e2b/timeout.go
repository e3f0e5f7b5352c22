package e2b

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Timeouts that apply where a request names none, and the least that a refresh
// gives.
const (
	defaultTimeoutV1 = 15 * time.Second
	defaultTimeoutV2 = 300 * time.Second
	minRefresh       = 15 * time.Second
	maxRefresh       = time.Hour
)

// noTimeout is what CubeSandbox's clients send for no limit.
const noTimeout = -1

// asWholeSeconds is a timeout as E2B's clients send it; -1 is no limit.
var asWholeSeconds = body.Form{
	Words: "whole seconds, -1 for no limit", Schema: body.Schema{"type": "integer", "minimum": noTimeout},
	Read: func(path string, raw []byte) (any, error) {
		raw = bytes.TrimSpace(raw)
		seconds, err := strconv.ParseInt(string(raw), 10, 32)
		switch {
		case err != nil:
			return nil, badRequest("%q must be an integer of 32 bits, not %s", path, body.Brief(raw))
		case seconds == noTimeout:
			return supervisor.Unlimited, nil
		case seconds < 0:
			return nil, badRequest("%q must not be negative; -1 is no limit: Timeout must be greater than 0", path)
		}
		return time.Duration(seconds) * time.Second, nil
	},
}

// The timeout in the spellings of all clients: of a sandbox that starts, and of
// one that runs.
var (
	startTimeout = func() body.Option {
		o := body.Options.Option("timeoutSeconds")
		o.Spelled = append([]body.Spelled{
			asWholeSeconds.As("timeout"), body.InSeconds.As("timeoutSeconds timeout_seconds"), body.InMillis.As("timeoutMs timeout_ms"),
		}, o.Spelled[2:]...)
		return o
	}()
	anyTimeout = body.Option{Name: "timeoutSeconds", Spelled: startTimeout.Spelled[:3]}
)

// startsWith returns the timeout of a call that starts a sandbox. It is
// supervisor.Unlimited for no limit.
func (s *server) startsWith(words map[string]body.Said, otherwise time.Duration) (time.Duration, error) {
	d, given := said[time.Duration](words, "timeoutSeconds")
	if !given {
		d = otherwise
	}
	if d == 0 {
		return 0, badRequest("Timeout must be greater than 0")
	}
	return d, nil
}

// aboveCeiling says in E2B's words that a timeout is above the server's limit. A
// field that is too large for every server has words of its own.
func aboveCeiling(e *errdef.Error) (message string, ok bool) {
	most, ok := e.Context["allowedSeconds"].(float64)
	if _, named := e.Context["field"]; !ok || named || e.Code != codeTimeoutTooLarge {
		return "", false
	}
	asked := "no limit"
	if seconds, ok := e.Context["requestedSeconds"].(float64); ok {
		asked = strconv.FormatFloat(seconds, 'f', -1, 64) + " s"
	}
	return fmt.Sprintf("Timeout cannot be greater than %s (requested %s)", length(time.Duration(most*float64(time.Second))), asked), true
}

// defaultTimeout is that of sandboxes for which a client names none: the
// server's, or what E2B gives by the version of the call.
func (s *server) defaultTimeout(byVersion time.Duration) time.Duration {
	return cmp.Or(s.DefaultTimeout, byVersion)
}

// length spells a limit in the largest unit that is exact.
func length(d time.Duration) string {
	n, unit := int64(d/time.Second), "second"
	switch {
	case d%time.Hour == 0:
		n, unit = int64(d/time.Hour), "hour"
	case d%time.Minute == 0:
		n, unit = int64(d/time.Minute), "minute"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}
