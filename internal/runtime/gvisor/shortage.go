package gvisor

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gVisor ends a whole runtime when the kernel kills one of its processes for
// want of memory. So that one greedy process does not cost all the others, the
// kernel's limit lies above what a runtime may take. The room between is time:
// the watch sees that more is taken than the runtime may, lifts the limit for a
// moment, and has somebody inside end the largest process. Where that does not
// help, the watch ends the runtime, so that nothing keeps what it may not have.

const (
	// memoryReserve is how far the kernel's limit lies above what a runtime may take.
	memoryReserve = 256 << 20
	// memorySlack is the part of it that is for looks that come late, because the
	// host has others to run: all but what a guest takes until the next look.
	memorySlack = memoryReserve * 3 / 4
)

const (
	// fastestGrowth is how fast a guest is taken to fill memory, in bytes per
	// second: about twice what one with two CPUs was measured to do. The watch
	// looks before the kernel's limit, less the slack, can have been reached.
	fastestGrowth = 2 << 30
	// Bounds of the time between two looks.
	leastLook, mostLook = 2 * time.Millisecond, 500 * time.Millisecond
	// reliefTimeout is how long a runtime may stay past what it may take.
	reliefTimeout = 5 * time.Second
	// reliefWait is how long to wait for more memory to come back, before asking anew:
	// a guest gives it back bit by bit, late where the host is busy, and who asks too
	// soon ends processes that could have stayed.
	reliefWait = time.Second
	// reliefStep is how much has come back if any has.
	reliefStep = 1 << 20
	// reliefSlack is which part of its memory a runtime is to have free
	// afterwards: a sixteenth.
	reliefSlack = 16
)

// WatchMemory implements runtime.MemoryWatcher.
func (i *instance) WatchMemory(ctx context.Context, relieve func(ctx context.Context, bytes int64) error) {
	g, ok := memoryGroupOf(i.group)
	if !ok {
		return
	}
	usage, err := os.Open(g.file(g.usage))
	if err != nil {
		return
	}
	defer usage.Close()
	w := memoryWatch{i: i, group: g, usage: usage, most: i.addReserve(g), relieve: relieve}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.exited:
			return
		case <-timer.C:
		}
		used, err := w.look()
		if err != nil {
			return // it is gone
		}
		if used > w.may() {
			w.relief(ctx)
			timer.Reset(leastLook)
			continue
		}
		timer.Reset(together(lookAgain(w.may()+memoryReserve-memorySlack-used), time.Now()))
	}
}

// lookAgain returns when to look at a guest again that has so many bytes left.
func lookAgain(left int64) time.Duration {
	d := time.Duration(float64(left) / fastestGrowth * float64(time.Second))
	return min(max(d, leastLook), mostLook)
}

// together returns how long to wait instead of d, never longer. Where d is the longest
// wait, it ends at a moment that is the same for all guests, so that those that are idle
// wake the server up together and not one by one.
func together(d time.Duration, now time.Time) time.Duration {
	if d < mostLook {
		return d
	}
	return now.Truncate(mostLook).Add(mostLook).Sub(now)
}

// memoryWatch is the watch over one runtime.
type memoryWatch struct {
	i       *instance
	group   memoryGroup
	usage   *os.File // stays open: it is read often
	most    int64    // what the runtime may take
	relieve func(ctx context.Context, bytes int64) error
}

// may is what the runtime may take, with what loads its memory.
func (w *memoryWatch) may() int64 { return w.most + w.i.loadingMemory() }

// look returns what a runtime takes, at most: files of the host in memory count
// only while they are few, because leaving them out takes longer.
func (w *memoryWatch) look() (int64, error) {
	var buf [32]byte
	n, err := w.usage.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(buf[:n])), 10, 64)
	if err != nil || used <= w.may() {
		return used, err
	}
	used, _, err = memoryOf(w.i.group)
	return used, err
}

// relief has the largest processes ended until the runtime takes no more than it
// may, or ends the runtime.
func (w *memoryWatch) relief(watch context.Context) {
	ctx, cancel := context.WithTimeout(watch, reliefTimeout)
	defer cancel()
	for {
		used, err := w.look()
		if err != nil || !w.lift() {
			return
		}
		if used <= w.may() {
			w.i.settleLimit()
			return
		}
		asked, done := context.WithTimeout(ctx, reliefTimeout/2)
		err = w.relieve(asked, used-w.may()+w.most/reliefSlack)
		done()
		if err == nil && w.fell(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
			if watch.Err() == nil { // else nobody watches any more
				w.giveUp()
			}
			return
		case <-w.i.exited:
			return
		case <-time.After(leastLook):
		}
	}
}

// lift makes room for the time that relief takes. It is false while the guest is
// frozen: then it takes no more, and the limit is another's affair.
func (w *memoryWatch) lift() bool {
	w.i.mu.Lock()
	defer w.i.mu.Unlock()
	return !w.i.frozen && w.group.set(2*w.i.memoryLimit()) == nil
}

// fell waits for memory to come back, until as much is free as was asked for, or no
// more comes. It does not wait while others take more. It reports whether the runtime
// takes no more than it may.
func (w *memoryWatch) fell(ctx context.Context) bool {
	first, err := w.look()
	least, slack := first, w.most/reliefSlack
	for until := time.Now().Add(reliefWait); err == nil && time.Now().Before(until); {
		var used int64
		if used, err = w.look(); err != nil || used <= w.may()-slack || used > first+slack {
			break
		}
		if used <= least-reliefStep {
			least, until = used, time.Now().Add(reliefWait)
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.i.exited:
			return true
		case <-time.After(leastLook):
		}
	}
	used, err := w.look()
	return err != nil || used <= w.may()
}

// giveUp ends a runtime that still takes more than it may.
func (w *memoryWatch) giveUp() {
	w.i.mu.Lock()
	defer w.i.mu.Unlock()
	select {
	case <-w.i.exited:
		return
	default:
	}
	if used, err := w.look(); err != nil || used <= w.may() || w.i.frozen {
		w.i.lowerLimit()
		return
	}
	sentry, err := openProcess(w.i.c.about().sentry)
	if err != nil {
		return // it has exited
	}
	defer sentry.Close()
	w.i.tookTooMuch.Store(true)
	w.i.liftDisks() // no thread ends while it waits for the disk
	raw, err := sentry.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}

// settleLimit puts the limit back after a relief.
func (i *instance) settleLimit() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.frozen {
		i.lowerLimit()
	}
}

// addReserve gives a runtime that is watched its reserve, and returns what it may
// take without.
func (i *instance) addReserve(g memoryGroup) (most int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	most = i.c.about().memoryLimit
	i.reserve = memoryReserve
	if was, err := g.read(g.limit); err == nil && was < i.memoryLimit() {
		_ = g.set(i.memoryLimit())
	}
	return most
}
