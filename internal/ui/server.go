package ui

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/drowse-dev/drowse/client"
)

// measures are what a server counts, by the names of its metrics.
type measures map[string]*dto.MetricFamily

// value returns the sum of a metric over all labels, and whether it is there.
func (m measures) value(name string) (float64, bool) {
	f := m[name]
	if f == nil {
		return 0, false
	}
	var sum float64
	for _, one := range f.Metric {
		sum += valueOf(one)
	}
	return sum, true
}

// Number returns it as a whole number, 0 if it is not there.
func (m measures) Number(name string) int64 {
	v, _ := m.value(name)
	return int64(v)
}

// Has reports whether it is there: what cannot be found out is left out.
func (m measures) Has(name string) bool { return m[name] != nil }

// by returns a metric by a label, added up over the others.
func (m measures) by(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, one := range m[name].GetMetric() {
		for _, l := range one.Label {
			if l.GetName() == label {
				sums[l.GetValue()] += valueOf(one)
			}
		}
	}
	return sums
}

func valueOf(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
}

// tally is how often something was counted.
type tally struct {
	Name  string
	Count int64
	Bad   bool
}

// tallies returns what was counted at least once, most often first.
func tallies(counts map[string]float64) []tally {
	var all []tally
	for name, n := range counts {
		if n > 0 {
			all = append(all, tally{name, int64(n), strings.HasSuffix(name, "_failed") || name == "runtime_lost"})
		}
	}
	slices.SortFunc(all, func(a, b tally) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return all
}

type serverData struct {
	Unready    string // why no sandbox starts; empty if one does
	Version    string
	Started    time.Time
	Counts     measures
	Situations []tally
	Events     []tally
	Findings   []finding
	Calls      []client.AuditEntry // newest first
	Servers    []client.Server     // of one database; none where the server keeps its records by itself
}

// finding is what the server has found of its host.
type finding struct{ client.Finding }

// Mark is the word that drowse doctor puts before it.
func (f finding) Mark() string {
	switch {
	case f.OK:
		return "ok"
	case f.Required:
		return "FAIL"
	}
	return "note"
}

// mostCalls is how many entries of the audit log the page has.
const mostCalls = 20

// serverPage shows how the server does: what it counts, and who called it.
func serverPage(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx := v.r.Context()
	var d serverData
	if d.Calls, _, err = client.Audit(ctx, a.Client, client.AuditQuery{Most: mostCalls}); err != nil {
		return err // the API refuses those here who are no admins
	}
	slices.Reverse(d.Calls)
	if d.Servers, err = client.Servers(ctx, a.Client); err != nil {
		return err
	}
	_, found, err := client.Doctor(ctx, a.Client)
	if err != nil {
		return err
	}
	for _, f := range found {
		d.Findings = append(d.Findings, finding{f})
	}
	status, text, err := a.text(ctx, "/readyz")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		d.Unready = string(bytes.TrimSpace(text))
	}
	if d.Counts, err = a.measures(ctx); err != nil {
		return err
	}
	d.Version = strings.Join(slices.Sorted(maps.Keys(d.Counts.by("drowse_build_info", "version"))), ", ")
	if begin, ok := d.Counts.value("process_start_time_seconds"); ok {
		d.Started = time.UnixMilli(int64(1000 * begin))
	}
	d.Situations = tallies(d.Counts.by("drowse_sandboxes", "situation"))
	d.Events = tallies(d.Counts.by("drowse_transitions_total", "type"))
	v.render(http.StatusOK, "server", screen{Title: "Server", Section: "server", Data: d})
	return nil
}

// maxText bounds an answer that is text.
const maxText = 4 << 20

// text returns an answer that is text, whatever its status.
func (a api) text(ctx context.Context, path string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-API-Key", a.key)
	resp, err := a.http.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("ask the server: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxText))
	return resp.StatusCode, text, err
}

func (a api) measures(ctx context.Context) (measures, error) {
	status, text, err := a.text(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, &client.Error{Status: status, Message: string(bytes.TrimSpace(text))}
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	all, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("understand the server's metrics: %w", err)
	}
	return all, nil
}
