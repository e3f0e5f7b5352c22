package v1

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// importing is a request to import a file.
func importing(query, file string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/imports"+query, strings.NewReader(file))
	r.Header.Set("X-API-Key", goodKey)
	return r
}

// TestExportAndImport moves a sandbox from one server to another.
func TestExportAndImport(t *testing.T) {
	from, to := newWorld(t), newWorld(t)
	id := from.create(`{"metadata":{"a":"b"},"timeout":60}`)
	e := from.do("GET", base+"/"+id+"/export", "").fails(http.StatusConflict, "not_paused", "only a paused one")
	if contextOf(e)["state"] != "running" {
		t.Errorf("context %v", e["context"])
	}
	from.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	file := from.do("GET", base+"/"+id+"/export", "")
	if file.Status != http.StatusOK || file.Header.Get("Content-Type") != bundle.ContentType || file.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("exported with %d %v: %s", file.Status, file.Header, file.Body)
	}
	if head := from.do("HEAD", base+"/"+id+"/export", ""); head.Status != http.StatusOK || head.Body != "" {
		t.Errorf("HEAD: %d %q", head.Status, head.Body)
	}

	a := to.send(importing("", file.Body))
	got := a.Is(http.StatusCreated).Object()
	if got["id"] != id || got["state"] != "paused" || got["metadata"].(map[string]any)["a"] != "b" || a.Header.Get("Location") != base+"/"+id {
		t.Errorf("imported as %s, at %s", a.Body, a.Header.Get("Location"))
	}
	if actors := to.Fake.Actors; actors[len(actors)-1] != apitest.Actor {
		t.Errorf("imported by %q", actors)
	}
	to.send(importing("", file.Body)).fails(http.StatusConflict, "sandbox_exists", id)
	if other := to.send(importing("?newId=true", file.Body)).Is(http.StatusCreated).Object()["id"]; other == id {
		t.Error("it did not get a new id")
	}
	for _, body := range []string{"", "{}", file.Body[:len(file.Body)-1], file.Body + "x", strings.Replace(file.Body, `"a":"b"`, `"a":"c"`, 1)} {
		to.send(importing("?newId=true", body)).fails(http.StatusBadRequest, "import_damaged", "not a whole")
	}
	for query, code := range map[string]string{"?newId=maybe": "invalid_request", "?mode=disk": "invalid_request", "?id=x": "unknown_field"} {
		to.send(importing(query, file.Body)).fails(http.StatusBadRequest, code, "")
	}
}

// TestImportOnce: with an idempotency key, an import that is sent again is the
// same sandbox, and another import is refused.
func TestImportOnce(t *testing.T) {
	w := newWorld(t)
	export := func(body string) string {
		id := w.create(body)
		w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
		return w.do("GET", base+"/"+id+"/export", "").Body
	}
	file, other := export(`{"metadata":{"a":"b"}}`), export(`{"metadata":{"a":"c"}}`)
	send := func(key, query, body string) answer {
		r := importing(query, body)
		r.Header.Set("Idempotency-Key", key)
		return w.send(r)
	}
	id := send("a", "?newId=true", file).Is(http.StatusCreated).Object()["id"]
	if again := send("a", "?newId=true", file).Is(http.StatusCreated).Object()["id"]; again != id {
		t.Errorf("a second import made %v beside %v", again, id)
	}
	if again := send("b", "?newId=true", file).Is(http.StatusCreated).Object()["id"]; again == id {
		t.Error("two keys made one sandbox")
	}
	send("a", "?newId=true", other).fails(http.StatusUnprocessableEntity, "idempotency_key_reused", "")
	send("a", "?newId=true&mode=filesystem", file).fails(http.StatusUnprocessableEntity, "idempotency_key_reused", "")
	send("b c", "?newId=true", file).fails(http.StatusBadRequest, "invalid_request", "Idempotency-Key")
}

// TestExportIsCutOff: an export that cannot go on is no whole file, and its
// connection ends in the middle.
func TestExportIsCutOff(t *testing.T) {
	cut := make(chan struct{})
	close(cut)
	released := make(chan struct{})
	w := newWorld(t, func(o *Options) {
		o.Sandboxes = cutting{o.Sandboxes.(*apitest.Fake), cut, released}
	})
	id := w.create(`{}`)
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	server := httptest.NewServer(w.HTTP)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+base+"/"+id+"/export", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", goodKey)
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("an export that was cut off looks like a whole one")
	}
	select {
	case <-released:
	case <-time.After(time.Minute):
		t.Error("the export was not released")
	}
}

// cutting is a supervisor whose exports are cut off from the beginning.
type cutting struct {
	*apitest.Fake
	cut, released chan struct{}
}

func (c cutting) Export(ctx context.Context, id string) (*supervisor.Export, error) {
	e, err := c.Fake.Export(ctx, id)
	if err != nil {
		return nil, err
	}
	write := e.Write
	e.Cut, e.Release = c.cut, func() { close(c.released) }
	e.Write = func(w io.Writer) error {
		for {
			if err := write(w); err != nil {
				return err
			}
		}
	}
	return e, nil
}
