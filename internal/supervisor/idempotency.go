package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/once"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

func newCreates() *once.Keys[*box] {
	return once.New(func(b *box) bool {
		t := b.snapshot().Record.Tombstone
		return t != nil && t.Reason == lifecycle.CreateFailed
	})
}

// createOnce is Create under an idempotency key: it makes a sandbox, or returns
// the one that the key has made.
func (s *Supervisor) createOnce(ctx context.Context, req CreateRequest) (store.Sandbox, error) {
	var ended <-chan calls.Ending
	as := *req.Config.Idempotency
	as.At = ids.Now()
	req.Config.Idempotency = &as
	b, fresh, err := s.creates.Do(ctx, req.Config, func() (b *box, known <-chan struct{}, err error) {
		b, ended, known, err = s.beginCreate(req)
		return b, known, err
	})
	switch {
	case err != nil && err == ctx.Err():
		return store.Sandbox{}, outcome.Waited(ctx)
	case err != nil:
		return store.Sandbox{}, err
	case fresh:
		return b.created(ctx, ended)
	}
	return b.createdBefore(ctx)
}

// Made returns the sandbox that a create under the idempotency key of a Config has
// made; false if there is none.
func (s *Supervisor) Made(ctx context.Context, as store.Config) (store.Sandbox, bool, error) {
	if as.Idempotency == nil {
		return store.Sandbox{}, false, nil
	}
	b, err := s.creates.Made(ctx, as)
	switch {
	case err != nil && err == ctx.Err():
		return store.Sandbox{}, false, outcome.Waited(ctx)
	case err != nil || b == nil:
		return store.Sandbox{}, false, err
	}
	sb, err := b.createdBefore(ctx)
	return sb, err == nil, err
}

// createdBefore returns a sandbox that another call has created or is creating.
func (b *box) createdBefore(ctx context.Context) (store.Sandbox, error) {
	b.mu.Lock()
	sb := b.viewLocked()
	var ended <-chan calls.Ending
	if sb.Record.Phase() == lifecycle.Creating {
		ended = b.awaitLocked()
	}
	b.mu.Unlock()
	if ended != nil {
		return b.created(ctx, ended)
	}
	if t := sb.Record.Tombstone; t != nil {
		return store.Sandbox{}, outcome.CreatedBefore(b.id, *t)
	}
	return sb, nil
}
