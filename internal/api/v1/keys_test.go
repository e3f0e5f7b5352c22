package v1

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// keyring is what a server has: keys in a store, the first of them an admin's.
func keyring(t *testing.T) (keys *auth.Keys, admin string) {
	t.Helper()
	keys, err := auth.Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	if admin, _, err = keys.EnsureFirst(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return keys, admin
}

func newKeyWorld(t *testing.T) (w *world, admin string) {
	t.Helper()
	keys, admin := keyring(t)
	return newWorld(t, func(o *Options) { o.Auth, o.Keys = keys, keys }), admin
}

func (w *world) doAs(key, method, target, body string) answer {
	w.T.Helper()
	return answer{w.DoAs(key, method, target, body)}
}

// TestKeys makes a key, uses it, looks at it and revokes it.
func TestKeys(t *testing.T) {
	w, admin := newKeyWorld(t)
	made := w.doAs(admin, "POST", "/v1/keys",
		`{"name":"build machine","role":"own","expiresIn":3600,"maxRunning":2,"limits":{"max_sandboxes":5},"maxMemoryMiB":4096,"maxDiskMiB":50000,"max_rate":9}`).Is(http.StatusCreated)
	o := made.Object()
	text, id := o["key"].(string), o["id"].(string)
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(text) {
		t.Fatalf("its text has the wrong form (%d characters)", len(text))
	}
	if made.Header.Get("Cache-Control") != "no-store" {
		t.Error("an answer with a key may be kept on the way")
	}
	if o["mask"] != text[:6]+"…"+text[40:] || o["name"] != "build machine" || o["role"] != "own" || o["lastUsedAt"] != nil {
		t.Errorf("made %v", o)
	}
	limits := o["limits"].(map[string]any)
	if limits["maxRunning"] != 2.0 || limits["maxSandboxes"] != 5.0 || limits["maxMemoryMiB"] != 4096.0 || limits["maxDiskMiB"] != 50000.0 || limits["maxRate"] != 9.0 {
		t.Errorf("limits %v", limits)
	}
	created, _ := time.Parse(time.RFC3339, o["createdAt"].(string))
	if expires, err := time.Parse(time.RFC3339, o["expiresAt"].(string)); err != nil || expires.Sub(created) != time.Hour {
		t.Errorf("made at %v, expires at %v", o["createdAt"], o["expiresAt"])
	}

	w.createAs(text)
	listed := w.doAs(admin, "GET", "/v1/keys", "").Is(http.StatusOK)
	if strings.Contains(listed.Body, text) || strings.Contains(listed.Body, admin) || strings.Contains(listed.Body, `"key"`) {
		t.Error("the list shows a key")
	}
	all := list(listed.Object()["keys"])
	if len(all) != 2 || all[0]["role"] != "admin" || all[1]["id"] != id || all[1]["lastUsedAt"] == nil {
		t.Fatalf("the keys are %v", all)
	}
	if use := all[1]["use"].(map[string]any); use["running"] != 1.0 || use["sandboxes"] != 1.0 || use["memoryMiB"] != 512.0 {
		t.Errorf("its use is %v", use)
	}
	cost := all[1]["cost"].(map[string]any)
	for _, name := range []string{"starting", "requests", "descriptors", "bufferedBytes", "keptBytes", "sessions", "logBytes", "databaseBytes", "checkpointSeconds"} {
		want := 0.0
		if name == "databaseBytes" {
			want = 1 // of each sandbox, says the fake
		}
		if cost[name] != want {
			t.Errorf("its cost has %s %v, want %v: %v", name, cost[name], want, cost)
		}
	}

	w.doAs(admin, "DELETE", "/v1/keys/"+id, "").Is(http.StatusNoContent)
	w.doAs(text, "GET", base, "").fails(http.StatusUnauthorized, "api_key_unknown", "unknown")
	w.doAs(admin, "DELETE", "/v1/keys/"+id, "").fails(http.StatusNotFound, "key_not_found", id)
	if n := len(list(w.doAs(admin, "GET", base, "").Object()["sandboxes"])); n != 1 {
		t.Errorf("%d sandboxes are left of the key, want 1", n)
	}
	log := w.Log.String()
	if !strings.Contains(log, "API key made") || !strings.Contains(log, "API key revoked") || !strings.Contains(log, id) {
		t.Errorf("the log does not tell of it: %s", log)
	}
	if strings.Contains(log, text) || strings.Contains(log, admin) {
		t.Error("the log has a key")
	}
}

func TestKeyDefaults(t *testing.T) {
	w, admin := newKeyWorld(t)
	o := w.doAs(admin, "POST", "/v1/keys", `{"name":"x"}`).Is(http.StatusCreated).Object()
	limits := o["limits"].(map[string]any)
	if o["role"] != "full" || o["expiresAt"] != nil || limits["maxRunning"] != 0.0 || limits["maxSandboxes"] != 0.0 || limits["maxMemoryMiB"] != 0.0 || limits["maxDiskMiB"] != 0.0 || limits["maxRate"] != 0.0 {
		t.Errorf("made %v", o)
	}
}

// TestKeyIsChanged: what is given changes, at once, and all else stays.
func TestKeyIsChanged(t *testing.T) {
	w, admin := newKeyWorld(t)
	made := w.doAs(admin, "POST", "/v1/keys", `{"name":"one","role":"own","maxRunning":1,"maxRate":1}`).Is(http.StatusCreated).Object()
	text, at := made["key"].(string), "/v1/keys/"+made["id"].(string)
	calls := func(n int) (last answer) {
		for range n {
			last = w.doAs(text, "GET", base, "")
		}
		return last
	}
	change := func(body string) map[string]any {
		t.Helper()
		return w.doAs(admin, "PATCH", at, body).Is(http.StatusOK).Object()
	}
	calls(100).fails(http.StatusTooManyRequests, auth.CodeRate, "its own limit")
	if o := change(`{"maxRate":0,"limits":{"max_memory_mib":512}}`); o["name"] != "one" || o["limits"].(map[string]any)["maxRate"] != 0.0 || o["limits"].(map[string]any)["maxRunning"] != 1.0 {
		t.Errorf("it is %v", o)
	}
	calls(100).Is(http.StatusOK)
	o := change(`{"maxRunning":0,"maxMemoryMiB":0,"name":"two"}`)
	if limits := o["limits"].(map[string]any); o["name"] != "two" || limits["maxRunning"] != 0.0 || limits["maxMemoryMiB"] != 0.0 || o["key"] != nil {
		t.Errorf("it is %v", o)
	}
	for body, code := range map[string]string{`{"maxRate":-1}`: "invalid_request", `{"maxRate":1.5}`: "invalid_request", `{"role":"admin"}`: "unknown_field", `{"name":""}`: "key_invalid", `{"maxRunning":null}`: "invalid_request", `{"name":null}`: "invalid_request"} {
		w.doAs(admin, "PATCH", at, body).fails(http.StatusBadRequest, code, "")
	}
	w.doAs(text, "PATCH", at, `{"maxRate":9}`).fails(http.StatusForbidden, "role_insufficient", "role")
	if all := list(w.doAs(admin, "GET", "/v1/keys", "").Object()["keys"]); all[1]["name"] != "two" {
		t.Errorf("listed %v", all[1])
	}
}

func TestKeyRefusals(t *testing.T) {
	w, admin := newKeyWorld(t)
	for body, want := range map[string]struct{ code, message string }{
		`{}`:                                  {"invalid_request", `"name" is required`},
		`{"name":""}`:                         {"key_invalid", "name"},
		`{"name":"a\nb"}`:                     {"key_invalid", "name"},
		`{"name":1}`:                          {"invalid_request", `"name"`},
		`{"name":"a","role":"owner"}`:         {"key_invalid", "owner"},
		`{"name":"a","role":1}`:               {"invalid_request", `"role"`},
		`{"name":"a","expiresIn":0}`:          {"timeout_invalid", `"expiresIn" is 0`},
		`{"name":"a","maxRunning":0}`:         {"invalid_request", `"maxRunning"`},
		`{"name":"a","maxRunning":-1}`:        {"invalid_request", `"maxRunning"`},
		`{"name":"a","maxRate":0}`:            {"invalid_request", `"maxRate"`},
		`{"name":"a","maxRate":0.5}`:          {"invalid_request", `"maxRate"`},
		`{"name":"a","maxMemoryMiB":"1g"}`:    {"invalid_request", `"maxMemoryMiB"`},
		`{"name":"a","scope":"full"}`:         {"unknown_field", "scope"},
		`{"name":"a","limits":{"disk":1}}`:    {"unknown_field", "disk"},
		`{"name":"a","ttl":1,"expires_in":2}`: {"contradicting_options", "expiresInSeconds"},
	} {
		w.doAs(admin, "POST", "/v1/keys", body).fails(http.StatusBadRequest, want.code, want.message)
	}
	first := list(w.doAs(admin, "GET", "/v1/keys", "").Object()["keys"])
	if len(first) != 1 {
		t.Errorf("%d keys, want 1", len(first))
	}
	w.doAs(admin, "DELETE", "/v1/keys/"+first[0]["id"].(string), "").fails(http.StatusConflict, "last_admin_key", "last admin key")
	w.doAs(admin, "DELETE", "/v1/keys/%2e%2e", "").fails(http.StatusNotFound, "key_not_found", "..")
}

// unwritable is a store of keys that takes none.
type unwritable struct{ *memstore.Store }

func (unwritable) AddKey(context.Context, store.Key) error { return errors.New("disk on fire") }

// TestKeyThatWasNotStored: it is told to nobody, and is none.
func TestKeyThatWasNotStored(t *testing.T) {
	keys, err := auth.Load(t.Context(), unwritable{memstore.Open(memstore.NewData(), memstore.Hooks{})})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *Options) { o.Keys = keys })
	a := w.do("POST", "/v1/keys", `{"name":"x"}`)
	a.fails(http.StatusInternalServerError, "internal_server_error", "request")
	if text := regexp.MustCompile(`e2b_[0-9a-f]{8,}`).FindString(a.Body + w.Log.String()); text != "" {
		t.Error("the answer or the log has a key")
	}
	if log := w.Log.String(); strings.Contains(log, "API key made") || !strings.Contains(log, "disk on fire") {
		t.Errorf("log: %s", log)
	}
	if len(keys.List()) != 0 {
		t.Error("there is a key")
	}
}
