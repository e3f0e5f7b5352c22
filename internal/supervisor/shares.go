package supervisor

import (
	"math/bits"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// A host that has too little CPU time for all sandboxes divides it among those
// that want some. A key that runs many would get as many parts, and a key that
// runs one would wait for all of them. So each sandbox gets a part of its key's
// part: keys get the same, however many sandboxes they run.

// sharersOf returns among how many sandboxes the part of a key is divided: those
// that run, or are about to, rounded up to a power of two so that few starts
// change the parts of all.
func (s *Supervisor) sharersOf(key string) int {
	running := max(s.KeyUse(key).Running, 1)
	if key == "" { // of a time before keys were noted: each by itself
		return 1
	}
	return 1 << bits.Len(uint(running-1))
}

// reshareEvery is how long changes are gathered before the parts of CPU time
// follow them.
const reshareEvery = 100 * time.Millisecond

// share keeps the parts of sandboxes that run right, until the supervisor stops.
// It goes through the sandboxes only when a key's part is divided anew, which is
// when their number passes a power of two.
func (s *Supervisor) share() {
	shares := map[string]int{} // of keys with more than one
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.resharing.Some:
		}
		if !s.sleep(reshareEvery) {
			return
		}
		changed := false
		for key := range s.resharing.Take() {
			n := s.sharersOf(key)
			changed = changed || n != max(shares[key], 1)
			if shares[key] = n; n == 1 {
				delete(shares, key)
			}
		}
		if changed {
			s.each((*box).takeShare)
		}
	}
}

// takeShare gives the runtime of a sandbox its part of the key's part.
func (b *box) takeShare() {
	b.mu.Lock()
	inst, key, had := b.inst, b.sb.Config.Key, b.sharers
	n := b.s.sharersOf(key)
	b.sharers = n
	b.mu.Unlock()
	sharer, ok := inst.(runtime.Sharer)
	if !ok || n == had {
		return
	}
	if err := sharer.ShareAmong(n); err != nil {
		b.s.log.Debug("a sandbox keeps its part of the CPU time", "sandbox", b.id, "err", err) // it may just have ended
	}
}
