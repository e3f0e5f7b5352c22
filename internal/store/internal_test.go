package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"modernc.org/sqlite"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

func openInternal(t *testing.T, path string) *SQL {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestPragmas: a typing error in a connection's parameters goes unnoticed
// otherwise, until a power cut.
func TestPragmas(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000",
	} {
		var got string
		if err := s.writer.QueryRow(`PRAGMA ` + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("writer: %s = %s, %v; want %s", pragma, got, err, want)
		}
	}
	if _, err := s.reader.Exec(`DELETE FROM keys`); err == nil {
		t.Error("a reader's connection can write")
	}
}

func TestMigrations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drowse.db")
	s := openInternal(t, path)
	ctx := t.Context()
	steps := append(slices.Clone(migrations), `CREATE TABLE second (x); INSERT INTO second VALUES (1)`)
	broken := append(slices.Clone(steps), `CREATE TABLE third (x); no such statement`)

	has, last := len(migrations), len(broken)
	if err := s.migrate(ctx, broken); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("schema version %d", last)) {
		t.Fatalf("migrate = %v, want an error that names version %d", err, last)
	}
	wantSchema(t, s, has, 0)
	for range 2 { // the second time there is nothing to do
		if err := s.migrate(ctx, steps); err != nil {
			t.Fatal(err)
		}
		wantSchema(t, s, has+1, 1)
	}
}

// wantSchema checks the schema's version and how many of the tables that
// TestMigrations makes there are.
func wantSchema(t *testing.T, s *SQL, version, tables int) {
	t.Helper()
	var gotVersion, gotTables int
	if err := s.writer.QueryRow(`PRAGMA user_version`).Scan(&gotVersion); err != nil {
		t.Fatal(err)
	}
	err := s.writer.QueryRow(`SELECT count(*) FROM sqlite_schema WHERE name IN ('second', 'third')`).Scan(&gotTables)
	if err != nil || gotVersion != version || gotTables != tables {
		t.Errorf("version %d with %d new tables, %v; want %d with %d", gotVersion, gotTables, err, version, tables)
	}
}

// TestVolumesFromBeforeLimits has volumes be there when they get limits: what the
// server allows holds for them.
func TestVolumesFromBeforeLimits(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	v := Volume{ID: "vol1", Name: "old", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := s.AddVolume(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "ALTER TABLE volumes") })
	if _, err := s.writer.Exec(fmt.Sprintf(`ALTER TABLE volumes DROP COLUMN disk; PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Volumes(t.Context()); err != nil || !slices.Equal(all, []Volume{v}) {
		t.Errorf("volumes are %+v, %v", all, err)
	}
}

// TestSnapshotsFromBeforeKeysHadNames has snapshots be there when names become those of
// keys: each has the key of its maker.
func TestSnapshotsFromBeforeKeysHadNames(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	want := []Snapshot{{ID: "s1", Name: "x", Key: "one"}, {ID: "s2", Key: "one"}, {ID: "s3", Name: "y"}}
	for n, snap := range want {
		if err := s.CommitSnapshot(t.Context(), snap, Sandbox{ID: "source", Rev: int64(n)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "snapshots_of_keys") })
	old := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "CREATE TABLE snapshots ") })
	if _, err := s.writer.Exec(`ALTER TABLE snapshots RENAME TO new;` + migrations[old] +
		`; INSERT INTO snapshots (id, name, version, created_at, data) SELECT id, name, version, created_at, data FROM new; DROP TABLE new;` +
		fmt.Sprintf(`PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	// Of later steps.
	if _, err := s.writer.Exec(`ALTER TABLE snapshots ADD COLUMN disk_mib INTEGER NOT NULL DEFAULT 0; ALTER TABLE snapshots ADD COLUMN owner TEXT NOT NULL DEFAULT ''`); err != nil {
		t.Fatal(err)
	}
	got, err := s.Snapshots(t.Context())
	if err != nil || len(got) != len(want) {
		t.Fatalf("snapshots are %+v, %v", got, err)
	}
	for i, snap := range got {
		if snap.ID != want[i].ID || snap.Name != want[i].Name || snap.Key != want[i].Key {
			t.Errorf("snapshot %d is %+v, want %+v", i, snap, want[i])
		}
	}
	again := Snapshot{ID: "s4", Name: "x", Key: "two"}
	if err := s.CommitSnapshot(t.Context(), again, Sandbox{ID: "source", Rev: int64(len(want))}, nil); err != nil {
		t.Errorf("another key's snapshot of the same name: %v", err)
	}
}

// TestClaimsOfRecordsFromBefore has records be there when what is unique and counted
// becomes a constraint: they have the names, the idempotency keys and the use that they
// would have got, and where one was given twice, the youngest sandbox has it.
func TestClaimsOfRecordsFromBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drowse.db")
	s := openInternal(t, path)
	made := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	limits := Limits{MemoryMiB: 100, DiskMiB: 1000}
	of := func(id string, state lifecycle.State, minutes int, as *Idempotency) Sandbox {
		sb := Sandbox{ID: id, Config: Config{Key: "k", Name: "n", Limits: limits, Idempotency: as}}
		sb.Record.State, sb.Record.CreatedAt = state, made.Add(time.Duration(minutes)*time.Minute)
		return sb
	}
	failed := of("failed", lifecycle.Terminated, 5, &Idempotency{Key: "free"})
	failed.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.CreateFailed}
	waking := of("waking", lifecycle.Paused, 6, &Idempotency{Key: "twice", At: made})
	waking.Config.Name, waking.Record.Op = "own", &lifecycle.Operation{Phase: lifecycle.Resuming}
	for n, sb := range []Sandbox{
		of("ended", lifecycle.Terminated, 1, &Idempotency{Key: "twice", At: made.Add(time.Hour)}),
		of("older", lifecycle.Paused, 2, nil), of("younger", lifecycle.Running, 3, nil), failed, waking,
	} {
		sb.Config.Metadata = map[string]string{"n": fmt.Sprint(n)}
		_, err := s.writer.Exec(`INSERT INTO sandboxes (id, version, state, created_at, data) VALUES (?, 1, ?, ?, ?)`,
			sb.ID, string(sb.Record.State), stamp(sb.Record.CreatedAt), must(encode(inUTC(sb))))
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.writer.Exec(`INSERT INTO sandboxes (id, version, state, created_at, data) VALUES ('broken', 1, 'paused', '', '{')`); err != nil {
		t.Fatal(err)
	}
	snap := Snapshot{ID: "snap", Key: "k", Config: Config{Limits: limits}, Checkpoint: lifecycle.Checkpoint{Mode: lifecycle.Memory}}
	if _, err := s.writer.Exec(`INSERT INTO snapshots (id, key, version, created_at, data) VALUES ('snap', 'k', 1, '', ?)`, must(encode(snap))); err != nil {
		t.Fatal(err)
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "ADD COLUMN rev") })
	undo := `DROP TRIGGER tombstone_added; DROP TRIGGER tombstone_changed; DROP TRIGGER tombstone_removed; DROP INDEX ends_of_sandboxes; DROP INDEX names_of_sandboxes; DROP INDEX idempotency_of_sandboxes; DROP INDEX use_of_keys; ALTER TABLE snapshots DROP COLUMN disk_mib;`
	for _, column := range []string{"rev", "key", "name", "idempotency", "bound_at", "running", "present", "memory_mib", "disk_mib"} {
		undo += "ALTER TABLE sandboxes DROP COLUMN " + column + ";"
	}
	if _, err := s.writer.Exec(undo + fmt.Sprintf(`PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	rows, err := collect(t.Context(), s.reader, func(rows *sql.Rows) (row [3]string, err error) {
		err = rows.Scan(&row[0], &row[1], &row[2])
		return row, err
	}, `SELECT id, key || ' ' || ifnull(name, '-') || ' ' || ifnull(idempotency, '-') || ' ' || rev, running || ' ' || present || ' ' || memory_mib || ' ' || disk_mib FROM sandboxes ORDER BY created_at, id`)
	if err != nil {
		t.Fatal(err)
	}
	want := [][3]string{
		{"broken", " - - 1", "0 0 0 0"},
		{"ended", "k - twice 1", "0 0 0 0"},
		{"older", "k - - 1", "0 1 0 1000"},
		{"younger", "k n - 1", "1 1 100 1000"},
		{"failed", "k - - 1", "0 0 0 0"},
		{"waking", "k own - 1", "1 1 100 1000"},
	}
	if !slices.Equal(rows, want) {
		t.Errorf("claims are %v, want %v", rows, want)
	}
	var mib int
	if err := s.reader.QueryRow(`SELECT disk_mib FROM snapshots`).Scan(&mib); err != nil || mib != 1100 {
		t.Errorf("the snapshot counts for %d MiB, %v", mib, err)
	}
}

func must(text string, err error) string {
	if err != nil {
		panic(err)
	}
	return text
}

// TestTombstonesFromBefore has sandboxes be there when those that have ended are counted.
func TestTombstonesFromBefore(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	end := func(id string, op *lifecycle.Operation) Sandbox {
		sb := Sandbox{ID: id, Config: Config{Key: "k"}}
		sb.Record = lifecycle.Record{State: lifecycle.Terminated, Op: op, Tombstone: &lifecycle.Tombstone{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
		return sb
	}
	for _, sb := range []Sandbox{end("a", nil), end("b", nil), end("ends", &lifecycle.Operation{}), {ID: "lives", Config: Config{Key: "k"}}} {
		if err := s.Commit(t.Context(), sb, nil); err != nil {
			t.Fatal(err)
		}
	}
	counted := func() (text string) {
		if err := s.writer.QueryRow(`SELECT key || ' ' || sandboxes || ' ' || bytes FROM tombstones`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "CREATE TABLE tombstones") })
	want := counted()
	if _, err := s.writer.Exec(`DROP TRIGGER tombstone_added; DROP TRIGGER tombstone_changed; DROP TRIGGER tombstone_removed; DROP TABLE tombstones; DROP INDEX ends_of_sandboxes;
		ALTER TABLE sandboxes DROP COLUMN ended_at; ALTER TABLE sandboxes DROP COLUMN bytes;
		INSERT INTO sandboxes (id, key, version, state, created_at, data) VALUES ('broken', 'k', 1, 'terminated', '', '{');` + fmt.Sprintf(`PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	if got := counted(); got != want {
		t.Errorf("counted are %q, want %q", got, want)
	}
	later := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "PRIMARY KEY (key, server)") })
	if _, err := s.writer.Exec(migrations[later]); err != nil { // CommitEnd needs it
		t.Fatal(err)
	}
	if got := counted(); got != want {
		t.Errorf("counted for each server are %q, want %q", got, want)
	}
	if err := s.Forget(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	sb := end("ends", nil)
	sb.Rev = 1
	if _, err := s.CommitEnd(t.Context(), sb, nil); err != nil {
		t.Fatal(err)
	}
	if got := counted(); !strings.HasPrefix(got, "k 2 ") {
		t.Errorf("with one forgotten and one more that has ended, counted are %q", got)
	}
}

// TestPartsFromBefore has records and snapshots be there when it is first kept who needs
// which layers and images.
func TestPartsFromBefore(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	memory := func(id string, stack ...string) lifecycle.Checkpoint {
		return lifecycle.Checkpoint{ID: id, Mode: lifecycle.Memory, Stack: stack}
	}
	asleep, files, empty, other := memory("i1", "l1", "l2"), memory("i2", "l1").Files(), memory("i4").Files(), memory("i3", "l3")
	sb := Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &asleep}}
	if err := s.CommitSnapshot(t.Context(), Snapshot{ID: "snap", Checkpoint: other}, sb, nil); err != nil {
		t.Fatal(err)
	}
	sb.Rev = 1
	sb.Record.Op = &lifecycle.Operation{Restore: &lifecycle.Restore{Checkpoint: other}}
	dead := lifecycle.Record{State: lifecycle.Terminated, Checkpoint: &asleep}
	for _, sb := range []Sandbox{sb, {ID: "files", Record: lifecycle.Record{Checkpoint: &files}}, {ID: "empty", Record: lifecycle.Record{Checkpoint: &empty}}, {ID: "new"}, {ID: "dead", Record: dead}} {
		if err := s.Commit(t.Context(), sb, nil); err != nil {
			t.Fatal(err)
		}
	}
	rows := func() []string {
		all, err := collect(t.Context(), s.reader, scanText, `SELECT part || ' ' || holder FROM parts ORDER BY part, holder`)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := []string{"i1 source", "i3 snap", "i3 source", "l1 files", "l1 source", "l2 source", "l3 snap", "l3 source"}
	if got := rows(); !slices.Equal(got, want) {
		t.Errorf("committed are %q, want %q", got, want)
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "CREATE TABLE parts") })
	if _, err := s.writer.Exec(`DROP TRIGGER parts_of_sandbox; DROP TRIGGER parts_of_snapshot; DROP TABLE parts;
		INSERT INTO sandboxes (id, key, version, state, created_at, data) VALUES ('broken', 'k', 1, 'paused', '', '{');` + fmt.Sprintf(`PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	if got := rows(); !slices.Equal(got, want) {
		t.Errorf("migrated are %q, want %q", got, want)
	}
}

// TestEventsFromBeforeKeys has events be there when they get the key of their
// sandbox.
func TestEventsFromBeforeKeys(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	for _, key := range []string{"one", ""} {
		sb := Sandbox{ID: "of " + key, Config: Config{Key: key}}
		if err := s.Commit(t.Context(), sb, []lifecycle.Entry{{Type: lifecycle.EntryCreated}}); err != nil {
			t.Fatal(err)
		}
	}
	want, err := s.Events(t.Context(), "", 0, 10)
	if err != nil || len(want) != 2 || want[0].Key != "one" {
		t.Fatalf("events are %+v, %v", want, err)
	}
	before := slices.IndexFunc(migrations, func(step string) bool { return strings.Contains(step, "ALTER TABLE events") })
	if _, err := s.writer.Exec(fmt.Sprintf(`DROP INDEX events_of_key; ALTER TABLE events DROP COLUMN key; PRAGMA user_version = %d`, before)); err != nil {
		t.Fatal(err)
	}
	if err := s.migrate(t.Context(), migrations[:before+1]); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Events(t.Context(), "", 0, 10); err != nil || !slices.Equal(got, want) {
		t.Errorf("events are %+v, %v; want %+v", got, err, want)
	}
}

func TestMigrationsAreNumbered(t *testing.T) {
	file := &fstest.MapFile{Data: []byte(`SELECT 1`)}
	defer func() {
		if recover() == nil {
			t.Error("a gap in the numbers was accepted")
		}
	}()
	mustLoad(fstest.MapFS{"migrations/0001_a.sql": file, "migrations/0003_c.sql": file})
}

func TestCommitReadOnly(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	if _, err := s.writer.Exec(`PRAGMA query_only = 1`); err != nil {
		t.Fatal(err)
	}
	err := s.Commit(t.Context(), Sandbox{ID: "a"}, nil)
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != errdef.Unavailable || e.Code != "store_unavailable" || !strings.Contains(e.Remedy, "writable") {
		t.Errorf("Commit = %v, want store_unavailable", err)
	}
	if _, ok := errors.AsType[*sqlite.Error](err); !ok {
		t.Errorf("%v does not wrap SQLite's error", err)
	}
}

// TestCommitGivesUpItsTurn: a context ends the wait behind another writer.
func TestCommitGivesUpItsTurn(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	other, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Commit(ctx, Sandbox{ID: "a"}, nil) }()
	for s.writer.Stats().WaitCount == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v, want %v", err, context.Canceled)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Sandboxes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("Sandboxes = %v, %v; want none", all, err)
	}
}

// unstored are fields that must not be stored.
var unstored = map[string]bool{"store.Proxy.Password": true, "store.Sandbox.Rev": true, "store.Sandbox.Light": true, "store.Sandbox.Durability": true, "store.Sandbox.Unreplicated": true, "store.Sandbox.Owner": true}

// TestFieldsAreNamed: what is stored must not change because a Go field was
// renamed.
func TestFieldsAreNamed(t *testing.T) {
	seen := map[reflect.Type]bool{reflect.TypeFor[time.Time](): true, reflect.TypeFor[json.RawMessage](): true}
	for _, stored := range []reflect.Type{reflect.TypeFor[Sandbox](), reflect.TypeFor[lifecycle.Entry]()} {
		checkNames(t, stored, seen)
	}
}

func checkNames(t *testing.T, typ reflect.Type, seen map[reflect.Type]bool) {
	if seen[typ] {
		return
	}
	seen[typ] = true
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		checkNames(t, typ.Elem(), seen)
	case reflect.Struct:
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "-" && unstored[typ.String()+"."+field.Name] {
				continue
			}
			if name == "" || name == "-" {
				t.Errorf("%s.%s has no JSON name", typ, field.Name)
			}
			checkNames(t, field.Type, seen)
		}
	}
}

// TestNeverLogs: the package returns errors, and who handles one logs it once.
func TestNeverLogs(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); path == "log" || strings.HasPrefix(path, "log/") {
				t.Errorf("%s: imports %s", fset.Position(spec.Pos()), path)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if prints(n) {
				t.Errorf("%s: writes to the process's output", fset.Position(n.Pos()))
			}
			return true
		})
	}
}

// prints reports whether n is a way to the process's output.
func prints(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		pkg, ok := n.X.(*ast.Ident)
		return ok && (pkg.Name == "fmt" && strings.HasPrefix(n.Sel.Name, "Print") ||
			pkg.Name == "os" && (n.Sel.Name == "Stdout" || n.Sel.Name == "Stderr"))
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.Ident)
		return ok && (f.Name == "print" || f.Name == "println")
	}
	return false
}
