package supervisor

import (
	"cmp"
	"math"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// leastLimits is what the agent and a shell need to come up.
var leastLimits = store.Limits{CPUs: 1, MemoryMiB: 128, DiskMiB: 64, PIDs: 256}

// limits returns what a sandbox gets that asks for some limits, zero being
// none. The error is an errdef.Invalid with code "limit_out_of_range".
func (s *Supervisor) limits(asked store.Limits) (store.Limits, error) {
	granted := s.o.Limits
	for _, l := range []struct {
		name        string
		asked       int
		least, most int
		granted     *int
	}{
		{"cpus", asked.CPUs, leastLimits.CPUs, s.o.MostLimits.CPUs, &granted.CPUs},
		{"memoryMiB", asked.MemoryMiB, leastLimits.MemoryMiB, s.o.MostLimits.MemoryMiB, &granted.MemoryMiB},
		{"diskMiB", asked.DiskMiB, leastLimits.DiskMiB, s.o.MostLimits.DiskMiB, &granted.DiskMiB},
		{"pids", asked.PIDs, leastLimits.PIDs, s.o.MostLimits.PIDs, &granted.PIDs},
	} {
		if l.asked == 0 {
			continue
		}
		if most := cmp.Or(l.most, math.MaxInt32); l.asked < l.least || l.asked > most {
			return store.Limits{}, outOfRange(l.name, l.asked, l.least, most, *l.granted)
		}
		*l.granted = l.asked
	}
	return granted, nil
}

func outOfRange(name string, asked, least, most, otherwise int) error {
	return errdef.New(errdef.Invalid, "limit_out_of_range", "%s is %d; this server grants %d to %d", name, asked, least, most).
		WithRemedy("ask for less or more, or leave it out for %d", otherwise).
		With("field", name).With("requested", asked).With("least", least).With("most", most)
}
