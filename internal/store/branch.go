package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Branch is one history of the commits of a PostgreSQL. Each promotion of a stand-by begins a
// new one, of a higher timeline. What an old primary commits after that is not in it.
type Branch struct {
	System   string `json:"system,omitempty"` // of the primary and all its stand-bys; empty for a branch that is not known
	Timeline int64  `json:"timeline,omitempty"`
}

// Behind reports whether a branch has been left for the other one.
func (b Branch) Behind(other Branch) bool {
	return b.System == other.System && b.Timeline < other.Timeline
}

// errBehind says that a PostgreSQL is an old primary.
func errBehind(b, newest Branch) error {
	return errdef.New(errdef.Unavailable, "store_unavailable",
		"this PostgreSQL is on timeline %d, and another was promoted to timeline %d: nothing is read or written here", b.Timeline, newest.Timeline).
		WithRemedy("stop the old primary, or make it a stand-by of the new one, and check that the new one is up and can be reached from here; " +
			"to use this one on purpose, as after its restore from an older backup, stop all servers and remove \"branch\" from drowse.db in each state directory")
}

// branches keeps a store from going back to an old primary. It knows the newest branch that any
// connection was of.
type branches struct {
	keep func(Branch) // as of [ConnectFrom]

	keeping sync.Mutex // held while keep is called
	untold  bool       // some PostgreSQL did not tell its branch
	mu      sync.Mutex
	newest  Branch
}

// othersWithin bounds how long a new connection waits for other hosts of the URL.
const othersWithin = time.Second

// onBranch is where a connection has its Branch.
const onBranch = "branch"

// validate is a [pgconn.ValidateConnectFunc]. It rejects a stand-by, which is behind, and an old
// primary, and the next host of the URL is tried.
func (b *branches) validate(ctx context.Context, conn *pgconn.PgConn) error {
	is, err := branchOf(ctx, conn)
	if err != nil {
		return err
	}
	conn.CustomData()[onBranch] = is
	return b.see(is)
}

// untelling are the errors of a PostgreSQL that does not tell its branch: the role may not ask, or
// it is a service that lacks the functions.
var untelling = []string{"42501", "42883", "0A000", "55000"}

// branchOf asks for the branch of a primary. It is the zero one where PostgreSQL does not tell.
func branchOf(ctx context.Context, conn *pgconn.PgConn) (is Branch, err error) {
	results, err := conn.Exec(ctx, `SELECT system_identifier, CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END FROM pg_control_system()`).ReadAll()
	if said, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(untelling, said.Code) {
		return is, pgconn.ValidateConnectTargetSessionAttrsPrimary(ctx, conn)
	}
	if err != nil {
		return is, err
	}
	row := results[0].Rows[0]
	if len(row[1]) == 0 {
		return is, pgconn.ErrStandbyConnection
	}
	is.System = string(row[0])
	if is.Timeline, err = strconv.ParseInt(string(row[1]), 16, 64); err != nil {
		return is, fmt.Errorf("read the timeline of PostgreSQL: %w", err)
	}
	return is, nil
}

// see returns an error for a branch that has been left.
func (b *branches) see(is Branch) error {
	b.keeping.Lock()
	defer b.keeping.Unlock()
	newest := b.get()
	switch {
	case is == Branch{}: // the one that is known stays
		if b.keep != nil && !b.untold {
			b.keep(is)
		}
		b.untold = true
		return nil
	case is.Behind(newest):
		return errBehind(is, newest)
	case is == newest:
		return nil
	}
	if b.keep != nil {
		b.keep(is)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.newest = is
	return nil
}

func (b *branches) get() Branch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest
}

// ask asks all hosts of a URL for their branches, if there are several: an old primary that is up
// again may come first in the URL. A host that does not answer in time is ignored.
func (b *branches) ask(ctx context.Context, c *pgx.ConnConfig) {
	hosts := []*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}
	hosts = append(hosts, c.Fallbacks...)
	// With sslmode=prefer each host is there twice, with TLS and without.
	byName := map[string][]*pgconn.FallbackConfig{}
	for _, h := range hosts {
		name := net.JoinHostPort(h.Host, strconv.Itoa(int(h.Port)))
		byName[name] = append(byName[name], h)
	}
	if len(byName) == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	var asking sync.WaitGroup
	for _, ways := range byName {
		one := c.Copy()
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
		one.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			is, err := branchOf(ctx, conn)
			if b.get().Behind(is) {
				err = b.see(is)
			}
			return err
		}
		asking.Go(func() {
			if other, err := pgconn.ConnectConfig(ctx, &one.Config); err == nil {
				_ = other.Close(ctx)
			}
		})
	}
	asking.Wait()
}

// connector makes connections on which statements in SQLite's dialect are understood, to the
// newest branch.
type connector struct {
	config   *pgx.ConnConfig
	branches *branches
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	for {
		made, err := stdlib.GetConnector(*c.config).Connect(ctx)
		if err != nil {
			return nil, err
		}
		conn := &connection{made.(*stdlib.Conn), c.branches}
		c.branches.ask(ctx, c.config)
		if !conn.behind() {
			return conn, nil
		}
		_ = conn.Close()
	}
}

func (c connector) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

type connection struct {
	*stdlib.Conn
	branches *branches
}

func (c *connection) behind() bool {
	is, _ := c.Conn.Conn().PgConn().CustomData()[onBranch].(Branch)
	return is.Behind(c.branches.get())
}

// ResetSession implements driver.SessionResetter: one of a branch that was left is not used again.
func (c *connection) ResetSession(ctx context.Context) error {
	if c.behind() {
		return driver.ErrBadConn
	}
	return c.Conn.ResetSession(ctx)
}

// QueryContext implements driver.QueryerContext. A query that was not sent, because the connection
// broke while it was idle, is tried again on another one.
func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.QueryContext(ctx, numbered(query), args)
	if err != nil && ctx.Err() == nil && pgconn.SafeToRetry(err) { // where ctx has ended, nothing is wrong with the connection
		err = driver.ErrBadConn
	}
	return rows, err
}
