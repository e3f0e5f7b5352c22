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
	srv.Epoch, srv.LeaseEndsAt, srv.Draining, srv.Drains = has.Epoch+1, now.Add(life), has.Draining, has.Drains
	w.d.held(srv.ID, has, now)
	w.d.servers[srv.ID] = srv
	w.server, w.epoch = srv.ID, srv.Epoch
	if len(w.d.servers) == 1 {
		w.d.adopt(srv.ID)
	}
	return srv, nil
}

// Renew implements store.Leases.
func (w *writer) Renew(ctx context.Context, life time.Duration) error {
	return w.change(ctx, func(srv *store.Server) {
		now := time.Now().UTC()
		w.d.held(srv.ID, *srv, now)
		srv.LeaseEndsAt = now.Add(life)
	})
}

// Leave implements store.Leases.
func (w *writer) Leave(ctx context.Context) error {
	return w.change(ctx, func(srv *store.Server) {
		srv.Leaving = true
		w.d.changed(store.KindOwners)
	})
}

// Release implements store.Leases.
func (w *writer) Release(ctx context.Context) error {
	return w.change(ctx, func(srv *store.Server) {
		srv.LeaseEndsAt, srv.Leaving = time.Now().UTC(), true
		w.d.changed(store.KindOwners)
	})
}

// SetRoom implements store.Leases.
func (w *writer) SetRoom(ctx context.Context, room store.Room) error {
	return w.change(ctx, func(srv *store.Server) { srv.Room = &room })
}

// SetDraining implements store.Leases.
func (w *writer) SetDraining(ctx context.Context, server string, draining bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.lock(); err != nil {
		return err
	}
	defer w.d.mu.Unlock()
	srv, ok := w.d.servers[server]
	if !ok {
		return store.ErrServerNotFound(server)
	}
	if srv.Draining, srv.Drains = draining, max(srv.Drains, -srv.Drains)+1; !draining {
		srv.Drains = -srv.Drains
	}
	w.d.servers[server] = srv
	w.d.changed(store.KindOwners)
	return nil
}

// change changes the server that the store has claimed.
func (w *writer) change(ctx context.Context, change func(*store.Server)) error {
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
	change(&srv)
	w.d.servers[w.server] = srv
	return nil
}

// Servers implements store.Leases.
func (w *writer) Servers(context.Context) (all []store.Server, err error) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return w.d.all(), nil
}

// held notes since when the lease of a server has no gap that is had from now on.
func (d *Data) held(id string, was store.Server, now time.Time) {
	if d.heldSince[id].IsZero() || !was.LeaseEndsAt.After(now) {
		d.heldSince[id] = now
	}
}

// all returns the servers. The data is locked.
func (d *Data) all() (all []store.Server) {
	for _, srv := range d.servers {
		srv.Left, srv.Held = time.Until(srv.LeaseEndsAt), time.Since(d.heldSince[srv.ID])
		all = append(all, srv)
	}
	slices.SortFunc(all, func(a, b store.Server) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
