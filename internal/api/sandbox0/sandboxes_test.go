package sandbox0

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

func TestClaim(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.SSHListen, o.Domain = ":2222", "sbx.test:8443" })
	v := data(w.Do("POST", all, `{"template":"default","config":{"ttl":120,"hard_ttl":600,"env_vars":{"A":"b"},"resources":{"memory":"512Mi"},"auto_resume":false,
		"network":{"mode":"block-all","egress":{"allowedCidrs":["203.0.113.1"],"allowedDomains":["example.com"]}}}}`), http.StatusCreated)
	id := v["sandbox_id"].(string)
	if v["status"] != "running" || v["pod_name"] != id+"-1" || v["runtime_id"] != id+"-1" || v["template"] != "base" {
		t.Errorf("answer %v", v)
	}
	req := w.Fake.Created[0]
	want := supervisor.CreateRequest{
		Template: "base", Actor: apitest.Actor, Said: req.Said,
		Settings: lifecycle.Settings{OnTimeout: lifecycle.Pause, Timeout: 2 * time.Minute, MaxLifetime: 10 * time.Minute},
		Config: store.Config{Key: apitest.KeyID, Secure: true, Env: map[string]string{"A": "b"}, AllowInternet: new(false),
			AllowOut: []string{"203.0.113.1", "example.com"}, DenyOut: []string{}, Limits: store.Limits{MemoryMiB: 512}},
	}
	if !reflect.DeepEqual(req, want) {
		t.Errorf("created %+v\nwant %+v", req, want)
	}
	d := w.sandbox(id)
	if ssh, _ := d["ssh"].(map[string]any); ssh["host"] != "sbx.test" || ssh["port"] != 2222. || ssh["username"] != id {
		t.Errorf("ssh %v", d["ssh"])
	}
	if d["paused"] != false || d["auto_resume"] != false || d["runtime_generation"] != 1. || d["expires_at"] != "2026-09-01T12:02:00.123456Z" || d["hard_expires_at"] != "2026-09-01T12:10:00.123456Z" {
		t.Errorf("detail %v", d)
	}
}

func TestClaimWithoutAnything(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{"", "{}", `{"template":"base","config":{}}`, `{"config":null,"mounts":[],"snapshot_id":""}`} {
		w.claim(body)
		if got := w.Fake.Created[len(w.Fake.Created)-1].Settings; got != (lifecycle.Settings{OnTimeout: lifecycle.Pause, AutoResume: true}) {
			t.Errorf("%s: %+v", body, got)
		}
	}
	limited := newWorld(t, func(o *Options) { o.MaxTimeout = time.Hour })
	limited.claim("")
	if got := limited.Fake.Created[0].Settings.Timeout; got != time.Hour {
		t.Errorf("with a longest timeout: %s", got)
	}
}

func TestClaimRefuses(t *testing.T) {
	for body, words := range map[string][]string{
		`{"config":{"ttl":-1}}`:                                                                 {"config.ttl", "negative"},
		`{"config":{"ttl":20,"hard_ttl":10}}`:                                                   {"config.ttl", "hard_ttl"},
		`{"config":{"ttl":"60"}}`:                                                               {"config.ttl", "a number"},
		`{"config":{"tll":60}}`:                                                                 {"config.tll", "config.ttl"},
		`{"config":{"webhook":{"url":"http://x"}}}`:                                             {"config.webhook"},
		`{"config":{"services":[{"id":"x"}]}}`:                                                  {"config.services"},
		`{"config":{"resources":{"memory":"much"}}}`:                                            {"config.resources.memory"},
		`{"config":{"resources":{"memory":"0Mi"}}}`:                                             {"config.resources.memory"},
		`{"config":{"network":{"egress":{"allowedCidrs":["10.0.0.0/8"]}}}}`:                     {"config.network.mode", "required"},
		`{"config":{"network":{"mode":"allow-all","egress":{"deniedDomains":["x.com"]}}}}`:      {"config.network.egress.deniedDomains"},
		`{"config":{"network":{"mode":"allow-all","egress":{"deniedPorts":[{"port":1}]}}}}`:     {"config.network.egress.deniedPorts"},
		`{"config":{"network":{"mode":"block-all","egress":{"allowedCidrs":["example.com"]}}}}`: {"allowedCidrs", "example.com"},
		`{"config":{"network":{"mode":"block-all","egress":{"allowedDomains":["1.2.3.4"]}}}}`:   {"allowedDomains", "1.2.3.4"},
		`{"config":{"network":{"mode":"perhaps"}}}`:                                             {"config.network.mode", "allow-all"},
		`{"mounts":{"a":"b"}}`:                                                                  {"mounts"},
		`{"mounts":[{"sandboxvolume_id":"v"}]}`:                                                 {"mount_point"},
		`{"template":7}`:                                                                        {"template", "a string"},
		`{"template":"a b"}`:                                                                    {"template"},
		`[]`:                                                                                    {"an object"},
		`{`:                                                                                     {"not valid JSON"},
		"{\"a\":\"\xff\"}":                                                                      {"UTF-8"},
	} {
		w := newWorld(t)
		fails(w.Do("POST", all, body), http.StatusBadRequest, "bad_request", words...)
		if len(w.Fake.Created) > 0 {
			t.Errorf("%s: something was created", body)
		}
	}
	w := newWorld(t)
	fails(w.Do("POST", all, `{"template":"nowhere"}`), http.StatusNotFound, "not_found", "nowhere")
	fails(w.Do("POST", all, `{"snapshot_id":"nowhere"}`), http.StatusNotFound, "not_found", "nowhere")
	fails(w.Do("POST", all, strings.Repeat(" ", 2<<20)), http.StatusRequestEntityTooLarge, "file_too_large")
}

// TestGenerations holds what the clients of 0.9 and 0.10 want different.
func TestGenerations(t *testing.T) {
	for _, c := range []struct {
		prefix  string
		deleted int
		never   any
	}{{"", 202, nil}, {"/sandbox0/0.10", 202, nil}, {"/sandbox0/0.9", 200, "0001-01-01T00:00:00.000000Z"}} {
		w := newWorld(t)
		id := data(w.Do("POST", c.prefix+all, `{"template":"base"}`), http.StatusCreated)["sandbox_id"].(string)
		at := c.prefix + all + "/" + id
		for _, v := range []map[string]any{data(w.Do("GET", at, ""), 200), data(w.Do("GET", at+"/status", ""), 200), data(w.Do("POST", at+"/refresh", ""), 200)} {
			if has, said := v["expires_at"]; !said || has != c.never || v["hard_expires_at"] != c.never {
				t.Errorf("%q: no deadline is %v and %v", c.prefix, has, v["hard_expires_at"])
			}
		}
		data(w.Do("DELETE", at, ""), c.deleted)
		fails(w.Do("GET", at, ""), http.StatusNotFound, "not_found", "ended")
	}
	for path, want := range map[string]bool{
		"/api/v1": true, "/api/v1/sandboxes": true, "/sandbox0/0.9/api/v1/x": true, "/api/v1x": false, "/sandbox0/0.8/api/v1/x": false, "/v1/sandboxes": false, "/api/v2": false,
	} {
		if got := Owns(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("owns %s: %v", path, got)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":{"ttl":120}}`)
	for range 2 { // again is no error
		if v := data(w.Do("POST", all+"/"+id+"/pause", ""), 200); v["paused"] != true || v["status"] != "paused" {
			t.Errorf("pause: %v", v)
		}
	}
	if d := w.sandbox(id); d["status"] != "paused" || d["paused"] != true || d["runtime_generation"] != 1. || d["expires_at"] != nil {
		t.Errorf("paused: %v", d)
	}
	w.Advance(time.Hour)
	for i, restored := range []bool{true, false} {
		if v := data(w.Do("POST", all+"/"+id+"/resume", ""), 200); v["resumed"] != true || v["restored_memory"] != restored {
			t.Errorf("resume %d: %v", i, v)
		}
	}
	if d := w.sandbox(id); d["status"] != "running" || d["runtime_generation"] != 2. || d["expires_at"] != "2026-09-01T13:02:00.123456Z" {
		t.Errorf("resumed: %v", d)
	}
	if v := data(w.Do("POST", all+"/"+id+"/pause?async=true", ""), http.StatusAccepted); v["paused"] != false || v["status"] != "running" {
		t.Errorf("pause that has begun: %v", v)
	}
	if v := data(w.Do("POST", all+"/"+id+"/pause?async=true", ""), 200); v["paused"] != true {
		t.Errorf("pause of one that sleeps: %v", v)
	}
	fails(w.Do("POST", all+"/"+id+"/pause?async=later", ""), http.StatusBadRequest, "bad_request", "use true or false")
	fails(w.Do("POST", all+"/"+id+"/pause?asynch=true", ""), http.StatusBadRequest, "bad_request", "is not a parameter")
	fails(w.Do("POST", all+"/"+id+"/resume?async=true", ""), http.StatusBadRequest, "bad_request", "is not a parameter")
}

// TestPauseKeepsMemory where traffic may wake the sandbox: a pause of files alone
// can be ended by a resume only.
// TestSleepIsHidden: sandbox0's clients know one sleep.
func TestSleepIsHidden(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{}`)
	w.HidesSleep(id, func() string {
		return w.Do("GET", all+"/"+id, "").Is(http.StatusOK).Body + w.Do("GET", all, "").Is(http.StatusOK).Body
	})
}

func TestPauseKeepsMemory(t *testing.T) {
	for _, c := range []struct {
		auto bool
		body string
		want lifecycle.Mode
	}{
		{true, "", lifecycle.Memory}, {true, `{"memory":false}`, lifecycle.Memory}, {true, `{"memory":true}`, lifecycle.Memory},
		{false, "", lifecycle.Memory}, {false, `{"memory":false}`, lifecycle.Filesystem}, {false, `{"memory":true}`, lifecycle.Memory},
	} {
		w := newWorld(t)
		id := w.claim(fmt.Sprintf(`{"config":{"auto_resume":%v}}`, c.auto))
		data(w.Do("POST", all+"/"+id+"/pause", c.body), 200)
		if got := w.Fake.Pauses; len(got) != 1 || got[0].Mode != c.want {
			t.Errorf("%+v: %v", c, got)
		}
		if v := data(w.Do("POST", all+"/"+id+"/resume", `{"memory":true}`), 200); v["restored_memory"] != (c.want == lifecycle.Memory) {
			t.Errorf("%+v: %v", c, v)
		}
	}
}

func TestTTLPausesAndHardTTLDeletes(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":{"ttl":60,"hard_ttl":600}}`)
	w.Advance(time.Minute)
	if d := w.sandbox(id); d["status"] != "paused" {
		t.Errorf("at its ttl: %v", d)
	}
	w.Advance(10 * time.Minute)
	fails(w.Do("GET", all+"/"+id, ""), http.StatusNotFound, "not_found", "ended")
}

func TestUpdateAndRefresh(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":{"ttl":60,"hard_ttl":3600}}`)
	at := all + "/" + id
	v := data(w.Do("PUT", at, `{"config":{"ttl":600,"auto_resume":false,"network":{"mode":"allow-all","egress":{"deniedCidrs":["9.9.9.9"]}}}}`), 200)
	if v["expires_at"] != "2026-09-01T12:10:00.123456Z" || v["auto_resume"] != false || v["hard_expires_at"] != "2026-09-01T13:00:00.123456Z" {
		t.Errorf("updated: %v", v)
	}
	if v := data(w.Do("PUT", at, `{"config":{"ttl":0,"hard_ttl":0}}`), 200); v["expires_at"] != nil || v["hard_expires_at"] != nil {
		t.Errorf("without limits: %v", v)
	}
	w.Advance(time.Minute)
	if v := data(w.Do("POST", at+"/refresh", `{"duration":30}`), 200); v["expires_at"] != "2026-09-01T12:01:30.123456Z" {
		t.Errorf("refreshed: %v", v)
	}
	if v := data(w.Do("POST", at+"/refresh", ""), 200); v["expires_at"] != "2026-09-01T12:02:00.123456Z" {
		t.Errorf("refreshed by its ttl: %v", v)
	}
	for body, field := range map[string]string{`{"config":{"env_vars":{"A":"b"}}}`: "config.env_vars", `{"config":{"resources":{"memory":"1Gi"}}}`: "config.resources", `{"config":{"webhook":{}}}`: "config.webhook"} {
		fails(w.Do("PUT", at, body), http.StatusBadRequest, "bad_request", field)
	}
	data(w.Do("POST", at+"/pause", ""), 200)
	fails(w.Do("PUT", at, `{"config":{"ttl":60,"auto_resume":true}}`), http.StatusConflict, "conflict", "resume it first")
	if d := w.sandbox(id); d["auto_resume"] != false {
		t.Error("a refused update changed something")
	}
	if v := data(w.Do("PUT", at, `{"config":{"auto_resume":true}}`), 200); v["auto_resume"] != true {
		t.Errorf("updated asleep: %v", v)
	}
}

func TestNetwork(t *testing.T) {
	w := newWorld(t)
	at := all + "/" + w.claim("") + "/network"
	if v := data(w.Do("GET", at, ""), 200); v["mode"] != "allow-all" {
		t.Errorf("by default: %v", v)
	}
	sent := `{"mode":"block-all","egress":{"allowedCidrs":["203.0.113.0/24"],"allowedDomains":["*.example.com"],"deniedCidrs":[],"allowedPorts":[],"proxy":null},"credentialBindings":[]}`
	data(w.Do("PUT", at, sent), 200)
	got, _ := json.Marshal(data(w.Do("GET", at, ""), 200))
	if string(got) != `{"egress":{"allowedCidrs":["203.0.113.0/24"],"allowedDomains":["*.example.com"],"deniedCidrs":[]},"mode":"block-all"}` {
		t.Errorf("got %s", got)
	}
	fails(w.Do("PUT", at, `{}`), http.StatusBadRequest, "bad_request", "mode")
	fails(w.Do("PUT", at, `{"mode":"allow-all","credentialBindings":[{"a":1}]}`), http.StatusBadRequest, "bad_request", "credentialBindings")
}

func TestList(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for range 5 {
		w.Advance(time.Second)
		ids = append([]string{w.claim("")}, ids...)
	}
	data(w.Do("POST", all+"/"+ids[1]+"/pause", ""), 200)
	data(w.Do("DELETE", all+"/"+ids[4], ""), 202)
	list := func(query string) (got []string, more bool) {
		v := data(w.Do("GET", all+query, ""), 200)
		for _, one := range v["sandboxes"].([]any) {
			got = append(got, one.(map[string]any)["id"].(string))
		}
		return got, v["has_more"].(bool)
	}
	for query, want := range map[string][]string{
		"": ids[:4], "?limit=2": ids[:2], "?limit=2&offset=2": ids[2:4], "?offset=9": nil, "?paused=true": ids[1:2], "?status=paused": ids[1:2],
		"?status=failed": nil, "?paused=false&limit=1": ids[:1], "?template_id=base&limit=1": ids[:1], "?template_id=other": nil,
	} {
		if got, more := list(query); !slices.Equal(got, want) || more != (query == "?limit=2" || strings.HasSuffix(query, "limit=1")) {
			t.Errorf("%s: %v, more %v", query, got, more)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=201", "?limit=x", "?offset=-1", "?status=asleep", "?paused=perhaps", "?offset=99999999999999999999"} {
		fails(w.Do("GET", all+query, ""), http.StatusBadRequest, "bad_request")
	}
}

// bodyOf returns a body with which a route gets as far as it can.
func bodyOf(r route) string {
	switch {
	case strings.HasSuffix(r.pattern, "/network"):
		return `{"mode":"allow-all"}`
	case strings.HasSuffix(r.pattern, "/resize"):
		return `{"rows":1,"cols":1}`
	case strings.HasSuffix(r.pattern, "/signal"):
		return `{"signal":"INT"}`
	case strings.HasSuffix(r.pattern, "/input"), strings.HasSuffix(r.pattern, "/exec"):
		return `{"data":"x"}`
	case strings.HasSuffix(r.pattern, "/move"):
		return `{"source":"/a","destination":"/b"}`
	case strings.HasSuffix(r.pattern, "/restore"):
		return `{"snapshot_id":"s1"}`
	case strings.HasSuffix(r.pattern, "/contexts"):
		return `{"cmd":{"command":["true"]}}`
	}
	return "{}"
}

func TestListHasWhatTheKeySees(t *testing.T) {
	w := newWorld(t)
	data(w.DoAs(apitest.FullKey, "POST", all, ""), 201)
	if v := data(w.DoAs(apitest.OwnKey, "GET", all, ""), 200); v["count"] != 0. {
		t.Errorf("it lists %v", v)
	}
}

func TestOddPathsAndMethods(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	for _, path := range []string{all + "/" + id + "/", all + "//" + id, all + "/..%2f" + id, all + "/" + id + "%00", all + "/" + strings.ToUpper(id), all + "/%2e%2e/x", all + "/" + strings.Repeat("a", 5000)} {
		a := w.Do("GET", path, "")
		if a.Status != http.StatusNotFound && a.Status != http.StatusNotImplemented || a.Object()["success"] != false {
			t.Errorf("%.80s: %d %s", path, a.Status, a.Body)
		}
		if len(a.Body) > 600 {
			t.Errorf("%.80s: an answer of %d bytes", path, len(a.Body))
		}
	}
	fails(w.Do("PATCH", all+"/"+id, ""), http.StatusMethodNotAllowed, "bad_request", "DELETE, GET, PUT")
	for _, path := range []string{"/sandboxes/" + id + "/sessions", "/sandboxes/" + id + "/previews", "/functions", "/teams", ""} {
		fails(w.Do("GET", base+path, ""), http.StatusNotImplemented, "not_supported")
	}
}

// TestIdempotencyKey: what would be ignored is refused.
func TestIdempotencyKey(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	r := httptest.NewRequest("POST", all+"/"+id+"/fork", nil)
	r.Header.Set("X-API-Key", goodKey)
	r.Header.Set("Idempotency-Key", "k")
	fails(w.Send(r), http.StatusBadRequest, "bad_request", "Idempotency-Key")
}

// TestErrors holds how each class of error is answered.
func TestErrors(t *testing.T) {
	for class, want := range map[errdef.Class]struct {
		status int
		code   string
	}{
		errdef.NotFound:     {404, codeNotFound},
		errdef.Exists:       {409, codeConflict},
		errdef.Invalid:      {400, codeBadRequest},
		errdef.WrongState:   {409, codeConflict},
		errdef.Conflict:     {409, codeConflict},
		errdef.Exhausted:    {429, codeQuota},
		errdef.Unavailable:  {503, codeUnavailable},
		errdef.Unauthorized: {401, codeUnauthorized},
		errdef.Forbidden:    {403, codeForbidden},
		errdef.Unsupported:  {501, codeNotSupported},
		errdef.Unfit:        {503, codeUnavailable},
		errdef.Internal:     {500, codeInternal},
	} {
		w := newWorld(t)
		id := w.claim("")
		w.Fake.Err = errdef.New(class, "some_code", "it is so").WithRemedy("do that").With("fact", 7)
		a := w.Do("POST", all+"/"+id+"/pause", "")
		if class == errdef.NotFound {
			fails(a, http.StatusNotFound, "not_found")
			continue
		}
		fails(a, want.status, want.code)
		if class == errdef.Internal != !strings.Contains(a.Body, "it is so: do that") {
			t.Errorf("%s: %s", class, a.Body)
		}
		if wait := a.Header.Get("Retry-After"); (wait != "") != (want.status == 503 || want.status == 429) {
			t.Errorf("%s: Retry-After %q", class, wait)
		}
	}
	for code, wait := range map[string]string{"resume_failed": "1", "checkpoint_damaged": "", "checkpoint_unreadable": ""} {
		w := newWorld(t)
		id := w.claim("")
		w.Fake.Err = errdef.New(errdef.Unavailable, code, "it did not wake")
		a := w.Do("POST", all+"/"+id+"/pause", "")
		fails(a, http.StatusServiceUnavailable, codeResumeFailed)
		if got := a.Header.Get("Retry-After"); got != wait {
			t.Errorf("%s: Retry-After %q, want %q", code, got, wait)
		}
	}
	w := newWorld(t)
	w.Fake.Panics = "secret"
	if a := w.Do("GET", all, ""); strings.Contains(a.Body, "secret") {
		t.Error(a.Body)
	} else {
		fails(a, http.StatusInternalServerError, "internal_error")
	}
}
