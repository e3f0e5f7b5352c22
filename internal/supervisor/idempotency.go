package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// idempotencyLife is how long after a create its idempotency key stays bound to
// the sandbox. A tombstone is kept for longer, so the record outlives the key.
const idempotencyLife = 24 * time.Hour

// creates knows which sandbox each idempotency key has made. The durable form is
// in the records of the sandboxes: the commit that makes a sandbox binds its key.
type creates struct {
	mu    sync.Mutex
	bound map[createName]*binding
}

// createName names a create: keys of different API keys have nothing to do with
// each other.
type createName struct{ apiKey, idempotencyKey string }

// binding is a create under an idempotency key.
type binding struct {
	request string    // the digest of what was asked for
	at      time.Time // when
	begun   chan struct{}
	box     *box // set before begun is closed; nil if nothing was committed
}

func createNameOf(c store.Config) createName { return createName{c.Key, c.Idempotency.Key} }

// bind returns the binding of a create, and whether it is a new one. Then settle
// must follow.
func (c *creates) bind(as store.Config, now time.Time) (b *binding, fresh bool) {
	name := createNameOf(as)
	for {
		c.mu.Lock()
		old := c.bound[name]
		c.mu.Unlock()
		if old != nil && !old.over(now) { // asked without the lock: a box may be in the middle of a commit
			return old, false
		}
		c.mu.Lock()
		if c.bound[name] == old {
			b = &binding{request: as.Idempotency.Request, at: now, begun: make(chan struct{})}
			c.put(name, b)
			c.mu.Unlock()
			return b, true
		}
		c.mu.Unlock()
	}
}

// over reports whether the key is free again: its time has passed, or what it
// made never came up, and a second try makes no second sandbox.
func (b *binding) over(now time.Time) bool {
	select {
	case <-b.begun:
	default:
		return false
	}
	if b.box == nil || now.Sub(b.at) >= idempotencyLife {
		return true
	}
	t := b.box.snapshot().Record.Tombstone
	return t != nil && t.Reason == lifecycle.CreateFailed
}

// settle says what a create has committed: a box, or nothing.
func (c *creates) settle(b *binding, box *box) {
	b.box = box
	close(b.begun)
}

// restore binds the key of a sandbox that the store has. Of several that had the
// same key, one after the other, the last counts.
func (c *creates) restore(box *box) {
	as, at := box.sb.Config, box.sb.Record.CreatedAt
	if as.Idempotency == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.bound[createNameOf(as)]; other != nil && other.at.After(at) {
		return
	}
	b := &binding{request: as.Idempotency.Request, at: at, begun: make(chan struct{}), box: box}
	close(b.begun)
	c.put(createNameOf(as), b)
}

// put is called with mu held.
func (c *creates) put(name createName, b *binding) {
	if c.bound == nil {
		c.bound = map[createName]*binding{}
	}
	c.bound[name] = b
}

// forget removes the binding of a sandbox whose record is gone.
func (c *creates) forget(box *box) {
	as := box.snapshot().Config
	if as.Idempotency == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bound[createNameOf(as)]; b != nil && b.box == box {
		delete(c.bound, createNameOf(as))
	}
}

// createOnce is Create under an idempotency key: it makes a sandbox, or returns
// the one that the key has made.
func (s *Supervisor) createOnce(ctx context.Context, req CreateRequest) (store.Sandbox, error) {
	for {
		bound, fresh := s.creates.bind(req.Config, now())
		if fresh {
			box, ended, err := s.beginCreate(req)
			s.creates.settle(bound, box)
			if err != nil {
				return store.Sandbox{}, err
			}
			return box.created(ctx, ended)
		}
		if bound.request != req.Config.Idempotency.Request {
			return store.Sandbox{}, errdef.New(errdef.Conflict, "idempotency_key_reused",
				"idempotency key %.300q has been used for a create that asked for something else", req.Config.Idempotency.Key).
				WithRemedy("send the same body to the same path, or use another key for another sandbox")
		}
		select {
		case <-bound.begun:
		case <-ctx.Done():
			return store.Sandbox{}, waitError(ctx)
		}
		if bound.box != nil {
			return bound.box.createdBefore(ctx)
		}
	}
}

// createdBefore returns a sandbox that another call has created or is creating.
func (b *box) createdBefore(ctx context.Context) (store.Sandbox, error) {
	b.mu.Lock()
	sb := b.viewLocked()
	var ended <-chan ending
	if sb.Record.Phase() == lifecycle.Creating {
		ended = b.awaitLocked()
	}
	b.mu.Unlock()
	if ended != nil {
		return b.created(ctx, ended)
	}
	if t := sb.Record.Tombstone; t != nil {
		return store.Sandbox{}, errdef.New(errdef.Conflict, "idempotency_sandbox_ended",
			"this idempotency key has made sandbox %s, which ended at %s: %s", b.id, t.At.Format(time.RFC3339), t.Reason).
			WithRemedy("use another key for another sandbox").
			With("sandbox", b.id).With("reason", t.Reason).With("endedAt", t.At.UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	return sb, nil
}
