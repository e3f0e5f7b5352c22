package usage

import (
	"testing"
	"time"
)

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
