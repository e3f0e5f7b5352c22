package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
)

// sqliteFile is the engine of a database in one file, with the write-ahead log and the
// shared memory that SQLite keeps beside it. Only the owner of the process can read the
// three.
type sqliteFile struct{ path string }

// lockWait, in milliseconds, bounds the wait for a lock that another process
// holds: a backup or somebody's sqlite3 shell.
const lockWait = "busy_timeout(5000)"

// Open opens the database at path, which it creates if there is none, and
// brings its schema up to date. A database that a newer drowse has written is
// left as it is and refused with errdef.Unsupported.
func Open(ctx context.Context, path string) (_ *SQL, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := newSQL(path, sqliteFile{path})
	defer func() {
		if err != nil {
			_ = s.Close() // the first error says more
			err = s.explain(err, "open store %s", path)
		}
	}()

	if err := keepPrivate(path); err != nil {
		return nil, err
	}
	// A commit is in the log's file and that file is synced when COMMIT
	// returns; with the default, NORMAL, a power cut could take it back.
	synchronous := "synchronous(FULL)"
	if planted.In(planted.UnsyncedCommit) {
		synchronous = "synchronous(NORMAL)"
	}
	s.writer, err = connect(path, 1, url.Values{
		"_txlock": {"immediate"},
		"_pragma": {lockWait, "journal_mode(WAL)", synchronous, "foreign_keys(1)"},
	})
	if err != nil {
		return nil, err
	}
	s.reader, err = connect(path, readers, url.Values{
		"_pragma": {lockWait, "query_only(1)"},
	})
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// keepPrivate makes an empty file at path if there is none, and sees that
// nobody but its owner can read the database. SQLite gives the files that it
// makes beside it the same mode.
//
// A file that exists must not be opened here: closing it would release the
// POSIX locks of every other connection that this process has to it.
func keepPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		if err := errors.Join(f.Close(), durable.Sync(filepath.Dir(path))); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Chmod(name, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// connect returns a pool of up to n connections to the file at path, opened as
// params say.
func connect(path string, n int, params url.Values) (*sql.DB, error) {
	// Never create it: if somebody deleted the file of a running server, a
	// new connection must fail rather than find an empty store.
	params.Set("mode", "rw")
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	return pool(db, n), nil
}

func (f sqliteFile) begin(ctx context.Context, conn *sql.Conn, server string) (tx *sql.Tx, id, claim string, err error) {
	tx, err = conn.BeginTx(ctx, nil) // BEGIN IMMEDIATE
	if err != nil || server == "" {
		return tx, "", "", err
	}
	err = tx.QueryRowContext(ctx, `SELECT claim FROM servers WHERE id = ?`, server).Scan(&claim)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return tx, "", claim, err
}

// settle implements engine: a COMMIT that failed has changed nothing that can be read.
func (f sqliteFile) settle(_ context.Context, _, _ string, err error) error { return err }

func (f sqliteFile) steps() []string { return migrations }

// version implements engine. It is SQLite's user_version, which a transaction covers like
// any row.
func (f sqliteFile) version(ctx context.Context, q querier) (has int, err error) {
	err = q.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&has)
	return has, err
}

func (f sqliteFile) setVersion(ctx context.Context, tx *sql.Tx, version int) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, version)) // a pragma takes no parameters
	return err
}

func (f sqliteFile) now() string { return `CAST(unixepoch('subsec') * 1000 AS INTEGER)` }

// alone implements engine: BEGIN IMMEDIATE has done it.
func (f sqliteFile) alone(context.Context, *sql.Tx) error { return nil }

func (f sqliteFile) snapshot(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	return db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
}

func (f sqliteFile) lastEvent() string {
	return `SELECT seq FROM sqlite_sequence WHERE name = 'events'`
}

func (f sqliteFile) setLastEvent(ctx context.Context, tx *sql.Tx, seq int64) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM sqlite_sequence WHERE name = 'events'`); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)`, seq)
	return err
}

// remedies are the failures of SQLite that may pass, by primary result code,
// with the next step for the machine's owner.
var remedies = map[int]string{
	sqlite3.SQLITE_FULL:     "free space on its disk",
	sqlite3.SQLITE_READONLY: "make the file and its file system writable",
	sqlite3.SQLITE_IOERR:    "check the disk and the kernel's log",
	sqlite3.SQLITE_CANTOPEN: "check that the file, its directory and its disk can be written",
	sqlite3.SQLITE_PERM:     "check the file's owner and mode",
	sqlite3.SQLITE_BUSY:     "end the other program that holds the database",
	sqlite3.SQLITE_LOCKED:   "end the other program that holds the database",
	sqlite3.SQLITE_NOMEM:    "free memory",
}

func (f sqliteFile) explain(err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return f.unavailable(err, remedies[sqlite3.SQLITE_CANTOPEN])
	}
	if errors.Is(err, syscall.ENOSPC) { // of what is done beside SQLite
		return f.unavailable(err, remedies[sqlite3.SQLITE_FULL])
	}
	failure, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	code := failure.Code() & 0xff // without SQLite's details, such as which system call failed
	switch code {
	case sqlite3.SQLITE_NOTADB:
		return errdef.New(errdef.Invalid, "not_a_database", "%w; %s is not a database, or its first page is damaged", err, f.path).
			WithRemedy("move it away, or put a backup in its place")
	case sqlite3.SQLITE_CORRUPT:
		return errdef.New(errdef.Internal, "database_damaged", "%w; the database %s is damaged", err, f.path).
			WithRemedy("stop drowse and put a backup in its place")
	}
	if remedy, ok := remedies[code]; ok {
		return f.unavailable(err, remedy)
	}
	return err
}

func (f sqliteFile) unavailable(err error, remedy string) error {
	return errdef.New(errdef.Unavailable, "store_unavailable", "%w; the database is %s", err, f.path).WithRemedy("%s", remedy)
}
