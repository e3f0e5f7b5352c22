package lightsleep

import (
	"sync"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// Bed is where the runtime of one sandbox stays. The sandbox's lock orders what happens
// to it, and is held when a method is called.
type Bed struct {
	room    *Room
	lock    sync.Locker
	release func(launch int64, why Why)
	stays   *stay // nil for none
}

// stay is a runtime that stays.
type stay struct {
	inst       runtime.Instance
	launch     int64
	checkpoint string // what it was captured as
	sleeper    Sleeper
	awaited    bool      // it is about to go on, and not in the room
	near       *Approach // nil for none
	over       chan struct{}
}

// The reasons for which a runtime goes that a bed knows itself.
const (
	ByEnd    Why = "its runtime ended"
	ByChange Why = "the sandbox is no longer what it was captured as"
)

// Bed returns the place of a sandbox with a lock. release ends the runtime of a launch;
// it is called without the lock.
func (r *Room) Bed(lock sync.Locker, release func(launch int64, why Why)) *Bed {
	return &Bed{room: r, lock: lock, release: release}
}

// Stays returns the runtime that stays; nil for none.
func (b *Bed) Stays() runtime.Instance {
	if b.stays == nil {
		return nil
	}
	return b.stays.inst
}

// Lay has a launch of a runtime stay, which is frozen and was captured as the checkpoint
// of its sandbox. It is false where there is no room; what is about to go on needs none.
// The key of the sandbox may hold no more than most bytes.
func (b *Bed) Lay(inst runtime.Instance, launch int64, sb store.Sandbox, most int64) bool {
	s := &stay{inst: inst, launch: launch, checkpoint: sb.Record.Checkpoint.ID, awaited: sb.Record.Op != nil, over: make(chan struct{})}
	if !s.awaited {
		s.sleeper = Sleeper{Key: sb.Config.Key, Release: func(why Why) { b.end(s, why) }}
		used, err := usage.Of(inst)
		if s.sleeper.Memory = used.Memory; err != nil || used.Memory > most {
			return false
		}
		b.room.Fit(sb.Config.Key, most-used.Memory, nil)
		if !b.room.Add(&s.sleeper) {
			return false
		}
	}
	b.stays = s
	go b.watch(s)
	return true
}

// watch ends the stay of a runtime that ends.
func (b *Bed) watch(s *stay) {
	select {
	case <-s.over:
		return
	case <-s.inst.Exited():
	}
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.stays == s {
		b.giveUp(ByEnd)
	}
}

// end ends a stay for which the room, or the bed, has no place any more.
func (b *Bed) end(s *stay, why Why) {
	b.lock.Lock()
	if b.stays == s {
		b.stays = nil
		s.leave()
	}
	b.lock.Unlock()
	b.release(s.launch, why)
}

// leave is called once a stay is over.
func (s *stay) leave() {
	close(s.over)
	if s.near != nil {
		s.near.Close()
	}
}

// take returns what stays and is nobody else's to end; nil for nothing.
func (b *Bed) take() *stay {
	s := b.stays
	if s == nil {
		return nil
	}
	b.stays = nil
	s.leave()
	if !s.awaited && !b.room.Take(&s.sleeper) {
		return nil // it is being released
	}
	return s
}

func (b *Bed) giveUp(why Why) {
	if s := b.take(); s != nil {
		b.room.releases.Go(func() { b.end(s, why) })
	}
}

// Approach connects to the agent of what stays, while it is committed that it is to go on.
// If it is not, the connection stays for the next time.
func (b *Bed) Approach(next lifecycle.Record) {
	if s := b.stays; s != nil && s.near == nil && next.Phase() == lifecycle.Resuming {
		s.near = approach(s.inst)
	}
}

// Take takes out the runtime that was captured as a checkpoint, to go on from there; nil
// if there is none. Another one is released. The caller closes it.
func (b *Bed) Take(from *lifecycle.Checkpoint) *Approach {
	s := b.stays
	if s == nil {
		return nil
	}
	if from == nil || from.Mode != lifecycle.Memory || from.ID != s.checkpoint {
		b.giveUp(ByChange)
		return nil
	}
	near := s.near
	if near == nil {
		near = approach(s.inst)
	}
	s.near = nil
	if b.take() == nil {
		near.Close()
		return nil
	}
	return near
}

// Follow ends the stay of a runtime that is no longer what its sandbox sleeps as. Of one
// that has ended, all runtimes are released anyhow.
func (b *Bed) Follow(rec lifecycle.Record) {
	switch s := b.stays; {
	case s == nil:
	case rec.State == lifecycle.Terminated:
		b.take()
	case rec.Checkpoint == nil || rec.Checkpoint.ID != s.checkpoint:
		b.giveUp(ByChange)
	}
}

// MakeRoom has others of the key give up memory, until they hold no more than most bytes.
func (b *Bed) MakeRoom(key string, most int64) {
	var own *Sleeper
	if b.stays != nil {
		own = &b.stays.sleeper
	}
	b.room.Fit(key, most, own)
}
