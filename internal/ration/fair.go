package ration

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lately is for how long a key that had a place keeps others to their share.
const lately = 10 * time.Second

// Fair is a number of places. Where more are wanted than there are, API keys take
// turns at them, one place each: a key with many that wait goes ahead of nobody
// with few. Those of one key come in the order in which they asked.
//
// One key alone may have them all. Where another has had one lately, each has its
// share at most: who comes with one finds a place free, and a machine that is not
// all at work for somebody else.
type Fair struct {
	places, share int

	mu      sync.Mutex
	taken   map[string]int             // by key; no zeros
	left    map[string]time.Time       // by key; when it last gave a place back, if lately
	waiting map[string][]chan struct{} // by key, in order; closed when the place is theirs
	next    []string                   // the keys in waiting, in the order of their turns
}

// NewFair returns so many places, of which a key has at most share while there are
// others. No share is less than one place.
func NewFair(places, share int) *Fair {
	return &Fair{
		places: places, share: max(1, share),
		taken: map[string]int{}, left: map[string]time.Time{}, waiting: map[string][]chan struct{}{},
	}
}

// Places returns how many there are.
func (f *Fair) Places() int { return f.places }

// Taken returns how many places are taken.
func (f *Fair) Taken() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all()
}

// all is how many places are taken. No more keys have any than there are places.
func (f *Fair) all() int {
	n := 0
	for _, of := range f.taken {
		n += of
	}
	return n
}

// Enter waits for a place. leave gives it back, and may be called twice.
func (f *Fair) Enter(ctx context.Context, key string) (leave func(), err error) {
	leave = sync.OnceFunc(func() { f.leave(key) })
	f.mu.Lock()
	w := make(chan struct{})
	if len(f.waiting[key]) == 0 {
		f.next = append(f.next, key)
	}
	f.waiting[key] = append(f.waiting[key], w)
	f.handOut()
	f.mu.Unlock()
	select {
	case <-w:
	case <-ctx.Done():
		if f.giveUp(key, w) {
			return nil, ctx.Err()
		} // else it has just come
	}
	return leave, nil
}

// giveUp ends a wait; false if the place is there already.
func (f *Fair) giveUp(key string, w chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting[key], w)
	if i < 0 {
		return false
	}
	f.waiting[key] = slices.Delete(f.waiting[key], i, i+1)
	if len(f.waiting[key]) == 0 {
		delete(f.waiting, key)
		f.next = slices.DeleteFunc(f.next, func(k string) bool { return k == key })
	}
	return true
}

// leave gives a place back.
func (f *Fair) leave(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken[key]--
	f.hasLeft(key)
	f.handOut()
}

// Pass gives a place of a key back, as leave does, if somebody who waits gets it: who does
// so can give up no more. It reports whether that is so; then leave must not be called.
func (f *Fair) Pass(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.all()
	f.taken[key]--
	f.handOut()
	if f.all() < before {
		f.taken[key]++
		return false
	}
	f.hasLeft(key)
	return true
}

// hasLeft notes that a key has given a place back.
func (f *Fair) hasLeft(key string) {
	if f.taken[key] == 0 {
		delete(f.taken, key)
	}
	f.left[key] = time.Now()
}

// handOut gives the free places to the keys whose turn it is. One that has its share
// already stays where it is in the order, until it gives a place back.
func (f *Fair) handOut() {
	now := time.Now()
	for key, at := range f.left {
		if now.Sub(at) > lately {
			delete(f.left, key)
		}
	}
	for i := 0; i < len(f.next) && f.all() < f.places; {
		key := f.next[i]
		if f.taken[key] >= f.share && f.others(key) {
			i++
			continue
		}
		f.next = slices.Delete(f.next, i, i+1)
		close(f.waiting[key][0])
		f.taken[key]++
		if rest := f.waiting[key][1:]; len(rest) > 0 {
			f.waiting[key] = rest
			f.next = append(f.next, key)
		} else {
			delete(f.waiting, key)
		}
	}
}

// others reports whether a key other than this has a place, had one lately, or waits.
func (f *Fair) others(key string) bool {
	for _, m := range []int{without(f.taken, key), without(f.left, key), without(f.waiting, key)} {
		if m > 0 {
			return true
		}
	}
	return false
}

// without returns how many keys there are in m besides one.
func without[V any](m map[string]V, key string) int {
	if _, ok := m[key]; ok {
		return len(m) - 1
	}
	return len(m)
}
