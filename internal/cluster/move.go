package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Mover is what moves sandboxes, as package takeover does it.
type Mover interface {
	// HandOver has another server take a sandbox of this one, which take asks it for.
	HandOver(ctx context.Context, id, to, actor string, take func(context.Context) error) error
	// Receive takes a sandbox over that its server offers to this one.
	Receive(ctx context.Context, id, actor string) error
}

// A client asks any server for a move, which passes the request on to the one that has the
// sandbox. That one asks the other server to take it, with the key of the client and by the
// same call, which is passed on no further.

// Move moves a sandbox to a server, to any other than its own if that is empty, as the request r
// asks for, and returns it as it is then. Where the sandbox is there already, it does nothing.
func (c *Cluster) Move(r *http.Request, id, to, actor string) (store.Sandbox, error) {
	if err := c.move(r, id, to, actor); err != nil {
		return store.Sandbox{}, err
	}
	return c.o.Store.Sandbox(r.Context(), id)
}

func (c *Cluster) move(r *http.Request, id, to, actor string) error {
	ctx := context.WithoutCancel(r.Context()) // who goes away leaves nothing half way
	sb, err := c.o.Store.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	self := c.o.Store.Self()
	switch {
	case sb.Owner == to:
		return nil
	case c.o.Mover == nil:
		return errdef.New(errdef.Unsupported, "no_object_storage", "sandboxes move by way of object storage, and server %s has none; sandbox %s stays where it is", self, id).
			WithRemedy("start all servers with the same --blobs").With("server", self)
	case sb.Owner == self:
		return c.handOver(ctx, r, sb, to, actor)
	case self == to && edge.Hops(ctx) == edge.MostHops: // its owner asks
		return c.receive(ctx, id, sb.Owner, actor)
	}
	return store.ErrElsewhere("sandbox "+id, sb.Owner)
}

// handOver moves a sandbox of this server to another one.
func (c *Cluster) handOver(ctx context.Context, r *http.Request, sb store.Sandbox, to, actor string) error {
	if len(sb.Config.Volumes) > 0 {
		return errdef.New(errdef.Unsupported, "has_volumes", "sandbox %s has volumes, whose files are on its server; it stays there", sb.ID).
			WithRemedy("move what sandboxes without volumes do; volumes stay on the server that has made them")
	}
	srv, err := c.target(ctx, to)
	if err != nil {
		return err
	}
	if r := srv.Room; r != nil && full(*r) && sb.Record.State == lifecycle.Running {
		return errdef.New(errdef.Exhausted, "too_many_sandboxes", "server %s has as many running sandboxes as it may have, or no room on its disk; sandbox %s stays where it is", srv.ID, sb.ID).
			WithRemedy("choose another of those that drowse servers lists, or none, to have one chosen that has room").With("server", srv.ID)
	}
	if err := c.reach(ctx, srv); err != nil { // the sandbox does not sleep in vain
		return err
	}
	began := time.Now()
	if err := c.o.Mover.HandOver(ctx, sb.ID, srv.ID, actor, func(ctx context.Context) error {
		ctx, cancel := c.whileAlive(ctx, srv.ID)
		defer cancel(nil)
		err := c.askToTake(ctx, r, sb.ID, srv.ID)
		if err != nil {
			err = cmp.Or(context.Cause(ctx), err)
		}
		return err
	}); err != nil {
		return err
	}
	c.note(sb.ID, srv.ID, time.Now())
	c.o.Log.Info("sandbox moved to another server", "sandbox", sb.ID, "server", srv.ID, "dur", time.Since(began))
	return nil
}

// target returns the server that a sandbox of this server moves to: the one that is named, or one
// with room whose processor and runtime can go on with memory of this one.
func (c *Cluster) target(ctx context.Context, to string) (store.Server, error) {
	all, err := c.o.Store.Servers(ctx)
	if err != nil {
		return store.Server{}, err
	}
	if to == "" {
		i := slices.IndexFunc(all, func(srv store.Server) bool { return srv.ID == c.o.Store.Self() && srv.Room != nil })
		if to = c.Choose(ctx, func(r store.Room) bool { return i < 0 || r.Reads(*all[i].Room) }); to == "" {
			return store.Server{}, errdef.New(errdef.WrongState, "no_other_server", "there is no other server that has room for the sandbox and can go on with its memory; it stays where it is").
				WithRemedy("drowse servers lists those of the database; start another one with --peer-listen and --blobs, or name one with --to to see what it lacks")
		}
	}
	i := slices.IndexFunc(all, func(srv store.Server) bool { return srv.ID == to })
	switch {
	case i < 0:
		return store.Server{}, errdef.New(errdef.NotFound, "server_not_found", "there is no server %.100q", to).
			WithRemedy("drowse servers lists those of the database").With("server", to)
	case all[i].Left <= 0 || all[i].Leaving:
		return store.Server{}, errNotThere(to, "stops, or is gone")
	}
	return all[i], nil
}

// errNotThere says that a server cannot get a sandbox.
func errNotThere(server, why string) error {
	return errdef.New(errdef.Unavailable, codeUnreachable, "server %s %s; the sandbox stays where it is", server, why).
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
			if all, err := c.o.Store.Servers(ctx); err == nil && !slices.ContainsFunc(all, func(srv store.Server) bool { return srv.ID == server && srv.Left > 0 }) {
				cancel(errNotThere(server, "has lost the database"))
			}
		}
	}()
	return ctx, cancel
}

// mostAnswer bounds what is read of the answer of a server.
const mostAnswer = 64 << 10

// askToTake asks a server to take a sandbox over that is offered to it, as the client of r.
func (c *Cluster) askToTake(ctx context.Context, r *http.Request, id, server string) error {
	text, err := json.Marshal(map[string]string{"server": server})
	if err != nil {
		return err
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/v1/sandboxes/"+id+"/move", bytes.NewReader(text))
	if err != nil {
		return err
	}
	out.Header.Set("Content-Type", "application/json")
	out.Header.Set("X-Api-Key", auth.FromHeader(r.Header))
	edge.SetForwarded(out.Header, r, edge.MostHops)
	resp, err := c.o.Transport(server).RoundTrip(out)
	if err != nil {
		return c.broken(ctx, server, nil, err)
	}
	defer resp.Body.Close()
	var answer struct {
		Error struct {
			Code, Message, Remediation string
			Context                    map[string]any
		}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	switch {
	case resp.StatusCode == http.StatusOK:
		return nil
	case err == nil:
		err = json.Unmarshal(body, &answer)
	}
	if err != nil || answer.Error.Code == "" {
		return c.broken(ctx, server, nil, fmt.Errorf("status %d, %w", resp.StatusCode, err))
	}
	class := errdef.Unavailable
	if known, ok := errdef.Lookup(answer.Error.Code); ok {
		class = known.Class
	}
	refusal := errdef.New(class, answer.Error.Code, "server %s does not take sandbox %s, which stays where it was: %s", server, id, answer.Error.Message).
		WithRemedy("%s", answer.Error.Remediation)
	for name, value := range answer.Error.Context {
		refusal = refusal.With(name, value)
	}
	return refusal.With("server", server)
}

// receive has this server take over what another offers. Who asks for the sandbox meanwhile
// waits, and is led back to the other if that fails.
func (c *Cluster) receive(ctx context.Context, id, from, actor string) error {
	t := &take{done: make(chan struct{}), server: from}
	c.takes.mu.Lock()
	now := c.takes.now[id]
	busy := now != nil && !now.over()
	if !busy {
		if c.takes.now == nil {
			c.takes.now = map[string]*take{}
		}
		c.takes.now[id] = t
	}
	c.takes.mu.Unlock()
	if busy {
		return errBusy(id, "it is being taken over already")
	}
	err := c.receiveInTurn(ctx, id, actor)
	if err == nil {
		t.server = ""
	}
	close(t.done)
	c.takes.mu.Lock()
	defer c.takes.mu.Unlock()
	if c.takes.now[id] == t {
		delete(c.takes.now, id)
	}
	return err
}

// turnWithin is how long another server waits for this one to begin with what it is to take.
const turnWithin = 10 * time.Second

func (c *Cluster) receiveInTurn(ctx context.Context, id, actor string) error {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
		return c.o.Mover.Receive(ctx, id, actor)
	case <-time.After(turnWithin):
		return errBusy(id, "the server takes over too many others")
	}
}

// errBusy says that a sandbox cannot be taken now that another server offers.
func errBusy(id, why string) error {
	return errdef.New(errdef.Conflict, "move_conflict", "sandbox %s does not move now: %s", id, why).
		WithRemedy("try again in a moment")
}
