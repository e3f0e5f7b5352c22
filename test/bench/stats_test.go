package main

import (
	"math"
	"testing"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"nothing", nil, 0.5, 0},
		{"one", []float64{7}, 0.95, 7},
		{"odd", []float64{3, 1, 2}, 0.5, 2},
		{"even", []float64{4, 1, 3, 2}, 0.5, 2.5},
		{"between", []float64{0, 10}, 0.95, 9.5},
		{"last", []float64{1, 2, 3}, 1, 3},
	} {
		if got := quantile(c.values, c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: quantile(%v, %v) = %v, want %v", c.name, c.values, c.q, got, c.want)
		}
	}
}

func TestRatio(t *testing.T) {
	var p pairs
	for i := range 40 {
		drift := 100 + float64(i) // the machine slows down under both alike
		p = append(p, pair{ours: drift * 0.5, raw: drift})
	}
	got := p.ratio()
	if math.Abs(got.value-0.5) > 1e-9 || math.Abs(got.low-0.5) > 1e-9 || math.Abs(got.high-0.5) > 1e-9 {
		t.Errorf("ratio of pairs that differ by a factor of 2 = %+v, want 0.5 throughout", got)
	}
	p[0].ours = 1000 // one outlier moves nothing much
	if got := p.ratio(); got.value < 0.49 || got.value > 0.52 || got.low > got.value || got.high < got.value {
		t.Errorf("ratio with an outlier = %+v, want about 0.5 within its interval", got)
	}
}
