package supervisor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
)

// meteredStore is a store.Store that tells what it writes for each key.
type meteredStore interface {
	Meter(wrote func(key string, bytes int))
}

// CountBuffers has the costs of a key include what f returns: bytes that its
// requests hold elsewhere. It is called before the supervisor serves anybody.
func (s *Supervisor) CountBuffers(f func(key string) int) { s.buffers = f }

// KeyCosts returns what the keys cost the server, of those that have sandboxes or
// have cost something since the server's start.
func (s *Supervisor) KeyCosts() map[string]cost.Cost {
	costs := map[string]cost.Cost{}
	s.each(func(b *box) {
		b.mu.Lock()
		key, requests, ended := b.sb.Config.Key, b.work.Accesses(), b.sb.Record.State == lifecycle.Terminated
		b.mu.Unlock()
		if ended {
			return
		}
		c := costs[key]
		c.Requests += requests
		c.LogBytes += s.logs().Size(b.id)
		costs[key] = c
	})
	for _, key := range s.ledger.Keys() {
		if _, known := costs[key]; !known { // its sandboxes have all ended
			costs[key] = cost.Cost{}
		}
	}
	for key, c := range costs {
		costs[key] = s.withNow(key, c)
	}
	return costs
}

// withNow adds what is known by key.
func (s *Supervisor) withNow(key string, c cost.Cost) cost.Cost {
	c.Starting = s.launcher.Of(key)
	c.Descriptors, c.BufferedBytes = s.egress.Of(key)
	if s.buffers != nil {
		c.BufferedBytes += s.buffers(key)
	}
	s.ledger.Fill(key, &c)
	return c
}

// spend counts the time from begin on, for a checkpoint of a key's sandbox.
func (s *Supervisor) spend(key string, begin time.Time) { s.ledger.Spent(key, time.Since(begin)) }

// keyMetrics are those that have a key as their label.
type keyMetrics struct {
	starting, requests, descriptors, buffered, logs, database, checkpoints *prometheus.Desc
}

func newKeyMetrics() keyMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("drowse_key_"+name, help+" By API key; those past the first hundred are one, \"other\".", []string{"key"}, nil)
	}
	return keyMetrics{
		starting:    desc("starting_sandboxes", "Sandboxes on their way up, those that wait for a turn included."),
		requests:    desc("requests", "Requests and streams open into sandboxes."),
		descriptors: desc("egress_descriptors", "Descriptors of connections out of sandboxes."),
		buffered:    desc("buffered_bytes", "Bytes of request bodies, and of connections out whose name is not known yet."),
		logs:        desc("log_bytes", "Bytes kept of what sandboxes log."),
		database:    desc("database_written_bytes_total", "Bytes written to the database."),
		checkpoints: desc("checkpoint_seconds_total", "Time spent to checksum checkpoints, make them durable and verify them."),
	}
}

func (m keyMetrics) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.starting, m.requests, m.descriptors, m.buffered, m.logs, m.database, m.checkpoints} {
		ch <- d
	}
}

func (m keyMetrics) collect(ch chan<- prometheus.Metric, costs map[string]cost.Cost) {
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
			{m.logs, prometheus.GaugeValue, float64(c.LogBytes)},
			{m.database, prometheus.CounterValue, float64(c.DatabaseBytes)},
			{m.checkpoints, prometheus.CounterValue, c.Checkpoints.Seconds()},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, label)
		}
	}
}
