package serve

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// fleet is sandboxes with what was measured of them, by id.
type fleet struct {
	all     []store.Sandbox
	samples map[string]usage.Sample
}

func (f fleet) All(context.Context) ([]store.Sandbox, error) { return f.all, nil }

func (f fleet) LastSample(id string) (usage.Sample, bool) {
	s, ok := f.samples[id]
	return s, ok
}

// TestUsage: what runs counts, by what it may use; what sleeps or was not measured yet
// does not.
func TestUsage(t *testing.T) {
	sandbox := func(id string, state lifecycle.State, cpus float64) store.Sandbox {
		return store.Sandbox{ID: id, Record: lifecycle.Record{State: state}, Config: store.Config{Limits: store.Limits{CPUs: cpus}}}
	}
	g := newGauges("", fleet{
		all: []store.Sandbox{sandbox("one", lifecycle.Running, 4), sandbox("two", lifecycle.Running, 0.5), sandbox("new", lifecycle.Running, 8), sandbox("asleep", lifecycle.Paused, 2)},
		samples: map[string]usage.Sample{
			"one": {Memory: 1 << 20, CPUPercent: 50}, "two": {Memory: 2 << 20, CPUPercent: 100}, "asleep": {Memory: 4 << 20, CPUPercent: 100},
		},
	}, nil, nil)
	got := map[*prometheus.Desc]float64{}
	g.usage(func(d *prometheus.Desc, n float64) { got[d] = n })
	if got[g.memory] != 3<<20 || got[g.cpus] != 2.5 {
		t.Errorf("%v bytes and %v CPUs are in use, want 3 MiB and 2.5", got[g.memory], got[g.cpus])
	}
}
