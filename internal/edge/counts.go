package edge

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts is what the edge counts.
type counts struct {
	connections prometheus.Gauge
	refused     prometheus.Counter
	malformed   prometheus.Counter
	requests    *prometheus.CounterVec
	classes     map[string][6]prometheus.Counter // by protocol and class of status: looked up once
	bytes       *prometheus.CounterVec
	in, out     prometheus.Counter
	forwarded   prometheus.Counter
	woken       prometheus.Histogram
}

func newCounts() *counts {
	c := &counts{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drowse_edge_connections", Help: "Client connections that speak HTTP/1.1.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_edge_refused_connections_total", Help: "Connections refused because their client had too many.",
		}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_edge_malformed_requests_total", Help: "Requests refused because they were malformed or ambiguous.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drowse_edge_requests_total", Help: "Requests for sandboxes, by protocol and class of status; class 0xx got no answer.",
		}, []string{"protocol", "class"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drowse_edge_bytes_total", Help: "Bytes of bodies passed on, by direction.",
		}, []string{"direction"}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drowse_edge_forwarded_requests_total", Help: "Requests passed on to the server of the database that has their sandbox.",
		}),
		woken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drowse_edge_wake_wait_seconds", Help: "How long requests waited for a sandbox that slept.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 13),
		}),
		classes: map[string][6]prometheus.Counter{},
	}
	for _, protocol := range []string{"1.1", "2"} {
		var by [6]prometheus.Counter
		for i := range by {
			by[i] = c.requests.WithLabelValues(protocol, strconv.Itoa(i)+"xx")
		}
		c.classes[protocol] = by
	}
	c.in, c.out = c.bytes.WithLabelValues("in"), c.bytes.WithLabelValues("out")
	return c
}

func (c *counts) parts() []prometheus.Collector {
	return []prometheus.Collector{c.connections, c.refused, c.malformed, c.requests, c.bytes, c.forwarded, c.woken}
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(ch chan<- *prometheus.Desc) {
	for _, p := range c.parts() {
		p.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.parts() {
		p.Collect(ch)
	}
}

// begin is when a request has begun, for the log.
func (e *edge) begin() (t time.Time) {
	if e.accessLog {
		t = time.Now()
	}
	return t
}

// served counts a request that is over, and logs it if asked to. Queries are
// not logged: they can hold tokens.
func (e *edge) served(r *request, p *passage, protocol string, status int, sent, received int64, begin time.Time) {
	e.counts.classes[protocol][min(status/100, 5)].Inc()
	e.counts.out.Add(float64(sent))
	e.counts.in.Add(float64(received))
	if !e.accessLog {
		return
	}
	var id, server string
	var port int
	if p != nil {
		id, port, server = p.id, p.port, p.server
	}
	log := e.log
	if server != "" {
		log = log.With(slog.String("server", server))
	}
	log.Info("request", slog.String("sandbox", id), slog.Int("port", port), slog.String("method", r.method),
		slog.String("host", r.host), slog.String("path", rawPath(r.target)), slog.String("protocol", protocol),
		slog.Int("status", status), slog.Int64("sent", sent), slog.Int64("received", received),
		slog.Duration("dur", time.Since(begin)), slog.String("client", r.client.String()), slog.Bool("woke", p != nil && p.asleep))
}
