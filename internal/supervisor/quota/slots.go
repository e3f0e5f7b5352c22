// Package quota knows what sandboxes may take: how many may run, what those of one
// API key may have together, and what the limits of one are.
package quota

import (
	"math"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Slots bounds how many sandboxes have a runtime at once, which is a matter of the
// host, and counts what those of each API key take together, which the store bounds.
// What a change needs is taken before it is committed.
type Slots struct {
	mu        sync.Mutex
	limit     int                              // 0 for no bound
	keyLimits func(key string) store.KeyLimits // nil for none

	taken int
	keys  map[string]store.Use // of keys that have sandboxes
}

// MaxLaunches is how many sandboxes of one API key may be on their way up at
// once. Each can wait for its guest for as long as a start may take.
const MaxLaunches = 16

// Bound sets how many sandboxes may run, 0 for no bound, and what those of a key and
// its snapshots may take, which snapshots ask for; nil for no bound.
func (s *Slots) Bound(running int, keys func(key string) store.KeyLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit, s.keyLimits = running, keys
}

// Move takes or gives back what the change of a sandbox from before to after
// needs. To give back never fails.
func (s *Slots) Move(before, after store.Sandbox) error {
	more := after.Use().Minus(before.Use())
	key := after.Config.Key
	s.mu.Lock()
	defer s.mu.Unlock()
	if more.Running > 0 && s.limit > 0 && s.taken >= s.limit {
		return errdef.New(errdef.Exhausted, "too_many_sandboxes",
			"the server has reached its limit of %d running sandboxes", s.limit).
			WithRemedy("pause or kill some, or start the server with a larger --max-running").With("allowed", s.limit)
	}
	s.take(key, more)
	return nil
}

// Hold takes what a sandbox takes that is there already, bound or not.
func (s *Slots) Hold(sb store.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(sb.Config.Key, sb.Use())
}

// Keep takes the disk for a snapshot that is to be of a sandbox with these limits. The
// store decides when it is committed; but then a sandbox has stood still for it.
func (s *Slots) Keep(key string, of store.Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mib := of.DiskMiB + of.MemoryMiB
	if s.keyLimits != nil {
		if err := s.keyLimits(key).FitSnapshot(key, s.keys[key].DiskMiB, mib, of); err != nil {
			return err
		}
	}
	s.take(key, store.Use{DiskMiB: mib})
	return nil
}

// HoldKept takes so much for a snapshot that is there already, bound or not, or
// gives it back if it is negative.
func (s *Slots) HoldKept(key string, mib int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(key, store.Use{DiskMiB: mib})
}

// take adds to what is taken. The caller holds mu.
func (s *Slots) take(key string, more store.Use) {
	s.taken += more.Running
	if key == "" {
		return
	}
	now := s.keys[key].Plus(more)
	if now == (store.Use{}) {
		delete(s.keys, key)
		return
	}
	if s.keys == nil {
		s.keys = map[string]store.Use{}
	}
	s.keys[key] = now
}

// Running returns how many sandboxes have a runtime, and how many may; 0 for no bound.
func (s *Slots) Running() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.limit
}

// Of returns what the sandboxes of a key take together now.
func (s *Slots) Of(key string) store.Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key]
}

// Sharers returns among how many sandboxes the part of a key is divided now.
func (s *Slots) Sharers(key string) int { return Sharers(key, s.Of(key).Running) }

// Spare returns how many bytes of memory a key may have beside that of its sandboxes, if
// so many MiB more are to run.
func (s *Slots) Spare(key string, moreMiB int) int64 {
	if s.keyLimits == nil || key == "" {
		return math.MaxInt64
	}
	most := s.keyLimits(key).MemoryMiB
	if most == 0 {
		return math.MaxInt64
	}
	return max(int64(most-s.Of(key).MemoryMiB-moreMiB), 0) << 20
}

// Keys returns how many API keys have sandboxes.
func (s *Slots) Keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}
