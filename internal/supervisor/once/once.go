// Package once knows which sandbox each idempotency key has made, so that a
// create or an import that is sent again makes no second one.
//
// The store decides: the commit that makes a sandbox binds its key, or is refused. What
// is in memory here has calls wait for one that is about to commit, and is filled again
// from the records after a restart.
package once

import (
	"context"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Keys are the idempotency keys of a server. What they have made is a T.
type Keys[T comparable] struct {
	failed func(T) bool

	mu    sync.Mutex
	bound map[name]*binding[T]
}

// name names a call: keys of different API keys have nothing to do with each
// other.
type name struct{ apiKey, idempotencyKey string }

func nameOf(c store.Config) name { return name{c.Key, c.Idempotency.Key} }

// binding is a call under an idempotency key.
type binding[T comparable] struct {
	request string    // the digest of what was asked for
	at      time.Time // when
	begun   chan struct{}
	made    T // set before begun is closed; zero if nothing was committed
}

// New returns keys that are all free. failed reports whether what a key has made
// never came up: then the key is free again.
func New[T comparable](failed func(T) bool) *Keys[T] {
	return &Keys[T]{failed: failed, bound: map[name]*binding[T]{}}
}

// Do calls commit, which commits a new sandbox, unless the key that the sandbox
// would have is bound: then it returns what the key has made, and fresh is false.
// It waits for another call under the same key that is about to commit; its error
// is then that of ctx. Without a key it calls commit. What commit returns beside an error is closed once
// it is known whether it has happened all the same, which other calls wait for; nil where that is known.
func (k *Keys[T]) Do(ctx context.Context, as store.Config, commit func() (T, <-chan struct{}, error)) (made T, fresh bool, err error) {
	if as.Idempotency == nil {
		made, _, err = commit()
		return made, true, err
	}
	for {
		b, fresh := k.bind(as)
		if fresh {
			var known <-chan struct{}
			made, known, err = commit()
			k.made(as, b, made)
			if known == nil {
				close(b.begun)
			} else {
				go func() { <-known; close(b.begun) }()
			}
			return made, true, err
		}
		if err := b.await(ctx, as); err != nil {
			return made, false, err
		}
		if b.made != made {
			return b.made, false, nil
		}
	}
}

// made notes what the call of a binding has made, in place of what was restored meanwhile.
func (k *Keys[T]) made(as store.Config, b *binding[T], made T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var none T
	if b.made = made; made != none {
		k.bound[nameOf(as)] = b
	}
}

// Made returns what the key has made that a call would have; the zero T for nothing.
// It waits, and refuses, as Do does.
func (k *Keys[T]) Made(ctx context.Context, as store.Config) (made T, err error) {
	k.mu.Lock()
	b := k.bound[nameOf(as)]
	k.mu.Unlock()
	if b == nil || k.over(b, asked(as)) {
		return made, nil
	}
	if err := b.await(ctx, as); err != nil {
		return made, err
	}
	return b.made, nil
}

// await waits until it is known what the call of a binding has made, for another
// that asks for the same.
func (b *binding[T]) await(ctx context.Context, as store.Config) error {
	if b.request != as.Idempotency.Request {
		return errdef.New(errdef.Conflict, "idempotency_key_reused",
			"idempotency key %.300q has been used for a call that asked for something else", as.Idempotency.Key).
			WithRemedy("send the same body to the same path, or use another key for another sandbox")
	}
	select {
	case <-b.begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// asked returns when a call was made: the store compares the same times.
func asked(as store.Config) time.Time {
	if at := as.Idempotency.At; !at.IsZero() {
		return at
	}
	return time.Now()
}

// bind returns the binding of a call, and whether it is a new one.
func (k *Keys[T]) bind(as store.Config) (b *binding[T], fresh bool) {
	n, now := nameOf(as), asked(as)
	for {
		k.mu.Lock()
		old := k.bound[n]
		k.mu.Unlock()
		if old != nil && !k.over(old, now) { // asked without the lock: a sandbox may be in the middle of a commit
			return old, false
		}
		k.mu.Lock()
		if k.bound[n] == old {
			b = &binding[T]{request: as.Idempotency.Request, at: now, begun: make(chan struct{})}
			k.bound[n] = b
			k.mu.Unlock()
			return b, true
		}
		k.mu.Unlock()
	}
}

// over reports whether the key of a binding is free again: its time has passed,
// or what it made never came up, and a second try makes no second sandbox.
func (k *Keys[T]) over(b *binding[T], now time.Time) bool {
	select {
	case <-b.begun:
	default:
		return false
	}
	var none T
	return b.made == none || now.Sub(b.at) >= store.IdempotencyLife || k.failed(b.made)
}

// Restore binds the key of a sandbox that the store has. Of several that had the
// same key, one after the other, the last counts; a call that has made nothing does not.
func (k *Keys[T]) Restore(sb store.Sandbox, made T) {
	as, at := sb.Config, sb.Record.CreatedAt
	if as.Idempotency == nil {
		return
	}
	if asked := as.Idempotency.At; !asked.IsZero() {
		at = asked
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var none T
	if other := k.bound[nameOf(as)]; other != nil && other.made != none && other.at.After(at) {
		return
	}
	b := &binding[T]{request: as.Idempotency.Request, at: at, begun: make(chan struct{}), made: made}
	close(b.begun)
	k.bound[nameOf(as)] = b
}

// Forget frees the key of a sandbox whose record is gone.
func (k *Keys[T]) Forget(as store.Config, made T) {
	if as.Idempotency == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if b := k.bound[nameOf(as)]; b != nil && b.made == made {
		delete(k.bound, nameOf(as))
	}
}
