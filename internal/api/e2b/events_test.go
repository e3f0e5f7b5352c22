package e2b

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/golden"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// types returns the types of a list of events, without what they begin with.
func (a answer) types() string {
	a.T.Helper()
	var types []string
	for _, e := range a.list() {
		types = append(types, strings.TrimPrefix(e["type"].(string), eventPrefix))
	}
	return strings.Join(types, " ")
}

// lives has a sandbox created, paused, resumed and killed.
func (w *world) lives() (id string) {
	id = w.create(`{"templateID": "base", "timeout": 60}`)
	w.Advance(1500 * time.Millisecond)
	w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
	w.do("POST", "/sandboxes/"+id+"/connect", `{"timeout": 60}`).Is(http.StatusCreated)
	w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout": 90}`).Is(http.StatusNoContent)
	w.do("DELETE", "/sandboxes/"+id, "").Is(http.StatusNoContent)
	return id
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	id := w.lives()
	other := w.create(`{"templateID": "base"}`)
	for path, want := range map[string]string{
		"/events/sandboxes":                                                                             "created killed updated resumed paused created",
		"/events/sandboxes?orderAsc=true":                                                               "created paused resumed updated killed created",
		"/events/sandboxes?orderAsc=true&offset=1&limit=2":                                              "paused resumed",
		"/events/sandboxes?offset=4&limit=100":                                                          "paused created",
		"/events/sandboxes?offset=6":                                                                    "",
		"/events/sandboxes/" + id + "?orderAsc=true":                                                    "created paused resumed updated killed",
		"/events/sandboxes/" + id + "-2f7a01c5?orderAsc=true":                                           "created paused resumed updated killed",
		"/events/sandboxes/" + other:                                                                    "created",
		"/events/sandboxes?types=sandbox.lifecycle.killed":                                              "killed",
		"/events/sandboxes?types=sandbox.lifecycle.created&limit=1":                                     "created",
		"/events/sandboxes?types=sandbox.lifecycle.paused,sandbox.lifecycle.killed&orderAsc=true":       "paused killed",
		"/events/sandboxes?types=sandbox.lifecycle.paused&types=sandbox.lifecycle.killed&orderAsc=true": "paused killed",
	} {
		if got := w.do("GET", path, "").is(http.StatusOK).types(); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestEventFields(t *testing.T) {
	w := newWorld(t)
	id := w.lives()
	all := w.do("GET", "/events/sandboxes/"+id+"?orderAsc=true", "").list()
	want := map[string]any{
		"version": "v2", "type": "sandbox.lifecycle.paused", "timestamp": "2026-09-01T12:00:01.623456Z",
		"event_category": "lifecycle", "event_label": "pause", "sandbox_id": id, "sandbox_template_id": "tmplbase", "sandbox_team_id": teamID,
	}
	for name, value := range want {
		if all[1][name] != value {
			t.Errorf("%s is %v, want %v", name, all[1][name], value)
		}
	}
	for i, data := range []string{
		"null",
		`{"execution":{"execution_time":1500,"memory_mb":512,"started_at":"2026-09-01T12:00:00.123456Z","vcpu_count":2}}`,
		"null",
		"null",
		`{"execution":{"execution_time":0,"memory_mb":512,"started_at":"2026-09-01T12:00:01.623456Z","vcpu_count":2},"kill_reason":"Killed"}`,
	} {
		if got, _ := json.Marshal(all[i]["event_data"]); string(got) != data {
			t.Errorf("event_data of %v is %s, want %s", all[i]["type"], got, data)
		}
	}
	if all[0]["sandbox_execution_id"] == all[2]["sandbox_execution_id"] || all[0]["sandbox_execution_id"] != all[1]["sandbox_execution_id"] {
		t.Error("an execution is not what lies between a start and a pause")
	}
	ids := map[any]bool{}
	for _, e := range all {
		ids[e["id"]] = true
	}
	if len(ids) != len(all) {
		t.Errorf("%d ids of %d events", len(ids), len(all))
	}
	again := w.do("GET", "/events/sandboxes?limit=1", "").list()
	if again[0]["id"] != all[4]["id"] {
		t.Error("an event has another id the second time")
	}
}

func TestEventKinds(t *testing.T) {
	checkpoint := lifecycle.CauseCheckpoint
	for _, c := range []struct {
		entry lifecycle.Entry
		want  string
	}{
		{lifecycle.Entry{Type: lifecycle.EntryCreated}, ""},
		{lifecycle.Entry{Type: lifecycle.EntryImported}, "created"},
		{lifecycle.Entry{Type: lifecycle.EntryPaused, Cause: lifecycle.CauseIdle}, "paused"},
		{lifecycle.Entry{Type: lifecycle.EntryPaused, Cause: checkpoint}, "checkpointed"},
		{lifecycle.Entry{Type: lifecycle.EntryResumed, Cause: checkpoint}, ""},
		{lifecycle.Entry{Type: lifecycle.EntryRuntimeLost}, "paused"},
		{lifecycle.Entry{Type: lifecycle.EntrySnapshotted}, "checkpointed"},
		{lifecycle.Entry{Type: lifecycle.EntryForked}, "forked"},
		{lifecycle.Entry{Type: lifecycle.EntryRestored}, "restored"},
		{lifecycle.Entry{Type: lifecycle.EntryRestoreFailed}, ""},
		{lifecycle.Entry{Type: lifecycle.EntryPauseFailed}, ""},
		{lifecycle.Entry{Type: lifecycle.EntryExpiring}, ""},
	} {
		kind, id, body, err := EncodeEvent(store.Event{Seq: 7, Sandbox: "i1", Entry: c.entry}, store.Sandbox{})
		if want := strings.TrimSuffix(eventPrefix+c.want, eventPrefix); err != nil || kind != want {
			t.Errorf("%s by %q is %q, %v; want %q", c.entry.Type, c.entry.Cause, kind, err, want)
		}
		if (kind != "") != (id != "") || (kind != "") != json.Valid(body) {
			t.Errorf("%s: id %q and body %s", kind, id, body)
		}
	}
}

func TestEventQueriesAreJudged(t *testing.T) {
	w := newWorld(t)
	for _, query := range []string{
		"?limit=0", "?limit=101", "?limit=x", "?offset=-1", "?offset=100001", "?orderAsc=1", "?types=created", "?types=sandbox.lifecycle.born",
	} {
		w.do("GET", "/events/sandboxes"+query, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	w.do("GET", "/events/sandboxes/nonexistingsandbox", "").fails(http.StatusNotFound, "sandbox_not_found", "doesn't exist")
	w.do("GET", "/events/sandboxes/UPPER", "").fails(http.StatusBadRequest, "", "Invalid sandbox ID")
}

// formed is an event whose form a golden file holds.
type formed struct {
	kind  lifecycle.EntryType
	cause lifecycle.Cause
}

// TestEventForm: events, in lists and as the bodies of webhooks' deliveries, are
// what receivers of version 2 read. Those that E2B does not have are apart.
func TestEventForm(t *testing.T) {
	holdForm(t, "events-v2.json", []formed{
		{lifecycle.EntryRunning, "create"}, {lifecycle.EntryPaused, "idle"}, {lifecycle.EntryPaused, lifecycle.CauseCheckpoint},
		{lifecycle.EntryResumed, "access"}, {lifecycle.EntryTimeoutSet, "call"}, {lifecycle.EntryTerminated, "timeout"},
	})
	holdForm(t, "events-v2-own.json", []formed{{lifecycle.EntryForked, "call"}, {lifecycle.EntryRestored, lifecycle.CauseRestore}})
}

// holdForm compares events with a golden file.
func holdForm(t *testing.T, file string, list []formed) {
	t.Helper()
	var sb store.Sandbox
	golden.Fill(t, &sb)
	var bodies []json.RawMessage
	for _, c := range list {
		var entry lifecycle.Entry
		golden.Fill(t, &entry)
		entry.Type, entry.Cause, entry.At = c.kind, c.cause, entry.StartedAt.Add(90*time.Second)
		entry.Detail = string(lifecycle.Killed)
		_, _, body, err := EncodeEvent(store.Event{Seq: 7, Sandbox: "i1", Entry: entry}, sb)
		if err != nil || body == nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		bodies = append(bodies, body)
	}
	data, err := json.MarshalIndent(bodies, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Hold(t, filepath.Join("testdata", file), data)
}
