package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/drowse-dev/drowse/client"
)

func (a *app) shellCommand() *cobra.Command {
	var user, cwd string
	cmd := &cobra.Command{
		Use:   "shell ID [flags]",
		Short: "open a shell in a sandbox; wakes it if auto-resume is on",
		Args:  exactArgs("ID"),
	}
	cmd.Flags().StringVar(&user, "user", "", "log in as this `user` (default: the template's)")
	cmd.Flags().StringVar(&cwd, "cwd", "", "start in this `directory` (default: the user's home)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !isTerminal(a.Stdin) {
			return hint(usagef("shell: stdin is not a terminal"), "without a terminal, use: drowse exec %s -- COMMAND", args[0])
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		sb, err := a.open(cmd.Context(), c, args[0])
		if err != nil {
			return commandFailed(err)
		}
		return a.shell(cmd.Context(), sb.As(user), cwd, a.Stdin.(*os.File))
	}
	return cmd
}

// shell runs a shell on the user's terminal, which is back as it was on return.
func (a *app) shell(ctx context.Context, sb *client.Sandbox, cwd string, tty *os.File) error {
	fd := int(tty.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return commandFailed(err)
	}
	defer func() { _ = term.Restore(fd, before) }()

	p, err := sb.Shell(ctx, client.Command{Dir: cwd, Stdin: tty, Stdout: a.Stdout, Terminal: sizeOf(fd)})
	if err != nil {
		return commandFailed(err)
	}
	stop := followSize(ctx, p, fd)
	defer stop()
	exit, err := p.Wait()
	if ctx.Err() != nil {
		hangUp(ctx, p)
	}
	return ended(a, sb, exit, err)
}

// hangUp ends a shell whose terminal has gone.
func hangUp(ctx context.Context, p *client.Process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = p.Kill(ctx)
}

// sizeOf returns the size of a terminal, nil if it does not tell.
func sizeOf(fd int) *client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil || cols <= 0 || rows <= 0 {
		return nil
	}
	return &client.Size{Cols: cols, Rows: rows}
}

// followSize passes on each new size of the terminal until stop is called.
func followSize(ctx context.Context, p *client.Process, fd int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan os.Signal, 1)
	notifyResized(changed)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-changed:
				if size := sizeOf(fd); size != nil {
					_ = p.Resize(ctx, *size) // the next change tries again
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		cancel()
		running.Wait()
	}
}
