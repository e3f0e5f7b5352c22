package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
)

// Volume is a directory that outlives sandboxes. Its files are kept elsewhere.
type Volume struct {
	ID        string    `json:"id"` // never used again
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	DiskMiB   int       `json:"diskMiB"` // what it may hold; 0 for what the server allows
	Owner     string    `json:"-"`       // the server that has it, as of [Owners]
}

// VolumeMount is a volume in a sandbox.
type VolumeMount struct {
	Volume string `json:"volume"` // its id
	Name   string `json:"name"`   // of the volume
	Path   string `json:"path"`   // absolute and clean
}

// ErrVolumeExists is what AddVolume returns for an id or a name that is taken.
func ErrVolumeExists(v Volume) error {
	return errdef.New(errdef.Exists, "volume_exists", "a volume named %q is there already", v.Name).
		WithRemedy("choose another name, or use that one")
}

// ErrVolumeNotFound is what is returned where there is no such volume.
func ErrVolumeNotFound(id string) error {
	return errdef.New(errdef.NotFound, "volume_not_found", "volume %q does not exist", id)
}

// AddVolume implements [Store].
func (s *SQL) AddVolume(ctx context.Context, v Volume) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx,
			`INSERT INTO volumes (id, name, created_at, disk, owner) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, v.ID, v.Name, stamp(v.CreatedAt), v.DiskMiB, s.Self())
		if err := oneRow(result, err, func() error { return ErrVolumeExists(v) }); err != nil {
			return err
		}
		if err := changed(ctx, tx, KindVolumes); err != nil {
			return err
		}
		return failpoint.Fail(failpoint.VolumeAdd)
	})
	if err == nil {
		failpoint.Pass(failpoint.VolumeAdded)
	}
	return s.explain(err, "add volume %s", v.Name)
}

// Volumes implements [Store].
func (s *SQL) Volumes(ctx context.Context) ([]Volume, error) {
	volumes, err := collect(ctx, s.reader, scanVolume, selectVolumes)
	return volumes, s.explain(err, "read volumes")
}

const (
	selectVolumes = `SELECT id, name, created_at, disk, owner FROM volumes ORDER BY created_at, rowid`
	// selectUnowned is for a database that knows of no owners.
	selectUnowned = `SELECT id, name, created_at, disk, '' FROM volumes ORDER BY created_at, rowid`
	// selectUnlimited is for a database that knows of no limits either.
	selectUnlimited = `SELECT id, name, created_at, 0, '' FROM volumes ORDER BY created_at, rowid`
)

func scanVolume(rows *sql.Rows) (v Volume, err error) {
	var created string
	if err := rows.Scan(&v.ID, &v.Name, &created, &v.DiskMiB, &v.Owner); err != nil {
		return Volume{}, err
	}
	if v.CreatedAt, err = time.Parse(stampLayout, created); err != nil {
		return Volume{}, fmt.Errorf("volume %s: %w", v.ID, err)
	}
	return v, nil
}

// RemoveVolume implements [Store].
func (s *SQL) RemoveVolume(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.remove(ctx, tx, ownedVolumes, id, ErrVolumeNotFound(id)); err != nil {
			return err
		}
		return failpoint.Fail(failpoint.VolumeStrike)
	})
	if err == nil {
		failpoint.Pass(failpoint.VolumeStricken)
	}
	return s.explain(err, "remove volume %s", id)
}

// oneRow returns otherwise's error if a statement has changed nothing.
func oneRow(result sql.Result, err error, otherwise func() error) error {
	if err != nil {
		return err
	}
	changed, err := result.RowsAffected()
	if err != nil || changed == 1 {
		return err
	}
	return otherwise()
}

// atMost returns otherwise's error if a query counts more than most.
func atMost(ctx context.Context, tx *sql.Tx, most int, otherwise func() error, query string, args ...any) error {
	var has int
	if err := tx.QueryRowContext(ctx, query, args...).Scan(&has); err != nil || has <= most {
		return err
	}
	return otherwise()
}
