// Package lightsleep decides how long the frozen runtimes of paused sandboxes stay,
// and which of them go first.
//
// After a pause has committed, a sandbox sleeps, and needs its runtime no more. While
// there is memory to spare, the frozen runtime may stay all the same, so that a wake
// only thaws it. It is never the only copy of anything, so letting it go is always
// harmless: the next wake is as one without it.
//
// A [Room] holds such runtimes, as [Sleeper]s. Each that was added leaves once: by
// [Room.Take], for a wake or a kill, or by a call of its Release, for one of the
// reasons [Why]. Which of both it is, is decided under one lock.
//
// Times are those of the monotonic clock, so that nothing happens when the machine's
// clock is set.
package lightsleep

import (
	"container/heap"
	"container/list"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// Why is a reason to let a runtime go.
type Why string

// The reasons.
const (
	ByAge      Why = "age"      // it stayed as long as one may
	ByShare    Why = "share"    // a new one needs room in what all, or those of its key, may hold
	ByPressure Why = "pressure" // the machine has little memory
	ByKey      Why = "key"      // its key needs the memory, for a create or a wake
	ByStop     Why = "stop"     // the server stops
)

// Reasons lists all reasons.
func Reasons() []Why { return []Why{ByAge, ByShare, ByPressure, ByKey, ByStop} }

// Sleeper is a frozen runtime that may stay.
type Sleeper struct {
	Key    string    // the API key whose sandbox it is
	Memory int64     // bytes that its end gives back
	Since  time.Time // set by Add
	// Release ends the runtime. It is called once, in a goroutine of its own, if the
	// room lets the sleeper go, which is out of the room then.
	Release func(Why)

	age   *list.Element // in Room.ages; nil outside of the room
	index int           // in holder.sleepers
}

// Options is what a room works with.
type Options struct {
	Most   time.Duration        // how long a runtime stays; 0 for none that does
	Memory int64                // bytes that all of them may hold; 0 for a quarter of what would be available without them
	Floor  int64                // bytes of memory that are to stay available; 0 for a tenth of the machine's
	Look   func() (Host, error) // how the machine is looked at; nil for this one
	Every  time.Duration        // between two looks, while there are any; 0 for 100 ms
	Log    *slog.Logger         // nil for none
}

// Room holds the runtimes that stay. It can be used by several goroutines, and never
// calls Release from within a call of theirs.
type Room struct {
	o     Options
	came  chan struct{} // there is one in a room that was empty
	blind atomic.Bool   // the last look at the machine failed

	mu       sync.Mutex
	closed   bool
	ages     list.List // of *Sleeper; who came first is in front
	keys     map[string]*holder
	holders  holders // the same; who holds most is in front
	bytes    int64
	leaving  []leaving
	released map[Why]int64

	releases insist.Work
	turns    chan struct{} // of releases: many at once would take the processors from others
}

// leaving is memory that the machine is about to get back.
type leaving struct {
	bytes int64
	until time.Time // it is taken for given back then
}

// mostReleases is how many runtimes are released at once.
const mostReleases = 8

// New returns an empty room.
func New(o Options) *Room {
	if o.Look == nil {
		o.Look = thisHost
	}
	if o.Every == 0 {
		o.Every = lookEvery
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Room{o: o, came: make(chan struct{}, 1), turns: make(chan struct{}, mostReleases), keys: map[string]*holder{}, released: map[Why]int64{}}
}

// On reports whether runtimes stay at all.
func (r *Room) On() bool { return r.o.Most > 0 }

// Add takes a runtime in, and lets others go if it needs their room. It returns false
// if there is no room for it; then the caller ends it. The memory of s is in use
// already.
func (r *Room) Add(s *Sleeper) bool {
	if !r.On() || s.Memory <= 0 {
		return false
	}
	host, err := r.look()
	if err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.age != nil {
		panic("internal error: a runtime is added to a room that it is in")
	}
	if r.closed || host.Available < r.floor(host) {
		return false
	}
	share := r.shareLocked(host, s.Memory)
	if s.Memory > share/keyPart {
		return false
	}
	going := r.goingLocked()
	for r.keys[s.Key].held()+s.Memory > share/keyPart {
		going.next(r.keys[s.Key], ByShare)
	}
	for r.bytes+s.Memory > share {
		going.next(r.mostLocked(s.Key), ByShare)
	}
	s.Since = time.Now()
	r.enterLocked(s)
	return true
}

// keyPart is the part of the share that one API key may hold.
const keyPart = 2

// shareLocked returns what all may hold, with one more that needs so many bytes.
func (r *Room) shareLocked(host Host, more int64) int64 {
	if r.o.Memory > 0 {
		return r.o.Memory
	}
	return (host.Available + r.bytes + more) / 4
}

// floor returns what is to stay available.
func (r *Room) floor(host Host) int64 {
	if r.o.Floor > 0 {
		return r.o.Floor
	}
	return host.Memory / 10
}

// Take takes a runtime out of the room. It returns false if it is not there, because
// Release has been called or will be.
func (r *Room) Take(s *Sleeper) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.age == nil {
		return false
	}
	r.leaveLocked(s)
	return true
}

// Fit lets runtimes of a key go until they hold no more than most bytes, but for
// one that stays and does not count; nil for none.
func (r *Room) Fit(key string, most int64, but *Sleeper) {
	r.mu.Lock()
	defer r.mu.Unlock()
	going := r.goingLocked()
	aside := int64(0)
	if but != nil && but.age != nil {
		going.but, aside = but, but.Memory
	}
	for h := r.keys[key]; h.held()-aside > max(most, 0); h = r.keys[key] {
		going.next(h, ByKey)
	}
}

// Of returns how many bytes those of a key hold.
func (r *Room) Of(key string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[key].held()
}

// Total returns how many there are, and how many bytes they hold.
func (r *Room) Total() (n int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ages.Len(), r.bytes
}

// Released returns how many were let go, by reason.
func (r *Room) Released() map[Why]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.released)
}

func (r *Room) enterLocked(s *Sleeper) {
	h := r.keys[s.Key]
	if h == nil {
		h = &holder{key: s.Key}
		r.keys[s.Key] = h
		heap.Push(&r.holders, h)
	}
	s.index = len(h.sleepers)
	h.sleepers = append(h.sleepers, s)
	h.bytes += s.Memory
	r.bytes += s.Memory
	heap.Fix(&r.holders, h.index)
	s.age = r.ages.PushBack(s)
	if r.ages.Len() == 1 {
		select {
		case r.came <- struct{}{}:
		default:
		}
	}
}

func (r *Room) leaveLocked(s *Sleeper) {
	h := r.keys[s.Key]
	last := len(h.sleepers) - 1
	h.sleepers[s.index] = h.sleepers[last]
	h.sleepers[s.index].index = s.index
	h.sleepers[last] = nil
	h.sleepers = h.sleepers[:last]
	h.bytes -= s.Memory
	r.bytes -= s.Memory
	if last == 0 {
		heap.Remove(&r.holders, h.index)
		delete(r.keys, s.Key)
	} else {
		heap.Fix(&r.holders, h.index)
	}
	r.ages.Remove(s.age)
	s.age = nil
}

// letGoLocked has a runtime end.
func (r *Room) letGoLocked(s *Sleeper, why Why, now time.Time) {
	r.leaveLocked(s)
	r.released[why]++
	r.leaving = append(r.leaving, leaving{s.Memory, now.Add(leaveTime)})
	r.releases.Go(func() {
		r.turns <- struct{}{}
		defer func() { <-r.turns }()
		s.Release(why)
	})
}

// leaveTime is how long memory is on its way back after a runtime was let go. To end
// one takes some 100 ms, and more while many end.
const leaveTime = time.Second

// leavingLocked returns how many bytes are on their way back.
func (r *Room) leavingLocked(now time.Time) (bytes int64) {
	gone := 0
	for _, l := range r.leaving {
		if now.Before(l.until) {
			bytes += l.bytes
		} else {
			gone++
		}
	}
	r.leaving = append(r.leaving[:0], r.leaving[gone:]...)
	return bytes
}
