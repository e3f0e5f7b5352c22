package e2b

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
)

// logged gives a sandbox a line for each second from the epoch of the tests on.
func (w *world) logged(id string) {
	for n, l := range []journal.Line{
		{Level: journal.Info, Message: "process started: true", Fields: map[string]string{"pid": "7"}},
		{Level: journal.Debug, Message: "detail"},
		{Level: journal.Warn, Message: "Process ended: exit status 3"},
		{Level: journal.Error, Message: "process could not be started"},
	} {
		l.At = epoch.Add(time.Duration(n) * time.Second)
		w.Fake.Logged[id] = append(w.Fake.Logged[id], l)
	}
}

// messages returns the levels of the lines of a log, which tell them apart.
func (a answer) levels() string {
	a.T.Helper()
	var all []string
	for _, l := range a.Is(http.StatusOK).Object()["logs"].([]any) {
		all = append(all, fmt.Sprint(l.(map[string]any)["level"]))
	}
	return strings.Join(all, " ")
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	w.Fake.Logged = map[string][]journal.Line{}
	id := w.create(`{"templateID": "base"}`)
	if got := w.do("GET", "/v2/sandboxes/"+id+"/logs", "").Is(http.StatusOK).Body; got != `{"logs":[]}` {
		t.Errorf("an empty log: %s", got)
	}
	if got := w.do("GET", "/sandboxes/"+id+"/logs", "").Is(http.StatusOK).Body; got != `{"logEntries":[],"logs":[]}` {
		t.Errorf("an empty log, old: %s", got)
	}
	w.logged(id)
	second := fmt.Sprint(epoch.Add(time.Second).UnixMilli())
	for query, want := range map[string]string{
		"":                                         "error warn debug info",
		"?direction=forward":                       "info debug warn error",
		"?direction=forward&cursor=" + second:      "debug warn error",
		"?direction=backward&cursor=" + second:     "debug info",
		"?limit=2":                                 "error warn",
		"?limit=2&direction=forward":               "info debug",
		"?level=info":                              "error warn info",
		"?level=error":                             "error",
		"?level=debug&direction=forward":           "info debug warn error",
		"?search=PROCESS&direction=forward":        "info warn error",
		"?search=exit%20status&level=warn":         "warn",
		"?search=nothing":                          "",
		"?direction=forward&cursor=99999999999999": "",
	} {
		if got := w.do("GET", "/v2/sandboxes/"+id+"/logs"+query, "").levels(); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	first := `{"timestamp":"2026-09-01T12:00:00.123456Z","message":"process started: true","level":"info","fields":{"pid":"7"}}`
	if got := w.do("GET", "/v2/sandboxes/"+id+"/logs?limit=1&direction=forward", "").Body; got != `{"logs":[`+first+`]}` {
		t.Errorf("a line is %s", got)
	}
	old := `{"logEntries":[` + first + `],"logs":[{"timestamp":"2026-09-01T12:00:00.123456Z","line":"{\"level\":\"info\",\"logger\":\"sandbox\",\"message\":\"process started: true\",\"pid\":\"7\"}"}]}`
	if got := w.do("GET", "/sandboxes/"+id+"/logs?limit=1", "").Body; got != old {
		t.Errorf("the old form is %s, want %s", got, old)
	}
	if got := w.do("GET", "/sandboxes/"+id+"/logs?start="+second, "").Is(http.StatusOK).Object()["logs"].([]any); len(got) != 3 {
		t.Errorf("the old form from the second on: %v", got)
	}
	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	before := len(w.Fake.Log())
	if got := w.do("GET", "/v2/sandboxes/"+id+"/logs?limit=1", "").levels(); got != "error" || len(w.Fake.Log()) != before {
		t.Errorf("of a paused sandbox: %s, after %d events instead of %d", got, len(w.Fake.Log()), before)
	}
}

func TestLogQueriesAreJudged(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID": "base"}`)
	for _, query := range []string{"?limit=0", "?limit=1001", "?cursor=x", "?cursor=-1", "?direction=up", "?level=fatal", "?search=" + strings.Repeat("x", 257)} {
		w.do("GET", "/v2/sandboxes/"+id+"/logs"+query, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	for _, query := range []string{"?limit=0", "?start=x"} {
		w.do("GET", "/sandboxes/"+id+"/logs"+query, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
}
