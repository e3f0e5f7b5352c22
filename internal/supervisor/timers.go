package supervisor

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// maxSleep bounds how long the timers sleep without looking at the wall clock,
// which can be set while they do.
const maxSleep = 30 * time.Second

// timers calls fire with a box when the deadline set for it has come. It is a
// heap with one runtime timer for its head, not a scan. A deadline fires once;
// what happens then is looked up again, so that a stale one does no harm.
//
// Of several that have come the earliest fires first, but all that pause after
// all that do not: an end takes little and frees much.
type timers struct {
	fire func(*box)
	wake chan struct{} // the head may have changed

	mu    sync.Mutex
	heaps [2]deadlines // those that fire first, and those that pause
}

// place is where the timers keep the deadline of a box. Being a part of the
// box, it needs no table. It is guarded by timers.mu.
type place struct {
	index  int32 // in its heap, counted from 1; 0 if no deadline is set
	pauses bool  // which heap that is
}

func newTimers(fire func(*box)) *timers {
	return &timers{fire: fire, wake: make(chan struct{}, 1)}
}

func (t *timers) heap(pauses bool) *deadlines {
	if pauses {
		return &t.heaps[1]
	}
	return &t.heaps[0]
}

// set replaces the deadline of b; pauses says that a pause is what it is for.
func (t *timers) set(b *box, when time.Time, pauses bool) {
	t.mu.Lock()
	if b.timer.index > 0 && b.timer.pauses != pauses {
		t.removeLocked(b)
	}
	h := t.heap(pauses)
	d := deadline{when.UnixMicro(), b}
	if i := int(b.timer.index) - 1; i >= 0 {
		(*h)[i] = d
		heap.Fix(h, i)
	} else {
		b.timer.pauses = pauses
		heap.Push(h, d)
	}
	head := b.timer.index == 1
	t.mu.Unlock()
	if head {
		t.nudge()
	}
}

// clear removes the deadline of b.
func (t *timers) clear(b *box) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(b)
}

func (t *timers) removeLocked(b *box) {
	if i := int(b.timer.index) - 1; i >= 0 {
		heap.Remove(t.heap(b.timer.pauses), i)
	}
}

func (t *timers) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run fires deadlines until ctx ends.
func (t *timers) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for b := t.due(time.Now()); b != nil && ctx.Err() == nil; b = t.due(time.Now()) {
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

// due removes and returns the box whose deadline has come and which is next;
// nil if there is none.
func (t *timers) due(now time.Time) *box {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.heaps {
		if h := &t.heaps[i]; len(*h) > 0 && (*h)[0].when <= now.UnixMicro() {
			return heap.Pop(h).(*box)
		}
	}
	return nil
}

func (t *timers) sleep(now time.Time) time.Duration {
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

// deadline is when a box is to be looked at, in Unix microseconds. The time is
// kept beside the pointer, so that comparing reads no boxes.
type deadline struct {
	when int64
	box  *box
}

// deadlines implements heap.Interface.
type deadlines []deadline

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].when < h[j].when }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].box.timer.index, h[j].box.timer.index = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (h *deadlines) Push(x any) {
	d := x.(deadline)
	*h = append(*h, d)
	d.box.timer.index = int32(len(*h))
}

// Pop implements heap.Interface. It returns the box.
func (h *deadlines) Pop() any {
	old := *h
	b := old[len(old)-1].box
	old[len(old)-1] = deadline{}
	*h = old[:len(old)-1]
	b.timer.index = 0
	return b
}
