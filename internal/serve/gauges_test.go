package serve

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

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
	g := newGauges("", "", fleet{
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

// gathered are the values of a collector by their names and the values of their labels.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = m.GetGauge().GetValue()
		}
	}
	return values
}

// TestMembership: each server of the database is counted once, by what others can expect of it; while
// the database is silent, only what this server knows of itself is told.
func TestMembership(t *testing.T) {
	lasts := 5 * time.Second
	all, failed := []store.Server{
		{Left: lasts}, {Left: lasts}, {Left: lasts, Draining: true}, {Left: lasts, Leaving: true, Draining: true}, {Left: -lasts}, {Draining: true}, {Leaving: true},
	}, error(nil)
	m := newMembership(func(context.Context) ([]store.Server, error) { return all, failed }, func() time.Duration { return 1500 * time.Millisecond })
	want := map[string]float64{"drowse_servers alive": 2, "drowse_servers draining": 1, "drowse_servers leaving": 1, "drowse_servers gone": 3, "drowse_lease_age_seconds": 1.5}
	if got := gathered(t, m); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	failed = errors.New("the database is silent")
	if got := gathered(t, m); !maps.Equal(got, map[string]float64{"drowse_lease_age_seconds": 1.5}) {
		t.Errorf("%v", got)
	}
}
