package supervisor

import (
	"time"

	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/metrics"
)

// meteredStore is a store.Store that tells what it writes for each key.
type meteredStore interface {
	Meter(wrote func(key string, bytes int))
}

// CountHeld has the costs of a key include what is held for it in a room. It is called
// before the supervisor serves anybody.
func (s *Supervisor) CountHeld(r *held.Room) { s.held = r }

// KeyCosts returns what the keys cost the server, of those that have sandboxes or
// have cost something since the server's start.
func (s *Supervisor) KeyCosts() map[string]cost.Cost {
	costs := map[string]cost.Cost{}
	s.each(func(b *box) {
		b.mu.Lock()
		key, requests, ended := b.sb.Config.Key, b.work.Accesses(), b.sb.Record.State == lifecycle.Terminated
		b.mu.Unlock()
		if ended {
			return
		}
		c := costs[key]
		c.Requests += requests
		c.LogBytes += s.logs().Size(b.id)
		costs[key] = c
	})
	for _, key := range append(s.ledger.Keys(), s.held.Keys()...) {
		if _, known := costs[key]; !known { // it has no sandboxes
			costs[key] = cost.Cost{}
		}
	}
	for key, c := range costs {
		costs[key] = s.withNow(key, c)
	}
	return costs
}

// withNow adds what is known by key.
func (s *Supervisor) withNow(key string, c cost.Cost) cost.Cost {
	c.Starting = s.launcher.Of(key)
	c.Descriptors, c.BufferedBytes = s.outside.Room.Of(key)
	h := s.held.Of(key)
	c.BufferedBytes, c.KeptBytes, c.Sessions = c.BufferedBytes+h.Waiting, h.Kept, h.Sessions
	s.ledger.Fill(key, &c)
	return c
}

// spend counts the time from begin on, for a checkpoint of a key's sandbox.
func (s *Supervisor) spend(key string, begin time.Time) { s.ledger.Spent(key, time.Since(begin)) }

// count counts what there is, for the metrics.
func (s *Supervisor) count() metrics.State {
	is := metrics.State{Situations: map[lifecycle.Situation]int{}, Holds: map[awake.HoldKind]int{}, Costs: s.ledger.ByLabel(s.KeyCosts()), LightReleased: s.light.Released()}
	is.LightSleepers, is.LightMemory = s.light.Total()
	t := ids.Now()
	s.each(func(b *box) {
		b.mu.Lock()
		defer b.mu.Unlock()
		is.Situations[b.sb.Record.Situation()]++
		is.Accesses += b.work.Accesses()
		if b.merging || b.merged != nil && b.sb.Record.State == lifecycle.Paused {
			is.Merging++
		}
		if b.sb.Record.State != lifecycle.Running {
			return
		}
		for _, h := range b.work.Holds(b.sb.Record, t) {
			if h.Counts {
				is.Holds[h.Kind]++
			}
		}
	})
	return is
}
