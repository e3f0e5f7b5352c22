package ui

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

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
