package quota

import (
	"context"
	"math/bits"
	"time"
)

// A host that has too little CPU time for all sandboxes divides it among those
// that want some. A key that runs many would get as many parts, and a key that
// runs one would wait for all of them. So each sandbox gets a part of its key's
// part: keys get the same, however many sandboxes they run.

// Sharers returns among how many sandboxes the part of a key is divided: those that
// run, or are about to, rounded up to a power of two so that few starts change the
// parts of all.
func Sharers(key string, running int) int {
	if key == "" { // of a time before keys were noted: each by itself
		return 1
	}
	return 1 << bits.Len(uint(max(running, 1)-1))
}

// reshareEvery is how long changes are gathered before the parts of CPU time
// follow them.
const reshareEvery = 100 * time.Millisecond

// Follow calls reshare whenever the part of a key is to be divided anew, which is
// when the number of its sandboxes passes a power of two, until ctx ends.
func (c *Changes) Follow(ctx context.Context, sharers func(key string) int, reshare func()) {
	shares := map[string]int{} // of keys with more than one
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Some:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reshareEvery):
		}
		changed := false
		for key := range c.Take() {
			n := sharers(key)
			changed = changed || n != max(shares[key], 1)
			if shares[key] = n; n == 1 {
				delete(shares, key)
			}
		}
		if changed {
			reshare()
		}
	}
}
