package lifecycle

import (
	"slices"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Situation is a row of the table: a phase while an operation is in flight,
// else a committed state.
type Situation string

// The situations.
const (
	atPending    = Situation(Pending)
	atCreating   = Situation(Creating)
	atRunning    = Situation(Running)
	atPausing    = Situation(Pausing)
	atPaused     = Situation(Paused)
	atResuming   = Situation(Resuming)
	atSnapshot   = Situation(Snapshotting)
	atKilling    = Situation(Killing)
	atTerminated = Situation(Terminated)
)

// Situations lists all situations in the order of a sandbox's life.
func Situations() []Situation {
	return []Situation{atPending, atCreating, atRunning, atSnapshot, atPausing, atPaused, atResuming, atKilling, atTerminated}
}

// Verdict is how an event fares in a situation.
type Verdict string

// The verdicts.
const (
	Applies Verdict = "applies" // the event changes the record or is granted as it is
	Waits   Verdict = "waits"   // ask again when the operation in flight has ended
	Joins   Verdict = "joins"   // the operation in flight is what was asked for: wait for it and share its result
	Stale   Verdict = "stale"   // late or repeated; nothing changes
	Refused Verdict = "refused" // an error says why
)

// rule says what one event does in one situation.
type rule struct {
	verdict Verdict
	to      []Situation             // where an applying event may lead
	do      func(s *step, ev Event) // where verdict is Applies; nil grants as it is; may weaken the verdict
	refusal func(r Record) error    // set where verdict is Refused
	note    string                  // for the documentation
}

func applies(do func(*step, Event), note string, to ...Situation) rule {
	return rule{verdict: Applies, to: to, do: do, note: note}
}

func refuses(refusal func(Record) error, note string) rule {
	return rule{verdict: Refused, refusal: refusal, note: note}
}

var (
	waits = rule{verdict: Waits}
	joins = rule{verdict: Joins}
	stale = rule{verdict: Stale}
)

// allKinds lists every kind of event, requests first.
var allKinds = []Kind{
	"CreateRequested", "ImportRequested", "AccessRequested", "PauseRequested", "ConnectRequested", "ResumeRequested", "TimeoutSet", "ExtendRequested",
	"SettingsPatched", "LeaseRequested", "LeaseReleased", "SnapshotRequested", "RestoreRequested", "KillRequested",
	"StartSucceeded", "StartFailed", "CaptureReady", "CaptureEnded", "SnapshotTaken", "SnapshotFailed", "LayersMerged", "ReleaseDone", "RuntimeGone", "TimerFired", "ServerStarted", "TakenOver",
}

// table is the whole lifecycle. It is total: every situation has a rule for
// every kind of event.
var table map[Situation]map[Kind]rule

func init() {
	table = map[Situation]map[Kind]rule{
		atPending: {
			"CreateRequested": applies(create, "start the first runtime", atCreating),
			"ImportRequested": applies(imported, "paused, as it was elsewhere", atPaused),
		},
		atCreating: {
			"KillRequested":  applies(kill, "the start is abandoned", atKilling),
			"StartSucceeded": applies(started, "the soft timeout begins", atRunning),
			"StartFailed":    applies(createFailed, "reason CreateFailed", atKilling),
			"RuntimeGone":    stale,
			"TimerFired":     applies(createTimer, "its deadline or the lifetime passed", atKilling),
			"ServerStarted":  applies(createLost, "the server restarted: reason CreateFailed", atKilling),
		},
		atRunning: {
			"AccessRequested":   applies(nil, "a lease on this generation", atRunning),
			"PauseRequested":    applies(pauseExplicit, "not cancelable", atPausing),
			"ConnectRequested":  applies(extend, "endAt is only ever moved later", atRunning),
			"ResumeRequested":   refuses(errRunning, "it runs already"),
			"TimeoutSet":        applies(setTimeout, "endAt becomes now + timeout", atRunning),
			"ExtendRequested":   applies(extend, "endAt is only ever moved later", atRunning),
			"SettingsPatched":   applies(patch, "", atRunning),
			"LeaseRequested":    applies(openLease, "", atRunning),
			"LeaseReleased":     applies(closeLease, "", atRunning),
			"SnapshotRequested": applies(snapshot, "its memory and files are copied beside it", atSnapshot),
			"RestoreRequested":  applies(restore, "captured first if the state before is kept, else replaced at once", atPausing, atResuming),
			"KillRequested":     applies(kill, "", atKilling),
			"RuntimeGone":       applies(gone, "falls back to the last checkpoint, else ends", atPaused, atKilling),
			"TimerFired":        applies(runningTimer, "a clock ran out: kill, pause by onTimeout or onIdle, or checkpoint", atRunning, atPausing, atKilling),
			"ServerStarted":     applies(runningFound, "adopted if alive, else as RuntimeGone", atRunning, atPaused, atKilling),
			"TakenOver":         applies(takenOver, "falls back to the last checkpoint", atPaused),
		},
		atSnapshot: {
			"AccessRequested": applies(nil, "a lease on this generation, which is frozen for a moment only", atSnapshot),
			"KillRequested":   applies(kill, "the capture is abandoned", atKilling),
			"SnapshotTaken":   applies(snapshotTaken, "the commit point: the snapshot is in the store", atRunning),
			"SnapshotFailed":  applies(snapshotFailed, "it runs on as before", atRunning),
			"RuntimeGone":     applies(gone, "falls back to the last checkpoint, else ends", atPaused, atKilling),
			"TimerFired":      applies(snapshotTimer, "its deadline passed: the capture is abandoned; the lifetime passed: end", atSnapshot, atKilling),
			"ServerStarted":   applies(snapshotFound, "runs on if alive, else as RuntimeGone", atRunning, atPaused, atKilling),
			"TakenOver":       applies(takenOver, "falls back to the last checkpoint", atPaused),
		},
		atPausing: {
			"AccessRequested": applies(accessDuringPause, "cancels an automatic pause if traffic may wake the sandbox; a lease while an automatic pause drains; waits otherwise; a probe is refused after the drain", atPausing),
			"PauseRequested":  applies(joinPause, "joins; an automatic pause is no longer cancelable, a checkpoint becomes a pause; waits for a restore", atPausing),
			"KillRequested":   applies(kill, "the capture is abandoned", atKilling),
			"CaptureReady":    applies(captured, "the commit point, unless the pause is being undone; after a checkpoint it wakes, and after a restore it wakes from the snapshot", atPaused, atResuming, atPausing),
			"CaptureEnded":    applies(captureEnded, "thawed: canceled or failed", atRunning),
			"RuntimeGone":     applies(gone, "falls back to the last checkpoint, else ends", atPaused, atKilling),
			"TimerFired":      applies(pausingTimer, "its deadline passed: undo it; the lifetime passed: end", atPausing, atKilling),
			"ServerStarted":   applies(pausingFound, "thawed if alive, else as RuntimeGone", atRunning, atPaused, atKilling),
			"TakenOver":       applies(takenOver, "falls back to the last checkpoint", atPaused),
		},
		atPaused: {
			"AccessRequested":   applies(wake, "if traffic may wake it, and without memory if it is worth a boot; refused otherwise", atResuming),
			"PauseRequested":    refuses(errPaused, "it is paused already"),
			"ConnectRequested":  applies(resume, "from its memory if it has any, unless a boot is asked for", atResuming),
			"ResumeRequested":   applies(resume, "as ConnectRequested", atResuming),
			"TimeoutSet":        refuses(errNotRunning, "paused time has no soft timeout"),
			"ExtendRequested":   refuses(errNotRunning, "paused time has no soft timeout"),
			"SettingsPatched":   applies(patch, "", atPaused),
			"LeaseRequested":    refuses(errNotRunning, "nothing is held awake that sleeps"),
			"LeaseReleased":     refuses(errNotRunning, ""),
			"SnapshotRequested": applies(snapshotAsleep, "its checkpoint is kept as the snapshot", atPaused),
			"RestoreRequested":  applies(restoreAsleep, "the checkpoint becomes that of the snapshot", atPaused),
			"KillRequested":     applies(kill, "", atKilling),
			"LayersMerged":      applies(merged, "the new layer takes their place in the stack, if they are still there", atPaused),
			"RuntimeGone":       stale,
			"TimerFired":        applies(pausedTimer, "the lifetime or the retention passed", atKilling),
			"ServerStarted":     applies(pausedFound, "a runtime that outlived the commit is released", atPaused),
			"TakenOver":         applies(takenOver, "it sleeps on", atPaused),
		},
		atResuming: {
			"AccessRequested": applies(accessDuringResume, "waits; a probe is refused", atResuming),
			"KillRequested":   applies(kill, "the start is abandoned", atKilling),
			"StartSucceeded":  applies(started, "a new generation and a new soft timeout; after a boot that was asked for, the memory goes", atRunning),
			"StartFailed":     applies(resumeFailed, "one retry, then paused again", atResuming, atPaused),
			"RuntimeGone":     stale,
			"TimerFired":      applies(resumingTimer, "its deadline passed: paused again; the lifetime passed: end", atPaused, atKilling),
			"ServerStarted":   applies(resumingFound, "the server restarted: paused again; after a checkpoint one more try", atResuming, atPaused),
			"TakenOver":       applies(takenOver, "paused again", atPaused),
		},
		atKilling: {
			"KillRequested": joins,
			"ReleaseDone":   applies(released, "nothing is left", atTerminated),
			"TimerFired":    applies(retryRelease, "try again until nothing is left", atKilling),
			"ServerStarted": applies(retryRelease, "go on", atKilling),
		},
		atTerminated: {
			"TimerFired":    applies(forget, "the tombstone is old enough", atTerminated),
			"ServerStarted": stale,
		},
	}
	fillTable()
}

// fillTable adds the rules that hold for whole groups of situations.
func fillTable() {
	for _, k := range allKinds {
		for _, at := range Situations() {
			if _, ok := table[at][k]; !ok {
				table[at][k] = groupRule(at, k)
			}
		}
	}
}

func groupRule(at Situation, k Kind) rule {
	request := slices.Index(allKinds, k) <= slices.Index(allKinds, "KillRequested")
	switch {
	case k == "CreateRequested", k == "ImportRequested":
		return refuses(errExists, "ids are not reused")
	case !request:
		return stale
	case at == atKilling || at == atTerminated:
		return refuses(errTerminated, "")
	case at == atPending:
		return refuses(errUnborn, "")
	default:
		return waits
	}
}

func errExists(r Record) error {
	return errdef.New(errdef.Exists, "sandbox_exists", "a sandbox with this id exists and is %s", r.Situation())
}

func errUnborn(Record) error {
	return errdef.New(errdef.NotFound, "sandbox_not_found", "the sandbox has not been created")
}

func errRunning(Record) error {
	return errdef.New(errdef.Conflict, "already_running", "the sandbox is running already").
		WithRemedy("use connect to extend its timeout")
}

func errPaused(Record) error {
	return errdef.New(errdef.Conflict, "already_paused", "the sandbox is paused already")
}

func errNotRunning(r Record) error {
	return errdef.New(errdef.WrongState, "not_running", "the sandbox is %s; this needs a running one", r.State).
		WithRemedy("resume it with connect")
}

func errNotPaused(r Record) error {
	return errdef.New(errdef.WrongState, "not_paused", "the sandbox is %s; this needs a paused one", r.State).
		WithRemedy("pause it first")
}

func errProbed(r Record) error {
	return asleep(r, errdef.New(errdef.WrongState, "not_running", "the sandbox is asleep or falls asleep, and asking whether it runs does not wake it").
		WithRemedy("resume it with connect"))
}

func errAsleep(r Record) error {
	return asleep(r, errdef.New(errdef.WrongState, "not_resumable", "the sandbox is paused and traffic may not wake it (autoResume is off)").
		WithRemedy("resume it with connect, or create it with autoResume"))
}

func errNotWaking(r Record) error {
	return asleep(r, errdef.New(errdef.WrongState, "not_resumable", "the sandbox is paused, and traffic to this port does not wake it").
		WithRemedy("resume it with connect, or set the port's wake policy to wake"))
}

func errFilesystemOnly(r Record) error {
	return asleep(r, errdef.New(errdef.WrongState, "not_resumable", "the sandbox was paused without its memory, and this request is for no service that boots it").
		WithRemedy("resume it with connect, or give it a service with resume on this port"))
}

// asleep adds to a refusal what put the sandbox to sleep, and when. While the
// pause is in flight there is no time yet.
func asleep(r Record, e *errdef.Error) error {
	cause := r.PausedFor
	if r.Op != nil && r.Op.Phase == Pausing {
		cause = r.Op.Cause
	}
	if cause != "" {
		e = e.With("reason", cause)
	}
	if r.State == Paused {
		e = e.With("pausedAt", r.PausedAt.UTC().Format(factTime))
	}
	return e
}
