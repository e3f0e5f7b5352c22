package cluster

import (
	"cmp"
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Mover is what moves sandboxes, as package takeover does it.
type Mover interface {
	// HandOver has another server take a sandbox of this one, which take asks it for. One that
	// runs is paused for that, or refused unless that is asked for.
	HandOver(ctx context.Context, id, to, actor string, pauses bool, take func(context.Context) error) error
	// Receive takes a sandbox over that its server offers to this one.
	Receive(ctx context.Context, id, actor string) error
}

// A client asks any server for a move, which passes the request on to the one that has the
// sandbox. That one asks the other server to take it.

// Move moves a sandbox to a server, to any other than its own if that is empty, and returns it as
// it is then. Where the sandbox is there already, and has not ended, it does nothing.
func (c *Cluster) Move(ctx context.Context, id, to, actor string) (store.Sandbox, error) {
	ctx = context.WithoutCancel(ctx) // who goes away leaves nothing half way
	sb, err := c.o.Store.Sandbox(ctx, id)
	switch {
	case err != nil:
		return store.Sandbox{}, err
	case sb.Owner == to:
		return sb, sb.Record.Over()
	case sb.Owner != c.o.Store.Self():
		return store.Sandbox{}, store.ErrElsewhere("sandbox "+id, sb.Owner)
	}
	if _, err := c.handOver(ctx, sb, moving{to: to, actor: actor, runs: sb.Record.State == lifecycle.Running, pauses: true}); err != nil {
		return store.Sandbox{}, err
	}
	return c.o.Store.Sandbox(ctx, id)
}

// errNoObjectStorage says that nothing can move to or from a server.
func errNoObjectStorage(server, id string) error {
	return errdef.New(errdef.Unsupported, codeNoStorage, "sandboxes move by way of object storage, and server %s has none; %s stays where it is", server, called(id)).
		WithRemedy("start all servers with the same --blobs").With("server", server)
}

// moving is how a sandbox moves.
type moving struct {
	to     string // the server; empty for any
	actor  string // who wants it
	runs   bool   // it is to run there
	pauses bool   // it may be paused for that
	asked  *bool  // set when the server is asked to take it, as it sleeps; nil for nobody
}

// handOver moves a sandbox of this server to another one, and returns which.
func (c *Cluster) handOver(ctx context.Context, sb store.Sandbox, m moving) (server string, err error) {
	if c.o.Mover == nil {
		return "", errNoObjectStorage(c.o.Store.Self(), sb.ID)
	}
	if sb.Config.Build != "" {
		return "", errBusy(sb.ID, "a template is being built in it")
	}
	if len(sb.Config.Volumes) > 0 {
		return "", errdef.New(errdef.Unsupported, codeVolumes, "sandbox %s has volumes, whose files are on its server; it stays there", sb.ID).
			WithRemedy("move what sandboxes without volumes do; volumes stay on the server that has made them")
	}
	srv, err := c.target(ctx, m.to, m.runs, sb.Config.Template)
	if err != nil {
		return "", err
	}
	if srv.Room != nil && !srv.Room.Copies {
		return "", errNoObjectStorage(srv.ID, sb.ID)
	}
	if r := srv.Room; r != nil && full(*r) && m.runs {
		return "", errdef.New(errdef.Exhausted, codeFull, "server %s has as many running sandboxes as it may have, or no room on its disk; sandbox %s stays where it is", srv.ID, sb.ID).
			WithRemedy("choose another of those that drowse servers lists, or none, to have one chosen that has room").With("server", srv.ID)
	}
	if err := c.reach(ctx, srv); err != nil { // the sandbox does not sleep in vain
		return "", err
	}
	began := time.Now()
	if err := c.o.Mover.HandOver(ctx, sb.ID, srv.ID, m.actor, m.pauses, func(ctx context.Context) error {
		if m.asked != nil {
			*m.asked = true
		}
		return c.insistOnTake(ctx, srv.ID, taking{sb.ID, m.actor, m.runs})
	}); err != nil {
		return "", err
	}
	c.note(sb.ID, srv.ID, time.Now())
	c.o.Log.Info("sandbox moved to another server", "sandbox", sb.ID, "server", srv.ID, "dur", time.Since(began))
	return srv.ID, nil
}

// Rehouse has a sandbox that sleeps here, and cannot wake for want of room, go to a server that has
// room, and returns which. All who ask for one at once wait for one move; where that fails, it is not
// tried again at once.
func (c *Cluster) Rehouse(ctx context.Context, id string) (server string, err error) {
	if c.o.Mover == nil {
		return "", errNoObjectStorage(c.o.Store.Self(), id)
	}
	t, begun := c.leaves.begin(id, false)
	if begun {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.o.Patience)
			defer cancel()
			t.server, t.err = c.rehouse(ctx, id)
			c.leaves.end(id, t, func() time.Duration {
				switch errdef.CodeOf(t.err) {
				case "": // it has moved
					return 0
				case codeConflict, codeNoOther:
					return takeAgain
				}
				c.o.Log.Info("a sandbox that has no room here to wake does not move", "sandbox", id, "err", t.err)
				return failAgain
			}())
		}()
	}
	return t.wait(ctx)
}

func (c *Cluster) rehouse(ctx context.Context, id string) (server string, err error) {
	sb, err := c.o.Store.Sandbox(ctx, id)
	switch {
	case err != nil:
		return "", err
	case sb.Owner != c.o.Store.Self():
		return sb.Owner, nil
	case sb.Record.State != lifecycle.Paused || sb.Record.Op != nil:
		return "", errBusy(id, "it does not sleep")
	}
	return c.handOver(ctx, sb, moving{runs: true})
}

const (
	codeConflict  = "move_conflict"
	codeNoOther   = "no_other_server"
	codeNoStorage = "no_object_storage"
	codeDrained   = "server_drained"
	codeVolumes   = "has_volumes"
	codeCannotRun = "cannot_run_here"
)

// target returns the server that a sandbox of this server moves to: the one that is named, or one
// with room, so that it runs or to sleep, whose processor and runtime can go on with memory of this
// one, rather one that has the template.
func (c *Cluster) target(ctx context.Context, to string, runs bool, template string) (store.Server, error) {
	if to == "" {
		own, err := c.server(ctx, c.o.Store.Self())
		if err != nil {
			return store.Server{}, err
		}
		fits := func(r store.Room) bool {
			return (own.Room == nil || r.Reads(*own.Room)) && r.Copies && holds(r) && !(runs && full(r))
		}
		to = c.Choose(ctx, func(r store.Room) bool { return fits(r) && hasTemplate(r, template) })
		if to == "" {
			to = c.Choose(ctx, fits)
		}
		if to == "" {
			return store.Server{}, errdef.New(errdef.WrongState, codeNoOther, "there is no other server that has room and can go on with memory of this one; nothing has moved").
				WithRemedy("drowse servers lists those of the database; start another one with --peer-listen and --blobs, or name one with --to to see what it lacks")
		}
	}
	all, err := c.o.Store.Servers(ctx)
	if err != nil {
		return store.Server{}, err
	}
	srv := store.ServerOf(all, to)
	switch {
	case srv.ID == "":
		return srv, store.ErrServerNotFound(to)
	case !srv.Answers():
		return srv, errNotThere(to, "stops, or is gone")
	case srv.Draining:
		return srv, errdef.New(errdef.WrongState, codeDrained, "server %s is drained, and gets nothing; nothing has moved", to).
			WithRemedy("choose another of those that drowse servers lists, or undo it with drowse drain %s --undo", to).With("server", to)
	}
	return srv, nil
}

// errNotThere says that a server cannot get a sandbox.
func errNotThere(server, why string) error {
	return errdef.New(errdef.Unavailable, codeUnreachable, "server %s %s; nothing has moved", server, why).
		WithRemedy("see why that server is down, or choose another of those that drowse servers lists as alive").With("server", server)
}

// reach returns an error if another server cannot be reached.
func (c *Cluster) reach(ctx context.Context, srv store.Server) error {
	conn, err := c.Dial(ctx, srv.ID, "http/1.1")
	if err != nil {
		return errNotThere(srv.ID, "cannot be reached")
	}
	return conn.Close()
}

// insistOnTake asks a server to take something over, for as long as that has its lease.
func (c *Cluster) insistOnTake(ctx context.Context, server string, what taking) error {
	ctx, cancel := c.whileAlive(ctx, server)
	defer cancel(nil)
	err := c.askToTake(ctx, server, what)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return err
}

// aliveEvery is how often it is looked whether the lease of a server lasts that is waited for.
const aliveEvery = time.Second

// whileAlive returns a context that ends when a server has lost its lease.
func (c *Cluster) whileAlive(ctx context.Context, server string) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if all, err := c.o.Store.Servers(ctx); err == nil && !store.ServerOf(all, server).Alive() {
				cancel(errNotThere(server, "has lost the database"))
			}
		}
	}()
	return ctx, cancel
}

// receive has this server take over what another offers. Who asks for the sandbox meanwhile
// waits, and is led back to the other if that fails.
func (c *Cluster) receive(ctx context.Context, what taking) error {
	id := what.ID
	from, err := c.ownerNow(ctx, id)
	switch {
	case err != nil:
		return err
	case c.o.Mover == nil:
		return errNoObjectStorage(c.o.Store.Self(), id)
	case from == "":
		return nil
	}
	if room, err := c.o.Room(); what.Runs && err == nil && full(room) {
		return errdef.New(errdef.Exhausted, codeFull, "the server has as many running sandboxes as it may have, or no room on its disk").
			WithRemedy("choose another of those that drowse servers lists")
	}
	take := func() error { return c.o.TakeOver(ctx, id) }
	if ids.Valid(id) {
		take = func() error { return c.o.Mover.Receive(ctx, id, what.Actor) }
	}
	t, begun := c.takes.begin(id, true)
	if !begun {
		return errBusy(id, "it is being taken over already")
	}
	if err = c.inTurn(id, take); err != nil {
		t.server = from
	}
	c.takes.end(id, t, 0)
	return err
}

// turnWithin is how long another server waits for this one to begin with what it is to take.
const turnWithin = 10 * time.Second

func (c *Cluster) inTurn(id string, take func() error) error {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
		return take()
	case <-time.After(turnWithin):
		return errBusy(id, "the server takes over too many others")
	}
}

// errBusy says that something cannot go to another server now.
func errBusy(id, why string) error {
	return errdef.New(errdef.Conflict, codeConflict, "%s does not move now: %s", called(id), why).
		WithRemedy("try again in a moment")
}
