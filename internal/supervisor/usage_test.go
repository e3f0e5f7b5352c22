package supervisor

import (
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func samplesOf(t *testing.T, s *Supervisor, id string) []usage.Sample {
	t.Helper()
	samples, err := s.Samples(t.Context(), id, time.Time{}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// TestSamples measures a sandbox that is not to be idle for it, has it sleep, and
// reads what it used without a wake.
func TestSamples(t *testing.T) {
	b := newBench(t)
	b.samples = 5 * time.Millisecond
	s, _ := b.open()
	settings := idleSoon
	settings.IdleTimeout = time.Second
	id := create(t, s, CreateRequest{Settings: settings})
	// What a request takes shows in the sample after one that was taken before it.
	testmode.Eventually(t, "a first sample", func() bool { _, ok := s.LastSample(id); return ok })
	wantCount(t, s, id, 1, 1)
	used := func(x usage.Sample) bool { return x.CPUPercent > 0 }
	testmode.Eventually(t, "CPU time in a sample", func() bool { return slices.ContainsFunc(samplesOf(t, s, id), used) })
	testmode.Eventually(t, "the pause, whatever is measured", func() bool { return paused(t, s, id) })

	generation := record(t, s, id).Generation
	testmode.Eventually(t, "few enough samples", func() bool { return len(samplesOf(t, s, id)) <= 60 })
	samples := samplesOf(t, s, id)
	last, ok := s.LastSample(id)
	if n := len(samples); n < 2 || !ok || last != samples[n-1] {
		t.Errorf("%d samples, the last %+v, %v", len(samples), last, ok)
	}
	for i, x := range samples {
		if x.Memory != fake.MemoryBytes || x.DiskTotal <= 0 || x.DiskUsed <= 0 || x.DiskUsed > x.DiskTotal || x.CPUPercent < 0 || x.CPUPercent > 100 {
			t.Errorf("sample %+v", x)
		}
		if i > 0 && x.At.Before(samples[i-1].At) {
			t.Errorf("sample %d is before the one that it follows", i)
		}
	}
	r := record(t, s, id)
	if r.Generation != generation || r.State != lifecycle.Paused {
		t.Errorf("it is %s, of generation %d, after its samples were read", r.State, r.Generation)
	}

	wantCount(t, s, id, 2, generation+1)
	testmode.Eventually(t, "a sample of the next generation", func() bool {
		x, _ := s.LastSample(id)
		return x.At.After(last.At)
	})
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Samples(t.Context(), id, time.Time{}, time.Time{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("samples of a killed sandbox: %v", err)
	}
	testmode.Eventually(t, "nothing kept of the killed one", func() bool { _, ok := s.LastSample(id); return !ok })
	if _, err := s.Samples(t.Context(), "nobody", time.Time{}, time.Time{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("samples of an unknown sandbox: %v", err)
	}
}

func TestFleet(t *testing.T) {
	b := newBench(t)
	b.samples = 5 * time.Millisecond
	s, _ := b.open()
	testmode.Eventually(t, "a first sample", func() bool { return len(s.Fleet(t.Context(), time.Time{}, time.Time{})) > 0 })
	id := create(t, s, CreateRequest{Settings: sleepy})
	running := func(n int) func() bool {
		return func() bool {
			all := s.Fleet(t.Context(), time.Time{}, time.Time{})
			return all[len(all)-1].Running == n
		}
	}
	testmode.Eventually(t, "one that runs", running(1))
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "none that runs", running(0))
	started := func(x usage.FleetSample) bool { return x.StartsRate > 0 }
	if all := s.Fleet(t.Context(), time.Time{}, time.Time{}); !slices.ContainsFunc(all, started) {
		t.Errorf("no start in %+v", all)
	}
}
