package supervisor

import (
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
)

// Defaults are the settings that apply where a sandbox does not say.
type Defaults = defaults.Settings

// Unlimited is no limit, said of a sandbox where zero says nothing.
const Unlimited = defaults.Unlimited

func (s *Supervisor) checkTimeout(d time.Duration) error {
	return defaults.Ceiling(s.o.MaxTimeout).Check(d)
}
