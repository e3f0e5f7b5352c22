package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// A server that is drained gives what it has to others, one thing after the other: sandboxes that
// sleep, sandboxes that run, snapshots and built templates. It serves all the while, and what is made on it
// nevertheless goes too. What cannot go stays, and is tried again.

const (
	drainEvery = time.Second
	// drainSoon is after how long it is tried again to give something away that may go in a
	// moment, and drainLater where another server has refused it: a sandbox that runs slept for that.
	drainSoon  = 5 * time.Second
	drainLater = 5 * time.Minute
)

// drain is how a server gives away what it has.
type drain struct {
	*Cluster
	mu      sync.Mutex
	now     *store.Drain // nil unless it is drained
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

// wanted reports whether this server is to give away what it has.
func (d *drain) wanted(ctx context.Context) bool {
	srv, err := d.server(ctx, d.o.Store.Self())
	return err == nil && srv.Draining && ctx.Err() == nil
}

// once tries to give away all that this server has.
func (d *drain) once(ctx context.Context) {
	if !d.wanted(ctx) {
		d.refused = nil
		d.tell(nil)
		return
	}
	given, left := 0, d.belongings(ctx)
	d.note(left)
	for i, x := range left {
		if !d.wanted(ctx) {
			return
		}
		if time.Now().Before(d.refused[x.id].again) {
			continue
		}
		err := x.give(ctx)
		if err == nil {
			given++
			delete(d.refused, x.id)
		} else {
			d.refuse(ctx, x.id, err)
			if errdef.CodeOf(err) == codeNoOther {
				d.refuseLike(x, left[i+1:])
			}
		}
		d.note(slices.Concat(d.staying(left[:i+1]), left[i+1:]))
	}
	if given > 0 {
		d.o.Log.Info("this server is drained, and has given to others what it had", "given", given, "left", d.Drains().Left)
	}
}

// belonging is something that a server can give away.
type belonging struct {
	id   string
	runs bool // and needs more room than what does not
	give func(context.Context) error
}

// belongings returns all that this server has to give away, in the order in which it goes.
func (d *drain) belongings(ctx context.Context) (all []belonging) {
	list, err := d.o.Sandboxes(ctx)
	if err != nil {
		d.o.Log.Warn("this server is drained, and cannot read what it has", "err", err)
	}
	for _, asleep := range []bool{true, false} {
		for _, sb := range list {
			if (sb.Record.State == lifecycle.Paused) == asleep {
				all = append(all, belonging{sb.ID, !asleep, func(ctx context.Context) error { return d.give(ctx, sb.ID) }})
			}
		}
	}
	self := d.o.Store.Self()
	for _, snap := range d.o.Snapshots() {
		if snap.Owner == self && !snap.Passing && !snap.Undo && snap.Config.Build == "" { // what a build has made goes with its template
			all = append(all, belonging{snap.ID, false, func(ctx context.Context) error { return d.giveSnapshot(ctx, snap) }})
		}
	}
	templates, err := d.o.Templates(ctx)
	if err != nil {
		d.o.Log.Warn("this server is drained, and cannot read what templates it has", "err", err)
	}
	for _, t := range templates {
		if t.Owner == self {
			all = append(all, belonging{t.ID, false, func(ctx context.Context) error { return d.giveTemplate(ctx, t) }})
		}
	}
	return all
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

// refuse notes why something could not be given away.
func (d *drain) refuse(ctx context.Context, id string, cause error) {
	after := drainLater
	switch errdef.CodeOf(cause) {
	case codeNoOther, codeUnreachable, codeConflict, codeFull, "not_replicated", "no_object_storage", "has_volumes":
		after = drainSoon
	}
	if d.refused == nil {
		d.refused = map[string]refused{}
	}
	before, again := d.refused[id]
	d.refused[id] = refused{cause, time.Now().Add(after)}
	if (!again || before.cause.Error() != cause.Error()) && ctx.Err() == nil {
		d.o.Log.Warn("this server is drained, and something stays on it", "of", called(id), "err", cause)
	}
}

// refuseLike notes that no other server has room either for what needs as much of it as x.
func (d *drain) refuseLike(x belonging, of []belonging) {
	for _, y := range of {
		if y.runs || !x.runs {
			d.refused[y.id] = d.refused[x.id]
		}
	}
}

// note notes what is left.
func (d *drain) note(left []belonging) {
	now := store.Drain{Left: len(left)}
	for _, x := range d.staying(left) {
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

// give gives a sandbox to another server, if it is still there.
func (d *drain) give(ctx context.Context, id string) error {
	sb, err := d.o.Store.Sandbox(ctx, id)
	switch {
	case errdef.Is(err, errdef.NotFound):
		return nil
	case err != nil:
		return err
	case sb.Owner != d.o.Store.Self() || sb.Record.State == lifecycle.Terminated:
		return nil
	}
	_, err = d.handOver(ctx, sb, sb.Record.State == lifecycle.Running, "", "")
	return err
}

// giveSnapshot gives a snapshot to another server: to the one that has its sandbox, if it can.
func (d *drain) giveSnapshot(ctx context.Context, snap store.Snapshot) error {
	var srv store.Server
	sb, err := d.o.Store.Sandbox(ctx, snap.Sandbox)
	if err == nil && sb.Owner != d.o.Store.Self() && sb.Record.State != lifecycle.Terminated {
		srv, err = d.target(ctx, sb.Owner, false)
	}
	if err != nil || srv.ID == "" || srv.Room == nil || !holds(*srv.Room) {
		if srv, err = d.target(ctx, "", false); err != nil {
			return err
		}
	}
	return d.insistOnTake(ctx, srv.ID, snap.ID, "")
}

// giveTemplate gives a built template to another server, with what its builds have made.
func (d *drain) giveTemplate(ctx context.Context, t store.Template) error {
	if slices.ContainsFunc(t.Builds, func(b store.Build) bool { return !b.Status.Over() }) {
		return errBusy(t.ID, "it is being built")
	}
	srv, err := d.target(ctx, "", false)
	if err != nil {
		return err
	}
	return d.insistOnTake(ctx, srv.ID, t.ID, "")
}
