package cluster

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// A server that is drained gives what it has to others, one thing after the other: sandboxes that
// sleep, sandboxes that run, snapshots and built templates. It serves all the while, and what is
// made on it nevertheless goes too. What cannot go stays, and is tried again.

const (
	drainEvery = time.Second
	// drainSoon is after how long it is tried again to give something away, drainLater where a
	// sandbox that runs was paused for that in vain, and drainRarely where another server could
	// not run it.
	drainSoon   = 5 * time.Second
	drainLater  = 5 * time.Minute
	drainRarely = time.Hour
)

// drain is how a server gives away what it has.
type drain struct {
	*Cluster
	mu      sync.Mutex
	now     *store.Drain // nil unless it is drained
	which   int64        // the time that refused is of
	refused map[string]refused
}

// refused is why something could not be given away.
type refused struct {
	cause error
	again time.Time // when it is tried again
}

// Drains returns how far this server is with giving away what it has; nil unless it is drained.
func (c *Cluster) Drains() *store.Drain {
	c.drain.mu.Lock()
	defer c.drain.mu.Unlock()
	return c.drain.now
}

// Drain gives away what this server has, whenever it is drained, until ctx ends.
func (c *Cluster) Drain(ctx context.Context) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		c.drain.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// wanted returns which time this is that the server is drained, and false if it is not. What it
// has itself must be known by then, so that others are compared with it.
func (d *drain) wanted(ctx context.Context) (which int64, wanted bool) {
	srv, err := d.server(ctx, d.o.Store.Self())
	return srv.Drains, err == nil && srv.Draining && srv.Room != nil && ctx.Err() == nil
}

// once tries to give away all that this server has.
func (d *drain) once(ctx context.Context) {
	which, wanted := d.wanted(ctx)
	if !wanted {
		d.refused = nil
		d.tell(nil)
		return
	}
	left, err := d.belongings(ctx)
	if err != nil {
		d.o.Log.Warn("this server is drained, and cannot read what it has", "err", err)
		return
	}
	if which != d.which {
		d.which, d.refused = which, nil
	}
	maps.DeleteFunc(d.refused, func(id string, _ refused) bool {
		return !slices.ContainsFunc(left, func(x belonging) bool { return x.id == id })
	})
	given := 0
	d.note(which, left)
	for i, x := range left {
		if now, wanted := d.wanted(ctx); !wanted || now != which {
			return
		}
		if time.Now().Before(d.refused[x.id].again) {
			continue
		}
		asked, err := x.give(ctx)
		if err == nil {
			given++
			delete(d.refused, x.id)
		} else {
			d.refuse(ctx, x, asked && x.runs, err)
			if errdef.CodeOf(err) == codeNoOther {
				d.refuseLike(x, left[i+1:])
			}
		}
		d.note(which, slices.Concat(d.staying(left[:i+1]), left[i+1:]))
	}
	if given > 0 {
		d.o.Log.Info("this server is drained, and has given to others what it had", "given", given, "left", d.Drains().Left)
	}
}

// belonging is something that a server can give away.
type belonging struct {
	id   string
	runs bool                                          // and needs more room than what does not
	give func(context.Context) (asked bool, err error) // asked says that another server was to take it
}

// belongings returns all that this server has to give away, in the order in which it goes.
func (d *drain) belongings(ctx context.Context) (all []belonging, err error) {
	list, err := d.o.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	templates, err := d.o.Templates(ctx)
	if err != nil {
		return nil, err
	}
	for _, asleep := range []bool{true, false} {
		for _, sb := range list {
			if sb.Record.State != lifecycle.Terminated && sb.Config.Build == "" && (sb.Record.State == lifecycle.Paused) == asleep {
				runs := sb.Record.State == lifecycle.Running
				all = append(all, belonging{sb.ID, runs, func(ctx context.Context) (bool, error) { return d.give(ctx, sb.ID, runs) }})
			}
		}
	}
	self := d.o.Store.Self()
	for _, snap := range d.o.Snapshots() {
		if snap.Owner == self && !snap.Passing && !snap.Undo && snap.Config.Build == "" { // what builds have made goes with templates
			all = append(all, belonging{snap.ID, false, func(ctx context.Context) (bool, error) { return d.giveSnapshot(ctx, snap) }})
		}
	}
	for _, t := range templates {
		if t.Owner == self {
			all = append(all, belonging{t.ID, false, func(ctx context.Context) (bool, error) { return d.giveTemplate(ctx, t.ID) }})
		}
	}
	return all, nil
}

// staying returns those that could not be given away.
func (d *drain) staying(of []belonging) (stay []belonging) {
	for _, x := range of {
		if _, refused := d.refused[x.id]; refused {
			stay = append(stay, x)
		}
	}
	return stay
}

// refuse notes why something could not be given away, and when it is tried again: soon, unless a
// sandbox that runs was paused in vain.
func (d *drain) refuse(ctx context.Context, x belonging, paused bool, cause error) {
	after := drainSoon
	switch {
	case errdef.CodeOf(cause) == codeCannotRun:
		after = drainRarely
	case paused:
		after = drainLater
	}
	if d.refused == nil {
		d.refused = map[string]refused{}
	}
	before, again := d.refused[x.id]
	d.refused[x.id] = refused{cause, time.Now().Add(after)}
	if (!again || before.cause.Error() != cause.Error()) && !passing(cause) && ctx.Err() == nil {
		d.o.Log.Warn("this server is drained, and something stays on it", "of", called(x.id), "err", cause)
	}
}

// passing reports whether a refusal is because of what comes to its end by itself.
func passing(cause error) bool {
	switch errdef.CodeOf(cause) {
	case codeConflict, "not_replicated", "replica_pending":
		return true
	}
	return false
}

// refuseLike notes that no other server has room either for what needs as much of it as x.
func (d *drain) refuseLike(x belonging, of []belonging) {
	for _, y := range of {
		if (y.runs || !x.runs) && time.Now().After(d.refused[y.id].again) {
			d.refused[y.id] = d.refused[x.id]
		}
	}
}

// note notes what is left.
func (d *drain) note(which int64, left []belonging) {
	now := store.Drain{Of: which, Left: len(left)}
	for _, x := range d.staying(left) {
		if passing(d.refused[x.id].cause) {
			continue
		}
		now.Stay++
		if now.Cause = d.refused[x.id].cause.Error(); !strings.Contains(now.Cause, x.id) {
			now.Cause = called(x.id) + ": " + now.Cause
		}
	}
	d.tell(&now)
}

func (d *drain) tell(now *store.Drain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
}

// give gives a sandbox to another server, if it is still there. It must not run then unless it did.
func (d *drain) give(ctx context.Context, id string, runs bool) (asked bool, err error) {
	sb, err := d.o.Store.Sandbox(ctx, id)
	switch {
	case errdef.Is(err, errdef.NotFound):
		return false, nil
	case err != nil:
		return false, err
	case sb.Owner != d.o.Store.Self() || sb.Record.State == lifecycle.Terminated:
		return false, nil
	case sb.Record.State == lifecycle.Pending:
		return false, errBusy(id, "it is being created")
	}
	_, err = d.handOver(ctx, sb, moving{runs: runs, pauses: runs, asked: &asked})
	return asked, err
}

// preferred returns a server that something is to go to rather than to others, if it suits, and it
// was not refused before.
func (d *drain) preferred(ctx context.Context, server, id string) (srv store.Server, ok bool) {
	if _, before := d.refused[id]; before {
		return srv, false
	}
	srv, err := d.target(ctx, server, false, "")
	own, err2 := d.server(ctx, d.o.Store.Self())
	return srv, err == nil && err2 == nil && srv.Room != nil && own.Room != nil && srv.Room.Copies && holds(*srv.Room) && srv.Room.Reads(*own.Room)
}

// giveSnapshot gives a snapshot to another server: to the one that has its sandbox, if it can.
func (d *drain) giveSnapshot(ctx context.Context, snap store.Snapshot) (asked bool, err error) {
	sb, err := d.o.Store.Sandbox(ctx, snap.Sandbox)
	has := err == nil && sb.Record.State != lifecycle.Terminated
	if has && sb.Owner == d.o.Store.Self() {
		return false, errBusy(snap.ID, "its sandbox is here still, and goes first")
	}
	if has {
		if srv, ok := d.preferred(ctx, sb.Owner, snap.ID); ok {
			return d.ask(ctx, srv, snap.ID)
		}
	}
	return d.askAny(ctx, snap.Config.Template, snap.ID)
}

// giveTemplate gives a built template to another server, with what its builds have made: rather to
// one that has another of its key, on which it may be built.
func (d *drain) giveTemplate(ctx context.Context, id string) (asked bool, err error) {
	all, err := d.o.Templates(ctx)
	i := slices.IndexFunc(all, func(t store.Template) bool { return t.ID == id })
	switch {
	case err != nil:
		return false, err
	case i < 0 || all[i].Owner != d.o.Store.Self():
		return false, nil
	case all[i].IsBuilding():
		return false, errBusy(id, "it is being built")
	}
	for _, t := range all {
		if t.Key == all[i].Key && t.Owner != all[i].Owner {
			if srv, ok := d.preferred(ctx, t.Owner, id); ok {
				return d.ask(ctx, srv, id)
			}
		}
	}
	return d.askAny(ctx, "", id)
}

// askAny asks another server to take something that does not run, rather one that has a template.
func (d *drain) askAny(ctx context.Context, template, id string) (asked bool, err error) {
	srv, err := d.target(ctx, "", false, template)
	if err != nil {
		return false, err
	}
	return d.ask(ctx, srv, id)
}

func (d *drain) ask(ctx context.Context, srv store.Server, id string) (asked bool, err error) {
	return true, d.insistOnTake(ctx, srv.ID, taking{ID: id})
}
