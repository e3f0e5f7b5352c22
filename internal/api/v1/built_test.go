package v1

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

// TestBuiltTemplates lists, shows and removes what was built of steps, by the names
// that sandboxes start from it by.
func TestBuiltTemplates(t *testing.T) {
	w := newWorld(t)
	ids := func(key string) (all []any) {
		t.Helper()
		for _, v := range list(answer{w.DoAs(key, "GET", "/v1/templates", "")}.Is(http.StatusOK).Object()["templates"]) {
			all = append(all, v["id"])
		}
		return all
	}
	if got := ids(apitest.GoodKey); len(got) != 4 {
		t.Errorf("all: %v", got)
	}
	if got := ids(apitest.OwnKey); len(got) != 1 {
		t.Errorf("those of a key that has built none: %v", got)
	}
	for _, ref := range []string{"app", "app:v1", "APP:default", "default/app"} {
		got := w.do("GET", "/v1/templates/"+url.PathEscape(ref), "").Is(http.StatusOK).Object()
		names := got["names"].([]any)
		built := got["build"].(map[string]any)
		if got["id"] != apitest.IDOfBuilt("app") || got["source"] != "build" || got["user"] != "user" || len(names) != 2 || names[0] != "app" || names[1] != "app:v1" || built["status"] != "ready" || built["key"] != apitest.KeyID {
			t.Errorf("%s: %v", ref, got)
		}
	}
	failed := w.do("GET", "/v1/templates/broken", "").Is(http.StatusOK).Object()
	if b := failed["build"].(map[string]any); len(failed["names"].([]any)) != 0 || b["status"] != "error" || b["reason"] == nil {
		t.Errorf("one whose build failed: %v", failed)
	}
	answer{w.DoAs(apitest.OwnKey, "GET", "/v1/templates/app", "")}.fails(http.StatusNotFound, "template_not_found", "app")
	w.do("GET", "/v1/templates/app:v2", "").fails(http.StatusNotFound, "template_not_found", "app:v2")

	id := w.create(`{}`)
	for _, name := range []string{"app", "app:v1", "app:v9", "broken:x"} {
		w.do("POST", pathOf(id)+"/snapshots", `{"name":"`+name+`"}`).fails(http.StatusConflict, "snapshot_exists", "template")
	}
	for _, name := range []string{"apps", "others", "others:v1"} { // another key's names are free
		w.do("POST", pathOf(id)+"/snapshots", `{"name":"`+name+`"}`).Is(http.StatusCreated)
	}
	w.do("GET", "/v1/templates/others", "").fails(http.StatusNotFound, "template_not_found", "others")
	w.do("GET", "/v1/templates/"+apitest.IDOfBuilt("others"), "").Is(http.StatusOK)
	answer{w.DoAs(apitest.OwnKey, "GET", "/v1/templates/"+apitest.IDOfBuilt("others"), "")}.fails(http.StatusNotFound, "template_not_found", "")

	for _, ref := range []string{"app:default", "APP:Default"} {
		w.do("DELETE", "/v1/templates/"+ref, "").fails(http.StatusBadRequest, "template_tag_fixed", "default")
	}
	w.do("PUT", "/v1/templates/code-interpreter-v1", `{"template":"app"}`).fails(http.StatusBadRequest, "template_was_built", "app")

	// A sandbox is one of the template that was built, and its forks and copies are.
	of := w.create(`{"template":"app:default"}`)
	fork := list(w.do("POST", pathOf(of)+"/fork", `{}`).Is(http.StatusCreated).Object()["children"])[0]["sandbox"].(map[string]any)["id"].(string)
	snap := w.do("POST", pathOf(of)+"/snapshots", `{}`).Is(http.StatusCreated).Object()
	for _, id := range []string{of, fork, w.create(`{"snapshot":"` + snap["id"].(string) + `"}`)} {
		if got := w.do("GET", pathOf(id), "").Is(http.StatusOK).Object(); got["template"] != apitest.IDOfBuilt("app") || got["alias"] != "app" {
			t.Errorf("the template of a sandbox: %v, %v", got["template"], got["alias"])
		}
	}
	for filter, want := range map[string]int{"app": 3, "default/App:default": 3, apitest.IDOfBuilt("app"): 3, "base": 1, "broken": 0} {
		if got := list(w.do("GET", "/v1/sandboxes?template="+url.QueryEscape(filter), "").Is(http.StatusOK).Object()["sandboxes"]); len(got) != want {
			t.Errorf("%d sandboxes of %s, want %d", len(got), filter, want)
		}
	}

	w.do("DELETE", "/v1/templates/app", "").Is(http.StatusNoContent)
	w.do("GET", "/v1/templates/app", "").fails(http.StatusNotFound, "template_not_found", "app")
	w.do("DELETE", "/v1/templates/broken:v1", "").fails(http.StatusNotFound, "template_not_found", "broken:v1")
	w.do("DELETE", "/v1/templates/broken", "").Is(http.StatusNoContent)
	w.do("DELETE", "/v1/templates/broken", "").fails(http.StatusNotFound, "template_not_found", "broken")
}
