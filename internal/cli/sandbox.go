package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// allStates are those that ls knows.
var allStates = []client.State{client.Pending, client.Running, client.Paused, client.Terminated}

func (a *app) lsCommand() *cobra.Command {
	var states []string
	var metadata pairs
	var template, name string
	var all, quiet, watch, wide bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "list sandboxes, newest first, with their state and what happens next",
		Long: `List sandboxes, newest first, with their state and what happens next.

ENDS says whether a sandbox is killed or falls asleep, and when; busy, that its work
must end first; - that nothing is due. WAKES ON says what wakes one that sleeps.
--wide adds whether it sleeps light (its runtime stands by, and a wake takes
milliseconds) or deep (it takes no memory), the template, the clock that is due, and
what each was last active with.

With --watch, list them anew every 2 seconds until Ctrl-C: on a terminal in place,
else one list after the other, with -o json one value each.`,
		Args: exactArgs(),
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only sandboxes in this `state`: pending, running, paused or terminated; repeatable")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include terminated sandboxes, with the reason")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids, one per line")
	wideVar(cmd, &wide)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "list them again and again, until Ctrl-C")
	cmd.Flags().Var(&metadata, "metadata", "only sandboxes with this label, `key=value`; repeatable")
	cmd.Flags().StringVar(&name, "name", "", "only the sandbox of your API key with this `name`")
	cmd.Flags().StringVar(&template, "template", "", "only sandboxes made from this template `id` or alias")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o := client.ListOptions{Metadata: metadata.m, Template: template, Name: name}
		for _, text := range states {
			s := client.State(text)
			if !slices.Contains(allStates, s) {
				return usagef("--state %s: want pending, running, paused or terminated", s)
			}
			o.States = append(o.States, s)
		}
		if all && states == nil {
			o.States = allStates
		}
		show := func(ctx context.Context, c *client.Client) error {
			list, err := c.List(ctx, o)
			if err != nil {
				return err
			}
			if watch && isTerminal(a.Stdout) {
				_, _ = io.WriteString(a.Stdout, clearScreen)
			}
			if quiet {
				return a.print(idsOf(list), func(w io.Writer) {
					for _, id := range idsOf(list) {
						_, _ = fmt.Fprintln(w, id)
					}
				})
			}
			return a.print(list, func(w io.Writer) { tableOf(w, list, time.Now(), wide) })
		}
		if watch {
			return again(cmd.Context(), func() error { return a.call(cmd.Context(), show) })
		}
		return a.call(cmd.Context(), show)
	}
	return cmd
}

const (
	// clearScreen begins a terminal's screen anew.
	clearScreen = "\x1b[H\x1b[J"
	// watchEvery is how often a list that is watched is made anew.
	watchEvery = 2 * time.Second
)

// again shows something now and every watchEvery, until that fails or ctx ends.
func again(ctx context.Context, show func() error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if err := show(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func tableOf(w io.Writer, list []client.Info, now time.Time, wide bool) {
	narrow(w, wide)
	named := slices.ContainsFunc(list, func(i client.Info) bool { return i.Name != "" })
	many := slices.ContainsFunc(list, func(i client.Info) bool { return i.Server != "" })
	row := func(name, server string, cells []string) []string {
		switch {
		case !wide:
			cells = cells[:narrowList]
		case many:
			cells = append(slices.Clone(cells), server)
		}
		if !named {
			return cells
		}
		return slices.Insert(slices.Clone(cells), 1, name)
	}
	rows := [][]string{row("NAME", "SERVER", listColumns)}
	for _, i := range list {
		rows = append(rows, row(cmp.Or(i.Name, "-"), cmp.Or(i.Server, "-"), listCells(i, now)))
	}
	table(w, rows)
}

// The first columns are narrow enough for 80 characters, with a name of 12.
var listColumns = []string{"ID", "STATE", "AGE", "ENDS", "WAKES ON", "SLEEP", "TEMPLATE", "ACTIVE", "NEXT"}

const narrowList = 5

// listCells are what a list says of a sandbox.
func listCells(i client.Info, now time.Time) []string {
	wakes := "-"
	if i.State == client.Paused {
		wakes = cmp.Or(i.Next.WaitsFor, "resume")
	}
	return []string{i.ID, stateOf(i.State, i.Phase), age(now.Sub(i.CreatedAt)), ends(i, now), wakes, cmp.Or(string(i.Sleep), "-"), templateName(i), active(i, now), next(i, now)}
}

// active tells when a sandbox was last active. While work keeps it awake, that is
// now, with the kind of work and the streams that are open.
func active(i client.Info, now time.Time) string {
	var work []string
	kind, _, _ := strings.Cut(i.AwakeBecause, ":") // drowse why has the rest
	if kind != "" && (kind != "stream" || i.OpenStreams == 0) {
		work = append(work, kind)
	}
	switch i.OpenStreams {
	case 0:
	case 1:
		work = append(work, "1 stream")
	default:
		work = append(work, fmt.Sprintf("%d streams", i.OpenStreams))
	}
	ago := span(now.Sub(i.LastActiveAt)) + " ago"
	switch {
	case i.State == client.Terminated:
		return "-"
	case kind != "":
		ago = "now"
	case i.LastActiveAt.IsZero():
		return "-"
	}
	if len(work) == 0 {
		return ago
	}
	return ago + " (" + strings.Join(work, ", ") + ")"
}

// stateOf names the state by one word: that of the operation in flight, if there is one.
func stateOf(s client.State, p client.Phase) string {
	return cmp.Or(string(p), string(s))
}

// clockNames are what the clocks are called where there is little room.
var clockNames = map[client.ClockName]string{
	client.ClockTimeout: "timeout", client.ClockIdle: "idle", client.ClockLifetime: "lifetime", client.ClockRetention: "retention",
}

// due tells which clock runs out first and when; "" if none does.
func due(n client.Next, now time.Time) string {
	name, known := clockNames[n.Clock]
	if !known {
		return ""
	}
	return fmt.Sprintf("%s in %s (%s)", fate(client.Action(n.Action)), span(n.At.Sub(now)), name)
}

// fate is what an action makes of a sandbox.
func fate(a client.Action) string {
	if a == client.Pause {
		return "asleep"
	}
	return "killed"
}

// phases say what an operation in flight leads to.
var phases = map[client.Phase]string{"creating": "starts", "snapshotting": "runs on", "pausing": "pauses", "resuming": "wakes", "killing": "ends"}

// next tells what a sandbox waits for, and when that is.
func next(i client.Info, now time.Time) string {
	due := due(i.Next, now)
	switch {
	case i.Tombstone != nil:
		return fmt.Sprintf("%s %s ago", i.Tombstone.Reason, span(now.Sub(i.Tombstone.At)))
	case i.Phase != "":
		return phases[i.Phase]
	case i.State == client.Paused && due != "":
		return sleeper(i) + ", " + due
	case i.State == client.Paused:
		return sleeper(i)
	case due != "":
		return due
	case i.Next.WaitsFor == "telemetry":
		return "runs; its work is not known"
	case i.Next.WaitsFor != "":
		return fmt.Sprintf("busy (%s)", i.Next.WaitsFor)
	}
	return "runs until paused or killed"
}

// ends tells in few words how a sandbox ends or falls asleep, and when.
func ends(i client.Info, now time.Time) string {
	_, known := clockNames[i.Next.Clock]
	switch {
	case i.Tombstone != nil:
		return next(i, now)
	case i.Phase != "":
		return "-"
	case known:
		return fmt.Sprintf("%s in %s", fate(client.Action(i.Next.Action)), span(i.Next.At.Sub(now)))
	case i.State != client.Paused && i.Next.WaitsFor != "":
		return fmt.Sprintf("busy (%s)", i.Next.WaitsFor)
	}
	return "-"
}

// sleeper tells what wakes a sandbox that sleeps.
func sleeper(i client.Info) string {
	switch i.Next.WaitsFor {
	case "traffic":
		return "wakes on traffic"
	case "repair":
		return "cannot wake until its checkpoint is repaired"
	}
	return "wakes on resume"
}

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "show one sandbox without waking it",
		Long: `Show one sandbox, without waking it or moving a deadline. A terminated sandbox is
shown for 30 days with the reason, and the exit code is 0. Exit code 3 means that
there is no such sandbox, or not any more.`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				info, err := c.Find(ctx, args[0])
				if err != nil {
					return missing(err)
				}
				return a.printInfo(info)
			})
		},
	}
}

func (a *app) printInfo(i client.Info) error {
	return a.print(i, func(w io.Writer) { describe(w, i, time.Now()) })
}

func describe(w io.Writer, i client.Info, now time.Time) {
	set := i.Settings
	var rows [][]string
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	row("id", i.ID)
	row("name", i.Name)
	row("state", stateOf(i.State, i.Phase))
	if t := i.Tombstone; t != nil {
		row("ended", moment(t.At, now))
		row("reason", string(t.Reason))
		row("detail", t.Detail)
		row("ended by", by(t.Actor))
		row("what to do", t.Remediation)
	} else {
		row("next", next(i, now))
	}
	row("generation", strconv.FormatInt(i.Generation, 10))
	row("template", templateName(i))
	row("created", moment(i.CreatedAt, now))
	row("started", moment(i.StartedAt, now))
	if i.State == client.Paused {
		row("asleep since", moment(i.PausedAt, now))
		row("sleep", string(i.Sleep))
	}
	if i.State == client.Running {
		row("timeout ends", moment(i.EndAt, now))
	}
	row("timeout", limit(i.Timeout))
	row("on timeout", string(set.OnTimeout))
	row("idle timeout", limit(set.IdleTimeout))
	row("on idle", string(set.OnIdle))
	row("max lifetime", limit(set.MaxLifetime))
	row("paused retention", limit(set.PausedRetention))
	row("auto-resume", yesNo(set.AutoResume))
	row("refresh on activity", refreshes(set))
	row("filesystem fallback", yesNo(set.FilesystemFallback))
	row("pause mode", string(set.PauseMode))
	row("stall after", stallAfter(set.StallAfter))
	row("checkpoint every", limit(set.CheckpointEvery))
	row("server's defaults", strings.Join(i.FromServer, ", "))
	if c := i.Checkpoint; c != nil {
		row("checkpoint", fmt.Sprintf("%s, %s", c.Mode, human.Bytes(c.Bytes)))
		row("without memory", withoutMemory(c))
	}
	row("last error", i.LastError)
	row("limits", fmt.Sprintf("%v cpus, %d MiB memory, %d MiB disk", i.Limits.CPUs, i.Limits.MemoryMiB, i.Limits.DiskMiB))
	for _, p := range slices.Sorted(maps.Keys(i.Ports)) {
		row("port", fmt.Sprintf("%s=%s", p, i.Ports[p]))
	}
	if i.AllowInternet != nil {
		row("internet", allowed(*i.AllowInternet))
	}
	row("allowed out", strings.Join(i.AllowOut, ", "))
	row("denied out", strings.Join(i.DenyOut, ", "))
	if i.EgressProxy != nil {
		row("egress proxy", i.EgressProxy.Address)
	}
	row("pre-pause hook", i.Hooks.PrePause.Command)
	row("post-resume hook", i.Hooks.PostResume.Command)
	row("pre-kill hook", i.Hooks.PreKill.Command)
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		row("metadata", k+"="+i.Metadata[k])
	}
	table(w, rows)
}

func allowed(b bool) string {
	if b {
		return "allowed"
	}
	return "not allowed"
}

func refreshes(set client.Settings) string {
	if set.RefreshOnRequests {
		return "by requests"
	}
	return yesNo(set.RefreshOnActivity)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func limit(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return length(d)
}

func stallAfter(d time.Duration) string {
	switch d {
	case 0:
		return "the server's default"
	case client.Never:
		return "never"
	}
	return length(d)
}

func (a *app) pauseCommand() *cobra.Command {
	var mode string
	var all bool
	cmd := &cobra.Command{
		Use:   "pause ID... [--mode memory]",
		Short: "pause sandboxes",
		Long: `Pause sandboxes, with their memory unless --mode says otherwise: --pause-mode of create
and set is for automatic pauses only. If one cannot be paused, the others still are:
each failure is printed, and the exit code is that of the first.`,
		Example: `  drowse pause i0abc
  drowse pause --all`,
		Args: idsOrAll(&all),
	}
	cmd.Flags().StringVar(&mode, "mode", "memory", "what the pause keeps (`mode`): memory (processes and files) or filesystem (files only)")
	cmd.Flags().BoolVar(&all, "all", false, "all running sandboxes that the API key may pause")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkMode("mode", mode); err != nil {
			return err
		}
		pause := func(ctx context.Context, c *client.Client, id string) (client.Info, error) {
			info, err := c.PauseWith(ctx, id, client.Mode(mode))
			switch e, ok := errors.AsType[*client.Error](err); {
			case ok && e.Code == "memory_not_capturable":
				return info, hint(err, "close that, or keep the files alone: drowse pause --mode filesystem %s", id)
			case errors.Is(err, client.ErrConflict):
				return info, hint(err, "drowse get %s shows its state", id)
			}
			return info, missing(err)
		}
		asleep := func(w io.Writer, info client.Info) {
			_, _ = fmt.Fprintf(w, "%s is asleep%s\n", info.ID, kept(info.Checkpoint))
		}
		if len(args) == 1 {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				info, err := pause(ctx, c, args[0])
				if err != nil {
					return err
				}
				return a.print(info, func(w io.Writer) { asleep(w, info) })
			})
		}
		infos := []client.Info{}
		failed := a.each(cmd.Context(), args, client.Running, func(ctx context.Context, c *client.Client, id string) error {
			info, err := pause(ctx, c, id)
			if err == nil {
				infos = append(infos, info)
			}
			return err
		})
		err := a.print(infos, func(w io.Writer) {
			for _, info := range infos {
				asleep(w, info)
			}
		})
		return cmp.Or(failed, err)
	}
	return cmd
}

// kept tells what a pause has kept.
func kept(c *client.Checkpoint) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" (%s, %s written)", c.Mode, human.Bytes(c.Bytes))
}

// withoutMemory tells why a pause that was to keep memory has not; empty otherwise.
func withoutMemory(c *client.Checkpoint) string {
	if c.Reason == "" {
		return ""
	}
	return c.Reason + ": " + c.Detail
}

func (a *app) resumeCommand() *cobra.Command {
	var timeout limitFlag
	cmd := &cobra.Command{
		Use:   "resume ID [--timeout 5m]",
		Short: "wake a sandbox, or extend the timeout of a running one",
		Args:  exactArgs("ID"),
	}
	cmd.Flags().Var(&timeout, "timeout", "how long the sandbox runs at least; none for no limit (default: as created)")
	cmd.Flags().Lookup("timeout").DefValue = ""
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			got, err := c.Connect(ctx, args[0], timeout.Duration)
			if err != nil {
				return missing(err)
			}
			return a.print(resumed{got.Info, got.Resumed}, func(w io.Writer) {
				what := "was awake"
				if got.Resumed {
					what = "is awake"
				}
				_, _ = fmt.Fprintf(w, "%s %s, %s\n", got.ID, what, next(got.Info, time.Now()))
			})
		})
	}
	return cmd
}

// resumed is the JSON of resume: the sandbox, and whether it slept.
type resumed struct {
	info    client.Info
	resumed bool
}

// MarshalJSON implements json.Marshaler.
func (r resumed) MarshalJSON() ([]byte, error) { return withField(r.info, "resumed", r.resumed) }

func (a *app) timeoutCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "timeout ID DURATION|none|now",
		Short: "set when the timeout of a running sandbox ends",
		Long: `Let the timeout of a running sandbox end in DURATION from now, sooner or later
than before. --on-timeout of create and set says what happens then. The sandbox
does not count as idle until then. none removes the timeout; now ends it at once.
A wake starts the timeout that was given at create again, and a wake by traffic
one of 5 minutes at least.

What --on-idle says does not matter here: without --on-timeout pause, now kills the
sandbox. On a terminal this asks first. To put a sandbox to sleep: drowse pause.`,
		Example: `  drowse timeout i0abc 10m
  drowse timeout i0abc now`,
		Args: exactArgs("ID", "DURATION"),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := parseDeadline(args[1])
		if err != nil {
			return err
		}
		if d == 0 && !yes && isTerminal(a.Stdin) && isTerminal(a.Stderr) {
			if err := confirmEnd(cmd.Context(), a, args[0]); err != nil {
				return err
			}
		}
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			return a.setTimeout(ctx, c, args[0], d)
		})
	}
	return cmd
}

// confirmEnd asks before a timeout is ended that kills.
func confirmEnd(ctx context.Context, a *app, id string) error {
	var info client.Info
	err := a.call(ctx, func(ctx context.Context, c *client.Client) (err error) {
		info, err = c.Get(ctx, id)
		return missing(err)
	})
	if err != nil || info.State != client.Running || info.Settings.OnTimeout == client.Pause {
		return err
	}
	sure, err := ask(a, fmt.Sprintf("The timeout of %s kills it (on timeout: kill). Kill it and delete its data?", id))
	if err != nil || !sure {
		return cmp.Or(err, hint(&exitError{exitFailure, errors.New("nothing was killed")}, "answer y, or give --yes; to put it to sleep: drowse pause %s", id))
	}
	return nil
}

func (a *app) setTimeout(ctx context.Context, c *client.Client, id string, d time.Duration) error {
	if err := c.SetTimeout(ctx, id, d); err != nil {
		return missing(err)
	}
	info, err := c.Find(ctx, id) // the deadline as granted
	if err != nil {
		return missing(err)
	}
	return a.print(info, func(w io.Writer) {
		now, what := time.Now(), fate(info.Settings.OnTimeout)
		when := "now"
		switch {
		case d == client.Never:
			_, _ = fmt.Fprintf(w, "%s has no timeout any more\n", id)
			return
		case d > 0 && !info.EndAt.IsZero():
			when = fmt.Sprintf("in %s (%s)", span(info.EndAt.Sub(now)), clock(info.EndAt, now))
		}
		_, _ = fmt.Fprintf(w, "%s is %s %s\n", id, what, when)
	})
}

// killed is one line of the result of kill.
type killed struct {
	ID     string `json:"id"`
	Killed bool   `json:"killed"`
	Error  string `json:"error,omitempty"`
}

func (a *app) killCommand() *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "kill ID...",
		Short: "kill sandboxes and delete their data",
		Long: `Kill sandboxes and delete their data. If one cannot be killed, the others still
are: each failure is printed, and the exit code is that of the first. On a terminal,
--all asks first.`,
		Example: `  drowse kill i0abc i0def
  drowse kill --all`,
		Args: idsOrAll(&all),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all sandboxes that the API key may kill, paused ones included")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all && !yes && isTerminal(a.Stdin) {
			var sure bool
			err := a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.List(ctx, client.ListOptions{})
				args = idsOf(list)
				return err
			})
			if sure = len(args) == 0; err == nil && !sure {
				sure, err = ask(a, fmt.Sprintf("Kill all sandboxes of %s and delete their data: %d, paused ones included?", a.serverURL(), len(args)))
			}
			if err != nil || !sure {
				return cmp.Or(err, hint(&exitError{exitFailure, errors.New("nothing was killed")}, "answer y, or give --yes"))
			}
		}
		results := []killed{}
		failed := a.each(cmd.Context(), args, "", func(ctx context.Context, c *client.Client, id string) error {
			err := c.Kill(ctx, id)
			result := killed{ID: id, Killed: err == nil}
			if err != nil {
				result.Error = err.Error()
			}
			results = append(results, result)
			return missing(err)
		})
		err := a.print(results, func(w io.Writer) {
			for _, r := range results {
				if r.Killed {
					_, _ = fmt.Fprintf(w, "%s is killed\n", r.ID)
				}
			}
		})
		return cmp.Or(failed, err)
	}
	return cmd
}

// idsOrAll accepts one id or more, or none beside --all.
func idsOrAll(all *bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case *all && len(args) > 0:
			return usagef("%s: either ids or --all", cmd.Name())
		case !*all && len(args) == 0:
			return usagef("%s: missing ID (--all for every sandbox)", cmd.Name())
		}
		return nil
	}
}

// each calls do for these sandboxes or, if none are named, for all in a state
// ("" for any but ended). It tries every one, complains of all failures but the
// first, and returns that.
func (a *app) each(ctx context.Context, ids []string, in client.State, do func(context.Context, *client.Client, string) error) error {
	if len(ids) == 0 {
		err := a.call(ctx, func(ctx context.Context, c *client.Client) error {
			var o client.ListOptions
			if in != "" {
				o.States = []client.State{in}
			}
			list, err := c.List(ctx, o)
			ids = idsOf(list)
			return err
		})
		if err != nil {
			return err
		}
	}
	var first error
	for _, id := range ids {
		err := a.call(ctx, func(ctx context.Context, c *client.Client) error { return do(ctx, c, id) })
		switch {
		case err == nil:
		case first == nil:
			first = err
		default:
			a.complain(err.Error(), "")
		}
	}
	return first
}

func idsOf(list []client.Info) []string {
	ids := make([]string, len(list))
	for n, i := range list {
		ids[n] = i.ID
	}
	return ids
}
