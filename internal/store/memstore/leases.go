package memstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/store"
)

// writer is what a store writes through: the data, and the claim that it writes under.
type writer struct {
	d *Data

	// Guarded by Data.mu.
	server string // that the store has claimed; empty for none
	epoch  int64  // of that claim
}

var _ store.Leases = (*Store)(nil)

// lock locks the data for a change. Every method that changes something uses it: it
// returns store.ErrFenced, with the data not locked, if somebody else has claimed the
// server since this store did.
func (w *writer) lock() error {
	w.d.mu.Lock()
	if err := w.fenced(); err != nil {
		w.d.mu.Unlock()
		return err
	}
	return nil
}

// fenced is called with the data locked.
func (w *writer) fenced() error {
	if w.server == "" || w.d.servers[w.server].Epoch == w.epoch || planted.In(planted.Unfenced) {
		return nil
	}
	return store.ErrFenced(w.server)
}

// Claim implements store.Leases.
func (w *writer) Claim(ctx context.Context, srv store.Server, life time.Duration) (store.Server, error) {
	if err := ctx.Err(); err != nil {
		return store.Server{}, err
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	now, has := time.Now().UTC(), w.d.servers[srv.ID]
	if left := has.LeaseEndsAt.Sub(now); left > 0 && has.Place != srv.Place {
		return store.Server{}, store.ErrServerLives(has, left)
	}
	srv.Epoch, srv.LeaseEndsAt = has.Epoch+1, now.Add(life)
	w.d.servers[srv.ID] = srv
	w.server, w.epoch = srv.ID, srv.Epoch
	if len(w.d.servers) == 1 {
		w.d.adopt(srv.ID)
	}
	return srv, nil
}

// Renew implements store.Leases.
func (w *writer) Renew(ctx context.Context, life time.Duration) error { return w.extend(ctx, life) }

// Release implements store.Leases.
func (w *writer) Release(ctx context.Context) error { return w.extend(ctx, 0) }

func (w *writer) extend(ctx context.Context, life time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.lock(); err != nil {
		return err
	}
	defer w.d.mu.Unlock()
	srv, claimed := w.d.servers[w.server]
	if !claimed {
		return errors.New("internal error: a lease is renewed that was never claimed")
	}
	srv.LeaseEndsAt = time.Now().UTC().Add(life)
	w.d.servers[w.server] = srv
	return nil
}

// Servers implements store.Leases.
func (w *writer) Servers(context.Context) (all []store.Server, err error) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	for _, srv := range w.d.servers {
		srv.Left = time.Until(srv.LeaseEndsAt)
		all = append(all, srv)
	}
	slices.SortFunc(all, func(a, b store.Server) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}
