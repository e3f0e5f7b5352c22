package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

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
		return errors.New("0 could mean two things: none is no end; drowse timeout ID now ends the timeout at once")
	case err != nil || d < 0:
		return errors.New("want a duration such as 10m, or none")
	}
	l.Duration = d
	return nil
}

// clockFlag is a flag that takes a duration or the word none, which is 0. Unlike
// those of limitFlag, 0 means nothing else here.
type clockFlag struct{ d *time.Duration }

// clockVar adds such a flag. A zero default is not shown: the usage says whose
// default there is.
func clockVar(f *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	f.Var(clockFlag{d}, name, usage)
	if value == 0 {
		f.Lookup(name).DefValue = ""
	}
}

func (c clockFlag) Type() string { return "duration" }

func (c clockFlag) String() string {
	if c.d == nil || *c.d == 0 {
		return wordNone
	}
	return c.d.String()
}

func (c clockFlag) Set(text string) error {
	if text == wordNone {
		*c.d = 0
		return nil
	}
	d, err := parseSpan(text)
	if err != nil || d < 0 {
		return errors.New("want a duration such as 10m, or none")
	}
	*c.d = d
	return nil
}

// parseSpan reads a duration.
func parseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(inHours(text))
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
