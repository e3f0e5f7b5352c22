package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Snapshot is a checkpoint that sandboxes can start from. It is independent of
// the sandbox that it was taken of. Only how long it is kept can change.
type Snapshot struct {
	ID        string    `json:"id"`             // never used again
	Name      string    `json:"name,omitempty"` // no other of its key has it
	CreatedAt time.Time `json:"createdAt"`
	Key       string    `json:"key,omitempty"` // the id of the API key that has made it

	// What it was taken of.
	Sandbox    string `json:"sandbox"`
	Generation int64  `json:"generation"`

	// Checkpoint is what a sandbox starts from. Its AgentToken is always set where
	// it has a memory image.
	Checkpoint lifecycle.Checkpoint `json:"checkpoint"`
	Settings   lifecycle.Settings   `json:"settings"`         // of the sandbox
	Config     Config               `json:"config"`           // of the sandbox, without what is its own alone
	Bytes      int64                `json:"bytes"`            // that were written for it, or by the pause that it keeps
	Frozen     time.Duration        `json:"frozen,omitempty"` // how long a running sandbox stood still for it
	// Replaces is the id of the snapshot that had its name until then; empty for
	// none.
	Replaces string `json:"replaces,omitempty"`
	// KeepLast says how many of the sandbox with a KeepLast were kept when this one
	// was made, with it, and Drops which ones went. With zero it dropped none, and
	// makes room for none.
	KeepLast int      `json:"keepLast,omitempty"`
	Drops    []string `json:"drops,omitempty"`
	// ExpiresAt is when it is removed, unless it is pinned; zero for never.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	Pinned    bool      `json:"pinned,omitempty"`
	// Undo is set for what the sandbox was before it went back to another snapshot.
	// The next such one replaces it, and it ends with the sandbox.
	Undo bool `json:"undo,omitempty"`
	// Passing is set for one that a fork removes when its children have started.
	Passing bool `json:"passing,omitempty"`
	// Owner is the server that has it, as of [Owners].
	Owner string `json:"-"`
	// Durability says where it is kept. The store knows nothing else than [Replicated].
	Durability Durability `json:"-"`
}

// Snapshots is the snapshots.
type Snapshots interface {
	// CommitSnapshot stores a snapshot, and in the same transaction does what Commit
	// does with the sandbox that it was taken of. It is errdef.Exists if its id is
	// known, or its name to its key, unless the one of that name is the one it
	// replaces: that is deleted in the same transaction, and so are those that it drops.
	// An undo can be committed again: the first commit may have failed only after it was
	// written. It is errdef.Exists too if its name belongs to a template of its key, and
	// no build made it, and errdef.Exhausted where the key would have more snapshots, or
	// more of the disk, than it may.
	// The result of a build becomes that of the template that has its name, as one of
	// its tags.
	CommitSnapshot(ctx context.Context, snap Snapshot, sb Sandbox, entries []lifecycle.Entry) error
	// Snapshots returns all snapshots, oldest first.
	Snapshots(ctx context.Context) ([]Snapshot, error)
	// ChangeSnapshot stores a snapshot that is known again.
	ChangeSnapshot(ctx context.Context, snap Snapshot) error
	// RemoveSnapshot deletes the record of a snapshot. Its files are the caller's to
	// remove, where they are not Needed.
	RemoveSnapshot(ctx context.Context, id string) error
	// Needed reports whether a sandbox or a snapshot of this server needs a layer or a memory
	// image, of all but one. Others have files of their own, which can be called the same. What has been made and was in no commit nobody needs, and what nobody
	// needs any more, nobody ever does again.
	Needed(ctx context.Context, part, but string) (bool, error)
}

// ErrSnapshotExists is what CommitSnapshot returns for an id or a name that is
// taken.
func ErrSnapshotExists(s Snapshot) error {
	return errdef.New(errdef.Exists, "snapshot_exists", "a snapshot named %q exists already", s.Name).
		WithRemedy("choose another name, or delete that snapshot first")
}

// ErrSnapshotNotFound is what is returned where there is no such snapshot.
func ErrSnapshotNotFound(ref string) error {
	return errdef.New(errdef.NotFound, "snapshot_not_found", "snapshot %.200q does not exist", ref).
		WithRemedy("list the snapshots with drowse snapshot ls; one of another API key is named by its id")
}

// goes returns the ids of the snapshots that go when this one is committed.
func (s Snapshot) goes() []string {
	all := append([]string{s.Replaces}, s.Drops...)
	if s.Undo {
		all = append(all, s.ID)
	}
	return slices.DeleteFunc(all, func(id string) bool { return id == "" })
}

// CommitSnapshot implements [Store].
func (s *SQL) CommitSnapshot(ctx context.Context, snap Snapshot, sb Sandbox, entries []lifecycle.Entry) error {
	data, err := encodeSnapshot(&snap)
	if err != nil {
		return s.explain(err, "commit snapshot %s", snap.ID)
	}
	name := sql.NullString{String: snap.Name, Valid: snap.Name != ""}
	return s.commit(ctx, sb, entries, nothing, func(ctx context.Context, tx *sql.Tx) error {
		if err := freeForSnapshot(ctx, tx, snap); err != nil {
			return err
		}
		freed, freedMiB := 0, 0
		for _, id := range snap.goes() {
			var mib int
			err := tx.QueryRowContext(ctx, `DELETE FROM snapshots WHERE id = ? AND owner = ? RETURNING disk_mib`, id, s.Self()).Scan(&mib)
			if errors.Is(err, sql.ErrNoRows) {
				err = cmp.Or(s.own(ctx, tx, ownedSnapshots, id), err)
			}
			switch {
			case err == nil:
				freed, freedMiB = freed+1, freedMiB+mib
			case !errors.Is(err, sql.ErrNoRows):
				return err
			}
		}
		if err := s.records.fitSnapshot(ctx, tx, snap, freedMiB, freed); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `INSERT INTO snapshots (id, key, name, version, created_at, data, disk_mib, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			snap.ID, snap.Key, name, formVersion, stamp(snap.CreatedAt), data, snap.DiskMiB(), s.Self())
		if err := oneRow(result, err, func() error { return ErrSnapshotExists(snap) }); err != nil {
			return err
		}
		if err := addParts(ctx, tx, snap.ID, snap.Checkpoint.Parts()); err != nil {
			return err
		}
		if err := s.tagTemplate(ctx, tx, snap); err != nil {
			return err
		}
		return changed(ctx, tx, KindSnapshots)
	})
}

// encodeSnapshot returns a snapshot as it is stored, with its times in UTC.
func encodeSnapshot(snap *Snapshot) (string, error) {
	toUTC(&snap.CreatedAt, &snap.ExpiresAt)
	snap.Config = inUTC(Sandbox{Config: snap.Config}).Config
	return encode(*snap)
}

// ChangeSnapshot implements [Store].
func (s *SQL) ChangeSnapshot(ctx context.Context, snap Snapshot) error {
	data, err := encodeSnapshot(&snap)
	if err == nil {
		err = s.write(ctx, snap.Key, func(ctx context.Context, tx *sql.Tx) error {
			if err := s.own(ctx, tx, ownedSnapshots, snap.ID); err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, `UPDATE snapshots SET version = ?, data = ? WHERE id = ?`, formVersion, data, snap.ID)
			if err := oneRow(result, err, func() error { return ErrSnapshotNotFound(snap.ID) }); err != nil {
				return err
			}
			return changed(ctx, tx, KindSnapshots)
		})
	}
	return s.explain(err, "change snapshot %s", snap.ID)
}

// Snapshots implements [Store].
func (s *SQL) Snapshots(ctx context.Context) ([]Snapshot, error) {
	all, err := collect(ctx, s.reader, scanSnapshot, selectSnapshots+` ORDER BY created_at, rowid`)
	return all, s.explain(err, "read snapshots")
}

const selectSnapshots = `SELECT id, version, data, owner, EXISTS (SELECT 1 FROM replicas WHERE snapshot = id) FROM snapshots`

func scanSnapshot(rows *sql.Rows) (Snapshot, error) {
	var (
		id      string
		version int
		data    sql.RawBytes
		copied  bool
		snap    Snapshot
	)
	if err := rows.Scan(&id, &version, &data, &snap.Owner, &copied); err != nil {
		return Snapshot{}, err
	}
	if copied {
		snap.Durability = Replicated
	}
	err := decode("snapshot "+id, version, data, &snap)
	return snap, err
}

// RemoveSnapshot implements [Store].
func (s *SQL) RemoveSnapshot(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.remove(ctx, tx, ownedSnapshots, id, ErrSnapshotNotFound(id)); err != nil {
			return err
		}
		return failpoint.Fail(failpoint.SnapshotStrike)
	})
	if err == nil {
		failpoint.Pass(failpoint.SnapshotStricken)
	}
	return s.explain(err, "remove snapshot %s", id)
}

// inspectSnapshots reads the snapshots, of which an older database knows nothing.
func inspectSnapshots(ctx context.Context, db *sql.DB, found *Inspection) error {
	var columns int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_table_info('snapshots')`).Scan(&columns)
	if err != nil || columns == 0 {
		return err
	}
	_, err = collect(ctx, db, func(rows *sql.Rows) (struct{}, error) {
		var (
			id      string
			version int
			data    sql.RawBytes
			snap    Snapshot
		)
		if err := rows.Scan(&id, &version, &data); err != nil {
			return struct{}{}, err
		}
		if err := decode("record", version, data, &snap); err != nil {
			found.problem("", "snapshot %s: %v", id, err)
			return struct{}{}, nil
		}
		found.Snapshots = append(found.Snapshots, snap)
		return struct{}{}, nil
	}, `SELECT id, version, data FROM snapshots ORDER BY created_at, rowid`)
	return err
}
