// Package ration shares out what a server has little of, such as memory for
// input that has not come to its end, so that no holder takes all of it.
//
// A [Ration] counts units of one kind. Whoever takes some names the holders that
// they count for, such as an API key and a client's address, and how much each
// of them may have. The units are taken for all holders or for none, and no method
// of it waits: see [Ration.Given]. For what can wait there are [Turns], so many for
// each key, and [Fair], so many for all; and [Pace], so many a second. All methods are
// safe for concurrent use.
package ration

import (
	"maps"
	"slices"
	"sync"
)

// Holder is who units count for. The name must say of which kind it is, if
// there are several.
type Holder struct {
	Name string
	Most int // how many it may have
}

// Ration is a number of units, and who has them.
type Ration struct {
	most int

	mu    sync.Mutex
	taken int
	by    map[string]int // of holders that have some
	given chan struct{}  // closed when units are given back; nil if nobody waits
}

// New returns a Ration of which all holders together may have most units.
func New(most int) *Ration { return &Ration{most: most, by: map[string]int{}} }

// Take takes n units for all holders together. False if one of them, or the
// Ration, would have too many; then nothing is taken.
func (r *Ration) Take(n int, holders ...Holder) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken+n > r.most {
		return false
	}
	for _, h := range holders {
		if r.by[h.Name]+n > h.Most {
			return false
		}
	}
	r.move(n, holders)
	return true
}

// Give gives back what Take has taken.
func (r *Ration) Give(n int, holders ...Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.move(-n, holders)
	if r.given != nil {
		close(r.given)
		r.given = nil
	}
}

// Given returns a channel that is closed when units are given back from now on.
func (r *Ration) Given() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.given == nil {
		r.given = make(chan struct{})
	}
	return r.given
}

func (r *Ration) move(n int, holders []Holder) {
	r.taken += n
	for _, h := range holders {
		if r.by[h.Name] += n; r.by[h.Name] == 0 {
			delete(r.by, h.Name)
		}
	}
}

// Of returns how many units a holder has.
func (r *Ration) Of(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[name]
}

// Holders returns who has units, in any order.
func (r *Ration) Holders() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.by))
}

// Taken returns how many units are taken.
func (r *Ration) Taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

// Most returns how many units there are.
func (r *Ration) Most() int { return r.most }
