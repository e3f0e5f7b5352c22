package v1

import (
	"context"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Servers are those that have their records in one database, as the store has them. With
// SQLite there are none.
type Servers interface {
	// Self returns the id of this server; empty for none.
	Self() string
	// Servers returns all of them, by id.
	Servers(ctx context.Context) ([]store.Server, error)
	// SetDraining says of one that it is drained, or is not any more.
	SetDraining(ctx context.Context, id string, draining bool) error
}

// Mover moves sandboxes to other servers.
type Mover interface {
	// Move moves a sandbox to a server, or to any other than its own if that is empty, and
	// returns the sandbox as it is then.
	Move(ctx context.Context, id, to, actor string) (store.Sandbox, error)
}

type serverView struct {
	ID          string            `json:"id"`
	Name        string            `json:"name" doc:"Of the machine that it runs on, or ran on last."`
	Address     *string           `json:"address" doc:"At which the others reach it; null where they do not."`
	Alive       bool              `json:"alive" doc:"Whether it has a lease. What one has that is not alive can be listed, and not used."`
	Leaving     bool              `json:"leaving" doc:"Whether its process stops: requests for what it has wait until it has left, and then go to another server or are refused. It stays set until the server is started again."`
	Draining    bool              `json:"draining" doc:"Whether it gives what it has to other servers."`
	Drain       *drainView        `json:"drain" doc:"How far it is with that, as it said last; null if it has not said."`
	LeaseEndsAt httpapi.Timestamp `json:"leaseEndsAt" doc:"Unless it renews its lease, by the clock of the database."`
	Self        bool              `json:"self" doc:"Whether it is the one that answers."`
	Room        *roomView         `json:"room" doc:"What it has for more sandboxes, as it said last; null if it has not said since it was started."`
}

type roomView struct {
	Running    int  `json:"running" doc:"Sandboxes that run there."`
	MaxRunning *int `json:"maxRunning" doc:"How many may; null for no bound. A new sandbox goes to a server with room, whichever is asked."`
	MemoryMiB  int  `json:"memoryMiB" doc:"Memory of its machine that is available."`
	DiskMiB    int  `json:"diskMiB" doc:"Space that is free on the disk of its state directory."`
}

type drainView struct {
	Left  int     `json:"left" doc:"Sandboxes, snapshots and built templates that it has still."`
	Stay  int     `json:"stay" doc:"Of these, how many were tried and could not go. They are tried again."`
	Cause *string `json:"cause" doc:"Why the last of these could not; null for none."`
}

func viewRoom(r *store.Room) *roomView {
	if r == nil {
		return nil
	}
	return &roomView{r.Running, orNull(r.MaxRunning), r.MemoryMiB, r.DiskMiB}
}

type serversView struct {
	Servers []serverView `json:"servers" doc:"By id; none where the server keeps its records by itself."`
}

func listServers(s *server, c *call) (reply, error) {
	all, err := s.Servers.Servers(c.r.Context())
	if err != nil {
		return reply{}, err
	}
	v := serversView{Servers: []serverView{}}
	for _, srv := range all {
		v.Servers = append(v.Servers, s.viewServer(srv))
	}
	return ok(v)
}

func (s *server) viewServer(srv store.Server) serverView {
	v := serverView{
		ID: srv.ID, Name: srv.Name, Address: orNull(srv.Address), Alive: srv.Alive(), Leaving: srv.Leaving, Draining: srv.Draining,
		LeaseEndsAt: httpapi.Timestamp(srv.LeaseEndsAt), Self: srv.ID == s.Servers.Self(), Room: viewRoom(srv.Room),
	}
	if srv.Draining && srv.Room != nil && srv.Room.Drain != nil && srv.Room.Drain.Of == srv.Drains { // not told for a time before
		d := srv.Room.Drain
		v.Drain = &drainView{d.Left, d.Stay, orNull(d.Cause)}
	}
	return v
}

// changeServer has a server drained, or have done with that.
func changeServer(s *server, c *call) (reply, error) {
	id := c.params[serverParam]
	if w, given := c.words["draining"]; given {
		draining := w.Value.(bool)
		if err := s.Servers.SetDraining(c.r.Context(), id, draining); err != nil {
			return reply{}, err
		}
		s.Log.Info("server changed", "server", id, "draining", draining, "actor", c.actor)
	}
	all, err := s.Servers.Servers(c.r.Context())
	if err != nil {
		return reply{}, err
	}
	srv := store.ServerOf(all, id)
	if srv.ID == "" {
		return reply{}, store.ErrServerNotFound(id)
	}
	return ok(s.viewServer(srv))
}

// moveSandbox has a sandbox go to another server.
func moveSandbox(s *server, c *call) (reply, error) {
	if s.Mover == nil {
		return reply{}, s.ifKnown(c, errdef.New(errdef.WrongState, "no_other_server", "this server keeps its records by itself, and there is no other that sandbox %s could move to", c.sandbox).
			WithRemedy("take it to another server by drowse export and import, or give several servers one database"))
	}
	to, _ := c.words["server"].Value.(string)
	sb, err := s.Mover.Move(c.r.Context(), c.sandbox, to, c.actor)
	if err != nil {
		return reply{}, err
	}
	return ok(s.viewWithTokens(c, sb))
}
