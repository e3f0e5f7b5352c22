package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// codeContexts is the part of a store with the contexts of sandboxes.
type codeContexts struct{ w *writer }

// AddContext implements store.Store.
func (x codeContexts) AddContext(_ context.Context, c store.CodeContext) (dropped string, err error) {
	if err := x.w.lock(); err != nil {
		return "", err
	}
	defer x.w.d.mu.Unlock()
	sb, err := x.w.d.known(c.Sandbox)
	if err != nil {
		return "", err
	}
	if err := x.w.own("sandbox", c.Sandbox, sb.given.Owner); err != nil {
		return "", err
	}
	if sb.given.Record.State == lifecycle.Terminated {
		return "", store.ErrSandboxOver(c.Sandbox)
	}
	all := slices.Clone(x.w.d.contexts[c.Sandbox])
	if len(all) >= store.MostContexts {
		i := slices.IndexFunc(all, func(c store.CodeContext) bool { return c.End != nil })
		if i < 0 {
			return "", store.ErrTooManyContexts(c.Sandbox)
		}
		dropped = all[i].ID
		all = slices.Delete(all, i, i+1)
	}
	all = append(all, c.InUTC())
	size := 0
	for _, has := range all {
		data, err := encode(has)
		if err != nil {
			return "", err
		}
		size += len(data)
	}
	if size > store.MostContextBytes {
		return "", store.ErrContextsTooLarge(c.Sandbox)
	}
	slices.SortFunc(all, func(a, b store.CodeContext) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	x.w.d.contexts[c.Sandbox] = all
	return dropped, nil
}

// ChangeContext implements store.Store.
func (x codeContexts) ChangeContext(_ context.Context, c store.CodeContext) error {
	if err := x.w.lock(); err != nil {
		return err
	}
	defer x.w.d.mu.Unlock()
	if sb, known := x.w.d.boxes[c.Sandbox]; known {
		if err := x.w.own("sandbox", c.Sandbox, sb.given.Owner); err != nil {
			return err
		}
	}
	all := x.w.d.contexts[c.Sandbox]
	i := slices.IndexFunc(all, func(has store.CodeContext) bool { return has.ID == c.ID })
	if i < 0 {
		return store.ErrContextNotFound(c)
	}
	all[i] = c.InUTC()
	return nil
}

// Contexts implements store.Store.
func (x codeContexts) Contexts(_ context.Context, sandbox string) (all []store.CodeContext, err error) {
	x.w.d.mu.Lock()
	defer x.w.d.mu.Unlock()
	for _, c := range x.w.d.contexts[sandbox] {
		all = append(all, c.InUTC())
	}
	return all, nil
}

// RemoveContext implements store.Store.
func (x codeContexts) RemoveContext(_ context.Context, sandbox, id string) error {
	if err := x.w.lock(); err != nil {
		return err
	}
	defer x.w.d.mu.Unlock()
	if sb, known := x.w.d.boxes[sandbox]; known {
		if err := x.w.own("sandbox", sandbox, sb.given.Owner); err != nil {
			return err
		}
	}
	all := x.w.d.contexts[sandbox]
	x.w.d.contexts[sandbox] = slices.DeleteFunc(all, func(c store.CodeContext) bool { return c.ID == id })
	return nil
}
