package mitos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// object returns the answer, which must have a status and be an object.
func object(t *testing.T, rec *httptest.ResponseRecorder, status int) map[string]any {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != status {
		t.Fatalf("%d %s (%v), want %d", rec.Code, rec.Body, err, status)
	}
	return got
}

// fails wants an error in mitos' form, with a text in it.
func fails(t *testing.T, rec *httptest.ResponseRecorder, status int, code, text string) map[string]any {
	t.Helper()
	e, ok := object(t, rec, status)["error"].(map[string]any)
	if !ok || e["code"] != code || !strings.Contains(rec.Body.String(), text) {
		t.Fatalf("got %s\nwant code %s and %q", rec.Body, code, text)
	}
	for _, name := range []string{"message", "cause", "remediation"} { // the SDK fails on null
		if said, _ := e[name].(string); said == "" {
			t.Errorf("%s is %v", name, e[name])
		}
	}
	if _, ok := e["context"].(map[string]any); !ok {
		t.Errorf("the context is %v", e["context"])
	}
	return e
}

func TestLife(t *testing.T) {
	w := newWorld(t)
	const name = "sandbox-0011aabb"
	made := object(t, w.create(apitest.GoodKey, name), http.StatusOK)
	for _, field := range []string{"id", "template_id", "endpoint", "fork_time_ms"} {
		if _, there := made[field]; !there {
			t.Errorf("the SDK fails without %s: %v", field, made)
		}
	}
	if made["id"] != name || made["template_id"] != "python" {
		t.Errorf("made %v", made)
	}
	about := fmt.Sprintf(`{"sandbox":%q}`, name)
	listed := func(state lifecycle.State, paused bool) {
		t.Helper()
		var list []map[string]any
		rec := w.do(apitest.GoodKey, get, "/v1/sandboxes", "")
		if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil || len(list) != 1 {
			t.Fatalf("%s: %v", rec.Body, err)
		}
		if got := list[0]; got["id"] != name || got["state"] != string(state) || got["paused"] != paused {
			t.Errorf("listed %v", got)
		}
	}
	listed(lifecycle.Running, false)
	got := object(t, w.do(apitest.GoodKey, post, "/v1/set_timeout", fmt.Sprintf(`{"sandbox":%q,"timeout_seconds":600}`, name)), http.StatusOK)
	if want := float64(w.Fake.Now.Add(10 * time.Minute).Unix()); got["deadline_unix"] != want || got["status"] != "ok" || got["timeout_seconds"] != 600.0 {
		t.Errorf("got %v, want the whole second %v", got, want)
	}
	for range 2 {
		if got := object(t, w.do(apitest.GoodKey, post, "/v1/pause", about), http.StatusOK); got["status"] != "paused" {
			t.Errorf("pause: %v", got)
		}
	}
	listed(lifecycle.Paused, true)
	for range 2 {
		if got := object(t, w.do(apitest.GoodKey, post, "/v1/resume", about), http.StatusOK); got["status"] != "running" {
			t.Errorf("resume: %v", got)
		}
	}
	listed(lifecycle.Running, false)
	health := object(t, w.do(apitest.GoodKey, get, "/v1/health", ""), http.StatusOK)
	if health["status"] != "ok" || health["mock"] != false || health["sandboxes"] != 1.0 {
		t.Errorf("health: %v", health)
	}
	fails(t, w.create(apitest.GoodKey, name), http.StatusConflict, "name_taken", name)
	if got := object(t, w.do(apitest.GoodKey, del, "/v1/sandboxes/"+name, ""), http.StatusOK); got["status"] != "terminated" || got["id"] != name {
		t.Errorf("terminate: %v", got)
	}
	fails(t, w.do(apitest.GoodKey, post, "/v1/pause", about), http.StatusNotFound, "not_found", "Killed")
	object(t, w.create(apitest.GoodKey, name), http.StatusOK) // its name is free again
}

// TestExpired: each end that a clock makes is one class in the SDK.
// TestSleepIsHidden: mitos's clients know one sleep.
func TestSleepIsHidden(t *testing.T) {
	w := newWorld(t)
	const name = "sandbox-0011aabb"
	w.create(apitest.GoodKey, name)
	id, there := w.in.Named(apitest.KeyID, name)
	if !there {
		t.Fatal("no sandbox was made")
	}
	w.HidesSleep(id, func() string { return w.do(apitest.GoodKey, get, "/v1/sandboxes", "").Body.String() })
}

func TestExpired(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "a-1"), http.StatusOK)
	object(t, w.do(apitest.GoodKey, post, "/v1/set_timeout", `{"sandbox":"a-1","timeout_seconds":5}`), http.StatusOK)
	w.Fake.Now = w.Fake.Now.Add(6 * time.Second)
	for _, call := range [][2]string{{"pause", `{"sandbox":"a-1"}`}, {"set_timeout", `{"sandbox":"a-1","timeout_seconds":5}`}, {"preview", `{"sandbox":"a-1","port":80}`}} {
		e := fails(t, w.do(apitest.GoodKey, post, "/v1/"+call[0], call[1]), http.StatusGone, "idle_timeout", "set_timeout earlier")
		if e["cause"] != "TimeoutExpired" || e["context"].(map[string]any)["sandbox"] != "a-1" {
			t.Errorf("%s: %v", call[0], e)
		}
	}
}

// TestOtherKeys: a sandbox is there only for keys that see it, and by name only for
// its own.
// TestRetryAfter is only for what a retry may cure.
func TestRetryAfter(t *testing.T) {
	for code, wait := range map[string]string{"pause_failed": "1", "resume_failed": "1", "checkpoint_damaged": "", "checkpoint_unreadable": ""} {
		w := newWorld(t)
		object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
		w.Fake.Err = errdef.New(errdef.Unavailable, code, "it did not wake")
		got := w.do(apitest.GoodKey, post, "/v1/pause", `{"sandbox":"a"}`)
		if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") != wait {
			t.Errorf("%s: %d, Retry-After %q, want %q", code, got.Code, got.Header().Get("Retry-After"), wait)
		}
	}
}

func TestOtherKeys(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "box-1"), http.StatusOK)
	id, _ := w.in.Named(apitest.KeyID, "box-1")
	for _, name := range []string{"box-1", id, "i00000000000000000099", "..", "%2e%2e", "box-1%00", "box-1/../box-1"} {
		rec := w.do(apitest.OwnKey, del, "/v1/sandboxes/"+name, "")
		if rec.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		// A stranger's answer tells nothing of what there is.
		if strings.Contains(rec.Body.String(), apitest.KeyID) || strings.Contains(rec.Body.String(), "running") {
			t.Errorf("%s: %s", name, rec.Body)
		}
	}
	for _, verb := range []string{"pause", "resume"} {
		fails(t, w.do(apitest.OwnKey, post, "/v1/"+verb, fmt.Sprintf(`{"sandbox":%q}`, id)), http.StatusNotFound, "not_found", id)
	}
	fails(t, w.do(apitest.OwnKey, post, "/v1/sandboxes/"+id+"/fork", `{"id":"mine"}`), http.StatusNotFound, "not_found", id)
	object(t, w.create(apitest.OwnKey, "box-1"), http.StatusOK) // the same name, another sandbox
	if rec := w.do(apitest.OwnKey, get, "/v1/sandboxes", ""); strings.Contains(rec.Body.String(), id) || strings.Count(rec.Body.String(), `"id"`) != 1 {
		t.Errorf("a key that sees its own lists %s", rec.Body)
	}
	object(t, w.do(apitest.OwnKey, del, "/v1/sandboxes/box-1", ""), http.StatusOK)
	if sb := w.Fake.Sandboxes[id]; sb.Record.State != lifecycle.Running {
		t.Errorf("the other key's sandbox is %s", sb.Record.State)
	}
	// A key that sees all calls it by its id, in its list too.
	if rec := w.do(apitest.FullKey, get, "/v1/sandboxes", ""); !strings.Contains(rec.Body.String(), `"id":"`+id+`"`) {
		t.Errorf("listed as %s", rec.Body)
	}
	object(t, w.do(apitest.FullKey, post, "/v1/pause", fmt.Sprintf(`{"sandbox":%q}`, id)), http.StatusOK)
	fails(t, w.do(apitest.ReadKey, del, "/v1/sandboxes/"+id, ""), http.StatusForbidden, "forbidden", "")
	fails(t, w.do("e2b_nobody", get, "/v1/sandboxes", ""), http.StatusUnauthorized, "unauthorized", "")
}

func TestNetwork(t *testing.T) {
	for network, want := range map[string]string{
		``:                    "false [] true",
		`{}`:                  "false [] true",
		`{"egress":"allow"}`:  "true [] true",
		`{"inbound":"allow"}`: "false [] false",
		`{"allow_cidrs":["203.0.113.0/24"],"allow_domains":["example.com"]}`: "false [example.com 203.0.113.0/24] true",
		`{"block":true,"egress":"allow","allow_cidrs":["203.0.113.0/24"]}`:   "false [] true",
	} {
		w := newWorld(t)
		said := `{"id":"python"`
		if network != "" {
			said += `,"network":` + network
		}
		object(t, w.do(apitest.GoodKey, post, "/v1/templates", said+`}`), http.StatusOK)
		object(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"python","id":"a"}`), http.StatusOK)
		c := w.Fake.Created[0].Config
		if got := fmt.Sprint(*c.AllowInternet, c.AllowOut, c.PrivatePorts); got != want {
			t.Errorf("%s: internet, allowed and private ports are %s, want %s", network, got, want)
		}
	}
	w := newWorld(t)
	fails(t, w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"python","network":{"allow_domains":["example.com:443"]}}`), http.StatusNotImplemented, "unimplemented", "example.com")
	fails(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"python","id":"a"}`), http.StatusNotFound, "not_found", "was not created")
}

// TestNetworksAtOnce: a create never gets the network that was meant for another.
func TestNetworksAtOnce(t *testing.T) {
	w := newWorld(t)
	say := func(egress string) *httptest.ResponseRecorder {
		return w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"base","network":{"egress":"`+egress+`"}}`)
	}
	object(t, say("deny"), http.StatusOK)
	fails(t, say("allow"), http.StatusTooManyRequests, "rate_limited", "second name")
	object(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"base","id":"a"}`), http.StatusOK)
	object(t, say("allow"), http.StatusOK)
	for _, bad := range []string{`{"template":"base","id":"b","region":"fra"}`, `{"template":"base","id":"../b"}`, `{"template":"base","id":"a"}`} {
		if rec := w.do(apitest.GoodKey, post, "/v1/fork", bad); rec.Code < 400 {
			t.Errorf("%s: %s", bad, rec.Body)
		}
		object(t, say("deny"), http.StatusOK) // nobody waits for the other any more
		object(t, w.do(apitest.GoodKey, del, "/v1/sandboxes/x", ""), http.StatusNotFound)
		fails(t, say("allow"), http.StatusTooManyRequests, "rate_limited", "")
		if rec := w.do(apitest.GoodKey, post, "/v1/fork", bad); rec.Code < 400 {
			t.Errorf("%s: %s", bad, rec.Body)
		}
		object(t, say("allow"), http.StatusOK)
	}
	object(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"base","id":"b"}`), http.StatusOK)
	if a, b := w.Fake.Created[0].Config, w.Fake.Created[1].Config; *a.AllowInternet || !*b.AllowInternet {
		t.Errorf("internet: %v, %v", *a.AllowInternet, *b.AllowInternet)
	}
	fails(t, w.do(apitest.FullKey, post, "/v1/fork", `{"template":"base","id":"a"}`), http.StatusNotFound, "not_found", "") // another key said nothing
}

func TestIdempotency(t *testing.T) {
	var o Options
	w := newWorld(t, func(of *Options) { o = *of })
	object(t, w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"python","network":{"egress":"allow"}}`), http.StatusOK)
	send := func(body string) *httptest.ResponseRecorder {
		return w.do(apitest.GoodKey, post, "/v1/fork", body, "Idempotency-Key", "00112233445566778899aabbccddeeff")
	}
	object(t, send(`{"template":"python","id":"a"}`), http.StatusOK)
	if got := object(t, send(`{"id":"a","template":"python"}`), http.StatusOK); got["id"] != "a" || len(w.Fake.Created) != 1 {
		t.Errorf("the second create gave %v", got)
	}
	fails(t, send(`{"template":"python","id":"b"}`), http.StatusUnprocessableEntity, "idempotency_key_reused", "")
	// Who repeats a create takes no settings from a create to come.
	say := func(egress string) *httptest.ResponseRecorder {
		return w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"python","network":{"egress":"`+egress+`"}}`)
	}
	object(t, say("allow"), http.StatusOK)
	object(t, send(`{"id":"a","template":"python"}`), http.StatusOK)
	fails(t, say("deny"), http.StatusTooManyRequests, "rate_limited", "")
	w.HTTP = New(o) // the server starts anew
	if got := object(t, send(`{"id":"a","template":"python"}`), http.StatusOK); got["id"] != "a" || got["template_id"] != "python" || len(w.Fake.Created) != 1 {
		t.Errorf("after a restart the create gave %v", got)
	}
	// What was said of a template holds after it too.
	object(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"python","id":"c"}`), http.StatusOK)
	if c := w.Fake.Created[1].Config; !*c.AllowInternet {
		t.Error("a create after the restart has another network")
	}
	o.Settings = memstore.Open(memstore.NewData(), memstore.Hooks{}) // as after a day
	w.HTTP = New(o)
	fails(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"python","id":"d"}`), http.StatusNotFound, "not_found", "")
	object(t, send(`{"id":"a","template":"python"}`), http.StatusOK)
}

func TestCeiling(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxTimeout = time.Hour })
	w.Fake.Limit = time.Hour
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	if got := w.Fake.Created[0].Settings.Timeout; got != time.Hour {
		t.Errorf("a new sandbox has the timeout %s", got)
	}
	e := fails(t, w.do(apitest.GoodKey, post, "/v1/set_timeout", `{"sandbox":"a","timeout_seconds":3601}`), http.StatusBadRequest, "timeout_too_large", "")
	if c := e["context"].(map[string]any); c["requested_s"] != 3601.0 || c["max_timeout_s"] != 3600.0 || c["sandbox"] != "a" {
		t.Errorf("context %v", c)
	}
	for _, bad := range []string{`0`, `-1`, `1.5`, `"x"`, `true`, `[]`, `1e3`, `99999999999`} {
		rec := w.do(apitest.GoodKey, post, "/v1/set_timeout", `{"sandbox":"a","timeout_seconds":`+bad+`}`)
		if rec.Code != http.StatusBadRequest || !strings.Contains(rec.Body.String(), "timeout_seconds") {
			t.Errorf("%s: %d %s", bad, rec.Code, rec.Body)
		}
	}
}

func TestFork(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	fails(t, w.do(apitest.GoodKey, post, "/v1/sandboxes/a/fork", `{"id":"b","pause_source":false}`), http.StatusNotImplemented, "unimplemented", "pause_source")
	fails(t, w.do(apitest.GoodKey, post, "/v1/sandboxes/a/fork", `{"id":"../b"}`), http.StatusBadRequest, "invalid_input", "../b")
	got := object(t, w.do(apitest.GoodKey, post, "/v1/sandboxes/a/fork", `{"id":"b","template":"python","pause_source":true}`), http.StatusOK)
	if got["template_id"] != "python" || got["endpoint"] != "" {
		t.Errorf("child %v", got)
	}
}

func TestPreview(t *testing.T) {
	for domain, want := range map[string]string{"": "http://example.com/s/", "sbx.test": "http://8080-i"} {
		w := newWorld(t, func(o *Options) { o.Domain = domain })
		object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
		got := object(t, w.do(apitest.GoodKey, post, "/v1/preview", `{"sandbox":"a","port":8080}`), http.StatusOK)
		link, err := url.Parse(got["url"].(string))
		if err != nil || !strings.HasPrefix(link.String(), want) || link.Query().Get("drowse_preview") == "" {
			t.Errorf("%q: %v, %v", domain, got, err)
		}
		if got["expires_unix"].(float64) < float64(w.Fake.Now.Unix()) {
			t.Errorf("it has expired: %v", got)
		}
		fails(t, w.do(apitest.GoodKey, post, "/v1/preview", `{"sandbox":"a","port":0}`), http.StatusBadRequest, "invalid_input", "port")
	}
}

// TestBodies: whatever comes as a body of a REST route gets an error in mitos' form,
// and a field that nobody knows is named in it.
func TestBodies(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	for path, whole := range map[string]string{
		"/v1/templates": `{"id":"python"}`, "/v1/fork": `{"template":"python","id":"b"}`, "/v1/sandboxes/a/fork": `{"id":"c"}`,
		"/v1/pause": `{"sandbox":"a"}`, "/v1/resume": `{"sandbox":"a"}`, "/v1/set_timeout": `{"sandbox":"a","timeout_seconds":1}`, "/v1/preview": `{"sandbox":"a","port":1}`,
	} {
		for _, bad := range []string{"", " ", "null", "[]", `""`, "{}", `{"id":1}`, `{"sandbox":null}`, `{"sandbox":{}}`, `{"sandbox":"a","sandbox":"b"}`, `{"SANDBOX":"a"}`} {
			rec := w.do(apitest.GoodKey, post, path, bad)
			if rec.Code < 400 || rec.Code > 404 {
				t.Errorf("%s %s: %d %s", path, bad, rec.Code, rec.Body)
			}
		}
		fails(t, w.do(apitest.GoodKey, post, path, `{"id":`), http.StatusBadRequest, "invalid_json", "line 1")
		fails(t, w.do(apitest.GoodKey, post, path, "{\"id\":\"\xff\"}"), http.StatusBadRequest, "invalid_input", "UTF-8")
		fails(t, w.do(apitest.GoodKey, post, path, `{"a":"`+strings.Repeat("x", 2<<20)+`"}`), http.StatusRequestEntityTooLarge, "body_too_large", "")
		fails(t, w.do(apitest.GoodKey, post, path, strings.TrimSuffix(whole, "}")+`,"surprise":1}`), http.StatusBadRequest, "invalid_input", "surprise")
		fails(t, w.do(apitest.GoodKey, post, path+"?q=1", whole), http.StatusBadRequest, "invalid_input", `\"q\"`)
		fails(t, w.do(apitest.GoodKey, "PUT", path, whole), http.StatusMethodNotAllowed, "invalid_input", "POST")
	}
	fails(t, w.do(apitest.GoodKey, get, "/v2/health", ""), http.StatusNotFound, "not_found", Prefix)
	fails(t, w.do(apitest.GoodKey, get, "//v1/health", ""), http.StatusNotFound, "not_found", Prefix)
	if len(w.Fake.Created) != 1 {
		t.Errorf("%d sandboxes were made", len(w.Fake.Created))
	}
}

// TestVocabulary: every field of every body does something, or is refused by name.
func TestVocabulary(t *testing.T) {
	samples := map[string]string{
		"id": `"python"`, "template": `"python"`, "init_wait_seconds": "5", "network.block": "true", "network.egress": `"allow"`,
		"network.allow_domains": `["example.com"]`, "network.allow_cidrs": `["203.0.113.0/24"]`, "network.inbound": `"allow"`, "network.inbound_cidrs": `["203.0.113.0/24"]`,
		"workload": `{"command":["x"]}`, "resources.vcpu_count": "1", "resources.mem_size_mib": "512", "region": `"fra"`,
		"sandbox": `"a"`, "timeout_seconds": "60", "port": "80", "pause_source": "true",
	}
	base := map[string]string{"/v1/templates": `"id":"python"`, "/v1/fork": `"template":"python","id":"new"`, "/v1/sandboxes/a/fork": `"id":"child"`,
		"/v1/pause": `"sandbox":"a"`, "/v1/set_timeout": `"sandbox":"a","timeout_seconds":60`, "/v1/preview": `"sandbox":"a","port":80`}
	for path, v := range map[string]body.Vocabulary{
		"/v1/templates": templateBody, "/v1/fork": createBody, "/v1/sandboxes/a/fork": forkBody,
		"/v1/pause": sandboxBody, "/v1/set_timeout": timeoutBody, "/v1/preview": previewBody,
	} {
		for _, option := range v {
			name := option.Name
			sample, known := samples[name]
			if !known {
				t.Errorf("there is no sample of %s", name)
				continue
			}
			w := newWorld(t)
			object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
			before := len(w.Fake.Created)
			said := "{" + base[path]
			if !strings.Contains(said, `"`+name+`"`) {
				said += "," + apitest.Nested(name, sample)
			}
			rec := w.do(apitest.GoodKey, post, path, said+"}")
			switch name {
			case "workload", "region", "network.inbound_cidrs":
				fails(t, rec, http.StatusNotImplemented, "unimplemented", name)
				if len(w.Fake.Created) != before {
					t.Errorf("%s was refused, and something was made", name)
				}
			default:
				object(t, rec, http.StatusOK)
			}
		}
	}
	w := newWorld(t)
	object(t, w.do(apitest.GoodKey, post, "/v1/templates", `{"id":"python","resources":{"vcpu_count":1,"mem_size_mib":700}}`), http.StatusOK)
	object(t, w.do(apitest.GoodKey, post, "/v1/fork", `{"template":"python","id":"a"}`), http.StatusOK)
	if got := w.Fake.Created[0].Config.Limits; got.CPUs != 1 || got.MemoryMiB != 700 {
		t.Errorf("resources became %+v", got)
	}
}

// TestServerDefaults: what this dialect has no word for is the server's.
func TestServerDefaults(t *testing.T) {
	w := newWorld(t)
	w.Fake.Defaults = supervisor.Defaults{IdleTimeout: time.Minute, OnIdle: lifecycle.Pause, AutoResume: true}
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	id, _ := w.in.Named(apitest.KeyID, "a")
	if set := w.Fake.Sandboxes[id].Record.Settings; set.Timeout != 0 || set.IdleTimeout != time.Minute || set.OnIdle != lifecycle.Pause || !set.AutoResume || set.OnTimeout != lifecycle.Kill {
		t.Errorf("settings %+v", set)
	}
}

// TestUsualTemplate: what the SDK asks for if nobody says is a template of the server, or
// what the caller itself has called so. What another key calls python is for that alone.
func TestUsualTemplate(t *testing.T) {
	w := newWorld(t)
	sb, err := w.Fake.Create(t.Context(), supervisor.CreateRequest{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := w.in.TakeSnapshot(t.Context(), sb.ID, supervisor.SnapshotRequest{Name: "python", Key: apitest.KeyIDOf(apitest.OwnKey)})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{apitest.GoodKey: "", apitest.FullKey: "", apitest.OwnKey: snap.ID} {
		if got := w.create(key, "a"); got.Code != http.StatusOK && got.Code != http.StatusCreated {
			t.Fatalf("create: %d %s", got.Code, got.Body)
		}
		if last := w.Fake.Created[len(w.Fake.Created)-1]; last.Snapshot != want {
			t.Errorf("a sandbox starts from %q %q, want %q", last.Template, last.Snapshot, want)
		}
	}
	for _, key := range []string{apitest.GoodKey, apitest.FullKey} { // by its id
		if got := w.do(key, post, "/v1/templates", `{"id":"`+snap.ID+`"}`); got.Code != http.StatusOK {
			t.Errorf("by its id: %d %s", got.Code, got.Body)
		}
	}
}
