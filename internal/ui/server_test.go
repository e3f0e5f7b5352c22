package ui

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

// TestFindings: what the server has found of its host, and what other servers there are, is
// told by words, and hostile text in it is text.
func TestFindings(t *testing.T) {
	const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>` + "\u202e"
	d := serverData{Findings: []finding{
		{client.Finding{Name: "kernel", OK: true, Detail: "Linux", Remedy: "not wanted"}},
		{client.Finding{Name: hostile, Detail: hostile, Remedy: hostile}},
		{client.Finding{Name: "runtime", Required: true, Detail: "not usable: " + strings.Repeat("long ", 1000), Remedy: "mend it"}},
	}, Servers: []client.Server{
		{ID: "srv_one", Name: hostile, Alive: true, Self: true, Room: &client.Room{Running: 3, MaxRunning: new(20), MemoryMiB: 2 << 10}}, {ID: "srv_two", Room: &client.Room{Running: 77}}, {ID: "srv_three", Alive: true, Leaving: true}, {ID: "srv_four", Alive: true, Draining: true, Drain: &client.Draining{Left: 7}},
	}}
	var b bytes.Buffer
	if err := pages()["server"].ExecuteTemplate(&b, "main", screen{Data: d}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{`>ok</td>`, `>note</td>`, `>FAIL</td>`, "&lt;script&gt;", "Next step: mend it", "not usable: long", ">3 of 20</td>", ">2.0 GiB</td>", ">gone</span>", ">leaving</td>", ">draining, 7 left</td>"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
	for _, not := range []string{"<script", "<img", "\u202e", "not wanted", "77", strings.Repeat("long ", 200)} {
		if strings.Contains(page, not) {
			t.Errorf("%q is in it", not)
		}
	}
}

// answers is a server that gives one answer.
type answers struct {
	status int
	text   string
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(a.text))}, nil
}

// TestMeasures: what the page of the server takes from its metrics.
func TestMeasures(t *testing.T) {
	ask := func(status int, text string) (measures, error) {
		return api{base: "http://server", http: &http.Client{Transport: answers{status, text}}}.measures(t.Context())
	}
	m, err := ask(http.StatusOK, `# TYPE drowse_transitions_total counter
drowse_transitions_total{cause="call",type="paused"} 2
drowse_transitions_total{cause="idle",type="paused"} 3
drowse_transitions_total{cause="idle",type="pause_failed"} 1
drowse_transitions_total{cause="idle",type="resumed"} 0
# TYPE drowse_disk_free_bytes gauge
drowse_disk_free_bytes 7.7e+10
unknown 3
`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tallies(m.by("drowse_transitions_total", "type")), []tally{{"paused", 5, false}, {"pause_failed", 1, true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the events are %+v", got)
	}
	if m.Number("drowse_disk_free_bytes") != 77_000_000_000 || m.Number("unknown") != 3 || m.Number("nothing") != 0 || m.Has("nothing") || !m.Has("unknown") {
		t.Errorf("the numbers are %d, %d", m.Number("drowse_disk_free_bytes"), m.Number("unknown"))
	}
	for status, text := range map[int]string{http.StatusForbidden: "sees its own sandboxes only\n", http.StatusOK: "no metrics {"} {
		if m, err := ask(status, text); err == nil {
			t.Errorf("%d %q: %v", status, text, m)
		}
	}
}
