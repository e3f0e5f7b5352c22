package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why ID",
		Short: "explain why a sandbox is awake, asleep or gone, and what happens next",
		Long: `Show on one screen what keeps a sandbox awake, when each of its clocks ends and
what happens then, what happens next, and its last events. This does not wake the
sandbox and does not count as activity. For a terminated sandbox, show what ended
it; the exit code is 0.`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				x, info, err := explained(ctx, c, args[0])
				if err != nil {
					return missing(err)
				}
				return a.print(x.Raw, func(w io.Writer) { why(w, x, info, time.Now()) })
			})
		},
	}
}

// explained asks for all that why tells.
func explained(ctx context.Context, c *client.Client, id string) (*client.Explanation, client.Info, error) {
	x, err := c.Explain(ctx, id)
	if err != nil {
		return nil, client.Info{}, err
	}
	info, err := c.Find(ctx, id)
	return x, info, err
}

// mostHolds is how many holds fit on a screen with the rest.
const mostHolds = 6

// why explains a sandbox in words. What wakes it, and how long it has slept, is
// in its info.
func why(w io.Writer, x *client.Explanation, i client.Info, now time.Time) {
	say := func(format string, args ...any) {
		for i, arg := range args {
			if text, ok := arg.(string); ok {
				args[i] = cell(text)
			}
		}
		_, _ = fmt.Fprintf(w, format+"\n", args...)
	}
	say("%s is %s, generation %d", x.Sandbox, stateOf(x.State, x.Phase), x.Generation)
	if x.State == client.Paused && i.State == client.Paused {
		say("asleep for %s, since %s; %s", span(now.Sub(i.PausedAt)), clock(i.PausedAt, now), sleeper(i))
	}
	if text := depth(x); text != "" {
		say("%s", text)
	}
	if text := durability(x); text != "" {
		say("%s", text)
	}
	if x.Next.WaitsFor == "repair" && !x.Next.At.IsZero() {
		say("%s", x.Next.Text)
	}
	if x.Tombstone != nil {
		epitaph(w, x.Tombstone, now)
	} else {
		say("next: %s", nextOf(x, now))
	}
	if op := x.Operation; op != nil {
		say("now: %s", inFlight(op, now))
	}
	if c := x.Checkpoint; c != nil && c.Reason != "" && x.State == client.Paused {
		say("without memory: %s; it wakes by booting", withoutMemory(c))
	}
	if x.LastError != "" {
		say("last error: %s", x.LastError)
	}
	if x.PauseFailures > 0 {
		say("automatic pauses failed %d times in a row; not tried again for %s (%s)", x.PauseFailures, span(x.PauseRetryAt.Sub(now)), clock(x.PauseRetryAt, now))
	}
	for i, a := range x.Lineage {
		say("%s: %s", [...]string{"comes from", "and that from"}[min(i, 1)], ancestor(a, now))
	}
	if r := x.Restored; r != nil {
		say("went back to: snapshot %s, at %s", r.Snapshot, clock(r.At, now))
	}
	for _, u := range i.Secrets {
		switch {
		case u.Withheld:
			say("secret %s is withheld: the sandbox comes from another API key or an export; requests go out with the placeholder; to allow it, take a snapshot and use it: drowse create --snapshot S --secret %[1]s", cell(u.Name))
		case u.Missing:
			say("secret %s is missing: requests go out with the placeholder; set it: drowse secret set %[1]s", cell(u.Name))
		}
	}
	if x.State == client.Running {
		if !x.Telemetry.MissingSince.IsZero() {
			say("%s", silence(x.Telemetry, now))
		}
		awake(w, x, now)
	}
	if x.Tombstone == nil {
		clocks(w, x, now)
		if text := renewed(x, i); text != "" {
			say("  %s", text)
		}
	}
	if len(x.Services) > 0 {
		say("\nservices:")
		explainServices(w, x.Services, now)
	}
	if len(x.Refusals) > 0 {
		say("\nrejected traffic, newest first:")
		refusals(w, x.Refusals, now)
	}
	if len(x.Transitions) > 0 {
		say("\nlast transitions:")
		transitions(w, x.Transitions, now)
	}
}

// depth tells how a sandbox sleeps; empty for one that does not, or where the server
// does not say.
func depth(x *client.Explanation) string {
	switch {
	case x.Sleep == client.LightSleep:
		return "asleep lightly: its runtime stands by with its memory; a wake takes milliseconds"
	case x.Sleep == client.DeepSleep && x.Checkpoint != nil && x.Checkpoint.Mode == client.Filesystem:
		return "asleep deeply: it takes no memory; a wake boots it from its files"
	case x.Sleep == client.DeepSleep:
		return "asleep deeply: it takes no memory; a wake restores its checkpoint"
	}
	return ""
}

// durability says where what a sandbox wakes from is; empty where there is only one place.
func durability(x *client.Explanation) string {
	switch c := x.Checkpoint; {
	case c == nil || c.Durability == "":
		return ""
	case c.Durability == client.Replicated:
		return "its checkpoint is in object storage: if its server is gone, another goes on from there"
	case c.ReplicationError != "":
		return "its checkpoint is on its server alone, and not in object storage: " + c.ReplicationError
	}
	return "its checkpoint is on its server alone, and waits to be copied to object storage"
}

// ancestor tells what a sandbox goes on from.
func ancestor(a client.Ancestor, now time.Time) string {
	what := "a fork"
	switch {
	case a.Name != "":
		what = fmt.Sprintf("snapshot %s (%s)", a.Snapshot, a.Name)
	case a.Snapshot != "":
		what = "snapshot " + a.Snapshot
	}
	return fmt.Sprintf("%s of %s, generation %d, at %s", what, a.Sandbox, a.Generation, clock(a.At, now))
}

// secretReasons say why something did not get through an egress proxy, or to a host
// that a secret is for.
var secretReasons = map[string]string{
	"not TLS":           "it asked without TLS, and a secret is for this host: use https, or set the secret with --plain",
	"pinned":            "the program does not trust the sandbox's own authority: let it trust /run/drowse/trusted.pem",
	"certificate":       "the certificate of the host could not be verified: see serve --egress-ca",
	"proxy unreachable": "the egress proxy could not be reached",
	"proxy login":       "the egress proxy did not accept the credentials, or the password is not on this server: give it anew",
	"proxy refused":     "the egress proxy did not connect on",
	"proxy protocol":    "the egress proxy broke off, or gave no proper answer in time",
	"other host":        "the request was for another host than its connection",
	"protocol":          "it was no request of HTTP/1.1 that can be passed on",
	"not logged":        "the use of the secret could not be logged: see the server's log",
	"unreadable":        "the value of the secret could not be read: see the server's log",
}

func refusals(w io.Writer, list []client.Refusal, now time.Time) {
	rows := make([][]string, len(list))
	for i, r := range list {
		rows[i] = []string{"  " + clock(r.At, now), r.Target, cmp.Or(secretReasons[r.Reason], r.Reason)}
	}
	table(w, rows)
}

// silence tells what follows where a sandbox tells nothing of its work.
func silence(t client.Telemetry, now time.Time) string {
	text := fmt.Sprintf("it has not reported its work for %s, since %s: ", span(now.Sub(t.MissingSince)), clock(t.MissingSince, now))
	switch {
	case t.DefersIdle && t.DeferredUntil.IsZero():
		return text + "it counts as busy until it does"
	case t.DefersIdle:
		return text + "it counts as busy until " + clock(t.DeferredUntil, now)
	}
	return text + "whether it is idle is judged without a report"
}

func epitaph(w io.Writer, t *client.Tombstone, now time.Time) {
	rows := [][]string{{"  reason", string(t.Reason)}}
	if t.Detail != "" {
		rows = append(rows, []string{"  detail", t.Detail})
	}
	rows = append(rows,
		[]string{"  when", moment(t.At, now)},
		[]string{"  ended by", by(t.Actor)},
		[]string{"  what to do", t.Remediation},
	)
	table(w, rows)
}

// nextOf tells what happens by itself. Where the server knows no time, its own
// words say how the sandbox goes on.
func nextOf(x *client.Explanation, now time.Time) string {
	if x.Next.At.IsZero() {
		return x.Next.Text
	}
	when := at(x.Next.At, now)
	switch x.Next.Action {
	case string(client.Pause):
		return fmt.Sprintf("it is paused %s, by its %s", when, longNames[x.Next.Clock])
	case string(client.Kill):
		return fmt.Sprintf("it is terminated %s, by its %s", when, longNames[x.Next.Clock])
	case "finish":
		return fmt.Sprintf("%s succeeds or fails %s at the latest", x.Phase, when)
	}
	return x.Next.Text
}

// at is a deadline as distance and time.
func at(t, now time.Time) string {
	if t.Before(now) {
		return fmt.Sprintf("now (%s)", clock(t, now))
	}
	return fmt.Sprintf("in %s (%s)", span(t.Sub(now)), clock(t, now))
}

func inFlight(op *client.Operation, now time.Time) string {
	text := fmt.Sprintf("%s for %s, because of %s by %s", op.Phase, span(now.Sub(op.StartedAt)), op.Cause, by(op.Actor))
	if op.Mode != "" {
		text += ", keeping " + string(op.Mode)
	}
	if op.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", op.Attempt)
	}
	if op.Cancelable {
		text += "; a request that may wake it cancels this"
	}
	return text
}

// awake lists what keeps a sandbox awake, and what no longer does.
func awake(w io.Writer, x *client.Explanation, now time.Time) {
	if len(x.Holds) == 0 {
		why := "idle: no work keeps it awake"
		if x.Telemetry.DefersIdle {
			why = "counts as busy: its work is not known"
		}
		_, _ = fmt.Fprintf(w, "\n%s\n", why)
		return
	}
	heading := "\nawake because of:"
	if !x.Busy {
		heading = "\nidle: these do not count as work:"
	}
	_, _ = fmt.Fprintln(w, heading)
	for _, h := range x.Holds[:min(len(x.Holds), mostHolds)] {
		cells := slices.DeleteFunc(holdCells(h, now), func(text string) bool { return text == "-" })
		_, _ = fmt.Fprintf(w, "  %-8s  %s\n%12s%s\n", cell(string(h.Kind)), cell(cells[0]), "", cell(strings.Join(cells[1:], ", ")))
	}
	if more := len(x.Holds) - mostHolds; more > 0 {
		_, _ = fmt.Fprintf(w, "  and %d more: drowse hold %s --list\n", more, x.Sandbox)
	}
}

// holdCells are what is told of a hold, besides its kind.
func holdCells(h client.Hold, now time.Time) []string {
	progress := "-"
	if !h.LastProgress.IsZero() {
		progress = "progress " + span(now.Sub(h.LastProgress)) + " ago"
	}
	return []string{brief(h.Detail), "since " + clock(h.Since, now), progress, capOf(h, now)}
}

// capOf tells until when a hold counts.
func capOf(h client.Hold, now time.Time) string {
	switch {
	case !h.Counts && !h.Until.IsZero() && !h.Until.After(now):
		return "STALLED " + span(now.Sub(h.Until)) + " ago, does not count"
	case !h.Counts && h.Kind == client.HoldProcess && h.Until.IsZero():
		return "does not count: only requests do"
	case !h.Counts && h.Kind == client.HoldProcess:
		return "STALLED, does not count"
	case !h.Counts:
		return "ignored, does not count"
	case h.Until.IsZero():
		return "until it ends"
	case h.Kind == client.HoldLease:
		return "ends " + at(h.Until, now)
	}
	return "stalls in " + span(h.Until.Sub(now)) + " without progress"
}

// brief cuts what may be long, such as a command, and keeps it on its line.
func brief(text string) string {
	const most = 40
	return cut(strings.Join(strings.Fields(text), " "), most)
}

// cut cuts a text at a number of characters.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// longNames are what the clocks are called in sentences.
var longNames = map[client.ClockName]string{
	client.ClockTimeout: "timeout", client.ClockIdle: "idle timeout",
	client.ClockLifetime: "max lifetime", client.ClockRetention: "paused retention",
	client.ClockCheckpoint: "checkpoint every",
}

// outcomes say what the end of a clock does.
var outcomes = map[client.Action]string{client.Pause: "it is paused", client.Kill: "it is terminated", "checkpoint": "it is checkpointed and runs on"}

func clocks(w io.Writer, x *client.Explanation, now time.Time) {
	_, _ = fmt.Fprintln(w, "\nclocks:")
	rows := make([][]string, 0, len(x.Clocks))
	for _, c := range x.Clocks {
		row := []string{"  " + longNames[c.Name], limit(c.Limit), "", ""}
		switch c.Status {
		case client.ClockRunning:
			row[2], row[3] = at(c.Deadline, now), "then "+outcomes[c.Action]
		case client.ClockHeld:
			row[2], row[3] = "starts when the work ends", "then "+outcomes[c.Action]
		case client.ClockStopped:
			row[2] = stopped(c.Name)
		}
		rows = append(rows, row)
	}
	table(w, rows)
}

// renewed tells which timeout a wake begins with: not the one that drowse timeout has set.
func renewed(x *client.Explanation, i client.Info) string {
	set := i.Settings
	sleeps := x.State == client.Paused || x.Generation > 1 || set.OnTimeout == client.Pause || set.OnIdle == client.Pause
	if i.Timeout == 0 || !sleeps {
		return ""
	}
	text := "each wake begins a new timeout of " + length(i.Timeout)
	if set.AutoResume && i.Timeout < lifecycle.MinAutoResume {
		text += ", or " + length(lifecycle.MinAutoResume) + " if traffic wakes it"
	}
	return text + "; drowse timeout moves only this one"
}

// stopped tells when a clock that stands runs.
func stopped(c client.ClockName) string {
	switch c {
	case client.ClockRetention:
		return "runs while it is paused"
	case client.ClockLifetime:
		return "stopped"
	}
	return "runs while it is running"
}

func transitions(w io.Writer, events []client.Event, now time.Time) {
	rows := make([][]string, 0, len(events))
	for _, e := range events {
		row := []string{"  " + clock(e.Time, now), e.Type, move(e), causeOf(e), took(e)}
		if isNarrow(columnsFor(w)) { // the type says where it led
			row = slices.Delete(row, 2, 3)
		}
		rows = append(rows, row)
	}
	table(w, rows)
}

// move tells from where to where an event led.
func move(e client.Event) string {
	if e.From == e.To {
		return e.To
	}
	return e.From + " → " + e.To
}

// causeOf tells what set an event off, and who.
func causeOf(e client.Event) string {
	switch {
	case e.Cause == "" && e.Actor == "":
		return brief(e.Detail)
	case e.Actor == "":
		return strings.TrimSpace(e.Cause + " " + brief(e.Detail))
	}
	return strings.TrimSpace(strings.TrimSpace(e.Cause+" by "+by(e.Actor)) + " " + brief(e.Detail))
}

// took tells how long an operation took, what it wrote and what it gave back.
func took(e client.Event) string {
	var parts []string
	if e.Duration > 0 {
		parts = append(parts, short(e.Duration))
	}
	if e.Bytes > 0 {
		parts = append(parts, human.Bytes(e.Bytes))
	}
	if e.Freed > 0 {
		parts = append(parts, human.Bytes(e.Freed)+" freed")
	}
	return strings.Join(parts, ", ")
}
