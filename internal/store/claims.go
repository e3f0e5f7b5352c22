package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// IdempotencyLife is how long an idempotency key stays bound to the sandbox that it
// has made. A tombstone is kept for longer, so the record outlives the key.
const IdempotencyLife = 24 * time.Hour

// BoundAt returns since when the idempotency key of a sandbox is bound.
func (sb Sandbox) BoundAt() time.Time {
	if at := sb.Config.Idempotency.At; !at.IsZero() {
		return at
	}
	return sb.Record.CreatedAt
}

// The errors of a commit that the store's state forbids. Nothing of it has happened.

// ErrChanged says that a record is not as it was when the change was decided.
func ErrChanged(id string) error {
	return errdef.New(errdef.Conflict, "record_changed", "sandbox %s was changed by another server meanwhile; this change was not made", id).
		WithRemedy("try again")
}

// IsChanged reports whether an error is one of ErrChanged.
func IsChanged(err error) bool { return errdef.CodeOf(err) == "record_changed" }

// ErrSandboxExists refuses a new sandbox with an id that is known.
func ErrSandboxExists(id string) error {
	return errdef.New(errdef.Exists, "sandbox_exists", "sandbox %s is known here", id).
		WithRemedy("import it with a new id").With("sandbox", id)
}

// ErrNameTaken says that a sandbox has the name that another is to have.
func ErrNameTaken(id, name string) error {
	return errdef.New(errdef.Exists, "name_taken", "sandbox %s has the name %q already", id, name).
		WithRemedy("choose another name, or kill that sandbox first").With("name", name)
}

// IsNameTaken reports whether an error is one of ErrNameTaken.
func IsNameTaken(err error) bool { return errdef.CodeOf(err) == "name_taken" }

// ErrMade says that an idempotency key has made a sandbox.
func ErrMade(id, key string) error {
	return errdef.New(errdef.Conflict, "idempotency_key_used", "idempotency key %.300q has made sandbox %s already", key, id).
		WithRemedy("go on with that sandbox, or use another key for another one").With("sandbox", id)
}

// Refused reports whether a commit failed because of what the store holds, or of who
// writes for the server, and not because the store cannot write: the same commit would be
// refused again.
func Refused(err error) bool {
	switch errdef.ClassOf(err) {
	case errdef.Exists, errdef.Conflict, errdef.Exhausted, errdef.NotFound, errdef.Fenced:
		return true
	}
	return false
}

// ErrUnlearned is the error of a commit of which nobody could learn in time whether it has happened.
func ErrUnlearned(err error) error { return &unlearned{err} }

// IsUnlearned reports whether an error is one of ErrUnlearned: all others say that nothing was changed.
func IsUnlearned(err error) bool { return errors.As(err, new(*unlearned)) }

type unlearned struct{ error }

// Unwrap returns why.
func (u *unlearned) Unwrap() error { return u.error }

// claims are the columns of a record by which the database holds it to what is unique and
// counted, in their order. It takes so many bytes.
func claims(sb Sandbox, bytes int) []any {
	use := sb.Use()
	bound, at := any(nil), any(nil)
	if as := sb.Config.Idempotency; as != nil && !sb.Failed() {
		bound, at = as.Key, stamp(sb.BoundAt())
	}
	ended := any(nil)
	if sb.Ended() {
		ended = sb.endedAt()
	} else {
		bytes = 0
	}
	return []any{orNull(sb.named()), bound, at, use.Running, use.Sandboxes, use.MemoryMiB, use.DiskMiB, ended, bytes}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// The statements that write a record. Who has a name, or made a sandbox by an
// idempotency key, is decided when the sandbox is inserted; from then on either can
// only be given up.
const (
	insertSandbox = `
		INSERT INTO sandboxes (rev, id, key, version, state, created_at, data,
			name, idempotency, bound_at, running, present, memory_mib, disk_mib, ended_at, bytes, outline, started_at, owner)
		VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`
	updateSandbox = `
		UPDATE sandboxes SET rev = rev + 1, version = ?, state = ?, created_at = ?, data = ?,
			name = CASE WHEN CAST(? AS TEXT) IS NOT NULL THEN name END,
			idempotency = CASE WHEN CAST(? AS TEXT) IS NOT NULL THEN idempotency END, bound_at = CASE WHEN CAST(? AS TEXT) IS NOT NULL THEN bound_at END,
			running = ?, present = ?, memory_mib = ?, disk_mib = ?, ended_at = ?, bytes = ?, outline = ?, started_at = ?
		WHERE id = ? AND rev = ? AND owner = ?`
	selectLimits = `SELECT max_running, max_sandboxes, max_memory, max_disk FROM keys WHERE id = ?`
)

// records writes the records of sandboxes, as far as nothing forbids it.
type records struct {
	insert, update *sql.Stmt
	limits         *sql.Stmt
}

// put writes a record, whose columns begin with its id and API key, unless its
// revision, the limits of its API key, or what other records hold forbid it. A create
// that is repeated hears of its sandbox, also where its key is at its limits. A record that
// is there must be one's own.
func (r *records) put(ctx context.Context, tx *sql.Tx, sb Sandbox, record []any, own *owners) error {
	if sb.Rev == 0 {
		if err := freeIdempotency(ctx, tx, sb); err != nil {
			return err
		}
	}
	err := r.fit(ctx, tx, sb)
	if err != nil && sb.Rev > 0 { // its key may have no room for what was done to it elsewhere
		err = cmp.Or(own.own(ctx, tx, ownedSandboxes, sb.ID), err)
	}
	if err != nil {
		return err
	}
	if sb.Rev > 0 {
		result, err := tx.StmtContext(ctx, r.update).ExecContext(ctx, append(record[2:], sb.ID, sb.Rev, own.Self())...)
		return oneRow(result, err, func() error { return cmp.Or(own.own(ctx, tx, ownedSandboxes, sb.ID), ErrChanged(sb.ID)) })
	}
	result, err := tx.StmtContext(ctx, r.insert).ExecContext(ctx, append(record, own.Self())...)
	return oneRow(result, err, func() error { return inTheWay(ctx, tx, sb) })
}

// freeIdempotency refuses a new record whose idempotency key has made another sandbox,
// unless that was a day ago. One of the same id is for the insert to refuse.
func freeIdempotency(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	as := sb.Config.Idempotency
	if as == nil {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET idempotency = NULL, bound_at = NULL WHERE key = ? AND idempotency = ? AND bound_at <= ?`,
		sb.Config.Key, as.Key, stamp(sb.BoundAt().Add(-IdempotencyLife))); err != nil {
		return err
	}
	var made string
	err := tx.QueryRowContext(ctx, `SELECT id FROM sandboxes WHERE key = ? AND idempotency = ? AND id <> ?`, sb.Config.Key, as.Key, sb.ID).Scan(&made)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return cmp.Or(err, ErrMade(made, as.Key))
}

// inTheWay says which record keeps a new one from being written.
func inTheWay(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	holder := func(query string, args ...any) (id string, err error) {
		err = tx.QueryRowContext(ctx, query, args...).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return id, err
	}
	if id, err := holder(`SELECT id FROM sandboxes WHERE id = ?`, sb.ID); id != "" || err != nil {
		return cmp.Or(err, ErrSandboxExists(sb.ID))
	}
	id, err := holder(`SELECT id FROM sandboxes WHERE key = ? AND name = ?`, sb.Config.Key, sb.Config.Name)
	return cmp.Or(err, ErrNameTaken(id, sb.Config.Name))
}

// fit refuses a record with which its API key would use more than it may.
func (r *records) fit(ctx context.Context, tx *sql.Tx, sb Sandbox) error {
	use, key := sb.Use(), sb.Config.Key
	if use == (Use{}) {
		return nil
	}
	most, err := r.limitsOf(ctx, tx, key)
	if most == (KeyLimits{}) || err != nil {
		return err
	}
	var was Use
	err = tx.QueryRowContext(ctx, `SELECT running, present, memory_mib, disk_mib FROM sandboxes WHERE id = ?`, sb.ID).
		Scan(&was.Running, &was.Sandboxes, &was.MemoryMiB, &was.DiskMiB)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	now, err := useOf(ctx, tx, key)
	if err != nil {
		return err
	}
	return most.Fit(key, now, use.Minus(was))
}

// limitsOf returns the limits of an API key; none of one that is not known.
func (r *records) limitsOf(ctx context.Context, tx *sql.Tx, key string) (l KeyLimits, err error) {
	err = tx.StmtContext(ctx, r.limits).QueryRowContext(ctx, key).Scan(&l.Running, &l.Sandboxes, &l.MemoryMiB, &l.DiskMiB)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return l, err
}

// useOf returns what an API key uses.
func useOf(ctx context.Context, tx *sql.Tx, key string) (u Use, err error) {
	err = tx.QueryRowContext(ctx, `
		SELECT coalesce(sum(running), 0), count(*), coalesce(sum(memory_mib), 0),
			coalesce(sum(disk_mib), 0) + (SELECT coalesce(sum(disk_mib), 0) FROM snapshots WHERE key = ?1)
		FROM sandboxes WHERE key = ?1 AND present = 1`, key).Scan(&u.Running, &u.Sandboxes, &u.MemoryMiB, &u.DiskMiB)
	return u, err
}

// fitSnapshot refuses a snapshot with which its API key would have more than it may.
// Those that go for it are gone already: freed is what they took of the disk, and how
// many they were.
func (r *records) fitSnapshot(ctx context.Context, tx *sql.Tx, snap Snapshot, freedMiB, freed int) error {
	if freed == 0 {
		var has int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM snapshots WHERE key = ?`, snap.Key).Scan(&has); err != nil {
			return err
		}
		if err := FitSnapshots(has); err != nil {
			return err
		}
	}
	most, err := r.limitsOf(ctx, tx, snap.Key)
	if most.DiskMiB == 0 || err != nil {
		return err
	}
	now, err := useOf(ctx, tx, snap.Key)
	if err != nil {
		return err
	}
	return most.FitSnapshot(snap.Key, now.DiskMiB+freedMiB, snap.DiskMiB()-freedMiB, snap.Config.Limits)
}
