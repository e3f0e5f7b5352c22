package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// furnish stores something of each kind.
func furnish(t *testing.T, s store.Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Secret(ctx, "tokens")
	must(err)
	for n := range 3 { // all at the same time: they come back in this order
		id := fmt.Sprint("k", 3-n)
		must(s.AddKey(ctx, store.Key{ID: id, Name: "key " + id, Hash: [32]byte{byte(n)}, Role: store.RoleOwn, CreatedAt: at, Limits: store.KeyLimits{DiskMiB: 1 << 40}}))
		must(s.AddSSHKey(ctx, store.SSHKey{ID: "ssh" + id, Key: id, PublicKey: "ssh-ed25519 A" + id, CreatedAt: at}))
		must(s.PutSecret(ctx, store.Secret{ID: "sec" + id, Key: id, Name: "n", Rule: store.SecretRule{Env: "E"}, Sealed: []byte{0, 1, 255}, CreatedAt: at}))
		must(s.AddVolume(ctx, store.Volume{ID: "v" + id, Name: "volume " + id, CreatedAt: at, DiskMiB: n}))
		must(s.PutWebhook(ctx, store.Webhook{ID: "w" + id, URL: "https://example.com", Secret: "s", CreatedAt: at, Cursor: int64(n)}))
	}
	sb := record("a", 1)
	sb.Config.Key, sb.Config.Name, sb.Config.Limits.DiskMiB = "k1", "named \x01 ünïcode", 7
	sb.Config.Idempotency = &store.Idempotency{Key: "once", At: at}
	sb.Record.Checkpoint = &lifecycle.Checkpoint{ID: "cp", Mode: lifecycle.Memory, Stack: []string{"l1", "l2"}}
	must(s.Commit(ctx, sb, lines(1, "one", "two")))
	sb.Rev = 1
	must(s.CommitSnapshot(ctx, store.Snapshot{ID: "s2", Name: "second", Key: "k1", CreatedAt: at, Sandbox: "a", Checkpoint: *sb.Record.Checkpoint}, sb, lines(2, "three")))
	sb.Rev = 2
	must(s.CommitSnapshot(ctx, store.Snapshot{ID: "s1", Key: "k1", CreatedAt: at, Sandbox: "a", Checkpoint: *sb.Record.Checkpoint}, sb, nil))
	_, err = s.AddContext(ctx, store.CodeContext{ID: "c", Sandbox: "a", Key: "k1", Kind: "repl", CreatedAt: at, End: &store.ContextEnd{}})
	must(err)
	must(s.PutTemplate(ctx, store.Template{ID: "t", Name: "tpl", Key: "k1", CreatedAt: at, UpdatedAt: at, Tags: map[string]store.Tag{}, Builds: []store.Build{{ID: "b", Status: store.BuildRunning, CreatedAt: at}}}))
	must(s.SetTemplateSettings(ctx, "k1", "tpl", store.TemplateSettings{CPUs: 2}, at))
	for _, id := range []string{"dead", "forgotten"} {
		dead := record(id, 1)
		dead.Config.Key = "k1"
		dead.Record.State = lifecycle.Terminated
		dead.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Killed, At: at}
		_, err = s.CommitEnd(ctx, dead, lines(1, "end"))
		must(err)
	}
	must(s.Forget(ctx, "forgotten")) // and with it the newest event
}

// contents returns all that a store has.
func contents(t *testing.T, s store.Store) map[string]any {
	t.Helper()
	all := map[string]any{}
	read := func(what string, value any, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if v := reflect.ValueOf(value); v.Len() == 0 {
			t.Fatalf("there are no %s", what)
		}
		all[what] = value
	}
	ctx := t.Context()
	boxes, err := s.Sandboxes(ctx)
	read("sandboxes", boxes, err)
	events, err := s.Events(ctx, "", 0, 100)
	read("events", events, err)
	keys, err := s.Keys(ctx)
	read("keys", keys, err)
	sshKeys, err := s.SSHKeys(ctx)
	read("SSH keys", sshKeys, err)
	used, err := s.AllSecrets(ctx)
	read("used secrets", used, err)
	volumes, err := s.Volumes(ctx)
	read("volumes", volumes, err)
	snapshots, err := s.Snapshots(ctx)
	read("snapshots", snapshots, err)
	templates, err := s.Templates(ctx)
	read("templates", templates, err)
	contexts, err := s.Contexts(ctx, "a")
	read("contexts", contexts, err)
	hooks, err := s.Webhooks(ctx)
	read("webhooks", hooks, err)
	secret, err := s.Secret(ctx, "tokens")
	read("secret", secret, err)
	return all
}

// same compares what two stores have.
func same(t *testing.T, got, want map[string]any) {
	t.Helper()
	for what := range want {
		if !reflect.DeepEqual(got[what], want[what]) {
			t.Errorf("%s are\n%+v, want\n%+v", what, got[what], want[what])
		}
	}
}

// TestCopies takes all that there is from SQLite to PostgreSQL and back.
func TestCopies(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	s := open(t, path)
	furnish(t, s)
	want := contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	url := pgtest.Shared(t).NewDatabase(t)
	pg := connect(t, url)
	if err := pg.CheckEmpty(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := pg.Secret(ctx, "tokens"); err != nil { // as after a start that failed
		t.Fatal(err)
	}
	if err := store.Import(ctx, pg.SQL, path); err != nil {
		t.Fatal(err)
	}
	same(t, contents(t, pg), want)
	wantError(t, pg.CheckEmpty(ctx), errdef.Exists, "store_not_empty", "empty")

	back := filepath.Join(t.TempDir(), "copy.db")
	if err := store.Copy(ctx, url, back); err != nil {
		t.Fatal(err)
	}
	if found, err := store.Inspect(ctx, back); err != nil || len(found.Problems) > 0 {
		t.Errorf("the copy has faults: %v, %v", found.Problems, err)
	}
	again := open(t, back)
	same(t, contents(t, again), want)

	// Both go on alike: with numbers that no event had, and with what is counted.
	for _, s := range []store.Store{pg, again} {
		sb := record("b", 1)
		if err := s.Commit(ctx, sb, lines(1, "new")); err != nil {
			t.Fatal(err)
		}
		last, err := s.LastEvents(ctx, "", 1)
		if err != nil || len(last) != 1 || last[0].Seq != 6 {
			t.Errorf("the next event is %+v, %v; want number 6: 5 were given", last, err)
		}
		sb = record("c", 1)
		sb.Config.Key, sb.Config.Name, sb.Config.Limits.DiskMiB = "k1", "named \x01 ünïcode", 7
		if err := s.Commit(ctx, sb, nil); !store.IsNameTaken(err) {
			t.Errorf("a name that is taken: %v", err)
		}
		if needed, err := s.Needed(ctx, "l1", ""); err != nil || !needed {
			t.Errorf("a layer of the sandbox is needed: %v, %v", needed, err)
		}
		if err := s.UpdateKey(ctx, "k2", store.KeyChange{Name: "other"}); err != nil {
			t.Error(err)
		}
	}

	err := store.Import(ctx, pg.SQL, path)
	wantError(t, err, errdef.Exists, "store_not_empty", "empty")
}

// TestCopyIsCutOff: nothing is there of a copy that was not finished.
func TestCopyIsCutOff(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	furnish(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The last table cannot be filled.
	url := pgtest.Shared(t).NewDatabase(t)
	pg := connect(t, url)
	pgtest.SQL(t, url, `ALTER TABLE parts ADD CHECK (part <> 'l2')`)
	if err := store.Import(t.Context(), pg.SQL, path); err == nil {
		t.Fatal("a copy that cannot be finished has no error")
	}
	if err := pg.CheckEmpty(t.Context()); err != nil {
		t.Errorf("after a copy that failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Import(ctx, pg.SQL, path); !errors.Is(err, context.Canceled) {
		t.Errorf("Import = %v, want %v", err, context.Canceled)
	}
}
