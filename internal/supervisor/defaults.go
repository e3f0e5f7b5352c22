package supervisor

import (
	"cmp"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
)

// Defaults are the settings that apply where a sandbox does not say.
type Defaults = defaults.Settings

// Unlimited is no limit, said of a sandbox where zero says nothing.
const Unlimited = defaults.Unlimited

// checkTimeout refuses what is above the ceiling, and no limit where there is
// one: nothing is ever clamped. Unlimited is no limit.
func (s *Supervisor) checkTimeout(d time.Duration) error {
	most := s.o.MaxTimeout
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

// orUnlimited returns a timeout of settings, where zero is no limit, as
// checkTimeout takes it.
func orUnlimited(d time.Duration) time.Duration { return cmp.Or(d, Unlimited) }
