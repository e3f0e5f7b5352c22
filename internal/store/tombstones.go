package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// What a server remembers of one API key's sandboxes that have ended. Creates and kills
// without pause would otherwise leave a month of them, in memory and in the database.
const (
	MostTombstones     = 10_000
	MostTombstoneBytes = 32 << 20
)

// Ended reports whether nothing but the tombstone is left of a sandbox.
func (sb Sandbox) Ended() bool {
	return sb.Record.State == lifecycle.Terminated && sb.Record.Op == nil
}

// endedAt is when it ended, for one that has.
func (sb Sandbox) endedAt() string {
	if t := sb.Record.Tombstone; t != nil {
		return stamp(t.At)
	}
	return stamp(sb.Record.CreatedAt)
}

// tombstones is the part of a database with what is left of sandboxes.
type tombstones struct{ s *SQL }

// CommitEnd implements [Store].
func (t tombstones) CommitEnd(ctx context.Context, sb Sandbox, entries []lifecycle.Entry) (forgotten []string, err error) {
	err = t.s.commit(ctx, sb, entries, nothing, func(ctx context.Context, tx *sql.Tx) (err error) {
		forgotten, err = forgetOldest(ctx, tx, sb, t.s.Self())
		return err
	})
	if err != nil {
		forgotten = nil
	}
	return forgotten, err
}

// forgetOldest removes the tombstones of an API key that are too many on a server with that
// of a sandbox, the oldest first, and returns their ids. That of the sandbox stays.
func forgetOldest(ctx context.Context, tx *sql.Tx, sb Sandbox, owner string) ([]string, error) {
	if !sb.Ended() {
		return nil, nil
	}
	var ids []string
	for {
		var has, bytes int64
		err := tx.QueryRowContext(ctx, `SELECT sandboxes, bytes FROM tombstones WHERE key = ? AND server = ?`, sb.Config.Key, owner).Scan(&has, &bytes)
		if err != nil || has <= MostTombstones && bytes <= MostTombstoneBytes {
			return ids, err
		}
		var id string
		err = tx.QueryRowContext(ctx, `
			DELETE FROM sandboxes WHERE id = (
				SELECT id FROM sandboxes WHERE key = ? AND ended_at IS NOT NULL AND id <> ? AND owner = ? ORDER BY ended_at LIMIT 1)
			RETURNING id`, sb.Config.Key, sb.ID, owner).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return ids, nil // it is too large itself
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
}
