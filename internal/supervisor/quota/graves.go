package quota

import (
	"slices"
	"sync"
)

// What is remembered of one API key's sandboxes that have ended. Creates and kills
// without pause would otherwise leave a month of them, in memory and in the database.
const (
	MostTombstones     = 10_000
	MostTombstoneBytes = 32 << 20
)

// Graves is the sandboxes of each key that have ended, in the order of their ends.
// The zero value is empty. It is safe for concurrent use.
type Graves struct {
	mu    sync.Mutex
	byKey map[string]graves
}

// graves is those of one key.
type graves struct {
	all   []grave
	bytes int // of all of them
}

type grave struct {
	id    string
	bytes int
}

// remove removes the graves from i up to j.
func (g *graves) remove(i, j int) {
	for _, one := range g.all[i:j] {
		g.bytes -= one.bytes
	}
	g.all = slices.Delete(g.all, i, j)
}

// Bury adds one that has ended, with how many bytes are kept of it, and returns those
// that are to be forgotten for it.
func (g *Graves) Bury(key, id string, bytes int) (forget []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey == nil {
		g.byKey = map[string]graves{}
	}
	of := g.byKey[key]
	of.all, of.bytes = append(of.all, grave{id, bytes}), of.bytes+bytes
	for left := of.bytes; len(of.all)-len(forget) > MostTombstones || left > MostTombstoneBytes && len(forget)+1 < len(of.all); {
		oldest := of.all[len(forget)]
		forget, left = append(forget, oldest.id), left-oldest.bytes
	}
	of.remove(0, len(forget))
	g.byKey[key] = of
	return forget
}

// Forget removes one that is forgotten because of its age: the oldest, mostly.
func (g *Graves) Forget(key, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.byKey[key]
	i := slices.IndexFunc(of.all, func(one grave) bool { return one.id == id })
	switch {
	case i < 0:
	case len(of.all) == 1:
		delete(g.byKey, key)
	default:
		of.remove(i, i+1)
		g.byKey[key] = of
	}
}

// Of returns how many of a key are remembered.
func (g *Graves) Of(key string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.byKey[key].all)
}
