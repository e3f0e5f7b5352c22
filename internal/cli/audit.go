package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

// auditPage is how many entries a server gives at once.
const auditPage = 1000

func auditCommand(a *app) *cobra.Command {
	var q client.AuditQuery
	var all bool
	cmd := &cobra.Command{
		Use:   "audit [flags]",
		Short: "print the audit log: who called the server's API for what",
		Long: `Print the audit log, oldest entry first: the calls of the server's API that do more
than look, and those that were refused, with the API key, the client's address and
the result. It needs an admin key.

With --all the whole log is printed; with -o json as well, each line is one JSON
object. What SDKs and browsers do inside a sandbox is not in it: see drowse logs.`,
		Example: `  drowse audit -n 20
  drowse audit --sandbox i0abc
  drowse audit --all -o json > audit.jsonl`,
		Args: exactArgs(),
	}
	f := cmd.Flags()
	f.IntVarP(&q.Most, "lines", "n", 100, "`number` of entries, the last ones, at most 1000")
	f.BoolVar(&all, "all", false, "print all entries, from the oldest")
	f.StringVar(&q.Key, "key", "", "only calls with the API key of this `name` or id")
	f.StringVar(&q.Sandbox, "sandbox", "", "only calls about the sandbox of this `id`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if q.Most < 1 || q.Most > auditPage {
			return usagef("--lines %d: want 1 to %d", q.Most, auditPage)
		}
		if all && f.Changed("lines") {
			return usagef("--lines and --all: give one of them")
		}
		if q.Key != "" {
			err := a.call(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
				q.Key, err = listedKeyID(ctx, c, q.Key)
				return err
			})
			if err != nil {
				return err
			}
		}
		if all {
			return auditAll(cmd.Context(), a, q)
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			entries, _, err := client.Audit(ctx, c, q)
			if err != nil {
				return err
			}
			return a.print(entries, func(w io.Writer) { tableOfAudit(w, entries) })
		})
	}
	return cmd
}

// auditAll prints page after page.
func auditAll(ctx context.Context, a *app, q client.AuditQuery) error {
	q.First, q.Most = true, auditPage
	for {
		var entries []client.AuditEntry
		err := a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
			entries, q.After, err = client.Audit(ctx, c, q)
			return err
		})
		if err != nil || len(entries) == 0 {
			return err
		}
		if a.output != "json" {
			if err := a.print(nil, func(w io.Writer) { tableOfAudit(w, entries) }); err != nil {
				return err
			}
			continue
		}
		for _, e := range entries {
			text, err := marshal(e)
			if err != nil {
				return err
			}
			if _, err := tame(a).Write(append(text, '\n')); err != nil {
				return err
			}
		}
	}
}

func tableOfAudit(w io.Writer, entries []client.AuditEntry) {
	rows := [][]string{}
	for _, e := range entries {
		who, status, sandbox := "-", "-", "-"
		if e.Key != nil {
			who = e.Key.Name + " (" + string(e.Key.Role) + ")"
		}
		if e.Status != 0 {
			status = strconv.Itoa(e.Status)
		}
		if e.Sandbox != "" {
			sandbox = e.Sandbox
		}
		what := e.Method + " " + e.Path
		if e.Unlogged > 0 {
			what += fmt.Sprintf("  (%d before it are not logged)", e.Unlogged)
		}
		rows = append(rows, []string{dated(w, e.At), who, e.Address, status, sandbox, what})
	}
	rows = append([][]string{{"AT", "KEY", "FROM", "STATUS", "SANDBOX", "CALL"}}, rows...)
	if narrow(w, false) { // the call names it
		rows = without(rows, "SANDBOX")
	}
	table(w, rows)
}
