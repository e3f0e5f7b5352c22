package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

func (a *app) exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export ID > FILE",
		Short: "write a paused sandbox to a file, to keep or to move",
		Long: `Write a paused sandbox to stdout as one file: memory, processes, files and
settings. The sandbox is not changed; to move it, kill it after the import. The
file is an uncompressed tar archive: pipe it through zstd to make it smaller.

Keep the file secret. It contains the sandbox's memory, its environment and a
token that controls its agent.`,
		Example: `  umask 077
  drowse pause i0abc
  drowse export i0abc > i0abc.tar
  drowse export i0abc | zstd | ssh other 'zstd -d | drowse import'`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(a.Stdout) {
				return hint(usagef("export: stdout is a terminal"), "write it to a file: drowse export %s > %[1]s.tar", args[0])
			}
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := c.Export(ctx, args[0], a.Stdout)
				if err != nil {
					return missing(err)
				}
				_, _ = fmt.Fprintf(a.Stderr, "%s is exported (%s)\n", args[0], human.Bytes(n))
				return nil
			})
		},
	}
}

func (a *app) importCommand() *cobra.Command {
	var o client.ImportOptions
	var filesystem bool
	cmd := &cobra.Command{
		Use:   "import [flags] < FILE",
		Short: "create a paused sandbox from an export",
		Long: `Read an export from stdin and create a paused sandbox from it; drowse resume
wakes it. It keeps its id, unless this server already knows that id. Tokens and
preview links of the old server do not work here.

Import only files that you trust as much as a program run as root: the memory
image is checked for damage, not for malice.

A memory image can be restored only on the same architecture, gVisor version and
template, with the same files in /usr and all processor features it used. Where
one of these differs, --filesystem imports the files without the memory.`,
		Example: `  drowse import < i0abc.tar
  drowse import --new-id < i0abc.tar
  drowse import --filesystem < i0abc.tar`,
		Args: exactArgs(),
	}
	cmd.Flags().BoolVar(&o.NewID, "new-id", false, "give the sandbox a new id")
	cmd.Flags().BoolVar(&filesystem, "filesystem", false, "leave out memory and processes; the sandbox boots from its files")
	cmd.Flags().BoolVar(&o.Secrets, "secrets", false, "let the sandbox use the secrets of your API key that have the names in the file")
	cmd.Flags().StringVar(&o.IdempotencyKey, "idempotency-key", "", "`text` that makes a retry safe: within 24 hours, the same import with the same key returns the first sandbox and creates no second one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if isTerminal(a.Stdin) {
			return hint(usagef("import: stdin is a terminal"), "give it a file: drowse import < FILE")
		}
		if filesystem {
			o.Mode = client.Filesystem
		}
		return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			info, err := c.Import(ctx, a.Stdin, o)
			if err != nil {
				return err
			}
			return a.print(info, func(w io.Writer) {
				state := "is asleep"
				if info.State != client.Paused { // an import before has made it
					state = "is " + string(info.State)
				}
				_, _ = fmt.Fprintf(w, "%s %s, %s\n", info.ID, state, next(info, time.Now()))
				for _, u := range info.Secrets {
					switch {
					case u.Withheld:
						_, _ = fmt.Fprintf(w, "its secret %s is withheld: --secrets lets it use yours of that name\n", cell(u.Name))
					case u.Missing:
						_, _ = fmt.Fprintf(w, "its secret %s is not here: set it with drowse secret set\n", cell(u.Name))
					}
				}
			})
		})
	}
	return cmd
}

// transfer connects and makes a call that takes as long as it takes.
func (a *app) transfer(ctx context.Context, f func(context.Context, *client.Client) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	return a.explainKey(c.URL(), f(ctx, c))
}
