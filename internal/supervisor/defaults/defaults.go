// Package defaults gives sandboxes the settings that their creators did not name.
package defaults

import (
	"cmp"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Settings are the settings that apply where a sandbox does not say, so that
// clients which cannot name a setting have it all the same.
type Settings struct {
	OnTimeout          lifecycle.Action  // empty: kill
	IdleTimeout        time.Duration     // 0 for none
	OnIdle             lifecycle.Action  // empty: as OnTimeout
	AutoResume         bool              // of sandboxes that pause by themselves and keep their memory
	RefreshOnActivity  lifecycle.Refresh // of sandboxes with a timeout
	FilesystemFallback bool
	MaxLifetime        time.Duration // 0 for none
	PausedRetention    time.Duration // 0 for ever
	CheckpointEvery    time.Duration // 0 for never
	StallAfter         time.Duration // how long a hold may stand still and count; 0 for ever
}

// Unlimited is no limit, said of a sandbox where zero says nothing.
const Unlimited = lifecycle.NoLimit

// Fill returns s with the defaults where it says nothing, and the names of the
// settings that the defaults gave. said has the names of settings that count as
// they are, also where they are zero.
func (d Settings) Fill(s lifecycle.Settings, said ...string) (filled lifecycle.Settings, given []string) {
	f := filler{said: said}
	fill(&f, "onTimeout", &s.OnTimeout, d.OnTimeout)
	s.OnTimeout = cmp.Or(s.OnTimeout, lifecycle.Kill)
	fill(&f, "idleTimeoutSeconds", &s.IdleTimeout, d.IdleTimeout)
	fill(&f, "onIdle", &s.OnIdle, d.OnIdle)
	fill(&f, "maxLifetimeSeconds", &s.MaxLifetime, d.MaxLifetime)
	fill(&f, "pausedRetentionSeconds", &s.PausedRetention, d.PausedRetention)
	fill(&f, "filesystemFallback", &s.FilesystemFallback, d.FilesystemFallback)
	fill(&f, "checkpointEverySeconds", &s.CheckpointEvery, d.CheckpointEvery)
	fill(&f, "stallAfterSeconds", &s.StallAfter, d.StallAfter)
	s.StallAfter = cmp.Or(s.StallAfter, Unlimited)
	if s.PausedRetention == Unlimited {
		s.PausedRetention = 0
	}
	if s.Timeout > 0 {
		fill(&f, "refreshOnActivity", &s.RefreshOnActivity, d.RefreshOnActivity)
	}
	if s.MayAutoResume() {
		fill(&f, "autoResume", &s.AutoResume, d.AutoResume)
	}
	return s, f.given
}

// filler remembers which settings the defaults gave.
type filler struct{ said, given []string }

// fill sets a setting that says nothing to its default, if there is one.
func fill[T comparable](f *filler, name string, to *T, otherwise T) {
	var nothing T
	if *to != nothing || otherwise == nothing || slices.Contains(f.said, name) {
		return
	}
	*to = otherwise
	f.given = append(f.given, name)
}

// Ceiling is the largest soft timeout that is granted; 0 for no bound.
type Ceiling time.Duration

// Check refuses what is above the ceiling, and no limit where there is
// one: nothing is ever clamped. Unlimited is no limit.
func (c Ceiling) Check(d time.Duration) error {
	most := time.Duration(c)
	switch {
	case d < 0 && d != Unlimited:
		return errdef.New(errdef.Invalid, "timeout_invalid", "timeout %s is negative", d)
	case most == 0:
		return nil
	case d == Unlimited:
		return errdef.New(errdef.Invalid, "timeout_too_large", "no timeout was asked for, and this server allows %s at most", most).
			WithRemedy("ask for a timeout of at most that, or start the server with a larger --max-timeout, or none").
			With("requestedSeconds", nil).With("allowedSeconds", most.Seconds())
	case d > most:
		return errdef.New(errdef.Invalid, "timeout_too_large", "timeout %s is above this server's limit of %s", d, most).
			WithRemedy("ask for less, or start the server with a larger --max-timeout").
			With("requestedSeconds", d.Seconds()).With("allowedSeconds", most.Seconds())
	}
	return nil
}

// OrUnlimited returns a timeout of settings, where zero is no limit, as Check takes
// it.
func OrUnlimited(d time.Duration) time.Duration { return cmp.Or(d, Unlimited) }
