package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// snapshotCommands are the commands about what sandboxes were at some time.
type snapshotCommands struct{ *app }

func (a snapshotCommands) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot COMMAND",
		Short: "keep what a sandbox is now, and start others from it",
		Long: `A snapshot is what a sandbox was at one moment: its memory, processes and files.
Any number of sandboxes can start from it, also when the sandbox has ended. They
share its files and memory image, so that each takes only what it changes.

A running sandbox is frozen for a moment. It keeps its id, its connections and
its deadlines. A paused one sleeps on, and its checkpoint becomes the snapshot.`,
		Example: `  drowse snapshot create --name prepared ID
  drowse create --snapshot prepared
  drowse snapshot ls
  drowse snapshot create --keep-last 7 --expires-in 720h ID
  drowse snapshot push prepared ghcr.io/owner/prepared:1
  drowse snapshot rm prepared`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range []*cobra.Command{a.createCommand(), a.listCommand(), a.setCommand(), a.pushCommand(), a.saveCommand(), a.removeCommand()} {
		c.DisableFlagsInUseLine = true
		cmd.AddCommand(c)
	}
	return cmd
}

func (a snapshotCommands) createCommand() *cobra.Command {
	var o client.SnapshotOptions
	var mode string
	cmd := &cobra.Command{
		Use:   "create ID [flags]",
		Short: "take a snapshot of a sandbox and print its id",
		Args:  exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("keep-last") && o.KeepLast < 1 {
				return usagef("--keep-last %d: want 1 or more", o.KeepLast)
			}
			if o.Replace && o.Name == "" {
				return usagef("--replace takes over a name: want --name")
			}
			var err error
			if o.Mode, err = modeOf(mode); err != nil {
				return err
			}
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				snap, err := client.NewSnapshots(c).Create(ctx, args[0], o)
				if err != nil {
					return err
				}
				return a.print(snap, func(w io.Writer) { _, _ = fmt.Fprintln(w, snap.ID) })
			})
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "`name` to find the snapshot by, which no other may have")
	cmd.Flags().BoolVar(&o.Replace, "replace", false, "take the name from the snapshot that has it, which is deleted")
	cmd.Flags().StringVar(&mode, "mode", "", "what to keep (`mode`): memory (processes and files) or filesystem (files only) (default: all that the sandbox has)")
	cmd.Flags().IntVar(&o.KeepLast, "keep-last", 0, "keep `n` snapshots of the sandbox that were taken with --keep-last, this one included; delete older ones that are not pinned")
	clockVar(cmd.Flags(), &o.ExpiresIn, "expires-in", 0, "how long to keep it (default: for ever)")
	cmd.Flags().BoolVar(&o.Pinned, "pin", false, "keep it whatever expires or is too many")
	return cmd
}

func (a snapshotCommands) setCommand() *cobra.Command {
	var o client.SnapshotChange
	var pin bool
	var in time.Duration
	cmd := &cobra.Command{
		Use:   "set SNAPSHOT [flags]",
		Short: "change how long a snapshot is kept",
		Example: `  drowse snapshot set prepared --pin
  drowse snapshot set prepared --pin=false --expires-in 48h`,
		Args: exactArgs("SNAPSHOT"),
	}
	cmd.Flags().BoolVar(&pin, "pin", false, "keep it whatever expires or is too many")
	clockVar(cmd.Flags(), &in, "expires-in", 0, "how long to keep it from now; none for ever")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("pin") {
			o.Pinned = &pin
		}
		if cmd.Flags().Changed("expires-in") {
			o.ExpiresIn = &in
		}
		if o == (client.SnapshotChange{}) {
			return usagef("want --pin or --expires-in")
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			snap, err := client.NewSnapshots(c).Change(ctx, args[0], o)
			if err != nil {
				return err
			}
			return a.print(snap, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is kept %s\n", snap.ID, keptFor(snap, time.Now())) })
		})
	}
	return cmd
}

// keptFor says how long a snapshot is kept.
func keptFor(s client.Snapshot, now time.Time) string {
	switch {
	case s.Pinned:
		return "pinned"
	case s.Undo:
		return "as undo"
	case s.ExpiresAt.IsZero() && s.KeepLast > 0:
		return "as one of the last"
	case s.ExpiresAt.IsZero():
		return "for ever"
	}
	return "until " + clock(s.ExpiresAt, now)
}

func (a snapshotCommands) listCommand() *cobra.Command {
	var sandbox string
	var wide bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "list snapshots, newest first",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := client.NewSnapshots(c).List(ctx, sandbox)
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) {
					now := time.Now()
					rows := [][]string{{"NAME", "ID", "OF", "KEEPS", "WRITTEN", "MADE", "KEPT"}}
					for _, s := range all {
						rows = append(rows, []string{cmp.Or(s.Name, "-"), s.ID, s.Sandbox, string(s.Mode), human.Bytes(s.Bytes), clock(s.CreatedAt, now), keptFor(s, now)})
					}
					if narrow(w, wide) {
						rows = without(rows, "KEEPS", "WRITTEN")
					}
					table(w, rows)
				})
			})
		},
	}
	wideVar(cmd, &wide)
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "only those that were taken of the sandbox with this `id`")
	return cmd
}

func (a snapshotCommands) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm SNAPSHOT... [flags]",
		Short: "delete snapshots",
		Long: `Delete snapshots, by their ids or names. The sandboxes that they were taken of,
and those that started from them, keep all they need.`,
		Args: minArgs("SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				for _, ref := range args {
					if err := client.NewSnapshots(c).Delete(ctx, ref); err != nil {
						return err
					}
				}
				return a.print(map[string][]string{"deleted": args}, func(w io.Writer) {
					for _, ref := range args {
						_, _ = fmt.Fprintf(w, "%s is deleted\n", ref)
					}
				})
			})
		},
	}
}

func (a snapshotCommands) pushCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "push SNAPSHOT IMAGE [flags]",
		Short: "send the files of a snapshot to a registry, as an image",
		Long: `Send the files of a snapshot to a registry as an OCI image, which drowse template
pull, Docker and others can fetch. A template that was built can be named in place
of a snapshot. The server uses the credentials that docker login has stored for
its user.

The image has two layers: what the sandbox started from, and what it changed. Of a
sandbox from the host's own system the first is that system, as sandboxes see it.
Memory, processes, volumes, and variables set at create are not in the image.
Whatever else the sandbox has written is.`,
		Example: `  drowse snapshot push prepared ghcr.io/owner/prepared:1
  drowse template pull ghcr.io/owner/prepared:1    # on another server`,
		Args: exactArgs("SNAPSHOT", "IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				show := templateCommands(a).newProgress()
				defer show.clear()
				img, err := client.NewSnapshots(c).Push(ctx, args[0], client.PushOptions{Image: args[1], Progress: show.update})
				if err != nil {
					return err
				}
				show.clear()
				return a.print(img, func(w io.Writer) { _, _ = fmt.Fprintln(w, cell(img.Ref)) })
			})
		},
	}
}

func (a snapshotCommands) saveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "save SNAPSHOT > FILE",
		Short: "write the files of a snapshot to a file, as an image",
		Long: `Write the files of a snapshot to stdout as a tar of an OCI image layout, which
drowse template load, podman load and others read. It is the image that drowse
snapshot push would send.`,
		Example: `  drowse snapshot save prepared > prepared.tar
  drowse template load --name prepared prepared.tar    # on another server`,
		Args: exactArgs("SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(a.Stdout) {
				return hint(usagef("save: stdout is a terminal"), "write it to a file: drowse snapshot save %s > FILE", args[0])
			}
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := client.NewSnapshots(c).Save(ctx, args[0], a.Stdout)
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(a.Stderr, "%s is saved (%s)\n", args[0], human.Bytes(n))
				return nil
			})
		},
	}
}

// modeOf reads what a snapshot keeps, or what comes back of it; empty for all.
func modeOf(text string) (client.Mode, error) {
	if text == "" {
		return "", nil
	}
	return client.Mode(text), checkMode("mode", text)
}

func (a snapshotCommands) restoreCommand() *cobra.Command {
	var o client.RestoreOptions
	var mode string
	var undo bool
	cmd := &cobra.Command{
		Use:   "restore ID SNAPSHOT | --undo [flags]",
		Short: "take a sandbox back to one of its snapshots",
		Long: `Take a sandbox back to one of its snapshots, by the id or name of the snapshot: to
its files and, if the snapshot has it, its memory with the processes. The sandbox keeps
its id, tokens, timeout and holds. A paused one stays paused. A running one runs on
from there, and its connections end.

What the sandbox was before is kept as a snapshot, which the command names. It counts as
any other does, and lasts until the next restore, or until the sandbox ends; to give it
up earlier, delete it. --undo goes back to it.`,
		Example: `  drowse snapshot create --name clean ID
  drowse restore ID clean
  drowse restore ID --undo`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case undo && len(args) == 2:
			return usagef("restore: want SNAPSHOT or --undo, not both")
		case undo:
			return exactArgs("ID")(cmd, args)
		case len(args) == 1:
			return usagef("restore: missing SNAPSHOT, or --undo")
		}
		return exactArgs("ID", "SNAPSHOT")(cmd, args)
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "go back to what the sandbox was before the last restore")
	cmd.Flags().BoolVar(&o.Discard, "discard", false, "do not keep what the sandbox is now")
	cmd.Flags().StringVar(&mode, "mode", "", "what comes back (`mode`): memory (processes and files) or filesystem (files only) (default: all that the snapshot has)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !undo {
			o.Snapshot = args[1]
		}
		var err error
		if o.Mode, err = modeOf(mode); err != nil {
			return err
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			done, err := client.NewSnapshots(c).Restore(ctx, args[0], o)
			if err != nil {
				return err
			}
			return a.print(done, func(w io.Writer) {
				at := "snapshot " + o.Snapshot
				if undo {
					at = "what it was before the last restore"
				}
				_, _ = fmt.Fprintf(w, "%s is back at %s, and %s\n", args[0], cell(at), stateOf(done.Info.State, done.Info.Phase))
				if done.Undo == "" {
					_, _ = fmt.Fprintln(w, "what it was until now is not kept")
					return
				}
				_, _ = fmt.Fprintf(w, "what it was until now is snapshot %s; to go back there: drowse restore %s --undo\n", done.Undo, args[0])
			})
		})
	}
	return cmd
}

func (a snapshotCommands) forkCommand() *cobra.Command {
	var o client.ForkOptions
	timeout := limitFlag{}
	cmd := &cobra.Command{
		Use:   "fork ID [flags]",
		Short: "start sandboxes that go on from what a sandbox is now",
		Long: `Start sandboxes that go on from what a sandbox is now, running or paused, and print
their ids. Each has the memory, processes, files and settings of the sandbox, and
an id and tokens of its own. The sandbox itself runs or sleeps on as before.

Random numbers: the kernels of run_code draw other ones in each child. Every other
program that was running draws the same in all of them if its generator is in memory:
Node.js does, keys included, and what uses OpenSSL. Restart it, or reseed it in a
post-resume hook; /dev/urandom never repeats. docs/random.md says more.

If a child does not start, the exit code says why, as that of create does; the ids of
the others are printed all the same.`,
		Example: `  drowse fork ID
  drowse fork ID -n 8 --timeout 10m`,
		Args: exactArgs("ID"),
	}
	cmd.Flags().IntVarP(&o.Count, "count", "n", 1, "how many sandboxes to start, at most 100")
	cmd.Flags().Var(&timeout, "timeout", "the timeout of each; none for no limit (default: that of the sandbox)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Count < 1 || o.Count > 100 {
			return usagef("--count %d: want 1 to 100", o.Count)
		}
		if cmd.Flags().Changed("timeout") {
			o.Timeout = new(max(timeout.Duration, 0))
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			children, err := client.NewSnapshots(c).Fork(ctx, args[0], o)
			if err != nil {
				return err
			}
			started, errs := []client.Info{}, []error{}
			for _, child := range children {
				if child.Err != nil {
					errs = append(errs, fmt.Errorf("a child did not start: %w", child.Err))
					continue
				}
				started = append(started, child.Info)
			}
			err = a.print(started, func(w io.Writer) {
				for _, i := range started {
					_, _ = fmt.Fprintln(w, i.ID)
				}
			})
			return errors.Join(append(errs, err)...)
		})
	}
	return cmd
}
