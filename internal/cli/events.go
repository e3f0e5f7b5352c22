package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var after, key string
	cmd := &cobra.Command{
		Use:   "events [ID] [-f] [--after N|now]",
		Short: "print the event log, of one sandbox or of all, oldest first",
		Long: `Print the event log, one event per line: time, sandbox, event, change of state,
cause and actor, duration, and bytes written. With -o json each line is one JSON
object; --after takes its id.

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
		if follow {
			err = a.followEvents(cmd.Context(), c, o, actor)
		} else {
			err = a.listEvents(cmd.Context(), c, o, actor)
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

// listEvents prints page after page until there is no more, of one actor or of all.
func (a *app) listEvents(ctx context.Context, c *client.Client, o client.EventOptions, actor string) error {
	for {
		page, err := c.Events(ctx, o)
		if err != nil {
			return err
		}
		if len(page.Events) == 0 {
			return nil
		}
		for _, e := range page.Events {
			if err := a.printEvent(e, actor); err != nil {
				return err
			}
		}
		o.After = page.Next
	}
}

func (a *app) followEvents(ctx context.Context, c *client.Client, o client.EventOptions, actor string) error {
	if o.Sandbox != "" {
		info, err := c.Find(ctx, o.Sandbox)
		if err != nil {
			return err
		}
		if info.Tombstone != nil {
			return a.listEvents(ctx, c, o, actor) // no more will come
		}
	}
	for e, err := range c.Follow(ctx, o) {
		if err != nil {
			return err
		}
		if err := a.printEvent(e, actor); err != nil {
			return err
		}
		if o.Sandbox != "" && e.Type == client.EventTerminated {
			break
		}
	}
	return nil
}

// printEvent writes one line, unless the event is of another actor than the one asked
// for.
func (a *app) printEvent(e client.Event, actor string) error {
	if actor != "" && e.Actor != actor {
		return nil
	}
	var line bytes.Buffer
	if a.output == "json" {
		if err := json.Compact(&line, e.Raw); err != nil {
			return err
		}
	} else {
		text := fmt.Sprintf("%s  %-22s  %-15s  %-20s  %-30s  %s",
			e.Time.Local().Format(time.DateTime), cell(e.Sandbox), cell(e.Type), cell(move(e)), cell(causeOf(e)), took(e))
		line.WriteString(strings.TrimRight(text, " "))
	}
	line.WriteByte('\n')
	_, err := tame(a).Write(line.Bytes())
	return err
}
