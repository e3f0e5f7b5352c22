package serve

import (
	"context"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/version"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// collectTime bounds how long one look at the webhooks, or at the sandboxes, takes.
const collectTime = 2 * time.Second

// gauges are what operators watch of the server itself: its build, its disk, what its
// sandboxes use, the keys that it refuses, and its webhooks.
type gauges struct {
	stateDir  string
	server    string // its id among those of its database; "" without others
	sandboxes sampled
	keys      *auth.Keys
	hooks     *webhook.Sender

	build, free, used, size, memory, cpus, refused, backlog, failing, dropped *prometheus.Desc
}

// sampled is all sandboxes, with what each used last.
type sampled interface {
	All(ctx context.Context) ([]store.Sandbox, error)
	LastSample(id string) (usage.Sample, bool)
}

func newGauges(stateDir, server string, sandboxes sampled, keys *auth.Keys, hooks *webhook.Sender) gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("drowse_"+name, help, labels, nil)
	}
	return gauges{
		stateDir: stateDir, server: server, sandboxes: sandboxes, keys: keys, hooks: hooks,
		build:   desc("build_info", "1, with what this server was built from as labels, and its id, where several have one database.", "version", "goversion", "platform", "server"),
		free:    desc("disk_free_bytes", "Bytes that are free on the disk of the state directory."),
		used:    desc("disk_used_bytes", "Bytes that are taken on the disk of the state directory, by whomever."),
		memory:  desc("sandboxes_memory_bytes", "Memory that the running sandboxes use, as measured last, without what is only cached."),
		cpus:    desc("sandboxes_cpus", "CPUs that the running sandboxes keep busy, as measured last."),
		size:    desc("disk_size_bytes", "Size of the disk of the state directory."),
		refused: desc("api_keys_refused_total", "Malformed, unknown and expired API keys that requests came with."),
		backlog: desc("webhook_backlog_events", "Events of the log that the enabled webhook that is furthest behind has not come to yet."),
		failing: desc("webhooks_failing", "Enabled webhooks whose last delivery failed."),
		dropped: desc("webhook_dropped_total", "Events given up, of all webhooks that there are."),
	}
}

// Describe implements prometheus.Collector.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.build, g.free, g.used, g.size, g.memory, g.cpus, g.refused, g.backlog, g.failing, g.dropped} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. What cannot be found out is left out.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n)
	}
	ch <- prometheus.MustNewConstMetric(g.build, prometheus.GaugeValue, 1, version.String(), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH, g.server)
	var disk unix.Statfs_t
	if unix.Statfs(g.stateDir, &disk) == nil {
		gauge(g.free, float64(disk.Bavail)*float64(disk.Bsize))
		gauge(g.used, float64(disk.Blocks-disk.Bfree)*float64(disk.Bsize))
		gauge(g.size, float64(disk.Blocks)*float64(disk.Bsize))
	}
	g.usage(gauge)
	ch <- prometheus.MustNewConstMetric(g.refused, prometheus.CounterValue, float64(g.keys.Refused()))
	g.webhooks(ch)
}

// usage adds up what was measured of sandboxes that run.
func (g gauges) usage(gauge func(*prometheus.Desc, float64)) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	all, err := g.sandboxes.All(ctx)
	if err != nil {
		return
	}
	var memory, cpus float64
	for _, sb := range all {
		last, measured := g.sandboxes.LastSample(sb.ID)
		if !measured || sb.Record.State != lifecycle.Running {
			continue
		}
		memory += float64(last.Memory)
		cpus += last.CPUPercent / 100 * sb.Config.Limits.CPUs
	}
	gauge(g.memory, memory)
	gauge(g.cpus, cpus)
}

// webhooks tells of the deliveries of the server that makes them, of several with one store.
func (g gauges) webhooks(ch chan<- prometheus.Metric) {
	if !g.hooks.Delivers() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	var backlog, failing, dropped float64
	for _, w := range g.hooks.List() {
		st, err := g.hooks.Stats(ctx, w.ID)
		if err != nil {
			continue // it is gone meanwhile, or the log cannot be read, which shows elsewhere
		}
		dropped += float64(st.Dropped)
		if !w.Enabled {
			continue
		}
		backlog = max(backlog, float64(st.Last-st.Cursor))
		if st.Failures > 0 {
			failing++
		}
	}
	ch <- prometheus.MustNewConstMetric(g.backlog, prometheus.GaugeValue, backlog)
	ch <- prometheus.MustNewConstMetric(g.failing, prometheus.GaugeValue, failing)
	ch <- prometheus.MustNewConstMetric(g.dropped, prometheus.CounterValue, dropped)
}

// membership is what a server knows of those of its database, itself included.
type membership struct {
	list     func(context.Context) ([]store.Server, error)
	leaseAge func() time.Duration

	servers, lease *prometheus.Desc
}

func newMembership(list func(context.Context) ([]store.Server, error), leaseAge func() time.Duration) membership {
	return membership{
		list: list, leaseAge: leaseAge,
		servers: prometheus.NewDesc("drowse_servers", "Servers of the database, as this one sees them: each is alive, draining, leaving or gone.", []string{"state"}, nil),
		lease:   prometheus.NewDesc("drowse_lease_age_seconds", "Seconds since this server has renewed its lease. It serves nobody once that is over.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m membership) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.servers
	ch <- m.lease
}

// Collect implements prometheus.Collector. While the database does not answer, the servers are left out.
func (m membership) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(m.lease, prometheus.GaugeValue, m.leaseAge().Seconds())
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	all, err := m.list(ctx)
	if err != nil {
		return
	}
	states := map[string]int{"alive": 0, "draining": 0, "leaving": 0, "gone": 0}
	for _, srv := range all {
		switch {
		case !srv.Alive():
			states["gone"]++
		case srv.Leaving:
			states["leaving"]++
		case srv.Draining:
			states["draining"]++
		default:
			states["alive"]++
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(m.servers, prometheus.GaugeValue, float64(n), state)
	}
}
