package store

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"slices"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// webhooks is the part of a database with the webhooks.
type webhooks struct{ s *SQL }

// MostWebhooks is how many webhooks there may be.
const MostWebhooks = 100

// ErrTooManyWebhooks is what PutWebhook returns for one more than there may be.
func ErrTooManyWebhooks() error {
	return errdef.New(errdef.Exhausted, "too_many_webhooks", "there are %d webhooks, which is as many as there may be", MostWebhooks).
		WithRemedy("delete some that nobody needs").With("allowed", MostWebhooks)
}

// PutWebhook implements [Store].
func (x webhooks) PutWebhook(ctx context.Context, w Webhook) error {
	toUTC(&w.CreatedAt)
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		was, err := webhookOf(ctx, tx, w.ID)
		if err != nil {
			return err
		}
		if err := putWebhook(ctx, tx, was, w); err != nil {
			return err
		}
		return atMost(ctx, tx, MostWebhooks, ErrTooManyWebhooks, `SELECT count(*) FROM webhooks`)
	})
	return x.s.explain(err, "put webhook %s", w.ID)
}

// ChangeWebhook implements [Store].
func (x webhooks) ChangeWebhook(ctx context.Context, id string, change func(*Webhook) error) (w Webhook, err error) {
	err = x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		was, err := webhookOf(ctx, tx, id)
		if err == nil && len(was) == 0 {
			err = ErrWebhookNotFound(id)
		}
		if err != nil {
			return err
		}
		w = was[0]
		w.Events = slices.Clone(w.Events)
		if err := change(&w); err != nil {
			return err
		}
		toUTC(&w.CreatedAt)
		return putWebhook(ctx, tx, was, w)
	})
	return w, x.s.explain(err, "change webhook %s", id)
}

// ErrWebhookNotFound is what is returned where there is no such webhook.
func ErrWebhookNotFound(id string) error {
	return errdef.New(errdef.NotFound, "webhook_not_found", "webhook %.100q does not exist", id).WithRemedy("list the webhooks")
}

// webhookOf returns the webhook of an id, if there is one.
func webhookOf(ctx context.Context, tx *sql.Tx, id string) ([]Webhook, error) {
	return collect(ctx, tx, scanWebhook, `SELECT id, version, secret, data FROM webhooks WHERE id = ?`, id)
}

// putWebhook stores a webhook in the place of what was, if anything.
func putWebhook(ctx context.Context, tx *sql.Tx, was []Webhook, w Webhook) error {
	data, err := encode(w)
	if err != nil {
		return fmt.Errorf("encode it: %w", err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO webhooks (id, version, created_at, secret, data) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET
			version = excluded.version, created_at = excluded.created_at,
			secret = excluded.secret, data = excluded.data`,
		w.ID, formVersion, stamp(w.CreatedAt), w.Secret, data)
	if err != nil || len(was) == 1 && !was[0].Differs(w) {
		return err
	}
	return changed(ctx, tx, KindWebhooks)
}

// Differs reports whether a webhook is another than w in more than how far it has got.
func (was Webhook) Differs(w Webhook) bool {
	was.Cursor, was.Delivered, was.Dropped = w.Cursor, w.Delivered, w.Dropped
	if was.CreatedAt.Equal(w.CreatedAt) {
		was.CreatedAt = w.CreatedAt
	}
	return !reflect.DeepEqual(was, w)
}

// Webhooks implements [Store].
func (x webhooks) Webhooks(ctx context.Context) ([]Webhook, error) {
	all, err := collect(ctx, x.s.reader, scanWebhook, `SELECT id, version, secret, data FROM webhooks ORDER BY created_at, id`)
	return all, x.s.explain(err, "read webhooks")
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
func (x webhooks) DeleteWebhook(ctx context.Context, id string) error {
	err := x.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM webhooks WHERE id = ?`, id)
		if err := oneRow(result, err, func() error { return ErrWebhookNotFound(id) }); err != nil {
			return err
		}
		return changed(ctx, tx, KindWebhooks)
	})
	return x.s.explain(err, "delete webhook %s", id)
}
