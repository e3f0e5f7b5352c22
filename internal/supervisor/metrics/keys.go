package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/supervisor/cost"
)

// keys are the metrics that have a key as their label.
type keys struct {
	starting, requests, descriptors, buffered, kept, sessions, logs, database, checkpoints *prometheus.Desc
}

func newKeys() keys {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("drowse_key_"+name, help+" By API key; those past the first hundred are one, \"other\".", []string{"key"}, nil)
	}
	return keys{
		starting:    desc("starting_sandboxes", "Sandboxes on their way up, those that wait for a turn included."),
		requests:    desc("requests", "Requests and streams open into sandboxes."),
		descriptors: desc("egress_descriptors", "Descriptors of connections out of sandboxes."),
		buffered:    desc("buffered_bytes", "Bytes that wait for clients and guests, and of connections out whose name is not known yet."),
		kept:        desc("kept_bytes", "Bytes kept for clients who ask later."),
		sessions:    desc("sessions", "Sessions over SSH and of terminals and WebSockets."),
		logs:        desc("log_bytes", "Bytes kept of what sandboxes log."),
		database:    desc("database_written_bytes_total", "Bytes written to the database."),
		checkpoints: desc("checkpoint_seconds_total", "Time spent to checksum checkpoints, make them durable and verify them."),
	}
}

func (m keys) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.starting, m.requests, m.descriptors, m.buffered, m.kept, m.sessions, m.logs, m.database, m.checkpoints} {
		ch <- d
	}
}

func (m keys) collect(ch chan<- prometheus.Metric, costs map[string]cost.Cost) {
	for label, c := range costs {
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{m.starting, prometheus.GaugeValue, float64(c.Starting)},
			{m.requests, prometheus.GaugeValue, float64(c.Requests)},
			{m.descriptors, prometheus.GaugeValue, float64(c.Descriptors)},
			{m.buffered, prometheus.GaugeValue, float64(c.BufferedBytes)},
			{m.kept, prometheus.GaugeValue, float64(c.KeptBytes)},
			{m.sessions, prometheus.GaugeValue, float64(c.Sessions)},
			{m.logs, prometheus.GaugeValue, float64(c.LogBytes)},
			{m.database, prometheus.CounterValue, float64(c.DatabaseBytes)},
			{m.checkpoints, prometheus.CounterValue, c.Checkpoints.Seconds()},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, label)
		}
	}
}
