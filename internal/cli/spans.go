package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// The words for the two things that a timeout of 0 could mean.
const (
	wordNone = "none" // no end
	wordNow  = "now"
)

// limitFlag is a flag that takes a duration or the word none. 0 is refused: it would
// mean none here and now elsewhere.
type limitFlag struct{ time.Duration } // client.Never for none

func (l *limitFlag) Type() string { return "duration" }

func (l *limitFlag) String() string {
	if l.Duration == client.Never {
		return wordNone
	}
	return l.Duration.String()
}

func (l *limitFlag) Set(text string) error {
	d, err := parseSpan(text)
	switch {
	case text == wordNone:
		l.Duration = client.Never
		return nil
	case text == wordNow:
		return errors.New("want a duration such as 10m, or none")
	case err == nil && d == 0:
		return errors.New("0 could mean two things: none is no end; drowse timeout ID now ends a sandbox at once")
	case err != nil || d < 0:
		return errors.New("want a duration such as 10m, or none")
	}
	l.Duration = d
	return nil
}

// parseSpan reads a duration.
func parseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("want a duration such as 90s or 10m: %w", err)
	}
	return d, nil
}

// parseDeadline reads how long something goes on from now: 0 for now,
// client.Never for none.
func parseDeadline(text string) (time.Duration, error) {
	switch text {
	case wordNone:
		return client.Never, nil
	case wordNow:
		return 0, nil
	}
	d, err := parseSpan(text)
	switch {
	case err == nil && d == 0:
		return 0, usagef("timeout 0 could mean two things: say now to end it, or none for no end")
	case err != nil || d < 0:
		return 0, usagef("timeout %q: want a duration such as 90s or 10m, none or now", text)
	}
	return d, nil
}
