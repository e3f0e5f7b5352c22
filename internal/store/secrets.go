package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Secret is what sandboxes of an API key use without having it.
type Secret struct {
	ID        string // "sec_" and hex digits
	Key       string // the API key that it belongs to
	Name      string // unique among those of Key
	Version   int64  // of the value, from 1
	Rule      SecretRule
	Sealed    []byte // the value, encrypted
	CreatedAt time.Time
	UpdatedAt time.Time // when the value or the rule was changed last
}

// SecretRule says where the value of a secret goes.
type SecretRule struct {
	Env     string   `json:"env"`               // the variable that has the placeholder
	Hosts   []string `json:"hosts"`             // example.com, *.example.com, either with a port
	Headers []Insert `json:"headers,omitempty"` // set in every request
	Query   []Insert `json:"query,omitempty"`   // parameters, likewise
	Plain   bool     `json:"plain,omitempty"`   // also over HTTP without TLS
}

// Insert is a header or a parameter with the value of a secret in it.
type Insert struct {
	Name string `json:"name"`
	Text string `json:"text"` // with {} for the value
}

// SecretUse is a secret that a sandbox was given the use of.
type SecretUse struct {
	Name        string `json:"name"`
	Env         string `json:"env"`         // the variable that has the placeholder
	Placeholder string `json:"placeholder"` // what programs inside see of it
	// Withheld: the sandbox has it from another API key's, or from an export, and
	// does not get the secret of that name of the key that it belongs to now.
	Withheld bool `json:"withheld,omitempty"`
}

// Withhold returns the uses as a sandbox has them that may not use the secrets.
func Withhold(uses []SecretUse) []SecretUse {
	withheld := slices.Clone(uses)
	for i := range withheld {
		withheld[i].Withheld = true
	}
	return withheld
}

// usedSecrets is the part of a database with the secrets that sandboxes use.
type usedSecrets struct{ s *SQL }

// ErrSecretExists is what PutSecret returns for an id or a name that is taken.
func ErrSecretExists(x Secret) error {
	return errdef.New(errdef.Exists, "secret_exists", "the API key has a secret %q already", x.Name)
}

// MostSecrets is how many secrets an API key may have.
const MostSecrets = 100

// ErrTooManySecrets is what PutSecret returns for one more than an API key may have.
func ErrTooManySecrets() error {
	return errdef.New(errdef.Exhausted, "secrets_limit", "an API key has at most %d secrets", MostSecrets).
		WithRemedy("remove one first").With("allowed", MostSecrets)
}

// ErrSecretNotFound is what is returned where there is no secret of an id.
func ErrSecretNotFound(id string) error {
	return errdef.New(errdef.NotFound, "secret_not_found", "no secret %q", id)
}

// PutSecret implements [Store].
func (u usedSecrets) PutSecret(ctx context.Context, x Secret) error {
	rule, err := json.Marshal(x.Rule)
	if err != nil {
		return err
	}
	err = u.s.write(ctx, x.Key, func(ctx context.Context, tx *sql.Tx) error {
		if err := needKey(ctx, tx, x.Key); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `
			INSERT INTO used_secrets (id, key, name, version, rule, sealed, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`,
			x.ID, x.Key, x.Name, x.Version, string(rule), x.Sealed, stamp(x.CreatedAt), stamp(x.UpdatedAt))
		if err := oneRow(result, err, func() error { return ErrSecretExists(x) }); err != nil {
			return err
		}
		if err := atMost(ctx, tx, MostSecrets, ErrTooManySecrets, `SELECT count(*) FROM used_secrets WHERE key = ?`, x.Key); err != nil {
			return err
		}
		return changed(ctx, tx, KindSecrets)
	})
	return u.s.explain(err, "keep secret %s", x.ID)
}

// ChangeSecret implements [Store].
func (u usedSecrets) ChangeSecret(ctx context.Context, id string, change func(*Secret) error) (x Secret, err error) {
	err = u.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		was, err := collect(ctx, tx, scanSecret, `
			SELECT id, key, name, version, rule, sealed, created_at, updated_at FROM used_secrets WHERE id = ?`, id)
		if err == nil && len(was) == 0 {
			err = ErrSecretNotFound(id)
		}
		if err != nil {
			return err
		}
		x = was[0]
		if err := change(&x); err != nil {
			return err
		}
		x.ID, x.Key, x.Name, x.CreatedAt, x.UpdatedAt = was[0].ID, was[0].Key, was[0].Name, was[0].CreatedAt, x.UpdatedAt.UTC()
		rule, err := json.Marshal(x.Rule)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE used_secrets SET version = ?, rule = ?, sealed = ?, updated_at = ? WHERE id = ?`,
			x.Version, string(rule), x.Sealed, stamp(x.UpdatedAt), id)
		if err != nil {
			return err
		}
		return changed(ctx, tx, KindSecrets)
	})
	return x, u.s.explain(err, "change secret %s", id)
}

// AllSecrets implements [Store].
func (u usedSecrets) AllSecrets(ctx context.Context) ([]Secret, error) {
	all, err := collect(ctx, u.s.reader, scanSecret, `
		SELECT id, key, name, version, rule, sealed, created_at, updated_at FROM used_secrets ORDER BY created_at, rowid`)
	return all, u.s.explain(err, "read secrets")
}

// RemoveSecret implements [Store].
func (u usedSecrets) RemoveSecret(ctx context.Context, id string) error {
	err := u.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM used_secrets WHERE id = ?`, id)
		if err := oneRow(result, err, func() error { return ErrSecretNotFound(id) }); err != nil {
			return err
		}
		return changed(ctx, tx, KindSecrets)
	})
	return u.s.explain(err, "remove secret %s", id)
}

func scanSecret(rows *sql.Rows) (Secret, error) {
	var (
		x                Secret
		rule             string
		created, updated string
	)
	if err := rows.Scan(&x.ID, &x.Key, &x.Name, &x.Version, &rule, &x.Sealed, &created, &updated); err != nil {
		return x, err
	}
	if err := json.Unmarshal([]byte(rule), &x.Rule); err != nil {
		return x, err
	}
	var err error
	if x.CreatedAt, err = time.Parse(stampLayout, created); err == nil {
		x.UpdatedAt, err = time.Parse(stampLayout, updated)
	}
	return x, err
}
