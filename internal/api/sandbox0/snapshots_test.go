package sandbox0

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	id, other := w.claim(""), w.claim("")
	at := all + "/" + id + "/snapshots"
	v := data(w.Do("POST", at, `{"name":"kept","expires_at":"2027-01-01T00:00:00Z"}`), 201)
	snap := v["id"].(string)
	if v["sandbox_id"] != id || v["name"] != "kept" || v["expires_at"] != "2027-01-01T00:00:00.000000Z" {
		t.Errorf("created: %v", v)
	}
	fails(w.Do("POST", at, `{"name":"kept"}`), http.StatusConflict, "conflict", "kept")
	fails(w.Do("POST", at, `{"name":"base"}`), http.StatusConflict, "conflict", "template")
	fails(w.Do("POST", at, `{"description":"x"}`), http.StatusBadRequest, "bad_request", "description")
	fails(w.Do("POST", at, `{"expires_at":"soon"}`), http.StatusBadRequest, "bad_request", "expires_at")
	data(w.Do("POST", all+"/"+other+"/snapshots", ""), 201)
	list := data(w.Do("GET", at, ""), 200)
	if list["count"] != 1. || list["snapshots"].([]any)[0].(map[string]any)["id"] != snap {
		t.Errorf("listed: %v", list)
	}
	one := base + "/sandbox-rootfs-snapshots/" + snap
	if v := data(w.Do("GET", one, ""), 200); v["id"] != snap {
		t.Errorf("got: %v", v)
	}
	child := w.claim(`{"template":"base","snapshot_id":"` + snap + `"}`)
	if req := w.Fake.Created[len(w.Fake.Created)-1]; req.Snapshot != snap {
		t.Errorf("claimed %s from %+v", child, req)
	}
	fails(w.Do("POST", all+"/"+id+"/rootfs/restore", `{"snapshot_id":"`+snap+`"}`), http.StatusConflict, "conflict", "pause it first")
	data(w.Do("POST", all+"/"+id+"/pause", ""), 200)
	if v := data(w.Do("POST", all+"/"+id+"/rootfs/restore", `{"snapshot_id":"`+snap+`"}`), 200); v["status"] != "paused" || v["snapshot_id"] != snap || v["sandbox_id"] != id {
		t.Errorf("restored: %v", v)
	}
	if list := data(w.Do("GET", at, ""), 200); list["count"] != 1. {
		t.Errorf("after a restore: %v", list)
	}
	fails(w.Do("POST", all+"/"+id+"/rootfs/restore", `{"snapshot_id":"nowhere"}`), http.StatusNotFound, "not_found")
	data(w.Do("DELETE", one, ""), 200)
	fails(w.Do("GET", one, ""), http.StatusNotFound, "not_found")
}

// TestSnapshotsOfOtherKeys are not there for a key of role own.
func TestSnapshotsOfOtherKeys(t *testing.T) {
	w := newWorld(t)
	snap := data(w.Do("POST", all+"/"+w.claim("")+"/snapshots", ""), 201)["id"].(string)
	mine := data(w.DoAs(apitest.OwnKey, "POST", all, ""), 201)["sandbox_id"].(string)
	data(w.DoAs(apitest.OwnKey, "POST", all+"/"+mine+"/pause", ""), 200)
	one := base + "/sandbox-rootfs-snapshots/"
	for _, ask := range []func(ref string) apitest.Answer{
		func(ref string) apitest.Answer { return w.DoAs(apitest.OwnKey, "GET", one+ref, "") },
		func(ref string) apitest.Answer { return w.DoAs(apitest.OwnKey, "DELETE", one+ref, "") },
		func(ref string) apitest.Answer {
			return w.DoAs(apitest.OwnKey, "POST", all, `{"snapshot_id":"`+ref+`"}`)
		},
		func(ref string) apitest.Answer {
			return w.DoAs(apitest.OwnKey, "POST", all+"/"+mine+"/rootfs/restore", `{"snapshot_id":"`+ref+`"}`)
		},
	} {
		theirs, none := ask(snap), ask("snone")
		fails(theirs, http.StatusNotFound, "not_found")
		if strings.ReplaceAll(theirs.Body, snap, "snone") != none.Body {
			t.Errorf("%s and %s", theirs.Body, none.Body)
		}
	}
}

// TestNamesOfSnapshots: a name is that of a key. It takes none from another key, and
// none from a template that the key itself has built.
func TestNamesOfSnapshots(t *testing.T) {
	w := newWorld(t)
	at := all + "/" + w.claim("") + "/snapshots"
	for _, name := range []string{"app", "app:v1", "app:v2", "app:v3", "broken:x"} {
		fails(w.Do("POST", at, `{"name":"`+name+`"}`), http.StatusConflict, "conflict", "built")
	}
	one := data(w.Do("POST", at, `{"name":"mine"}`), 201)["id"]
	fails(w.Do("POST", at, `{"name":"mine"}`), http.StatusConflict, "conflict")
	mine := data(w.DoAs(apitest.OwnKey, "POST", all, ""), 201)["sandbox_id"].(string)
	for _, name := range []string{"mine", "app", "app:v2", "python"} {
		data(w.DoAs(apitest.OwnKey, "POST", all+"/"+mine+"/snapshots", `{"name":"`+name+`"}`), 201)
	}
	if got := data(w.Do("GET", base+"/sandbox-rootfs-snapshots/mine", ""), 200)["id"]; got != one {
		t.Errorf("the name is that of %v, want %v", got, one)
	}
	fails(w.Do("GET", base+"/sandbox-rootfs-snapshots/python", ""), http.StatusNotFound, "not_found")
	fails(w.Do("POST", all, `{"template":"python"}`), http.StatusNotFound, "not_found")
	data(w.DoAs(apitest.OwnKey, "POST", all, `{"template":"python"}`), 201)
}

// TestFork answers with a child that sleeps, and leaves the source as it is.
func TestFork(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":{"ttl":600}}`)
	v := data(w.Do("POST", all+"/"+id+"/fork", `{"config":{"ttl":60,"hard_ttl":3600},"memory":true}`), 201)
	child := v["sandbox"].(map[string]any)
	if v["source_sandbox_id"] != id || child["status"] != "paused" || child["paused"] != true || child["hard_expires_at"] == nil || child["id"] == id {
		t.Errorf("forked: %v", v)
	}
	sb := w.Fake.Sandboxes[child["id"].(string)]
	if s := sb.Record.Settings; s.Timeout != time.Minute || s.MaxLifetime != time.Hour || sb.Record.Checkpoint.Mode != lifecycle.Memory {
		t.Errorf("child %+v", sb.Record)
	}
	if v := w.sandbox(id); v["status"] != "running" {
		t.Errorf("the source is %v", v)
	}
	fails(w.Do("POST", all+"/"+id+"/fork", `{"config":{"ttl":60,"hard_ttl":30}}`), http.StatusBadRequest, "bad_request", "hard_ttl")
}

func TestVolumes(t *testing.T) {
	w := newWorld(t)
	at := base + "/sandboxvolumes"
	v := data(w.Do("POST", at, `{"backend":"s0fs","access_mode":"RWX"}`), 201)
	id := v["id"].(string)
	if v["backend"] != "s0fs" || v["access_mode"] != "RWX" {
		t.Errorf("created: %v", v)
	}
	for body, field := range map[string]string{`{"backend":"s3"}`: "backend", `{"access_mode":"RWO"}`: "access_mode", `{"snapshot_id":"x"}`: "snapshot_id", `{"default_posix_uid":7}`: "default_posix_uid"} {
		fails(w.Do("POST", at, body), http.StatusBadRequest, "bad_request", field)
	}
	if list := w.Do("GET", at, "").Is(200).Object()["data"].([]any); len(list) != 1 {
		t.Errorf("listed: %v", list)
	}
	data(w.Do("GET", at+"/"+id, ""), 200)
	w.claim(`{"mounts":[{"sandboxvolume_id":"` + id + `","mount_point":"/data"}]}`)
	if m := w.Fake.Created[0].Config.Volumes; len(m) != 1 || m[0].Name != id || m[0].Path != "/data" {
		t.Errorf("mounted %+v", m)
	}
	fails(w.DoAs(apitest.OwnKey, "POST", all, `{"mounts":[{"sandboxvolume_id":"`+id+`","mount_point":"/data"}]}`), http.StatusForbidden, "forbidden")
	fails(w.Do("DELETE", at+"/"+id+"?force=perhaps", ""), http.StatusBadRequest, "bad_request", "force")
	fails(w.Do("GET", at+"/nowhere", ""), http.StatusNotFound, "not_found")
	for _, path := range []string{"/fork", "/snapshots", "/files"} {
		fails(w.Do("POST", at+"/"+id+path, ""), http.StatusNotImplemented, "not_supported", path)
	}
}

func TestTemplates(t *testing.T) {
	w := newWorld(t)
	v := data(w.Do("GET", base+"/templates", ""), 200)
	first := v["templates"].([]any)[0].(map[string]any)
	if v["count"] == 0. || first["template_id"] != "base" || first["spec"] == nil {
		t.Errorf("listed: %v", v)
	}
	data(w.Do("GET", base+"/templates/base", ""), 200)
	fails(w.Do("GET", base+"/templates/nowhere", ""), http.StatusNotFound, "not_found")
	fails(w.Do("POST", base+"/templates", "{}"), http.StatusMethodNotAllowed, "bad_request")
}
