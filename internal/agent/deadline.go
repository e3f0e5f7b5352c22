package agent

import (
	"sync"
	"time"
)

const (
	// awakeStep is how often a running awakeTimer looks at the clock; it
	// bounds how much a sleep can lengthen what the timer measures.
	awakeStep = 5 * time.Second

	// awakeSlack is how late a step may end before the sandbox is taken to
	// have slept in it.
	awakeSlack = 2 * time.Second
)

// awakeTimer calls a function after the sandbox has been awake for a while.
// After a wake every clock has moved on by the time asleep, so an ordinary
// timer would end, at the moment of waking, a process that had most of its
// time left.
type awakeTimer struct {
	expire func()

	mu      sync.Mutex
	left    time.Duration
	step    time.Duration
	armed   time.Time
	timer   *time.Timer
	stopped bool
}

func afterAwake(d time.Duration, expire func()) *awakeTimer {
	t := &awakeTimer{expire: expire, left: d}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arm()
	return t
}

// stop keeps expire from being called, unless it already has been.
func (t *awakeTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.timer.Stop()
}

func (t *awakeTimer) arm() {
	t.step = min(t.left, awakeStep)
	t.armed = time.Now()
	t.timer = time.AfterFunc(t.step, t.tick)
}

func (t *awakeTimer) tick() {
	if t.due() {
		t.expire()
	}
}

func (t *awakeTimer) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.left -= awakeCharge(t.step, time.Since(t.armed))
	if t.left > 0 {
		t.arm()
		return false
	}
	t.stopped = true
	return true
}

// awakeCharge is what a step that took elapsed costs: nothing if the sandbox
// slept in it, since how long it was awake is then unknown.
func awakeCharge(step, elapsed time.Duration) time.Duration {
	if elapsed > step+awakeSlack {
		return 0
	}
	return max(step, elapsed)
}
