// Package quota knows what sandboxes may take: how many may run, what those of one
// API key may have together, and what the limits of one are.
package quota

import (
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Slots bounds how many sandboxes have a runtime at once, and what those that
// one API key has made take together. What a change needs is taken before it is
// committed.
type Slots struct {
	mu        sync.Mutex
	limit     int                              // 0 for no bound
	keyLimits func(key string) store.KeyLimits // nil for none

	taken int
	keys  map[string]Use // of keys that have sandboxes
}

// MaxLaunches is how many sandboxes of one API key may be on their way up at
// once. Each can wait for its guest for as long as a start may take.
const MaxLaunches = 16

// Use is what the sandboxes that an API key has made take together.
type Use struct {
	Running   int // how many have a runtime, or are about to
	Sandboxes int // how many there are, asleep or not
	MemoryMiB int // the memory limits of those that run, added up
	DiskMiB   int // the limits on disk of all of them and of the snapshots, added up
}

// plus returns the sum of two uses.
func (u Use) plus(v Use) Use {
	return Use{u.Running + v.Running, u.Sandboxes + v.Sandboxes, u.MemoryMiB + v.MemoryMiB, u.DiskMiB + v.DiskMiB}
}

func (u Use) minus(v Use) Use {
	return u.plus(Use{-v.Running, -v.Sandboxes, -v.MemoryMiB, -v.DiskMiB})
}

// useOf returns what one sandbox takes.
func useOf(sb store.Sandbox) Use {
	limits := sb.Config.Limits
	switch r := sb.Record; {
	case r.State == lifecycle.Running || r.Phase() == lifecycle.Creating || r.Phase() == lifecycle.Resuming:
		return Use{Running: 1, Sandboxes: 1, MemoryMiB: limits.MemoryMiB, DiskMiB: limits.DiskMiB}
	case r.State == lifecycle.Paused:
		return Use{Sandboxes: 1, DiskMiB: limits.DiskMiB}
	}
	return Use{}
}

// Bound sets how many sandboxes may run, 0 for no bound, and what those of a key
// may take; nil for no bound.
func (s *Slots) Bound(running int, keys func(key string) store.KeyLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit, s.keyLimits = running, keys
}

// Move takes or gives back what the change of a sandbox from before to after
// needs. To give back never fails.
func (s *Slots) Move(before, after store.Sandbox) error {
	more := useOf(after).minus(useOf(before))
	key := after.Config.Key
	s.mu.Lock()
	defer s.mu.Unlock()
	if more.Running > 0 && s.limit > 0 && s.taken >= s.limit {
		return errdef.New(errdef.Exhausted, "too_many_sandboxes",
			"you have reached the maximum number of concurrent E2B sandboxes (%d)", s.limit).
			WithRemedy("pause or kill some, or start the server with a larger --max-running")
	}
	if key != "" && s.keyLimits != nil {
		most := s.keyLimits(key)
		if err := fits(key, s.keys[key], more, most); err != nil {
			return err
		}
		if most.DiskMiB > 0 && more.Sandboxes > 0 && after.Config.Limits.DiskMiB == 0 {
			return errdef.New(errdef.Exhausted, "key_limit_reached",
				"the sandbox has no limit on disk, and those of the API key may have %d MiB together", most.DiskMiB).
				WithRemedy("give it a limit on disk (diskMiB), or use a key without maxDiskMiB")
		}
	}
	s.take(key, more)
	return nil
}

// Hold takes what a sandbox takes that is there already, bound or not.
func (s *Slots) Hold(sb store.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(sb.Config.Key, useOf(sb))
}

// Keep takes the disk for a snapshot that is to be of a sandbox with these limits.
func (s *Slots) Keep(key string, of store.Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mib := of.DiskMiB + of.MemoryMiB
	if key != "" && s.keyLimits != nil {
		switch most, has := s.keyLimits(key).DiskMiB, s.keys[key].DiskMiB; {
		case most == 0:
		case of.DiskMiB == 0:
			return errdef.New(errdef.Exhausted, "key_limit_reached",
				"the sandbox has no limit on disk, and the sandboxes and snapshots of the API key may have %d MiB together", most).
				WithRemedy("take it with a key without maxDiskMiB")
		case has+mib > most:
			return errdef.New(errdef.Exhausted, "key_limit_reached",
				"the snapshot may take %d MiB of the disk, and the sandboxes and snapshots of the API key have %d MiB of the %d MiB that they may have together", mib, has, most).
				WithRemedy("delete some snapshots, kill some sandboxes, or use a key with a larger maxDiskMiB").
				With("limit", "maxDiskMiB").With("allowed", most).With("used", has).With("requested", mib).With("key", key)
		}
	}
	s.take(key, Use{DiskMiB: mib})
	return nil
}

// HoldKept takes so much for a snapshot that is there already, bound or not, or
// gives it back if it is negative.
func (s *Slots) HoldKept(key string, mib int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(key, Use{DiskMiB: mib})
}

// take adds to what is taken. The caller holds mu.
func (s *Slots) take(key string, more Use) {
	s.taken += more.Running
	if key == "" {
		return
	}
	now := s.keys[key].plus(more)
	if now == (Use{}) {
		delete(s.keys, key)
		return
	}
	if s.keys == nil {
		s.keys = map[string]Use{}
	}
	s.keys[key] = now
}

// fits returns an errdef.Exhausted if a key that uses so much may not use more.
func fits(key string, now, more Use, most store.KeyLimits) error {
	for _, l := range []struct {
		name            string
		now, more, most int
		what, remedy    string
	}{
		{
			"maxRunning", now.Running, more.Running, most.Running,
			"you have reached the maximum number of concurrent E2B sandboxes (%[3]d) of the API key: %[1]d running",
			"pause or kill some, or use a key with a larger maxRunning",
		},
		{
			"maxSandboxes", now.Sandboxes, more.Sandboxes, most.Sandboxes,
			"you have reached the maximum number of sandboxes (%[3]d) of the API key: there are %[1]d, those that sleep included",
			"kill some, or use a key with a larger maxSandboxes",
		},
		{
			"maxMemoryMiB", now.MemoryMiB, more.MemoryMiB, most.MemoryMiB,
			"the sandbox needs %[2]d MiB of memory, and those of the API key that run have %[1]d MiB of the %[3]d MiB that they may have together",
			"pause or kill some, ask for less memory, or use a key with a larger maxMemoryMiB",
		},
		{
			"maxDiskMiB", now.DiskMiB, more.DiskMiB, most.DiskMiB,
			"the sandbox may take %[2]d MiB of the disk, and those of the API key, asleep or not, and its snapshots have %[1]d MiB of the %[3]d MiB that they may have together",
			"kill some, delete snapshots, ask for less (diskMiB), or use a key with a larger maxDiskMiB",
		},
	} {
		if l.more > 0 && l.most > 0 && l.now+l.more > l.most {
			return errdef.New(errdef.Exhausted, "key_limit_reached", l.what, l.now, l.more, l.most).WithRemedy("%s", l.remedy).
				With("limit", l.name).With("allowed", l.most).With("used", l.now).With("requested", l.more).With("key", key)
		}
	}
	return nil
}

// Of returns what the sandboxes of a key take together now.
func (s *Slots) Of(key string) Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key]
}

// Keys returns how many API keys have sandboxes.
func (s *Slots) Keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}
