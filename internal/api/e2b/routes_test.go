package e2b

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

func namesSandbox(r route) bool { return strings.Contains(r.pattern, "{"+sandboxParam+"}") }

// bodyOf is a body that the route accepts.
func bodyOf(r route) string {
	switch {
	case strings.HasSuffix(r.pattern, "/connect"), strings.HasSuffix(r.pattern, "/timeout"):
		return `{"timeout": 60}`
	case strings.HasSuffix(r.pattern, "/network"):
		return `{}`
	case r.method == http.MethodPost && r.pattern == "/volumes":
		return `{"name": "data"}`
	case r.method == http.MethodPost && strings.HasSuffix(r.pattern, "/sandboxes"):
		return `{"templateID": "base"}`
	case strings.HasSuffix(r.pattern, "/rollback"):
		return `{"snapshotID": "nothing"}`
	}
	return ""
}

func eachRoute(t *testing.T, test func(t *testing.T, r route)) {
	t.Helper()
	eachRouteThat(t, func(route) bool { return true }, test)
}

// eachRouteThat runs a test with each route of a kind, of which there must be one.
func eachRouteThat(t *testing.T, is func(route) bool, test func(t *testing.T, r route)) {
	t.Helper()
	n := 0
	for _, r := range routes {
		if !is(r) {
			continue
		}
		n++
		t.Run(r.method+" "+r.pattern, func(t *testing.T) { test(t, r) })
	}
	if n == 0 {
		t.Error("no route is of this kind")
	}
}

func needsKey(r route) bool { return r.needs != nothing }

func TestEveryRouteTakesABearerKey(t *testing.T) {
	eachRoute(t, func(t *testing.T, r route) {
		req := httptest.NewRequest(r.method, apitest.PathOf(r.pattern, sandboxParam, "i1"), strings.NewReader(bodyOf(r)))
		req.Header.Set("Authorization", "Bearer "+goodKey)
		if a := newWorld(t).send(req); a.Status == http.StatusUnauthorized {
			t.Errorf("refused: %s", a.Body)
		}
	})
}

func TestEveryRouteRefusesAnUnknownSandbox(t *testing.T) {
	eachRouteThat(t, namesSandbox, func(t *testing.T, r route) {
		w := newWorld(t)
		w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, "nonexistingsandbox"), bodyOf(r)).
			fails(http.StatusNotFound, "", `Sandbox "nonexistingsandbox" doesn't exist or you don't have access to it`)
		for _, id := range []string{"UPPER", "a-b-c", "a.b", "%2e%2e", "a%2Fb", "-a", "a-", "a_b", "%C3%A9"} {
			w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r)).fails(http.StatusBadRequest, "", "Invalid sandbox ID")
		}
	})
}

func TestEveryRouteTakesACompositeID(t *testing.T) {
	eachRouteThat(t, namesSandbox, func(t *testing.T, r route) {
		w := newWorld(t)
		id := w.create(`{"templateID": "base"}`)
		if a := w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id+"-2f7a01c5"), bodyOf(r)); a.Status == http.StatusNotFound || a.Status == http.StatusBadRequest && !strings.Contains(a.Body, "no such snapshot") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	})
}

func TestEveryRouteRefusesOtherMethods(t *testing.T) {
	eachRoute(t, func(t *testing.T, r route) {
		w := newWorld(t)
		a := w.do("TRACE", apitest.PathOf(r.pattern, sandboxParam, "i1"), "")
		a.fails(http.StatusMethodNotAllowed, "method_not_allowed", "TRACE")
		if !strings.Contains(a.Header.Get("Allow"), r.method) {
			t.Errorf("Allow %q, want %s in it", a.Header.Get("Allow"), r.method)
		}
	})
}

func TestEveryRouteSurvivesAPanicAndHidesFailures(t *testing.T) {
	asks := func(r route) bool {
		return needsKey(r) && (namesSandbox(r) || bodyOf(r) != "" || r.pattern == "/sandboxes" || r.pattern == "/v2/sandboxes")
	}
	eachRouteThat(t, asks, func(t *testing.T, r route) {
		w := newWorld(t)
		w.Fake.Panics = "secret of the panic"
		a := w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, "i1"), bodyOf(r))
		a.fails(http.StatusInternalServerError, "internal_server_error", "request")
		if strings.Contains(a.Body, "secret") {
			t.Errorf("the cause is in the answer: %s", a.Body)
		}
		if log := w.Log.String(); !strings.Contains(log, "secret of the panic") || !strings.Contains(log, "apitest.go") {
			t.Errorf("no panic with stack in the log: %s", log)
		}
		w.Fake.Panics = nil
		w.do("GET", "/health", "").Is(http.StatusOK)
	})
}

func TestUnbuiltEndpointsAreRefusedAsSuch(t *testing.T) {
	for _, endpoint := range []string{
		"POST /sandboxes/ID/reset", "POST /sandboxes/ID/hotplug-memory", "POST /sandboxes/ID/volume-mounts",
		"DELETE /sandboxes/ID/volume-mounts", "POST /sandboxes/ID/commit",
		"DELETE /templates/base", "POST /v2/templates", "POST /templates/x/builds/y", "PATCH /v2/templates/x",
		"PATCH /api-keys/x", "GET /nodes",
	} {
		t.Run(endpoint, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"templateID": "base"}`)
			method, path, _ := strings.Cut(endpoint, " ")
			w.do(method, strings.ReplaceAll(path, "ID", id), "").fails(http.StatusNotImplemented, "not_supported", "not supported by this server yet")
		})
	}
}

func TestSecretsAreRefusedAsSuch(t *testing.T) {
	for _, endpoint := range []string{"GET /secrets?limit=10", "POST /secrets", "GET /secrets/name", "POST /secrets/sec_1", "DELETE /secrets/sec_1"} {
		w := newWorld(t)
		method, path, _ := strings.Cut(endpoint, " ")
		a := w.do(method, path, `{"name":"a","value":"not to be seen"}`)
		a.fails(http.StatusForbidden, "secrets_not_supported", "for which hosts")
		if strings.Contains(a.Body+w.Log.String(), "not to be seen") {
			t.Error("the secret is in the answer or the log")
		}
	}
}

func TestPathsAreRoutedAsSent(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID": "base"}`)
	w.do("POST", "/v3/templates", `{"name": "name"}`).Is(http.StatusAccepted)
	tests := map[string]struct {
		path   string
		status int
	}{
		"plain":                      {"/sandboxes/" + id, http.StatusOK},
		"escaped letters":            {"/%73andboxes/" + id, http.StatusOK},
		"root":                       {"/", http.StatusNotFound},
		"trailing slash":             {"/sandboxes/" + id + "/", http.StatusNotFound},
		"double slash":               {"//sandboxes/" + id, http.StatusNotFound},
		"inner double slash":         {"/sandboxes//" + id, http.StatusNotFound},
		"dot segments":               {"/x/../sandboxes/" + id, http.StatusNotFound},
		"escaped slash is no split":  {"/sandboxes%2F" + id, http.StatusNotFound},
		"escaped slash in a segment": {"/templates/default%2Fname%3Atag/tags", http.StatusOK},
		"unescaped is another path":  {"/templates/team/name:tag", http.StatusNotFound},
		"literal wins":               {"/templates/tags", http.StatusMethodNotAllowed},
		"unknown":                    {"/v9/sandboxes", http.StatusNotFound},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			method := "GET"
			if name == "literal wins" {
				method = "PUT" // of a template there is GET
			}
			a := w.do(method, tt.path, "").Is(tt.status)
			if a.Header.Get("Location") != "" {
				t.Error("a redirect")
			}
		})
	}
	w.do("GET", "/v9/sandboxes", "").fails(http.StatusNotFound, "unknown_path", "")
}

// A literal segment wins for the methods that it has; for others the parameter
// may match.
func TestLiteralSegmentsWin(t *testing.T) {
	rt := newRouter()
	for target, want := range map[string]string{
		"GET /sandboxes/metrics":    "/sandboxes/metrics",
		"GET /sandboxes/i1":         "/sandboxes/{sandboxID}",
		"DELETE /sandboxes/metrics": "/sandboxes/{sandboxID}",
		"POST /templates/tags":      "/templates/tags",
		"GET /templates/tags":       "/templates/{templateID}",
		"GET /templates/aliases/a":  "/templates/aliases/{alias}",
		"GET /templates/a/tags":     "/templates/{templateID}/tags",
		"HEAD /health":              "/health",
	} {
		method, path, _ := strings.Cut(target, " ")
		r, _, _ := rt.Match(method, path)
		if r == nil || r.pattern != want {
			t.Errorf("%s: %v; want %s", target, r, want)
		}
	}
}

func TestTableHasNoDuplicates(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range routes {
		key := r.method + " " + r.pattern
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
	}
}

func TestHealthNeedsNoKey(t *testing.T) {
	newWorld(t).send(httptest.NewRequest("GET", "/health", nil)).Is(http.StatusOK)
}

func TestCORS(t *testing.T) {
	w := newWorld(t)
	req := httptest.NewRequest("OPTIONS", "/v2/sandboxes", nil)
	req.Header.Set("Origin", "https://app.example")
	req.Header.Set("Access-Control-Request-Method", "POST")
	req.Header.Set("Access-Control-Request-Headers", "x-api-key,content-type,sdk_runtime")
	a := w.send(req).Is(http.StatusNoContent)
	if got := a.Header.Get("Access-Control-Allow-Headers"); got != "x-api-key,content-type,sdk_runtime" {
		t.Errorf("Access-Control-Allow-Headers %q", got)
	}
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if !strings.Contains(a.Header.Get("Access-Control-Allow-Methods"), m) {
			t.Errorf("%s is not allowed", m)
		}
	}
	a = w.send(httptest.NewRequest("OPTIONS", "/anything", nil)).Is(http.StatusNoContent)
	if got := a.Header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "X-API-Key") {
		t.Errorf("Access-Control-Allow-Headers %q", got)
	}
	for _, h := range []string{"X-Next-Token", "X-Total-Running", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"} {
		if !strings.Contains(w.do("GET", "/sandboxes", "").Header.Get("Access-Control-Expose-Headers"), h) {
			t.Errorf("%s is not exposed", h)
		}
	}
}
