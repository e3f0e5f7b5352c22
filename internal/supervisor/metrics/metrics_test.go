package metrics_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/metrics"
)

// TestLightSleep: what is said of light sleep, with the reasons that have not occurred.
func TestLightSleep(t *testing.T) {
	m := metrics.New(func() metrics.State {
		return metrics.State{LightSleepers: 3, LightMemory: 5 << 20, LightReleased: map[lightsleep.Why]int64{lightsleep.ByAge: 7, lightsleep.ByPressure: 2}}
	})
	m.Thawed()
	m.Thawed()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range all {
		if !strings.HasPrefix(family.GetName(), "drowse_light_") {
			continue
		}
		for _, one := range family.GetMetric() {
			name := family.GetName()
			for _, label := range one.GetLabel() {
				name += " " + label.GetName() + "=" + label.GetValue()
			}
			got[name] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"drowse_light_sleepers": 3, "drowse_light_sleep_memory_bytes": 5 << 20, "drowse_light_wakes_total": 2,
		"drowse_light_sleep_released_total reason=age": 7, "drowse_light_sleep_released_total reason=share": 0, "drowse_light_sleep_released_total reason=pressure": 2,
		"drowse_light_sleep_released_total reason=key": 0, "drowse_light_sleep_released_total reason=stop": 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v,\nwant %v", got, want)
	}
}
