package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

func (a *app) exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export ID [FILE]",
		Short: "write a paused sandbox to a file, to keep or to move",
		Long: `Write a paused sandbox to a file: memory, processes, files and settings. Only you
may read the file. Without FILE, or with -, write to stdout. The sandbox is not changed; to move it, kill it after the import. The
file is an uncompressed tar archive: pipe it through zstd to make it smaller.

Keep the file secret. It contains the sandbox's memory, its environment and a
token that controls its agent.`,
		Example: `  drowse pause i0abc
  drowse export i0abc i0abc.tar
  drowse export i0abc | zstd | ssh other 'zstd -d | drowse import'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactArgs("ID")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) > 1 && args[1] != "-" {
				file = args[1]
			}
			if file == "" && isTerminal(a.Stdout) {
				return hint(usagef("export: stdout is a terminal"), "write it to a file: drowse export %s %[1]s.tar", args[0])
			}
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				var n int64
				export := func(w io.Writer) error {
					n, err = c.Export(ctx, args[0], w)
					return missing(err)
				}
				if file == "" {
					err = export(a.Stdout)
				} else {
					err = writeWhole(file, export)
				}
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(a.Stderr, "%s is exported (%s)\n", args[0], human.Bytes(n))
				return nil
			})
		},
	}
}

// writeWhole makes a file that has all that write writes, or none. Nobody else may
// read it.
func writeWhole(file string, write func(io.Writer) error) error {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() { // a device or pipe stays what it is
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return cmp.Or(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := cmp.Or(write(f), f.Sync(), f.Close()); err != nil {
		_ = f.Close()
		return err
	}
	return os.Rename(f.Name(), file)
}

func (a *app) importCommand() *cobra.Command {
	var o client.ImportOptions
	var filesystem bool
	cmd := &cobra.Command{
		Use:   "import [FILE] [flags]",
		Short: "create a paused sandbox from an export",
		Long: `Read an export from a file and create a paused sandbox from it; drowse resume
wakes it. Without FILE, or with -, read stdin. An id that this server already knows is
rejected, unless --new-id is given; a name that another sandbox of yours has is left
out. Tokens and preview links of the old server do not work here.

Import only files that you trust as much as a program run as root: the memory
image is checked for damage, not for malice.

A memory image can be restored only on the same architecture, gVisor version and
template, with the same files in /usr and all processor features it used. Where
one of these differs, --filesystem imports the files without the memory.`,
		Example: `  drowse import i0abc.tar
  drowse import --new-id i0abc.tar
  zstd -dc i0abc.tar.zst | drowse import --filesystem`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return exactArgs()(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&o.NewID, "new-id", false, "give the sandbox a new id")
	cmd.Flags().BoolVar(&filesystem, "filesystem", false, "leave out memory and processes; the sandbox boots from its files")
	cmd.Flags().BoolVar(&o.Secrets, "secrets", false, "let the sandbox use the secrets of your API key that have the names in the file")
	cmd.Flags().StringVar(&o.IdempotencyKey, "idempotency-key", "", "`text` that makes a retry safe: within 24 hours, the same import with the same key returns the first sandbox and creates no second one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from := a.Stdin
		switch {
		case len(args) > 0 && args[0] != "-":
			f, err := os.Open(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return hint(err, "name a file that drowse export has written: drowse export ID FILE")
			}
			if err != nil {
				return err
			}
			defer f.Close()
			from = f
		case isTerminal(a.Stdin):
			return hint(usagef("import: stdin is a terminal"), "give it a file: drowse import FILE")
		}
		if filesystem {
			o.Mode = client.Filesystem
		}
		return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			info, err := c.Import(ctx, from, o)
			if err != nil {
				return err
			}
			return a.print(info, func(w io.Writer) {
				state := "is asleep"
				if info.State != client.Paused { // an import before has made it
					state = "is " + string(info.State)
				}
				_, _ = fmt.Fprintf(w, "%s %s, %s\n", info.ID, state, next(info, time.Now()))
				if info.NameTaken != "" {
					_, _ = fmt.Fprintf(w, "it has no name: another sandbox is called %s\n", cell(info.NameTaken))
				}
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
