package e2b

import (
	"net/http"
	"strings"
	"testing"
)

func TestVolumes(t *testing.T) {
	w := newWorld(t)
	if a := w.do("GET", "/volumes", "").is(http.StatusOK); len(a.list()) != 0 {
		t.Errorf("no volumes are %s", a.Body)
	}
	made := w.do("POST", "/volumes", `{"name":"data"}`).Is(http.StatusCreated).Object()
	id, token := made["volumeID"].(string), made["token"].(string)
	if made["name"] != "data" || token == "" || len(made) != 3 {
		t.Errorf("made %v", made)
	}
	w.do("POST", "/volumes", `{"name":"data"}`).fails(http.StatusBadRequest, "volume_exists", "data")
	w.do("POST", "/volumes", `{"name":1}`).fails(http.StatusBadRequest, "invalid_request", `"name" must be a string`)
	if list := w.do("GET", "/volumes", "").is(http.StatusOK).list(); len(list) != 1 || list[0]["volumeID"] != id || list[0]["name"] != "data" || list[0]["token"] != nil {
		t.Errorf("listed %v", list)
	}
	if got := w.do("GET", "/volumes/"+id, "").Is(http.StatusOK).Object(); got["token"] != token || got["name"] != "data" {
		t.Errorf("got %v", got)
	}

	sandbox := w.create(`{"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/data"}]}`)
	a := w.do("GET", "/sandboxes/"+sandbox, "").is(http.StatusOK)
	if want := `"volumeMounts":[{"name":"data","path":"/mnt/data"}]`; !strings.Contains(a.Body, want) {
		t.Errorf("details %s, want %s in them", a.Body, want)
	}
	w.do("DELETE", "/volumes/"+id, "").fails(http.StatusConflict, "volume_in_use", sandbox)
	delete(w.Fake.Sandboxes, sandbox)
	w.do("DELETE", "/volumes/"+id, "").Is(http.StatusNoContent)
	for _, method := range []string{"GET", "DELETE"} {
		w.do(method, "/volumes/"+id, "").fails(http.StatusNotFound, "volume_not_found", id)
	}
	if log := w.Log.String(); strings.Contains(log, token) {
		t.Errorf("the token is in the log: %s", log)
	}
}
