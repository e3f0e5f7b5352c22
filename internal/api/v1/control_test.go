package v1

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
)

func TestSandboxView(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600,"onTimeout":"pause","autoResume":true,"hard_ttl":7200,"metadata":{"a":"b"},"ports":{"8000":"keep"},"hooks":{"preKill":{"command":"sync"}},"stallAfter":90}`)
	want := fmt.Sprintf(`{
		"id": %[1]q, "name": null, "state": "running", "phase": null, "generation": 1, "template": "tmplbase", "alias": "base", "key": "b6f0c1de-0000-4000-8000-000000000001",
		"server": null, "createdAt": "2026-09-01T12:00:00.123456Z", "startedAt": "2026-09-01T12:00:00.123456Z",
		"next": {"text": "paused (TimeoutExpired) at 2026-09-01T12:10:00Z", "action": "pause", "clock": "timeout", "at": "2026-09-01T12:10:00.123456Z", "waitsFor": null},
		"lastActiveAt": null, "openStreams": 0, "awakeBecause": null,
		"endAt": "2026-09-01T12:10:00.123456Z", "pausedAt": null, "timeoutSeconds": 600,
		"settings": {"onTimeout": "pause", "onIdle": "pause", "autoResume": true, "checkpointEverySeconds": 0, "idleTimeoutSeconds": 0, "maxLifetimeSeconds": 7200,
			"pausedRetentionSeconds": 0, "refreshOnActivity": false, "pauseMode": "memory", "filesystemFallback": false, "stallAfterSeconds": 90},
		"metadata": {"a": "b"}, "ports": {"8000": "keep"}, "allowInternetAccess": null, "allowOut": [], "denyOut": [], "egressProxy": null, "allowPublicTraffic": true, "fromServer": [], "httpsPorts": [], "maskRequestHost": null, "volumes": {}, "secrets": [], "hooks": {"preKill": {"command": "sync", "timeoutSeconds": 5}},
		"limits": {"cpus": 2, "memoryMiB": 512, "diskMiB": 1024, "pids": 512}, "isolation": "gvisor",
		"token": "envd-token-of-%[1]s", "checkpoint": null, "lastError": null, "tombstone": null
	}`, id)
	same(t, w.sandbox(id), want)

	// The settings that an answer has can be sent as they are.
	settings, _ := json.Marshal(w.sandbox(id)["settings"])
	w.create(string(settings[:len(settings)-1]) + `,"timeout":600}`)
	if a, b := w.Fake.Created[0].Settings, w.Fake.Created[1].Settings; b.OnIdle != a.OnTimeout || b.MaxLifetime != a.MaxLifetime || b.StallAfter != a.StallAfter {
		t.Errorf("%+v comes back as %+v", a, b)
	}
}

func same(t *testing.T, got any, want string) {
	t.Helper()
	var o any
	if err := json.Unmarshal([]byte(want), &o); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, o) {
		g, _ := json.MarshalIndent(got, "", "  ")
		x, _ := json.MarshalIndent(o, "", "  ")
		t.Errorf("got %s\nwant %s", g, x)
	}
}

func TestStates(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"secure":false}`)
	if _, has := w.sandbox(id)["token"]; has {
		t.Error("a token for a sandbox that wants none")
	}
	if o := w.sandbox(id); o["endAt"] != nil || o["timeoutSeconds"] != 0.0 {
		t.Errorf("endAt %v, timeout %v: absent is no limit", o["endAt"], o["timeoutSeconds"])
	}
	sb := w.Fake.Sandboxes[id]
	sb.Record.State, sb.Record.StartedAt = lifecycle.Pending, time.Time{}
	sb.Record.Op = &lifecycle.Operation{Phase: lifecycle.Creating, Deadline: epoch.Add(time.Hour)}
	w.Fake.Sandboxes[id] = sb
	if o := w.sandbox(id); o["state"] != "pending" || o["phase"] != "creating" || o["startedAt"] != nil {
		t.Errorf("being created: %v", o)
	}
	sb.Record.State, sb.Record.Op.Phase = lifecycle.Running, lifecycle.Pausing
	w.Fake.Sandboxes[id] = sb
	if o := w.sandbox(id); o["state"] != "running" || o["phase"] != "pausing" {
		t.Errorf("being paused: %v %v", o["state"], o["phase"])
	}
}

// TestTombstoneElsewhere: what has ended on a server that is gone is answered as if it had ended here.
func TestTombstoneElsewhere(t *testing.T) {
	w := newWorld(t)
	ended := lifecycle.Record{State: lifecycle.Terminated, Tombstone: &lifecycle.Tombstone{Reason: lifecycle.TimeoutExpired, At: epoch}}
	w.HTTP = (&apitest.Others{Lost: ended.Over()}).Before(w.HTTP)
	e := w.do("POST", base+"/i00000000000000000001/pause", "").fails(http.StatusNotFound, "timeout_expired", "TimeoutExpired")
	if e["cause"] != "TimeoutExpired" || contextOf(e)["endedAt"] != "2026-09-01T12:00:00.123456Z" {
		t.Errorf("%v", e)
	}
}

func TestTombstone(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":60}`)
	w.Advance(2 * time.Minute)
	o := w.sandbox(id)
	stone := o["tombstone"].(map[string]any)
	if o["state"] != "terminated" || stone["reason"] != "TimeoutExpired" || stone["at"] != "2026-09-01T12:01:00.123456Z" || stone["actor"] != nil {
		t.Errorf("%v with %v", o["state"], stone)
	}
	if text := stone["remediation"].(string); !strings.Contains(text, "longer timeout") {
		t.Errorf("remediation %q", text)
	}
	e := w.do("POST", base+"/"+id+"/pause", "").fails(http.StatusNotFound, "timeout_expired", "TimeoutExpired")
	if e["cause"] != "TimeoutExpired" {
		t.Errorf("cause %v", e["cause"])
	}

	id = w.create(`{}`)
	w.do("DELETE", base+"/"+id, "").Is(http.StatusNoContent)
	if stone := w.sandbox(id)["tombstone"].(map[string]any); stone["reason"] != "Killed" || stone["actor"] != apitest.Actor {
		t.Errorf("tombstone %v", stone)
	}
}

func TestEveryReasonHasARemedy(t *testing.T) {
	codes := map[string]bool{}
	for _, reason := range []lifecycle.Reason{
		lifecycle.Killed, lifecycle.TimeoutExpired, lifecycle.IdleTimeout, lifecycle.MaxLifetimeExceeded,
		lifecycle.PausedExpired, lifecycle.OutOfMemory, lifecycle.OutOfDisk, lifecycle.OutOfProcesses, lifecycle.RuntimeExited, lifecycle.RuntimeLost, lifecycle.CreateFailed,
	} {
		v := viewTombstone(&lifecycle.Tombstone{Reason: reason})
		if v.Remediation == "" || v.Code == "" || codes[v.Code] {
			t.Errorf("%s has the code %q and the remedy %q", reason, v.Code, v.Remediation)
		}
		codes[v.Code] = true
	}
	if v := viewTombstone(&lifecycle.Tombstone{Reason: "Another"}); v.Remediation == "" {
		t.Error("no remedy for what is not known")
	}
}

func TestPauseAndResume(t *testing.T) {
	for body, mode := range map[string]lifecycle.Mode{
		"": lifecycle.Memory, "{}": lifecycle.Memory, `{"mode":"memory"}`: lifecycle.Memory, `{"mode":"filesystem"}`: lifecycle.Filesystem,
		`{"memory":false,"mode":"filesystem"}`: lifecycle.Filesystem, `{"mode":null}`: lifecycle.Memory,
	} {
		w := newWorld(t)
		id := w.create(`{"timeout":600}`)
		o := w.do("POST", base+"/"+id+"/pause", body).Is(http.StatusOK).Object()
		if o["state"] != "paused" || o["endAt"] != nil || o["pausedAt"] != "2026-09-01T12:00:00.123456Z" || w.Fake.Pauses[0].Mode != mode {
			t.Errorf("%s pauses to %v with %v", body, o, w.Fake.Pauses)
		}
		if cp := o["checkpoint"].(map[string]any); cp["mode"] != string(mode) || cp["bytes"] != 4096.0 {
			t.Errorf("%s: checkpoint %v", body, cp)
		}
		e := w.do("POST", base+"/"+id+"/pause", body).fails(http.StatusConflict, "already_paused", "paused already")
		if contextOf(e)["state"] != "paused" || contextOf(e)["phase"] != nil {
			t.Errorf("context %v", e["context"])
		}
	}
}

func TestPauseRefuses(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	for body, code := range map[string]string{
		`{"mode":"disk"}`: "mode_invalid", `{"mode":1}`: "invalid_request", `{"mod":"memory"}`: "unknown_field",
		`{"mode":"memory","memory":false}`: "contradicting_options", `{`: "invalid_request",
	} {
		w.do("POST", base+"/"+id+"/pause", body).fails(http.StatusBadRequest, code, "")
	}
	if o := w.sandbox(id); o["state"] != "running" {
		t.Errorf("state %v after refusals", o["state"])
	}
}

func TestResume(t *testing.T) {
	tests := map[string]struct {
		create, body string
		paused       bool
		endAt        any
	}{
		"its own timeout":           {`{"timeout":600}`, "", true, "2026-09-01T12:10:01.123456Z"},
		"none of its own":           {`{}`, "{}", true, nil},
		"another":                   {`{"timeout":600}`, `{"timeoutSeconds":30.5}`, true, "2026-09-01T12:00:31.623456Z"},
		"another in millis":         {`{"timeout":600}`, `{"timeout_ms":1500}`, true, "2026-09-01T12:00:02.623456Z"},
		"no limit":                  {`{"timeout":600}`, `{"timeout":0}`, true, nil},
		"running, extended":         {`{"timeout":60}`, `{"timeout":3600}`, false, "2026-09-01T13:00:01.123456Z"},
		"running, not cut short":    {`{"timeout":600}`, `{"timeout":1}`, false, "2026-09-01T12:10:00.123456Z"},
		"running, its own":          {`{"timeout":600}`, ``, false, "2026-09-01T12:10:01.123456Z"},
		"running, without any":      {`{}`, ``, false, nil},
		"running, none and no more": {`{}`, `{"timeout":0}`, false, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(tt.create)
			if tt.paused {
				w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
			}
			w.Advance(time.Second)
			o := w.do("POST", base+"/"+id+"/resume", tt.body).Is(http.StatusOK).Object()
			if o["state"] != "running" || o["endAt"] != tt.endAt || o["token"] == nil {
				t.Errorf("%v until %v, want running until %v", o["state"], o["endAt"], tt.endAt)
			}
			want := 1.0
			if tt.paused {
				want = 2
			}
			if o["generation"] != want {
				t.Errorf("generation %v, want %v", o["generation"], want)
			}
		})
	}
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	w.do("POST", base+"/"+id+"/resume", `{"timeout":0}`).Is(http.StatusOK)
	if o := w.sandbox(id); o["endAt"] != nil {
		t.Errorf("no limit ends at %v", o["endAt"])
	}
	w.Fake.Limit = 24 * time.Hour
	w.do("POST", base+"/"+id+"/resume", `{"timeout":0}`).fails(http.StatusBadRequest, "timeout_too_large", "no timeout")
	w.do("POST", base+"/"+id+"/resume", `{"timeout":-1}`).fails(http.StatusBadRequest, "timeout_invalid", "negative")
	e := w.do("POST", base+"/"+id+"/resume", `{"timeout":86401}`).fails(http.StatusBadRequest, "timeout_too_large", "24h")
	if c := contextOf(e); c["requestedSeconds"] != 86401.0 || c["state"] != "running" {
		t.Errorf("context %v", c)
	}
}

func TestSetTimeout(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	path := base + "/" + id + "/timeout"
	w.do("POST", path, `{"timeoutMs":"none"}`).Is(http.StatusOK)
	if o := w.sandbox(id); o["endAt"] != nil {
		t.Errorf("none ends at %v", o["endAt"])
	}
	w.Fake.Limit = 24 * time.Hour
	w.do("POST", path, `{"timeout":"none"}`).fails(http.StatusBadRequest, "timeout_too_large", "no timeout")
	w.do("POST", path, `{"timeout":"soon"}`).fails(http.StatusBadRequest, "invalid_request", "a number")
	for body, endAt := range map[string]string{
		`{"timeoutSeconds":60}`:  "2026-09-01T12:01:00.123456Z",
		`{"timeout":86400}`:      "2026-09-02T12:00:00.123456Z",
		`{"timeout_ms":250.5}`:   "2026-09-01T12:00:00.373956Z",
		`{"timeout_seconds":.5}`: "",
	} {
		a := w.do("POST", path, body)
		if endAt == "" {
			a.fails(http.StatusBadRequest, "invalid_request", "JSON")
			continue
		}
		if o := a.Is(http.StatusOK).Object(); o["endAt"] != endAt {
			t.Errorf("%s: endAt %v, want %s", body, o["endAt"], endAt)
		}
		if o := w.sandbox(id); o["endAt"] != endAt || o["timeoutSeconds"] != 600.0 {
			t.Errorf("%s: endAt %v of %v is read", body, o["endAt"], o["timeoutSeconds"])
		}
	}
	before := w.sandbox(id)["endAt"]
	w.do("POST", path, "").fails(http.StatusBadRequest, "invalid_request", `"timeoutSeconds" is required`)
	w.do("POST", path, `{"timeout":null}`).fails(http.StatusBadRequest, "invalid_request", "required")
	w.do("POST", path, `{"timeout":0}`).fails(http.StatusBadRequest, "timeout_invalid", `"timeout" is 0`)
	w.do("POST", path, `{"timeout":-1}`).fails(http.StatusBadRequest, "timeout_invalid", "negative")
	w.do("POST", path, `{"timeout":86400.001}`).fails(http.StatusBadRequest, "timeout_too_large", "24h")
	w.do("POST", path, `{"timeout":1,"timeoutMs":1}`).fails(http.StatusBadRequest, "contradicting_options", "timeoutMs")
	w.do("POST", base+"/nope/timeout", `{"timeout":0}`).fails(http.StatusNotFound, "sandbox_not_found", "")
	if after := w.sandbox(id)["endAt"]; after != before {
		t.Errorf("endAt %v after refusals, was %v", after, before)
	}
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	e := w.do("POST", path, `{"timeout":60}`).fails(http.StatusConflict, "not_running", "paused")
	if contextOf(e)["state"] != "paused" {
		t.Errorf("context %v", e["context"])
	}
}

func TestResumeSaysWhetherItWoke(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	if _, has := w.sandbox(id)["resumed"]; has {
		t.Error("get says resumed")
	}
	resumed := func() any {
		return w.do("POST", base+"/"+id+"/resume", "").Is(http.StatusOK).Object()["resumed"]
	}
	if got := resumed(); got != false {
		t.Errorf("resumed %v of one that ran", got)
	}
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	if got := resumed(); got != true {
		t.Errorf("resumed %v of one that slept", got)
	}
}

func TestFlatVerbs(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	flat := func(verb, rest string) answer {
		return w.do("POST", "/v1/"+verb, fmt.Sprintf(`{"sandbox":%q%s}`, id, rest))
	}
	same(t, flat("set_timeout", `,"timeout_seconds":60`).Is(200).Object(), `{"status":"running","deadline_unix":1788264060.123456,"timeout_seconds":60}`)
	if got := w.sandbox(id)["endAt"]; got != "2026-09-01T12:01:00.123456Z" {
		t.Errorf("endAt %v", got)
	}
	same(t, flat("pause", "").Is(200).Object(), `{"status":"paused"}`)
	flat("pause", "").fails(409, "already_paused", "")
	same(t, flat("resume", "").Is(200).Object(), `{"resumed":true,"status":"running","deadline_unix":1788264600.123456,"timeout_seconds":600}`)
	same(t, flat("resume", `,"timeout_seconds":0.5`).Is(200).Object(), `{"resumed":false,"status":"running","deadline_unix":1788264600.123456,"timeout_seconds":0.5}`)
	flat("pause", `,"mode":"filesystem"`).Is(200)
	same(t, flat("resume", `,"timeout_seconds":0`).Is(200).Object(), `{"resumed":true,"status":"running","deadline_unix":null,"timeout_seconds":0}`)
	flat("set_timeout", "").fails(400, "invalid_request", "timeoutSeconds")
	flat("set_timeout", `,"timeout_seconds":0`).fails(400, "timeout_invalid", "")
	w.do("POST", "/v1/pause", "").fails(400, "invalid_request", `"sandbox" is required`)
	w.do("POST", "/v1/pause", `{"sandbox":7}`).fails(400, "invalid_request", `"sandbox" must be a string`)
	w.do("POST", "/v1/pause", `{"sandboxID":"nope"}`).fails(404, "sandbox_not_found", "nope")
}

func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Fake.Now = now()
		id := w.create(`{"idleTimeout":60}`)
		path := base + "/" + id + "/holds"
		until := func(d time.Duration) string { return w.Fake.Now.Add(d).Format("2006-01-02T15:04:05.000000Z") }

		o := w.do("POST", path, `{"reason":" nightly build ","seconds":90.5}`).Is(http.StatusCreated).Object()
		if o["kind"] != "lease" || o["detail"] != "nightly build" || o["until"] != until(90500*time.Millisecond) || o["counts"] != true || o["id"] == "" {
			t.Errorf("hold %v", o)
		}
		w.do("POST", path, `{"reason":"mine","seconds":10,"id":"my-hold_1.x"}`).Is(http.StatusCreated)
		o = w.do("POST", path, `{"reason":"mine","seconds":20,"id":"my-hold_1.x"}`).Is(http.StatusCreated).Object()
		if o["id"] != "my-hold_1.x" || o["until"] != until(20*time.Second) {
			t.Errorf("prolonged hold %v", o)
		}
		if got := list(w.do("GET", path, "").Is(http.StatusOK).Object()["holds"]); len(got) != 2 {
			t.Errorf("holds %v", got)
		}
		w.do("DELETE", path+"/my-hold_1.x", "").Is(http.StatusNoContent)
		w.do("DELETE", path+"/my-hold_1.x", "").fails(http.StatusNotFound, "hold_not_found", "my-hold_1.x")
		for body, want := range map[string][2]string{
			`{"seconds":1}`:                                             {"invalid_request", "reason"},
			`{"reason":"r"}`:                                            {"invalid_request", "seconds"},
			`{"reason":" ","seconds":1}`:                                {"invalid_request", "reason"},
			`{"reason":"r","seconds":0}`:                                {"timeout_invalid", "is 0"},
			`{"reason":"r","seconds":-1}`:                               {"timeout_invalid", "negative"},
			`{"reason":"r","seconds":1e99}`:                             {"timeout_too_large", "seconds"},
			`{"reason":"r","seconds":1,"id":"a b"}`:                     {"invalid_request", "id"},
			`{"reason":"r","seconds":1,"name":"a"}`:                     {"unknown_field", "name"},
			`{"reason":"` + strings.Repeat("r", 201) + `","seconds":1}`: {"invalid_request", "reason"},
		} {
			w.do("POST", path, body).fails(http.StatusBadRequest, want[0], want[1])
		}
		w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
		w.do("POST", path, `{"reason":"r","seconds":1}`).fails(http.StatusConflict, "not_running", "paused")
		if got := list(w.do("GET", path, "").Is(http.StatusOK).Object()["holds"]); len(got) != 0 {
			t.Errorf("holds of what sleeps: %v", got)
		}
	})
}

func TestEveryCallNamesItsActor(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	for _, call := range []string{"POST /pause", "POST /resume", "POST /timeout", "POST /holds", "DELETE /holds/x", "PATCH ", "DELETE "} {
		method, path, _ := strings.Cut(call, " ")
		body := map[string]string{"/timeout": `{"timeout":60}`, "/holds": `{"reason":"r","seconds":1,"id":"x"}`}[path]
		if method == "PATCH" {
			body = `{"maxLifetime":600}`
		}
		if a := w.do(method, base+"/"+id+path, body); a.Status >= 400 {
			t.Errorf("%s: %s", call, a.Body)
		}
	}
	if len(w.Fake.Actors) != 8 {
		t.Errorf("%d calls arrived, want 8", len(w.Fake.Actors))
	}
	for i, actor := range w.Fake.Actors {
		if actor != apitest.Actor {
			t.Errorf("call %d by %q", i, actor)
		}
	}
}

func TestErrorsSayWhatLiesBehind(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	w.Fake.Err = errdef.New(errdef.Unavailable, "wait_timeout", "in flight: %w", context.DeadlineExceeded)
	e := w.do("POST", base+"/"+id+"/pause", "").fails(503, "wait_timeout", "in flight")
	if e["cause"] != context.DeadlineExceeded.Error() {
		t.Errorf("cause %v", e["cause"])
	}
	w.Fake.Err = fmt.Errorf("read: %w", context.DeadlineExceeded)
	w.do("GET", base, "").fails(504, "timed_out", "")

	w.Fake.Err = nil
	failing := failingPause{w.Fake, errdef.New(errdef.Unavailable, "pause_failed", "it runs on")}
	w.HTTP = New(Options{Sandboxes: failing, Auth: apitest.Keyring{}})
	sb := w.Fake.Sandboxes[id]
	sb.Record.LastError = "pause: no space left on device"
	w.Fake.Sandboxes[id] = sb
	a := w.do("POST", base+"/"+id+"/pause", "")
	e = a.fails(503, "pause_failed", "it runs on")
	if e["cause"] != "pause: no space left on device" || contextOf(e)["state"] != "running" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%v with %v", e, a.Header)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w = newWorld(t)
	w.Fake.Err = fmt.Errorf("wait: %w", context.Canceled)
	r := httptest.NewRequestWithContext(ctx, "GET", base, nil)
	r.Header.Set("X-API-Key", goodKey)
	w.send(r).fails(503, "canceled", "")
	if w.Log.String() != "" {
		t.Errorf("a client that left is logged: %s", w.Log)
	}
}

// failingPause is a fake whose pauses fail.
type failingPause struct {
	*apitest.Fake
	err error
}

func (f failingPause) Pause(context.Context, string, supervisor.PauseRequest) error { return f.err }

// TestListOfWorstSandboxes: control characters are six times as long in JSON, and a
// page of sandboxes full of them was longer than the client reads, so that `drowse ls`
// of an admin failed.
func TestListOfWorstSandboxes(t *testing.T) {
	w := newWorld(t)
	const n = 100
	long := func(n int) string { return strings.Repeat("\x01", n) }
	for i := range n {
		sb := store.Sandbox{ID: fmt.Sprintf("s%03d", i), Config: store.Config{Template: "tmplbase", Metadata: map[string]string{"a": long(fields.MaxMetadata - 1)}}}
		for _, h := range []*store.Hook{&sb.Config.Hooks.PrePause, &sb.Config.Hooks.PostResume, &sb.Config.Hooks.PreKill} {
			h.Command = long(fields.MaxHookCommand)
		}
		sb.Record = lifecycle.Record{State: lifecycle.Paused, Generation: 1, CreatedAt: epoch.Add(time.Duration(i) * time.Second)}
		w.Fake.Sandboxes[sb.ID] = sb
	}
	api := httptest.NewServer(w.HTTP)
	t.Cleanup(api.Close)
	c, err := client.New(client.Options{URL: api.URL, APIKey: goodKey})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, sb := range list {
		if want := fmt.Sprintf("s%03d", n-1-i); sb.ID != want {
			t.Fatalf("sandbox %d of the list is %s, want %s", i, sb.ID, want)
		}
	}
	if len(list) != n {
		t.Errorf("%d sandboxes are listed, want %d", len(list), n)
	}
}

func TestList(t *testing.T) {
	w := newWorld(t)
	put := func(id string, second int, state lifecycle.State, metadata map[string]string) {
		sb := store.Sandbox{ID: id, Config: store.Config{Template: "tmplbase", Alias: "base", Metadata: metadata, Secure: true}}
		sb.Record = lifecycle.Record{State: state, Generation: 1, CreatedAt: epoch.Add(time.Duration(second) * time.Second)}
		if state == lifecycle.Terminated {
			sb.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Killed, At: epoch}
		}
		w.Fake.Sandboxes[id] = sb
	}
	put("e", 1, lifecycle.Running, map[string]string{"a": "1"})
	put("d", 2, lifecycle.Paused, map[string]string{"a": "1", "b": "x=y"})
	put("c", 2, lifecycle.Running, nil)
	put("b", 3, lifecycle.Terminated, map[string]string{"a": "1"})
	put("a", 4, lifecycle.Pending, nil)
	for query, want := range map[string]string{
		"":                                "a c d e",
		"state=running":                   "c e",
		"state=running,terminated":        "b c e",
		"state=pending&state=paused":      "a d",
		"metadata=a%3D1":                  "d e",
		"metadata=a%3D1&metadata=b=x%3Dy": "d",
		"template=Base":                   "a c d e",
		"template=other":                  "",
	} {
		a := w.do("GET", base+"?"+query, "").Is(http.StatusOK)
		if got := idsOf(a); got != want {
			t.Errorf("%s lists %s, want %s", query, got, want)
		}
		if strings.Contains(a.Body, apitest.Tokens()) {
			t.Error("a list has tokens")
		}
	}
	var all []string
	query := "limit=1"
	for range 10 {
		o := w.do("GET", base+"?"+query, "").Is(http.StatusOK)
		all = append(all, idsOf(o))
		next, more := o.Object()["next"].(string)
		if !more {
			break
		}
		query = "limit=1&after=" + next
	}
	if got := strings.Join(all, " "); got != "a c d e" {
		t.Errorf("pages: %s", got)
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "after=x": "after", "state=asleep": "state", "metadata=a": "metadata",
		"metadata=a=1&metadata=a=2": "metadata",
	} {
		e := w.do("GET", base+"?"+query, "").fails(http.StatusBadRequest, "invalid_request", field)
		if contextOf(e)["field"] != field {
			t.Errorf("context %v", e["context"])
		}
	}
	w.do("GET", base+"?stat=running", "").fails(http.StatusBadRequest, "unknown_field", "stat")
	w.do("GET", base+"?limit=%zz", "").fails(http.StatusBadRequest, "invalid_request", "query")
}

func idsOf(a apitest.Answer) string {
	var ids []string
	for _, o := range list(a.Object()["sandboxes"]) {
		ids = append(ids, o["id"].(string))
	}
	return strings.Join(ids, " ")
}
