package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/internal/errdef"
)

func (a *app) fsckCommand() *cobra.Command {
	var o UpkeepOptions
	cmd := &cobra.Command{
		Use:   "fsck [--repair] [flags]",
		Short: "check the state directory of a stopped server: database, checkpoints, files",
		Long: `Check the state directory of a stopped server: the database, the record and
template of every sandbox, the checksums of every checkpoint, the builds of drowse
that memory images need, the results of templates that were built, and orphaned
files. Each fault is shown with what it means, which sandbox it concerns and what
can be done. Without --repair nothing is changed.

--repair removes orphans. It keeps damaged checkpoints as they are, as evidence,
and notes the damage in the sandbox's record, where drowse why shows it.

Exit codes:
  0    no fault is left
  1    faults are left
  5    a server uses the directory; the message names its process
  125  the check failed`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Fsck == nil {
				return errors.New("this build has no server")
			}
			o.StateDir, o.JSON = a.stateDirectory(), a.output == "json"
			return upkeepResult(a.Fsck(cmd.Context(), folded(a), o))
		},
	}
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "repair what can be repaired safely")
	return cmd
}

func (a *app) gcCommand() *cobra.Command {
	var o UpkeepOptions
	cmd := &cobra.Command{
		Use:   "gc [--dry-run] [flags]",
		Short: "remove orphans from the state directory of a stopped server",
		Long: `Remove what belongs to no sandbox from the state directory of a stopped server:
runtimes (processes, network, cgroups, mounts), layers, memory images, builds of
drowse that no memory image needs, and unfinished work. A server does the same
when it starts and while it runs, so use this where no server will start.

Each orphan is shown with the reason, its age and its size. Something that no
record mentions is kept for a minute after it last changed. Snapshots that a build
has left are shown, and removed by the next server.

Exit codes:
  0    done, or --dry-run
  1    something could not be removed
  5    a server uses the directory; the message names its process
  125  the orphans could not be determined`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.GC == nil {
				return errors.New("this build has no server")
			}
			o.StateDir, o.JSON = a.stateDirectory(), a.output == "json"
			return upkeepResult(a.GC(cmd.Context(), folded(a), o))
		},
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "remove nothing")
	return cmd
}

// upkeepResult gives the outcome of a command that works on a state directory
// its exit code.
func upkeepResult(ok bool, err error) error {
	switch {
	case errdef.Is(err, errdef.Conflict):
		return &exitError{code: exitConflict, err: err}
	case err != nil:
		return &exitError{code: exitCommand, err: err}
	case !ok:
		return &exitError{code: exitFailure}
	}
	return nil
}

func backupCommand(a *app) *cobra.Command {
	var o UpkeepOptions
	cmd := &cobra.Command{
		Use:   "backup DIR|- [--verify | --restore]",
		Short: "copy a state directory to another directory or into a stream, or back",
		Long: `Copy a server's state directory to DIR, which must not exist or be empty, or to the
standard output (-). The server may run meanwhile.

A backup has everything, as it is at one moment: the database, memory images, files,
snapshots, templates, keys and secrets; and volumes, each file as it is when it is read.
Protect it like the state directory. Holes in files stay holes. A backup that was cut
off is recognized, and refused.

Sandboxes that sleep wake from it as they are. A running sandbox is in it as after a
crash of the machine: with its last checkpoint, or not at all if it has none. The
command names these. To keep them, pause them first (drowse pause --all), or create
them with --checkpoint-every.

--restore copies a backup back to the path that it came from (--state-dir), which must
not exist or be empty, and compares every file with the checksums of the backup. Sandboxes then wake
as before; on another machine, as after drowse import. --verify only compares. Both read
the standard input for -.

Exit codes:
  0    done
  5    a directory is not empty, or another restore is under way
  125  it failed; the message says what was left`,
		Example: `  drowse backup /mnt/backups/monday
  drowse backup /mnt/backups/monday --verify
  drowse backup /mnt/backups/monday --restore --state-dir /var/lib/drowse
  drowse backup - | zstd | ssh store 'cat > drowse.zst'
  ssh store 'zstdcat drowse.zst' | drowse backup - --restore`,
		Args: exactArgs("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Verify && o.Restore {
				return usagef("--verify and --restore: want one of them")
			}
			if a.Backup == nil {
				return errors.New("this build has no server")
			}
			o.Backup, o.StateDir, o.JSON = args[0], a.stateDirectory(), a.output == "json"
			if o.Backup == "-" && !o.Verify && !o.Restore && isTerminal(a.Stdout) {
				return usagef("a backup is not for a terminal: send it to a file or a program")
			}
			err := a.Backup(cmd.Context(), folded(a), o)
			if cmd.Context().Err() != nil {
				return err
			}
			return upkeepResult(true, err)
		},
	}
	cmd.Flags().BoolVar(&o.Verify, "verify", false, "compare a backup with its checksums")
	cmd.Flags().BoolVar(&o.Restore, "restore", false, "copy a backup to the state directory")
	return cmd
}
