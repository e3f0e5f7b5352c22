package client_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/api/body"
)

// notCreated are the options that the client does not send, with the reason.
var notCreated = map[string]string{
	"secure": "it is the default of the server, and the client offers no way out",
}

// TestOptions: the client sends every option of a sandbox that the server takes, by
// the server's name, or a reason says why not.
func TestOptions(t *testing.T) {
	create, patch := tags(t, "../../client/sandbox.go", "createRequest"), tags(t, "../../client/sandbox.go", "patchRequest")
	for _, o := range body.Options {
		check := func(request string, sent map[string]bool, not map[string]string, takes bool) {
			switch why := not[o.Name]; {
			case takes && !sent[o.Name] && why == "":
				t.Errorf("the client's %s has no %s", request, o.Name)
			case sent[o.Name] && (!takes || why != ""):
				t.Errorf("the client's %s has %s; the server takes it: %t; why it is not sent: %q", request, o.Name, takes, why)
			}
		}
		check("createRequest", create, notCreated, o.Create != nil && !o.Refused)
		check("patchRequest", patch, nil, o.Patch != nil && !o.Refused)
		delete(create, o.Name)
		delete(patch, o.Name)
	}
	for name := range notCreated {
		if !slices.ContainsFunc(body.Options, func(o body.Option) bool { return o.Name == name }) {
			t.Errorf("%s is no option of the server", name)
		}
	}
	delete(create, "snapshot") // another spelling of template
	for name := range create {
		t.Errorf("the client's createRequest has %s, which no server knows", name)
	}
	for name := range patch {
		t.Errorf("the client's patchRequest has %s, which no server knows", name)
	}
}

// tags returns the JSON names of a struct's fields.
func tags(t *testing.T, file, typ string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != typ {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			names[name] = true
		}
		return true
	})
	if len(names) == 0 {
		t.Fatalf("%s has no %s", file, typ)
	}
	return names
}

// TestPortsInCreate: what is asked of the ports is sent as the server reads it.
func TestPortsInCreate(t *testing.T) {
	var got map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	defer srv.Close()
	if _, err := newClient(t, srv.URL).Create(t.Context(), client.CreateOptions{PrivatePorts: true, HostMask: "localhost:${PORT}", HTTPSPorts: []int{8443}}); err == nil {
		t.Error("a teapot made a sandbox")
	}
	want := map[string]any{"allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}", "httpsPorts": []any{8443.0}}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: got %v, want %v", name, got[name], want[name])
		}
	}
}
