package v1

import (
	"net/http"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

func TestVolumes(t *testing.T) {
	w := newWorld(t)
	made := w.do("POST", "/v1/volumes", `{"name":"data","diskMiB":100}`).Is(http.StatusCreated).Object()
	id := made["id"].(string)
	if made["name"] != "data" || made["diskMiB"] != 100.0 || made["createdAt"] != "2026-09-01T12:00:00.123456Z" || !strings.Contains(made["token"].(string), apitest.Tokens()) {
		t.Errorf("made %v", made)
	}
	w.do("POST", "/v1/volumes", `{"name":"data"}`).fails(http.StatusConflict, "volume_exists", "data")
	w.do("POST", "/v1/volumes", `{"name":"other","diskMiB":0}`).fails(http.StatusBadRequest, "invalid_request", "diskMiB")
	w.do("POST", "/v1/volumes", `{}`).fails(http.StatusBadRequest, "invalid_request", `"name" is required`)
	a := w.do("GET", "/v1/volumes", "").Is(http.StatusOK)
	if got := list(a.Object()["volumes"]); len(got) != 1 || got[0]["id"] != id || strings.Contains(a.Body, apitest.Tokens()) {
		t.Errorf("listed %s", a.Body)
	}
	if got := w.do("GET", "/v1/volumes/"+id, "").Is(http.StatusOK).Object(); got["token"] != made["token"] || got["name"] != "data" || got["diskMiB"] != 100.0 {
		t.Errorf("got %v", got)
	}
	empty, mib := int64(0), int64(1<<20)
	for name, c := range map[string]struct {
		uses      *int64
		bytes, at any
	}{
		"empty":   {&empty, 0.0, "2026-09-01T12:00:00.123456Z"},
		"used":    {&mib, float64(mib), "2026-09-01T12:00:00.123456Z"},
		"unknown": {nil, nil, nil},
	} {
		w.Fake.SetVolumeUse(id, c.uses)
		for _, got := range []map[string]any{w.do("GET", "/v1/volumes/"+id, "").Object(), list(w.do("GET", "/v1/volumes", "").Object()["volumes"])[0]} {
			bytes, saysBytes := got["diskBytes"]
			at, saysAt := got["diskMeasuredAt"]
			if bytes != c.bytes || at != c.at || !saysBytes || !saysAt {
				t.Errorf("%s: got %v", name, got)
			}
		}
	}

	sandbox := w.create(`{"volumes":{"/mnt/data":"data"}}`)
	if got := w.sandbox(sandbox)["volumes"].(map[string]any); len(got) != 1 || got["/mnt/data"] != "data" {
		t.Errorf("its volumes are %v", got)
	}
	w.do("DELETE", "/v1/volumes/"+id, "").fails(http.StatusConflict, "volume_in_use", sandbox)
	delete(w.Fake.Sandboxes, sandbox)
	w.do("DELETE", "/v1/volumes/"+id, "").Is(http.StatusNoContent)
	for _, method := range []string{"GET", "DELETE"} {
		w.do(method, "/v1/volumes/"+id, "").fails(http.StatusNotFound, "volume_not_found", id)
	}
	if log := w.Log.String(); strings.Contains(log, apitest.Tokens()) {
		t.Errorf("a token is in the log: %s", log)
	}
}
