package store_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// filled returns the path of a closed database of 40 sandboxes.
func filled(t *testing.T) string {
	t.Helper()
	path := newPath(t)
	s := open(t, path)
	for i := range 40 {
		commit(t, s, record("box"+string(rune('A'+i)), 1), lines(1, strings.Repeat("x", 500)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestInspect(t *testing.T) {
	path := filled(t)
	found, err := store.Inspect(t.Context(), path)
	if err != nil || len(found.Sandboxes) != 40 || len(found.Problems) > 0 {
		t.Fatalf("%d records, problems %v, %v", len(found.Sandboxes), found.Problems, err)
	}
	for name, c := range map[string]struct{ statement, sandbox, text string }{
		"no JSON":       {`UPDATE sandboxes SET data = '{' WHERE id = 'boxA'`, "boxA", "decode record"},
		"a later form":  {`UPDATE sandboxes SET version = 9 WHERE id = 'boxA'`, "boxA", "form 9"},
		"another state": {`UPDATE sandboxes SET state = 'paused' WHERE id = 'boxA'`, "boxA", "in the row of boxA, paused"},
		"a log entry":   {`UPDATE events SET data = 'x' WHERE sandbox = 'boxB'`, "boxB", "decode log entry"},
		"no sandbox":    {`PRAGMA foreign_keys = 0; DELETE FROM sandboxes WHERE id = 'boxA'`, "", "events row 1 belongs to a sandbox that has no record"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			shell(t, path, c.statement)
			found, err := store.Inspect(t.Context(), path)
			if err != nil || len(found.Problems) != 1 || found.Problems[0].Sandbox != c.sandbox || !strings.Contains(found.Problems[0].Text, c.text) {
				t.Errorf("problems %q, %v; want one of %q that says %q", found.Problems, err, c.sandbox, c.text)
			}
		})
	}
}

// TestInspectVolumes finds volumes, and none in a database that is older than
// they are.
func TestInspectVolumes(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	want := store.Volume{ID: "vol1", Name: "shared", CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC), DiskMiB: 70}
	if err := errors.Join(s.AddVolume(t.Context(), want), s.Close()); err != nil {
		t.Fatal(err)
	}
	found, err := store.Inspect(t.Context(), path)
	if err != nil || len(found.Problems) > 0 || !slices.Equal(found.Volumes, []store.Volume{want}) {
		t.Errorf("%+v, %v; want %+v", found, err, want)
	}
	shell(t, path, `ALTER TABLE volumes DROP COLUMN disk`)
	want.DiskMiB = 0
	found, err = store.Inspect(t.Context(), path)
	if err != nil || len(found.Problems) > 0 || !slices.Equal(found.Volumes, []store.Volume{want}) {
		t.Errorf("without limits: found %+v, %v", found, err)
	}
	shell(t, path, `DROP TABLE volumes`)
	found, err = store.Inspect(t.Context(), path)
	if err != nil || len(found.Problems) > 0 || len(found.Volumes) > 0 {
		t.Errorf("an older database: %+v, %v; want nothing", found, err)
	}
}

// TestInspectParts finds where it is not kept as it is who needs what.
func TestInspectParts(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	cp := lifecycle.Checkpoint{ID: "image", Mode: lifecycle.Memory, Stack: []string{"layer"}}
	sb := record("box", 1)
	sb.Record.Checkpoint = &cp
	if err := errors.Join(s.CommitSnapshot(t.Context(), store.Snapshot{ID: "snap", Checkpoint: cp}, sb, nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ statement, want string }{
		{`SELECT 1`, ""},
		{`DELETE FROM parts WHERE part = 'image' AND holder = 'snap'`, "image is not held for snap, which needs it"},
		{`INSERT INTO parts VALUES ('image', 'snap'), ('other', 'box')`, "other is held for box, which does not need it"},
		{`DROP TABLE parts`, ""},
	} {
		shell(t, path, c.statement)
		found, err := store.Inspect(t.Context(), path)
		var got string
		for _, p := range found.Problems {
			got += p.Text
		}
		if err != nil || got != c.want {
			t.Errorf("after %s: %q, %v, want %q", c.statement, got, err, c.want)
		}
	}
}

// TestInspectDamagedPages overwrites pages: something is always said, and
// nothing breaks.
func TestInspectDamagedPages(t *testing.T) {
	const page = 4096
	path := filled(t)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range len(sound) / page {
		data := append([]byte(nil), sound...)
		for i := range data[n*page : (n+1)*page] {
			data[n*page+i] = byte(rng.Uint32())
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if found, err := store.Inspect(t.Context(), path); err == nil && len(found.Problems) == 0 {
			t.Errorf("nothing is wrong with %d random bytes for page %d", page, n)
		}
	}
}

func TestInspectWhatIsNotThere(t *testing.T) {
	path := newPath(t)
	if _, err := store.Inspect(t.Context(), path); err == nil {
		t.Error("a database that does not exist was inspected")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
}

func TestInspectNewerDatabase(t *testing.T) {
	path := filled(t)
	shell(t, path, `PRAGMA user_version = 99`)
	_, err := store.Inspect(t.Context(), path)
	wantError(t, err, errdef.Unsupported, "database_too_new")
}
