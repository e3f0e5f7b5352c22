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
	_, err = s.PutReplica(ctx, store.Replica{Sandbox: "a", Checkpoint: "cp", Index: "i", Bytes: 1 << 40, At: at})
	must(err)
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

// contents returns all that a store has, whoever of several servers has it.
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
	for i := range boxes {
		boxes[i].Owner = ""
	}
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
	for i := range volumes {
		volumes[i].Owner = ""
	}
	read("volumes", volumes, err)
	snapshots, err := s.Snapshots(ctx)
	for i := range snapshots {
		snapshots[i].Owner = ""
	}
	read("snapshots", snapshots, err)
	templates, err := s.Templates(ctx)
	for i := range templates {
		templates[i].Owner = ""
	}
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
	if err := store.Import(ctx, pg.SQL, path, "srv"); err != nil {
		t.Fatal(err)
	}
	same(t, contents(t, pg), want)
	wantError(t, pg.CheckEmpty(ctx), errdef.Exists, "store_not_empty", "empty")

	back := filepath.Join(t.TempDir(), "copy.db")
	if err := store.Copy(ctx, url, "srv", store.Branch{}, back); err != nil {
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
		if _, err := s.UpdateKey(ctx, "k2", store.KeyChange{Name: "other"}); err != nil {
			t.Error(err)
		}
	}

	err := store.Import(ctx, pg.SQL, path, "srv")
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
	if err := store.Import(t.Context(), pg.SQL, path, "srv"); err == nil {
		t.Fatal("a copy that cannot be finished has no error")
	}
	if err := pg.CheckEmpty(t.Context()); err != nil {
		t.Errorf("after a copy that failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Import(ctx, pg.SQL, path, "srv"); !errors.Is(err, context.Canceled) {
		t.Errorf("Import = %v, want %v", err, context.Canceled)
	}
}

// TestCopyOfOneServer: of a database that several servers have, the copy for one of them has
// what that one has, and what all have together.
func TestCopyOfOneServer(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	s := open(t, path)
	furnish(t, s)
	want := contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	url := pgtest.Shared(t).NewDatabase(t)
	one := connect(t, url)
	if err := store.Import(ctx, one.SQL, path, "one"); err != nil {
		t.Fatal(err)
	}
	same(t, contents(t, copyOf(t, url, "one")), want) // which is going to claim it
	early := connect(t, url)                          // whoever comes first, what was imported is of the server that it is for
	if _, err := early.Claim(ctx, store.Server{ID: "early", Place: "there"}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Claim(ctx, store.Server{ID: "one", Place: "here"}, 0); err != nil {
		t.Fatal(err)
	}
	if sb, err := one.Sandbox(ctx, "a"); err != nil || sb.Owner != "one" {
		t.Errorf("what was imported is of %q, %v; want it to be of the server that it was for", sb.Owner, err)
	}

	two := connect(t, url)
	if _, err := two.Claim(ctx, store.Server{ID: "two", Place: "there"}, 0); err != nil {
		t.Fatal(err)
	}
	sb := record("theirs", 1)
	sb.Config.Key, sb.Config.Limits.DiskMiB = "k1", 7
	sb.Record.Checkpoint = &lifecycle.Checkpoint{ID: "their cp", Mode: lifecycle.Memory, Stack: []string{"their layer"}}
	for _, err := range []error{
		two.Commit(ctx, sb, lines(1, "theirs")),
		two.AddVolume(ctx, store.Volume{ID: "their volume", Name: "theirs", CreatedAt: at}),
		two.PutTemplate(ctx, store.Template{ID: "their template", Name: "theirs", Key: "k1", Tags: map[string]store.Tag{}, Builds: []store.Build{{ID: "their build", CreatedAt: at}}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sb.Rev = 1
	if err := two.CommitSnapshot(ctx, store.Snapshot{ID: "their snapshot", Key: "k1", CreatedAt: at, Sandbox: "theirs", Checkpoint: *sb.Record.Checkpoint}, sb, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := two.AddContext(ctx, store.CodeContext{ID: "theirs", Sandbox: "theirs", Key: "k1", CreatedAt: at}); err != nil {
		t.Fatal(err)
	}

	if _, err := two.PutReplica(ctx, store.Replica{Sandbox: "theirs", Checkpoint: "their cp", At: at}); err != nil {
		t.Fatal(err)
	}

	copied := copyOf(t, url, "one")
	same(t, contents(t, copied), want) // without owners
	sb = record("a", 9)
	sb.Rev = 3
	if err := copied.Commit(ctx, sb, nil); err != nil {
		t.Errorf("a change of what was copied: %v", err)
	}

	copied = copyOf(t, url, "two")
	boxes, err := copied.Sandboxes(ctx)
	if err != nil || len(boxes) != 1 || boxes[0].ID != "theirs" || boxes[0].Owner != "" {
		t.Errorf("sandboxes of the other are %+v, %v", boxes, err)
	}
	if events, err := copied.Events(ctx, "", 0, 10); err != nil || len(events) != 1 {
		t.Errorf("events of the other are %+v, %v", events, err)
	}
	for part, want := range map[string]bool{"their layer": true, "l1": false} {
		if needed, err := copied.Needed(ctx, part, ""); err != nil || needed != want {
			t.Errorf("%s is needed: %v, %v", part, needed, err)
		}
	}
	if replicas, err := copied.Replicas(ctx, ""); err != nil || len(replicas) != 0 { // another database makes its own
		t.Errorf("there are replicas: %+v, %v", replicas, err)
	}
	keys, err := copied.Keys(ctx)
	if !reflect.DeepEqual(keys, want["keys"]) {
		t.Errorf("keys are %+v, %v; want all", keys, err)
	}
}

// copyOf returns a copy of what a server has in the database of a URL.
func copyOf(t *testing.T, url, server string) store.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := store.Copy(t.Context(), url, server, store.Branch{}, path); err != nil {
		t.Fatal(err)
	}
	if found, err := store.Inspect(t.Context(), path); err != nil || len(found.Problems) > 0 {
		t.Errorf("the copy for server %s has faults: %v, %v", server, found.Problems, err)
	}
	return open(t, path)
}

// TestImportBesideAnother: a database that another server has come to is refused.
func TestImportBesideAnother(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	s := open(t, path)
	furnish(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	pg := connect(t, pgtest.Shared(t).NewDatabase(t))
	if _, err := pg.Claim(ctx, store.Server{ID: "other"}, 0); err != nil {
		t.Fatal(err)
	}
	wantError(t, store.Import(ctx, pg.SQL, path, "srv"), errdef.Conflict, "store_in_use", "another server")
	if err := pg.CheckEmpty(ctx); err != nil {
		t.Errorf("after an import that was refused: %v", err)
	}
}
