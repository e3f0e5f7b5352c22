package v1

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/body"
)

func document(t *testing.T) map[string]any {
	t.Helper()
	return newWorld(t).send(httptest.NewRequest("GET", "/v1/openapi.json", nil)).Is(http.StatusOK).Object()
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	doc := document(t)
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi %v", doc["openapi"])
	}
	paths := doc["paths"].(map[string]any)
	n := 0
	for _, r := range routes() {
		path, _ := paths[r.pattern].(map[string]any)
		op, ok := path[strings.ToLower(r.method)].(map[string]any)
		if !ok {
			t.Errorf("%s %s is not described", r.method, r.pattern)
			continue
		}
		n++
		if open := len(op["security"].([]any)) == 0; open != (r.access == "open") {
			t.Errorf("%s %s: open %v", r.method, r.pattern, open)
		}
		if _, ok := op["responses"].(map[string]any)["default"]; !ok || op["operationId"] == "" || op["summary"] == "" {
			t.Errorf("%s %s: %v", r.method, r.pattern, op)
		}
		if _, ok := op["requestBody"]; ok != (r.body != nil || r.carries == upload || r.carries == archive) {
			t.Errorf("%s %s: a body is described: %v", r.method, r.pattern, ok)
		}
	}
	described := 0
	for _, path := range paths {
		described += len(path.(map[string]any))
	}
	if described != n {
		t.Errorf("%d operations for %d routes", described, n)
	}
}

// TestOpenAPIReferencesResolve walks the whole document.
func TestOpenAPIReferencesResolve(t *testing.T) {
	doc := document(t)
	used := map[string]bool{}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(at, item)
			}
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				used[ref] = true
				if resolve(doc, ref) == nil {
					t.Errorf("%s: %s leads nowhere", at, ref)
				}
			}
			for name, item := range v {
				walk(at+"/"+name, item)
			}
		}
	}
	walk("", doc)
	for name := range doc["components"].(map[string]any)["schemas"].(map[string]any) {
		if !used[body.Components+name] {
			t.Errorf("schema %s is used nowhere", name)
		}
	}
}

func resolve(doc map[string]any, ref string) any {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	var at any = doc
	for name := range strings.SplitSeq(path, "/") {
		object, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = object[name]
	}
	return at
}

// TestOpenAPIDescribesWhatIsAnswered holds real answers against the schemas.
func TestOpenAPIDescribesWhatIsAnswered(t *testing.T) {
	doc := document(t)
	w := newWorld(t)
	id := w.create(`{"timeout":60,"metadata":{"a":"b"},"hooks":{"preKill":{"command":"sync"}},"ports":{"80":"keep"}}`)
	other := w.create(`{}`)
	w.do("POST", base+"/"+other+"/pause", "").Is(http.StatusOK)
	w.do("POST", base+"/"+id+"/holds", `{"reason":"r","seconds":9}`).Is(http.StatusCreated)
	w.do("POST", base+"/"+id+"/previews", `{"port":80}`).Is(http.StatusCreated)
	served := w.create(`{"services":[{"name":"web","command":["serve"],"port":80}]}`)
	vol := w.do("POST", "/v1/volumes", `{"name":"data"}`).Is(http.StatusCreated).Object()
	schemaAt := func(name string) any { return map[string]any{"$ref": body.Components + name} }
	for path, name := range map[string]string{
		base + "/" + id: "Sandbox", base + "/" + other: "Sandbox", base: "List", base + "/" + id + "/lifecycle": "Lifecycle",
		base + "/" + served + "/services": "Services", base + "/" + served + "/services/web": "ServiceInfo",
		base + "/" + id + "/holds": "Holds", base + "/" + id + "/previews": "Previews", "/v1/events": "Events",
		"/v1/volumes": "Volumes", "/v1/volumes/" + vol["id"].(string): "Volume",
		"/v1/errors": "Errors", "/v1/nonsense": "Error", base + "/nope": "Error",
	} {
		var got any
		if err := json.Unmarshal([]byte(w.do("GET", path, "").Body), &got); err != nil {
			t.Fatal(err)
		}
		conforms(t, doc, path, schemaAt(name), got)
	}
	// So are the bodies that the tests send, in the canonical spelling alone.
	bodySchema := doc["paths"].(map[string]any)[base].(map[string]any)["post"].(map[string]any)["requestBody"].(map[string]any)["content"].(map[string]any)["application/json"].(map[string]any)["schema"]
	for _, sp := range body.Options.Spellings() {
		if sp.Option.Refused {
			continue
		}
		var got any
		text := "{" + apitest.Nested(sp.Path, apitest.Samples[sp.Option.Name][sp.Form.Words].Value) + "}"
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if sp.Path == sp.Option.Name {
			conforms(t, doc, text, bodySchema, got)
		} else if matches(doc, bodySchema, got) {
			t.Errorf("the schema of a create has %s, another spelling of %s", sp.Path, sp.Option.Name)
		}
	}
	if matches(doc, bodySchema, map[string]any{"nonsense": 1.0}) || matches(doc, bodySchema, map[string]any{"timeout": "1"}) || matches(doc, bodySchema, map[string]any{"onTimeout": "stop"}) {
		t.Error("the check of schemas lets everything pass")
	}
}

func conforms(t *testing.T, doc map[string]any, at string, of, got any) {
	t.Helper()
	if !matches(doc, of, got) {
		text, _ := json.Marshal(got)
		t.Errorf("%s: %s is not what is described", at, text)
	}
}

// matches is as much of JSON Schema as the document uses. Answers may not have
// fields that are not described.
func matches(doc map[string]any, of, got any) bool {
	s := of.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		return matches(doc, resolve(doc, ref), got)
	}
	if ways, ok := s["anyOf"].([]any); ok {
		fits := false
		for _, way := range ways {
			fits = fits || matches(doc, way, got)
		}
		return fits
	}
	if values, ok := s["enum"].([]any); ok {
		fits := false
		for _, v := range values {
			fits = fits || reflect.DeepEqual(v, got)
		}
		return fits
	}
	switch s["type"] {
	case "null":
		return got == nil
	case "string":
		_, ok := got.(string)
		return ok
	case "boolean":
		_, ok := got.(bool)
		return ok
	case "number":
		_, ok := got.(float64)
		return ok
	case "integer":
		n, ok := got.(float64)
		return ok && n == float64(int64(n))
	case "array":
		items, ok := got.([]any)
		for _, item := range items {
			ok = ok && matches(doc, s["items"], item)
		}
		return ok
	case "object":
		object, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for _, name := range asList(s["required"]) {
			if _, has := object[name.(string)]; !has {
				return false
			}
		}
		properties, closed := s["properties"].(map[string]any)
		for name, value := range object {
			field, known := properties[name]
			if !known {
				field, known = s["additionalProperties"].(map[string]any)
			}
			if known && field != nil && !matches(doc, field, value) || closed && !known {
				return false
			}
		}
		return true
	}
	return len(s) == 0
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}
