package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

func (a *app) shellCommand() *cobra.Command {
	var user, cwd string
	var detachable bool
	cmd := &cobra.Command{
		Use:   "shell ID [flags] [-- COMMAND [ARG...]]",
		Short: "open a shell in a sandbox; wakes it if auto-resume is on",
		Long: `Open a shell in a sandbox, and wake the sandbox if auto-resume is on. With a
command, run that on the terminal instead of a shell.

When drowse ends, or has not been heard of for 40 seconds, the shell and what runs
in its foreground are hung up, as over SSH. A shell whose sandbox is put to sleep
sleeps with it: drowse attach takes it up again.

With --detachable the shell stays whatever happens to drowse. Ctrl-\ leaves it, and
drowse attach comes back, also after the sandbox has slept. While nobody is attached,
what the shell prints is dropped, and it keeps the sandbox awake only as long as
something in it works: a prompt that waits does not, nor does top.`,
		Example: `  drowse shell i0abc
  drowse shell i0abc -- htop`,
		Args: minArgs("ID"),
	}
	cmd.SetFlagErrorFunc(beforeDash)
	cmd.Flags().StringVar(&user, "user", "", "log in as this `user` (default: the template's)")
	cmd.Flags().StringVar(&cwd, "cwd", "", "start in this `directory` (default: the user's home)")
	cmd.Flags().BoolVar(&detachable, "detachable", false, "keep the shell when drowse goes; Ctrl-\\ leaves it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
			return hint(usagef("shell: too many arguments: %q", args[1:]), "put -- between the ID and the command to run")
		}
		if err := a.needTerminal(cmd, args[0]); err != nil {
			return err
		}
		sb, err := a.open(cmd.Context(), args[0])
		if err != nil {
			return commandFailed(err)
		}
		t := terminal{app: a, sandbox: sb.As(user), tty: a.Stdin.(*os.File), stays: detachable}
		return t.shell(cmd.Context(), client.Command{Args: args[1:], Dir: cwd})
	}
	return cmd
}

func attachCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach ID [PID] [flags]",
		Short: "come back to a terminal in a sandbox; wakes it if auto-resume is on",
		Long: `Take up a terminal that runs in a sandbox: of drowse shell --detachable, of a shell
whose sandbox was put to sleep, or one that an SDK has made. PID is its process id;
where there are several terminals it is required, and they are listed without it.

Ctrl-\ leaves the terminal as it is. To end it, end its shell, or from outside:
drowse exec ID -- kill -HUP PID`,
		Example: `  drowse attach i0abc
  drowse attach i0abc 17`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactArgs("ID")(cmd, args)
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.needTerminal(cmd, args[0]); err != nil {
			return err
		}
		pid := 0
		if len(args) > 1 {
			var err error
			if pid, err = strconv.Atoi(args[1]); err != nil || pid <= 0 {
				return usagef("attach: %q is no process id", args[1])
			}
		}
		sb, err := a.open(cmd.Context(), args[0])
		if err != nil {
			return commandFailed(err)
		}
		if pid, err = pickTerminal(cmd.Context(), sb, pid); err != nil {
			return commandFailed(err)
		}
		return terminal{app: a, sandbox: sb, tty: a.Stdin.(*os.File), stays: true}.attach(cmd.Context(), pid)
	}
	return cmd
}

// needTerminal refuses a command whose stdin is no terminal.
func (a *app) needTerminal(cmd *cobra.Command, id string) error {
	if isTerminal(a.Stdin) {
		return nil
	}
	return hint(usagef("%s: stdin is not a terminal", cmd.Name()), "without a terminal, use: drowse exec %s -- COMMAND", id)
}

// pickTerminal returns the terminal that is meant: the only one, where 0 is.
func pickTerminal(ctx context.Context, sb *client.Sandbox, pid int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := sb.Terminals(ctx)
	if err != nil {
		return 0, err
	}
	lines := make([]string, len(all))
	for i, t := range all {
		if t.PID == pid || pid == 0 && len(all) == 1 {
			return t.PID, nil
		}
		lines[i] = fmt.Sprintf("%d  %s", t.PID, human.Line(t.Command, maxTerminalLine))
	}
	switch {
	case pid > 0:
		err = fmt.Errorf("sandbox %s has no terminal %d", sb.ID, pid)
	case len(all) == 0:
		err = fmt.Errorf("sandbox %s has no terminal", sb.ID)
	default:
		err = fmt.Errorf("sandbox %s has %d terminals", sb.ID, len(all))
	}
	if len(all) == 0 {
		return 0, hint(err, "open one with: drowse shell --detachable %s", sb.ID)
	}
	return 0, hint(err, "choose one by its process id:\n    %s", strings.Join(lines, "\n    "))
}

// maxTerminalLine is how much is shown of the command of a terminal.
const maxTerminalLine = 60

// terminal ties the user's terminal to one in a sandbox.
type terminal struct {
	*app
	sandbox *client.Sandbox
	tty     *os.File
	stays   bool // when drowse goes
}

// runOnTerminal runs a command on a terminal: the user's, if it has input.
func runOnTerminal(ctx context.Context, a *app, sb *client.Sandbox, flags commandFlags, command client.Command) error {
	if flags.interactive {
		return terminal{app: a, sandbox: sb, tty: a.Stdin.(*os.File)}.shell(ctx, command)
	}
	command.Stdin, command.HangUp = nil, true
	if out, ok := fileOf(a.Stdout); ok {
		command.Terminal = sizeOf(int(out.Fd()))
	}
	p, err := sb.Shell(ctx, command)
	if err != nil {
		return commandFailed(err)
	}
	exit, err := p.Wait()
	return ended(a, sb, exit, err)
}

// shell leaves the user's terminal to a command, or else to a shell.
func (t terminal) shell(ctx context.Context, what client.Command) error {
	return t.run(ctx, func(ctx context.Context, cmd client.Command) (*client.Process, error) {
		cmd.Args, cmd.Env, cmd.Dir, cmd.HangUp = what.Args, what.Env, what.Dir, !t.stays
		p, err := t.sandbox.Shell(ctx, cmd)
		if err == nil && t.stays {
			fmt.Fprintf(t.Stderr, "drowse: Ctrl-\\ leaves this shell, and comes back: drowse attach %s %d\r\n", t.sandbox.ID, p.PID())
		}
		return p, err
	})
}

func (t terminal) attach(ctx context.Context, pid int) error {
	return t.run(ctx, func(ctx context.Context, cmd client.Command) (*client.Process, error) {
		p, err := t.sandbox.Attach(ctx, pid, cmd)
		if size := cmd.Terminal; err == nil {
			// Programs draw anew when the size changes, also if it is the one that it was.
			_ = p.Resize(ctx, client.Size{Cols: size.Cols, Rows: size.Rows + 1})
			_ = p.Resize(ctx, *size)
		}
		return p, err
	})
}

// errLeft says that the user has left a terminal that stays.
var errLeft = errors.New("left")

// run passes on what the user types and what the command prints, until either ends.
// The user's terminal is back as it was on return.
func (t terminal) run(ctx context.Context, open func(context.Context, client.Command) (*client.Process, error)) error {
	fd := int(t.tty.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return commandFailed(err)
	}
	defer func() { _ = term.Restore(fd, before) }()

	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil) // hangs up what does not stay
	cmd := client.Command{Stdin: t.tty, Stdout: t.Stdout, Terminal: sizeOf(fd)}
	if t.stays {
		cmd.Stdin = &leaving{Reader: t.tty, leave: func() { leave(errLeft) }}
	}
	if cmd.Terminal == nil {
		cmd.Terminal = &client.Size{Cols: 80, Rows: 24}
	}
	p, err := open(ctx, cmd)
	if err != nil {
		return commandFailed(err)
	}
	stop := followSize(ctx, p, fd)
	defer stop()
	exit, err := p.Wait()
	if errors.Is(context.Cause(ctx), errLeft) {
		fmt.Fprintf(t.Stderr, "\r\ndrowse: left the terminal; come back with: drowse attach %s %d\r\n", t.sandbox.ID, p.PID())
		return nil
	}
	if errors.Is(err, client.ErrInterrupted) {
		return commandFailed(hint(err, "drowse attach %s %d wakes the sandbox and goes on, unless that has ended; drowse why %[1]s shows what happened", t.sandbox.ID, p.PID()))
	}
	return ended(t.app, t.sandbox, exit, err)
}

// leaveKey is Ctrl-\, as of dtach and abduco.
const leaveKey = 0x1c

// leaving is what the user types, up to the key by which a terminal is left.
type leaving struct {
	io.Reader
	leave func() // called at the first Read after that
	left  bool
}

// Read implements io.Reader.
func (l *leaving) Read(b []byte) (int, error) {
	if l.left {
		l.leave()
		return 0, io.EOF
	}
	n, err := l.Reader.Read(b)
	if i := bytes.IndexByte(b[:n], leaveKey); i >= 0 {
		l.left = true
		return i, nil
	}
	return n, err
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
