package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

func statsCommand(a *app) *cobra.Command {
	var watch, wide bool
	cmd := &cobra.Command{
		Use:   "stats [ID...] [--watch] [--wide]",
		Short: "show what sandboxes use: CPU, memory and disk",
		Long: `Show what sandboxes use, newest sandbox first: CPU of what each may use, memory with
what its runtime takes for itself, and disk. The server measures every 5 seconds.
For a paused sandbox, which uses neither CPU nor memory, DISK is what was measured
before its pause. No sandbox is woken or kept awake. A terminal narrower than 120
columns gets no limits and no time of the measurement, unless --wide is given.

With --watch, show it anew every 2 seconds until Ctrl-C, like drowse ls --watch.`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until Ctrl-C")
	wideVar(cmd, &wide)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show := func(ctx context.Context, c *client.Client) error {
			list, err := client.UsageOf(ctx, c, args...)
			if err != nil {
				return err
			}
			for _, id := range args {
				if !slices.ContainsFunc(list, func(u client.Usage) bool { return u.Sandbox == id }) {
					if _, err := c.Get(ctx, id); err != nil { // which says why
						return missing(err)
					}
				}
			}
			if watch && isTerminal(a.Stdout) {
				_, _ = io.WriteString(a.Stdout, clearScreen)
			}
			return a.print(list, func(w io.Writer) { tableOfUsage(w, list, time.Now(), wide) })
		}
		if watch {
			return again(cmd.Context(), func() error { return a.call(cmd.Context(), show) })
		}
		return a.call(cmd.Context(), show)
	}
	return cmd
}

func tableOfUsage(w io.Writer, list []client.Usage, now time.Time, wide bool) {
	few := narrow(w, wide)
	rows := [][]string{{"ID", "NAME", "STATE", "CPU", "MEMORY", "DISK", "MEASURED"}}
	of := func(used, limit int64) string {
		if few {
			return human.Bytes(used)
		}
		return human.Bytes(used) + " of " + human.Bytes(limit)
	}
	for _, u := range list {
		row := []string{u.Sandbox, cmp.Or(u.Name, "-"), string(u.State), "-", "-", "-", "not yet"}
		if s := u.Last; s != nil {
			row[5] = of(s.DiskBytes, s.DiskLimitBytes)
			row[6] = span(now.Sub(s.At)) + " ago"
			if u.State == client.Running {
				row[3] = fmt.Sprintf("%.0f%% of %v", s.CPUPercent, u.CPUs)
				row[4] = of(s.MemoryBytes, s.MemoryLimitBytes)
			}
		}
		rows = append(rows, row)
	}
	if few {
		rows = without(rows, "MEASURED")
	}
	table(w, rows)
}
