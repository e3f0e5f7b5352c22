package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/golden"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/storetest"
)

// opened remembers where a store is, for reopening.
type opened struct {
	*store.SQL
	path string
}

func TestContract(t *testing.T) {
	openAt := func(t *testing.T, path string) store.Store { return opened{open(t, path), path} }
	storetest.Run(t,
		func(t *testing.T) store.Store { return openAt(t, newPath(t)) },
		func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return openAt(t, s.(opened).path)
		},
		func(t *testing.T, s store.Store) store.Store { return openAt(t, s.(opened).path) })
}

var at = time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC)

func record(id string, generation int64) store.Sandbox {
	return store.Sandbox{
		ID:     id,
		Record: lifecycle.Record{State: lifecycle.Running, Generation: generation, CreatedAt: at},
	}
}

func lines(generation int64, details ...string) []lifecycle.Entry {
	var all []lifecycle.Entry
	for _, d := range details {
		all = append(all, lifecycle.Entry{Type: lifecycle.EntryRunning, At: at, Generation: generation, Detail: d})
	}
	return all
}

func commit(t *testing.T, s store.Store, sb store.Sandbox, entries []lifecycle.Entry) {
	t.Helper()
	sb.Rev = revision(t.Context(), s, sb.ID)
	if err := s.Commit(t.Context(), sb, entries); err != nil {
		t.Fatal(err)
	}
}

// revision returns that of a record; 0 if there is none.
func revision(ctx context.Context, s store.Store, id string) int64 {
	all, _ := s.Sandboxes(ctx)
	for _, sb := range all {
		if sb.ID == id {
			return sb.Rev
		}
	}
	return 0
}

// shell runs statements as somebody with a sqlite3 shell would.
func shell(t *testing.T, path string, statements ...string) {
	t.Helper()
	db := shellDB(t, path)
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func shellDB(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// wantError checks err's class, code and that its text holds every word.
func wantError(t *testing.T, err error, class errdef.Class, code string, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok {
		t.Fatalf("got error %v, want class %s, code %s", err, class, code)
	}
	if e.Class != class || e.Code != code {
		t.Errorf("got class %s, code %s, want %s, %s: %v", e.Class, e.Code, class, code, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

func TestFilesArePrivate(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(path string) error
	}{
		{"new", func(string) error { return nil }},
		{"open to all before", func(path string) error {
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return err
			}
			return os.Chmod(path, 0o666) // whatever the umask
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := newPath(t)
			if err := c.before(path); err != nil {
				t.Fatal(err)
			}
			s := open(t, path)
			commit(t, s, record("a", 1), nil)
			for _, name := range []string{path, path + "-wal", path + "-shm"} {
				info, err := os.Stat(name)
				if err != nil {
					t.Fatal(err)
				}
				if got := info.Mode().Perm(); got != 0o600 {
					t.Errorf("%s has mode %o, want 600", filepath.Base(name), got)
				}
			}
		})
	}
}

func TestPathIsTakenLiterally(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?mode=ro#%41&.db")
	s := open(t, path)
	commit(t, s, record("a", 1), nil)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestCloseLeavesOneFile(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	commit(t, s, record("a", 1), lines(1, "one"))
	if _, err := s.Sandboxes(t.Context()); err != nil { // a reader's connection
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != 1 {
		t.Errorf("after Close there are %v, %v; want the database only", names, err)
	}
}

func TestOpenNewerDatabase(t *testing.T) {
	path := newPath(t)
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	shell(t, path, `CREATE TABLE future (x)`, `PRAGMA user_version = 99`)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	_, err = store.Open(t.Context(), path)
	wantError(t, err, errdef.Unsupported, "database_too_new", path, "version 99", "versions up to ", "newer drowse")
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the refused database was changed, or %v", err)
	}
}

func TestOpenWhatIsNoDatabase(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a database\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(t.Context(), text)
	wantError(t, err, errdef.Invalid, "not_a_database", text, "not a database")

	_, err = store.Open(t.Context(), dir)
	wantError(t, err, errdef.Unavailable, "store_unavailable", dir)

	_, err = store.Open(t.Context(), filepath.Join(dir, "missing", "drowse.db"))
	wantError(t, err, errdef.Unavailable, "store_unavailable", "no such file or directory")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not wrap its cause", err)
	}
}

func TestOpenDamagedDatabase(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	for range 50 {
		commit(t, s, record("a", 1), lines(1, strings.Repeat("x", 4000)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var root, page int64 // the page at which the events begin, and the size of one
	db := shellDB(t, path)
	err := db.QueryRow(`SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'events'`).Scan(&root, &page)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, int(page)), (root-1)*page); err != nil {
		t.Fatal(err)
	}

	s = open(t, path)
	_, err = s.Events(t.Context(), "", 0, 1000)
	wantError(t, err, errdef.Internal, "database_damaged", path, "backup")
}

// TestFailsHalfWay makes the second log entry of a commit fail inside of
// SQLite.
func TestFailsHalfWay(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	commit(t, s, record("a", 1), lines(1, "one"))
	shell(t, path, `CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.data LIKE '%poison%'
		BEGIN SELECT RAISE(ABORT, 'refused'); END`)

	second := record("a", 2)
	second.Rev = 1
	err := s.Commit(t.Context(), second, lines(2, "two", "poison"))
	if err == nil || !strings.Contains(err.Error(), "commit sandbox a") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Commit = %v, want the trigger's refusal", err)
	}
	wantGenerations(t, s, "a", 1, 1)
	commit(t, s, record("a", 3), lines(3, "three"))
	wantGenerations(t, s, "a", 3, 1, 3)
}

// wantGenerations checks the generation of a sandbox's record and those of its
// log entries.
func wantGenerations(t *testing.T, s store.Store, id string, want int64, entries ...int64) {
	t.Helper()
	all, err := s.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].ID != id || all[0].Record.Generation != want {
		t.Errorf("records %+v, want %s at generation %d", all, id, want)
	}
	events, err := s.Events(t.Context(), id, 0, len(entries)+1)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != len(entries) {
		t.Fatalf("%d entries or more, want %d", len(events), len(entries))
	}
	for i, e := range events {
		if e.Generation != entries[i] {
			t.Errorf("entry %d is of generation %d, want %d", i, e.Generation, entries[i])
		}
	}
}

func TestUnknownForm(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	commit(t, s, record("a", 1), lines(1, "one"))
	shell(t, path, `UPDATE sandboxes SET version = 7`, `UPDATE events SET version = 8`)

	_, err := s.Sandboxes(t.Context())
	wantError(t, err, errdef.Unsupported, "form_unknown", "sandbox a", "form 7", "form 1")
	_, err = s.Events(t.Context(), "a", 0, 1)
	wantError(t, err, errdef.Unsupported, "form_unknown", "log entry 1 of sandbox a", "form 8", "form 1")
}

func TestUnreadableForm(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	commit(t, s, record("a", 1), nil)
	shell(t, path, `UPDATE sandboxes SET data = '{'`)
	if _, err := s.Sandboxes(t.Context()); err == nil || !strings.Contains(err.Error(), "decode sandbox a") {
		t.Errorf("Sandboxes = %v, want an error that names the sandbox", err)
	}
}

// TestColumns pins what a database holds, because older drowses and people
// with a sqlite3 shell read it.
func TestColumns(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	local := at.In(time.FixedZone("", 3600))
	sb := record("a", 1)
	sb.Record.CreatedAt = local
	entry := lines(1, "<one>")[0]
	entry.At = local
	commit(t, s, sb, []lifecycle.Entry{entry})
	db := shellDB(t, path)
	defer db.Close()

	const stamp = "2026-02-03T04:05:06.000000007Z"
	var version int
	var state, created, data string
	err := db.QueryRow(`SELECT version, state, created_at, data FROM sandboxes WHERE id = 'a'`).Scan(&version, &state, &created, &data)
	if err != nil || version != 1 || state != "running" || created != stamp || !json.Valid([]byte(data)) {
		t.Errorf("sandbox: version %d, state %s, created_at %s, data %s, %v", version, state, created, data, err)
	}
	if !strings.Contains(data, `"createdAt":"`+stamp+`"`) {
		t.Errorf("the record's times are not in UTC: %s", data)
	}
	var kind, when string
	err = db.QueryRow(`SELECT version, type, at, data FROM events WHERE sandbox = 'a'`).Scan(&version, &kind, &when, &data)
	want := `{"type":"running","at":"` + stamp + `","generation":1,"from":"","to":"","detail":"<one>"}`
	if err != nil || version != 1 || kind != "running" || when != stamp || data != want {
		t.Errorf("event: version %d, type %s, at %s, data %s, %v", version, kind, when, data, err)
	}
}

// TestFirstForm reads a record as the first drowse wrote it.
func TestFirstForm(t *testing.T) {
	data, err := os.ReadFile("testdata/sandbox_form1.json")
	if err != nil {
		t.Fatal(err)
	}
	path := newPath(t)
	s := open(t, path)
	db := shellDB(t, path)
	defer db.Close()
	if _, err := db.Exec(`INSERT INTO sandboxes (id, version, state, created_at, data) VALUES ('sb1', 1, 'paused', '', ?)`, string(data)); err != nil {
		t.Fatal(err)
	}

	all, err := s.Sandboxes(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("Sandboxes = %v, %v", all, err)
	}
	r := all[0].Record
	if r.State != lifecycle.Paused || r.Checkpoint.ID != "cp1" || len(r.Checkpoint.Stack) != 2 ||
		r.Settings.Timeout != 5*time.Minute || r.Settings.RefreshOnActivity != lifecycle.RefreshOnWork || r.Op.Phase != lifecycle.Resuming || r.Op.Attempt != 2 ||
		!r.PausedAt.Equal(time.Date(2026, 2, 3, 4, 10, 6, 123456789, time.UTC)) {
		t.Errorf("record = %+v", r)
	}
	if c := all[0].Config; c.Template != "base" || c.Limits.MemoryMiB != 512 || c.Env["A"] != "1" || *c.AllowInternet {
		t.Errorf("config = %+v", c)
	}
}

// TestLockedByAnother holds the database from outside for longer than the
// store waits.
func TestLockedByAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("waits five seconds for a lock")
	}
	t.Parallel()
	path := newPath(t)
	s := open(t, path)
	db := shellDB(t, path)
	defer db.Close()
	if _, err := db.Exec(`BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	err := s.Commit(t.Context(), record("a", 1), nil)
	wantError(t, err, errdef.Unavailable, "store_unavailable", "other program")
	if all, err := s.Sandboxes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("while locked, Sandboxes = %v, %v; want none", all, err)
	}
	if _, err := db.Exec(`ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	commit(t, s, record("a", 2), lines(2, "two"))
	wantGenerations(t, s, "a", 2, 2)
}

// TestDeletedFile: a store whose file is gone must not come back empty.
func TestDeletedFile(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	if err := s.Commit(t.Context(), record("a", 1), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Sandboxes(t.Context()) // the first read, on a new connection
	wantError(t, err, errdef.Unavailable, "store_unavailable", path)
	if _, ok := errors.AsType[*sqlite.Error](err); !ok {
		t.Errorf("%v does not wrap SQLite's error", err)
	}
}

// TestEventForm: an entry of the event log is stored with all that it has, as
// every program of this form reads it.
func TestEventForm(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	var entry lifecycle.Entry
	golden.Fill(t, &entry)
	commit(t, s, record("a", 1), []lifecycle.Entry{entry})
	db := shellDB(t, path)
	defer db.Close()
	var data string
	if err := db.QueryRow(`SELECT data FROM events WHERE sandbox = 'a'`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join("testdata", "event_form1.json")
	golden.Hold(t, kept, []byte(data))
	if _, err := db.Exec(`UPDATE events SET data = ?`, string(golden.Read(t, kept))); err != nil {
		t.Fatal(err)
	}
	got, err := s.Events(t.Context(), "a", 0, 2)
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Entry, entry) {
		t.Errorf("%v; read as %+v, want %+v", err, got, entry)
	}
}
