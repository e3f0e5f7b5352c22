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
		Short: "check a stopped server's state directory: database, checkpoints, files",
		Long: `Check the state directory of a server that does not run: the database, every
sandbox's record and template, all files of every checkpoint against their
checksums, and what is there that nobody owns. Each fault is shown with what it
means, for whom, and what is done about it. Without --repair nothing is changed.

--repair removes what nobody owns. Damaged checkpoints are kept as they are, as
evidence, and noted in their sandbox's record, where drowse why shows it.

Exit codes:
  0    no fault is left
  1    faults are left
  5    a server uses the directory; the message names its process
  125  the check could not be made`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Fsck == nil {
				return errors.New("this build has no server")
			}
			o.StateDir, o.JSON = a.stateDirectory(), a.output == "json"
			return upkeepResult(a.Fsck(cmd.Context(), a.Stdout, o))
		},
	}
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "put right what is safe to")
	return cmd
}

func (a *app) gcCommand() *cobra.Command {
	var o UpkeepOptions
	cmd := &cobra.Command{
		Use:   "gc [--dry-run] [flags]",
		Short: "remove from a stopped server's state directory what nobody owns",
		Long: `Remove what no sandbox owns from the state directory of a server that does not
run: runtimes (processes, network, cgroups, mounts), layers, memory images, and
what was half made or half removed. A server does the same when it starts, and
gives everything back as it goes, so this is for machines where none will start.

Each thing is shown with why nobody owns it, how old it is, and what it takes.
What no record knows at all is left for a minute after it last changed.

Exit codes:
  0    done, or --dry-run
  1    something could not be removed
  5    a server uses the directory; the message names its process
  125  what nobody owns could not be told`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.GC == nil {
				return errors.New("this build has no server")
			}
			o.StateDir, o.JSON = a.stateDirectory(), a.output == "json"
			return upkeepResult(a.GC(cmd.Context(), a.Stdout, o))
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
