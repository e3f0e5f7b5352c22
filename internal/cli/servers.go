package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

func serversCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "servers",
		Short: "list the servers that have one database",
		Long: `List the servers that have their records in the same PostgreSQL database as the
one that is asked, which is marked with *. There are none where that keeps its
records by itself. What a server has that is not alive can be listed, and not used
until it is started again, or another server takes it over. One that is leaving
stops: requests for what it has wait until it has left. A new sandbox that has no
room on the server that is asked is made on one that has. One that is draining
gives what it has to others (drowse drain). It needs an admin key.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := client.Servers(ctx, c)
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) { tableOfServers(w, all) })
			})
		},
	}
}

func tableOfServers(w io.Writer, all []client.Server) {
	rows := [][]string{{"ID", "MACHINE", "ADDRESS", "ALIVE", "RUNNING", "FREE MEMORY", "FREE DISK", "LEASE ENDS"}}
	for _, srv := range all {
		id, address, alive := srv.ID, "-", "no"
		if srv.Self {
			id += " *"
		}
		if srv.Address != "" {
			address = srv.Address
		}
		switch {
		case srv.Alive && srv.Leaving:
			alive = "leaving"
		case srv.Alive && srv.Draining:
			alive = "draining"
		case srv.Alive:
			alive = "yes"
		}
		running, memory, disk := "-", "-", "-"
		if r := srv.Room; r != nil && srv.Alive {
			running, memory, disk = strconv.Itoa(r.Running), human.Bytes(int64(r.MemoryMiB)<<20), human.Bytes(int64(r.DiskMiB)<<20)
			if r.MaxRunning != nil {
				running += " of " + strconv.Itoa(*r.MaxRunning)
			}
		}
		rows = append(rows, []string{id, srv.Name, address, alive, running, memory, disk, dated(w, srv.LeaseEndsAt)})
	}
	if narrow(w, false) {
		rows = without(rows, "LEASE ENDS")
	}
	table(w, rows)
}

// drainEvery is how often it is asked how far a server is that is drained.
const drainEvery = 500 * time.Millisecond

func drainCommand(a *app) *cobra.Command {
	var undo, noWait bool
	cmd := &cobra.Command{
		Use:   "drain SERVER [flags]",
		Short: "give what a server has to the others of its database",
		Long: `Drain a server: it gives its sandboxes, snapshots and built templates to other servers
that have the same PostgreSQL database and object storage, one after the other, and
serves meanwhile. Sandboxes that run, run on there, as by drowse move. What is made on it
nevertheless goes too. It is drained until --undo, over starts as well.

The command waits until nothing is left; interrupt it, and the server goes on. If
something cannot go, it says why and ends with 1; the server tries it again. What
has volumes stays. It needs an admin key.`,
		Example: `  drowse servers
  drowse drain srv_fdp4u5m2c3qk7a6b
  drowse drain srv_fdp4u5m2c3qk7a6b --undo`,
		Args: exactArgs("SERVER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				srv, err := client.Drain(ctx, c, args[0], !undo)
				if err == nil && !undo && !noWait {
					srv, err = a.awaitDrained(ctx, c, srv)
				}
				if err != nil {
					return err
				}
				return a.print(srv, func(w io.Writer) {
					switch {
					case undo:
						_, _ = fmt.Fprintf(w, "%s is drained no more\n", srv.ID)
					case noWait:
						_, _ = fmt.Fprintf(w, "%s is being drained\n", srv.ID)
					default:
						_, _ = fmt.Fprintf(w, "%s is drained: nothing is left on it\n", srv.ID)
					}
				})
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&undo, "undo", false, "have the server keep what it has, and get new sandboxes")
	f.BoolVar(&noWait, "no-wait", false, "do not wait until nothing is left")
	return cmd
}

// awaitDrained returns when nothing is left on a server that is drained.
func (a *app) awaitDrained(ctx context.Context, c *client.Client, srv client.Server) (client.Server, error) {
	said := ""
	for {
		switch d := srv.Drain; {
		case !srv.Draining:
			return srv, hint(fmt.Errorf("%s is not drained any more: somebody has undone it", srv.ID), "see drowse servers")
		case !srv.Alive:
			return srv, hint(fmt.Errorf("%s is not alive: it gives away nothing", srv.ID), "others take over what it has when somebody asks for it; or start it")
		case d == nil:
		case d.Left == 0:
			return srv, nil
		case d.Left == d.Stay:
			return srv, hint(fmt.Errorf("%d stay on %s: %s", d.Left, srv.ID, cell(d.Cause)), "it goes on trying; see its log for each, or undo it with drowse drain %s --undo", srv.ID)
		default:
			if now := fmt.Sprintf("%d left", d.Left); now != said {
				said = now
				_, _ = fmt.Fprintln(a.Stderr, now)
			}
		}
		select {
		case <-ctx.Done():
			return srv, ctx.Err()
		case <-time.After(drainEvery):
		}
		all, err := client.Servers(ctx, c)
		if err != nil {
			return srv, err
		}
		i := slices.IndexFunc(all, func(x client.Server) bool { return x.ID == srv.ID })
		if i < 0 {
			return srv, fmt.Errorf("the database has no server %s any more", srv.ID)
		}
		srv = all[i]
	}
}

func moveCommand(a *app) *cobra.Command {
	to := ""
	cmd := &cobra.Command{
		Use:   "move ID [flags]",
		Short: "move a sandbox to another server of the same database",
		Long: `Move a sandbox to another server that has the same PostgreSQL database and object
storage, with memory, processes, files, id and settings; both servers are alive. A
sandbox that runs is paused, and runs on there with its timeout and holds; one that
is paused stays paused. Requests for it wait meanwhile, and go on at the new server.
Its streams end. Without --to, it goes to one with room, whose processor and
runtime can go on with its memory. After an error it is where it was. It needs an
admin key.`,
		Example: `  drowse servers
  drowse move i0abc --to srv_fdp4u5m2c3qk7a6b`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				info, err := client.Move(ctx, c, args[0], to)
				if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "server_not_found" {
					return err // the sandbox is there
				}
				if err != nil {
					return missing(err)
				}
				return a.print(info, func(w io.Writer) {
					_, _ = fmt.Fprintf(w, "%s is on %s, %s\n", info.ID, info.Server, info.State)
				})
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the `server` that it goes to, by its id")
	return cmd
}
