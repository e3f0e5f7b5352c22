package e2b

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// metricView is what a sandbox used at a time; sizes are bytes.
type metricView struct {
	Timestamp     httpapi.Timestamp `json:"timestamp"`
	TimestampUnix int64             `json:"timestampUnix"`
	CPUCount      int               `json:"cpuCount"`
	CPUUsedPct    float64           `json:"cpuUsedPct"`
	MemUsed       int64             `json:"memUsed"`
	MemTotal      int64             `json:"memTotal"`
	MemCache      int64             `json:"memCache"`
	DiskUsed      int64             `json:"diskUsed"`
	DiskTotal     int64             `json:"diskTotal"`
}

// viewMetric shows no more memory in use than there is: what the sandbox's
// runtime takes for itself is counted as well.
func viewMetric(limits store.Limits, s usage.Sample) metricView {
	total := int64(limits.MemoryMiB) << 20
	return metricView{
		Timestamp: httpapi.Timestamp(s.At), TimestampUnix: s.At.Unix(),
		CPUCount: limits.VCPUs(), CPUUsedPct: math.Round(100*s.CPUPercent) / 100,
		MemUsed: min(s.Memory, total), MemTotal: total, MemCache: s.Cache,
		DiskUsed: s.DiskUsed, DiskTotal: s.DiskTotal,
	}
}

func (s *server) metrics(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	from, to, err := parseRange(c.query)
	if err != nil {
		return reply{}, err
	}
	samples, err := s.Sandboxes.Samples(c.r.Context(), sb.ID, from, to)
	if err != nil {
		return reply{}, err
	}
	views := make([]metricView, 0, len(samples))
	for _, sample := range samples {
		views = append(views, viewMetric(sb.Config.Limits, sample))
	}
	return reply{Status: http.StatusOK, Body: views}, nil
}

// parseRange reads start and end, in Unix seconds; what is not said is zero.
func parseRange(params url.Values) (from, to time.Time, err error) {
	if from, err = parseSeconds(params, "start"); err != nil {
		return from, to, err
	}
	if to, err = parseSeconds(params, "end"); err != nil {
		return from, to, err
	}
	if !from.IsZero() && !to.IsZero() && to.Before(from) {
		return from, to, badRequest(`"end" must not be before "start"`)
	}
	return from, to, nil
}

// mostSeconds is the last second of the year 9999.
const mostSeconds = 253402300799

func parseSeconds(params url.Values, name string) (time.Time, error) {
	n, err := parseInteger(params, name, mostSeconds, "a time in seconds since 1970")
	if n < 0 || err != nil {
		return time.Time{}, err
	}
	return time.Unix(n, 0), nil
}

// parseInteger returns -1 for what is not there.
func parseInteger(params url.Values, name string, most int64, what string) (int64, error) {
	text := params.Get(name)
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return -1, badRequest("%q must be %s", name, what)
	}
	return n, nil
}

// lastMetrics leaves out sandboxes that are not there for the key, and those that
// have not been measured yet.
func (s *server) lastMetrics(c *call) (reply, error) {
	ids := strings.Split(strings.Join(c.query["sandbox_ids"], ","), ",")
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	if len(ids) == 0 || len(ids) > maxPage {
		return reply{}, badRequest(`"sandbox_ids" must name 1 to %d sandboxes, joined by commas`, maxPage)
	}
	found := map[string]metricView{}
	for _, id := range ids {
		if _, err := parseSandboxID(id); err != nil {
			return reply{}, err
		}
		sb, err := s.Sandboxes.Get(c.r.Context(), id)
		if err != nil || !visible(sb.Record) || !auth.Sees(c.key, sb.Config.Key) {
			continue
		}
		if sample, ok := s.Sandboxes.LastSample(id); ok {
			found[id] = viewMetric(sb.Config.Limits, sample)
		}
	}
	return reply{Status: http.StatusOK, Body: map[string]any{"sandboxes": found}}, nil
}

// fleetView is how many sandboxes ran at a time. There is one team, whatever it
// is called.
type fleetView struct {
	Timestamp           httpapi.Timestamp `json:"timestamp"`
	TimestampUnix       int64             `json:"timestampUnix"`
	ConcurrentSandboxes int               `json:"concurrentSandboxes"`
	SandboxStartRate    float64           `json:"sandboxStartRate"`
}

func (s *server) fleetMetrics(c *call) (reply, error) {
	samples, err := s.fleet(c)
	if err != nil {
		return reply{}, err
	}
	views := make([]fleetView, 0, len(samples))
	for _, f := range samples {
		views = append(views, fleetView{httpapi.Timestamp(f.At), f.At.Unix(), f.Running, f.StartsRate})
	}
	return reply{Status: http.StatusOK, Body: views}, nil
}

// The metrics that have a maximum.
const (
	concurrentSandboxes = "concurrent_sandboxes"
	sandboxStartRate    = "sandbox_start_rate"
)

type peakView struct {
	Timestamp     httpapi.Timestamp `json:"timestamp"`
	TimestampUnix int64             `json:"timestampUnix"`
	Value         float64           `json:"value"`
}

// fleetPeak answers with a zero at the epoch if nothing was measured in the
// time.
func (s *server) fleetPeak(c *call) (reply, error) {
	samples, err := s.fleet(c)
	if err != nil {
		return reply{}, err
	}
	value := func(f usage.FleetSample) float64 { return float64(f.Running) }
	switch c.query.Get("metric") {
	case concurrentSandboxes:
	case sandboxStartRate:
		value = func(f usage.FleetSample) float64 { return f.StartsRate }
	default:
		return reply{}, badRequest(`"metric" must be %s or %s`, concurrentSandboxes, sandboxStartRate)
	}
	peak := usage.FleetSample{At: time.Unix(0, 0)}
	if len(samples) > 0 {
		peak = slices.MaxFunc(samples, func(a, b usage.FleetSample) int { return cmp.Compare(value(a), value(b)) })
	}
	return reply{Status: http.StatusOK, Body: peakView{httpapi.Timestamp(peak.At), peak.At.Unix(), value(peak)}}, nil
}

func (s *server) fleet(c *call) ([]usage.FleetSample, error) {
	from, to, err := parseRange(c.query)
	if err != nil {
		return nil, err
	}
	return s.Sandboxes.Fleet(c.r.Context(), from, to), nil
}
