package e2b

import (
	"fmt"
	"net/http"
	"time"
)

// Timeouts that apply where a request names none, and the least that a refresh
// gives.
const (
	defaultTimeoutV1 int32 = 15
	minRefresh       int32 = 15
	maxRefresh       int32 = 3600
)

// positiveTimeout judges the timeout of a call that starts a sandbox.
func (s *server) positiveTimeout(seconds int32) (time.Duration, error) {
	if seconds <= 0 {
		return 0, badRequest("Timeout must be greater than 0")
	}
	return s.granted(seconds)
}

// anyTimeout judges the timeout of a call on a running sandbox, which must be
// there and may be 0.
func (s *server) anyTimeout(seconds *int32) (time.Duration, error) {
	switch {
	case seconds == nil:
		return 0, badRequest(`"timeout" is required`)
	case *seconds < 0:
		return 0, badRequest("Timeout must not be negative")
	}
	return s.granted(*seconds)
}

// granted returns what was asked for, or refuses; it never clamps, also not
// where E2B's service does.
func (s *server) granted(seconds int32) (time.Duration, error) {
	d := time.Duration(seconds) * time.Second
	if d > s.MaxTimeout {
		return 0, fail(http.StatusBadRequest, codeTimeoutTooLarge,
			"Timeout cannot be greater than %s (requested %d s)", length(s.MaxTimeout), seconds)
	}
	return d, nil
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

func orDefault(seconds *int32, otherwise int32) int32 {
	if seconds == nil {
		return otherwise
	}
	return *seconds
}
