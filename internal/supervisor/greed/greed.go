// Package greed has an API key that takes nearly all processors step back for the
// sandboxes of other keys.
//
// Weights alone do not help those others: a sandbox that answers a request wakes
// and waits hundreds of times, and each time a processor must become free first.
// So a greedy key's sandboxes yield: they run while no sandbox of another key wants
// to, and the kernel takes the processor from them at once when one does. That costs
// nothing while nobody else wants to run, so a key yields also when it is alone, and
// another key finds it so from its first request on.
//
// The kernel knows no parts among those that yield. So of two greedy keys neither
// does, and weights divide the time between them.
//
// While sandboxes of other keys run, a greedy key is kept off some processors as
// well. What others have for themselves is the reserve: a quarter of the processors,
// and at least one. It is there for the server, whose own threads nobody yields to,
// and where the kernel cannot have a sandbox yield. On a host with one processor
// there is no reserve.
//
// A key is greedy once its sandboxes take three quarters of the rest. It stops being
// so when they have taken less than half of the rest for some looks.
package greed

import (
	"context"
	"errors"
	"time"
)

// calm is how many looks in a row must find a key without need of all processors
// before it is greedy no more.
const calm = 10

// Runtime is one that can be made to step back.
type Runtime interface {
	// CPUTime is what it has used since its start.
	CPUTime() (time.Duration, error)
	// Confine has it run on n of the host's processors at most; 0 is all.
	Confine(n int) error
	// Yield has it run only while no runtime that does not yield wants to.
	Yield(yield bool) error
}

// Running is the runtime of a sandbox that runs, and the key that owns it. All of
// a key "", of a time before keys were noted, count as one key's.
type Running struct {
	Key string
	Runtime
}

// Watch knows what was found before. It is used by one goroutine at a time.
type Watch struct {
	most   int // processors that a greedy key may use beside others; 0 for all
	busy   func() (time.Duration, error)
	last   time.Time
	was    time.Duration // what busy said then
	had    map[Runtime]reading
	greedy map[string]int // and how many looks in a row it was calm
}

// reading is what is known of a runtime.
type reading struct {
	used time.Duration
	told orders
}

// New returns a Watch of a host with so many processors. busy says how long they
// have run anything at all, together.
func New(processors int, busy func() (time.Duration, error)) *Watch {
	return &Watch{most: processors - max(1, processors/4), busy: busy, had: map[Runtime]reading{}, greedy: map[string]int{}}
}

// rest is what there was besides the reserve in that time.
func (w *Watch) rest(took time.Duration) time.Duration { return took * time.Duration(max(w.most, 1)) }

// Follow looks at what runs every so often, until ctx ends: for that long a key may
// take all processors. failed hears of a runtime that could not be measured or
// told to step back, which may just have ended.
func (w *Watch) Follow(ctx context.Context, every time.Duration, running func() []Running, failed func(Running, error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.Look(now, running(), failed)
		}
	}
}

// Look measures what runs now, and has step back what is greedy.
func (w *Watch) Look(now time.Time, running []Running, failed func(Running, error)) {
	took := now.Sub(w.last)
	busy, err := w.busy()
	idle := err == nil && len(w.greedy) == 0 && busy-w.was <= w.rest(took)*3/4 && !w.standing()
	w.was = busy
	if w.last.IsZero() { // a server before this one may have told some
		for _, r := range running {
			if err := errors.Join(r.Confine(0), r.Yield(false)); err != nil {
				failed(r, err)
			}
		}
		w.last = now
		return
	}
	keys := map[string]time.Duration{}
	for _, r := range running {
		keys[r.Key] = 0
	}
	if idle { // nobody can be greedy, and the usual case costs one look
		clear(w.had)
		w.last = now
		return
	}
	has := map[Runtime]reading{}
	for _, r := range running {
		had, known := w.had[r.Runtime]
		used, err := r.CPUTime()
		if err != nil {
			failed(r, err)
			if known { // with what it was told, to lift that
				has[r.Runtime] = had
			}
			continue
		}
		if known {
			keys[r.Key] += used - had.used
		}
		has[r.Runtime] = reading{used, had.told}
	}
	w.judge(keys, took)
	w.had, w.last = has, now
	for _, r := range running {
		now, known := has[r.Runtime]
		want := w.ordersFor(r.Key, len(keys))
		if !known || now.told == want {
			continue
		}
		if err := want.give(r.Runtime, now.told); err != nil {
			failed(r, err)
			continue
		}
		has[r.Runtime] = reading{now.used, want}
	}
}

// standing reports whether a runtime was told anything that still holds.
func (w *Watch) standing() bool {
	for _, had := range w.had {
		if had.told != (orders{}) {
			return true
		}
	}
	return false
}

// orders are what a runtime was told.
type orders struct {
	confined int
	yields   bool
}

// ordersFor returns what the runtimes of a key are to be told.
func (w *Watch) ordersFor(key string, keys int) (o orders) {
	if _, greedy := w.greedy[key]; !greedy {
		return o
	}
	o.yields = len(w.greedy) == 1
	if keys > 1 {
		o.confined = w.most
	}
	return o
}

func (o orders) give(to Runtime, had orders) error {
	var errs []error
	if o.confined != had.confined {
		errs = append(errs, to.Confine(o.confined))
	}
	if o.yields != had.yields {
		errs = append(errs, to.Yield(o.yields))
	}
	return errors.Join(errs...)
}

// judge notes which keys are greedy, by what each used in that time.
func (w *Watch) judge(keys map[string]time.Duration, took time.Duration) {
	rest := w.rest(took)
	for key, used := range keys {
		looks, greedy := w.greedy[key]
		switch {
		case used > rest*3/4:
			w.greedy[key] = 0
		case greedy && used > rest/2: // it might take more if it could
			w.greedy[key] = 0
		case greedy:
			w.greedy[key] = looks + 1
		}
	}
	for key, looks := range w.greedy {
		if _, runs := keys[key]; !runs || looks >= calm {
			delete(w.greedy, key)
		}
	}
}
