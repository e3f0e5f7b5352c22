package supervisor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// metrics is what the supervisor counts. Names of states, causes and entries
// are those of the event log.
type metrics struct {
	transitions *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	wake        prometheus.Histogram
	lateness    prometheus.Histogram
	written     prometheus.Counter
	freed       prometheus.Counter
	merges      *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	sandboxes   *prometheus.Desc
	merging     *prometheus.Desc
	accesses    *prometheus.Desc
	holds       *prometheus.Desc
	keys        keyMetrics
	s           *Supervisor
}

// seconds spans what operations take, from a thaw to a large memory on a slow
// disk.
var seconds = prometheus.ExponentialBuckets(0.001, 2, 18)

func newMetrics(s *Supervisor) *metrics {
	return &metrics{
		s: s, keys: newKeyMetrics(),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drowse_transitions_total", Help: "Entries of the event log, by type and cause.",
		}, []string{"type", "cause"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "drowse_operation_seconds", Help: "How long operations took, by the entry that ended them.", Buckets: seconds,
		}, []string{"type"}),
		wake: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drowse_wake_seconds", Help: "How long traffic waited for a sandbox to wake.", Buckets: seconds,
		}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drowse_timer_lateness_seconds", Help: "How late deadlines took effect.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_pause_written_bytes_total", Help: "Bytes of memory and files that pauses made durable.",
		}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_pause_freed_bytes_total", Help: "Bytes of memory that pauses gave back.",
		}),
		merges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drowse_layer_merges_total", Help: "Merges of a sandbox's layers into one, by what came of them: committed, failed, or dropped.",
		}, []string{"outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drowse_egress_refused_total", Help: "Connections out of sandboxes, and questions for names, that got no further than the server, by reason.",
		}, []string{"reason"}),
		sandboxes: prometheus.NewDesc("drowse_sandboxes", "Sandboxes, by situation.", []string{"situation"}, nil),
		merging:   prometheus.NewDesc("drowse_layer_merges", "Sandboxes whose layers are being merged, or looked at whether they should be.", nil, nil),
		accesses:  prometheus.NewDesc("drowse_accesses", "Requests and streams open into sandboxes.", nil, nil),
		holds:     prometheus.NewDesc("drowse_holds", "What keeps running sandboxes awake, as far as it is known, by kind.", []string{"kind"}, nil),
	}
}

func (m *metrics) parts() []prometheus.Collector {
	return []prometheus.Collector{m.transitions, m.durations, m.wake, m.lateness, m.written, m.freed, m.merges, m.refusals}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.parts() {
		c.Describe(ch)
	}
	ch <- m.sandboxes
	ch <- m.merging
	ch <- m.accesses
	ch <- m.holds
	m.keys.describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.parts() {
		c.Collect(ch)
	}
	count := map[lifecycle.Situation]int{}
	holds := map[awake.HoldKind]int{}
	accesses, merging, t := 0, 0, now()
	m.s.each(func(b *box) {
		b.mu.Lock()
		defer b.mu.Unlock()
		count[b.sb.Record.Situation()]++
		accesses += b.work.Accesses()
		if b.merging || b.merged != nil && b.sb.Record.State == lifecycle.Paused {
			merging++
		}
		if b.sb.Record.State != lifecycle.Running {
			return
		}
		for _, h := range b.work.Holds(b.sb.Record, t) {
			if h.Counts {
				holds[h.Kind]++
			}
		}
	})
	for _, at := range lifecycle.Situations() {
		ch <- prometheus.MustNewConstMetric(m.sandboxes, prometheus.GaugeValue, float64(count[at]), string(at))
	}
	ch <- prometheus.MustNewConstMetric(m.merging, prometheus.GaugeValue, float64(merging))
	ch <- prometheus.MustNewConstMetric(m.accesses, prometheus.GaugeValue, float64(accesses))
	for _, kind := range []awake.HoldKind{awake.HoldRequest, awake.HoldStream, awake.HoldProcess, awake.HoldLease} {
		ch <- prometheus.MustNewConstMetric(m.holds, prometheus.GaugeValue, float64(holds[kind]), string(kind))
	}
	m.keys.collect(ch, m.s.ledger.ByLabel(m.s.KeyCosts()))
}

func (m *metrics) entry(e lifecycle.Entry) {
	m.transitions.WithLabelValues(string(e.Type), string(e.Cause)).Inc()
	if e.Duration > 0 {
		m.durations.WithLabelValues(string(e.Type)).Observe(e.Duration.Seconds())
	}
	switch {
	case e.Type == lifecycle.EntryPaused:
		m.written.Add(float64(e.Bytes))
		m.freed.Add(float64(e.Freed))
	case e.Type == lifecycle.EntryResumed && e.Cause == lifecycle.CauseAccess:
		m.wake.Observe(e.Duration.Seconds())
	}
}

func (m *metrics) refused(why egress.Reason) { m.refusals.WithLabelValues(string(why)).Inc() }

func (m *metrics) late(d lifecycle.Deadline, at time.Time) {
	m.lateness.Observe(at.Sub(d.At).Seconds())
}
