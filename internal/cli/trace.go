package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

func traceCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "trace ID",
		Short: "show what the time of a sandbox's latest creates, wakes and pauses went into",
		Long: `Show the steps of the latest operations of a sandbox: creates, wakes, pauses and
snapshots since the server's start, at most 4. Each step has the time at which it
began, how long it took, and a bar for both. A step that is indented is part of the
one before it; steps may overlap. This does not wake the sandbox and does not count
as activity.`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := client.Traces(ctx, c, args[0])
				if err != nil {
					return missing(err)
				}
				raw := struct {
					Traces []json.RawMessage `json:"traces"`
				}{make([]json.RawMessage, len(all))}
				for i, t := range all {
					raw.Traces[i] = t.Raw
				}
				return a.print(raw, func(w io.Writer) { traces(w, all, time.Now()) })
			})
		},
	}
}

func traces(w io.Writer, all []client.Trace, now time.Time) {
	if len(all) == 0 {
		_, _ = fmt.Fprintln(w, "nothing since the server's start")
	}
	for i, t := range all {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		sofar := ""
		if !t.Done {
			sofar = " so far"
		}
		_, _ = fmt.Fprintf(w, "%s, because of %s, at %s: %s%s\n", cell(t.Phase), cell(t.Cause), clock(t.Begin, now), millis(t.Took), sofar)
		rows := make([][]string, 0, len(t.Steps))
		room := roomForBars(w, t)
		for _, s := range t.Steps {
			took := millis(s.Took)
			if !s.Done && t.Done {
				took = "not ended"
			}
			rows = append(rows, []string{"  " + strings.Repeat("  ", s.Depth) + s.Name, fmt.Sprintf("%11s", millis(s.At)), fmt.Sprintf("%11s", took), bar(t, s, room)})
		}
		table(w, rows)
	}
}

// millis is a time to a tenth of a millisecond, in one unit, so that what stands
// below each other compares.
func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// widestBar is how many characters the bar of a whole operation has at most.
const widestBar = 40

// roomForBars returns how many a terminal has room for, beside names and times.
func roomForBars(w io.Writer, t client.Trace) int {
	used := 0
	for _, s := range t.Steps {
		used = max(used, 2+2*s.Depth+utf8.RuneCountInString(cell(s.Name))+3*2+2*11)
	}
	if columns := columnsFor(w); columns > 0 {
		return max(min(widestBar, columns-used), 1)
	}
	return widestBar
}

// bar shows when in an operation a step was, in a width.
func bar(t client.Trace, s client.Step, width int) string {
	if t.Took <= 0 {
		return ""
	}
	of := time.Duration(width)
	from := min(int(of*s.At/t.Took), width-1)
	to := min(int((of*(s.At+s.Took)+t.Took-1)/t.Took), width)
	return strings.Repeat(" ", from) + strings.Repeat("█", max(to-from, 1))
}
