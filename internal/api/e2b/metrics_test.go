package e2b

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// measured gives a sandbox a sample for each of so many seconds from the epoch
// of the tests on.
func (w *world) measured(id string, offsets ...int) {
	w.Fake.Measured = map[string][]usage.Sample{}
	for _, n := range offsets {
		w.Fake.Measured[id] = append(w.Fake.Measured[id], usage.Sample{
			At: epoch.Truncate(time.Second).Add(time.Duration(n) * time.Second), CPUPercent: 12.5012 * float64(n), Memory: int64(n) << 20, Cache: 5, DiskUsed: 6, DiskTotal: 7,
		})
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID": "base"}`)
	if got := w.do("GET", "/sandboxes/"+id+"/metrics", "").Is(http.StatusOK).Body; got != "[]" {
		t.Errorf("before the first sample: %s", got)
	}
	w.measured(id, 0, 5, 600)
	first := `{"timestamp":"2026-09-01T12:00:05.000000Z","timestampUnix":1788264005,"cpuCount":2,"cpuUsedPct":62.51,` +
		`"memUsed":5242880,"memTotal":536870912,"memCache":5,"diskUsed":6,"diskTotal":7}`
	for query, want := range map[string]string{
		"?start=1788264001&end=1788264010": "[" + first + "]",
		"?start=1788264005&end=1788264005": "[" + first + "]",
		"?end=1788263000":                  "[]",
	} {
		if got := w.do("GET", "/sandboxes/"+id+"/metrics"+query, "").Is(http.StatusOK).Body; got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	all := w.do("GET", "/sandboxes/"+id+"/metrics", "").list()
	if len(all) != 3 || all[2]["memUsed"].(float64) != 512<<20 {
		t.Errorf("the whole history: %v; want the last cut down to the memory that there is", all)
	}

	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	before := len(w.Fake.Log())
	if got := w.do("GET", "/sandboxes/"+id+"/metrics", "").list(); len(got) != 3 {
		t.Errorf("of a paused sandbox: %v", got)
	}
	if got := len(w.Fake.Log()); got != before {
		t.Error("asking for metrics has changed the sandbox")
	}
}

func TestMetricsRange(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID": "base"}`)
	for _, query := range []string{"?start=x", "?end=1.5", "?start=-1", "?start=2&end=1", "?end=999999999999", "?start=%zz"} {
		w.do("GET", "/sandboxes/"+id+"/metrics"+query, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	for path, status := range map[string]int{"/sandboxes/" + id: http.StatusBadRequest, "/sandboxes/inobody/metrics": http.StatusNotFound, "/templates": http.StatusBadRequest} {
		w.do("GET", path+"?start=%zz", "").fails(status, "", "")
	}
}

func TestLastMetrics(t *testing.T) {
	w := newWorld(t)
	id, unmeasured := w.create(`{"templateID": "base"}`), w.create(`{"templateID": "base"}`)
	w.measured(id, 0, 5)
	a := w.do("GET", "/sandboxes/metrics?sandbox_ids="+id+",nobody,"+unmeasured, "").Is(http.StatusOK).Object()
	found := a["sandboxes"].(map[string]any)
	if len(found) != 1 || found[id].(map[string]any)["timestampUnix"].(float64) != 1788264005 {
		t.Errorf("metrics %v, want the last of %s alone", found, id)
	}
	for _, ids := range []string{"", ",", strings.Repeat("a,", 101), "a_b"} {
		w.do("GET", "/sandboxes/metrics?sandbox_ids="+ids, "").fails(http.StatusBadRequest, "", "")
	}
	w.do("DELETE", "/sandboxes/"+id, "").Is(http.StatusNoContent)
	if got := w.do("GET", "/sandboxes/metrics?sandbox_ids="+id, "").Is(http.StatusOK).Body; got != `{"sandboxes":{}}` {
		t.Errorf("of a killed sandbox: %s", got)
	}
}

func TestFleetMetrics(t *testing.T) {
	w := newWorld(t)
	if got := w.do("GET", "/teams/any/metrics", "").Is(http.StatusOK).Body; got != "[]" {
		t.Errorf("before the first sample: %s", got)
	}
	at := func(n int) time.Time { return epoch.Truncate(time.Second).Add(time.Duration(n) * time.Second) }
	w.Fake.Ran = []usage.FleetSample{{At: at(0), Running: 7, StartsRate: 0.5}, {At: at(5), Running: 3, StartsRate: 2}, {At: at(10)}}
	want := `[{"timestamp":"2026-09-01T12:00:05.000000Z","timestampUnix":1788264005,"concurrentSandboxes":3,"sandboxStartRate":2}]`
	if got := w.do("GET", "/teams/any/metrics?start=1788264004&end=1788264006", "").Is(http.StatusOK).Body; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for query, want := range map[string]string{
		"?metric=concurrent_sandboxes":                  `{"timestamp":"2026-09-01T12:00:00.000000Z","timestampUnix":1788264000,"value":7}`,
		"?metric=concurrent_sandboxes&start=1788264001": `{"timestamp":"2026-09-01T12:00:05.000000Z","timestampUnix":1788264005,"value":3}`,
		"?metric=sandbox_start_rate":                    `{"timestamp":"2026-09-01T12:00:05.000000Z","timestampUnix":1788264005,"value":2}`,
		"?metric=sandbox_start_rate&end=1":              `{"timestamp":"1970-01-01T00:00:00.000000Z","timestampUnix":0,"value":0}`,
	} {
		if got := w.do("GET", "/teams/any/metrics/max"+query, "").Is(http.StatusOK).Body; got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	w.do("GET", "/teams/any/metrics/max?metric=x", "").fails(http.StatusBadRequest, "", "concurrent_sandboxes")
}
