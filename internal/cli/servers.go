package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

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
room on the server that is asked is made on one that has. It needs an admin key.`,
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
