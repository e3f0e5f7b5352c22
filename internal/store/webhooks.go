package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// PutWebhook implements [Store].
func (s *SQL) PutWebhook(ctx context.Context, w Webhook) error {
	toUTC(&w.CreatedAt)
	data, err := encode(w)
	if err != nil {
		return fmt.Errorf("put webhook %s: encode it: %w", w.ID, err)
	}
	err = s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO webhooks (id, version, created_at, secret, data) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET
				version = excluded.version, created_at = excluded.created_at,
				secret = excluded.secret, data = excluded.data`,
			w.ID, formVersion, stamp(w.CreatedAt), w.Secret, data)
		return err
	})
	return s.explain(err, "put webhook %s", w.ID)
}

// Webhooks implements [Store].
func (s *SQL) Webhooks(ctx context.Context) ([]Webhook, error) {
	all, err := collect(ctx, s.reader, scanWebhook, `SELECT id, version, secret, data FROM webhooks ORDER BY created_at, id`)
	return all, s.explain(err, "read webhooks")
}

func scanWebhook(rows *sql.Rows) (Webhook, error) {
	var (
		id, secret string
		version    int
		data       sql.RawBytes
		w          Webhook
	)
	if err := rows.Scan(&id, &version, &secret, &data); err != nil {
		return Webhook{}, err
	}
	err := decode("webhook "+id, version, data, &w)
	w.Secret = secret
	return w, err
}

// DeleteWebhook implements [Store].
func (s *SQL) DeleteWebhook(ctx context.Context, id string) error {
	err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM webhooks WHERE id = ?`, id)
		if err != nil {
			return err
		}
		if gone, err := result.RowsAffected(); err != nil || gone == 1 {
			return err
		}
		return errdef.New(errdef.NotFound, "webhook_not_found", "no webhook %s", id)
	})
	return s.explain(err, "delete webhook %s", id)
}
