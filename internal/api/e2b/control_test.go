package e2b

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

func TestPause(t *testing.T) {
	for name, body := range map[string]string{"no body": "", "object": "{}", "memory": `{"memory":true}`, "null": `{"memory":null}`} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID":"base"}`)
			w.do("POST", "/sandboxes/"+id+"/pause", body).Is(http.StatusNoContent)
			w.do("POST", "/sandboxes/"+id+"/pause", body).fails(http.StatusConflict, "already_paused", "paused already")
			if o := w.do("GET", "/sandboxes/"+id, "").Object(); o["state"] != "paused" {
				t.Errorf("state %v", o["state"])
			}
		})
	}
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	w.do("POST", "/sandboxes/"+id+"/pause", `{"memory":1}`).fails(http.StatusBadRequest, "", `"memory" must be a boolean`)
	if o := w.do("GET", "/sandboxes/"+id, "").Object(); o["state"] != "running" {
		t.Errorf("state %v after refusals", o["state"])
	}
	w.do("POST", "/sandboxes/"+id+"/pause?async=true", "").fails(http.StatusBadRequest, "unknown_field", "async")
	w.do("POST", "/sandboxes?timeout=1", `{"templateID":"base"}`).fails(http.StatusBadRequest, "unknown_field", "timeout")
	w.do("POST", "/sandboxes/nope/pause", `{"memory":false}`).fails(http.StatusNotFound, "", "doesn't exist")
}

// TestSleepIsHidden: E2B's clients, and those of dialects like it, know one sleep.
func TestSleepIsHidden(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	w.HidesSleep(id, func() string {
		return w.do("GET", "/sandboxes/"+id, "").is(http.StatusOK).Body + w.do("GET", "/v2/sandboxes?state=paused", "").is(http.StatusOK).Body
	})
}

func TestPauseModes(t *testing.T) {
	for body, want := range map[string]lifecycle.Mode{
		"": lifecycle.Memory, `{"memory":true}`: lifecycle.Memory, `{"memory":false}`: lifecycle.Filesystem,
	} {
		w := newWorld(t)
		id := w.create(`{"templateID":"base"}`)
		w.do("POST", "/sandboxes/"+id+"/pause", body).Is(http.StatusNoContent)
		if got := w.Fake.Pauses; len(got) != 1 || got[0].Mode != want || got[0].Strict {
			t.Errorf("%s pauses with %v, want %s", body, got, want)
		}
	}
}

func TestConnectOnRunningOnlyExtends(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base","timeout":600}`)
	endAt := func() any { return w.do("GET", "/sandboxes/"+id, "").Object()["endAt"] }
	before := endAt()
	w.Advance(time.Second)
	for _, tt := range []struct{ path, body string }{
		{"/sandboxes/", `{"timeout":0}`}, {"/sandboxes/", `{"timeout":10}`},
		{"/v2/sandboxes/", ""}, {"/v2/sandboxes/", "{}"}, {"/v2/sandboxes/", `{"timeout":1}`},
	} {
		o := w.do("POST", tt.path+id+"/connect", tt.body).Is(http.StatusOK).Object()
		hasKeys(t, o, "domain templateID sandboxID clientID envdVersion alias envdAccessToken")
		if got := endAt(); got != before {
			t.Errorf("connect %s moved endAt from %v to %v", tt.body, before, got)
		}
	}
	w.do("POST", "/sandboxes/"+id+"/connect", `{"timeout":3600}`).Is(http.StatusOK)
	if got := endAt(); got != "2026-09-01T13:00:01.123456Z" {
		t.Errorf("endAt %v", got)
	}
}

func TestConnectResumes(t *testing.T) {
	for name, tt := range map[string]struct {
		path, body string
		endAt      string
	}{
		"v1":            {"/sandboxes/", `{"timeout":60}`, "2026-09-01T12:01:00.123456Z"},
		"v2 default":    {"/v2/sandboxes/", "", "2026-09-01T12:05:00.123456Z"},
		"v2 with time":  {"/v2/sandboxes/", `{"timeout":60,"memory":true}`, "2026-09-01T12:01:00.123456Z"},
		"v2 null":       {"/v2/sandboxes/", `{"timeout":null}`, "2026-09-01T12:05:00.123456Z"},
		"v1 with extra": {"/sandboxes/", `{"timeout":60,"autoPause":true}`, "2026-09-01T12:01:00.123456Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID":"base","timeout":600}`)
			w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
			first := w.do("POST", tt.path+id+"/connect", tt.body).Is(http.StatusCreated).Object()
			if first["sandboxID"] != id || first["envdAccessToken"] != "envd-token-of-"+id {
				t.Errorf("resumed as %v", first)
			}
			if o := w.do("GET", "/sandboxes/"+id, "").Object(); o["state"] != "running" || o["endAt"] != tt.endAt {
				t.Errorf("%v until %v, want running until %s", o["state"], o["endAt"], tt.endAt)
			}
			w.do("POST", tt.path+id+"/connect", tt.body).Is(http.StatusOK)
		})
	}
}

// TestReboot wakes sandboxes from their files alone: with each call that wakes, and
// without a trace of what it takes for that. What runs stays as it is.
func TestReboot(t *testing.T) {
	w := newWorld(t)
	for _, call := range []string{"/sandboxes/ID/connect", "/v2/sandboxes/ID/connect", "/sandboxes/ID/resume"} {
		id := w.create(`{"templateID":"base","autoPause":true}`)
		call = strings.Replace(call, "ID", id, 1)
		w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
		w.do("POST", call, `{"memory":false,"timeout":60}`).Is(http.StatusCreated)
		if cp := w.Fake.Sandboxes[id].Record.Checkpoint; cp == nil || cp.Mode != lifecycle.Filesystem {
			t.Errorf("%s: it woke from %+v", call, cp)
		}
		if strings.HasSuffix(call, "connect") {
			w.do("POST", call, `{"memory":false,"timeout":60}`).Is(http.StatusOK)
		}
	}
	if got := w.do("GET", "/snapshots", "").Is(http.StatusOK); strings.TrimSpace(got.Body) != "[]" {
		t.Errorf("snapshots are left: %s", got.Body)
	}
}

func TestStrictPause(t *testing.T) {
	for strict, word := range map[bool]string{true: "true", false: "false"} {
		w := newWorld(t)
		id := w.create(`{"templateID":"base"}`)
		w.do("POST", "/sandboxes/"+id+"/pause", `{"requireHealthyGuest":`+word+`}`).Is(http.StatusNoContent)
		if got := w.Fake.Pauses; len(got) != 1 || got[0].Strict != strict {
			t.Errorf("%s pauses with %+v", word, got)
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxTimeout = 24 * time.Hour })
	id := w.create(`{"templateID":"base"}`)
	tests := map[string]struct{ path, body, code, message string }{
		"v1 negative":       {"/sandboxes/", `{"timeout":-2}`, "", "negative"},
		"v1 never":          {"/sandboxes/", `{"timeout":-1}`, "timeout_too_large", "24 hours (requested no limit)"},
		"v1 other template": {"/sandboxes/", `{"templateID":"other"}`, "not_changeable", "templateID"},
		"v1 not secure":     {"/sandboxes/", `{"secure":false}`, "not_changeable", "secure"},
		"v1 too long":       {"/sandboxes/", `{"timeout":86401}`, "timeout_too_large", "24 hours (requested 86401 s)"},
		"v2 zero":           {"/v2/sandboxes/", `{"timeout":0}`, "", "greater than 0"},
		"v2 negative":       {"/v2/sandboxes/", `{"timeout":-2}`, "", "greater than 0"},
		"v2 too long":       {"/v2/sandboxes/", `{"timeout":86401}`, "timeout_too_large", "24 hours"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w.T = t
			w.do("POST", tt.path+id+"/connect", tt.body).fails(http.StatusBadRequest, tt.code, tt.message)
		})
	}
	w.T = t
	w.do("POST", "/v2/sandboxes/nope/connect", `{"memory":false}`).fails(http.StatusNotFound, "", "doesn't exist")
	w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
	w.do("POST", "/sandboxes/"+id+"/connect", `{"timeout":0}`).fails(http.StatusBadRequest, "", "Timeout must be greater than 0")
	if o := w.do("GET", "/sandboxes/"+id, "").Object(); o["state"] != "paused" {
		t.Errorf("state %v after a refusal", o["state"])
	}
}

func TestResume(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxTimeout = 24 * time.Hour })
	id := w.create(`{"templateID":"base","autoPause":true}`)
	path := "/sandboxes/" + id + "/resume"
	w.do("POST", path, "").fails(http.StatusConflict, "already_running", "running")
	w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)

	w.do("POST", path, `{"timeout":0}`).fails(http.StatusBadRequest, "", "greater than 0")
	w.do("POST", path, `{"timeout":86401}`).fails(http.StatusBadRequest, "timeout_too_large", "24 hours")
	w.do("POST", path, `{"autoPauses":false}`).fails(http.StatusBadRequest, "unknown_field", "autoPause")

	o := w.do("POST", path, `{"autoPause":false}`).Is(http.StatusCreated).Object()
	hasKeys(t, o, "domain templateID sandboxID clientID envdVersion alias envdAccessToken")
	o = w.do("GET", "/sandboxes/"+id, "").Object()
	if o["endAt"] != "2026-09-01T12:00:15.123456Z" || o["lifecycle"].(map[string]any)["onTimeout"] != "kill" {
		t.Errorf("endAt %v, want 15 s from now, with %v", o["endAt"], o["lifecycle"])
	}
}

func TestSetTimeout(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxTimeout = 24 * time.Hour })
	id := w.create(`{"templateID":"base","timeout":600}`)
	path := "/sandboxes/" + id + "/timeout"
	endAt := func() any { return w.do("GET", "/sandboxes/"+id, "").Object()["endAt"] }

	w.do("POST", path, `{"timeout":60}`).Is(http.StatusNoContent)
	if got := endAt(); got != "2026-09-01T12:01:00.123456Z" {
		t.Errorf("endAt %v: a timeout may be shortened", got)
	}
	w.do("POST", path, "").fails(http.StatusBadRequest, "", "empty")
	w.do("POST", path, "{}").fails(http.StatusBadRequest, "", `"timeout" is required`)
	w.do("POST", path, `{"timeout":-2}`).fails(http.StatusBadRequest, "", "negative")
	w.do("POST", path, `{"timeout":-1}`).fails(http.StatusBadRequest, "timeout_too_large", "no limit")
	w.do("POST", path, `{"timeout":86401}`).fails(http.StatusBadRequest, "timeout_too_large", "Timeout cannot be greater than 24 hours (requested 86401 s)")
	if got := endAt(); got != "2026-09-01T12:01:00.123456Z" {
		t.Errorf("endAt %v after refusals", got)
	}
	w.do("POST", path, `{"timeout":86400}`).Is(http.StatusNoContent)
	w.do("POST", path, `{"timeout":0}`).Is(http.StatusNoContent)
	w.do("GET", "/sandboxes/"+id, "").fails(http.StatusNotFound, "timeout_expired", "TimeoutExpired")
}

func TestTimeoutZeroPausesWhatPausesOnTimeout(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base","autoPause":true}`)
	w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":0}`).Is(http.StatusNoContent)
	if o := w.do("GET", "/sandboxes/"+id, "").Object(); o["state"] != "paused" {
		t.Errorf("state %v", o["state"])
	}
}

func TestClockOfAPausedSandboxIsNotFound(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
	w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`).fails(http.StatusNotFound, "not_running", "paused")
	w.do("POST", "/sandboxes/"+id+"/refreshes", `{"duration":60}`).fails(http.StatusNotFound, "not_running", "paused")
}

func TestRefresh(t *testing.T) {
	for name, tt := range map[string]struct{ body, endAt string }{
		"no body":         {"", "2026-09-01T12:00:15.123456Z"},
		"zero":            {`{"duration":0}`, "2026-09-01T12:00:15.123456Z"},
		"below the least": {`{"duration":14}`, "2026-09-01T12:00:15.123456Z"},
		"longest":         {`{"duration":3600}`, "2026-09-01T13:00:00.123456Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID":"base","timeout":5}`)
			w.do("POST", "/sandboxes/"+id+"/refreshes", tt.body).Is(http.StatusNoContent)
			if got := w.do("GET", "/sandboxes/"+id, "").Object()["endAt"]; got != tt.endAt {
				t.Errorf("endAt %v, want %s", got, tt.endAt)
			}
		})
	}
	w := newWorld(t)
	id := w.create(`{"templateID":"base","timeout":600}`)
	w.do("POST", "/sandboxes/"+id+"/refreshes", `{"duration":60}`).Is(http.StatusNoContent)
	if got := w.do("GET", "/sandboxes/"+id, "").Object()["endAt"]; got != "2026-09-01T12:10:00.123456Z" {
		t.Errorf("a refresh shortened endAt to %v", got)
	}
	for _, body := range []string{`{"duration":-1}`, `{"duration":3601}`} {
		w.do("POST", "/sandboxes/"+id+"/refreshes", body).fails(http.StatusBadRequest, "", "between 0 and 3600")
	}
}

func TestKill(t *testing.T) {
	w := newWorld(t)
	running := w.create(`{"templateID":"base"}`)
	paused := w.create(`{"templateID":"base"}`)
	w.do("POST", "/sandboxes/"+paused+"/pause", "").Is(http.StatusNoContent)
	for _, id := range []string{running, paused} {
		w.do("DELETE", "/sandboxes/"+id, "").Is(http.StatusNoContent)
		w.do("DELETE", "/sandboxes/"+id, "").fails(http.StatusNotFound, "", `Sandbox "`+id+`" doesn't exist or you don't have access to it`)
	}
	if got := w.do("GET", "/v2/sandboxes", "").ids(); got != "" {
		t.Errorf("listed after kill: %s", got)
	}
}

func TestEveryCallNamesItsActor(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	bodies := map[string]string{"pause": `{}`, "refreshes": `{"duration":3600}`}
	for _, call := range []string{"pause", "connect", "pause", "resume", "timeout", "refreshes"} {
		w.do("POST", "/sandboxes/"+id+"/"+call, cmp.Or(bodies[call], `{"timeout":60}`))
	}
	w.do("DELETE", "/sandboxes/"+id, "").Is(http.StatusNoContent)
	if len(w.Fake.Actors) != 8 {
		t.Errorf("%d calls arrived, want 8", len(w.Fake.Actors))
	}
	for i, actor := range w.Fake.Actors {
		if actor != "key:b6f0c1de-0000-4000-8000-000000000001" {
			t.Errorf("call %d by %q", i, actor)
		}
	}
}

func TestDetailHasExactlyItsFields(t *testing.T) {
	w := newWorld(t)
	plain := "templateID sandboxID clientID alias startedAt endAt cpuCount memoryMB diskSizeMB state envdVersion lifecycle domain"
	o := w.do("POST", v1, `{"templateID":"base","metadata":{}}`).Object()
	o = w.do("GET", "/sandboxes/"+o["sandboxID"].(string), "").Is(http.StatusOK).Object()
	hasKeys(t, o, plain)
	hasKeys(t, o["lifecycle"].(map[string]any), "autoResume onTimeout")

	id := w.create(`{"templateID":"base","metadata":{"a":"b"},"allow_internet_access":true,"network":{"allowPublicTraffic":false},"autoPause":true,"autoResume":{"enabled":true}}`)
	o = w.do("GET", "/sandboxes/"+id, "").Object()
	hasKeys(t, o, plain+" metadata envdAccessToken allowInternetAccess network")
	if o["allowInternetAccess"] != true || o["network"].(map[string]any)["allowPublicTraffic"] != false {
		t.Errorf("allowInternetAccess %v, network %v", o["allowInternetAccess"], o["network"])
	}
	if l := o["lifecycle"].(map[string]any); l["autoResume"] != true || l["onTimeout"] != "pause" {
		t.Errorf("lifecycle %v", l)
	}
	if o["cpuCount"] != 2.0 || o["memoryMB"] != 512.0 || o["diskSizeMB"] != 1024.0 {
		t.Errorf("limits %v %v %v", o["cpuCount"], o["memoryMB"], o["diskSizeMB"])
	}
}

func TestStatesAndTimesShown(t *testing.T) {
	start, now := epoch.Add(-time.Hour), epoch
	running := lifecycle.Record{State: lifecycle.Running, StartedAt: start, EndAt: now.Add(time.Minute), PausedAt: start.Add(-time.Hour)}
	paused := lifecycle.Record{State: lifecycle.Paused, StartedAt: start, PausedAt: now}
	with := func(r lifecycle.Record, p lifecycle.Phase) lifecycle.Record {
		r.Op = &lifecycle.Operation{Phase: p, StartedAt: now.Add(-time.Second)}
		return r
	}
	forever := running
	forever.EndAt = time.Time{}
	tests := map[string]struct {
		rec          lifecycle.Record
		state, endAt string
	}{
		"running":    {running, "running", "2026-09-01T12:01:00.123456Z"},
		"paused":     {paused, "paused", "2026-09-01T12:00:00.123456Z"},
		"pausing":    {with(running, lifecycle.Pausing), "paused", "2026-09-01T11:59:59.123456Z"},
		"resuming":   {with(paused, lifecycle.Resuming), "paused", "2026-09-01T12:00:00.123456Z"},
		"no timeout": {forever, "running", "9999-01-01T00:00:00.000000Z"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID":"base","timeout":86400}`)
			sb := w.Fake.Sandboxes[id]
			tt.rec.Generation = 1
			sb.Record = tt.rec
			w.Fake.Sandboxes[id] = sb
			w.Fake.Now = epoch.Add(-time.Minute) // nothing is due
			for _, o := range []map[string]any{w.do("GET", "/sandboxes/"+id, "").Object(), w.do("GET", "/v2/sandboxes", "").list()[0]} {
				if o["state"] != tt.state || o["endAt"] != tt.endAt || o["startedAt"] != "2026-09-01T11:00:00.123456Z" {
					t.Errorf("%v from %v to %v, want %s to %s", o["state"], o["startedAt"], o["endAt"], tt.state, tt.endAt)
				}
			}
		})
	}
}

func TestWhatIsBeingMadeOrEndedIsNotShown(t *testing.T) {
	for name, rec := range map[string]lifecycle.Record{
		"creating": {State: lifecycle.Pending, Op: &lifecycle.Operation{Phase: lifecycle.Creating, Deadline: epoch.Add(time.Hour)}},
		"killing":  {State: lifecycle.Running, Generation: 1, Op: &lifecycle.Operation{Phase: lifecycle.Killing, Deadline: epoch.Add(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID":"base"}`)
			sb := w.Fake.Sandboxes[id]
			sb.Record = rec
			w.Fake.Sandboxes[id] = sb
			w.do("GET", "/sandboxes/"+id, "").fails(http.StatusNotFound, "sandbox_not_found", "doesn't exist")
			a := w.do("GET", "/v2/sandboxes", "")
			if a.ids() != "" || a.Header.Get("X-Total-Running") != "0" {
				t.Errorf("listed: %s", a.Body)
			}
		})
	}
}

func TestTimestampsAreTruncatedToMicroseconds(t *testing.T) {
	cet := time.FixedZone("CET", 3600)
	for in, want := range map[time.Time]string{
		time.Date(2026, 1, 2, 3, 4, 5, 999999999, time.UTC): "2026-01-02T03:04:05.999999Z",
		time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC):         "2026-01-02T03:04:05.000000Z",
		time.Date(2026, 1, 2, 3, 4, 5, 1000, cet):           "2026-01-02T02:04:05.000001Z",
	} {
		if got, _ := httpapi.Timestamp(in).MarshalText(); string(got) != want {
			t.Errorf("%v is written %s, want %s", in, got, want)
		}
	}
}

// TestSetNetwork replaces what a running sandbox reaches outside as a whole, and
// leaves alone who reaches it.
func TestSetNetwork(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base","allow_internet_access":false,"network":{"maskRequestHost":"x","denyOut":["1.1.1.1"]}}`)
	path := "/sandboxes/" + id
	said := func() string {
		sb := w.do("GET", path, "").Object()
		text, err := json.Marshal([]any{sb["allowInternetAccess"], sb["network"]})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := said(); got != `[false,{"denyOut":["1.1.1.1"],"maskRequestHost":"x"}]` {
		t.Errorf("at first: %s", got)
	}
	w.do("PUT", path+"/network", `{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"]}`).Is(http.StatusNoContent)
	if got := said(); got != `[true,{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"],"maskRequestHost":"x"}]` {
		t.Errorf("with rules: %s", got)
	}
	w.do("PUT", path+"/network", `{"rules":{"a.test":[]}}`).fails(http.StatusBadRequest, "not_supported", `"rules"`)
	w.do("PUT", path+"/network", `{"egressProxy":{"address":"10.0.0.1:1080"}}`).fails(http.StatusBadRequest, "network_invalid", `"egressProxy"`)
	w.do("PUT", path+"/network", `{"egressProxy":{"address":"p.test:1080","username":"u","password":"hidden"}}`).Is(http.StatusNoContent)
	if got := said(); got != `[true,{"egressProxy":{"address":"p.test:1080","username":"u"},"maskRequestHost":"x"}]` {
		t.Errorf("with a proxy: %s", got)
	}
	w.do("PUT", path+"/network", `{}`).Is(http.StatusNoContent)
	if got := said(); got != `[true,{"maskRequestHost":"x"}]` {
		t.Errorf("without the proxy: %s", got)
	}
	w.do("PUT", path+"/network", `{"allow_internet_access":false}`).Is(http.StatusNoContent)
	if got := said(); got != `[false,{"maskRequestHost":"x"}]` {
		t.Errorf("cleared: %s", got)
	}
	w.do("POST", path+"/pause", "").Is(http.StatusNoContent)
	w.do("PUT", path+"/network", `{}`).fails(http.StatusNotFound, "not_running", "paused")
}
