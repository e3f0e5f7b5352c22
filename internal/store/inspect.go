package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"modernc.org/sqlite"
)

// Inspection is what is found in a database that nobody uses.
type Inspection struct {
	Sandboxes []Sandbox // the records that can be read
	Volumes   []Volume
	Snapshots []Snapshot
	Templates []Template // that were built
	Problems  []Problem  // what is wrong; if there is any, records may be missing

	path string // of the database
}

// Problem is something wrong with a database.
type Problem struct {
	Sandbox string // whose record or log entry it is; empty for the whole
	Text    string
}

// Inspect checks the database at path without changing it, and reads what can be
// read. The error is for a database that cannot be looked at.
func Inspect(ctx context.Context, path string) (Inspection, error) {
	found := Inspection{path: path}
	s := newSQL(path, sqliteFile{path})
	if _, err := os.Stat(path); err != nil {
		return found, fmt.Errorf("inspect store: %w", err)
	}
	db, err := connect(path, 1, url.Values{"_pragma": {lockWait, "query_only(1)"}})
	if err != nil {
		return found, s.explain(err, "inspect store %s", path)
	}
	defer db.Close()
	for _, look := range []func(context.Context, *sql.DB, *Inspection) error{
		inspectVersion, inspectPages, inspectSandboxes, inspectEvents, inspectVolumes, inspectSnapshots, inspectTemplates, inspectParts,
	} {
		err := look(ctx, db, &found)
		if _, ours := errors.AsType[*sqlite.Error](err); ours {
			found.problem("", "%v", err) // whatever it is, the database cannot be trusted
			continue
		}
		if err != nil {
			return found, s.explain(err, "inspect store %s", path)
		}
	}
	return found, nil
}

func (i *Inspection) problem(sandbox, format string, args ...any) {
	i.Problems = append(i.Problems, Problem{sandbox, fmt.Sprintf(format, args...)})
}

func inspectVersion(ctx context.Context, db *sql.DB, found *Inspection) error {
	has, err := sqliteFile{}.version(ctx, db)
	if err != nil {
		return err
	}
	return checkVersion(found.path, has, len(migrations))
}

// inspectPages asks SQLite to check its own structures, and the references
// between rows.
func inspectPages(ctx context.Context, db *sql.DB, found *Inspection) error {
	texts, err := collect(ctx, db, scanText, `SELECT integrity_check FROM pragma_integrity_check`)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if text != "ok" {
			found.problem("", "%s", text)
		}
	}
	orphans, err := collect(ctx, db, scanText, `SELECT "table" || ' row ' || rowid FROM pragma_foreign_key_check`)
	for _, row := range orphans {
		found.problem("", "%s belongs to a sandbox that has no record", row)
	}
	return err
}

// inspectSandboxes reads the records, of whose revisions an older database knows
// nothing: they get the first one.
func inspectSandboxes(ctx context.Context, db *sql.DB, found *Inspection) error {
	rev := "1"
	err := db.QueryRowContext(ctx, `SELECT name FROM pragma_table_info('sandboxes') WHERE name = 'rev'`).Scan(&rev)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	_, err = collect(ctx, db, func(rows *sql.Rows) (struct{}, error) {
		var (
			id, state string
			version   int
			data      sql.RawBytes
			sb        Sandbox
		)
		if err := rows.Scan(&id, &version, &state, &data, &sb.Rev); err != nil {
			return struct{}{}, err
		}
		switch err := decode("record", version, data, &sb); {
		case err != nil:
			found.problem(id, "%v", err)
		case sb.ID != id || string(sb.Record.State) != state:
			found.problem(id, "its record is of sandbox %s, %s, in the row of %s, %s", sb.ID, sb.Record.State, id, state)
		default:
			found.Sandboxes = append(found.Sandboxes, sb)
		}
		return struct{}{}, nil
	}, `SELECT id, version, state, data, `+rev+` FROM sandboxes ORDER BY created_at, id`)
	return err
}

func inspectEvents(ctx context.Context, db *sql.DB, found *Inspection) error {
	_, err := collect(ctx, db, func(rows *sql.Rows) (struct{}, error) {
		var (
			seq     int64
			sandbox string
			version int
			data    sql.RawBytes
			form    entryForm
		)
		if err := rows.Scan(&seq, &sandbox, &version, &data); err != nil {
			return struct{}{}, err
		}
		if err := decode(fmt.Sprintf("log entry %d", seq), version, data, &form); err != nil {
			found.problem(sandbox, "%v", err)
		}
		return struct{}{}, nil
	}, `SELECT seq, sandbox, version, data FROM events ORDER BY seq`)
	return err
}

// inspectVolumes reads the volumes, of which, or of whose limits, an older database
// knows nothing.
func inspectVolumes(ctx context.Context, db *sql.DB, found *Inspection) error {
	var columns, limits int
	err := db.QueryRowContext(ctx, `SELECT count(*), count(*) FILTER (WHERE name = 'disk') FROM pragma_table_info('volumes')`).Scan(&columns, &limits)
	if err != nil || columns == 0 {
		return err
	}
	query := selectUnowned
	if limits == 0 {
		query = selectUnlimited
	}
	found.Volumes, err = collect(ctx, db, scanVolume, query)
	return err
}
