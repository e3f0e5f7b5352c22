package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// caller makes calls with an API key of its own.
type caller struct {
	s       *server
	id, key string
}

// newCaller makes a key of a role.
func newCaller(ctx context.Context, s *server, name, role string) caller {
	s.t.Helper()
	var made struct{ ID, Key string }
	caller{s: s, key: apiKey}.is(ctx, 201, "POST /v1/keys", fmt.Sprintf(`{"name":%q,"role":%q}`, name, role), &made)
	return caller{s, made.ID, made.Key}
}

// ask makes a call.
func (o caller) ask(ctx context.Context, call, body string) answer {
	o.s.t.Helper()
	method, path, _ := strings.Cut(call, " ")
	header := http.Header{"Content-Type": {"application/json"}}
	if o.key != "" {
		header["X-Api-Key"], header["Authorization"] = []string{o.key}, []string{"Bearer " + o.key}
	}
	a, err := o.s.raw(ctx, method, path, header, strings.NewReader(body))
	if err != nil {
		o.s.t.Fatalf("%s: %v", call, err)
	}
	return a
}

// is makes a call that has a status.
func (o caller) is(ctx context.Context, status int, call, body string, into any) {
	o.s.t.Helper()
	a := o.ask(ctx, call, body)
	if a.status != status {
		o.s.t.Fatalf("%s %s: %d %s, want %d", call, body, a.status, a.body, status)
	}
	if into != nil {
		if err := json.Unmarshal(a.body, into); err != nil {
			o.s.t.Fatalf("%s: %v", call, err)
		}
	}
}

// sandbox makes one, and returns its id.
func (o caller) sandbox(ctx context.Context, template string) string {
	o.s.t.Helper()
	var made struct{ SandboxID string }
	o.is(ctx, 201, "POST /v2/sandboxes", fmt.Sprintf(`{"templateID":%q,"timeout":600}`, template), &made)
	o.s.mu.Lock()
	o.s.ids = append(o.s.ids, made.SandboxID)
	o.s.mu.Unlock()
	return made.SandboxID
}

// snapshotOf returns what a sandbox came from, as a snapshot's id; empty for a template.
func (o caller) snapshotOf(ctx context.Context, sandbox string) string {
	o.s.t.Helper()
	var why struct{ Lineage []struct{ Snapshot string } }
	o.is(ctx, 200, "GET /v1/sandboxes/"+sandbox+"/lifecycle", "", &why)
	if len(why.Lineage) == 0 {
		return ""
	}
	return why.Lineage[0].Snapshot
}

// requested is a build that waits.
type requested struct{ TemplateID, BuildID string }

// build makes a template of a step, and returns its id.
func (o caller) build(ctx context.Context, name string) string {
	o.s.t.Helper()
	var b requested
	o.is(ctx, 202, "POST /v3/templates", fmt.Sprintf(`{"name":%q}`, name), &b)
	path := "/templates/" + b.TemplateID + "/builds/" + b.BuildID
	o.is(ctx, 202, "POST /v2"+path, `{"fromTemplate":"base","steps":[{"type":"ENV","args":["A","`+name+`"]}]}`, nil)
	eventually(o.s.t, time.Minute, "the build of "+name, func() error {
		var now struct {
			Status string
			Reason struct{ Message string }
		}
		switch o.is(ctx, 200, "GET "+path+"/status", "", &now); now.Status {
		case "ready":
			return nil
		case "error":
			o.s.t.Fatalf("the build of %s failed: %s", name, now.Reason.Message)
		}
		return errors.New(now.Status)
	})
	return b.TemplateID
}

// TestNamesBelongToKeys has one key take the names of another in every dialect, before
// and after it. The other goes on as if it were alone, and what a name stands for is
// never what another key has made.
func TestNamesBelongToKeys(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	admin, a, b := caller{s: s, key: apiKey}, newCaller(ctx, s, "a", "own"), newCaller(ctx, s, "b", "own")
	of := a.sandbox(ctx, "base")
	take := func(name string) {
		t.Helper()
		a.is(ctx, 201, "POST /api/v1/sandboxes/"+of+"/snapshots", fmt.Sprintf(`{"name":%q}`, name), nil) // sandbox0's
	}
	take("x:v2")
	x := b.build(ctx, "x")
	for _, name := range []string{"x", "x:v1", "python"} {
		take(name)
	}
	a.is(ctx, 409, "POST /api/v1/sandboxes/"+of+"/snapshots", `{"name":"code-interpreter-v1"}`, nil) // of the server
	a.is(ctx, 201, "POST /v1/sandboxes/"+of+"/snapshots", `{"name":"x:v3"}`, nil)
	a.is(ctx, 201, "POST /sandboxes/"+of+"/snapshots", `{"name":"x:v4"}`, nil)
	b.build(ctx, "x:v1")
	b.is(ctx, 201, "POST /templates/tags", `{"target":"x","tags":["v2","v3","v4"]}`, nil)
	theirs := a.sandbox(ctx, "x:v2")
	if ours := b.sandbox(ctx, "x:v2"); a.snapshotOf(ctx, theirs) == b.snapshotOf(ctx, ours) {
		t.Error("two keys have one snapshot under a name")
	}
	b.is(ctx, 409, "POST /api/v1/sandboxes/"+b.sandbox(ctx, "base")+"/snapshots", `{"name":"x:v9"}`, nil) // its own
	b.is(ctx, 404, "GET /v1/snapshots/python", "", nil)

	// The admin sees both, by their ids.
	for _, ref := range []string{"x", "x:v2", "X:default", "default/x", "python"} {
		admin.is(ctx, 404, "POST /v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, ref), nil)
		admin.is(ctx, 404, "POST /v1/sandboxes", fmt.Sprintf(`{"template":%q}`, ref), nil)
	}
	admin.is(ctx, 404, "POST /v1/sandboxes", `{"snapshot":"python"}`, nil)
	if got := admin.snapshotOf(ctx, admin.sandbox(ctx, "code-interpreter-v1")); got != "" {
		t.Errorf("what E2B's code interpreter asks for is the snapshot %s of another key", got)
	}
	if got := admin.snapshotOf(ctx, admin.sandbox(ctx, x+":v2")); got == "" {
		t.Error("by the id of its template a result is not found")
	}
	admin.is(ctx, 200, "POST /mitos/v1/templates", `{"id":"python"}`, nil)
	admin.is(ctx, 200, "POST /mitos/v1/fork", `{"template":"python","id":"usual"}`, nil)
	list, err := s.client.List(ctx, client.ListOptions{})
	i := slices.IndexFunc(list, func(sb client.Info) bool { return sb.Name == "usual" })
	if err != nil || i < 0 {
		t.Fatalf("there is no sandbox of mitos' usual template: %v, %+v", err, list)
	}
	s.mu.Lock()
	s.ids = append(s.ids, list[i].ID)
	s.mu.Unlock()
	if got := admin.snapshotOf(ctx, list[i].ID); got != "" {
		t.Errorf("mitos' usual template is the snapshot %s of another key", got)
	}
	// A build begins with what whoever builds has called so.
	var w requested
	b.is(ctx, 202, "POST /v3/templates", `{"name":"over"}`, &w)
	path := "/templates/" + w.TemplateID + "/builds/" + w.BuildID
	b.is(ctx, 202, "POST /v2"+path, `{"fromTemplate":"python"}`, nil)
	eventually(t, time.Minute, "the end of a build over another key's snapshot", func() error {
		if said := string(b.ask(ctx, "GET "+path+"/status", "").body); !strings.Contains(said, "not found") {
			return errors.New(said)
		}
		return nil
	})
}

// TestUploadAddressesEnd: an address for the files of a build ends with the key that
// got it, its template and its build, and replaces nothing.
func TestUploadAddressesEnd(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	admin, a, b, nobody := caller{s: s, key: apiKey}, newCaller(ctx, s, "a", "own"), newCaller(ctx, s, "b", "own"), caller{s: s}
	hash := strings.Repeat("c", 64)
	address := func(o caller, name string) (call string, build requested) {
		t.Helper()
		o.is(ctx, 202, "POST /v3/templates", fmt.Sprintf(`{"name":%q}`, name), &build)
		var given struct{ URL string }
		o.is(ctx, 201, "GET /templates/"+build.TemplateID+"/files/"+hash, "", &given)
		to, err := url.Parse(given.URL)
		if err != nil {
			t.Fatal(err)
		}
		return "PUT " + to.RequestURI(), build
	}
	present := func(o caller, name string) (yes bool) {
		t.Helper()
		var given struct{ Present bool }
		o.is(ctx, 201, "GET /templates/"+name+"/files/"+hash, "", &given)
		return given.Present
	}
	old, _ := address(a, "shared")
	a.is(ctx, 204, "DELETE /templates/shared", "", nil)
	nobody.is(ctx, 404, old, "evil", nil)
	fresh, build := address(b, "shared")
	nobody.is(ctx, 404, old, "evil", nil)
	nobody.is(ctx, 403, strings.Replace(fresh, b.id, a.id, 1), "evil", nil)
	if present(b, "shared") {
		t.Fatal("a former holder of the name has put files there")
	}
	nobody.is(ctx, 200, fresh, "good", nil)
	nobody.is(ctx, 200, fresh, "again", nil)
	b.is(ctx, 202, "POST /v2/templates/shared/builds/"+build.BuildID, `{"fromTemplate":"base"}`, nil)
	nobody.is(ctx, 400, fresh, "late", nil)

	last, _ := address(b, "other")
	admin.is(ctx, 204, "DELETE /v1/keys/"+b.id, "", nil)
	nobody.is(ctx, 401, last, "evil", nil)
}

// TestVolumeTokensEnd: what opens the files of a volume ends with the key that was given
// it, and with the volume, whatever has its name afterwards.
func TestVolumeTokensEnd(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	admin, a, b := caller{s: s, key: apiKey}, newCaller(ctx, s, "a", "full"), newCaller(ctx, s, "b", "full")
	type volume struct{ VolumeID, Token string }
	var ofA, ofB, again volume
	a.is(ctx, 201, "POST /volumes", `{"name":"shared"}`, &ofA)
	b.is(ctx, 200, "GET /volumes/"+ofA.VolumeID, "", &ofB)
	list := func(volume, token string, want int) {
		t.Helper()
		caller{s: s, key: token}.is(ctx, want, "GET /volumecontent/"+volume+"/dir?path=/", "", nil)
	}
	list(ofA.VolumeID, ofA.Token, 200)
	list(ofA.VolumeID, ofB.Token, 200)
	admin.is(ctx, 204, "DELETE /v1/keys/"+a.id, "", nil)
	list(ofA.VolumeID, ofA.Token, 401)
	list(ofA.VolumeID, strings.Replace(ofA.Token, a.id, b.id, 1), 401)
	list(ofA.VolumeID, ofB.Token, 200)
	b.is(ctx, 204, "DELETE /volumes/"+ofA.VolumeID, "", nil)
	b.is(ctx, 201, "POST /volumes", `{"name":"shared"}`, &again)
	list(ofA.VolumeID, ofB.Token, 404)
	list(again.VolumeID, ofB.Token, 401)
	list(again.VolumeID, again.Token, 200)
}

// TestPreviewLinksEnd: a preview link ends with the key that made it, be it revoked or
// expired, and outlives a restart of the server with its key.
func TestPreviewLinksEnd(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	admin, a, b, nobody := caller{s: s, key: apiKey}, newCaller(ctx, s, "a", "own"), newCaller(ctx, s, "b", "full"), caller{s: s}
	var sb struct{ SandboxID string }
	a.is(ctx, 201, "POST /sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`, &sb)
	link := func(o caller) (open string) {
		t.Helper()
		var made struct{ Token string }
		o.is(ctx, 201, "POST /v1/sandboxes/"+sb.SandboxID+"/previews", `{"port":8123}`, &made)
		return "GET /s/" + sb.SandboxID + "/8123/?drowse_preview=" + made.Token
	}
	const closed, refused = 502, 403 // nothing listens there
	ofA, ofB, ofAdmin := link(a), link(b), link(admin)
	for _, open := range []string{ofA, ofB, ofAdmin} {
		nobody.is(ctx, closed, open, "", nil)
	}
	admin.is(ctx, 204, "DELETE /v1/keys/"+a.id, "", nil)
	s.settle("the link is no good at the server of its sandbox", func() bool { return nobody.ask(ctx, ofA, "").status == refused })
	nobody.is(ctx, refused, ofA, "", nil)
	nobody.is(ctx, closed, ofB, "", nil)
	var list struct{ Previews []struct{ Actor string } }
	if b.is(ctx, 200, "GET /v1/sandboxes/"+sb.SandboxID+"/previews", "", &list); len(list.Previews) != 2 || list.Previews[0].Actor != "key:"+b.id {
		t.Errorf("the links that are good are %+v", list)
	}
	s.restartWith()
	nobody.is(ctx, refused, ofA, "", nil)
	nobody.is(ctx, closed, ofB, "", nil)
	nobody.is(ctx, closed, ofAdmin, "", nil)
}
