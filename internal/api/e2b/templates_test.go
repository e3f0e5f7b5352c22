package e2b

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTemplatesCanBeRead(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/templates", "/v2/templates"} {
		list := w.do("GET", path, "").is(http.StatusOK).list()
		if len(list) != 1 || list[0]["templateID"] != "tmplbase" || list[0]["buildStatus"] != "ready" || list[0]["cpuCount"] != 2.0 {
			t.Errorf("%s: %v", path, list)
		}
	}
	if o := w.do("GET", "/templates/aliases/base", "").Is(http.StatusOK).Object(); o["templateID"] != "tmplbase" || o["public"] != true {
		t.Errorf("alias: %v", o)
	}
	w.do("GET", "/templates/aliases/mine", "").fails(http.StatusNotFound, "template_not_found", "mine")
	if o := w.do("GET", "/templates/base", "").Is(http.StatusOK).Object(); len(o["builds"].([]any)) != 1 {
		t.Errorf("template: %v", o)
	}
	w.do("GET", "/templates/mine", "").fails(http.StatusNotFound, "template_not_found", "mine")
}

// TestUnknownCallsAreNotUnknownSandboxes: clients take a 404 below a sandbox for
// one that does not exist.
func TestUnknownCallsAreNotUnknownSandboxes(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base"}`)
	for _, path := range []string{"POST /sandboxes/" + id + "/rollback/x", "DELETE /sandboxes/" + id + "/volume-mounts/x",
		"POST /v2/sandboxes/" + id + "/commit"} {
		method, target, _ := strings.Cut(path, " ")
		w.do(method, target, "").fails(http.StatusNotImplemented, "not_supported", "")
	}
	w.do("GET", "/nothing", "").fails(http.StatusNotFound, "unknown_path", "")
}

// TestTheDomainIsAnswered: without it, clients send what is for a port of a
// sandbox to E2B's cloud.
func TestTheDomainIsAnswered(t *testing.T) {
	for name, tt := range map[string]struct{ domain, host, want string }{
		"this machine":       {"", "127.0.0.1:3000", "localhost:3000"},
		"the server's":       {"sbx.test:8443", "127.0.0.1:3000", "sbx.test:8443"},
		"the client's":       {"", "api.sbx.test", "sbx.test"},
		"none of the client": {"", "api.a b", "localhost:3000"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.Domain = tt.domain })
			send := func(method, path, body string) map[string]any {
				r := httptest.NewRequest(method, path, strings.NewReader(body))
				r.Header.Set("X-API-Key", goodKey)
				r.Host = tt.host
				return w.send(r).Object()
			}
			o := send("POST", "/sandboxes", `{"templateID":"base"}`)
			id := o["sandboxID"].(string)
			for call, o := range map[string]map[string]any{
				"create": o, "get": send("GET", "/sandboxes/"+id, ""), "connect": send("POST", "/v2/sandboxes/"+id+"/connect", "{}"),
			} {
				if o["domain"] != tt.want {
					t.Errorf("%s: domain %v, want %s", call, o["domain"], tt.want)
				}
			}
		})
	}
}
