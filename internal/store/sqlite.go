package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	_ "modernc.org/sqlite" // the "sqlite" driver

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/ration"
)

// SQLite is a [Store] in one database file, with the write-ahead log and the
// shared memory that SQLite keeps beside it. Only the owner of the process can
// read the three.
//
// Reads do not wait for writes, and see every commit that returned before they
// began.
type SQLite struct {
	usedSecrets
	builtTemplates
	templateSettings
	codeContexts
	tombstones
	parts

	path string

	// writer has a single connection: writers wait for it, in Go, where a context
	// can end the wait, rather than poll for SQLite's lock. API keys take turns at
	// it: one that commits without pause keeps others waiting for one commit.
	writer *sql.DB
	turns  *ration.Fair
	open   *transaction // nil for none; it is for who has the turn
	reader *sql.DB

	// The statements of Commit, which run for every change of a sandbox.
	records  records
	addEvent *sql.Stmt

	wrote atomic.Pointer[func(key string, bytes int)] // see Meter
}

var _ Store = (*SQLite)(nil)

// readers is how many reads may run at once. A read takes well below a
// millisecond; more connections would cost memory and gain nothing.
const readers = 4

// lockWait, in milliseconds, bounds the wait for a lock that another process
// holds: a backup or somebody's sqlite3 shell.
const lockWait = "busy_timeout(5000)"

// Open opens the database at path, which it creates if there is none, and
// brings its schema up to date. A database that a newer drowse has written is
// left as it is and refused with errdef.Unsupported.
func Open(ctx context.Context, path string) (_ *SQLite, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &SQLite{path: path, turns: ration.NewFair(1, 1)}
	s.usedSecrets.s, s.builtTemplates.s, s.templateSettings.s, s.codeContexts.s, s.tombstones.s, s.parts.s = s, s, s, s, s, s
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
	if err := s.migrate(ctx, migrations); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
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
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, nil
}

func (s *SQLite) prepare(ctx context.Context) (err error) {
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{
		{&s.records.insert, insertSandbox},
		{&s.records.update, updateSandbox},
		{&s.records.limits, selectLimits},
		{&s.addEvent, `INSERT INTO events (sandbox, key, version, type, at, data) VALUES (?, ?, ?, ?, ?, ?)`},
	} {
		if *p.to, err = s.writer.PrepareContext(ctx, p.query); err != nil {
			return err
		}
	}
	return nil
}

// Close implements [Store]. It may be called more than once.
func (s *SQLite) Close() error {
	var errs []error
	// The last connection to close moves the log into the database, which
	// a reader is not allowed to do.
	for _, db := range []*sql.DB{s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return s.explain(errors.Join(errs...), "close store %s", s.path)
}

// Commit implements [Store]. A context that ends while the commit waits for
// its turn abandons it; from then on the commit runs to its end, so that an
// error means that nothing of it can be read. One case is beyond reach: where
// the disk took the data and then refused to sync it, and the process dies
// before the next commit, the failed one may be found after the restart, whole.
func (s *SQLite) Commit(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) error {
	return s.commit(ctx, sb, entries, func(context.Context, *sql.Tx) error { return nil })
}

// commit is Commit with something else in the same transaction.
func (s *SQLite) commit(ctx context.Context, sb Sandbox, entries []lifecycle.Entry, also func(context.Context, *sql.Tx) error) error {
	record, events, err := encodeCommit(sb, entries)
	if err != nil {
		return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
	}
	err = s.write(ctx, sb.Config.Key, func(ctx context.Context, tx *sql.Tx) error {
		if err := failpoint.Fail(failpoint.CommitBegin); err != nil {
			return err
		}
		if err := s.records.put(ctx, tx, sb, record); err != nil {
			return err
		}
		for _, event := range events {
			if _, err := tx.StmtContext(ctx, s.addEvent).ExecContext(ctx, event...); err != nil {
				return err
			}
		}
		if err := trim(ctx, tx, sb, len(events)); err != nil {
			return err
		}
		if err := dropContexts(ctx, tx, sb); err != nil {
			return err
		}
		if err := holdParts(ctx, tx, sb, entries); err != nil {
			return err
		}
		if err := also(ctx, tx); err != nil {
			return err
		}
		return failpoint.Fail(failpoint.Commit)
	})
	if err == nil {
		s.count(sb.Config.Key, record, events)
		failpoint.Pass(failpoint.Committed)
	}
	return s.explain(err, "commit sandbox %s", sb.ID)
}

// How many of the latest events are kept of a sandbox. Its owner makes events as
// fast as the server answers, and they would fill the disk.
const (
	MostEvents      = 10_000
	MostEventsEnded = 1_000 // when it has ended
)

// trimEvery is how many events there are, on average, until those are looked for
// that are too many: that takes about a millisecond. Chance decides, so that nobody
// can have it meet another sandbox each time.
const trimEvery = 256

// trim removes the oldest events of a sandbox to which some have been added.
func trim(ctx context.Context, tx *sql.Tx, sb Sandbox, added int) error {
	most := MostEvents
	switch {
	case added == 0:
		return nil
	case sb.Ended():
		most = MostEventsEnded
	case mathrand.IntN(trimEvery) >= added:
		return nil
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM events WHERE sandbox = ?1 AND seq <= (
		SELECT seq FROM events WHERE sandbox = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, sb.ID, most)
	return err
}

// Meter has wrote be told of the bytes that each commit writes for an API key.
func (s *SQLite) Meter(wrote func(key string, bytes int)) { s.wrote.Store(&wrote) }

// count tells what a commit has written.
func (s *SQLite) count(key string, record []any, events [][]any) {
	wrote := s.wrote.Load()
	if wrote == nil {
		return
	}
	bytes := 0
	for _, row := range append(events, record) {
		for _, field := range row {
			if text, ok := field.(string); ok {
				bytes += len(text)
			}
		}
	}
	(*wrote)(key, bytes)
}

// Sandboxes implements [Store]; the oldest come first.
func (s *SQLite) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	all, err := collect(ctx, s.reader, scanSandbox,
		`SELECT id, version, data, rev FROM sandboxes ORDER BY created_at, id`)
	return all, s.explain(err, "read sandboxes")
}

// Forget implements [Store]. It refuses a sandbox that is not terminated with
// errdef.WrongState: something may still hold what its record describes.
func (s *SQLite) Forget(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		state, err := stateOf(ctx, tx, id)
		if err != nil {
			return err
		}
		if state != lifecycle.Terminated {
			return errdef.New(errdef.WrongState, "sandbox_not_terminated",
				"sandbox %s is %s; only a terminated one can be forgotten", id, state).WithRemedy("kill it first")
		}
		// Its log entries go with it, by the foreign key.
		_, err = tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id)
		return err
	})
	return s.explain(err, "forget sandbox %s", id)
}

// Events implements [Store]. A sandbox without a record is errdef.NotFound.
func (s *SQLite) Events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
	events, err := s.events(ctx, sandbox, after, max(limit, 0)) // SQLite takes a negative one for no limit
	if err == nil && len(events) == 0 && sandbox != "" {
		_, err = stateOf(ctx, s.reader, sandbox)
	}
	return events, s.explain(err, "read events")
}

func (s *SQLite) events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
	if sandbox == "" {
		return collect(ctx, s.reader, scanEvent,
			`SELECT seq, sandbox, key, version, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?`,
			after, limit)
	}
	return collect(ctx, s.reader, scanEvent,
		`SELECT seq, sandbox, key, version, data FROM events WHERE sandbox = ? AND seq > ? ORDER BY seq LIMIT ?`,
		sandbox, after, limit)
}

// EventsOfKey implements [Store].
func (s *SQLite) EventsOfKey(ctx context.Context, key string, after int64, limit int) ([]Event, error) {
	events, err := collect(ctx, s.reader, scanEvent,
		`SELECT seq, sandbox, key, version, data FROM events WHERE key = ? AND seq > ? ORDER BY seq LIMIT ?`,
		key, after, max(limit, 0))
	return events, s.explain(err, "read events")
}

// LastEvents implements [Store].
func (s *SQLite) LastEvents(ctx context.Context, sandbox string, n int) ([]Event, error) {
	return s.EventsBefore(ctx, sandbox, math.MaxInt64, n)
}

// EventsBefore implements [Store].
func (s *SQLite) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]Event, error) {
	events, err := s.eventsBefore(ctx, sandbox, before, max(limit, 0))
	if err == nil && len(events) == 0 && sandbox != "" {
		_, err = stateOf(ctx, s.reader, sandbox)
	}
	return events, s.explain(err, "read events")
}

func (s *SQLite) eventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]Event, error) {
	if sandbox == "" {
		return collect(ctx, s.reader, scanEvent,
			`SELECT seq, sandbox, key, version, data FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?`, before, limit)
	}
	return collect(ctx, s.reader, scanEvent,
		`SELECT seq, sandbox, key, version, data FROM events WHERE sandbox = ? AND seq < ? ORDER BY seq DESC LIMIT ?`,
		sandbox, before, limit)
}

// stateOf returns the state of a sandbox, or an errdef.NotFound.
func stateOf(ctx context.Context, q querier, id string) (lifecycle.State, error) {
	var state lifecycle.State
	err := q.QueryRowContext(ctx, `SELECT state FROM sandboxes WHERE id = ?`, id).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return "", errdef.New(errdef.NotFound, "sandbox_not_found", "no sandbox %s", id)
	}
	return state, err
}

// Secret implements [Store].
func (s *SQLite) Secret(ctx context.Context, name string) ([]byte, error) {
	// Ask first, so that a server with a full disk still has its secrets.
	secret, err := readSecret(ctx, s.reader, name)
	if errors.Is(err, sql.ErrNoRows) {
		secret, err = s.makeSecret(ctx, name)
	}
	return secret, s.explain(err, "read secret %s", name)
}

// makeSecret returns the secret of that name, a new one unless another caller
// was faster.
func (s *SQLite) makeSecret(ctx context.Context, name string) (secret []byte, err error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) // never fails
	err = s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx,
			`INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING`, name, fresh)
		if err != nil {
			return err
		}
		secret, err = readSecret(ctx, tx, name)
		return err
	})
	if err != nil {
		return nil, err // also where COMMIT failed: what was read is not durable
	}
	return secret, nil
}

func readSecret(ctx context.Context, q querier, name string) (secret []byte, err error) {
	err = q.QueryRowContext(ctx, `SELECT value FROM secrets WHERE name = ?`, name).Scan(&secret)
	return secret, err
}

// querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// collect returns what scan makes of each row of a query.
func collect[T any](ctx context.Context, db querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, nil
}
