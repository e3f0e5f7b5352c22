package gvisor

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
)

// Groups of commands, as gVisor's own tool shows them.
const (
	userGroup     = ""
	debugGroup    = "debug"
	internalGroup = "internal use only"
)

// runTool is gVisor's own tool, runsc. It registers the commands itself,
// because gVisor's package for that (runsc/cli/maincli) embeds a program of
// 47 MB for amd64, which copies checkpoints to a cloud. drowse does not use it.
func runTool() {
	cli.Run(nil, toolCommands(), []subcommands.Command{new(cmd.Platforms), new(cmd.Syscalls)})
}

// toolCommands returns what drowse starts (create, and the three internal
// ones), and what serves to look into a sandbox or to compare with.
func toolCommands() map[util.SubCommand]string {
	return map[util.SubCommand]string{
		new(cmd.Create):       userGroup,
		new(sentryCommand):    internalGroup,
		new(goferCommand):     internalGroup,
		new(sentrycmd.Umount): internalGroup,

		new(cmd.Checkpoint): userGroup,
		new(cmd.Delete):     userGroup,
		new(cmd.Events):     userGroup,
		new(cmd.Exec):       userGroup,
		new(cmd.Kill):       userGroup,
		new(cmd.List):       userGroup,
		new(cmd.PS):         userGroup,
		new(cmd.Pause):      userGroup,
		new(cmd.Restore):    userGroup,
		new(cmd.Resume):     userGroup,
		new(cmd.Run):        userGroup,
		new(cmd.Start):      userGroup,
		new(cmd.State):      userGroup,
		new(cmd.Wait):       userGroup,

		new(cmd.CPUFeatures): debugGroup,
		new(cmd.Debug):       debugGroup,
		new(cmd.Statefile):   debugGroup,
		new(cmd.Usage):       debugGroup,
	}
}

// sentryCommand is the sentry. At its end it writes into its log how the first process ended.
type sentryCommand struct{ sentrycmd.Boot }

// Execute implements subcommands.Command.
func (b *sentryCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	giveBack(args[0].(*config.Config))
	code := b.Boot.Execute(ctx, f, args...)
	if status, ok := args[1].(*unix.WaitStatus); ok && code == subcommands.ExitSuccess {
		fmt.Fprintln(os.Stderr, firstHow+howEnded(*status))
	}
	return code
}

// goferCommand is the file server.
type goferCommand struct{ cmd.Gofer }

// Execute implements subcommands.Command.
func (g *goferCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	giveBack(args[0].(*config.Config))
	return g.Gofer.Execute(ctx, f, args...)
}
