package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// volumes is a flag that collects volumes by where they are to be.
type volumes struct{ m map[string]string }

func (v *volumes) String() string { return "" }
func (v *volumes) Type() string   { return "name:/path" }

// Set leaves it to the server which names and paths there can be.
func (v *volumes) Set(text string) error {
	name, path, ok := strings.Cut(text, ":")
	if !ok || name == "" || !strings.HasPrefix(path, "/") {
		return errors.New("want name:/path, such as data:/mnt/data")
	}
	if has, taken := v.m[path]; taken {
		return fmt.Errorf("%s is already mounted at %s", has, path)
	}
	if v.m == nil {
		v.m = map[string]string{}
	}
	v.m[path] = name
	return nil
}

func (a *app) volumesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes COMMAND",
		Short: "create, list and delete directories that outlive sandboxes",
		Long: `A volume is a directory that outlives sandboxes. Several sandboxes can mount it
at once (drowse create --volume), and all see what one of them writes. File locks
work within one sandbox only. Checkpoints and exports do not contain the files of
volumes.`,
		Example: `  drowse volumes create data
  drowse create --volume data:/mnt/data
  drowse volumes ls
  drowse volumes rm data`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range []*cobra.Command{a.createVolumeCommand(), a.listVolumesCommand(), a.deleteVolumesCommand()} {
		c.DisableFlagsInUseLine = true
		cmd.AddCommand(c)
	}
	return cmd
}

func (a *app) createVolumeCommand() *cobra.Command {
	var o client.VolumeOptions
	cmd := &cobra.Command{
		Use:   "create NAME [flags]",
		Short: "create an empty volume and print its id",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				o.Name = args[0]
				v, err := c.CreateVolumeWith(ctx, o)
				if err != nil {
					return err
				}
				return a.print(v, func(w io.Writer) { _, _ = fmt.Fprintln(w, v.ID) })
			})
		},
	}
	mibVar(cmd.Flags(), &o.DiskMiB, "disk", 0, "disk limit, in MiB or as a `size` such as 2g; when the volume is over it, running sandboxes that mount it are paused (default: the server's --volume-disk)")
	return cmd
}

func (a *app) listVolumesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [flags]",
		Short: "list volumes, oldest first",
		Long: `List volumes, oldest first. USED is what the files of a volume took when they were
last measured, at MEASURED; - if that is not known yet, or the volume has too many
files to count. The server measures in the background those that may have changed.`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := c.Volumes(ctx)
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) {
					now := time.Now()
					rows := [][]string{{"NAME", "ID", "USED", "MEASURED", "DISK MIB", "MADE"}}
					for _, v := range all {
						used, measured := "-", "-"
						if v.DiskBytes != nil && v.DiskMeasuredAt != nil {
							used, measured = human.Bytes(*v.DiskBytes), clock(*v.DiskMeasuredAt, now)
						}
						rows = append(rows, []string{v.Name, v.ID, used, measured, limitText(v.DiskMiB), clock(v.CreatedAt, now)})
					}
					table(w, rows)
				})
			})
		},
	}
}

// limitText is a limit in a list.
func limitText(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func (a *app) deleteVolumesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME... [flags]",
		Short: "delete volumes and all their files",
		Long: `Delete volumes, by name or id, and all their files. A volume that a sandbox
mounts, running or paused, is not deleted.`,
		Args: minArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := c.Volumes(ctx)
				if err != nil {
					return err
				}
				for _, name := range args {
					if err := c.DeleteVolume(ctx, volumeID(all, name)); err != nil {
						return err
					}
				}
				return a.print(map[string][]string{"deleted": args}, func(w io.Writer) {
					for _, name := range args {
						_, _ = fmt.Fprintf(w, "%s is deleted\n", name)
					}
				})
			})
		},
	}
}

// volumeID returns the id of a volume that is called by its name or id. What is
// neither is for the server to refuse.
func volumeID(all []client.Volume, called string) string {
	for _, v := range all {
		if v.Name == called {
			return v.ID
		}
	}
	return called
}
