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
		Long: `Write a paused sandbox to stdout as one file: its memory and processes, its
files and its settings. The sandbox stays as it is; to move it, kill it once it
is imported elsewhere. The file is a tar archive and is not compressed: pipe it
through zstd or the like.

Keep the file secret. It has all of the sandbox's memory in it, its environment,
and a token by which its agent is controlled.`,
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
		Short: "make a sandbox of what export wrote; it sleeps until it is woken",
		Long: `Make a sandbox of what export wrote, read from stdin. It sleeps, as it did where
it was exported, and drowse resume wakes it. It keeps its id unless the server
knows that already. Its links, made with drowse preview, and its tokens are the
old server's, and are worth nothing here.

Import no file that you would not run as root in the sandbox's place: the memory
in it is the state of a kernel, and is checked for damage, not for intent.

The memory goes on only where there is all that it needs: the same architecture,
gVisor version and template, the same programs in /usr, and a processor that can
do as much. Where that is not so, --filesystem leaves the memory out.`,
		Example: `  drowse import < i0abc.tar
  drowse import --new-id < i0abc.tar
  drowse import --filesystem < i0abc.tar`,
		Args: exactArgs(),
	}
	cmd.Flags().BoolVar(&o.NewID, "new-id", false, "give it another id")
	cmd.Flags().BoolVar(&filesystem, "filesystem", false, "leave its memory and processes out, and boot afresh from its files")
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
				_, _ = fmt.Fprintf(w, "%s is asleep, %s\n", info.ID, next(info, time.Now()))
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
