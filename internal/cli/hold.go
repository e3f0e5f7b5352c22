package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

const (
	// renewals is how often a hold is renewed in the time that it lasts, so
	// that one that fails does no harm.
	renewals = 3
	// maxReason is how much of a command is given as the reason.
	maxReason = 200
)

// holdFlags are those of hold.
type holdFlags struct {
	id, reason, release string
	length              time.Duration
	list                bool
}

func (a *app) holdCommand() *cobra.Command {
	var flags holdFlags
	cmd := &cobra.Command{
		Use:   "hold ID [flags] [-- COMMAND [ARG...]]",
		Short: "keep a sandbox from being idle, for a time or while a local command runs",
		Long: `Put a hold on a running sandbox, so that it does not count as idle, and print the
id of the hold. To extend a hold, use its id again.

With a command, run it on this machine and keep the hold until it ends. The exit
code is the command's, or 125 if the hold failed and the command did not run.

A hold stops the idle timeout only. The timeout and the max lifetime still end.`,
		Example: `  drowse hold i0abc --for 30m --reason 'nightly build'
  drowse hold i0abc --list
  drowse hold i0abc --release hold1x2y3z
  drowse hold i0abc -- ./evaluate.sh i0abc`,
		Args: minArgs("ID"),
	}
	f := cmd.Flags()
	spanVar(f, &flags.length, "for", 10*time.Minute, "length of the hold; with a command it is renewed until the command ends")
	f.StringVar(&flags.reason, "reason", "", "`text` that says what the hold is for (default: the command)")
	f.StringVar(&flags.id, "id", "", "`id` of the hold, to extend one or to choose a name")
	f.BoolVar(&flags.list, "list", false, "list the holds of the sandbox")
	f.StringVar(&flags.release, "release", "", "end the `hold` of this id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, command := args[0], args[1:]
		if len(command) > 0 && cmd.ArgsLenAtDash() != 1 {
			return hint(usagef("hold: too many arguments: %q", command), "put -- between the ID and the command to run")
		}
		if err := flags.check(command); err != nil {
			return err
		}
		if len(command) > 0 {
			return a.holdWhile(cmd.Context(), id, flags.options(command), command)
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			switch {
			case flags.list:
				return a.listHolds(ctx, c, id)
			case flags.release != "":
				return a.releaseHold(ctx, c, id, flags.release)
			}
			h, err := c.Hold(ctx, id, flags.options(nil))
			if err != nil {
				return missing(err)
			}
			return a.print(h, func(w io.Writer) { _, _ = fmt.Fprintln(w, h.ID) })
		})
	}
	return cmd
}

func (h holdFlags) check(command []string) error {
	switch only := h.list || h.release != ""; {
	case h.list && h.release != "":
		return usagef("hold: want one of --list and --release")
	case only && len(command) > 0:
		return usagef("hold: --list and --release run no command")
	case only:
		return nil
	case h.length <= 0:
		return usagef("--for %s: want more than 0", h.length)
	case h.reason == "" && len(command) == 0:
		return usagef("hold: missing --reason")
	}
	return nil
}

func (h holdFlags) options(command []string) client.HoldOptions {
	reason := cmp.Or(h.reason, strings.Join(command, " "))
	return client.HoldOptions{ID: h.id, Reason: strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""), For: h.length}
}

func (a *app) listHolds(ctx context.Context, c *client.Client, id string) error {
	list, err := c.Holds(ctx, id)
	if err != nil {
		return missing(err)
	}
	return a.print(list, func(w io.Writer) {
		now := time.Now()
		rows := [][]string{{"ID", "KIND", "WHAT", "SINCE", "PROGRESS", "COUNTS"}}
		for _, h := range list {
			rows = append(rows, append([]string{h.ID, string(h.Kind)}, holdCells(h, now)...))
		}
		table(w, rows)
	})
}

func (a *app) releaseHold(ctx context.Context, c *client.Client, id, hold string) error {
	if err := c.ReleaseHold(ctx, id, hold); err != nil {
		return missing(err)
	}
	return a.print(map[string]string{"id": hold, "sandbox": id}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "%s is released\n", hold)
	})
}

// holdWhile runs a command on this machine while a sandbox is held.
func (a *app) holdWhile(ctx context.Context, id string, o client.HoldOptions, args []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	if cmd.Err != nil {
		return commandFailed(fmt.Errorf("hold: %w", cmd.Err))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	if out, ok := a.Stdout.(stdout); ok {
		cmd.Stdout = out.Writer // the command writes to it itself
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = cleanupTimeout

	c, err := a.connect()
	if err != nil {
		return err
	}
	h, err := takeHold(ctx, c, id, o)
	if err != nil {
		return commandFailed(missing(a.explainKey(c.URL(), err)))
	}
	o.ID = h.ID
	stop := a.renew(ctx, c, id, o)
	err = cmd.Run()
	stop()
	a.letGo(ctx, c, id, h.ID)
	return endedLocally(ctx, err)
}

func takeHold(ctx context.Context, c *client.Client, id string, o client.HoldOptions) (client.Hold, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Hold(ctx, id, o)
}

// renew prolongs a hold until stop is called. Failing to is told once in a row,
// and tried again.
func (a *app) renew(ctx context.Context, c *client.Client, id string, o client.HoldOptions) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(max(o.For/renewals, time.Millisecond))
		defer tick.Stop()
		for failing := false; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, err := c.Hold(ctx, id, o)
			if err != nil && !failing && ctx.Err() == nil {
				a.complain(err.Error(), "the command runs on, and the sandbox may sleep meanwhile")
			}
			failing = err != nil
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// letGo releases a hold, also after ctx has ended. That it is gone is no
// failure.
func (a *app) letGo(ctx context.Context, c *client.Client, id, hold string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := c.ReleaseHold(ctx, id, hold)
	if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrNotRunning) {
		a.complain(err.Error(), "it ends by itself when its time has passed")
	}
}

// endedLocally turns the end of a local command into drowse's own.
func endedLocally(ctx context.Context, err error) error {
	exit, ran := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case ran && exit.ExitCode() < 0:
		return &exitError{code: 128 + int(exit.Sys().(syscall.WaitStatus).Signal())}
	case ran:
		return &exitError{code: exit.ExitCode()}
	case err != nil:
		return commandFailed(err)
	}
	return nil
}
