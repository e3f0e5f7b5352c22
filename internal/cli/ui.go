package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

func uiCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "ui",
		Short: "print a link that signs a browser in to the dashboard, once",
		Long: `Print a link to the server's dashboard. It signs one browser in, with the rights
of your API key, works once and expires after five minutes. Whoever has the link
can use it.

Browsers keep the dashboard safe on HTTPS and on localhost only. For a server on
another machine that has no TLS, forward its port first, and use that:

  ssh -L 3000:127.0.0.1:3000 HOST`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				link, err := client.NewDashboard(c).SignInLink(ctx)
				if err != nil {
					return err
				}
				return a.print(link, func(w io.Writer) { _, _ = fmt.Fprintln(w, link.URL) })
			})
		},
	}
}
