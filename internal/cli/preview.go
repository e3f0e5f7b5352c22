package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

func (a *app) previewCommand() *cobra.Command {
	var o client.PreviewOptions
	var list bool
	var revoke string
	cmd := &cobra.Command{
		Use:   "preview ID [PORT] [flags]",
		Short: "create a link that gives access to a port for a limited time",
		Long: `Create a link to a port of a sandbox, running or paused, and print it. Whoever
has the link can use that port until the link expires, even if the port is
private; it gives access to nothing else. The server does not store the link, so
it cannot be printed again. It can be revoked by its id.

Creating a link does not wake the sandbox or count as activity. Using it does
what any request to that port does.`,
		Example: `  drowse preview i0abc 8000
  drowse preview i0abc 8000 --for 24h --path /docs
  drowse preview i0abc --list
  drowse preview i0abc --revoke pv1x2y3z`,
		Args: minArgs("ID"),
	}
	f := cmd.Flags()
	spanVar(f, &o.For, "for", time.Hour, "how long the link is valid")
	f.StringVar(&o.Path, "path", "", "`path` that the link opens")
	f.BoolVar(&list, "list", false, "list the valid links")
	f.StringVar(&revoke, "revoke", "", "revoke the `link` with this id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := args[0]
		switch makes := !list && revoke == ""; {
		case list && revoke != "":
			return usagef("preview: want one of --list and --revoke")
		case len(args) > 2 || !makes && len(args) > 1:
			return usagef("preview: too many arguments: %q", args[1:])
		case makes && len(args) < 2:
			return usagef("preview: missing PORT")
		case makes:
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usagef("preview: %q: want a port from 1 to 65535", args[1])
			}
			o.Port = int(port)
		}
		if o.For <= 0 {
			return usagef("--for %s: want more than 0", o.For)
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			switch {
			case list:
				return a.listPreviews(ctx, c, id)
			case revoke != "":
				return a.revokePreview(ctx, c, id, revoke)
			}
			p, err := c.CreatePreview(ctx, id, o)
			if err != nil {
				return missing(err)
			}
			return a.print(p, func(w io.Writer) { _, _ = fmt.Fprintln(w, p.URL) })
		})
	}
	return cmd
}

func (a *app) listPreviews(ctx context.Context, c *client.Client, id string) error {
	all, err := c.Previews(ctx, id)
	if err != nil {
		return missing(err)
	}
	return a.print(all, func(w io.Writer) {
		now := time.Now()
		rows := [][]string{{"ID", "PORT", "MADE", "BY", "EXPIRES"}}
		for _, p := range all {
			rows = append(rows, []string{p.ID, strconv.Itoa(p.Port), clock(p.CreatedAt, now), by(p.Actor), at(p.ExpiresAt, now)})
		}
		table(w, rows)
	})
}

func (a *app) revokePreview(ctx context.Context, c *client.Client, id, preview string) error {
	if err := c.RevokePreview(ctx, id, preview); err != nil {
		return missing(err)
	}
	return a.print(map[string]string{"id": preview, "sandbox": id}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "%s is revoked\n", preview)
	})
}
