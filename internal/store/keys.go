package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Key is an API key without its secret.
type Key struct {
	ID         string    `json:"id"` // UUID
	Name       string    `json:"name"`
	Hash       [32]byte  `json:"-"`      // SHA-256 of the key's text
	Prefix     string    `json:"prefix"` // what the key's text begins with
	Suffix     string    `json:"suffix"` // the last four characters of the key's text
	Role       Role      `json:"role"`
	Limits     KeyLimits `json:"limits"`
	CreatedAt  time.Time `json:"createdAt"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`  // zero for never
	LastUsedAt time.Time `json:"lastUsedAt,omitzero"` // zero for never; it may lag behind
}

// Lasting reports whether with this key others can be made, for ever.
func (k Key) Lasting() bool { return k.Role == RoleAdmin && k.ExpiresAt.IsZero() }

// Role says what a key is good for.
type Role string

// The roles.
const (
	RoleAdmin Role = "admin" // everything
	RoleFull  Role = "full"  // everything with sandboxes, whoever has made them
	RoleOwn   Role = "own"   // everything with the sandboxes that the key has made; it sees no others
	RoleRead  Role = "read"  // to look at sandboxes from outside
)

// KeyLimits bound what the sandboxes that a key has made take together, and the calls
// that it makes. Zero is no bound.
type KeyLimits struct {
	Running   int `json:"running"`   // how many run at once
	Sandboxes int `json:"sandboxes"` // how many there are, asleep or not
	MemoryMiB int `json:"memoryMiB"` // the memory limits of those that run, added up
	DiskMiB   int `json:"diskMiB"`   // the limits on disk of all of them, added up
	Rate      int `json:"rate"`      // calls of the API per second; zero is what the server allows every key
}

// KeyChange is what is to change of a key. What is zero stays.
type KeyChange struct {
	Name           string
	Hash           [32]byte // with Prefix and Suffix
	Prefix, Suffix string
	// Limits changes those that are stored, or refuses to: then nothing changes. It may be
	// called more than once, and must not use the store.
	Limits func(*KeyLimits) error
}

// Apply changes k.
func (c KeyChange) Apply(k *Key) error {
	if c.Limits != nil {
		if err := c.Limits(&k.Limits); err != nil {
			return err
		}
	}
	if c.Name != "" {
		k.Name = c.Name
	}
	if c.Hash != [32]byte{} {
		k.Hash, k.Prefix, k.Suffix = c.Hash, c.Prefix, c.Suffix
	}
	return nil
}

// AddKey implements [Store].
func (s *SQL) AddKey(ctx context.Context, k Key) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		if err := freeName(ctx, tx, k.ID, k.Name); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `
			INSERT INTO keys (id, name, hash, prefix, suffix, created_at,
				role, max_running, max_sandboxes, max_memory, max_disk, max_rate, expires_at, last_used_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`,
			k.ID, k.Name, k.Hash[:], k.Prefix, k.Suffix, stamp(k.CreatedAt),
			string(k.Role), k.Limits.Running, k.Limits.Sandboxes, k.Limits.MemoryMiB, k.Limits.DiskMiB, k.Limits.Rate, stampOrNull(k.ExpiresAt), stampOrNull(k.LastUsedAt))
		if err := oneRow(result, err, func() error {
			return errdef.New(errdef.Exists, "key_exists", "key %s, or another with the same text, is there already", k.ID)
		}); err != nil {
			return err
		}
		return changed(ctx, tx, KindKeys)
	})
	return s.explain(err, "add key %s", k.ID)
}

// freeName refuses a name that another key has. There is no constraint in the schema:
// older servers let keys have the same name.
func freeName(ctx context.Context, tx *sql.Tx, id, name string) error {
	var other string
	err := tx.QueryRowContext(ctx, `SELECT id FROM keys WHERE name = ? AND id <> ?`, name, id).Scan(&other)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return NameOfKeyTaken(other, name)
}

// NameOfKeyTaken says that a key has a name already.
func NameOfKeyTaken(id, name string) error {
	return errdef.New(errdef.Exists, "key_name_taken", "API key %s has the name %q already", id, name).
		WithRemedy("use another name, or revoke that key first")
}

// ErrLastAdmin says that a key must stay, since nobody could make another without it.
func ErrLastAdmin() error {
	return errdef.New(errdef.Conflict, "last_admin_key", "it is the last admin key that does not expire").
		WithRemedy("make another first")
}

func errKeyNotFound(id string) error {
	return errdef.New(errdef.NotFound, "key_not_found", "no API key %q", id)
}

// selectKeys is for scanKey.
const selectKeys = `
	SELECT id, name, hash, prefix, suffix, created_at,
		role, max_running, max_sandboxes, max_memory, max_disk, max_rate, expires_at, last_used_at
	FROM keys`

// keyInside returns the key of an id as it is in a transaction.
func keyInside(ctx context.Context, tx *sql.Tx, id string) (Key, error) {
	found, err := collect(ctx, tx, scanKey, selectKeys+` WHERE id = ?`, id)
	if err == nil && len(found) == 0 {
		err = errKeyNotFound(id)
	}
	if err != nil {
		return Key{}, err
	}
	return found[0], nil
}

// needKey refuses what would belong to an API key that is not there: its calls may still be
// under way when it is removed, here or by another server.
func needKey(ctx context.Context, tx *sql.Tx, id string) error {
	there, err := holds(ctx, tx, `SELECT 1 FROM keys WHERE id = ?`, id)
	if err == nil && !there {
		err = errKeyNotFound(id)
	}
	return err
}

// Keys implements [Store].
func (s *SQL) Keys(ctx context.Context) ([]Key, error) {
	keys, err := collect(ctx, s.reader, scanKey, selectKeys+` ORDER BY created_at, rowid`)
	return keys, s.explain(err, "read keys")
}

// KeysUsed implements [Store].
func (s *SQL) KeysUsed(ctx context.Context, at map[string]time.Time) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		for id, t := range at {
			if _, err := tx.ExecContext(ctx, `UPDATE keys SET last_used_at = ?1 WHERE id = ?2 AND (last_used_at IS NULL OR last_used_at < ?1)`, stamp(t), id); err != nil {
				return err
			}
		}
		return nil
	})
	return s.explain(err, "note the use of keys")
}

// UpdateKey implements [Store].
func (s *SQL) UpdateKey(ctx context.Context, id string, c KeyChange) (k Key, err error) {
	err = s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if k, err = keyInside(ctx, tx, id); err != nil {
			return err
		}
		if err := c.Apply(&k); err != nil {
			return err
		}
		if c.Name != "" {
			if err := freeName(ctx, tx, id, c.Name); err != nil {
				return err
			}
		}
		if c.Hash != [32]byte{} {
			var taken bool
			if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM keys WHERE hash = ?)`, c.Hash[:]).Scan(&taken); err != nil {
				return err
			}
			if taken {
				return errdef.New(errdef.Exists, "key_exists", "an API key with the same text is there already")
			}
		}
		_, err = tx.ExecContext(ctx, `
			UPDATE keys SET name = ?, hash = ?, prefix = ?, suffix = ?,
				max_running = ?, max_sandboxes = ?, max_memory = ?, max_disk = ?, max_rate = ?
			WHERE id = ?`, k.Name, k.Hash[:], k.Prefix, k.Suffix,
			k.Limits.Running, k.Limits.Sandboxes, k.Limits.MemoryMiB, k.Limits.DiskMiB, k.Limits.Rate, id)
		if err != nil {
			return err
		}
		return changed(ctx, tx, KindKeys)
	})
	if err != nil {
		return Key{}, s.explain(err, "change key %s", id)
	}
	return k, nil
}

// RemoveKey implements [Store].
func (s *SQL) RemoveKey(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		k, err := keyInside(ctx, tx, id)
		if err != nil {
			return err
		}
		if k.Lasting() {
			var others bool
			err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM keys WHERE id <> ? AND role = ? AND expires_at IS NULL)`, id, string(RoleAdmin)).Scan(&others)
			if err != nil {
				return err
			}
			if !others {
				return ErrLastAdmin()
			}
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM keys WHERE id = ?`, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM used_secrets WHERE key = ?`, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM template_settings WHERE key = ?`, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM ssh_keys WHERE key = ?`, id); err != nil {
			return err
		}
		return changed(ctx, tx, KindKeys, KindSSHKeys, KindSecrets)
	})
	return s.explain(err, "remove key %s", id)
}

func scanKey(rows *sql.Rows) (Key, error) {
	var (
		k             Key
		hash          sql.RawBytes
		created       string
		expires, used sql.NullString
	)
	err := rows.Scan(&k.ID, &k.Name, &hash, &k.Prefix, &k.Suffix, &created,
		&k.Role, &k.Limits.Running, &k.Limits.Sandboxes, &k.Limits.MemoryMiB, &k.Limits.DiskMiB, &k.Limits.Rate, &expires, &used)
	if err != nil {
		return Key{}, err
	}
	copy(k.Hash[:], hash) // 32 bytes, by the schema
	for _, t := range []struct {
		to   *time.Time
		text string
	}{{&k.CreatedAt, created}, {&k.ExpiresAt, expires.String}, {&k.LastUsedAt, used.String}} {
		if t.text == "" {
			continue // NULL
		}
		if *t.to, err = time.Parse(stampLayout, t.text); err != nil {
			return Key{}, fmt.Errorf("key %s: %w", k.ID, err)
		}
	}
	return k, nil
}

// stampOrNull returns t as a column holds it that may be NULL.
func stampOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return stamp(t)
}
