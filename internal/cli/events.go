package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/page"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow, wide bool
	var after, key string
	cmd := &cobra.Command{
		Use:   "events [ID] [-f] [--after N|now] [--wide]",
		Short: "print the event log, of one sandbox or of all, oldest first",
		Long: `Print the event log, one event per line: time, sandbox, event, change of state,
cause and actor, duration, and bytes written. On a terminal narrower than 120 columns,
changes of state are left out, unless --wide is given. With -o json each line is one
JSON object; --after takes its id.

With -f, new events follow as they happen, each once and in order, also across a
restart of the server. For a single sandbox the command ends when the sandbox is
terminated. --after now skips past events.

--key looks names up, which needs an admin key; a whole id does not.`,
		Example: `  drowse events i0abc
  drowse events -f --after now
  drowse events --key ci
  drowse events -f -o json | jq 'select(.type == "paused")'`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new events as they happen")
	cmd.Flags().StringVar(&after, "after", "", "print only events after this `id`; now for future events only")
	wideVar(cmd, &wide)
	cmd.Flags().StringVar(&key, "key", "", "only what the API key of this `name` or id has caused")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o client.EventOptions
		var err error
		if o.After, err = parseAfter(after); err != nil {
			return err
		}
		switch {
		case len(args) > 1:
			return usagef("events: too many arguments: %q", args[1:])
		case len(args) == 1:
			o.Sandbox = args[0]
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		actor := ""
		if key != "" {
			if err := a.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				key, err = listedKeyID(ctx, c, key)
				return err
			}); err != nil {
				return err
			}
			actor = "key:" + key
		}
		p := eventPrinter{app: a, actor: actor, ofOne: o.Sandbox != "", wide: wide}
		if follow {
			err = p.follow(cmd.Context(), c, o)
		} else {
			err = p.list(cmd.Context(), c, o)
		}
		return missing(a.explainKey(c.URL(), err))
	}
	return cmd
}

// parseAfter reads where in the event log to begin.
func parseAfter(text string) (int64, error) {
	switch text {
	case "":
		return 0, nil
	case "now":
		return client.FromNow, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, usagef("--after %s: want the id of an event, or now", text)
	}
	return n, nil
}

// eventPrinter prints events.
type eventPrinter struct {
	*app
	actor string // whose events are printed; "" for all
	ofOne bool   // they are of one sandbox
	wide  bool
}

// list prints page after page until there is no more.
func (p eventPrinter) list(ctx context.Context, c *client.Client, o client.EventOptions) error {
	for {
		events, err := c.Events(ctx, o)
		if err != nil {
			return err
		}
		if len(events.Events) == 0 {
			return nil
		}
		for _, e := range events.Events {
			if err := p.print(e); err != nil {
				return err
			}
		}
		o.After = events.Next
	}
}

func (p eventPrinter) follow(ctx context.Context, c *client.Client, o client.EventOptions) error {
	if o.Sandbox != "" {
		info, err := c.Find(ctx, o.Sandbox)
		if err != nil {
			return err
		}
		if info.Tombstone != nil {
			return p.list(ctx, c, o) // no more will come
		}
	}
	for e, err := range c.Follow(ctx, o) {
		if err != nil {
			return err
		}
		if err := p.print(e); err != nil {
			return err
		}
		if o.Sandbox != "" && e.Type == client.EventTerminated {
			break
		}
	}
	return nil
}

// print writes an event, unless it is of another actor than the one asked for.
func (p eventPrinter) print(e client.Event) error {
	if p.actor != "" && e.Actor != p.actor {
		return nil
	}
	var text string
	columns := columnsOf(p.Stdout)
	switch {
	case p.output == "json":
		var line bytes.Buffer
		if err := json.Compact(&line, e.Raw); err != nil {
			return err
		}
		text = line.String() + "\n"
	case isNarrow(columns) && !p.wide:
		what := strings.Join(slices.DeleteFunc([]string{causeOf(e), took(e)}, func(s string) bool { return s == "" }), "; ")
		cells := []string{clock(e.Time, time.Now()), cell(e.Sandbox), cell(e.Type), cell(what)}
		widths := []int{len(time.TimeOnly), len(e.Sandbox), len("snapshotted"), 0}
		if p.ofOne {
			cells, widths = slices.Delete(cells, 1, 2), slices.Delete(widths, 1, 2)
		}
		text = page.Row(cells, widths, columns)
	default:
		text = strings.TrimRight(fmt.Sprintf("%s  %-22s  %-15s  %-20s  %-30s  %s",
			e.Time.Local().Format(time.DateTime), cell(e.Sandbox), cell(e.Type), cell(move(e)), cell(causeOf(e)), took(e)), " ") + "\n"
	}
	_, err := io.WriteString(tame(p.app), text)
	return err
}
