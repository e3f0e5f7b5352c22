package lightsleep

import (
	"context"
	"time"
)

// lookEvery is how often the machine's memory is looked at, while there are runtimes.
const lookEvery = 100 * time.Millisecond

// mostStalled is the part of the time, as 1/mostStalled, in which tasks may wait for
// memory before a runtime is let go.
const mostStalled = 10

// plenty is how many times the floor is so much memory that it does not matter how long
// tasks wait: those of a sandbox at its own limit do, and no other memory helps them.
const plenty = 2

// Run lets runtimes go that have stayed for as long as they may, and some when the
// machine has little memory. When ctx ends it lets all go, and returns when they have
// been released. An empty room costs nothing.
func (r *Room) Run(ctx context.Context) {
	defer r.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.came:
			r.watch(ctx)
		}
	}
}

// end lets all go, and takes no more.
func (r *Room) end() {
	r.mu.Lock()
	r.closed = true
	for now := time.Now(); r.ages.Len() > 0; {
		r.letGoLocked(r.ages.Front().Value.(*Sleeper), ByStop, now)
	}
	r.mu.Unlock()
	r.releases.Wait()
}

// watch returns when the room is empty, or ctx ends.
func (r *Room) watch(ctx context.Context) {
	look, age := time.NewTicker(r.o.Every), time.NewTimer(0)
	defer look.Stop()
	defer age.Stop()
	var stalls stalls
	for {
		next, any := r.letOldGo(time.Now())
		if !any {
			return
		}
		age.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-age.C:
		case <-look.C:
			r.relieve(&stalls)
		}
	}
}

// letOldGo lets those go whose time is up. It returns how long the next one has, if
// there is one.
func (r *Room) letOldGo(now time.Time) (next time.Duration, any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for first := r.ages.Front(); first != nil; first = r.ages.Front() {
		s := first.Value.(*Sleeper)
		if left := s.Since.Add(r.o.Most).Sub(now); left > 0 {
			return left, true
		}
		r.letGoLocked(s, ByAge, now)
	}
	return 0, false
}

// relieve lets runtimes go if the machine has little memory: as many as cover what is
// missing, or one if there is
// not plenty and tasks wait for some.
func (r *Room) relieve(stalls *stalls) {
	host, err := r.look()
	if err != nil {
		return
	}
	floor := r.floor(host)
	stalled := stalls.tooLong(time.Now(), host.Stalled) && host.Available < plenty*floor
	n, bytes := 0, int64(0)
	r.mu.Lock()
	going := r.goingLocked()
	lack := floor - host.Available - r.leavingLocked(going.now)
	for ; len(r.holders) > 0 && (bytes < lack || n == 0 && stalled); n++ {
		bytes += going.next(r.holders[0], ByPressure).Memory
	}
	r.mu.Unlock()
	if n > 0 {
		r.o.Log.Info("memory is low: frozen runtimes of paused sandboxes are let go, which wake by their images now",
			"count", n, "bytes", bytes, "available", host.Available, "floor", floor, "stalled", stalled)
	}
}

// stalls knows how long tasks had waited for memory at the last look. Before the first
// that is long ago, so that nobody can have waited for too much of the time.
type stalls struct {
	at    time.Time
	total time.Duration
}

// tooLong reports whether they have waited for too much of the time since then.
func (s *stalls) tooLong(now time.Time, total time.Duration) bool {
	too := total-s.total > now.Sub(s.at)/mostStalled
	s.at, s.total = now, total
	return too
}
