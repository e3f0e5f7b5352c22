package e2b

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// newShelf returns a world and its snapshots.
func newShelf(t *testing.T) (*world, *apitest.Snapshots) {
	var shelf *apitest.Snapshots
	w := newWorld(t, func(o *Options) { shelf = o.Snapshots.(*apitest.Snapshots) })
	return w, shelf
}

func (w *world) snapshot(id, body string) map[string]any {
	w.T.Helper()
	return w.do("POST", "/sandboxes/"+id+"/snapshots", body).Is(http.StatusCreated).Object()
}

func idsOf(list []map[string]any) (ids []string) {
	for _, item := range list {
		ids = append(ids, item["snapshotID"].(string))
	}
	return ids
}

// TestSnapshots takes, lists, uses and deletes them in the forms that E2B's clients
// have for their ids and names.
func TestSnapshots(t *testing.T) {
	w, shelf := newShelf(t)
	id, other := w.create(`{"templateID":"base"}`), w.create(`{"templateID":"base"}`)
	plain := w.snapshot(id, "")
	bare := strings.TrimSuffix(plain["snapshotID"].(string), ":default")
	if names, ok := plain["names"].([]any); !ok || len(names) != 0 || len(plain) != 2 || bare == plain["snapshotID"] {
		t.Errorf("without a name: %v", plain)
	}
	named := w.snapshot(id, `{"name":" Default/Own "}`)
	if names := named["names"].([]any); named["snapshotID"] != "own:default" || len(names) != 1 || names[0] != "own" {
		t.Errorf("with a name: %v", named)
	}
	tag := w.snapshot(other, `{"name":"own:v1","mode":"filesystem"}`)
	if snap, err := shelf.Snapshot(apitest.KeyID, "own:v1"); err != nil || snap.Checkpoint.Mode != lifecycle.Filesystem || tag["snapshotID"] != "own:v1" {
		t.Errorf("with a tag: %v %+v %v", tag, snap, err)
	}

	for query, want := range map[string][]string{
		"":                            {"own:v1", "own:default", plain["snapshotID"].(string)},
		"?sandboxID=" + other:         {"own:v1"},
		"?sandboxID=" + other + "-xy": {"own:v1"},
		"?sandboxID=nobody":           nil,
		"?name=own":                   {"own:v1", "own:default"},
		"?name=default/OWN:default":   {"own:v1", "own:default"},
		"?name=own:v1":                {"own:v1"},
		"?name=none":                  nil,
		"?name=" + bare:               {plain["snapshotID"].(string)},
	} {
		a := w.do("GET", "/snapshots"+query, "").is(http.StatusOK)
		if got := idsOf(a.list()); !slices.Equal(got, want) || a.Header.Get("X-Next-Token") != "" {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	var paged []string
	for token := ""; ; {
		a := w.do("GET", "/snapshots?limit=1&nextToken="+token, "").is(http.StatusOK)
		paged = append(paged, idsOf(a.list())...)
		if token = a.Header.Get("X-Next-Token"); token == "" {
			break
		}
	}
	if want := idsOf(w.do("GET", "/snapshots", "").list()); len(paged) != 3 || !slices.Equal(slices.Sorted(slices.Values(paged)), slices.Sorted(slices.Values(want))) {
		t.Errorf("by pages %v, want %v", paged, want)
	}
	for _, query := range []string{"?limit=0", "?limit=101", "?limit=x", "?nextToken=x"} {
		w.do("GET", "/snapshots"+query, "").fails(http.StatusBadRequest, "", "")
	}

	first, err := shelf.Snapshot(apitest.KeyID, "own")
	if err != nil {
		t.Fatal(err)
	}
	again := w.snapshot(id, `{"name":"own:default"}`)
	if now, err := shelf.Snapshot(apitest.KeyID, "own"); err != nil || now.ID == first.ID || again["snapshotID"] != "own:default" {
		t.Errorf("the name again: %v %+v %v", again, now, err)
	}
	if _, err := shelf.Snapshot(apitest.KeyID, first.ID); err == nil {
		t.Error("the one before is still there")
	}

	for _, ref := range []string{"default/own:default", "own%3Av1", plain["snapshotID"].(string)} {
		target := "/templates/" + strings.ReplaceAll(ref, "/", "%2F")
		w.do("DELETE", target, "").Is(http.StatusNoContent)
		w.do("DELETE", target, "").fails(http.StatusNotFound, "snapshot_not_found", "")
	}
	w.do("DELETE", "/templates/base", "").fails(http.StatusNotImplemented, "not_supported", "")
}

// TestSnapshotsRefuse what a body or a name cannot mean.
func TestSnapshotsRefuse(t *testing.T) {
	w, shelf := newShelf(t)
	id := w.create(`{"templateID":"base"}`)
	for body, message := range map[string]string{
		`{"name":1}`: `"name" must be a string`, `{"name":"a b"}`: "a b", `{"name":"a/b"}`: "namespace", `{"name":"a:b:c"}`: "a:b:c", `{"name":":"}`: "letters",
		`{"name":"../x"}`: "../x", `{"Name":"x"}`: "Name", `{"sandboxID":"x"}`: "sandboxID", `{"name":"x","name":"y"}`: "name", `{"mode":"disk"}`: "disk",
		`[]`: "object", `{`: "JSON",
	} {
		w.do("POST", "/sandboxes/"+id+"/snapshots", body).fails(http.StatusBadRequest, "", message)
		w.do("POST", "/sandboxes/inobody/snapshots", body).fails(http.StatusNotFound, "sandbox_not_found", "")
	}
	w.do("POST", "/sandboxes/"+id+"/snapshots", `{"name":"host"}`).fails(http.StatusConflict, "snapshot_exists", "template")
	w.snapshot(id, `{"name":null,"mode":null}`)
	w.snapshot(id, `{"name":""}`)

	// A name of which only the native API knows is shown by the id, as is that of a
	// template.
	for _, name := range []string{"a/b/c", "base"} {
		snap, err := shelf.TakeSnapshot(t.Context(), id, supervisor.SnapshotRequest{Name: name, Key: apitest.KeyID})
		if err != nil {
			t.Fatal(err)
		}
		if got := w.do("GET", "/snapshots?limit=1", "").list()[0]; got["snapshotID"] != snap.ID+":default" || got["names"].([]any)[0] != name {
			t.Errorf("%s is %v", name, got)
		}
		w.do("DELETE", "/templates/"+snap.ID+":default", "").Is(http.StatusNoContent)
	}
}

// TestStartFromSnapshot: the name of a template is the template's, another a
// snapshot's, in every form.
func TestStartFromSnapshot(t *testing.T) {
	w, shelf := newShelf(t)
	id := w.create(`{"templateID":"base"}`)
	snap, err := shelf.TakeSnapshot(t.Context(), id, supervisor.SnapshotRequest{Name: "own", Key: apitest.KeyID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shelf.TakeSnapshot(t.Context(), id, supervisor.SnapshotRequest{Name: "base", Key: apitest.KeyID}); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"own": snap.ID, "own:default": snap.ID, "default/own": snap.ID, "Default/OWN:default": snap.ID, snap.ID: snap.ID, snap.ID + ":default": snap.ID, "base": "", "base:default": "",
	} {
		w.do("POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`).Is(http.StatusCreated)
		if got := w.Fake.Created[len(w.Fake.Created)-1].Snapshot; got != want {
			t.Errorf("%s starts from %q, want %q", ref, got, want)
		}
	}
	w.do("POST", "/v2/sandboxes", `{"templateID":"own:v2"}`).fails(http.StatusNotFound, "template_not_found", "template 'own:v2' not found")
}

// TestSnapshotsOfOthers: to a key of role own, those of other keys are not there, and
// it can use their names for its own. A key that sees all of them names them by their
// ids.
func TestSnapshotsOfOthers(t *testing.T) {
	w, shelf := newShelf(t)
	id := w.createAs(apitest.FullKey)
	snap, err := shelf.TakeSnapshot(t.Context(), id, supervisor.SnapshotRequest{Name: "theirs", Key: "another"})
	if err != nil {
		t.Fatal(err)
	}
	own := w.createAs(apitest.OwnKey)
	for _, ref := range []string{"theirs", snap.ID, "theirs:default", snap.ID + ":default", "default/theirs"} {
		answer{w.DoAs(apitest.OwnKey, "POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`)}.is(http.StatusNotFound)
		answer{w.DoAs(apitest.OwnKey, "DELETE", "/templates/"+url.PathEscape(ref), "")}.fails(http.StatusNotFound, "snapshot_not_found", "")
		if got := (answer{w.DoAs(apitest.OwnKey, "GET", "/snapshots?name="+ref, "")}).is(http.StatusOK).list(); len(got) != 0 {
			t.Errorf("listed %v", got)
		}
	}
	for _, path := range []string{"/snapshots", "/fork", "/clone"} {
		answer{w.DoAs(apitest.OwnKey, "POST", "/sandboxes/"+id+path, "")}.fails(http.StatusNotFound, "sandbox_not_found", "")
	}
	w.do("POST", "/v2/sandboxes", `{"templateID":"theirs"}`).fails(http.StatusNotFound, "template_not_found", "theirs")
	if got := w.do("GET", "/snapshots", "").list(); len(got) != 1 || got[0]["snapshotID"] != snap.ID+":default" { // an admin sees it
		t.Errorf("listed %v", got)
	}
	w.do("POST", "/v2/sandboxes", `{"templateID":"`+snap.ID+`"}`).Is(http.StatusCreated)

	answer{w.DoAs(apitest.OwnKey, "POST", "/sandboxes/"+own+"/snapshots", `{"name":"theirs"}`)}.Is(http.StatusCreated)
	mine, err := shelf.Snapshot(apitest.KeyIDOf(apitest.OwnKey), "theirs")
	if err != nil || mine.ID == snap.ID {
		t.Fatalf("the name is that of %+v, %v", mine, err)
	}
	answer{w.DoAs(apitest.OwnKey, "POST", "/v2/sandboxes", `{"templateID":"theirs"}`)}.Is(http.StatusCreated)
	if got := w.Fake.Created[len(w.Fake.Created)-1].Snapshot; got != mine.ID {
		t.Errorf("a sandbox started from %s, want %s", got, mine.ID)
	}
	answer{w.DoAs(apitest.OwnKey, "DELETE", "/templates/theirs", "")}.Is(http.StatusNoContent)
	if now, err := shelf.Snapshot("another", "theirs"); err != nil || now.ID != snap.ID {
		t.Errorf("the other is %+v, %v", now, err)
	}
}

// TestFork: there is a result for each child, with a timeout by the version.
func TestFork(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base","timeout":50,"metadata":{"a":"b"}}`)
	for _, tt := range []struct {
		path, body string
		children   int
		timeout    float64
	}{
		{"/sandboxes/" + id + "/fork", "", 1, 15},
		{"/v2/sandboxes/" + id + "/fork", "{}", 1, 300},
		{"/v2/sandboxes/" + id + "/fork", `{"count":5,"timeout":77}`, 5, 77},
		{"/v2/sandboxes/" + id + "/fork", `{"count":2,"timeoutMs":1500}`, 2, 1.5},
	} {
		list := w.do("POST", tt.path, tt.body).is(http.StatusCreated).list()
		if len(list) != tt.children {
			t.Fatalf("%s %s: %v", tt.path, tt.body, list)
		}
		seen := map[any]bool{}
		for i, item := range list {
			if i >= 3 {
				if e := item["error"].(map[string]any); e["code"] != float64(http.StatusTooManyRequests) || e["message"] == "" || item["sandbox"] != nil {
					t.Errorf("child %d: %v", i, item)
				}
				continue
			}
			sb := item["sandbox"].(map[string]any)
			if sb["sandboxID"] == id || seen[sb["sandboxID"]] || sb["envdAccessToken"] == nil || item["error"] != nil {
				t.Errorf("child %d: %v", i, item)
			}
			seen[sb["sandboxID"]] = true
			if got := w.Fake.Sandboxes[sb["sandboxID"].(string)]; got.Record.Settings.Timeout.Seconds() != tt.timeout || got.Config.Metadata["a"] != "b" {
				t.Errorf("child %d is %+v", i, got)
			}
		}
	}
	for body, message := range map[string]string{
		`{"count":0}`: "count", `{"count":-1}`: "count", `{"count":1.5}`: "count", `{"count":"2"}`: "count", `{"count":101}`: "101", `{"count":99999999999}`: "count",
		`{"timeout":0}`: "Timeout", `{"timeout":-2}`: "timeout", `{"strict":true}`: "strict", `{"metadata":{}}`: "metadata", `{"n":1}`: "n",
	} {
		w.do("POST", "/sandboxes/"+id+"/fork", body).fails(http.StatusBadRequest, "", message)
	}
	w.do("POST", "/sandboxes/inobody/fork", `{"count":0}`).fails(http.StatusNotFound, "sandbox_not_found", "")
	w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
	w.do("POST", "/sandboxes/"+id+"/fork", "").fails(http.StatusConflict, "", "resume it first")
}

// TestClone is what Novita's clients call a fork.
// TestRollback takes a sandbox back to a snapshot of its own, and to no other.
func TestRollback(t *testing.T) {
	w := newWorld(t)
	id, other := w.create(`{"templateID":"base"}`), w.create(`{"templateID":"base"}`)
	snapshot := func(of string) string {
		return w.do("POST", "/sandboxes/"+of+"/snapshots", `{"name":"n`+of+`"}`).Is(http.StatusCreated).Object()["snapshotID"].(string)
	}
	own, others := snapshot(id), snapshot(other)
	at := "/sandboxes/" + id + "/rollback"
	for _, ref := range []string{own, strings.TrimSuffix(own, ":default")} {
		want := map[string]any{"sandboxID": id, "snapshotID": ref, "status": "success"}
		if got := w.do("POST", at, `{"snapshotID":"`+ref+`"}`).Is(http.StatusOK).Object(); !maps.Equal(got, want) {
			t.Errorf("rolled back to %s: %v", ref, got)
		}
	}
	if cp := w.Fake.Sandboxes[id].Record.Checkpoint; cp == nil || !strings.HasPrefix(cp.ID, "of s") {
		t.Errorf("it goes on from %+v", cp)
	}
	for body, message := range map[string]string{
		`{"snapshotID":"nothing"}`: "no such snapshot", `{"snapshotID":""}`: "no such snapshot", `{"snapshotID":"` + others + `"}`: "another sandbox",
		`{}`: "snapshotID", `{"snapshotID":1}`: "snapshotID", `{"snapshotID":"` + own + `","mode":"memory"}`: "mode", "": "body",
	} {
		w.do("POST", at, body).fails(http.StatusBadRequest, "", message)
	}
	w.do("POST", "/sandboxes/inobody/rollback", `{"snapshotID":"nothing"}`).fails(http.StatusNotFound, "sandbox_not_found", "")
}

func TestClone(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"templateID":"base","timeout":50}`)
	clones := func(body string) []any {
		t.Helper()
		return w.do("POST", "/sandboxes/"+id+"/clone", body).Is(http.StatusCreated).Object()["sandboxes"].([]any)
	}
	for _, state := range []string{"running", "paused"} {
		list := clones("")
		if len(list) != 1 || w.Fake.Sandboxes[list[0].(map[string]any)["sandboxID"].(string)].Record.Settings.Timeout.Seconds() != 50 {
			t.Errorf("of a %s one: %v", state, list)
		}
		w.do("POST", "/sandboxes/"+id+"/pause", "")
	}
	if list := clones(`{"count":5,"timeout":9}`); len(list) != 3 || list[0].(map[string]any)["clientID"] != nil { // the others find no room
		t.Errorf("%v", list)
	}
	before := len(w.Fake.Sandboxes)
	w.do("POST", "/sandboxes/"+id+"/clone", `{"count":5,"strict":true}`).fails(http.StatusTooManyRequests, "too_many_sandboxes", "")
	live := 0
	for _, sb := range w.Fake.Sandboxes {
		if sb.Record.State != lifecycle.Terminated {
			live++
		}
	}
	if live > before {
		t.Errorf("%d sandboxes after all or none, %d before", live, before)
	}
	w.do("POST", "/sandboxes/"+id+"/clone", `{"timeout":0}`).fails(http.StatusBadRequest, "", "Timeout")
}
