package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/drowse-dev/drowse/client"
)

// cleanupTimeout bounds what is done for a sandbox after the command's context
// has ended.
const cleanupTimeout = 15 * time.Second

// commandFlags are those of commands that run something inside.
type commandFlags struct {
	user        string
	cwd         string
	interactive bool
	tty         bool
}

func (c *commandFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.user, "user", "", "run as this `user` (default: the template's)")
	f.StringVar(&c.cwd, "cwd", "", "run in this `directory` (default: the user's home)")
	f.BoolVarP(&c.interactive, "interactive", "i", false, "pass on stdin even if it is a terminal")
	f.BoolVarP(&c.tty, "tty", "t", false, "run the command on a terminal; with -i, yours")
}

// command returns what to run, wired to drowse's own streams.
func (a *app) command(flags commandFlags, args []string) client.Command {
	cmd := client.Command{Args: args, Dir: flags.cwd, Stdout: a.Stdout, Stderr: a.Stderr}
	if flags.interactive || !isTerminal(a.Stdin) {
		cmd.Stdin = a.Stdin
	}
	return cmd
}

func isTerminal(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(int(f.Fd()))
}

// columnsOf returns how wide the terminal is that a stream is; 0 if it is none.
func columnsOf(stream any) int {
	f, ok := fileOf(stream)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// fileOf returns the file that a stream is, if it is one.
func fileOf(stream any) (*os.File, bool) {
	if out, marked := stream.(stdout); marked {
		stream = out.Writer
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// beforeDash is usage for flags that were meant for the command to run.
func beforeDash(_ *cobra.Command, err error) error {
	return hint(usagef("%w", err), "put -- before the command to run, so that its flags are not read as drowse's")
}

func (a *app) execCommand() *cobra.Command {
	var flags commandFlags
	var env pairs
	var detach bool
	cmd := &cobra.Command{
		Use:   "exec ID [flags] -- COMMAND [ARG...]",
		Short: "run a command in a sandbox; wakes it if auto-resume is on",
		Long: `Run a command in a sandbox and exit with its exit code. The command is not run by
a shell: for pipes and variables, use bash -c '...'. Stdin is passed on unless it
is a terminal. Ctrl-C kills the command.

With -it, the command runs on a terminal that is tied to yours, and Ctrl-C goes to
the command. With -t alone it has a terminal for its output, and no input.

With -d, start the command, print its process id and let it run. It has no input,
and its output is dropped unless the command sends it to a file. While it works,
the sandbox is not idle.`,
		Example: `  drowse exec i0abc -- ls -la
  drowse exec -it i0abc -- python3
  drowse exec -d i0abc -- python3 -m http.server 8000
  tar c src | drowse exec i0abc --cwd /tmp -- tar x`,
		Args: minArgs("ID", "COMMAND"),
	}
	cmd.SetFlagErrorFunc(beforeDash)
	flags.add(cmd.Flags())
	cmd.Flags().Var(&env, "env", "environment variable of the command, `name=value`; repeatable")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "start the command and let it run on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if n := cmd.ArgsLenAtDash(); n > 1 {
			return usagef("exec: want one ID before --, got %q", args[:n])
		}
		if detach && flags.interactive {
			return usagef("exec: either -d or -i: what runs on has no input")
		}
		if detach && flags.tty {
			return usagef("exec: either -d or -t: what runs on has no terminal")
		}
		if err := checkTerminal(a, flags); err != nil {
			return err
		}
		command := a.command(flags, args[1:])
		command.Env = env.m
		sb, err := a.open(cmd.Context(), args[0])
		if err != nil {
			return commandFailed(err)
		}
		if detach {
			return startIn(cmd.Context(), a, sb.As(flags.user), command)
		}
		return a.runIn(cmd.Context(), sb.As(flags.user), flags, command)
	}
	return cmd
}

// checkTerminal refuses -it where there is no terminal to tie the command to.
func checkTerminal(a *app, flags commandFlags) error {
	if flags.tty && flags.interactive && !isTerminal(a.Stdin) {
		return hint(usagef("-it: stdin is not a terminal"), "leave out -t")
	}
	return nil
}

// startIn starts a command that nobody waits for.
func startIn(ctx context.Context, a *app, sb *client.Sandbox, command client.Command) error {
	command.Stdin, command.Stdout, command.Stderr = nil, nil, nil
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p, err := sb.Start(ctx, command)
	if err != nil {
		return commandFailed(err)
	}
	p.Detach()
	started := struct {
		PID int `json:"pid"`
	}{p.PID()}
	return a.print(started, func(w io.Writer) { _, _ = fmt.Fprintln(w, p.PID()) })
}

func (a *app) runCommand() *cobra.Command {
	var box createFlags
	var flags commandFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "run a command in a new sandbox, then kill the sandbox",
		Long: `Create a sandbox, run a command in it, kill the sandbox, and exit with the
command's exit code. Ctrl-C kills both. The command also ends when the sandbox's
--timeout does.`,
		Example: `  drowse run -- bash -c 'echo hello from $(hostname)'
  drowse run --no-internet -- python3 - < script.py`,
		Args: minArgs("COMMAND"),
	}
	cmd.SetFlagErrorFunc(beforeDash)
	box.add(cmd.Flags())
	flags.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkTerminal(a, flags); err != nil {
			return err
		}
		o, err := box.options()
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		return a.runOnce(cmd.Context(), c, o, flags, a.command(flags, args))
	}
	return cmd
}

// runOnce runs a command in a sandbox of its own.
func (a *app) runOnce(ctx context.Context, c *client.Client, o client.CreateOptions, flags commandFlags, command client.Command) error {
	sb, err := createOwned(ctx, c, o)
	if err != nil {
		return commandFailed(a.explainKey(c.URL(), explainCreate(err)))
	}
	defer a.discard(ctx, c, sb.ID)
	return a.runIn(ctx, sb.As(flags.user), flags, command)
}

// createOwned makes a sandbox that the caller will kill. An interrupt does not
// cut it off, for then nobody would know the id of what the server still makes.
func createOwned(ctx context.Context, c *client.Client, o client.CreateOptions) (*client.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return c.Create(ctx, o)
}

// discard kills a sandbox that nobody else knows of, also after ctx has ended.
func (a *app) discard(ctx context.Context, c *client.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := c.Kill(ctx, id); err != nil && !errors.Is(err, client.ErrNotFound) {
		a.complain(err.Error(), "it is left to its timeout; try: drowse kill "+id)
	}
}

// runIn runs a command and ends with its code.
func (a *app) runIn(ctx context.Context, sb *client.Sandbox, flags commandFlags, command client.Command) error {
	if flags.tty {
		return runOnTerminal(ctx, a, sb, flags, command)
	}
	exit, err := sb.Run(ctx, command)
	return ended(a, sb, exit, err)
}

// ended turns the end of a command into drowse's own.
func ended(a *app, sb *client.Sandbox, exit client.Exit, err error) error {
	if errors.Is(err, client.ErrInterrupted) {
		// The error says why, if the server did. There is no telling here whether
		// the command runs on.
		err = hint(err, "drowse why %s shows what happened to the sandbox", sb.ID)
	}
	if err != nil {
		return commandFailed(err)
	}
	if exit.Reason != "" {
		a.complain(exit.Reason, "")
	}
	if code := exit.ShellCode(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// commandFailed marks an error after which a command's exit code is not known. That of
// a command line that cannot be understood is.
func commandFailed(err error) error {
	if _, ok := errors.AsType[*usageError](err); ok {
		return err
	}
	code := exitCommand
	if e, ok := errors.AsType[*client.Error](err); ok {
		switch e.Code {
		case client.CodeCommandNotExecutable:
			code = exitNotExec
		case client.CodeCommandNotFound:
			code = exitNoCommand
		}
	}
	return &exitError{code: code, err: err}
}

// open connects and returns a handle to a sandbox that runs or wakes for a request.
func (a *app) open(ctx context.Context, id string) (*client.Sandbox, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sb, info, err := c.Open(ctx, id)
	if err != nil {
		return nil, missing(a.explainKey(c.URL(), err))
	}
	if info.State == client.Paused && !info.Settings.AutoResume {
		return nil, hint(&exitError{code: exitConflict, err: fmt.Errorf("sandbox %s is paused, and requests do not wake it", id)},
			"wake it with: drowse resume %s", id)
	}
	return sb, nil
}
