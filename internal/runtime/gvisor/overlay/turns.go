package main

// busyTurns is of threads of the guest that use the processor all the time.
const busyTurns = `package systrap

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/platform"
)

// A thread that has long been running is busy. Where many are, one that is not would wait
// for all of them. While there is such a one, the busy ones run by turns, few at once, from
// one tick of the clock to the next. Among very many it would not even be noticed, so they
// always do. Turns cost those some time that make system calls.

const (
	// busyAfter is how long a thread runs before it is busy: time on the clock, of which
	// among many it gets a part.
	busyAfter = time.Second

	// maxTick is what is counted of the time between two ticks.
	maxTick = 100 * time.Millisecond

	// wokenTicks is how many ticks after a restore a restored thread is busy that runs: it
	// was running before.
	wokenTicks = 10

	// othersTicks is how many ticks after another one has run the turns end.
	othersTicks = 5

	// veryMany is how many are, for a processor.
	veryMany = 8
)

// turn is what is known of a context's thread. All but busy and held is protected by
// turns.mu.
type turn struct {
	woken bool          // it was made before the clock ticked: at a restore
	ran   time.Duration // until it ran last, less what it waited before, up to busyAfter
	last  time.Time     // when that was
	busy  atomic.Bool
	began int64         // the tick in which its last turn began
	held  atomic.Bool   // it waits for its turn
	wake  chan struct{} // where it waits
}

var turns struct {
	mu    sync.Mutex
	many  atomic.Bool // are busy
	other atomic.Bool // has run since the last tick
	on    atomic.Bool // some are held
	ticks int64
	until int64              // the tick until which there are turns
	last  time.Time          // when the clock ticked last
	next  []*platformContext // who is held, by turn
}

// newContext returns a context that is not in the application yet.
func newContext() *platformContext {
	c := &platformContext{needRestoreFPState: true}
	turns.mu.Lock()
	defer turns.mu.Unlock()
	c.turn.woken = turns.ticks == 0
	return c
}

// Tick says that the clock has ticked while these contexts were in the application, or
// waited to be. While nothing inside runs, the clock stands still.
func (*Systrap) Tick(running []platform.Context, processors int) {
	turns.mu.Lock()
	defer turns.mu.Unlock()
	now, before := time.Now(), turns.last
	turns.last = now
	turns.ticks++
	clear(turns.next)
	turns.next = turns.next[:0]
	for _, p := range running {
		c := p.(*platformContext)
		if c.turn.count(now, before) {
			turns.next = append(turns.next, c)
		} else {
			c.release()
		}
	}
	if turns.other.Swap(false) {
		turns.until = turns.ticks + othersTicks
	}
	// One that waits in the sentry leaves its processor to another.
	free := max(2*processors-len(running)+len(turns.next), processors)
	turns.many.Store(len(turns.next) > free)
	always := len(turns.next) > veryMany*processors
	if !always && turns.ticks >= turns.until || len(turns.next) <= free {
		free = len(turns.next)
	} else {
		slices.SortStableFunc(turns.next, func(a, b *platformContext) int { return int(a.turn.began - b.turn.began) })
		turns.on.Store(true)
	}
	for range free {
		beginTurn()
	}
	for _, c := range turns.next {
		c.turn.held.Store(true)
		if c.turn.wake == nil {
			c.interrupt.Preempt()
		}
	}
	turns.on.Store(len(turns.next) > 0)
}

// count adds the time between the ticks now and before to what the thread has run, and
// reports whether it is busy. One that was busy is until it has waited half as long.
func (t *turn) count(now, before time.Time) bool {
	if t.woken && turns.ticks <= wokenTicks {
		t.ran = busyAfter
	} else {
		ran := min(now.Sub(before), maxTick)
		waited := now.Sub(t.last) - ran
		t.ran = min(max(t.ran-waited, 0)+ran, busyAfter)
	}
	t.last = now
	busy := t.ran == busyAfter || t.busy.Load() && t.ran > busyAfter/2
	t.busy.Store(busy)
	return busy
}

// beginTurn lets the next one run. turns.mu is locked.
func beginTurn() {
	if len(turns.next) == 0 {
		return
	}
	c := turns.next[0]
	turns.next[0] = nil
	turns.next = turns.next[1:]
	c.turn.began = turns.ticks
	c.release()
}

// release ends the waiting. turns.mu is locked.
func (c *platformContext) release() {
	c.turn.held.Store(false)
	if c.turn.wake != nil {
		close(c.turn.wake)
		c.turn.wake = nil
	}
}

// endTurn lets another one run in what is left of the turn.
func (c *platformContext) endTurn() {
	if !turns.on.Load() || c.turn.held.Load() {
		return
	}
	turns.mu.Lock()
	defer turns.mu.Unlock()
	if c.turn.began == turns.ticks {
		c.turn.began-- // once
		beginTurn()
	}
}

// await waits until the context may run. It reports whether it was interrupted before.
func (c *platformContext) await() (interrupted bool) {
	if turns.many.Load() && !c.turn.busy.Load() && !turns.other.Load() {
		turns.other.Store(true)
	}
	if !turns.on.Load() || !c.turn.held.Load() {
		return false
	}
	turns.mu.Lock()
	if !turns.on.Load() || !c.turn.held.Load() {
		turns.mu.Unlock()
		return false
	}
	wake := make(chan struct{})
	c.turn.wake = wake
	turns.mu.Unlock()

	if ctx := c.sharedContext; !ctx.sleeping {
		ctx.sleeping = true
		ctx.subprocess.decAwakeContexts()
	}
	stop := make(stopChannel, 1)
	interrupted = true
	if c.interrupt.Enable(stop) {
		select {
		case <-wake:
			interrupted = false
		case <-stop:
		}
		c.interrupt.Disable()
		interrupted = interrupted || len(stop) > 0
	}
	turns.mu.Lock()
	if c.turn.wake == wake {
		c.turn.wake = nil
	}
	turns.mu.Unlock()
	return interrupted
}

// stopChannel is an interrupt.Receiver.
type stopChannel chan struct{}

func (s stopChannel) NotifyInterrupt() {
	select {
	case s <- struct{}{}:
	default:
	}
}
`
