package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// watchEvery is how often a server looks whether it is elected.
const watchEvery = 100 * time.Millisecond

func (s *Sender) elected() bool {
	if s.o.Elected == nil {
		return true
	}
	here, _ := s.o.Elected()
	return here
}

// sent returns a webhook of which this server knows how it does: it delivers, or none does now,
// and it knows what is stored. Otherwise it is a store.ErrElsewhere.
func (s *Sender) sent(ctx context.Context, id string) (*hook, error) {
	h, err := s.find(ctx, id)
	if err != nil || s.o.Elected == nil {
		return h, err
	}
	here, server := s.o.Elected()
	switch {
	case here:
		return h, nil
	case server != "":
		return nil, store.ErrElsewhere("webhook "+id, server)
	}
	if err := s.again.Now(ctx); err != nil {
		return nil, err
	}
	return s.find(ctx, id)
}

// Delivers reports whether this server delivers, of several with one store.
func (s *Sender) Delivers() bool {
	s.changes.Lock()
	defer s.changes.Unlock()
	return s.delivers
}

// watch begins and ends the deliveries as this server is elected, until it stops.
func (s *Sender) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	failing := false
	for {
		err := s.settle()
		if err != nil && !failing && s.ctx.Err() == nil {
			s.o.Log.Error("webhooks wait; trying again", "err", err)
		}
		failing = err != nil
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// settle delivers, or does not, as this server is elected now. It goes on from where the
// store says that the server before has got.
func (s *Sender) settle() error {
	is := s.elected()
	s.changes.Lock()
	defer s.changes.Unlock()
	switch {
	case is == s.delivers:
	case is:
		if err := s.reload(s.ctx); err != nil {
			return err
		}
		s.delivers = true
		for _, h := range s.all() {
			s.deliverTo(h)
		}
		s.o.Log.Info("this server delivers to webhooks")
	default:
		s.delivers = false
		for _, h := range s.all() {
			h.end()
			h.mu.Lock()
			h.version++ // what is under way is not noted
			h.mu.Unlock()
		}
		s.o.Log.Info("this server does not deliver to webhooks any more")
	}
	return nil
}

// Refresh takes over what other servers have changed. How far each webhook has got the
// server knows best that delivers.
func (s *Sender) Refresh(ctx context.Context) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	return s.reload(ctx)
}

// reload does so. The caller holds changes.
func (s *Sender) reload(ctx context.Context) error {
	list, err := s.o.Store.Webhooks(ctx)
	if err != nil {
		return fmt.Errorf("read webhooks again: %w", err)
	}
	gone := map[string]*hook{}
	for _, h := range s.all() {
		gone[h.webhook().ID] = h
	}
	for _, w := range list {
		h := gone[w.ID]
		delete(gone, w.ID)
		if h == nil {
			s.begin(w)
			continue
		}
		s.follow(h, w)
	}
	for _, h := range gone {
		s.drop(h)
	}
	return nil
}

// follow takes over what is stored of a webhook.
func (s *Sender) follow(h *hook, w store.Webhook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.delivers {
		h.ahead(&w)
	}
	if h.w.Differs(w) {
		h.become(w)
		return
	}
	h.w = w
}
