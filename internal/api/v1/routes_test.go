package v1

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// isFlat reports whether the body names the sandbox.
func isFlat(r route) bool { return r.body != nil && r.body[0].Name == sandboxOption.Name }

func namesSandbox(r route) bool {
	return isFlat(r) || strings.Contains(r.pattern, "{"+sandboxParam+"}")
}

// bodyOf is a body that the route accepts.
func bodyOf(r route, id string) string {
	var fields []string
	for _, o := range r.body {
		switch {
		case o.Name == sandboxOption.Name:
			fields = append(fields, fmt.Sprintf(`"sandbox":%q`, id))
		case o.Name == "reason", o.Required && o.Name == "name", o.Required && (o.Name == "image" || o.Name == "template"):
			fields = append(fields, fmt.Sprintf(`%q:"tests"`, o.Name))
		case o.Required && o.Name == "services":
			fields = append(fields, `"services":[{"name":"web","command":"serve"}]`)
		case o.Required && o.Name == "command":
			fields = append(fields, `"command":"serve"`)
		case o.Required:
			fields = append(fields, fmt.Sprintf(`%q:60`, o.Name))
		}
	}
	if r.method == patch && namesSandbox(r) {
		fields = append(fields, `"onIdle":"pause"`)
	}
	if r.body == nil {
		return ""
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func eachRoute(t *testing.T, test func(t *testing.T, r route)) {
	t.Helper()
	eachRouteThat(t, func(route) bool { return true }, test)
}

// eachRouteThat runs a test with each route of a kind, of which there must be one.
func eachRouteThat(t *testing.T, is func(route) bool, test func(t *testing.T, r route)) {
	t.Helper()
	n := 0
	for _, r := range routes() {
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

func TestEveryRouteTakesABearerKey(t *testing.T) {
	eachRoute(t, func(t *testing.T, r route) {
		req := httptest.NewRequest(r.method, apitest.PathOf(r.pattern, sandboxParam, "i1"), strings.NewReader(bodyOf(r, "i1")))
		req.Header.Set("Authorization", "Bearer "+goodKey)
		if a := newWorld(t).send(req); a.Status == http.StatusUnauthorized {
			t.Errorf("refused: %s", a.Body)
		}
	})
}

func TestEveryRouteRefusesAnUnknownSandbox(t *testing.T) {
	eachRouteThat(t, namesSandbox, func(t *testing.T, r route) {
		w := newWorld(t)
		e := w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, "nonexistingsandbox"), bodyOf(r, "nonexistingsandbox")).
			fails(http.StatusNotFound, "sandbox_not_found", `"nonexistingsandbox"`)
		if contextOf(e)["sandbox"] != "nonexistingsandbox" {
			t.Errorf("context %v", e["context"])
		}
		for _, id := range []string{"UPPER", "a-b", "a.b", "%2e%2e", "a%2Fb", "%C3%A9", strings.Repeat("a", 1000)} {
			w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id)).fails(http.StatusNotFound, "sandbox_not_found", "does not exist")
		}
	})
}

// What reads answers from the tombstone; what would change a sandbox, or asks for
// what goes with it, says that it has ended, and how.
func TestEveryRouteAnswersForATerminatedSandbox(t *testing.T) {
	eachRouteThat(t, namesSandbox, func(t *testing.T, r route) {
		w := newWorld(t)
		id := w.create(`{}`)
		w.do("DELETE", base+"/"+id, "").Is(http.StatusNoContent)
		a := w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id))
		goes := strings.Contains(r.pattern, "{"+serviceParam+"}") || strings.HasSuffix(r.pattern, "/log") || strings.HasSuffix(r.pattern, "/usage")
		if r.method == get && r.status != failed && r.carries != download && !goes {
			a.Is(http.StatusOK)
			if strings.Contains(a.Body, apitest.Tokens()) {
				t.Errorf("a token of what is gone: %s", a.Body)
			}
			return
		}
		e := a.fails(http.StatusNotFound, "sandbox_terminated", "Killed")
		if e["cause"] != "Killed" || contextOf(e)["state"] != "terminated" || contextOf(e)["sandbox"] != id {
			t.Errorf("cause %v, context %v", e["cause"], e["context"])
		}
	})
}

func TestEveryRouteRefusesOtherMethods(t *testing.T) {
	eachRoute(t, func(t *testing.T, r route) {
		a := newWorld(t).do("TRACE", apitest.PathOf(r.pattern, sandboxParam, "i1"), "")
		a.fails(http.StatusMethodNotAllowed, "method_not_allowed", "TRACE")
		if !strings.Contains(a.Header.Get("Allow"), r.method) {
			t.Errorf("Allow %q, want %s in it", a.Header.Get("Allow"), r.method)
		}
	})
}

func TestEveryRouteSurvivesAPanicAndHidesFailures(t *testing.T) {
	asks := func(r route) bool {
		return r.access != open && !strings.HasPrefix(r.pattern, "/v1/keys") && !strings.HasPrefix(r.pattern, "/v1/ssh-keys") && !strings.HasPrefix(r.pattern, "/v1/secrets") && r.pattern != "/v1/audit" && r.pattern != "/v1/doctor" && !strings.HasPrefix(r.pattern, "/v1/servers")
	}
	eachRouteThat(t, asks, func(t *testing.T, r route) {
		for name, breakIt := range map[string]func(*apitest.Fake){
			"panic": func(f *apitest.Fake) { f.Panics = "secret" },
			"error": func(f *apitest.Fake) { f.Err = errors.New("secret") },
		} {
			w := newWorld(t)
			id := w.create(`{}`)
			breakIt(w.Fake)
			a := w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id))
			e := a.fails(http.StatusInternalServerError, "internal_server_error", "request")
			if strings.Contains(a.Body, "secret") {
				t.Errorf("%s: the cause is in the answer: %s", name, a.Body)
			}
			if log := w.Log.String(); !strings.Contains(log, "secret") || !strings.Contains(log, contextOf(e)["request"].(string)) {
				t.Errorf("%s: not in the log under its id: %s", name, log)
			}
			if strings.Contains(w.Log.String(), goodKey) || strings.Contains(w.Log.String(), apitest.Tokens()) {
				t.Error("the log has a key or a token")
			}
		}
	})
}

func TestEveryRouteThatIsNotBuiltSaysSo(t *testing.T) {
	n := 0
	unbuilt := func(r route) bool { return r.status == failed }
	eachRouteThat(t, unbuilt, func(t *testing.T, r route) {
		n++
		w := newWorld(t)
		id := w.create(`{}`)
		w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id)).fails(http.StatusNotImplemented, "not_supported", r.method+" "+r.pattern)
	})
	if n != 5 {
		t.Errorf("%d routes are not built", n)
	}
}

// TestEveryRouteKeepsItsEffect: what is no wake wakes nothing.
func TestEveryRouteKeepsItsEffect(t *testing.T) {
	built := func(r route) bool { return namesSandbox(r) && r.status != failed }
	eachRouteThat(t, built, func(t *testing.T, r route) {
		w := newWorld(t)
		id := w.create(`{"onTimeout":"pause","timeout":600,"autoResume":true}`)
		w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
		w.do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), bodyOf(r, id))
		woke := w.Fake.Sandboxes[id].Record.Generation > 1
		if want := r.effect == wakes || r.effect == both; woke != want {
			t.Errorf("woke: %v, the table says %v", woke, want)
		}
	})
}

func TestTableHasNoDuplicates(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range routes() {
		for _, key := range []string{r.method + " " + r.pattern, r.name} {
			if seen[key] {
				t.Errorf("%s is there twice", key)
			}
			seen[key] = true
		}
	}
}

func TestUnknownPaths(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/v1", "/v1/", "/v1/nonsense", "/v1//sandboxes", "/v1/sandboxes/", "/v2/sandboxes", "/v1%2Fsandboxes"} {
		w.do("GET", path, "").fails(http.StatusNotFound, "unknown_path", "")
	}
	for path, want := range map[string]bool{
		"/v1": true, "/v1/": true, "/v1/sandboxes": true, "/v10/sandboxes": false, "/sandboxes": false, "/v1%2Fsandboxes": false, "/": false,
	} {
		if got := Owns(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("Owns %s: %v", path, got)
		}
	}
}

func TestPreflightNeedsNoKey(t *testing.T) {
	w := newWorld(t)
	req := httptest.NewRequest("OPTIONS", "/v1/sandboxes", nil)
	req.Header.Set("Access-Control-Request-Headers", "x-api-key")
	a := w.send(req).Is(http.StatusNoContent)
	if a.Header.Get("Access-Control-Allow-Headers") != "x-api-key" {
		t.Errorf("header %v", a.Header)
	}
}

func TestCatalogueStatusesAreThoseAnswered(t *testing.T) {
	for _, e := range errdef.Catalogue() {
		if e.Native() == 0 {
			continue
		}
		w := newWorld(t)
		id := w.create(`{}`)
		w.Fake.Err = fmt.Errorf("set timeout: %w", errdef.New(e.Class, e.Code, "what happened"))
		a := w.do("POST", base+"/"+id+"/timeout", `{"timeout":60}`)
		if a.Status != e.Native() {
			t.Errorf("%s is answered with %d, the catalogue says %d", e.Code, a.Status, e.Native())
		}
		body := a.Object()["error"].(map[string]any)
		if body["code"] != e.Code {
			t.Errorf("%s is answered as %v", e.Code, body["code"])
		}
		if e.Class != errdef.Internal && body["remediation"] != e.Remedy {
			t.Errorf("%s: remediation %v", e.Code, body["remediation"])
		}
		if (a.Status == http.StatusServiceUnavailable && !errdef.Lasting(e.Code) || e.Code == auth.CodeRate) != (a.Header.Get("Retry-After") != "") {
			t.Errorf("%s: status %d with Retry-After %q", e.Code, a.Status, a.Header.Get("Retry-After"))
		}
	}
}

func TestCatalogueRoute(t *testing.T) {
	o := newWorld(t).send(httptest.NewRequest("GET", "/v1/errors", nil)).Is(http.StatusOK).Object()
	if got := list(o["errors"]); len(got) != len(errdef.Catalogue()) {
		t.Errorf("%d codes, want %d", len(got), len(errdef.Catalogue()))
	}
}

// TestCodesGivenAreNative: a code that this package gives must be one that the
// catalogue knows for it.
func TestCodesGivenAreNative(t *testing.T) {
	code := regexp.MustCompile(`errdef\.New\(errdef\.\w+, "(\w+)"`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range code.FindAllSubmatch(src, -1) {
			if e, ok := errdef.Lookup(string(m[1])); !ok || e.Native() == 0 {
				t.Errorf("%s gives %s, which the catalogue does not know here", file, m[1])
			}
		}
	}
}
