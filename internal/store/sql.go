package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"sync/atomic"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ration"
)

// SQL is a [Store] in a database that speaks SQL: [Open] returns one in a file of
// SQLite, [Connect] one on a server of PostgreSQL. Statements are written for both: in
// SQLite's dialect, as far as PostgreSQL understands it too.
//
// One transaction writes at a time, whatever the number of servers, so what it reads
// holds until it commits, and events become readable in the order of their numbers.
// Reads do not wait for writes, and see every commit that returned before they began.
type SQL struct {
	usedSecrets
	builtTemplates
	templateSettings
	codeContexts
	tombstones
	parts
	leases
	owners
	replicas
	webhooks

	engine engine
	name   string // of the database: a path, or a URL without its password

	// writer has a single connection: writers wait for it, in Go, where a context
	// can end the wait, rather than poll for a lock. API keys take turns at it: one that
	// commits without pause keeps others waiting for one commit.
	writer *sql.DB
	turns  *ration.Fair
	open   *transaction // nil for none; it is for who has the turn
	reader *sql.DB

	// The statements of Commit, which run for every change of a sandbox.
	records  records
	addEvent *sql.Stmt

	wrote atomic.Pointer[func(key string, bytes int)] // see Meter
}

var _ Store = (*SQL)(nil)

// engine is what differs between databases.
type engine interface {
	// begin opens a transaction on a connection, which nobody else's writes beside. It
	// returns what settle wants to know of it, and the last claim of a server, if that is
	// named: empty for one that the database does not know.
	begin(ctx context.Context, conn *sql.Conn, server string) (tx *sql.Tx, id, claim string, err error)
	// settle returns nil if a transaction of a server was committed although COMMIT
	// returned err.
	settle(ctx context.Context, server, id string, err error) error
	// now is the database's clock, in milliseconds since 1970, as an expression.
	now() string
	// explain gives err, which says what was attempted, a class.
	explain(err error) error
	schema
	copying
}

// schema is how an engine keeps the version of its schema.
type schema interface {
	// steps are those of the schema, as of [migrations].
	steps() []string
	// version returns how many of them the database has seen.
	version(ctx context.Context, q querier) (int, error)
	setVersion(ctx context.Context, tx *sql.Tx, version int) error
}

// copying is what an engine does for a copy of all that is in the database, which may take
// long.
type copying interface {
	// alone has others wait who want to write until a transaction ends.
	alone(ctx context.Context, tx *sql.Tx) error
	// snapshot begins to read what is there at one moment.
	snapshot(ctx context.Context, db *sql.DB) (*sql.Tx, error)
	// lastEvent asks for the number of the last event that there was.
	lastEvent() (query string)
	setLastEvent(ctx context.Context, tx *sql.Tx, seq int64) error
}

// readers is how many reads may run at once. A read takes well below a
// millisecond; more connections would cost memory and gain nothing.
const readers = 4

// newSQL returns a store without connections.
func newSQL(name string, e engine) *SQL {
	s := &SQL{name: name, engine: e, turns: ration.NewFair(1, 1)}
	s.usedSecrets.s, s.builtTemplates.s, s.templateSettings.s, s.codeContexts.s, s.tombstones.s, s.parts.s, s.leases.s, s.owners.s = s, s, s, s, s, s, s, s
	s.replicas.s, s.webhooks.s = s, s
	return s
}

// pool has up to n connections.
func pool(db *sql.DB, n int) *sql.DB {
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db
}

// start brings the schema up to date, and prepares the statements.
func (s *SQL) start(ctx context.Context) (err error) {
	if err := s.migrate(ctx, s.engine.steps()); err != nil {
		return err
	}
	if err := s.enlist(ctx); err != nil {
		return err
	}
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
func (s *SQL) Close() error {
	var errs []error
	// The last connection to close moves the log into the database, which
	// a reader is not allowed to do.
	for _, db := range []*sql.DB{s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if c, ok := s.engine.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	return s.explain(errors.Join(errs...), "close store %s", s.name)
}

// Commit implements [Store]. A context that ends while the commit waits for
// its turn abandons it; from then on the commit runs to its end, so that an
// error means that nothing of it can be read. One case is beyond reach: where
// the disk took the data and then refused to sync it, and the process dies
// before the next commit, the failed one may be found after the restart, whole.
func (s *SQL) Commit(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) error {
	return s.commit(ctx, sb, entries, nothing, nothing)
}

// nothing is what a commit does beside itself.
func nothing(context.Context, *sql.Tx) error { return nil }

// commit is Commit with something else in the same transaction, before it and after it.
func (s *SQL) commit(ctx context.Context, sb Sandbox, entries []lifecycle.Entry, first, also func(context.Context, *sql.Tx) error) error {
	record, events, err := encodeCommit(sb, entries)
	if err != nil {
		return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
	}
	err = s.write(ctx, sb.Config.Key, func(ctx context.Context, tx *sql.Tx) error {
		if err := failpoint.Fail(failpoint.CommitBegin); err != nil {
			return err
		}
		if err := first(ctx, tx); err != nil {
			return err
		}
		if err := s.records.put(ctx, tx, sb, record, &s.owners); err != nil {
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
		if err := dropReplica(ctx, tx, sb); err != nil {
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
func (s *SQL) Meter(wrote func(key string, bytes int)) { s.wrote.Store(&wrote) }

// count tells what a commit has written.
func (s *SQL) count(key string, record []any, events [][]any) {
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
func (s *SQL) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	all, err := collect(ctx, s.reader, scanSandbox,
		selectSandboxes+` ORDER BY created_at, id`)
	return all, s.explain(err, "read sandboxes")
}

// Forget implements [Store]. It refuses a sandbox that is not terminated with
// errdef.WrongState: something may still hold what its record describes.
func (s *SQL) Forget(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.own(ctx, tx, ownedSandboxes, id); err != nil {
			return err
		}
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
func (s *SQL) Events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
	events, err := s.events(ctx, sandbox, after, max(limit, 0)) // SQLite takes a negative one for no limit
	if err == nil && len(events) == 0 && sandbox != "" {
		_, err = stateOf(ctx, s.reader, sandbox)
	}
	return events, s.explain(err, "read events")
}

func (s *SQL) events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
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
func (s *SQL) EventsOfKey(ctx context.Context, key string, after int64, limit int) ([]Event, error) {
	events, err := collect(ctx, s.reader, scanEvent,
		`SELECT seq, sandbox, key, version, data FROM events WHERE key = ? AND seq > ? ORDER BY seq LIMIT ?`,
		key, after, max(limit, 0))
	return events, s.explain(err, "read events")
}

// LastEvents implements [Store].
func (s *SQL) LastEvents(ctx context.Context, sandbox string, n int) ([]Event, error) {
	return s.EventsBefore(ctx, sandbox, math.MaxInt64, n)
}

// EventsBefore implements [Store].
func (s *SQL) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]Event, error) {
	events, err := s.eventsBefore(ctx, sandbox, before, max(limit, 0))
	if err == nil && len(events) == 0 && sandbox != "" {
		_, err = stateOf(ctx, s.reader, sandbox)
	}
	return events, s.explain(err, "read events")
}

func (s *SQL) eventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]Event, error) {
	if sandbox == "" {
		return collect(ctx, s.reader, scanEvent,
			`SELECT seq, sandbox, key, version, data FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?`, before, limit)
	}
	return collect(ctx, s.reader, scanEvent,
		`SELECT seq, sandbox, key, version, data FROM events WHERE sandbox = ? AND seq < ? ORDER BY seq DESC LIMIT ?`,
		sandbox, before, limit)
}

// ErrSandboxNotFound is what is returned where there is no such sandbox.
func ErrSandboxNotFound(id string) error {
	return errdef.New(errdef.NotFound, "sandbox_not_found", "no sandbox %s", id)
}

// stateOf returns the state of a sandbox, or an errdef.NotFound.
func stateOf(ctx context.Context, q querier, id string) (lifecycle.State, error) {
	var state lifecycle.State
	err := q.QueryRowContext(ctx, `SELECT state FROM sandboxes WHERE id = ?`, id).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return "", ErrSandboxNotFound(id)
	}
	return state, err
}

// Secret implements [Store].
func (s *SQL) Secret(ctx context.Context, name string) ([]byte, error) {
	// Ask first, so that a server with a full disk still has its secrets.
	secret, err := readSecret(ctx, s.reader, name)
	if errors.Is(err, sql.ErrNoRows) {
		secret, err = s.makeSecret(ctx, name)
	}
	return secret, s.explain(err, "read secret %s", name)
}

// makeSecret returns the secret of that name, a new one unless another caller
// was faster.
func (s *SQL) makeSecret(ctx context.Context, name string) (secret []byte, err error) {
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

// explain says what was attempted when err happened and gives it a class. An
// error that has one says all there is to say, and stays as it is.
func (s *SQL) explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*errdef.Error](err); ok {
		return err
	}
	return s.engine.explain(fmt.Errorf(format+": %w", append(args, err)...))
}
