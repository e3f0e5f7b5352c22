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

// timers calls fire with an id when the deadline set for it has come. It is a
// heap with one runtime timer for its head, not a scan. A deadline fires once;
// what happens then is looked up again, so that a stale one does no harm.
//
// Of several that have come the earliest fires first, but all that pause after
// all that do not: an end takes little and frees much.
type timers struct {
	fire func(id string)
	wake chan struct{} // the head may have changed

	mu    sync.Mutex
	heaps [2]deadlines // those that fire first, and those that pause
	at    map[string]*deadline
}

type deadline struct {
	id     string
	when   time.Time
	pauses bool
	index  int
}

func newTimers(fire func(string)) *timers {
	return &timers{fire: fire, wake: make(chan struct{}, 1), at: map[string]*deadline{}}
}

func (t *timers) heap(d *deadline) *deadlines {
	if d.pauses {
		return &t.heaps[1]
	}
	return &t.heaps[0]
}

// set replaces the deadline of id; pauses says that a pause is what it is for.
func (t *timers) set(id string, when time.Time, pauses bool) {
	t.mu.Lock()
	d, ok := t.at[id]
	if ok && d.pauses != pauses {
		heap.Remove(t.heap(d), d.index)
		ok = false
	}
	if ok {
		d.when = when
		heap.Fix(t.heap(d), d.index)
	} else {
		d = &deadline{id: id, when: when, pauses: pauses}
		t.at[id] = d
		heap.Push(t.heap(d), d)
	}
	head := d.index == 0
	t.mu.Unlock()
	if head {
		t.nudge()
	}
}

// clear removes the deadline of id.
func (t *timers) clear(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d, ok := t.at[id]; ok {
		heap.Remove(t.heap(d), d.index)
		delete(t.at, id)
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
		for id, ok := t.due(time.Now()); ok && ctx.Err() == nil; id, ok = t.due(time.Now()) {
			t.fire(id)
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

// due removes and returns the id whose deadline has come and which is next.
func (t *timers) due(now time.Time) (id string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.heaps {
		if h := &t.heaps[i]; len(*h) > 0 && !(*h)[0].when.After(now) {
			d := heap.Pop(h).(*deadline)
			delete(t.at, d.id)
			return d.id, true
		}
	}
	return "", false
}

func (t *timers) sleep(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := maxSleep
	for _, h := range t.heaps {
		if len(h) > 0 {
			d = min(d, h[0].when.Sub(now))
		}
	}
	return d
}

// deadlines implements heap.Interface.
type deadlines []*deadline

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].when.Before(h[j].when) }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *deadlines) Push(x any) {
	d := x.(*deadline)
	d.index = len(*h)
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *deadlines) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return d
}
