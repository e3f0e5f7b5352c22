package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

type webhookCommands struct{ *app }

func (a webhookCommands) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhooks ls|add|rm|enable|disable|deliveries|retry",
		Short: "have the server deliver events of sandboxes to a URL",
		Long: `Have the server deliver events of sandboxes to a URL, each at least once and in
order, signed with a secret. This needs an admin key. A receiver that fails is tried
again after 10 seconds and then ever less often, for 7 days; later events wait.`,
		SuggestionsMinimumDistance: 2,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, sub := range []*cobra.Command{a.lsCommand(), a.addCommand(), a.rmCommand(), a.switchCommand("enable", true), a.switchCommand("disable", false), a.deliveriesCommand(), a.retryCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

// on makes a short call.
func (a webhookCommands) on(ctx context.Context, f func(context.Context, client.Webhooks) error) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error { return f(ctx, client.NewWebhooks(c)) })
}

// watchedHook is a webhook and how it does.
type watchedHook struct {
	client.Webhook
	Stats client.WebhookStats `json:"stats"`
}

func (a webhookCommands) lsCommand() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "list webhooks, oldest first, and how they do",
		Args:  exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
				all, err := hooks.List(ctx)
				if err != nil {
					return err
				}
				list := []watchedHook{}
				for _, w := range all {
					stats, err := hooks.Stats(ctx, w.ID)
					if err != nil {
						return err
					}
					list = append(list, watchedHook{w, stats})
				}
				return a.print(list, func(w io.Writer) { tableOfHooks(w, list, time.Now(), wide) })
			})
		},
	}
	wideVar(cmd, &wide)
	return cmd
}

func tableOfHooks(w io.Writer, list []watchedHook, now time.Time, wide bool) {
	rows := [][]string{{"ID", "NAME", "STATUS", "DELIVERED", "GIVEN UP", "LAST", "URL"}}
	for _, h := range list {
		status := "behind"
		switch {
		case !h.Enabled:
			status = "disabled"
		case h.Stats.Failures > 0:
			status = fmt.Sprintf("failing (%d): %s", h.Stats.Failures, h.Stats.LastError)
		case h.Stats.CaughtUp:
			status = "ok"
		}
		last := "never"
		if !h.Stats.LastDeliveredAt.IsZero() {
			last = span(now.Sub(h.Stats.LastDeliveredAt)) + " ago"
		}
		rows = append(rows, []string{h.ID, h.Name, status, strconv.FormatInt(h.Stats.Delivered, 10), strconv.FormatInt(h.Stats.Dropped, 10), last, h.URL})
	}
	if narrow(w, wide) {
		rows = without(rows, "DELIVERED", "GIVEN UP")
	}
	table(w, rows)
}

// eventPrefix begins the names of the events that webhooks are sent.
const eventPrefix = "sandbox.lifecycle."

// hookEvents are these names without the prefix.
var hookEvents = []string{"created", "paused", "resumed", "updated", "checkpointed", "forked", "restored", "killed"}

func (a webhookCommands) addCommand() *cobra.Command {
	var name string
	var events []string
	var secretIn bool
	cmd := &cobra.Command{
		Use:   "add URL [flags]",
		Short: "deliver events to a URL from now on, and print the secret, once",
		Long: `Deliver events to a URL from now on. The secret that deliveries are signed with is
made here and printed to stdout, once; with --secret-stdin it is read from stdin.`,
		Example: `  drowse webhooks add https://example.com/hook --event paused --event killed`,
		Args:    exactArgs("URL"),
	}
	cmd.Flags().StringVar(&name, "name", "", "what to call it (default: the URL's host)")
	cmd.Flags().StringSliceVar(&events, "event", nil, "only this `event`: "+strings.Join(hookEvents, ", ")+"; repeatable (default: all)")
	cmd.Flags().BoolVar(&secretIn, "secret-stdin", false, "read the secret from stdin")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := client.WebhookOptions{URL: args[0], Name: cmp.Or(name, hostOf(args[0])), Secret: rand.Text()}
		if events == nil {
			events = hookEvents
		}
		for _, e := range events {
			if !slices.Contains(hookEvents, e) {
				return usagef("--event %s: want one of %s", e, strings.Join(hookEvents, ", "))
			}
			o.Events = append(o.Events, eventPrefix+e)
		}
		if secretIn {
			secret, err := secretCommands(a).readValue()
			if err != nil {
				return err
			}
			o.Secret = secret
		}
		return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
			w, err := hooks.Create(ctx, o)
			if err != nil {
				return err
			}
			made := struct {
				client.Webhook
				Secret string `json:"secret,omitempty"`
			}{Webhook: w}
			if !secretIn {
				made.Secret = o.Secret
			}
			err = a.print(made, func(out io.Writer) {
				_, _ = fmt.Fprintln(out, cmp.Or(made.Secret, w.ID))
			})
			if err == nil && !secretIn {
				_, _ = fmt.Fprintf(a.Stderr, "webhook %s signs with this secret: it is shown only now\n", cell(w.ID))
			}
			return err
		})
	}
	return cmd
}

// hostOf returns the host of a URL, or "webhook": the rest of it may have secrets.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "webhook"
	}
	return u.Host
}

func (a webhookCommands) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID",
		Short: "remove a webhook; what waits for it is not delivered",
		Args:  exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
				if err := hooks.Remove(ctx, args[0]); err != nil {
					return err
				}
				return a.print(map[string]string{"id": args[0]}, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s is removed\n", args[0]) })
			})
		},
	}
}

func (a webhookCommands) switchCommand(verb string, on bool) *cobra.Command {
	short := "deliver to a webhook again; what happened while it was disabled is not delivered"
	if !on {
		short = "deliver nothing to a webhook until it is enabled"
	}
	return &cobra.Command{
		Use: verb + " ID", Short: short, Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
				w, err := hooks.Enable(ctx, args[0], on)
				if err != nil {
					return err
				}
				return a.print(w, func(out io.Writer) { _, _ = fmt.Fprintf(out, "%s is %sd\n", cell(w.ID), verb) })
			})
		},
	}
}

func (a webhookCommands) deliveriesCommand() *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "deliveries ID [-n NUMBER]",
		Short: "list the last deliveries of a webhook, newest first, since the server's start",
		Args:  exactArgs("ID"),
	}
	cmd.Flags().IntVarP(&lines, "lines", "n", 0, "`number` of deliveries (default: all that are kept, 100 at most)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if lines < 0 || lines > 100 {
			return usagef("--lines %d: want 1 to 100", lines)
		}
		return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
			list, err := hooks.Deliveries(ctx, args[0], lines)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				rows := [][]string{{"TIME", "EVENT", "TYPE", "TRY", "RESULT", "TOOK"}}
				for _, d := range list {
					result := cmp.Or(d.Error, "status "+strconv.Itoa(d.StatusCode))
					rows = append(rows, []string{dated(w, d.At), d.EventID, strings.TrimPrefix(d.EventType, eventPrefix), strconv.Itoa(d.Attempt), result, fmt.Sprintf("%dms", d.DurationMs)})
				}
				table(w, rows)
			})
		})
	}
	return cmd
}

func (a webhookCommands) retryCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "retry ID [--from EVENT]",
		Short: "try a failing webhook again at once, or deliver again from an event on",
		Long: `Try a webhook that waits after a failure again at once. With --from, deliver all
events again from one on; drowse webhooks deliveries shows their ids. Events that the
event log does not keep any more cannot be delivered again.`,
		Args: exactArgs("ID"),
	}
	cmd.Flags().StringVar(&from, "from", "", "deliver again from this `event` on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.on(cmd.Context(), func(ctx context.Context, hooks client.Webhooks) error {
			w, err := hooks.Retry(ctx, args[0], from)
			if err != nil {
				return err
			}
			return a.print(w, func(out io.Writer) {
				if !w.Enabled {
					_, _ = fmt.Fprintf(out, "%s is disabled: drowse webhooks enable %s\n", cell(w.ID), cell(w.ID))
					return
				}
				_, _ = fmt.Fprintf(out, "%s is tried now\n", cell(w.ID))
			})
		})
	}
	return cmd
}
