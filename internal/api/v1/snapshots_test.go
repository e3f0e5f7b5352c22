package v1

import (
	"net/http"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	made := w.do("POST", pathOf(id)+"/snapshots", `{"name":"a/b:c"}`).Is(http.StatusCreated).Object()
	if made["name"] != "a/b:c" || made["sandbox"] != id || made["mode"] != "memory" || made["generation"] != 1.0 || made["frozenMs"] != nil || made["key"] != apitest.KeyID {
		t.Errorf("made %v", made)
	}
	w.do("POST", pathOf(id)+"/snapshots", `{"name":"a/b:c"}`).fails(http.StatusConflict, "snapshot_exists", "a/b:c")
	w.do("POST", pathOf(id)+"/snapshots", `{"memry":false}`).fails(http.StatusBadRequest, "unknown_field", "memry")
	if files := w.do("POST", pathOf(id)+"/snapshots", `{"name":"files","mode":"filesystem","replace":true}`).Is(http.StatusCreated).Object(); files["mode"] != "filesystem" {
		t.Errorf("without memory: %v", files)
	}
	if again := w.do("POST", pathOf(id)+"/snapshots", `{"name":"files","replace":true}`).Is(http.StatusCreated).Object(); again["mode"] != "memory" {
		t.Errorf("in its place: %v", again)
	}
	w.do("DELETE", "/v1/snapshots/files", "").Is(http.StatusNoContent)
	w.do("POST", pathOf(id)+"/snapshots", `{"name":"base","replace":true}`).fails(http.StatusConflict, "snapshot_exists", "template")
	w.do("POST", pathOf("inobody")+"/snapshots", ``).fails(http.StatusNotFound, "sandbox_not_found", "inobody")
	second := w.do("POST", pathOf(id)+"/snapshots", ``).Is(http.StatusCreated).Object()
	for _, path := range []string{"/v1/snapshots", pathOf(id) + "/snapshots"} {
		if got := list(w.do("GET", path, "").Is(http.StatusOK).Object()["snapshots"]); len(got) != 2 || got[0]["id"] != second["id"] || got[0]["name"] != nil || got[1]["id"] != made["id"] {
			t.Errorf("%s: %v", path, got)
		}
	}
	if got := w.do("GET", "/v1/snapshots/a%2Fb:c", "").Is(http.StatusOK).Object(); got["id"] != made["id"] {
		t.Errorf("got %v", got)
	}

	// A create names one by its id or name, and not a template besides.
	for _, body := range []string{`{"snapshot":"a/b:c"}`, `{"template":"` + made["id"].(string) + `"}`} {
		if a := w.do("POST", base, body); strings.Contains(a.Body, "snapshot") {
			t.Errorf("%s: %s", body, a.Body)
		}
	}
	w.do("POST", base, `{"snapshot":"a/b:c","template":"base"}`).fails(http.StatusBadRequest, "invalid_request", "both")
	w.do("POST", base, `{"snapshot":"none"}`).fails(http.StatusNotFound, "snapshot_not_found", "none")

	w.do("DELETE", "/v1/snapshots/a%2Fb:c", "").Is(http.StatusNoContent)
	for _, method := range []string{"GET", "DELETE"} {
		w.do(method, "/v1/snapshots/a%2Fb:c", "").fails(http.StatusNotFound, "snapshot_not_found", "a/b:c")
	}
}

// What a template was built to is its template's, and a user's snapshot of a sandbox
// in which a build works is the user's.
func TestSnapshotsOfTemplates(t *testing.T) {
	var taken *apitest.Snapshots
	w := newWorld(t, func(o *Options) { taken = o.Snapshots.(*apitest.Snapshots) })
	id := w.create(`{}`)
	built, err := taken.TakeSnapshot(t.Context(), id, supervisor.SnapshotRequest{Name: "built", Key: apitest.KeyID, Build: "b1"})
	if err != nil {
		t.Fatal(err)
	}
	w.do("GET", "/v1/snapshots/built", "").Is(http.StatusOK)
	for _, ref := range []string{"built", built.ID} {
		w.do("DELETE", "/v1/snapshots/"+ref, "").fails(http.StatusConflict, "snapshot_of_template", ref)
		w.do("PATCH", "/v1/snapshots/"+ref, `{"expiresInSeconds":1}`).fails(http.StatusConflict, "snapshot_of_template", ref)
	}
	w.do("POST", pathOf(id)+"/snapshots", `{"name":"built","replace":true}`).fails(http.StatusConflict, "snapshot_of_template", "built")
	w.do("GET", "/v1/snapshots/built", "").Is(http.StatusOK)
}

func pathOf(id string) string { return base + "/" + id }

func TestSnapshotRetention(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	take := func(body string) map[string]any {
		t.Helper()
		return w.do("POST", pathOf(id)+"/snapshots", body).Is(http.StatusCreated).Object()
	}
	first := take(`{"name":"first","pinned":true}`)
	if first["pinned"] != true || first["expiresAt"] != nil {
		t.Errorf("pinned: %v", first)
	}
	if got := take(`{"ttl":60,"keepLast":3}`); got["expiresAt"] == nil || got["pinned"] != false {
		t.Errorf("with an end: %v", got)
	}
	last := take(`{"keep_last":1}`)
	if got := list(w.do("GET", "/v1/snapshots", "").Is(http.StatusOK).Object()["snapshots"]); len(got) != 2 || got[0]["id"] != last["id"] || got[1]["id"] != first["id"] {
		t.Errorf("kept %v", got)
	}
	change := func(ref, body string) answer { return w.do("PATCH", "/v1/snapshots/"+ref, body) }
	if got := change("first", `{"pinned":false,"expiresInSeconds":60}`).Is(http.StatusOK).Object(); got["pinned"] != false || got["expiresAt"] == nil {
		t.Errorf("changed: %v", got)
	}
	if got := change("first", `{"expiresInSeconds":0}`).Is(http.StatusOK).Object(); got["pinned"] != false || got["expiresAt"] != nil {
		t.Errorf("changed again: %v", got)
	}
	change("none", `{"pinned":true}`).fails(http.StatusNotFound, "snapshot_not_found", "none")
	change("first", `{"name":"other"}`).fails(http.StatusBadRequest, "unknown_field", "name")
	w.do("POST", pathOf(id)+"/snapshots", `{"keepLast":0}`).fails(http.StatusBadRequest, "invalid_request", "keepLast")
}

func TestRestore(t *testing.T) {
	w := newWorld(t)
	id, other := w.create(`{}`), w.create(`{}`)
	restore := func(id, body string) answer { return w.do("POST", pathOf(id)+"/restore", body) }
	w.do("POST", pathOf(id)+"/snapshots", `{"name":"clean"}`).Is(http.StatusCreated)
	w.do("POST", pathOf(id)+"/snapshots", `{"name":"files","memory":false}`).Is(http.StatusCreated)
	for _, body := range []string{``, `{}`, `{"undo":false}`, `{"snapshot":"clean","undo":true}`} {
		restore(id, body).fails(http.StatusBadRequest, "invalid_request", "undo")
	}
	restore(id, `{"undo":true}`).fails(http.StatusNotFound, "undo_not_found", id)
	restore(id, `{"snapshot":"none"}`).fails(http.StatusNotFound, "snapshot_not_found", "none")
	restore(other, `{"snapshot":"clean"}`).fails(http.StatusBadRequest, "snapshot_of_other", "another")
	restore(id, `{"snapshot":"files","mode":"memory"}`).fails(http.StatusBadRequest, "snapshot_without_memory", "files")
	restore("inobody", `{"snapshot":"clean"}`).fails(http.StatusNotFound, "sandbox_not_found", "inobody")
	restore("inobody", `{}`).fails(http.StatusNotFound, "sandbox_not_found", "inobody")

	done := restore(id, `{"snapshot":"clean"}`).Is(http.StatusOK).Object()
	undo, _ := done["undo"].(string)
	if sb, _ := done["sandbox"].(map[string]any); sb["id"] != id || undo == "" {
		t.Errorf("restored: %v", done)
	}
	if kept := w.do("GET", "/v1/snapshots/"+undo, "").Is(http.StatusOK).Object(); kept["undo"] != true || kept["sandbox"] != id {
		t.Errorf("what it was before: %v", kept)
	}
	if done := restore(id, `{"undo":true,"discard":true}`).Is(http.StatusOK).Object(); done["undo"] != nil {
		t.Errorf("discarded: %v", done)
	}
	restore(id, `{"snapshot_id":"clean","memory":false}`).Is(http.StatusOK)
}

// TestSnapshotsOfOthers: to a key of role own, those of other keys are not there, and
// their names are free. A key that sees them names them by their ids.
func TestSnapshotsOfOthers(t *testing.T) {
	w := newWorld(t)
	id := w.createAs(apitest.FullKey)
	snap := w.DoAs(apitest.FullKey, "POST", pathOf(id)+"/snapshots", `{"name":"theirs"}`).Is(http.StatusCreated).Object()["id"].(string)
	for _, ref := range []string{"theirs", snap} {
		answer{w.DoAs(apitest.OwnKey, "PATCH", "/v1/snapshots/"+ref, `{"pinned":true}`)}.fails(http.StatusNotFound, "snapshot_not_found", ref)
		for _, method := range []string{"GET", "DELETE"} {
			answer{w.DoAs(apitest.OwnKey, method, "/v1/snapshots/"+ref, "")}.fails(http.StatusNotFound, "snapshot_not_found", ref)
		}
		answer{w.DoAs(apitest.OwnKey, "POST", base, `{"snapshot":"`+ref+`"}`)}.fails(http.StatusNotFound, "snapshot_not_found", ref)
	}
	mine := w.createAs(apitest.OwnKey)
	answer{w.DoAs(apitest.OwnKey, "POST", pathOf(mine)+"/restore", `{"snapshot":"theirs"}`)}.fails(http.StatusNotFound, "snapshot_not_found", "theirs")
	answer{w.DoAs(apitest.OwnKey, "POST", base, `{"template":"`+snap+`"}`)}.fails(http.StatusNotFound, "snapshot_not_found", snap)
	if got := list(w.DoAs(apitest.OwnKey, "GET", "/v1/snapshots", "").Is(http.StatusOK).Object()["snapshots"]); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
	w.do("GET", "/v1/snapshots/theirs", "").fails(http.StatusNotFound, "snapshot_not_found", "theirs")
	w.do("GET", "/v1/snapshots/"+snap, "").Is(http.StatusOK)
	w.do("POST", base, `{"snapshot":"theirs"}`).fails(http.StatusNotFound, "snapshot_not_found", "theirs")
	w.do("POST", base, `{"snapshot":"`+snap+`"}`).Is(http.StatusCreated)
	own := w.createAs(apitest.OwnKey)
	same := w.DoAs(apitest.OwnKey, "POST", pathOf(own)+"/snapshots", `{"name":"theirs","replace":true}`).Is(http.StatusCreated).Object()["id"]
	for key, want := range map[string]any{apitest.OwnKey: same, apitest.FullKey: snap} {
		if got := w.DoAs(key, "GET", "/v1/snapshots/theirs", "").Is(http.StatusOK).Object()["id"]; got != want {
			t.Errorf("the name stands for %v, want %v", got, want)
		}
	}
	if got := list(w.DoAs(apitest.OwnKey, "GET", "/v1/snapshots", "").Is(http.StatusOK).Object()["snapshots"]); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
}

// TestFork: there is a result for each child.
func TestFork(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"metadata":{"a":"b"}}`)
	children := list(w.do("POST", pathOf(id)+"/fork", `{"count":4,"timeoutSeconds":77}`).Is(http.StatusCreated).Object()["children"])
	if len(children) != 4 {
		t.Fatalf("%v", children)
	}
	for i, c := range children[:3] {
		sb := c["sandbox"].(map[string]any)
		if sb["id"] == id || sb["timeoutSeconds"] != 77.0 || sb["token"] == nil || sb["metadata"].(map[string]any)["a"] != "b" || c["error"] != nil {
			t.Errorf("child %d is %v", i, c)
		}
	}
	if last := children[3]; last["sandbox"] != nil || last["status"] != float64(http.StatusTooManyRequests) || last["error"].(map[string]any)["code"] != "too_many_sandboxes" {
		t.Errorf("the last child is %v", last)
	}
	if got := list(w.do("POST", pathOf(id)+"/fork", ``).Is(http.StatusCreated).Object()["children"]); len(got) != 1 {
		t.Errorf("without a count: %v", got)
	}
	w.do("POST", pathOf(id)+"/fork", `{"count":101}`).fails(http.StatusBadRequest, "fork_count_invalid", "101")
	w.do("POST", pathOf(id)+"/fork", `{"count":0}`).fails(http.StatusBadRequest, "invalid_request", "count")
}
