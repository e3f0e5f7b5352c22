package store

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// connectInternal connects to the store of a URL and closes it with the test.
func connectInternal(t *testing.T, url string) *SQL {
	t.Helper()
	s, err := Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// columnsOf returns the columns of each table, with whether they must have a value, as a
// query says them.
func columnsOf(t *testing.T, s *SQL, query string) map[string][]string {
	t.Helper()
	type row struct{ table, column string }
	rows, err := collect(t.Context(), s.reader, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.table, &r.column)
		return r, err
	}, query)
	if err != nil || len(rows) == 0 {
		t.Fatalf("%d columns, %v", len(rows), err)
	}
	all := map[string][]string{}
	for _, r := range rows {
		all[r.table] = append(all[r.table], r.column)
	}
	for _, columns := range all {
		slices.Sort(columns)
	}
	return all
}

// TestSchemasAgree: both databases hold the same tables, columns and unique indexes, except
// for what each needs for itself.
func TestSchemasAgree(t *testing.T) {
	lite := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	pg := connectInternal(t, pgtest.Shared(t).NewDatabase(t))

	want := columnsOf(t, lite, `SELECT t.name, c.name || CASE WHEN c."notnull" = 1 OR c.pk > 0 THEN ' must' ELSE '' END || ' ' || c.type
		FROM pragma_table_list t JOIN pragma_table_info(t.name) c WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite_%'`)
	got := columnsOf(t, pg, `SELECT table_name, column_name || CASE WHEN is_nullable = 'NO' THEN ' must' ELSE '' END || ' ' ||
		CASE data_type WHEN 'bigint' THEN 'INTEGER' WHEN 'text' THEN 'TEXT' WHEN 'bytea' THEN 'BLOB' ELSE data_type END
		FROM information_schema.columns WHERE table_schema = 'public' AND column_name <> 'rowid' AND table_name <> 'schema_version'`)
	for _, table := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(got[table], want[table]) {
			t.Errorf("table %s has\n%q in PostgreSQL, and\n%q in SQLite", table, got[table], want[table])
		}
		delete(got, table)
	}
	for table := range got {
		t.Errorf("table %s is in PostgreSQL alone", table)
	}

	unique := columnsOf(t, lite, `SELECT t.name, (SELECT group_concat(c.name, ',') FROM pragma_index_info(i.name) c) FROM pragma_table_list t JOIN pragma_index_list(t.name) i
		WHERE t.schema = 'main' AND i."unique" = 1 AND t.name NOT LIKE 'sqlite_%'`)
	inPG := columnsOf(t, pg, `SELECT c.relname, (SELECT string_agg(a.attname, ',' ORDER BY k.n) FROM unnest(i.indkey::int[]) WITH ORDINALITY k (attnum, n) JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indisunique AND n.nspname = 'public'`)
	unique["events"] = append(unique["events"], "seq") // SQLite makes no index of it
	for i, columns := range unique["ssh_keys"] {       // PostgreSQL's is of a digest
		unique["ssh_keys"][i] = strings.Replace(columns, "key,public_key", "key", 1)
	}
	for table, columns := range unique {
		if !slices.Equal(inPG[table], columns) {
			t.Errorf("what is unique in table %s is %q in PostgreSQL, and %q in SQLite", table, inPG[table], columns)
		}
	}

	for name, columns := range want {
		i := slices.IndexFunc(tables, func(x table) bool { return x.name == name })
		if counted := slices.Contains([]string{"tombstones", "servers", "changes", "offices", "replicas"}, name); i >= 0 == counted {
			t.Errorf("table %s is copied: %v", name, i >= 0)
		}
		if owned := slices.Contains(columns, "owner must TEXT"); owned != slices.ContainsFunc(allOwned, func(x ownedKind) bool { return x.table == name }) || owned && tables[i].own != isOwn {
			t.Errorf("rows of table %s have owners: %v", name, owned)
		}
	}
	collations, err := collect(t.Context(), pg.reader, scanText, `SELECT table_name || '.' || column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'`)
	if err != nil || len(collations) > 0 {
		t.Errorf("these do not sort by their bytes: %q, %v", collations, err)
	}
}

// TestTombstonesOfServersFromBefore has sandboxes of two servers be there when what has ended
// is counted for each, and then be changed, moved and forgotten.
func TestTombstonesOfServersFromBefore(t *testing.T) {
	for name, s := range map[string]*SQL{
		"SQLite":     openInternal(t, filepath.Join(t.TempDir(), "drowse.db")),
		"PostgreSQL": connectInternal(t, pgtest.Shared(t).NewDatabase(t)),
	} {
		counted := func(when string, want ...string) {
			t.Helper()
			got, err := collect(t.Context(), s.reader, scanText, `SELECT key || ' ' || server || ' ' || sandboxes || ' ' || bytes FROM tombstones ORDER BY key, server`)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s, %s: counted are %q, %v; want %q", name, when, got, err, want)
			}
		}
		do := func(queries ...string) {
			t.Helper()
			err := s.write(t.Context(), noKey, func(ctx context.Context, tx *sql.Tx) error {
				for _, query := range queries {
					if _, err := tx.ExecContext(ctx, query); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		step := slices.IndexFunc(s.engine.steps(), func(step string) bool {
			return strings.Contains(step, "CREATE TABLE tombstones") && strings.Contains(step, "PRIMARY KEY (key, server)")
		})
		do(`INSERT INTO sandboxes (id, key, owner, version, state, created_at, data, ended_at, bytes) VALUES
			('a', 'k', 'one', 1, 'terminated', '', '', '1', 10), ('b', 'k', 'one', 1, 'terminated', '', '', '2', 20), ('c', 'k', 'two', 1, 'terminated', '', '', '3', 40),
			('d', 'l', 'one', 1, 'terminated', '', '', '4', 80), ('lives', 'k', 'one', 1, 'running', '', '', NULL, 0)`, `DELETE FROM tombstones`)
		if err := s.write(t.Context(), noKey, func(ctx context.Context, tx *sql.Tx) error { return s.engine.setVersion(ctx, tx, step) }); err != nil {
			t.Fatal(err)
		}
		if err := s.migrate(t.Context(), s.engine.steps()[:step+1]); err != nil {
			t.Fatal(err)
		}
		counted("migrated", "k one 2 30", "k two 1 40", "l one 1 80")
		do(`UPDATE sandboxes SET owner = 'two' WHERE id IN ('b', 'd', 'lives')`)
		counted("moved", "k one 1 10", "k two 2 60", "l two 1 80")
		do(`UPDATE sandboxes SET ended_at = '5', bytes = 160, owner = 'one' WHERE id = 'lives'`, `UPDATE sandboxes SET bytes = 11 WHERE id = 'a'`)
		counted("ended", "k one 2 171", "k two 2 60", "l two 1 80")
		do(`UPDATE sandboxes SET ended_at = NULL, bytes = 0 WHERE id = 'a'`, `DELETE FROM sandboxes WHERE id IN ('lives', 'd')`)
		counted("forgotten", "k two 2 60")
	}
}

// TestReplicasFromBefore has copies be there when they come into one table.
func TestReplicasFromBefore(t *testing.T) {
	for name, s := range map[string]*SQL{
		"SQLite":     openInternal(t, filepath.Join(t.TempDir(), "drowse.db")),
		"PostgreSQL": connectInternal(t, pgtest.Shared(t).NewDatabase(t)),
	} {
		sb := Sandbox{ID: "a"}
		if err := s.CommitSnapshot(t.Context(), Snapshot{ID: "s", Checkpoint: lifecycle.Checkpoint{ID: "cp"}}, sb, nil); err != nil {
			t.Fatal(err)
		}
		steps := s.engine.steps()
		step := func(text string) int {
			return slices.IndexFunc(steps, func(step string) bool { return strings.Contains(step, text) })
		}
		first, _, _ := strings.Cut(steps[step("CREATE TABLE replicas")], "ALTER TABLE servers")
		into := step("RENAME TO sandbox_replicas")
		err := s.write(t.Context(), noKey, func(ctx context.Context, tx *sql.Tx) error {
			for _, query := range []string{
				`DROP TABLE replicas`, first, steps[step("ADD COLUMN offered")], steps[step("CREATE TABLE snapshot_replicas")],
				`INSERT INTO replicas VALUES ('a', 'cp1', 'i1', 7, '2026-01-02T03:04:05.000000000Z', 'two')`,
				`INSERT INTO snapshot_replicas VALUES ('s', 'cp2', 'i2', 8, '2026-01-02T03:04:05.000000000Z')`,
			} {
				if _, err := tx.ExecContext(ctx, query); err != nil {
					return err
				}
			}
			return s.engine.setVersion(ctx, tx, into)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.migrate(t.Context(), steps[:into+2]); err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		want := []Replica{{Sandbox: "a", Checkpoint: "cp1", Index: "i1", Bytes: 7, At: at, Offered: "two"}, {Snapshot: "s", Checkpoint: "cp2", Index: "i2", Bytes: 8, At: at}}
		if got, err := s.Replicas(t.Context(), ""); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: migrated are %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestParametersAreNumbered(t *testing.T) {
	for query, want := range map[string]string{
		`SELECT 1`:                   `SELECT 1`,
		`VALUES (?, ?)`:              `VALUES ($1, $2)`,
		`a = ?1 AND b = ?2 OR c=?1`:  `a = $1 AND b = $2 OR c=$1`,
		`a = ?2 AND b = ?`:           `a = $2 AND b = $3`,
		`SELECT ?`:                   `SELECT $1`,
		`name >= ?2 || ':' LIMIT ?1`: `name >= $2 || ':' LIMIT $1`,
	} {
		for range 2 { // the second time it is known
			if got := numbered(query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
	}
}

// TestPostgresIsToldItsSettings: a typing error in a connection's parameters would go
// unnoticed until a crash.
func TestPostgresIsToldItsSettings(t *testing.T) {
	server := pgtest.Shared(t)
	url := server.NewDatabase(t)
	for _, name := range []string{"synchronous_commit = off", "default_transaction_isolation = 'serializable'", "statement_timeout = 7"} {
		pgtest.SQL(t, url, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+strings.ReplaceAll(name, "'", "''")+`', current_database()); END $$`)
	}
	s := connectInternal(t, url)
	for name, want := range map[string]string{
		"synchronous_commit": "on", "default_transaction_isolation": "read committed", "statement_timeout": "12s",
		"idle_in_transaction_session_timeout": "3s", "lock_timeout": "6s", "application_name": "drowse",
	} {
		var got string
		if err := s.writer.QueryRow(`SELECT current_setting(?)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s, %v; want %s", name, got, err, want)
		}
	}
	if _, err := s.reader.Exec(`DELETE FROM keys`); err == nil {
		t.Error("a reader's connection can write")
	}
}

// TestPostgresIsNewer: a database that a newer drowse has written is left alone.
func TestPostgresIsNewer(t *testing.T) {
	url := pgtest.Shared(t).NewDatabase(t)
	s := connectInternal(t, url)
	if _, err := s.writer.Exec(`UPDATE schema_version SET version = 99`); err != nil {
		t.Fatal(err)
	}
	_, err := Connect(t.Context(), url)
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "database_too_new" {
		t.Errorf("Connect = %v, want database_too_new", err)
	}
}

// TestWriterIsStopped: a process that is stopped in its transaction does not keep others
// from writing for long, and nothing of it is there afterwards.
func TestWriterIsStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a session to be ended")
	}
	t.Parallel()
	url := pgtest.Shared(t).NewDatabase(t)
	stopped, s := connectInternal(t, url), connectInternal(t, url)
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- stopped.write(t.Context(), noKey, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO volumes (id, name, created_at) VALUES ('stopped', 'v', '')`)
			close(begun)
			<-end
			return err
		})
	}()
	<-begun
	err := s.AddVolume(t.Context(), Volume{ID: "other", Name: "v"})
	close(end)
	if err != nil {
		t.Errorf("while another process is stopped: %v", err)
	}
	if err := <-ended; !errdef.Is(stopped.explain(err, "write"), errdef.Unavailable) {
		t.Errorf("the one that was stopped: %v, want that its session was ended", err)
	}
	if err := stopped.AddVolume(t.Context(), Volume{ID: "again", Name: "w"}); err != nil {
		t.Errorf("the one that was stopped, afterwards: %v", err)
	}
	if all, err := s.Volumes(t.Context()); err != nil || len(all) != 2 || all[0].ID != "other" && all[1].ID != "other" {
		t.Errorf("volumes are %+v, %v", all, err)
	}
}
