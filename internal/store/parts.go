package store

import (
	"context"
	"database/sql"
	"slices"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Parts returns the ids of the layers and images that a sandbox needs, each once: those
// of its checkpoint, and of the one that it is about to go back to.
func (sb Sandbox) Parts() []string {
	var all []string
	if sb.Ended() {
		return nil
	}
	if cp := sb.Record.Checkpoint; cp != nil {
		all = cp.Parts()
	}
	if op := sb.Record.Op; op != nil && op.Restore != nil {
		all = append(all, op.Restore.Checkpoint.Parts()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Adopts reports whether a commit of a sandbox with these entries of its log makes it
// need what a snapshot is made of. Others name what they have made themselves, as an
// import does, whose checkpoint is called like it; a fork that begins asleep is not one.
func (sb Sandbox) Adopts(entries []lifecycle.Entry) bool {
	if op := sb.Record.Op; op != nil && op.Restore != nil {
		return true
	}
	return slices.ContainsFunc(entries, func(e lifecycle.Entry) bool {
		switch e.Type {
		case lifecycle.EntryCreated, lifecycle.EntryRestored:
			return true
		case lifecycle.EntryImported:
			return sb.Record.Checkpoint != nil && e.Op != sb.Record.Checkpoint.ID
		}
		return false
	})
}

// ErrSnapshotGone says that the snapshot that a sandbox was to start from, or to go back
// to, is not there any more.
func ErrSnapshotGone(sandbox string) error {
	return errdef.New(errdef.NotFound, "snapshot_gone", "the snapshot that sandbox %s was to go on from was removed meanwhile; nothing has changed", sandbox).
		WithRemedy("list the snapshots, and choose another")
}

// parts is the part of a database with who needs which layers and images.
type parts struct{ s *SQL }

// Needed implements [Store].
func (p parts) Needed(ctx context.Context, part, but string) (needed bool, err error) {
	self := p.s.Self()
	err = p.s.reader.QueryRowContext(ctx, `
		SELECT EXISTS (SELECT 1 FROM parts WHERE part = ?1 AND holder <> ?2
			AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = holder AND ?3 <> '' AND owner NOT IN ('', ?3))
			AND NOT EXISTS (SELECT 1 FROM snapshots WHERE id = holder AND ?3 <> '' AND owner NOT IN ('', ?3)))`, part, but, self).Scan(&needed)
	return needed, p.s.explain(err, "look for who needs %s", part)
}

// holdParts notes what a sandbox needs from a commit on. What it adopts, a snapshot must
// have: nobody needs again what nobody needs any more, and what has ended and is being
// removed lends nothing.
func holdParts(ctx context.Context, tx *sql.Tx, sb Sandbox, entries []lifecycle.Entry) error {
	need := sb.Parts()
	has, err := collect(ctx, tx, scanText, `SELECT part FROM parts WHERE holder = ?`, sb.ID)
	if err != nil {
		return err
	}
	fresh, adopts := without(need, has), sb.Adopts(entries)
	for _, part := range fresh {
		if !adopts {
			break
		}
		var there bool
		err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM parts JOIN snapshots ON id = holder WHERE part = ?)`, part).Scan(&there)
		if err == nil && !there {
			err = ErrSnapshotGone(sb.ID)
		}
		if err != nil {
			return err
		}
	}
	if err := addParts(ctx, tx, sb.ID, fresh); err != nil {
		return err
	}
	for _, part := range without(has, need) {
		if _, err := tx.ExecContext(ctx, `DELETE FROM parts WHERE part = ? AND holder = ?`, part, sb.ID); err != nil {
			return err
		}
	}
	return nil
}

// addParts notes what a sandbox or a snapshot needs. The source of a snapshot, committed
// in the same transaction, has that or has just made it.
func addParts(ctx context.Context, tx *sql.Tx, holder string, parts []string) error {
	for _, part := range parts {
		if _, err := tx.ExecContext(ctx, `INSERT INTO parts (part, holder) VALUES (?, ?)`, part, holder); err != nil {
			return err
		}
	}
	return nil
}

func scanText(rows *sql.Rows) (text string, err error) {
	err = rows.Scan(&text)
	return text, err
}

// without returns those of all that are not among others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(x string) bool { return slices.Contains(others, x) })
}

// inspectParts compares who needs which parts with what the records and snapshots say,
// if all of these could be read. An older database knows nothing of it.
func inspectParts(ctx context.Context, db *sql.DB, found *Inspection) error {
	var columns int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_table_info('parts')`).Scan(&columns)
	if err != nil || columns == 0 || len(found.Problems) > 0 {
		return err
	}
	type row struct{ part, holder string }
	need := map[row]bool{}
	for _, sb := range found.Sandboxes {
		for _, part := range sb.Parts() {
			need[row{part, sb.ID}] = true
		}
	}
	for _, snap := range found.Snapshots {
		for _, part := range snap.Checkpoint.Parts() {
			need[row{part, snap.ID}] = true
		}
	}
	rows, err := collect(ctx, db, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.part, &r.holder)
		return r, err
	}, `SELECT part, holder FROM parts`)
	for _, r := range rows {
		if !need[r] {
			found.problem("", "%s is held for %s, which does not need it", r.part, r.holder)
		}
		delete(need, r)
	}
	for r := range need {
		found.problem("", "%s is not held for %s, which needs it", r.part, r.holder)
	}
	return err
}
