package v1

import (
	"fmt"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// lifecycleView says why a sandbox is as it is and what happens next.
type lifecycleView struct {
	Sandbox       string             `json:"sandbox"`
	State         lifecycle.State    `json:"state"`
	Sleep         sleep              `json:"sleep,omitempty" doc:"How it sleeps, as in the sandbox itself: light or deep while state is paused."`
	Phase         *lifecycle.Phase   `json:"phase"`
	Generation    int64              `json:"generation"`
	Operation     *operationView     `json:"operation" doc:"The operation in flight."`
	Busy          bool               `json:"busy" doc:"Whether a hold counts, so that the sandbox is not idle."`
	Holds         []holdView         `json:"holds" doc:"What keeps the sandbox awake now; holds that count come first."`
	Telemetry     telemetryView      `json:"telemetry" doc:"Whether the sandbox reports the work inside."`
	Clocks        []clockView        `json:"clocks" doc:"In order of precedence if several end at once."`
	Next          nextView           `json:"next" doc:"What happens next by itself."`
	PauseFailures int                `json:"pauseFailures" doc:"How many automatic pauses have failed in a row."`
	PauseRetryAt  *httpapi.Timestamp `json:"pauseRetryAt" doc:"No automatic pause is tried before this time."`
	LastError     *string            `json:"lastError"`
	Checkpoint    *checkpointView    `json:"checkpoint" doc:"What a resume restores."`
	Lineage       []ancestorView     `json:"lineage" doc:"What the sandbox started from, and what that was of, nearest first, at most 20; empty for one that started from a template."`
	Restored      *restoreView       `json:"restored" doc:"The snapshot that the sandbox went back to last; null if it never did."`
	Refusals      []refusalView      `json:"refusals" doc:"The last connections out that were rejected, newest first. Connections that are denied by address are rejected inside the sandbox and are not listed."`
	Services      []serviceInfoView  `json:"services" doc:"Its services and how they are."`
	Transitions   []eventView        `json:"transitions" doc:"The last entries of its event log, newest first."`
	Tombstone     *tombstoneView     `json:"tombstone"`
}

// ancestorView is a moment of a sandbox, which another goes on from.
type ancestorView struct {
	Sandbox    string            `json:"sandbox"`
	Generation int64             `json:"generation"`
	At         httpapi.Timestamp `json:"at"`
	Snapshot   *string           `json:"snapshot" doc:"The id of the snapshot, which may have been deleted; null for a fork."`
	Name       *string           `json:"name" doc:"The name that the snapshot had then."`
}

// restoreView is what a sandbox went back to.
type restoreView struct {
	Snapshot string            `json:"snapshot" doc:"Its id; it may have been deleted."`
	At       httpapi.Timestamp `json:"at"`
}

func viewLineage(all []store.Ancestor) []ancestorView {
	views := make([]ancestorView, len(all))
	for i, a := range all {
		views[i] = ancestorView{Sandbox: a.Sandbox, Generation: a.Generation, At: httpapi.Timestamp(a.At), Snapshot: orNull(a.Snapshot), Name: orNull(a.Name)}
	}
	return views
}

func viewRestored(r *lifecycle.Restored) *restoreView {
	if r == nil {
		return nil
	}
	return &restoreView{r.Snapshot, httpapi.Timestamp(r.At)}
}

type operationView struct {
	ID         string            `json:"id"`
	Phase      lifecycle.Phase   `json:"phase"`
	Attempt    int               `json:"attempt"`
	Cause      lifecycle.Cause   `json:"cause"`
	Actor      *string           `json:"actor"`
	StartedAt  httpapi.Timestamp `json:"startedAt"`
	Deadline   httpapi.Timestamp `json:"deadline" doc:"When the operation is given up, and the sandbox goes to the safer of its two states."`
	Mode       *lifecycle.Mode   `json:"mode" doc:"Of a pause."`
	Cancelable bool              `json:"cancelable" doc:"Whether a request may cancel this pause."`
}

// telemetryView says what follows where nothing is known of the work inside.
type telemetryView struct {
	MissingSince  *httpapi.Timestamp `json:"missingSince" doc:"Since when the sandbox has not reported the work inside; null if it does."`
	DefersIdle    bool               `json:"defersIdle" doc:"Whether the idle timeout is deferred because of that."`
	DeferredUntil *httpapi.Timestamp `json:"deferredUntil" doc:"Until when it is held back, or was; null without an idle timeout, and where its end would be the sandbox's: then it is held back for as long as that lasts."`
}

// clockState says how a clock stands.
type clockState string

const (
	clockOff     clockState = "off"     // no limit was set
	clockRunning clockState = "running" // its deadline is known
	clockHeld    clockState = "held"    // it begins when the last hold ends
	clockStopped clockState = "stopped" // it does not run in this state
)

type clockView struct {
	Clock        lifecycle.Clock    `json:"clock"`
	Status       clockState         `json:"status"`
	LimitSeconds float64            `json:"limitSeconds" doc:"0 for no limit."`
	Deadline     *httpapi.Timestamp `json:"deadline"`
	Action       clockAction        `json:"action" doc:"What happens when it ends."`
	Reason       *lifecycle.Reason  `json:"reason" doc:"The reason in the tombstone of a sandbox that this clock ended; null if it ends none."`
}

// clockAction is a lifecycle.Action that the end of a clock has.
type clockAction lifecycle.Action

type nextView struct {
	Text   string             `json:"text" doc:"For people."`
	Action *string            `json:"action" doc:"pause, kill, finish (the operation in flight) or forget (the record); null if nothing is due."`
	Clock  *lifecycle.Clock   `json:"clock"`
	At     *httpapi.Timestamp `json:"at"`

	WaitsFor *string `json:"waitsFor" doc:"What else has to happen first: for the idle timeout to begin, the end of a hold (request, stream, process, lease) or word from inside (telemetry); for a paused sandbox to wake, traffic or a resume, or repair where its checkpoint is found damaged; null for nothing."`
}

func (s *server) explain(c *call) (reply, error) {
	x, err := s.Sandboxes.Explain(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	rec := x.Sandbox.Record
	list, err := s.Services.Services(c.r.Context(), c.sandbox)
	if err != nil && !errdef.Is(err, errdef.NotFound) { // of a server that is gone nothing is known of them
		return reply{}, err
	}
	return ok(lifecycleView{
		Sandbox: x.Sandbox.ID, State: rec.State, Sleep: viewSleep(x.Sandbox), Phase: orNull(rec.Phase()), Generation: rec.Generation,
		Operation: viewOperation(rec.Op), Busy: busy(x), Holds: viewHolds(x.Holds), Telemetry: viewTelemetry(x.Blindness),
		Clocks: viewClocks(x), Next: viewNext(x),
		PauseFailures: rec.PauseFailures, PauseRetryAt: timeOrNull(rec.PauseRetryAt), LastError: orNull(rec.LastError), Checkpoint: viewCheckpoint(x.Sandbox),
		Lineage: viewLineage(x.Sandbox.Config.Lineage), Restored: viewRestored(rec.Restored),
		Refusals:    viewRefusals(x.Refusals),
		Services:    viewServices(c, list),
		Transitions: viewEvents(x.Transitions), Tombstone: viewTombstone(rec.Tombstone),
	})
}

type refusalView struct {
	At     httpapi.Timestamp `json:"at"`
	Target string            `json:"target" doc:"An address and port, with the name that was asked for if one was; or a name."`
	Reason egress.Reason     `json:"reason" doc:"closed: out of reach of every sandbox; denied: by its rules; name: only names are allowed, and this is none of them; no address: the name has none; no answer: the other side did not take it; too many: it has too many connections. Of connections through its egress proxy: proxy unreachable: the proxy has no address that can be reached, or did not take the connection; proxy login: it did not accept the credentials; proxy refused: it did not connect on; proxy protocol: it broke off, or gave no proper answer in time. Of connections to the hosts of its secrets: not TLS: it asked without; pinned: the program did not accept the certificate of the sandbox's own authority; certificate: that of the host could not be verified; other host: the request was for another host than the connection; protocol: it was no request of HTTP/1.1 that can be passed on; not logged: the use could not be logged; unreadable: the value could not be read."`
}

func viewRefusals(list []egress.Refusal) []refusalView {
	views := make([]refusalView, len(list))
	for i, r := range list {
		views[i] = refusalView{At: httpapi.Timestamp(r.At), Target: r.Target, Reason: r.Reason}
	}
	return views
}

func viewTelemetry(b awake.Blindness) telemetryView {
	return telemetryView{MissingSince: timeOrNull(b.Since), DefersIdle: b.Defers, DeferredUntil: timeOrNull(b.Until)}
}

func viewOperation(op *lifecycle.Operation) *operationView {
	if op == nil {
		return nil
	}
	return &operationView{
		ID: op.ID, Phase: op.Phase, Attempt: op.Attempt, Cause: op.Cause, Actor: orNull(op.Actor),
		StartedAt: httpapi.Timestamp(op.StartedAt), Deadline: httpapi.Timestamp(op.Deadline),
		Mode: orNull(op.Mode), Cancelable: op.Cancelable,
	}
}

func busy(x supervisor.Explanation) bool {
	return slices.ContainsFunc(x.Holds, func(h awake.Hold) bool { return h.Counts })
}

// clocks are those that an owner can set.
func clocks(set settingsView, timeout float64) []clockView {
	clock := func(c lifecycle.Clock, limit float64, action lifecycle.Action, reason lifecycle.Reason) clockView {
		return clockView{Clock: c, LimitSeconds: limit, Action: clockAction(action), Reason: orNull(reason)}
	}
	return []clockView{
		clock(lifecycle.ClockLifetime, set.MaxLifetimeSeconds, lifecycle.Kill, lifecycle.MaxLifetimeExceeded),
		clock(lifecycle.ClockRetention, set.PausedRetentionSeconds, lifecycle.Kill, lifecycle.PausedExpired),
		clock(lifecycle.ClockTimeout, timeout, set.OnTimeout, lifecycle.TimeoutExpired),
		clock(lifecycle.ClockIdle, set.IdleTimeoutSeconds, set.OnIdle, lifecycle.IdleTimeout),
		clock(lifecycle.ClockCheckpoint, set.CheckpointEverySeconds, lifecycle.TakeCheckpoint, ""),
	}
}

func viewClocks(x supervisor.Explanation) []clockView {
	rec := x.Sandbox.Record
	views := clocks(viewSettings(rec.Settings), rec.Settings.Timeout.Seconds())
	for i := range views {
		v := &views[i]
		at, runs := deadlineOf(x, v.Clock)
		switch {
		case runs:
			v.Status, v.Deadline = clockRunning, timeOrNull(at)
		case v.LimitSeconds == 0:
			v.Status = clockOff
		case waitsForWork(rec.Settings, v.Clock) && rec.State == lifecycle.Running && (busy(x) || x.Blindness.Defers):
			v.Status = clockHeld
		default:
			v.Status = clockStopped
		}
	}
	return views
}

// waitsForWork reports whether a clock that does not run may wait for the end of work.
func waitsForWork(set lifecycle.Settings, c lifecycle.Clock) bool {
	return c == lifecycle.ClockIdle || c == lifecycle.ClockTimeout && set.RefreshOnActivity != lifecycle.NoRefresh
}

func deadlineOf(x supervisor.Explanation, clock lifecycle.Clock) (time.Time, bool) {
	i := slices.IndexFunc(x.Deadlines, func(d lifecycle.Deadline) bool { return d.Clock == clock })
	if i < 0 {
		return time.Time{}, false
	}
	return x.Deadlines[i].At, true
}

// viewNext returns the earliest deadline that changes the sandbox, and in words
// what follows where none does.
func viewNext(x supervisor.Explanation) nextView {
	if x.Gone != "" && x.Sandbox.Record.State != lifecycle.Terminated {
		if x.Sandbox.Durability == store.Replicated {
			return nextView{Text: "its server " + x.Gone + " is gone; with the next request for it another goes on with it, from its checkpoint"}
		}
		return nextView{Text: "its server " + x.Gone + " is gone, and nothing is done with it until that is back: its last checkpoint is there alone"}
	}
	for _, d := range x.Deadlines {
		if action, text := outcome(x, d.Clock); action != "" {
			text = fmt.Sprintf("%s at %s", text, d.At.UTC().Format(time.RFC3339))
			if waitsFor(x) == waitsForRepair {
				text = undisturbed(x) + "; it is " + text
			}
			return nextView{
				Text:   text,
				Action: &action, Clock: &d.Clock, At: timeOrNull(d.At), WaitsFor: orNull(waitsFor(x)),
			}
		}
	}
	return nextView{Text: undisturbed(x), WaitsFor: orNull(waitsFor(x))}
}

// What a sandbox may wait for besides the kinds of holds.
const (
	waitsForTelemetry = "telemetry"
	waitsForTraffic   = "traffic"
	waitsForResume    = "resume"
	waitsForRepair    = "repair"
)

// waitsFor returns what has to happen besides the passing of time; "" for
// nothing.
func waitsFor(x supervisor.Explanation) string {
	rec := x.Sandbox.Record
	switch {
	case rec.Op != nil:
		return ""
	case rec.State == lifecycle.Running && rec.Settings.MeasuresWork() && busy(x):
		return string(x.Holds[0].Kind) // those that count come first
	case rec.State == lifecycle.Running && x.Blindness.Defers:
		return waitsForTelemetry
	case x.Fault != nil:
		return waitsForRepair
	case rec.State == lifecycle.Paused && wakesByTraffic(rec):
		return waitsForTraffic
	case rec.State == lifecycle.Paused:
		return waitsForResume
	}
	return ""
}

func wakesByTraffic(rec lifecycle.Record) bool {
	return rec.Settings.AutoResume && rec.Checkpoint != nil && (rec.Checkpoint.Mode == lifecycle.Memory || rec.Settings.Serves || rec.BootsInstead())
}

// outcome returns what the end of a clock does; nothing for those of the
// machinery.
func outcome(x supervisor.Explanation, clock lifecycle.Clock) (action, text string) {
	rec := x.Sandbox.Record
	switch clock {
	case lifecycle.ClockOperation:
		return "finish", string(rec.Phase()) + " ends, one way or the other, at the latest"
	case lifecycle.ClockTombstone:
		return "forget", "its record is forgotten"
	case lifecycle.ClockCheckpoint:
		return "", "" // it runs on
	}
	for _, c := range clocks(viewSettings(rec.Settings), 0) {
		switch {
		case c.Clock != clock:
		case c.Action == clockAction(lifecycle.Pause):
			return string(c.Action), "paused (" + string(*c.Reason) + ")"
		default:
			return string(c.Action), "terminated (" + string(*c.Reason) + ")"
		}
	}
	return "", ""
}

// undisturbed says how a sandbox goes on for which nothing is due.
func undisturbed(x supervisor.Explanation) string {
	rec := x.Sandbox.Record
	switch waits := waitsFor(x); {
	case waits == waitsForTelemetry && x.Blindness.Until.IsZero():
		return "nothing is known of the work inside: the idle timeout, which would end it, is held back while that lasts"
	case waits == waitsForTelemetry:
		return fmt.Sprintf("nothing is known of the work inside: the idle timeout is held back until %s", x.Blindness.Until.UTC().Format(time.RFC3339))
	case rec.State == lifecycle.Running && waits != "" && rec.Settings.IdleTimeout == 0:
		return fmt.Sprintf("it stays awake while a hold counts; the timeout of %s begins after that", rec.Settings.Timeout)
	case rec.State == lifecycle.Running && waits != "":
		return fmt.Sprintf("it stays awake while a hold counts; the idle timeout of %s begins after that", rec.Settings.IdleTimeout)
	case rec.State == lifecycle.Running:
		return "nothing is due: it runs until somebody pauses or kills it"
	case waits == waitsForRepair:
		return "it cannot wake: " + x.Fault.Error()
	case waits == waitsForTraffic:
		return "nothing is due: it sleeps until traffic or a resume wakes it"
	case rec.State == lifecycle.Paused:
		return "nothing is due: it sleeps until somebody resumes it"
	default:
		return "nothing is due"
	}
}
