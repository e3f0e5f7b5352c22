package supervisor

import (
	"database/sql"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// oldState returns a copy of a state directory that an older server made. That of
// schema version 1 is of the first server there was: its rules for ports are by
// number, and its layers have no listings.
func oldState(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	statements, err := os.ReadFile(filepath.Join(dir, "db.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(string(statements)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The sandboxes of every old state: one ran when the server went, two were
// paused, the second without memory, and one had ended.
var oldNames = []string{"awake", "asleep", "disk", "ended"}

// TestUpgrade has this server take over what an older one left: what ran runs on,
// what slept wakes with what it had, and nothing else has changed.
func TestUpgrade(t *testing.T) {
	for _, c := range []struct {
		name  string
		alive bool
		// What the counters say when they are asked once more.
		awake, asleep, disk int64
	}{
		{"with its runtime", true, 1, 3, 1},
		{"after a reboot", false, 2, 3, 1}, // back to its last checkpoint
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := oldState(t, "state1")
			ids := idsIn(t, dir)
			machine := fake.NewMachine(bootRecorded)
			if c.alive {
				if _, err := machine.Driver().Start(t.Context(), runtime.Spec{ID: sweep.RuntimeID(ids["awake"], 2)}); err != nil {
					t.Fatal(err)
				}
			}
			s, shut, err := openRecorded(t.Context(), dir, machine)
			if err != nil {
				t.Fatal(err)
			}
			if alive := record(t, s, ids["awake"]).State == lifecycle.Running; alive != c.alive {
				t.Errorf("what ran runs: %t", alive)
			}
			for name, want := range map[string]int64{"awake": c.awake, "asleep": c.asleep, "disk": c.disk} {
				checkOld(t, s, ids[name], want)
			}
			if _, err := s.Get(t.Context(), ids["ended"]); err == nil && record(t, s, ids["ended"]).State != lifecycle.Terminated {
				t.Error("what had ended is back")
			}
			secret, err := s.o.Store.Secret(t.Context(), "tokens")
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(secret); got != "071f56e462426ea8e23a8174cb22436e425a302fcea8cb79d1ceb19a2bbdb119" {
				t.Errorf("the secret is %s: tokens are no longer good", got)
			}
			if err := shut(); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkOld checks a sandbox of an old state, and has it wake and sleep once more.
func checkOld(t *testing.T, s *Supervisor, id string, want int64) {
	t.Helper()
	sb, err := s.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Config.Env["A"] != "1" || !sb.Config.Secure || sb.Config.WakePolicy(8080, "/") != lifecycle.Ignore || sb.Config.Limits.MemoryMiB != 512 {
		t.Errorf("its configuration is %+v", sb.Config)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if n, _, err := count(t.Context(), s, id); err != nil || n != want {
		t.Errorf("%s counts %d, %v; want %d", sb.Config.Metadata["name"], n, err, want)
	}
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if n, _, err := count(t.Context(), s, id); err != nil || n != want+1 {
		t.Errorf("%s counts %d after a pause, %v; want %d", sb.Config.Metadata["name"], n, err, want+1)
	}
}

// idsIn returns the ids of the sandboxes of a state, by name, and checks what
// else its store holds.
func idsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	// Before there were roles a key could do everything.
	if keys, err := st.Keys(t.Context()); err != nil || len(keys) != 1 || keys[0].Name != "first" || keys[0].Role != store.RoleAdmin ||
		keys[0].Limits != (store.KeyLimits{}) || !keys[0].ExpiresAt.IsZero() || !keys[0].LastUsedAt.IsZero() {
		t.Errorf("keys are %+v, %v", keys, err)
	}
	all, err := st.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, sb := range all {
		ids[sb.Config.Metadata["name"]] = sb.ID
	}
	for _, name := range oldNames {
		events, err := st.Events(t.Context(), ids[name], 0, 100)
		if err != nil || len(events) < 3 || events[0].Type != lifecycle.EntryCreated {
			t.Errorf("%s has the events %+v, %v", name, events, err)
		}
	}
	return ids
}
