package memstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// usedSecrets is the part of a store with the secrets that sandboxes use.
type usedSecrets struct{ w *writer }

// PutSecret implements store.Store.
func (u usedSecrets) PutSecret(_ context.Context, x store.Secret) error {
	if err := u.w.lock(); err != nil {
		return err
	}
	defer u.w.d.mu.Unlock()
	if _, err := u.w.d.key(x.Key); err != nil {
		return err
	}
	if slices.ContainsFunc(u.w.d.used, func(has store.Secret) bool {
		return has.ID == x.ID || has.Key == x.Key && has.Name == x.Name
	}) {
		return store.ErrSecretExists(x)
	}
	if has(u.w.d.used, func(has store.Secret) bool { return has.Key == x.Key }) >= store.MostSecrets {
		return store.ErrTooManySecrets()
	}
	x.CreatedAt, x.UpdatedAt = x.CreatedAt.UTC(), x.UpdatedAt.UTC()
	u.w.d.used = append(u.w.d.used, cloneSecret(x))
	u.w.d.changed(store.KindSecrets)
	return nil
}

// ChangeSecret implements store.Store.
func (u usedSecrets) ChangeSecret(_ context.Context, id string, change func(*store.Secret) error) (store.Secret, error) {
	if err := u.w.lock(); err != nil {
		return store.Secret{}, err
	}
	defer u.w.d.mu.Unlock()
	i := slices.IndexFunc(u.w.d.used, func(x store.Secret) bool { return x.ID == id })
	if i < 0 {
		return store.Secret{}, store.ErrSecretNotFound(id)
	}
	was := u.w.d.used[i]
	x := cloneSecret(was)
	if err := change(&x); err != nil {
		return x, err
	}
	x.ID, x.Key, x.Name, x.CreatedAt, x.UpdatedAt = was.ID, was.Key, was.Name, was.CreatedAt, x.UpdatedAt.UTC()
	u.w.d.used[i] = cloneSecret(x)
	u.w.d.changed(store.KindSecrets)
	return x, nil
}

// AllSecrets implements store.Store.
func (u usedSecrets) AllSecrets(context.Context) ([]store.Secret, error) {
	u.w.d.mu.Lock()
	defer u.w.d.mu.Unlock()
	all := oldestFirst(u.w.d.used, func(x store.Secret) time.Time { return x.CreatedAt })
	for i := range all {
		all[i] = cloneSecret(all[i])
	}
	return all, nil
}

// RemoveSecret implements store.Store.
func (u usedSecrets) RemoveSecret(_ context.Context, id string) error {
	if err := u.w.lock(); err != nil {
		return err
	}
	defer u.w.d.mu.Unlock()
	if !without(&u.w.d.used, func(x store.Secret) bool { return x.ID == id }) {
		return store.ErrSecretNotFound(id)
	}
	u.w.d.changed(store.KindSecrets)
	return nil
}

func cloneSecret(x store.Secret) store.Secret {
	x.Sealed, x.Rule.Hosts = bytes.Clone(x.Sealed), slices.Clone(x.Rule.Hosts)
	x.Rule.Headers, x.Rule.Query = slices.Clone(x.Rule.Headers), slices.Clone(x.Rule.Query)
	return x
}
