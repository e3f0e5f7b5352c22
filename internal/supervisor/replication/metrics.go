package replication

import "github.com/prometheus/client_golang/prometheus"

var (
	pendingDesc = prometheus.NewDesc("drowse_replicas_pending", "Paused sandboxes and snapshots of which object storage has no copy yet.", nil, nil)
	oldestDesc  = prometheus.NewDesc("drowse_replica_oldest_pending_seconds", "For how long the first of the paused sandboxes and snapshots without a copy has had none; 0 for none.", nil, nil)
)

// Collector returns what Prometheus asks for.
func (r *Replicator) Collector() prometheus.Collector { return collector{r} }

type collector struct{ r *Replicator }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- pendingDesc
	ch <- oldestDesc
	c.r.sent.Describe(ch)
	c.r.failed.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.r.mu.Lock()
	n, since := c.r.waiting()
	c.r.mu.Unlock()
	age := 0.0
	if n > 0 {
		age = max(0, c.r.o.Now().Sub(since).Seconds())
	}
	ch <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(n))
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age)
	c.r.sent.Collect(ch)
	c.r.failed.Collect(ch)
}
