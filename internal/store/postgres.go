package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
)

// postgres is the engine of a database on a server of PostgreSQL, from version 13 on.
type postgres struct {
	name string
	ask  *sql.DB // asks what became of transactions
}

// Close implements io.Closer.
func (p *postgres) Close() error { return p.ask.Close() }

// Bounds of what a server of PostgreSQL may take its time for.
const (
	// writeWithin is from the begin of a transaction to the answer of its COMMIT. The
	// connection is given up then.
	writeWithin = 12 * time.Second
	// idleWithin, in milliseconds, is between two statements of a transaction. It bounds how
	// long a process that was stopped, or cut off, keeps all others from writing.
	idleWithin = "3000"
	// turnWithin, in milliseconds, bounds the wait for the writers of other servers.
	turnWithin = "6000"
	// settleWithin is how long it is asked what became of a transaction.
	settleWithin = 10 * time.Second
	// connectWithin is for a connection to one host of the URL.
	connectWithin = 9 * time.Second
	// silentWithin is after how long a connection is given up on which no answer comes: that
	// of a machine that is gone, or of a server that was stopped.
	silentWithin = writeWithin + 3*time.Second
	// copiesWithin is the same for a copy of all that there is.
	copiesWithin = 10 * time.Minute
)

// turnLock is the advisory lock of who writes, also in begin_write.
const turnLock = 7233188113540117870

// Connect opens the database of a URL as libpq knows them (postgres://…), and brings its
// schema up to date. What the URL leaves out comes from the variables of libpq (PGPASSWORD,
// PGPASSFILE…). A database that a newer drowse has written is left as it is and refused with
// errdef.Unsupported.
func Connect(ctx context.Context, dsn string) (*SQL, error) {
	return ConnectFrom(ctx, dsn, Branch{}, nil)
}

// ConnectFrom is Connect to a database whose branch was seen last: one that was left before is
// refused with errdef.Unavailable. Keep is called with each newer branch, before anything is read
// or written there, and once with the zero one where PostgreSQL does not tell its branch, so that
// an old primary is not refused; nil for nothing.
func ConnectFrom(ctx context.Context, dsn string, seen Branch, keep func(Branch)) (*SQL, error) {
	s, err := dial(dsn, silentWithin, &branches{newest: seen, keep: keep})
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		_ = s.Close() // the first error says more
		return nil, s.explain(err, "open store %s", s.name)
	}
	return s, nil
}

// dial is ConnectFrom to a database that is left as it is. A connection is given up on which it
// is silent for so long.
func dial(dsn string, silence time.Duration, from *branches) (*SQL, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "store_invalid", "the URL of the store cannot be used: %w", err).
			WithRemedy("give it as postgres://USER@HOST:5432/DATABASE")
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: connectWithin}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &impatient{Conn: conn, most: silence}, nil
	}
	config.ConnectTimeout = connectWithin
	config.ValidateConnect = from.validate
	// Whatever the database's own defaults are.
	for name, value := range map[string]string{
		"application_name": "drowse", "client_encoding": "UTF8", "synchronous_commit": "on",
		"default_transaction_isolation": "read committed", "standard_conforming_strings": "on",
		"idle_in_transaction_session_timeout": idleWithin, "lock_timeout": turnWithin,
		"statement_timeout": strconv.FormatInt(writeWithin.Milliseconds(), 10),
	} {
		config.RuntimeParams[name] = value
	}
	if planted.In(planted.UnsyncedCommit) {
		config.RuntimeParams["synchronous_commit"] = "off"
	}
	e := &postgres{name: shown(config)}
	s := newSQL(e.name, e)
	s.writer = pool(sql.OpenDB(connector{config, from}), 1)
	reading := config.Copy()
	reading.RuntimeParams["default_transaction_read_only"] = "on"
	s.reader = pool(sql.OpenDB(connector{reading, from}), readers)
	e.ask = pool(sql.OpenDB(connector{config, from}), 1)
	return s, nil
}

// shown returns what a URL names, without secrets. It is made of what was understood, and
// not of the URL: two parsers can differ on where a password ends.
func shown(c *pgx.ConnConfig) string {
	u := url.URL{Scheme: "postgres", User: url.User(c.User), Path: "/" + c.Database}
	if strings.HasPrefix(c.Host, "/") {
		u.RawQuery = "host=" + c.Host
	} else {
		u.Host = net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	}
	return u.String()
}

func (p *postgres) begin(ctx context.Context, conn *sql.Conn, server string) (tx *sql.Tx, id, claim string, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	context.AfterFunc(ctx, cancel) // the transaction ends with it, at the latest
	tx, err = conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, "", "", err
	}
	if server == "" { // also of a database that has no schema yet
		_, err = tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(?)`, turnLock)
		return tx, "", "", err
	}
	var known sql.NullString
	id = rand.Text()
	err = tx.QueryRowContext(ctx, `SELECT claim FROM begin_write(?, ?)`, server, id).Scan(&known)
	return tx, id, known.String, err
}

// settle implements engine. The answer to a COMMIT can be lost where it has happened. Then
// the transaction has left its name, which is there to be read when it holds the lock no
// more. The number of a transaction would not do: after a crash another can get it.
func (p *postgres) settle(ctx context.Context, server, id string, failure error) error {
	if _, said := errors.AsType[*pgconn.PgError](failure); said && !broken(failure) || server == "" {
		return failure // the server has refused it, or nobody knows
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for {
		committed, err := p.committed(ctx, server, id)
		switch {
		case committed && err == nil:
			return nil
		case err == nil:
			return failure
		}
		select {
		case <-ctx.Done():
			return ErrUnlearned(fmt.Errorf("%w; whether it was committed could not be learned: %v", failure, err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// committed reports whether a transaction that has ended has left its name. It commits
// itself, later than that: so the stand-bys that a commit waits for have both, also where
// the other was canceled in that wait.
func (p *postgres) committed(ctx context.Context, server, id string) (bool, error) {
	tx, err := p.ask.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(?)`, turnLock); err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, `UPDATE servers SET last_write = last_write WHERE id = ? AND last_write = ?`, server, id)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); n == 0 || err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// steps implements engine: the first one leads to where SQLite was when PostgreSQL came.
func (p *postgres) steps() []string { return postgresMigrations }

//go:embed migrations/postgres/0019_init.sql
var postgresInit string

//go:embed migrations/postgres/0029_lists.sql
var postgresLists string

//go:embed migrations/postgres/0030_tombstones_of_servers.sql
var postgresTombstones string

// postgresMigrations are [migrations] as PostgreSQL takes them. The first 18 do nothing: a
// database begins with the nineteenth.
var postgresMigrations = func() []string {
	const first, lists, tombstones = 19, 29, 30
	steps := make([]string, len(migrations))
	for i := range steps {
		switch {
		case i == first-1:
			steps[i] = inPostgres.Replace(postgresInit)
		case i == lists-1:
			steps[i] = inPostgres.Replace(migrations[i] + postgresLists)
		case i == tombstones-1: // triggers are written in another way
			steps[i] = inPostgres.Replace(postgresTombstones)
		case i >= first:
			steps[i] = inPostgres.Replace(migrations[i])
		default:
			steps[i] = `SELECT 1`
		}
	}
	return steps
}()

// inPostgres writes what SQLite says of a table as PostgreSQL does. Text sorts by its
// bytes, as in SQLite.
var inPostgres = strings.NewReplacer("INTEGER", "BIGINT", "BLOB", "BYTEA", "TEXT", `TEXT COLLATE "C"`, ") STRICT", ")")

func (p *postgres) version(ctx context.Context, q querier) (has int, err error) {
	var there bool
	if err := q.QueryRowContext(ctx, `SELECT to_regclass('schema_version') IS NOT NULL`).Scan(&there); err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT version FROM schema_version`).Scan(&has)
	return has, err
}

func (p *postgres) setVersion(ctx context.Context, tx *sql.Tx, version int) error {
	_, err := tx.ExecContext(ctx, `UPDATE schema_version SET version = ?`, version)
	return err
}

func (p *postgres) alone(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(?), set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true)`, turnLock)
	return err
}

func (p *postgres) snapshot(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

func (p *postgres) lastEvent() string {
	return `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_seq_seq`
}

func (p *postgres) setLastEvent(ctx context.Context, tx *sql.Tx, seq int64) error {
	if seq == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT setval('events_seq_seq', ?)`, seq)
	return err
}

func (p *postgres) now() string {
	return `CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)`
}

// postgresRemedies are the failures of PostgreSQL that may pass, by SQLSTATE or its class.
var postgresRemedies = map[string]string{
	"53100": "free space on the disk of PostgreSQL",
	"53300": "let PostgreSQL take more connections (max_connections)",
	"53":    "give PostgreSQL what it lacks; its log says more",
	"57":    "wait until PostgreSQL is up again; its log says more",
	"58":    "check PostgreSQL's disk; its log says more",
	"08":    "check that PostgreSQL is up and can be reached from here",
	"25006": "see whether PostgreSQL is a stand-by, or was set to read only",
	"25P03": "see whether this machine had time for the server",
	"55P03": "see which session of PostgreSQL holds its locks (pg_stat_activity)",
	"57014": "see what keeps PostgreSQL so long (pg_stat_activity)",
	"40":    "try again",
}

// refusals are those that somebody must mend.
var refusals = map[string]string{
	"28":    "check the user and the password of the store's URL, or that this command has the PGPASSFILE of the server, and PostgreSQL's pg_hba.conf",
	"3D000": "create the database, or correct the store's URL",
	"42501": "let the user of the store's URL create tables and functions in the database",
}

func (p *postgres) explain(err error) error {
	said, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if broken(err) {
			return p.unavailable(err, postgresRemedies["08"])
		}
		return err
	}
	switch said.Code { // what SQLite would take
	case "22021", "22P05", "54000":
		return errdef.New(errdef.Invalid, "store_refuses_text", "%w", err).WithRemedy("leave out what is not UTF-8, and the character U+0000, and use a shorter text")
	}
	class := said.Code[:min(2, len(said.Code))]
	for _, code := range []string{said.Code, class} {
		if remedy, ok := refusals[code]; ok { // it does not pass by itself
			return errdef.New(errdef.Invalid, "store_refuses", "%w; the database is %s", err, p.name).WithRemedy("%s", remedy)
		}
	}
	switch class {
	case "XX":
		return errdef.New(errdef.Internal, "database_damaged", "%w; the database %s may be damaged", err, p.name).
			WithRemedy("stop drowse, see PostgreSQL's log, and restore a backup of the database if it is")
	}
	for _, code := range []string{said.Code, class} {
		if remedy, ok := postgresRemedies[code]; ok {
			return p.unavailable(err, remedy)
		}
	}
	return err
}

// broken reports whether an error is one of a connection, on which no answer came.
func broken(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "57P") || strings.HasPrefix(said.Code, "08")
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone, pgconn.ErrConnClosed, os.ErrDeadlineExceeded, errSlow} {
		if errors.Is(err, end) {
			return true
		}
	}
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[*net.OpError](err)
	return refused || network || pgconn.SafeToRetry(err)
}

func (p *postgres) unavailable(err error, remedy string) error {
	return errdef.New(errdef.Unavailable, "store_unavailable", "%w; the database is %s", err, p.name).WithRemedy("%s", remedy)
}

// impatient is a connection on which each wait for an answer is bounded.
type impatient struct {
	net.Conn
	most time.Duration

	mu          sync.Mutex
	read, write time.Time // the deadlines that were set; zero for none
}

func (c *impatient) Read(p []byte) (int, error) {
	if err := c.bound(&c.read, c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *impatient) Write(p []byte) (int, error) {
	if err := c.bound(&c.write, c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// bound sets the deadline that was set, or the own one, whichever is sooner.
func (c *impatient) bound(was *time.Time, set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(c.most)
	if !was.IsZero() && was.Before(until) {
		until = *was
	}
	return set(until)
}

func (c *impatient) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *impatient) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = t
	return c.Conn.SetReadDeadline(t)
}

func (c *impatient) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.PrepareContext(ctx, numbered(query))
}

func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(ctx, numbered(query), args)
}

// CheckNamedValue gives truth as SQLite has it, a number.
func (c *connection) CheckNamedValue(v *driver.NamedValue) error {
	if truth, ok := v.Value.(bool); ok {
		v.Value = int64(0)
		if truth {
			v.Value = int64(1)
		}
		return nil
	}
	return c.Conn.CheckNamedValue(v)
}

// inNumbers are statements as numbered returned them.
var inNumbers sync.Map

// numbered returns a statement with PostgreSQL's parameters, $1, in the place of ? and ?1.
// There is no other ? in a statement.
func numbered(query string) string {
	if !strings.Contains(query, "?") {
		return query
	}
	if known, ok := inNumbers.Load(query); ok {
		return known.(string)
	}
	var b strings.Builder
	last := 0
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			digits := len(part) - len(strings.TrimLeft(part, "0123456789"))
			if n, err := strconv.Atoi(part[:digits]); err == nil {
				last = max(last, n)
			} else {
				last++
				part = strconv.Itoa(last) + part
			}
			b.WriteByte('$')
		}
		b.WriteString(part)
	}
	inNumbers.Store(query, b.String())
	return b.String()
}
