package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Several servers can have their records in one database. Each sandbox, snapshot, volume
// and built template has one owner: the server whose state directory has its files, and
// that alone writes its record. All of them see all records.

// Kind is a kind of records, of which a server has a copy in memory.
type Kind string

// The kinds of records.
const (
	KindEvents    Kind = "events"
	KindKeys      Kind = "keys"
	KindSSHKeys   Kind = "ssh_keys"
	KindSecrets   Kind = "used_secrets"
	KindWebhooks  Kind = "webhooks"
	KindVolumes   Kind = "volumes"
	KindSnapshots Kind = "snapshots"
	KindTemplates Kind = "templates"
	KindOwners    Kind = "owners" // which server has which sandbox, and which leave
)

// Owners tell which server has what, and what others have changed.
type Owners interface {
	// Self returns the id of the server that this store has claimed, which is the owner
	// of all that it adds; empty for none, as with SQLite. Records without an owner are
	// those of the first server that is claimed.
	Self() string
	// Sandbox returns the record of a sandbox, whoever has it, or an errdef.NotFound.
	Sandbox(ctx context.Context, id string) (Sandbox, error)
	// Others returns the server that has each sandbox which another server has, whatever has
	// become of it.
	Others(ctx context.Context) (owners map[string]string, err error)
	// Page returns what a list has of the sandboxes of all servers, as they are committed at
	// one moment. For a page without Template, Metadata, Name and Idempotency it reads the
	// records of that page alone.
	Page(ctx context.Context, q Selection) (Page, error)
	// UseOfOthers returns what the sandboxes of each API key take on other servers.
	UseOfOthers(ctx context.Context) (map[string]Use, error)
	// Changes returns a number for each kind of records, which is higher once any server
	// has changed some. That of events is the Seq of the last one. When a key, a secret
	// or a webhook was used last, or how far it has got, is no change.
	Changes(ctx context.Context) (map[Kind]int64, error)
}

// Offices tell which server does what only one may do.
type Offices interface {
	// Elect returns the server that does what only one may do; empty where none may. It is this
	// one from the first call on for which no other is, until its lease has ended, and Self
	// without a claim.
	Elect(ctx context.Context, office string) (server string, err error)
	// Resign lets another server be elected while the lease of this one lasts. It is no
	// error for one that is not elected.
	Resign(ctx context.Context, office string) error
}

// codeElsewhere is the code of ErrElsewhere.
const codeElsewhere = "on_another_server"

// ErrElsewhere says that another server has what is asked for, such as "sandbox i0…". The
// request can be passed on to it; it is an answer only where that is in vain.
func ErrElsewhere(what, server string) error {
	kind, id, _ := strings.Cut(what, " ")
	return errdef.New(errdef.Conflict, codeElsewhere, "%s is on server %s, and what else the request needs is on another; nothing was changed", what, server).
		WithRemedy("name only what one server has").With("server", server).With(kind, id)
}

// ErrRoomElsewhere says that another server can make a sandbox which is not made here. The request
// can be passed on to it as by ErrElsewhere.
func ErrRoomElsewhere(server string) error {
	return errdef.New(errdef.Conflict, codeElsewhere, "the sandbox can be made by server %s and not by this one, and the request could not be passed on; nothing was changed", server).
		WithRemedy("send it again, or to that server").With("server", server)
}

// Elsewhere returns the server that has what an error of ErrElsewhere is about.
func Elsewhere(err error) (server string, ok bool) {
	if errdef.CodeOf(err) != codeElsewhere {
		return "", false
	}
	server, ok = errdef.Fact(err, "server").(string)
	return server, ok
}

// SandboxElsewhere is Elsewhere of an error that is about that sandbox.
func SandboxElsewhere(err error, id string) (server string, ok bool) {
	server, ok = Elsewhere(err)
	return server, ok && errdef.Fact(err, "sandbox") == id
}

// owners is the part of a database that tells who has what.
type owners struct{ s *SQL }

// Self implements [Store].
func (x *owners) Self() string {
	server, _ := x.s.claimed()
	return server
}

// Sandbox implements [Store].
func (x *owners) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	found, err := collect(ctx, x.s.reader, scanSandbox, selectSandboxes+` WHERE id = ?`, id)
	switch {
	case err != nil:
		return Sandbox{}, x.s.explain(err, "read sandbox %s", id)
	case len(found) == 0:
		return Sandbox{}, ErrSandboxNotFound(id)
	}
	return found[0], nil
}

// Others implements [Store].
func (x *owners) Others(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	_, err := collect(ctx, x.s.reader, func(rows *sql.Rows) (id string, err error) {
		var owner string
		err = rows.Scan(&id, &owner)
		all[id] = owner
		return id, err
	}, `SELECT id, owner FROM sandboxes WHERE owner <> ?`, x.Self())
	return all, x.s.explain(err, "read which servers have which sandboxes")
}

// ownedKind is a kind of records that have an owner.
type ownedKind struct {
	table, what string
	kind        Kind // empty for one whose changes are not counted
}

var (
	ownedSandboxes = ownedKind{table: "sandboxes", what: "sandbox"}
	ownedSnapshots = ownedKind{"snapshots", "snapshot", KindSnapshots}
	ownedVolumes   = ownedKind{"volumes", "volume", KindVolumes}
	ownedTemplates = ownedKind{"templates", "template", KindTemplates}
)

// allOwned are the tables with an owner in each row.
var allOwned = []ownedKind{ownedSandboxes, ownedSnapshots, ownedVolumes, ownedTemplates}

// own refuses what would change a record of another server. One that is not there is for
// the caller to refuse.
func (x *owners) own(ctx context.Context, tx *sql.Tx, of ownedKind, id string) error {
	var owner string
	err := tx.QueryRowContext(ctx, `SELECT owner FROM `+of.table+` WHERE id = ?`, id).Scan(&owner)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err == nil && owner != x.Self():
		err = ErrElsewhere(of.what+" "+id, owner)
	}
	return err
}

// remove deletes a record of the server's own, and returns missing if there is none.
func (x *owners) remove(ctx context.Context, tx *sql.Tx, of ownedKind, id string, missing error) error {
	if err := x.own(ctx, tx, of, id); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, `DELETE FROM `+of.table+` WHERE id = ?`, id)
	if err := oneRow(result, err, func() error { return missing }); err != nil {
		return err
	}
	return changed(ctx, tx, of.kind)
}

// isOwn is the condition that a row is a server's: also one without an owner, if that is the
// only server.
const isOwn = `(owner = ?1 OR owner = '' AND NOT EXISTS (SELECT 1 FROM servers WHERE servers.id <> ?1))`

// adopt gives a server that is the only one all that has no owner.
func adopt(ctx context.Context, tx *sql.Tx, server string) error {
	for _, of := range allOwned {
		result, err := tx.ExecContext(ctx, `UPDATE `+of.table+` SET owner = ?1 WHERE owner = '' AND `+isOwn, server)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err == nil && n > 0 && of.kind != "" {
			err = changed(ctx, tx, of.kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed counts a change of kinds of records.
func changed(ctx context.Context, tx *sql.Tx, kinds ...Kind) error {
	for _, kind := range kinds {
		if _, err := tx.ExecContext(ctx, `UPDATE changes SET n = n + 1 WHERE kind = ?`, string(kind)); err != nil {
			return err
		}
	}
	return nil
}

// Changes implements [Store].
func (x *owners) Changes(ctx context.Context) (map[Kind]int64, error) {
	all := map[Kind]int64{}
	_, err := collect(ctx, x.s.reader, func(rows *sql.Rows) (kind Kind, err error) {
		var n int64
		err = rows.Scan(&kind, &n)
		all[kind] = n
		return kind, err
	}, `SELECT kind, n FROM changes UNION ALL SELECT 'events', coalesce(max(seq), 0) FROM events`)
	if err != nil {
		return nil, x.s.explain(err, "read what has changed")
	}
	return all, nil
}

// Elect implements [Store]. It writes only where the office changes hands.
func (x *owners) Elect(ctx context.Context, office string) (server string, err error) {
	self, id := x.s.claimed()
	if self == "" {
		return "", nil
	}
	living := `EXISTS (SELECT 1 FROM servers WHERE servers.id = offices.server AND servers.claim = offices.claim AND servers.lease_until > ` + x.s.engine.now() + `)`
	elected := func(q querier) error {
		var claim string
		err := q.QueryRowContext(ctx, `SELECT server, claim FROM offices WHERE name = ? AND `+living, office).Scan(&server, &claim)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			server = ""
			return nil
		case err == nil && server == self && claim != id:
			return ErrFenced(self)
		}
		return err
	}
	if err := elected(x.s.reader); err != nil || server != "" {
		return server, x.s.explain(err, "see who is elected for %s", office)
	}
	err = x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO offices (name, server, claim) SELECT CAST(? AS TEXT), id, claim FROM servers WHERE id = ? AND lease_until > `+x.s.engine.now()+`
			ON CONFLICT (name) DO UPDATE SET server = excluded.server, claim = excluded.claim
			WHERE offices.server = excluded.server OR NOT `+living, office, self)
		if err != nil {
			return err
		}
		return elected(tx)
	})
	if err != nil {
		return "", x.s.explain(err, "elect somebody for %s", office)
	}
	return server, nil
}

// Resign implements [Store].
func (x *owners) Resign(ctx context.Context, office string) error {
	server, id := x.s.claimed()
	if server == "" {
		return nil
	}
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM offices WHERE name = ? AND server = ? AND claim = ?`, office, server, id)
		return err
	})
	return x.s.explain(err, "resign from %s", office)
}
