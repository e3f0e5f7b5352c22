package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// metrics returns what /metrics says, by name and labels.
func (w *world) metrics() map[string]float64 {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/metrics", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", testKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := cutLast(lines.Text())
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil && !strings.HasPrefix(name, "#") {
			values[name] = n
		}
	}
	return values
}

func cutLast(line string) (before, after string, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return line, "", false
	}
	return line[:i], line[i+1:], true
}

// until waits for a sandbox to get into a situation.
func (w *world) until(id string, at lifecycle.Situation) {
	w.t.Helper()
	for end := time.Now().Add(testmode.Patience()); w.state(id).Situation() != at; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("it is %s, not %s", w.state(id).Situation(), at)
		}
	}
}

// live leads a sandbox through every kind of change, and leaves it asleep.
func (w *world) live() (id string) {
	w.t.Helper()
	ctx := w.t.Context()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	request := operation{method: "GET", path: ":8000/"}
	id = w.create(true)
	_, err := w.sup.Hold(ctx, id, lifecycle.Lease{ID: "mine", Reason: "tests", Until: time.Now().Add(time.Hour)}, "")
	must(err)
	if got := w.metrics()[`drowse_holds{kind="lease"}`]; got != 1 {
		w.t.Errorf("%v leases, want 1", got)
	}
	must(w.sup.ReleaseHold(ctx, id, "mine", ""))
	w.capture = func() error { return errors.New("a full disk") }
	if err := w.sup.Pause(ctx, id, supervisor.PauseRequest{}); err == nil {
		w.t.Fatal("a pause without room succeeded")
	}
	w.capture = nil
	must(w.sup.Pause(ctx, id, supervisor.PauseRequest{}))
	w.do(request, id) // wakes it
	w.until(id, "running")
	_, err = w.sup.SetTimeout(ctx, id, time.Millisecond, "")
	must(err)
	w.until(id, "paused")
	return id
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	id := w.live()
	running, dead := w.create(false), w.create(false)
	if err := w.sup.Kill(t.Context(), dead, ""); err != nil {
		t.Fatal(err)
	}
	w.do(operation{method: "GET", path: "/v1/sandboxes/nothing"}, id)
	got := w.metrics()
	for name, want := range map[string]float64{
		`drowse_api_seconds_count{code="404",dialect="v1",method="get"}`: 1,
		`drowse_transitions_total{cause="call",type="created"}`:          3,
		`drowse_transitions_total{cause="call",type="pausing"}`:          2,
		`drowse_transitions_total{cause="call",type="pause_failed"}`:     1,
		`drowse_transitions_total{cause="call",type="paused"}`:           1,
		`drowse_transitions_total{cause="access",type="resumed"}`:        1,
		`drowse_transitions_total{cause="timeout",type="paused"}`:        1,
		`drowse_transitions_total{cause="call",type="terminated"}`:       1,
		`drowse_transitions_total{cause="",type="hold.opened"}`:          1,
		`drowse_transitions_total{cause="",type="hold.closed"}`:          1,
		`drowse_transitions_total{cause="",type="timeout_set"}`:          1,
		`drowse_operation_seconds_count{type="running"}`:                 3,
		`drowse_operation_seconds_count{type="paused"}`:                  2,
		`drowse_operation_seconds_count{type="pause_failed"}`:            1,
		`drowse_operation_seconds_count{type="resumed"}`:                 1,
		`drowse_wake_seconds_count`:                                      1,
		`drowse_pause_freed_bytes_total`:                                 2 * fake.MemoryBytes,
		`drowse_sandboxes{situation="running"}`:                          1,
		`drowse_sandboxes{situation="paused"}`:                           1,
		`drowse_sandboxes{situation="terminated"}`:                       1,
		`drowse_sandboxes{situation="pausing"}`:                          0,
		`drowse_accesses`:                                                0,
		`drowse_holds{kind="request"}`:                                   0,
		`drowse_holds{kind="stream"}`:                                    0,
		`drowse_holds{kind="process"}`:                                   0,
		`drowse_holds{kind="lease"}`:                                     0,
	} {
		if has, there := got[name]; !there || has != want {
			t.Errorf("%s is %v, want %v", name, has, want)
		}
	}
	for _, name := range []string{
		"drowse_timer_lateness_seconds_count", "drowse_timer_lateness_seconds_sum", "drowse_wake_seconds_sum",
		"drowse_pause_written_bytes_total", `drowse_operation_seconds_sum{type="paused"}`,
	} {
		if got[name] <= 0 {
			t.Errorf("%s is %v, want more", name, got[name])
		}
	}
	for _, id := range []string{id, running, dead} {
		w.oneLineEach(id)
	}
}

// oneLineEach holds that the server's log has one line for each entry of the
// event log of a sandbox.
func (w *world) oneLineEach(id string) {
	w.t.Helper()
	events, err := w.sup.Events(w.t.Context(), id, 0, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	var want, got []string
	for _, e := range events {
		want = append(want, "sandbox "+string(e.Type))
	}
	for line := range strings.Lines(w.log.String()) {
		var l struct {
			Level, Msg, Sandbox string
			From, To            *string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			w.t.Fatal(err)
		}
		if l.Sandbox == id && l.Level == "INFO" && l.From != nil && l.To != nil {
			got = append(got, l.Msg)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("the log has %q,\nwant one line for each of %q", got, want)
	}
}

// TestMonitoring holds the dashboard, the alert rules and their page to what there is: every
// metric that they name, and every type of entry.
func TestMonitoring(t *testing.T) {
	copies, err := blobs.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *supervisor.Options) { o.Blobs, o.BlobPrefix = copies, "copies" })
	w.live()
	testmode.Eventually(t, "the checkpoint is copied", func() bool {
		is := w.metrics()
		return is["drowse_replica_bytes_total"] > 0 && is["drowse_replicas_pending"] == 0
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/sandboxes", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "e2b_00")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	there := map[string]bool{}
	values := w.metrics()
	for name := range values {
		name, _, _ = strings.Cut(name, "{")
		there[name] = true
	}
	for name := range gathered(t, newMembership(func(context.Context) ([]store.Server, error) { return nil, nil }, func() time.Duration { return 0 })) {
		name, _, _ = strings.Cut(name, " ")
		there[name] = true
	}
	if values["drowse_api_keys_refused_total"] != 1 || values["drowse_disk_free_bytes"] <= 0 || values["drowse_disk_free_bytes"] > values["drowse_disk_size_bytes"] {
		t.Errorf("refused %v, free %v of %v", values["drowse_api_keys_refused_total"], values["drowse_disk_free_bytes"], values["drowse_disk_size_bytes"])
	}
	types := []lifecycle.EntryType{lifecycle.EntryPaused, lifecycle.EntryPauseFailed, lifecycle.EntryResumed, lifecycle.EntryResumeFailed, lifecycle.EntryRuntimeLost, lifecycle.EntryMoved}
	metric, entry := regexp.MustCompile(`\b(drowse|process|go)_[a-z_]+`), regexp.MustCompile(`type=~?\\?"([a-z_.|*]+)`)
	for _, file := range []string{"packaging/monitoring/alerts.yml", "packaging/monitoring/dashboard.json", "docs/monitor.md"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(text) {
			t.Errorf("%s is not JSON", file)
		}
		named := metric.FindAllString(string(text), -1)
		for _, name := range named {
			if !there[name] && !there[name+"_count"] && name != "drowse_key_" {
				t.Errorf("%s names the metric %s, which there is not", file, name)
			}
		}
		entries := entry.FindAllStringSubmatch(string(text), -1)
		for _, m := range entries {
			for word := range strings.SplitSeq(m[1], "|") {
				if form := regexp.MustCompile("^" + word + "$"); !slices.ContainsFunc(types, func(k lifecycle.EntryType) bool { return form.MatchString(string(k)) }) {
					t.Errorf("%s names entries of type %s, which there are not", file, word)
				}
			}
		}
		if page := strings.HasSuffix(file, ".md"); len(named) < 8 || len(entries) < 2 && !page {
			t.Errorf("%s names %d metrics and %d types: the test does not see what is there", file, len(named), len(entries))
		}
	}
}
