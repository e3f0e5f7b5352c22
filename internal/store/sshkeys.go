package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// SSHKey is the public key of an SSH client.
type SSHKey struct {
	ID        string // UUID
	Key       string // the API key whose holder it stands for
	Name      string
	PublicKey string // type and Base64, as in authorized_keys
	CreatedAt time.Time
}

// MostSSHKeys is how many SSH keys an API key may have.
const MostSSHKeys = 100

// ErrTooManySSHKeys is what AddSSHKey returns for one more than an API key may have.
func ErrTooManySSHKeys() error {
	return errdef.New(errdef.Exhausted, "ssh_keys_limit", "an API key has at most %d SSH keys", MostSSHKeys).
		WithRemedy("remove one first").With("allowed", MostSSHKeys)
}

// AddSSHKey implements [Store].
func (s *SQL) AddSSHKey(ctx context.Context, k SSHKey) error {
	err := s.write(ctx, k.Key, func(ctx context.Context, tx *sql.Tx) error {
		if err := needKey(ctx, tx, k.Key); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `
			INSERT INTO ssh_keys (id, key, name, public_key, created_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`, k.ID, k.Key, k.Name, k.PublicKey, stamp(k.CreatedAt))
		if err := oneRow(result, err, func() error {
			return errdef.New(errdef.Exists, "ssh_key_exists", "the API key has this SSH key already")
		}); err != nil {
			return err
		}
		if err := atMost(ctx, tx, MostSSHKeys, ErrTooManySSHKeys, `SELECT count(*) FROM ssh_keys WHERE key = ?`, k.Key); err != nil {
			return err
		}
		return changed(ctx, tx, KindSSHKeys)
	})
	return s.explain(err, "add SSH key %s", k.ID)
}

// SSHKeys implements [Store].
func (s *SQL) SSHKeys(ctx context.Context) ([]SSHKey, error) {
	keys, err := collect(ctx, s.reader, scanSSHKey, `
		SELECT id, key, name, public_key, created_at FROM ssh_keys ORDER BY created_at, rowid`)
	return keys, s.explain(err, "read SSH keys")
}

// RemoveSSHKey implements [Store].
func (s *SQL) RemoveSSHKey(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM ssh_keys WHERE id = ?`, id)
		if err := oneRow(result, err, func() error { return errdef.New(errdef.NotFound, "ssh_key_not_found", "no SSH key %q", id) }); err != nil {
			return err
		}
		return changed(ctx, tx, KindSSHKeys)
	})
	return s.explain(err, "remove SSH key %s", id)
}

func scanSSHKey(rows *sql.Rows) (SSHKey, error) {
	var (
		k       SSHKey
		created string
	)
	err := rows.Scan(&k.ID, &k.Key, &k.Name, &k.PublicKey, &created)
	if err == nil {
		k.CreatedAt, err = time.Parse(stampLayout, created)
	}
	return k, err
}
