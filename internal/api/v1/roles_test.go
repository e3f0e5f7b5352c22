package v1

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// createAs makes a sandbox with a key and returns its id.
func (w *world) createAs(key string) string {
	w.T.Helper()
	return w.DoAs(key, "POST", base, `{}`).Is(http.StatusCreated).Object()["id"].(string)
}

// TestEveryRouteAsksForItsRole: a key whose role does not suffice reaches
// nothing, and one whose role does is not refused.
func TestEveryRouteAsksForItsRole(t *testing.T) {
	manages := []string{"POST /v1/imports", "POST /v1/keys", "GET /v1/keys", "PATCH /v1/keys/{keyId}", "POST /v1/keys/{keyId}/rotate", "DELETE /v1/keys/{keyId}", "GET /v1/audit", "GET /v1/doctor", "GET /v1/servers", "PATCH /v1/servers/{serverId}", "POST " + one + "/move",
		"POST /v1/templates", "POST /v1/templates/load", "PUT /v1/templates/{template}", "DELETE /v1/templates/{template}", "POST /v1/snapshots/{snapshot}/push"}
	looks := []string{
		"GET " + base, "GET " + one, "GET " + one + "/lifecycle", "GET " + one + "/traces", "GET " + one + "/holds", "GET " + one + "/previews",
		"GET " + one + "/log", "GET " + one + "/usage", "GET /v1/usage",
		"GET " + one + "/services", "GET " + one + "/services/{service}", "GET " + one + "/events", "GET /v1/events", "GET " + one + "/snapshots", "GET /v1/snapshots", "GET /v1/snapshots/{snapshot}",
		"GET /v1/templates", "GET /v1/templates/{template}",
	}
	eachRoute(t, func(t *testing.T, r route) {
		name := r.method + " " + r.pattern
		for key, may := range map[string]bool{
			goodKey:         true,
			apitest.FullKey: !slices.Contains(manages, name),
			apitest.OwnKey:  !slices.Contains(manages, name) && !strings.HasPrefix(r.pattern, "/v1/volumes"),
			apitest.ReadKey: slices.Contains(looks, name) || r.access == open,
		} {
			w := newWorld(t)
			if !may {
				w = newWorld(t, func(o *Options) { o.Sandboxes = nil }) // must not be reached
			}
			a := answer{w.DoAs(key, r.method, apitest.PathOf(r.pattern, sandboxParam, "i1"), bodyOf(r, "i1"))}
			if may && a.Status == http.StatusForbidden {
				t.Errorf("%s is refused: %s", key[:6], a.Body)
			}
			if !may {
				e := a.fails(http.StatusForbidden, "role_insufficient", "role")
				if got, want := len(contextOf(e)["allowed"].([]any)), len(auth.Roles(auth.Permission(r.access))); got != want {
					t.Errorf("%d roles are named, want %d", got, want)
				}
			}
		}
	})
}

// TestOwnKeyMountsNothing: a volume is another's as well.
func TestOwnKeyMountsNothing(t *testing.T) {
	w := newWorld(t)
	body := `{"volumes":{"/data":"data"}}`
	answer{w.DoAs(apitest.OwnKey, "POST", base, body)}.fails(http.StatusForbidden, "role_insufficient", "role")
	if a := w.DoAs(apitest.FullKey, "POST", base, body); strings.Contains(a.Body, "role_insufficient") {
		t.Errorf("of role full: %s", a.Body)
	}
}

// TestOwnKeyUsesItsOwn: for what it has made, a key of role own is as good as
// any, and the record says whose it is.
func TestOwnKeyUsesItsOwn(t *testing.T) {
	built := func(r route) bool { return namesSandbox(r) && r.status != failed && r.access != manage }
	eachRouteThat(t, built, func(t *testing.T, r route) {
		w := newWorld(t)
		asked := func(key string) answer {
			id := w.createAs(key)
			if got := w.sandbox(id)["key"]; got != apitest.KeyIDOf(key) {
				t.Errorf("its key is %v", got)
			}
			return answer{w.DoAs(key, r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id))}
		}
		if got, want := asked(apitest.OwnKey), asked(goodKey); got.Status != want.Status {
			t.Errorf("status %d, an admin gets %d: %s", got.Status, want.Status, got.Body)
		}
	})
}

func TestListHasWhatTheKeySees(t *testing.T) {
	w := newWorld(t)
	own, other := w.createAs(apitest.OwnKey), w.createAs(apitest.FullKey)
	for key, want := range map[string][]string{
		goodKey: {own, other}, apitest.FullKey: {own, other}, apitest.ReadKey: {own, other}, apitest.OwnKey: {own},
	} {
		for path, id := range map[string]string{base: "id", "/v1/usage": "sandbox"} {
			var got []string
			for _, sb := range list(w.DoAs(key, "GET", path, "").Is(http.StatusOK).Object()["sandboxes"]) {
				got = append(got, sb[id].(string))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s lists %v at %s, want %v", key[:6], got, path, want)
			}
		}
	}
}

// TestEventsAreOfWhatTheKeySees pages through a log in which the events that a
// key sees are rare.
func TestEventsAreOfWhatTheKeySees(t *testing.T) {
	w, url := served(t)
	var want []string
	for n := range 30 {
		key := apitest.FullKey
		if n%10 == 5 {
			key = apitest.OwnKey
		}
		id := w.createAs(key)
		w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
		if key == apitest.OwnKey {
			want = append(want, id)
		}
	}
	var got []string
	after := "0"
	for page := 0; page < 100; page++ {
		o := w.DoAs(apitest.OwnKey, "GET", "/v1/events?limit=2&after="+after, "").Is(http.StatusOK).Object()
		events := list(o["events"])
		for _, e := range events {
			got = append(got, e["sandbox"].(string))
		}
		after = fmt.Sprint(int64(o["next"].(float64)))
		if len(events) == 0 {
			break
		}
	}
	if n := len(got); n != 4*len(want) { // created, running, pausing, paused
		t.Errorf("%d events, want %d", n, 4*len(want))
	}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("events of %v, want of %v", got, want)
	}

	s := follow(t, url+"/v1/events?follow=true", map[string]string{"X-API-Key": apitest.OwnKey})
	for range 4 * len(want) {
		if _, e := s.event(); !slices.Contains(want, e["sandbox"].(string)) {
			t.Errorf("an event of %v", e["sandbox"])
		}
	}
}

// TestReadKeyGetsNoTokens: with one it would get in.
func TestReadKeyGetsNoTokens(t *testing.T) {
	eachRoute(t, func(t *testing.T, r route) {
		w := newWorld(t)
		id := w.createAs(goodKey)
		sb := w.Fake.Sandboxes[id]
		sb.Config.PrivatePorts = true
		w.Fake.Sandboxes[id] = sb
		a := w.DoAs(apitest.ReadKey, r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id))
		if strings.Contains(a.Body, apitest.Tokens()) {
			t.Errorf("a token: %s", a.Body)
		}
	})
}

// TestStreamEndsWithItsKey: an open stream of a key that is revoked ends, and
// those of others go on.
func TestStreamEndsWithItsKey(t *testing.T) {
	keys, err := auth.Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	id := map[string]string{}
	for _, name := range []string{"stays", "goes"} {
		k, secret, err := keys.Create(t.Context(), auth.Request{Name: name, Role: store.RoleRead})
		if err != nil {
			t.Fatal(err)
		}
		text[name], id[name] = secret, k.ID
	}
	w, url := served(t, func(o *Options) { o.Auth = keys })
	streams := map[string]*stream{}
	for name, secret := range text {
		streams[name] = follow(t, url+"/v1/events?follow=true", map[string]string{"X-API-Key": secret})
		streams[name].next()
	}
	if err := keys.Revoke(t.Context(), id["goes"]); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(streams["goes"].body); err != nil || len(rest) > 0 {
		t.Errorf("after the revocation: %q, %v; want its end", rest, err)
	}
	if _, err := w.Fake.Create(t.Context(), supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill}}); err != nil {
		t.Fatal(err)
	}
	if n, _ := streams["stays"].event(); n != 1 {
		t.Errorf("the other stream goes on with event %d", n)
	}
	r := httptest.NewRequest("GET", "/v1/events", nil)
	r.Header.Set("X-API-Key", text["goes"])
	w.send(r).fails(http.StatusUnauthorized, "api_key_unknown", "unknown")
	for _, secret := range text {
		if strings.Contains(w.Log.String(), secret) {
			t.Error("the log has a key")
		}
	}
}

// TestHasty: who calls too often is told when to try again.
func TestHasty(t *testing.T) {
	a := newWorld(t, func(o *Options) { o.Auth = apitest.Hasty{} }).do("GET", base, "")
	a.fails(http.StatusTooManyRequests, auth.CodeRate, "more than 1 calls")
	if wait := a.Header.Get("Retry-After"); wait != "1" {
		t.Errorf("Retry-After is %q, want 1", wait)
	}
}
