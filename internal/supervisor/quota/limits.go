package quota

import (
	"cmp"
	"math"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Least is what the agent and a shell need to come up.
var Least = store.Limits{CPUs: 0.1, MemoryMiB: 128, DiskMiB: 64, PIDs: 256}

// Limits are the limits of sandboxes.
type Limits struct {
	Default store.Limits // of a sandbox that asks for none
	Most    store.Limits // the largest that are granted; zero is no bound
}

// Grant returns what a sandbox gets that asks for some limits, zero being
// none. The error is an errdef.Invalid with code "limit_out_of_range".
func (l Limits) Grant(asked store.Limits) (store.Limits, error) {
	granted := l.Default
	if most := cmp.Or(l.Most.CPUs, math.MaxInt32); asked.CPUs != 0 && !(asked.CPUs >= Least.CPUs && asked.CPUs <= most) {
		return store.Limits{}, OutOfRange("cpus", asked.CPUs, Least.CPUs, most, granted.CPUs)
	}
	granted.CPUs = cmp.Or(asked.CPUs, granted.CPUs)
	for _, x := range []struct {
		name        string
		asked       int
		least, most int
		granted     *int
	}{
		{"memoryMiB", asked.MemoryMiB, Least.MemoryMiB, l.Most.MemoryMiB, &granted.MemoryMiB},
		{"diskMiB", asked.DiskMiB, Least.DiskMiB, l.Most.DiskMiB, &granted.DiskMiB},
		{"pids", asked.PIDs, Least.PIDs, l.Most.PIDs, &granted.PIDs},
	} {
		if x.asked == 0 {
			continue
		}
		if most := cmp.Or(x.most, math.MaxInt32); x.asked < x.least || x.asked > most {
			return store.Limits{}, OutOfRange(x.name, x.asked, x.least, most, *x.granted)
		}
		*x.granted = x.asked
	}
	return granted, nil
}

// OutOfRange is the error for a limit outside of what is granted.
func OutOfRange[N int | float64](name string, asked, least, most, otherwise N) error {
	return errdef.New(errdef.Invalid, "limit_out_of_range", "%s is %v; this server grants %v to %v", name, asked, least, most).
		WithRemedy("ask for less or more, or leave it out for %v", otherwise).
		With("field", name).With("requested", asked).With("least", least).With("most", most)
}
