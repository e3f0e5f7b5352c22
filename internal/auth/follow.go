package auth

import (
	"context"
	"fmt"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
)

// Follow has Check look for a key that is unknown in the store, where another server may
// just have put it. However many such keys are sent, it looks once in a while, and those
// who send them wait for that. It comes before the first call.
func (k *Keys) Follow() { k.again = &follow.Again{Read: k.Refresh} }

// Refresh takes over what other servers have changed: their new keys are good, those that
// they have revoked or rotated are worthless when it returns, and names and limits are
// those that they have given.
func (k *Keys) Refresh(ctx context.Context) error {
	k.changes.Lock()
	defer k.changes.Unlock()
	list, err := k.store.Keys(ctx)
	if err != nil {
		return fmt.Errorf("read API keys again: %w", err)
	}
	before := map[string]*entry{}
	for _, e := range k.entries() {
		before[e.ID] = e
	}
	var next, rotated []*entry
	k.mu.Lock()
	for _, key := range list {
		has := before[key.ID]
		delete(before, key.ID)
		e := k.follow(has, key)
		if has != nil && e != has {
			rotated = append(rotated, has)
		}
		next = append(next, e)
	}
	k.keys = next
	k.mu.Unlock()
	for _, e := range rotated {
		e.revoke()
	}
	for _, e := range before {
		k.end(e)
	}
	return nil
}

// follow returns the entry of a key as it is stored, which was has; nil for one that is
// new. A key with another text gets a new one. The caller holds changes and mu.
func (k *Keys) follow(has *entry, key store.Key) *entry {
	if has == nil {
		return k.newEntry(key)
	}
	if has.Hash != key.Hash {
		e := k.newEntry(key)
		e.calls = has.calls
		e.used.Store(max(e.used.Load(), has.used.Load()))
		k.bound(e)
		return e
	}
	if key.Name != *has.name.Load() {
		has.name.Store(&key.Name)
	}
	if key.Limits != *has.limits.Load() {
		has.limits.Store(&key.Limits)
		k.bound(has)
	}
	if !key.LastUsedAt.IsZero() {
		has.noted = key.LastUsedAt.Unix()
		for { // requests note a use at any time
			used := has.used.Load()
			if used >= has.noted || has.used.CompareAndSwap(used, has.noted) {
				break
			}
		}
	}
	return has
}
