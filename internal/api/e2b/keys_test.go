package e2b

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// newKeyWorld is a world with keys that are stored, and the text of an admin's.
func newKeyWorld(t *testing.T) (w *world, admin string) {
	t.Helper()
	keys, err := auth.Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	if admin, _, err = keys.EnsureFirst(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return newWorld(t, func(o *Options) { o.Auth, o.Keys = keys, keys }), admin
}

func (w *world) doAs(key, method, target, body string) answer {
	w.T.Helper()
	return answer{w.DoAs(key, method, target, body)}
}

func TestKeys(t *testing.T) {
	w, admin := newKeyWorld(t)
	made := w.doAs(admin, "POST", "/api-keys", `{"name":"ci"}`).is(http.StatusCreated)
	o := made.Object()
	text, id := o["key"].(string), o["id"].(string)
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(text) || made.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("made a text of %d characters; headers %v", len(text), made.Header)
	}
	mask := o["mask"].(map[string]any)
	if mask["prefix"] != "e2b_" || mask["valueLength"] != 40.0 || mask["maskedValuePrefix"] != text[4:6] || mask["maskedValueSuffix"] != text[40:] {
		t.Errorf("mask %v", mask)
	}
	if _, err := time.Parse(time.RFC3339, o["createdAt"].(string)); err != nil || o["name"] != "ci" {
		t.Errorf("made %v", o)
	}

	w.createAs(text) // as SDKs do
	w.doAs(text, "GET", "/api-keys", "").fails(http.StatusForbidden, "role_insufficient", "role")
	listed := w.doAs(admin, "GET", "/api-keys", "").is(http.StatusOK)
	all := listed.list()
	if len(all) != 2 || all[1]["id"] != id || all[1]["lastUsed"] == nil {
		t.Fatalf("listed %v", all)
	}
	if strings.Contains(listed.Body, text) || strings.Contains(listed.Body, admin) || strings.Contains(listed.Body, `"key"`) {
		t.Error("the list shows a key")
	}

	w.doAs(admin, "DELETE", "/api-keys/"+id, "").is(http.StatusNoContent)
	w.doAs(admin, "DELETE", "/api-keys/"+id, "").fails(http.StatusNotFound, "key_not_found", id)
	w.doAs(text, "GET", "/sandboxes", "").fails(http.StatusUnauthorized, "api_key_unknown", "unknown API key")
	w.doAs(admin, "DELETE", "/api-keys/"+all[0]["id"].(string), "").fails(http.StatusConflict, "last_admin_key", "last admin key")
	for body, code := range map[string]string{`{}`: "invalid_request", `{"name":1}`: "invalid_request", `{"name":""}`: "key_invalid"} {
		w.doAs(admin, "POST", "/api-keys", body).fails(http.StatusBadRequest, code, "name")
	}
	log := w.Log.String()
	if !strings.Contains(log, "API key made") || !strings.Contains(log, "API key revoked") {
		t.Errorf("the log does not tell of it: %s", log)
	}
	if strings.Contains(log, text) || strings.Contains(log, admin) {
		t.Error("the log has a key")
	}
}

// TestTeams: there is one, it has a UUID, and it shows no key.
func TestTeams(t *testing.T) {
	teams := newWorld(t).do("GET", "/teams", "").is(http.StatusOK).list()
	if len(teams) != 1 || teams[0]["isDefault"] != true || teams[0]["name"] != "default" || teams[0]["apiKey"] != "" ||
		!regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(teams[0]["teamID"].(string)) {
		t.Errorf("teams %v", teams)
	}
}
