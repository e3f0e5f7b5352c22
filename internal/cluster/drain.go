package cluster

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// A server that is drained gives what it has to others, one thing after the other: sandboxes that
// sleep, sandboxes that run, and snapshots. It serves all the while, and what is made on it
// nevertheless goes too. What cannot go stays, and is tried again.

const (
	drainEvery = time.Second
	// drainSoon is after how long it is tried again to give something away that may go in a
	// moment, and drainLater where another server has refused it: a sandbox that runs slept for that.
	drainSoon  = 5 * time.Second
	drainLater = 5 * time.Minute
)

// drain is what a server knows of what it gives away.
type drain struct {
	now     *store.Drain // nil unless it is drained; guarded by Cluster.mu
	refused map[string]refused
}

// refused is why something could not be given away.
type refused struct {
	cause error
	again time.Time // when it is tried again
}

// Drains returns how far this server is with giving away what it has; nil unless it is drained.
func (c *Cluster) Drains() *store.Drain {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drain.now
}

// Drain gives away what this server has, whenever it is drained, until ctx ends.
func (c *Cluster) Drain(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		c.drainOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// isDrained reports whether this server is to give away what it has.
func (c *Cluster) isDrained(ctx context.Context) bool {
	srv, err := c.server(ctx, c.o.Store.Self())
	return err == nil && srv.Draining && ctx.Err() == nil
}

// drainOnce tries to give away all that this server has.
func (c *Cluster) drainOnce(ctx context.Context) {
	if !c.isDrained(ctx) {
		c.drain.refused = nil
		c.drainTold(nil)
		return
	}
	given, left := 0, c.belongings(ctx)
	c.drainIs(left)
	for i, x := range left {
		if !c.isDrained(ctx) {
			return
		}
		if time.Now().Before(c.drain.refused[x.id].again) {
			continue
		}
		err := x.give(ctx)
		if err == nil {
			given++
			delete(c.drain.refused, x.id)
		} else {
			c.refuse(ctx, x.id, err)
		}
		c.drainIs(slices.Concat(c.staying(left[:i+1]), left[i+1:]))
		if errdef.CodeOf(err) == codeNoOther {
			break
		}
	}
	if given > 0 {
		c.o.Log.Info("this server is drained, and has given to others what it had", "given", given, "left", c.Drains().Left)
	}
}

// belonging is something that a server can give away.
type belonging struct {
	id   string
	give func(context.Context) error
}

// belongings returns all that this server has to give away, in the order in which it goes.
func (c *Cluster) belongings(ctx context.Context) (all []belonging) {
	list, err := c.o.Sandboxes(ctx)
	if err != nil {
		c.o.Log.Warn("this server is drained, and cannot read what it has", "err", err)
	}
	for _, asleep := range []bool{true, false} {
		for _, sb := range list {
			if (sb.Record.State == lifecycle.Paused) == asleep {
				all = append(all, belonging{sb.ID, func(ctx context.Context) error { return c.give(ctx, sb.ID) }})
			}
		}
	}
	for _, snap := range c.o.Snapshots() {
		if snap.Owner == c.o.Store.Self() && !snap.Passing && !snap.Undo && snap.Config.Build == "" {
			all = append(all, belonging{snap.ID, func(ctx context.Context) error { return c.giveSnapshot(ctx, snap) }})
		}
	}
	return all
}

// staying returns those that could not be given away.
func (c *Cluster) staying(of []belonging) (stay []belonging) {
	for _, x := range of {
		if _, refused := c.drain.refused[x.id]; refused {
			stay = append(stay, x)
		}
	}
	return stay
}

// refuse notes why something could not be given away.
func (c *Cluster) refuse(ctx context.Context, id string, cause error) {
	after := drainLater
	switch errdef.CodeOf(cause) {
	case codeNoOther, codeUnreachable, codeConflict, codeFull, "not_replicated", "no_object_storage", "has_volumes":
		after = drainSoon
	}
	if c.drain.refused == nil {
		c.drain.refused = map[string]refused{}
	}
	before, again := c.drain.refused[id]
	c.drain.refused[id] = refused{cause, time.Now().Add(after)}
	if (!again || before.cause.Error() != cause.Error()) && ctx.Err() == nil {
		c.o.Log.Warn("this server is drained, and something stays on it", "of", called(id), "err", cause)
	}
}

// drainIs notes what is left.
func (c *Cluster) drainIs(left []belonging) {
	now := store.Drain{Left: len(left)}
	for _, x := range c.staying(left) {
		now.Stay++
		now.Cause = fmt.Sprintf("%s: %v", called(x.id), c.drain.refused[x.id].cause)
	}
	c.drainTold(&now)
}

func (c *Cluster) drainTold(now *store.Drain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !reflect.DeepEqual(c.drain.now, now) {
		c.drain.now = now
	}
}

// give gives a sandbox to another server, if it is still there.
func (c *Cluster) give(ctx context.Context, id string) error {
	sb, err := c.o.Store.Sandbox(ctx, id)
	switch {
	case errdef.Is(err, errdef.NotFound):
		return nil
	case err != nil:
		return err
	case sb.Owner != c.o.Store.Self() || sb.Record.State == lifecycle.Terminated:
		return nil
	}
	_, err = c.handOver(ctx, sb, sb.Record.State == lifecycle.Running, "", "")
	return err
}

// giveSnapshot gives a snapshot to another server: to the one that has its sandbox, if it can.
func (c *Cluster) giveSnapshot(ctx context.Context, snap store.Snapshot) error {
	var srv store.Server
	sb, err := c.o.Store.Sandbox(ctx, snap.Sandbox)
	if err == nil && sb.Owner != c.o.Store.Self() && sb.Record.State != lifecycle.Terminated {
		srv, err = c.target(ctx, sb.Owner, false)
	}
	if err != nil || srv.ID == "" || srv.Room == nil || !holds(*srv.Room) {
		if srv, err = c.target(ctx, "", false); err != nil {
			return err
		}
	}
	ctx, cancel := c.whileAlive(ctx, srv.ID)
	defer cancel(nil)
	if err = c.askToTake(ctx, srv.ID, snap.ID, ""); err != nil {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return err
}
