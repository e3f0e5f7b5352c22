package cluster

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
)

const (
	// lookEvery is how often a server looks what room it has. It tells the others at once when
	// it has none any more, or some again, or other templates; and every tellEvery what else
	// has changed.
	lookEvery = time.Second
	tellEvery = 5 * time.Second
	// leastDisk is the least that a server has for one more sandbox, in MiB: it needs some to
	// let others sleep.
	leastDisk = 256
)

// TellRoom tells the other servers what room this one has, again and again until ctx ends.
func (c *Cluster) TellRoom(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var told *store.Room
	var at time.Time
	for blind := false; ; {
		has, err := c.o.Room()
		has.Drain, has.Copies = c.Drains(), c.o.Mover != nil
		if failed := err != nil; failed != blind {
			blind = failed
			if failed {
				c.o.Log.Warn("other servers are not told what room is here", "err", err)
			}
		}
		if err == nil && (told == nil || news(*told, has) || time.Since(at) >= tellEvery && !reflect.DeepEqual(*told, has)) {
			if c.o.Store.SetRoom(ctx, has) == nil { // the lease tells of a database that is away
				told, at = &has, time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// news reports whether what has changed decides where sandboxes can be made, or tells whoever
// drains a server how far it is.
func news(before, now store.Room) bool {
	return full(before) != full(now) || !maps.Equal(before.Templates, now.Templates) || !reflect.DeepEqual(before.Drain, now.Drain)
}

// hasTemplate reports whether a server has a template, by its id or one of its names.
func hasTemplate(r store.Room, ref string) bool {
	_, named := r.Templates[ref]
	return named || slices.Contains(slices.Collect(maps.Values(r.Templates)), ref)
}

// full reports whether a server has no room for one more sandbox that runs.
func full(r store.Room) bool {
	return r.MaxRunning > 0 && r.Running >= r.MaxRunning || !holds(r)
}

// holds reports whether a server has room for one more sandbox that sleeps.
func holds(r store.Room) bool { return r.DiskMiB >= leastDisk }

// Choose returns another server that has what is needed for one more sandbox; empty for none. It is chosen by chance, the rather the more memory it has, so that
// between two of its reports not all go to one.
func (c *Cluster) Choose(ctx context.Context, has func(store.Room) bool) (server string) {
	all, err := c.all(ctx, c.o.Store.Self(), serversLife)
	if err != nil {
		return ""
	}
	sum := 0
	for id, srv := range all {
		if id == c.o.Store.Self() || srv.Address == "" || !srv.Answers() || srv.Draining || srv.Left < lease.Life/2 || srv.Room == nil || !has(*srv.Room) {
			continue
		}
		weight := max(srv.Room.MemoryMiB, 1)
		if sum += weight; rand.IntN(sum) < weight {
			server = id
		}
	}
	return server
}
