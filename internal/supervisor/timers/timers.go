// Package timers tells when the deadlines of very many things have come.
package timers

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// maxSleep bounds how long the timers sleep without looking at the wall clock,
// which can be set while they do.
const maxSleep = 30 * time.Second

// Timed is a thing that can have a deadline.
type Timed interface {
	comparable
	// Place returns where the timers keep the thing's deadline, always the same.
	Place() *Place
}

// Timers calls fire with a thing when the deadline set for it has come. It is a
// heap with one runtime timer for its head, not a scan. A deadline fires once;
// what happens then is looked up again, so that a stale one does no harm.
//
// Of several that have come the earliest fires first, but all that pause after
// all that do not: an end takes little and frees much.
type Timers[T Timed] struct {
	fire func(T)
	wake chan struct{} // the head may have changed

	mu    sync.Mutex
	heaps [2]deadlines[T] // those that fire first, and those that pause
}

// Place is where the timers keep the deadline of a thing. Being a part of the
// thing, it needs no table. It is guarded by Timers.mu.
type Place struct {
	index  int32 // in its heap, counted from 1; 0 if no deadline is set
	pauses bool  // which heap that is
}

// New returns timers without a deadline, for Run to fire.
func New[T Timed](fire func(T)) *Timers[T] {
	return &Timers[T]{fire: fire, wake: make(chan struct{}, 1)}
}

func (t *Timers[T]) heap(pauses bool) *deadlines[T] {
	if pauses {
		return &t.heaps[1]
	}
	return &t.heaps[0]
}

// Set replaces the deadline of b; pauses says that a pause is what it is for.
func (t *Timers[T]) Set(b T, when time.Time, pauses bool) {
	t.mu.Lock()
	if b.Place().index > 0 && b.Place().pauses != pauses {
		t.removeLocked(b)
	}
	h := t.heap(pauses)
	d := deadline[T]{when.UnixMicro(), b}
	if i := int(b.Place().index) - 1; i >= 0 {
		(*h)[i] = d
		heap.Fix(h, i)
	} else {
		b.Place().pauses = pauses
		heap.Push(h, d)
	}
	head := b.Place().index == 1
	t.mu.Unlock()
	if head {
		t.nudge()
	}
}

// Clear removes the deadline of b.
func (t *Timers[T]) Clear(b T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(b)
}

func (t *Timers[T]) removeLocked(b T) {
	if i := int(b.Place().index) - 1; i >= 0 {
		heap.Remove(t.heap(b.Place().pauses), i)
	}
}

func (t *Timers[T]) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Run fires deadlines until ctx ends.
func (t *Timers[T]) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var none T
		for b := t.due(time.Now()); b != none && ctx.Err() == nil; b = t.due(time.Now()) {
			t.fire(b)
		}
		timer.Reset(t.sleep(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// due removes and returns the thing whose deadline has come and which is next;
// zero if there is none.
func (t *Timers[T]) due(now time.Time) (none T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.heaps {
		if h := &t.heaps[i]; len(*h) > 0 && (*h)[0].when <= now.UnixMicro() {
			return heap.Pop(h).(T)
		}
	}
	return none
}

func (t *Timers[T]) sleep(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := maxSleep
	for _, h := range t.heaps {
		if len(h) > 0 {
			d = min(d, time.UnixMicro(h[0].when).Sub(now))
		}
	}
	return d
}

// deadline is when a thing is to be looked at, in Unix microseconds. The time is
// kept beside the pointer, so that comparing reads no things.
type deadline[T Timed] struct {
	when  int64
	thing T
}

// deadlines implements heap.Interface.
type deadlines[T Timed] []deadline[T]

func (h deadlines[T]) Len() int           { return len(h) }
func (h deadlines[T]) Less(i, j int) bool { return h[i].when < h[j].when }
func (h deadlines[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].thing.Place().index, h[j].thing.Place().index = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (h *deadlines[T]) Push(x any) {
	d := x.(deadline[T])
	*h = append(*h, d)
	d.thing.Place().index = int32(len(*h))
}

// Pop implements heap.Interface. It returns the thing.
func (h *deadlines[T]) Pop() any {
	old := *h
	b := old[len(old)-1].thing
	old[len(old)-1] = deadline[T]{}
	*h = old[:len(old)-1]
	b.Place().index = 0
	return b
}
