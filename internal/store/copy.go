package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// table is one with what must not be lost: what its rows are read in the order of, and
// which of them are a server's, as a condition; empty where all servers have all.
type table struct{ name, order, own string }

// tables are those that are copied, each after those that its rows belong to. The copies of
// checkpoints are those of one database: another makes its own.
var tables = []table{
	{"secrets", "name", ""},
	{"keys", "rowid", ""},
	{"ssh_keys", "rowid", ""},
	{"used_secrets", "rowid", ""},
	{"volumes", "rowid", isOwn},
	{"webhooks", "id", ""},
	{"sandboxes", "id", isOwn},
	{"events", "seq", `sandbox IN (SELECT id FROM sandboxes WHERE ` + isOwn + `)`},
	{"code_contexts", "id", `sandbox IN (SELECT id FROM sandboxes WHERE ` + isOwn + `)`},
	{"snapshots", "rowid", isOwn},
	{"templates", "id", isOwn},
	{"builds", "id", `template IN (SELECT id FROM templates WHERE ` + isOwn + `)`},
	{"template_settings", "template", ""},
	{"parts", "part", `holder IN (SELECT id FROM sandboxes WHERE ` + isOwn + ` UNION ALL SELECT id FROM snapshots WHERE ` + isOwn + `)`},
}

// IsURL reports whether what names a database is the URL of one on a server of PostgreSQL,
// and not a path.
func IsURL(ref string) bool {
	return strings.HasPrefix(ref, "postgres://") || strings.HasPrefix(ref, "postgresql://")
}

// CheckEmpty returns an errdef.Exists if anything was ever stored but secrets of the
// server.
func (s *SQL) CheckEmpty(ctx context.Context) error {
	return s.explain(checkEmpty(ctx, s.reader, s.name), "look into the store %s", s.name)
}

func checkEmpty(ctx context.Context, q querier, name string) error {
	for _, t := range tables[1:] {
		has, err := holds(ctx, q, `SELECT 1 FROM `+t.name+` LIMIT 1`)
		if err != nil {
			return err
		}
		if has {
			return errdef.New(errdef.Exists, "store_not_empty", "the database %s has records already, and nothing was changed", name).
				WithRemedy("give an empty database; one that a start was copying into when it was cut off can be dropped and made anew")
		}
	}
	return nil
}

// identity is the secret that tells a database from all others, also from those that it was
// copied into.
const identity = "identity"

// Identity returns what tells the database of a store from all others.
func Identity(ctx context.Context, s *SQL) (string, error) {
	secret, err := s.Secret(ctx, identity)
	return identityOf(secret), err
}

func identityOf(secret []byte) string {
	sum := sha256.Sum256(secret)
	return hex.EncodeToString(sum[:16])
}

// Glance is what is seen of a database without changing anything in it.
type Glance struct {
	Identity string        // empty for a database that has none yet
	Holder   Server        // the server that was asked for; zero for one that is not known
	Left     time.Duration // of its lease, below zero for one that has ended
	Branch   Branch        // the newest that is known
}

// Look looks at the database of a URL, and who has the lease of a server there. Seen is its branch
// as of [ConnectFrom].
func Look(ctx context.Context, url, server string, seen Branch) (g Glance, err error) {
	known := &branches{newest: seen}
	s, err := dial(url, silentWithin, known)
	if err != nil {
		return g, err
	}
	defer s.Close()
	defer func() { g.Branch = known.get() }()
	has, err := s.engine.version(ctx, s.reader)
	if err != nil || has == 0 {
		return g, s.explain(err, "look into the store %s", s.name)
	}
	secret, err := readSecret(ctx, s.reader, identity)
	if err == nil {
		g.Identity = identityOf(secret)
		var left int64
		err = s.reader.QueryRowContext(ctx, `SELECT name, place, epoch, lease_until - `+s.engine.now()+` FROM servers WHERE id = ?`, server).
			Scan(&g.Holder.Name, &g.Holder.Place, &g.Holder.Epoch, &left)
		g.Holder.ID, g.Left = server, time.Duration(left)*time.Millisecond
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return g, s.explain(err, "look into the store %s", s.name)
}

// Import copies all that is in the database at path, which nobody uses, into this store, or
// nothing. It is refused as [SQL.CheckEmpty] says. What has an
// owner is then that server's, which must be the first.
func Import(ctx context.Context, to *SQL, path, server string) error {
	from, err := Open(ctx, path)
	if err != nil {
		return err
	}
	err = transfer(ctx, from, to, nil, server, func(tx *sql.Tx) error {
		other, err := holds(ctx, tx, `SELECT 1 FROM servers`)
		if err == nil && other {
			err = errdef.New(errdef.Conflict, "store_in_use", "another server has come to the database %s meanwhile, and nothing was copied", to.name).
				WithRemedy("give this server an empty state directory, or a database of its own")
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, `INSERT INTO servers (id, name, place, epoch, claim, lease_until) VALUES (?, '', '', 0, '', 0)`, server)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM secrets WHERE name = ?`, identity)
		}
		return err
	})
	return to.explain(errors.Join(err, from.Close()), "copy %s into the store %s", path, to.name)
}

// Copy writes the database that ref names, a path or a URL, to the new file to, as it is at
// one moment after the call. Servers may use it meanwhile. Of what has an owner the copy has
// that of one server alone, named by its id, if ref is a URL: a file has one server. The copy
// needs nothing beside it. It is not on the disk yet. Seen is as of [ConnectFrom].
func Copy(ctx context.Context, ref, server string, seen Branch, to string) error {
	if !IsURL(ref) {
		return copyFile(ctx, ref, to)
	}
	from, err := dial(ref, copiesWithin, &branches{newest: seen})
	if err != nil {
		return err
	}
	defer from.Close()
	if err := checkCurrent(ctx, from); err != nil {
		return from.explain(err, "copy store %s", from.name)
	}
	copied, err := Open(ctx, to)
	if err != nil {
		return err
	}
	err = errors.Join(transfer(ctx, from, copied, &server, "", nil), copied.Close())
	return copied.explain(from.explain(err, "copy store %s", from.name), "write the copy")
}

// copyFile is Copy of a database of SQLite.
func copyFile(ctx context.Context, path, to string) error {
	s := newSQL(path, sqliteFile{path})
	db, err := connect(path, 1, url.Values{"_pragma": {lockWait}})
	if err != nil {
		return s.explain(err, "copy store %s", path)
	}
	defer db.Close()
	if err := inspectVersion(ctx, db, &Inspection{path: path}); err != nil {
		return s.explain(err, "copy store %s", path)
	}
	if _, err := db.ExecContext(ctx, `VACUUM INTO ?`, to); err != nil {
		return s.explain(err, "copy store %s", path)
	}
	return os.Chmod(to, 0o600)
}

// checkCurrent refuses a database whose schema is not the one of this program.
func checkCurrent(ctx context.Context, s *SQL) error {
	has, err := s.engine.version(ctx, s.reader)
	if err != nil {
		return err
	}
	if known := len(s.engine.steps()); has < known {
		return errdef.New(errdef.Unsupported, "database_too_old", "database %s has schema version %d, and this drowse reads version %d", s.name, has, known).
			WithRemedy("use the drowse of the server that writes to it, or start this one as the server first")
	}
	return checkVersion(s.name, has, len(s.engine.steps()))
}

// transfer copies all tables, as they are at one moment, in one transaction with what also
// does: what a server has, or with nil all. What has an owner has this one in the copy.
func transfer(ctx context.Context, from, to *SQL, server *string, owner string, also func(*sql.Tx) error) (err error) {
	reading, err := from.engine.snapshot(ctx, from.reader)
	if err != nil {
		return err
	}
	defer func() { _ = reading.Rollback() }()
	tx, err := to.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := to.engine.alone(ctx, tx); err != nil {
		return err
	}
	if err := checkEmpty(ctx, tx, to.name); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM secrets`); err != nil {
		return err
	}
	for _, t := range tables {
		if err := copyTable(ctx, reading, tx, t, server); err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
	}
	for _, of := range allOwned {
		if _, err := tx.ExecContext(ctx, `UPDATE `+of.table+` SET owner = ?`, owner); err != nil {
			return err
		}
	}
	// Numbers of events that are gone are not given again.
	var seq int64
	if err := reading.QueryRowContext(ctx, from.engine.lastEvent()).Scan(&seq); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if err := to.engine.setLastEvent(ctx, tx, seq); err != nil {
		return err
	}
	if also != nil {
		if err := also(tx); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func copyTable(ctx context.Context, from, to *sql.Tx, t table, server *string) error {
	where, args := "", []any(nil)
	if t.own != "" && server != nil {
		where, args = ` WHERE `+t.own, []any{*server}
	}
	rows, err := from.QueryContext(ctx, `SELECT * FROM `+t.name+where+` ORDER BY `+t.order, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	insert, err := to.PrepareContext(ctx, `INSERT INTO `+t.name+` (`+strings.Join(columns, ", ")+`) VALUES (?`+strings.Repeat(", ?", len(columns)-1)+`)`)
	if err != nil {
		return err
	}
	defer insert.Close()
	values, at := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		at[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(at...); err != nil {
			return err
		}
		if _, err := insert.ExecContext(ctx, values...); err != nil {
			return err
		}
	}
	return rows.Err()
}
