package supervisor

import (
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
)

func samplesOf(t *testing.T, s *Supervisor, id string) []Sample {
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
	id := create(t, s, CreateRequest{Settings: idleSoon})
	wantCount(t, s, id, 1, 1)
	used := func(x Sample) bool { return x.CPUPercent > 0 }
	eventually(t, "CPU time in a sample", func() bool { return slices.ContainsFunc(samplesOf(t, s, id), used) })
	eventually(t, "the pause, whatever is measured", func() bool { return paused(t, s, id) })

	generation := record(t, s, id).Generation
	eventually(t, "few enough samples", func() bool { return len(samplesOf(t, s, id)) <= mostSamplesAsleep })
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
	eventually(t, "a sample of the next generation", func() bool {
		x, _ := s.LastSample(id)
		return x.At.After(last.At)
	})
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Samples(t.Context(), id, time.Time{}, time.Time{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("samples of a killed sandbox: %v", err)
	}
	eventually(t, "nothing kept of the killed one", func() bool { _, ok := s.LastSample(id); return !ok })
	if _, err := s.Samples(t.Context(), "nobody", time.Time{}, time.Time{}); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("samples of an unknown sandbox: %v", err)
	}
}

func TestFleet(t *testing.T) {
	b := newBench(t)
	b.samples = 5 * time.Millisecond
	s, _ := b.open()
	eventually(t, "a first sample", func() bool { return len(s.Fleet(t.Context(), time.Time{}, time.Time{})) > 0 })
	id := create(t, s, CreateRequest{Settings: sleepy})
	running := func(n int) func() bool {
		return func() bool {
			all := s.Fleet(t.Context(), time.Time{}, time.Time{})
			return all[len(all)-1].Running == n
		}
	}
	eventually(t, "one that runs", running(1))
	if err := s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "none that runs", running(0))
	started := func(x FleetSample) bool { return x.StartsRate > 0 }
	if all := s.Fleet(t.Context(), time.Time{}, time.Time{}); !slices.ContainsFunc(all, started) {
		t.Errorf("no start in %+v", all)
	}
}

// TestSeries: it is bounded, keeps every peak, stays in order, and is finest at
// its end.
func TestSeries(t *testing.T) {
	const most = 360
	begin := time.Unix(1_000_000, 0)
	var h series[Sample]
	peak := 0.0
	for n := range 100_000 {
		x := Sample{At: begin.Add(time.Duration(n) * 5 * time.Second), Memory: int64(n % 7)}
		if n == 4321 {
			x.CPUPercent = 99
		}
		h.add(x, most, joinSamples)
		if len(h.kept) > most {
			t.Fatalf("%d samples after %d", len(h.kept), n+1)
		}
	}
	for i, x := range h.kept {
		peak = max(peak, x.CPUPercent)
		if i > 0 && !x.At.After(h.kept[i-1].At) {
			t.Fatalf("sample %d is not after the one before", i)
		}
	}
	if peak != 99 {
		t.Errorf("the peak is gone: %v", peak)
	}
	last := len(h.kept) - 1
	if step := h.kept[last].At.Sub(h.kept[last-100].At); step != 500*time.Second {
		t.Errorf("the last 100 samples span %v, want them all", step)
	}
	h.thin(60, joinSamples)
	if n := len(h.kept); n > 60 || n < 40 {
		t.Errorf("%d samples are left", n)
	}
	to := h.kept[50].At
	if got := h.between(h.kept[10].At, to, func(s Sample) time.Time { return s.At }); len(got) != 41 || got[0] != h.kept[10] {
		t.Errorf("%d samples in the time of 41", len(got))
	}
}
