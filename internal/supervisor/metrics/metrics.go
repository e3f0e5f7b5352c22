// Package metrics is what the server counts of its sandboxes, as Prometheus asks for
// it. Names of states, causes and entries are those of the event log. What is now,
// rather than what has been, is asked for when somebody wants to know.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
)

// State is what there is now.
type State struct {
	Situations map[lifecycle.Situation]int // sandboxes
	Holds      map[awake.HoldKind]int      // those that count, of sandboxes that run
	Accesses   int                         // open
	Merging    int                         // sandboxes whose layers are being merged, or looked at
	Costs      map[string]cost.Cost        // by the labels of keys

	LightSleepers int                      // sandboxes whose frozen runtime stands by
	LightMemory   int64                    // bytes that those hold
	LightReleased map[lightsleep.Why]int64 // such runtimes given up since the start, by why
}

// Metrics counts. It is safe for concurrent use.
type Metrics struct {
	now func() State

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
	light       light
	keys        keys
	more        []prometheus.Collector
}

// seconds spans what operations take, from a thaw to a large memory on a slow
// disk.
var seconds = prometheus.ExponentialBuckets(0.001, 2, 18)

// New returns metrics. now returns what there is.
func New(now func() State) *Metrics {
	return &Metrics{
		now: now, keys: newKeys(), light: newLight(),
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

func (m *Metrics) parts() []prometheus.Collector {
	return append([]prometheus.Collector{m.transitions, m.durations, m.wake, m.lateness, m.written, m.freed, m.merges, m.refusals, m.light.wakes}, m.more...)
}

// Add has what another part counts among what the supervisor counts. It is called before
// anybody asks for that.
func (m *Metrics) Add(c prometheus.Collector) { m.more = append(m.more, c) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.parts() {
		c.Describe(ch)
	}
	ch <- m.sandboxes
	ch <- m.merging
	ch <- m.accesses
	ch <- m.holds
	m.light.describe(ch)
	m.keys.describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.parts() {
		c.Collect(ch)
	}
	is := m.now()
	for _, at := range lifecycle.Situations() {
		ch <- prometheus.MustNewConstMetric(m.sandboxes, prometheus.GaugeValue, float64(is.Situations[at]), string(at))
	}
	ch <- prometheus.MustNewConstMetric(m.merging, prometheus.GaugeValue, float64(is.Merging))
	ch <- prometheus.MustNewConstMetric(m.accesses, prometheus.GaugeValue, float64(is.Accesses))
	for _, kind := range awake.HoldKinds() {
		ch <- prometheus.MustNewConstMetric(m.holds, prometheus.GaugeValue, float64(is.Holds[kind]), string(kind))
	}
	m.light.collect(ch, is)
	m.keys.collect(ch, is.Costs)
}

// Entry counts an entry of the event log.
func (m *Metrics) Entry(e lifecycle.Entry) {
	m.transitions.WithLabelValues(string(e.Type), string(e.Cause)).Inc()
	if e.Duration > 0 {
		m.durations.WithLabelValues(string(e.Type)).Observe(e.Duration.Seconds())
	}
	switch {
	case e.Type == lifecycle.EntryPaused, e.Type == lifecycle.EntryRestored:
		m.written.Add(float64(e.Bytes))
		m.freed.Add(float64(e.Freed))
	case e.Type == lifecycle.EntryResumed && e.Cause == lifecycle.CauseAccess:
		m.wake.Observe(e.Duration.Seconds())
	}
}

// Refused counts a connection out that was refused.
func (m *Metrics) Refused(why egress.Reason) { m.refusals.WithLabelValues(string(why)).Inc() }

// Late counts a deadline that takes effect at a time.
func (m *Metrics) Late(d lifecycle.Deadline, at time.Time) {
	m.lateness.Observe(at.Sub(d.At).Seconds())
}

// Merged counts a merge of layers, by what came of it: committed, failed, or
// dropped.
func (m *Metrics) Merged(outcome string) { m.merges.WithLabelValues(outcome).Inc() }

// Thawed counts a wake that thawed a runtime that stood by.
func (m *Metrics) Thawed() { m.light.wakes.Inc() }
