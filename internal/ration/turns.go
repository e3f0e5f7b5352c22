package ration

import (
	"context"
	"sync"
)

// Turns bounds how much of one kind each API key has under way, such as sandboxes on
// their way up, so that what does not come to its end holds up nobody else. Those of
// one key come in the order in which they asked.
type Turns struct {
	most int
	mu   sync.Mutex
	keys map[string]*turns // of keys that have any
}

// NewTurns returns Turns of which each key may have most at once.
func NewTurns(most int) *Turns { return &Turns{most: most, keys: map[string]*turns{}} }

// turns are those of one key.
type turns struct {
	taken chan struct{} // holds one element for each
	users int           // those and those that wait; guarded by Turns.mu
}

// Enter waits until the key may have one more. leave must follow.
func (l *Turns) Enter(ctx context.Context, key string) (leave func(), err error) {
	l.mu.Lock()
	k := l.keys[key]
	if k == nil {
		k = &turns{taken: make(chan struct{}, l.most)}
		l.keys[key] = k
	}
	k.users++
	l.mu.Unlock()
	select {
	case k.taken <- struct{}{}:
		return func() { <-k.taken; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, ctx.Err()
	}
}

func (l *Turns) leave(key string, k *turns) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.keys, key)
	}
}

// Keys returns how many keys have any, or wait for one.
func (l *Turns) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

// Of returns how many a key has or waits for.
func (l *Turns) Of(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.keys[key]; k != nil {
		return k.users
	}
	return 0
}
