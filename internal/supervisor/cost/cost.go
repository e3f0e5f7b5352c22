// Package cost counts what the sandboxes and requests of each API key cost the
// server itself. A key that costs much is slowed down elsewhere; here it is seen.
//
// What a key has now is asked for when somebody wants to know. What it has cost
// so far is counted in a [Ledger], from the start of the server on. All methods
// of a Ledger are safe for concurrent use.
package cost

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Cost is what one API key costs the server.
type Cost struct {
	// Now.
	Starting      int   // sandboxes on their way up, those that wait for a turn included
	Requests      int   // requests and streams open into its sandboxes
	Descriptors   int   // of connections out of its sandboxes
	BufferedBytes int   // of what waits for clients and guests, see package held, and of connections out whose name is not known yet
	KeptBytes     int   // of what is kept for clients who ask later
	Sessions      int   // connections that last, such as over SSH and of terminals, and what runs in them
	LogBytes      int64 // kept of what its sandboxes log

	// Since the server's start.
	DatabaseBytes int64         // written
	Checkpoints   time.Duration // spent to checksum checkpoints, make them durable, and verify them
}

// mostLabels is how many keys are told apart in metrics. Those that come later
// are counted together, so that their number is bounded and no series goes back.
const mostLabels = 100

// Labels of keys that have none of their own.
const (
	NoKey  = "none"  // of sandboxes of a time before keys were noted
	Others = "other" // of keys that came after mostLabels others
)

// Ledger counts what keys have cost so far.
type Ledger struct {
	mu   sync.Mutex
	keys map[string]*entry
}

type entry struct {
	label    string
	database int64
	spent    time.Duration
}

// entry returns that of a key. The caller holds mu.
func (l *Ledger) entry(key string) *entry {
	e := l.keys[key]
	if e != nil {
		return e
	}
	if l.keys == nil {
		l.keys = map[string]*entry{}
	}
	e = &entry{label: key}
	switch {
	case key == "":
		e.label = NoKey
	case len(l.keys) >= mostLabels:
		e.label = Others
	}
	l.keys[key] = e
	return e
}

// Wrote counts bytes that were written to the database.
func (l *Ledger) Wrote(key string, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry(key).database += int64(bytes)
}

// Spent counts time for a checkpoint.
func (l *Ledger) Spent(key string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry(key).spent += d
}

// Keys returns the keys that have cost something so far.
func (l *Ledger) Keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.keys))
}

// Fill puts what a key has cost so far into c.
func (l *Ledger) Fill(key string, c *Cost) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.keys[key]; e != nil {
		c.DatabaseBytes, c.Checkpoints = e.database, e.spent
	}
}

// ByLabel adds up what keys cost by their labels in metrics. Keys that have cost
// something before are there, with what they have cost, also if costs lacks them.
func (l *Ledger) ByLabel(costs map[string]Cost) map[string]Cost {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range costs {
		l.entry(key)
	}
	sums := map[string]Cost{}
	for key, e := range l.keys {
		c := costs[key]
		c.DatabaseBytes, c.Checkpoints = e.database, e.spent
		sums[e.label] = sums[e.label].plus(c)
	}
	return sums
}

func (c Cost) plus(d Cost) Cost {
	return Cost{
		c.Starting + d.Starting, c.Requests + d.Requests, c.Descriptors + d.Descriptors, c.BufferedBytes + d.BufferedBytes, c.KeptBytes + d.KeptBytes, c.Sessions + d.Sessions,
		c.LogBytes + d.LogBytes, c.DatabaseBytes + d.DatabaseBytes, c.Checkpoints + d.Checkpoints,
	}
}
