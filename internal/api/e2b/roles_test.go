package e2b

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/auth"
)

// createAs makes a sandbox with a key and returns its id.
func (w *world) createAs(key string) string {
	w.T.Helper()
	return w.DoAs(key, "POST", "/v2/sandboxes", `{"templateID":"base"}`).Is(http.StatusCreated).Object()["sandboxID"].(string)
}

// uses are the routes that change something.
var uses = []string{
	"POST /sandboxes", "POST /v2/sandboxes", "DELETE /sandboxes/{sandboxID}", "POST /sandboxes/{sandboxID}/pause",
	"POST /sandboxes/{sandboxID}/connect", "POST /v2/sandboxes/{sandboxID}/connect", "POST /sandboxes/{sandboxID}/resume",
	"POST /sandboxes/{sandboxID}/snapshots", "DELETE /templates/{templateID}",
	"POST /sandboxes/{sandboxID}/fork", "POST /v2/sandboxes/{sandboxID}/fork", "POST /sandboxes/{sandboxID}/clone", "POST /sandboxes/{sandboxID}/rollback",
	"POST /v3/templates", "POST /v2/templates/{templateID}/builds/{buildID}", "POST /templates/tags", "DELETE /templates/tags",
	"GET /templates/{templateID}/files/{hash}",
	"POST /sandboxes/{sandboxID}/timeout", "POST /sandboxes/{sandboxID}/refreshes", "PUT /sandboxes/{sandboxID}/network",
}

// manages are the routes of keys.
var manages = []string{"GET /api-keys", "POST /api-keys", "DELETE /api-keys/{keyID}"}

// isShared reports whether a route is of what is there for all sandboxes.
func isShared(r route) bool { return strings.HasPrefix(r.pattern, "/volumes") }

// isOfAll reports whether a route tells of all sandboxes together.
func isOfAll(r route) bool {
	return strings.HasPrefix(r.pattern, "/teams/{teamID}/metrics") || strings.HasPrefix(r.pattern, "/events/sandboxes") || r.pattern == "/sandboxes/events"
}

// isRefused reports whether a route is of what this server does not do for
// anybody.
func isRefused(r route) bool { return strings.HasPrefix(r.pattern, "/secrets") }

// TestEveryRouteAsksForItsRole: a key whose role does not suffice reaches
// nothing, and one whose role does is not refused.
func TestEveryRouteAsksForItsRole(t *testing.T) {
	eachRouteThat(t, needsKey, func(t *testing.T, r route) {
		name := r.method + " " + r.pattern
		changes, managed := slices.Contains(uses, name), slices.Contains(manages, name) || strings.HasPrefix(r.pattern, "/events/webhooks")
		shared := isShared(r)
		if isRefused(r) {
			changes = r.method != http.MethodGet
		} else if !changes && !managed && !shared && r.method != http.MethodGet {
			w := newWorld(t)
			w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, w.createAs(goodKey)), "").fails(http.StatusNotImplemented, "not_supported", "")
		}
		for key, may := range map[string]bool{
			goodKey: true, apitest.FullKey: !managed, apitest.OwnKey: !managed && !shared && !isOfAll(r), apitest.ReadKey: !changes && !managed && !shared,
		} {
			w := newWorld(t)
			if !may {
				w = newWorld(t, func(o *Options) { o.Sandboxes = nil }) // must not be reached
			}
			a := answer{w.DoAs(key, r.method, apitest.PathOf(r.pattern, sandboxParam, "i1"), bodyOf(r))}
			if may && strings.Contains(a.Body, "role_insufficient") {
				t.Errorf("%s is refused: %s", key[:6], a.Body)
			}
			if !may {
				a.fails(http.StatusForbidden, "role_insufficient", "role")
			}
		}
	})
}

// TestOwnKeyUsesItsOwn: for what it has made, a key of role own is as good as
// any.
func TestOwnKeyUsesItsOwn(t *testing.T) {
	eachRouteThat(t, namesSandbox, func(t *testing.T, r route) {
		asked := func(key string) answer {
			w := newWorld(t)
			id := w.createAs(key)
			return answer{w.DoAs(key, r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r))}
		}
		if got, want := asked(apitest.OwnKey), asked(goodKey); got.Status != want.Status {
			t.Errorf("status %d, an admin gets %d: %s", got.Status, want.Status, got.Body)
		}
	})
}

func TestListHasWhatTheKeySees(t *testing.T) {
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		w := newWorld(t)
		own, other := w.createAs(apitest.OwnKey), w.createAs(apitest.FullKey)
		both := []string{own, other}
		for key, want := range map[string][]string{goodKey: both, apitest.FullKey: both, apitest.ReadKey: both, apitest.OwnKey: {own}} {
			a := answer{w.DoAs(key, "GET", path, "").Is(http.StatusOK)}
			got := strings.Fields(a.ids())
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %s lists %v, want %v", path, key[:6], got, want)
			}
			if total := a.Header.Get("X-Total-Running"); total != "" && total != strconv.Itoa(len(want)) {
				t.Errorf("%s: %s is told of %s that run, want %d", path, key[:6], total, len(want))
			}
		}
	}
}

// TestOwnKeyMountsNothing: a volume is another's as well.
func TestOwnKeyMountsNothing(t *testing.T) {
	w := newWorld(t)
	body := `{"templateID":"base","volumeMounts":[{"name":"data","path":"/data"}]}`
	answer{w.DoAs(apitest.OwnKey, "POST", "/v2/sandboxes", body)}.fails(http.StatusForbidden, "role_insufficient", "role")
	if a := w.DoAs(apitest.FullKey, "POST", "/v2/sandboxes", body); strings.Contains(a.Body, "role_insufficient") {
		t.Errorf("of role full: %s", a.Body)
	}
}

// TestReadKeyGetsNoTokens: with one it would get in.
func TestReadKeyGetsNoTokens(t *testing.T) {
	w := newWorld(t)
	id := w.createAs(goodKey)
	for key, want := range map[string]bool{apitest.ReadKey: false, apitest.FullKey: true} {
		a := w.DoAs(key, "GET", "/sandboxes/"+id, "").Is(http.StatusOK)
		if got := strings.Contains(a.Body, apitest.Tokens()); got != want {
			t.Errorf("%s gets a token: %t, want %t", key[:6], got, want)
		}
	}
}

// TestHasty: SDKs try a call again that was refused because of its rate.
func TestHasty(t *testing.T) {
	a := newWorld(t, func(o *Options) { o.Auth = apitest.Hasty{} }).Do("GET", "/sandboxes", "").Is(http.StatusTooManyRequests)
	if code, wait := a.Object()["error_code"], a.Header.Get("Retry-After"); code != auth.CodeRate || wait != "1" {
		t.Errorf("the code is %v, and Retry-After %q: %s", code, wait, a.Body)
	}
}
