package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
)

// light is what there is to say of light sleep.
type light struct {
	wakes                      prometheus.Counter
	sleepers, memory, released *prometheus.Desc
}

func newLight() light {
	return light{
		wakes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_light_wakes_total", Help: "Wakes from light sleep, which thawed a runtime that stood by.",
		}),
		sleepers: prometheus.NewDesc("drowse_light_sleepers", "Paused sandboxes whose frozen runtime stands by.", nil, nil),
		memory:   prometheus.NewDesc("drowse_light_sleep_memory_bytes", "Memory that frozen runtimes of paused sandboxes hold.", nil, nil),
		released: prometheus.NewDesc("drowse_light_sleep_released_total", "Frozen runtimes that were given up before a wake, so that their sandboxes sleep deeply, by reason.", []string{"reason"}, nil),
	}
}

func (l light) describe(ch chan<- *prometheus.Desc) {
	ch <- l.sleepers
	ch <- l.memory
	ch <- l.released
}

func (l light) collect(ch chan<- prometheus.Metric, is State) {
	ch <- prometheus.MustNewConstMetric(l.sleepers, prometheus.GaugeValue, float64(is.LightSleepers))
	ch <- prometheus.MustNewConstMetric(l.memory, prometheus.GaugeValue, float64(is.LightMemory))
	for _, why := range lightsleep.Reasons() { // also of what has not happened, so that increase() sees the first
		ch <- prometheus.MustNewConstMetric(l.released, prometheus.CounterValue, float64(is.LightReleased[why]), string(why))
	}
}
