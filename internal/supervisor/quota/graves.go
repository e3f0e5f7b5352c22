package quota

import (
	"slices"
	"sync"
)

// MostTombstones is how many sandboxes that have ended are remembered of one API
// key. Creates and kills without pause would otherwise leave a month of them, in
// memory and in the database.
const MostTombstones = 10_000

// Graves is the sandboxes of each key that have ended, in the order of their ends.
// The zero value is empty. It is safe for concurrent use.
type Graves struct {
	mu    sync.Mutex
	byKey map[string][]string
}

// Bury adds one that has ended, and returns those that are to be forgotten for it.
func (g *Graves) Bury(key, id string) (forget []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey == nil {
		g.byKey = map[string][]string{}
	}
	all := append(g.byKey[key], id)
	if n := len(all) - MostTombstones; n > 0 {
		forget = slices.Clone(all[:n])
		all = slices.Delete(all, 0, n)
	}
	g.byKey[key] = all
	return forget
}

// Forget removes one that is forgotten because of its age: the oldest, mostly.
func (g *Graves) Forget(key, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.byKey[key]
	i := slices.Index(all, id)
	switch {
	case i < 0:
	case len(all) == 1:
		delete(g.byKey, key)
	default:
		g.byKey[key] = slices.Delete(all, i, i+1)
	}
}

// Of returns how many of a key are remembered.
func (g *Graves) Of(key string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.byKey[key])
}
