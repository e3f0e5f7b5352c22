package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
)

// TestUpkeepOfTemplates: a tag without its snapshot is a fault, and a snapshot of a build
// that no template has is said to be nobody's, unless what a server before knew of
// templates is not in the database yet.
func TestUpkeepOfTemplates(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), databaseIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	for n, snap := range []store.Snapshot{
		{ID: "sresult", Config: store.Config{Build: "b1"}}, {ID: "sstep", Config: store.Config{Build: "b1"}},
		{ID: "sleft", Config: store.Config{Build: "b2"}}, {ID: "staken"},
	} {
		err = errors.Join(err, st.CommitSnapshot(t.Context(), snap, store.Sandbox{ID: "box", Rev: int64(n)}, nil))
	}
	err = errors.Join(err, st.PutTemplate(t.Context(), store.Template{
		ID: "t1", Key: "k1", Name: "app", Cache: []store.StepResult{{Snapshot: "sstep"}, {Snapshot: "sgone"}, {}},
		Tags: map[string]store.Tag{"default": {Snapshot: "sresult"}, "v1": {Snapshot: "slost"}},
	}), st.Close())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if ok, err := Fsck(t.Context(), &out, UpkeepOptions{StateDir: dir, JSON: true}); ok || err != nil {
		t.Errorf("fsck: %v, %v", ok, err)
	}
	var report fsckReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, f := range report.Faults {
		if strings.Contains(f.What, "tag") || f.Kind == "unowned" {
			said = append(said, f.What)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "slost") || !strings.Contains(said[0], "app") || !strings.Contains(said[0], "v1") {
		t.Errorf("fsck says of templates %q", said)
	}
	for _, want := range []string{"sleft", ""} {
		out.Reset()
		if ok, err := GC(t.Context(), &out, UpkeepOptions{StateDir: dir, JSON: true}); err != nil || !ok {
			t.Fatalf("gc: %v, %v", ok, err)
		}
		var answer struct{ Items []garbage }
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, g := range answer.Items {
			got += g.ID
			if g.Removed || g.Left == "" {
				t.Errorf("it says %+v", g)
			}
		}
		if got != want {
			t.Errorf("gc finds %q, want %q", got, want)
		}
		if err := os.MkdirAll(filepath.Join(recipesIn(dir), "templates"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// Nothing but the store knows which snapshots a key has when it asks for a template.
func TestATemplateTakesNoNameOfASnapshot(t *testing.T) {
	w := newWorld(t)
	w.wants(w.ask(testKey, "POST", "/sandboxes/"+w.create(true)+"/snapshots", `{"name":"mine"}`), 201, "")
	for _, name := range []string{"mine", "mine:v1"} {
		w.wants(w.ask(testKey, "POST", "/v3/templates", `{"name":"`+name+`"}`), 409, "snapshot_exists")
	}
	w.wants(w.ask(testKey, "POST", "/v3/templates", `{"name":"other"}`), 202, "")
}
