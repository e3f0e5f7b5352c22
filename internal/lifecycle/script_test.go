package lifecycle

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

var update = flag.Bool("update", false, "rewrite the expected results in testdata")

// TestScripts runs the scenarios in testdata on virtual time. A script is a
// list of blocks: commands, a line "----", and what they print. Commands:
//
//	at T            set the time, counted from the first event
//	EVENT [args]    see parse; the operation defaults to the one in flight
//	show            print the record
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScript(t, f) })
	}
}

// TestScriptsAreListed keeps the table of rules in testdata/README.md complete.
func TestScriptsAreListed(t *testing.T) {
	readme, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range scriptNames.FindAllStringSubmatch(string(readme), -1) {
		listed[m[1]] = true
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		if !listed[name] {
			t.Errorf("testdata/README.md does not say which rule %s.txt is for", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("testdata/README.md names %s, which is no script", name)
	}
}

var scriptNames = regexp.MustCompile("`([a-z_]+)`")

func runScript(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{rec: Record{State: Pending}, now: epoch}
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimSpace(string(data)), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		input, want, _ := strings.Cut(block, "\n----")
		got := w.run(t, input)
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !*update {
			t.Errorf("%s:\n%s\ngot:\n%s\nwant:\n%s", file, input, got, strings.TrimSpace(want))
		}
		out.WriteString(input + "\n")
		if got != "" {
			out.WriteString("----\n" + got)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a record with its clock.
type world struct {
	rec      Record
	now      time.Time
	activity Activity
	next     int
}

func (w *world) run(t *testing.T, input string) string {
	var out strings.Builder
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch words[0] {
		case "at":
			w.now = epoch.Add(duration(t, words[1]))
		case "busy":
			w.activity.Busy, w.activity.Last = true, w.now
			if !slices.Contains(words, "process") {
				w.activity.Requests = Work{true, w.now}
			}
		case "recheck":
			w.activity.Recheck = epoch.Add(duration(t, words[1]))
		case "idle":
			requests := w.activity.Requests
			if !slices.Contains(words, "process") {
				requests = Work{Last: w.now}
			}
			w.activity = Activity{Since: w.now, Last: w.now, Requests: requests}
		case "show":
			out.WriteString(w.show())
		default:
			out.WriteString(w.step(w.parse(t, words)))
		}
	}
	return out.String()
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// parse makes an event of a line such as "connect 300s" or "captured op=op1".
func (w *world) parse(t *testing.T, words []string) Event {
	w.next++
	m := Meta{Op: fmt.Sprintf("op%d", w.next), Actor: "key", Cause: CauseCall}
	op := ""
	if w.rec.Op != nil {
		op = w.rec.Op.ID
	}
	var d time.Duration
	var rest []string
	settings := Settings{OnTimeout: Kill}
	access := AccessRequested{Meta: m}
	boot := false  // of connect and resume
	var only State // of snapshot and restore
	var change Patch
	var along *Patch       // of connect and resume
	var end *time.Duration // of patch
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "op":
			op = value
		case "timeout":
			settings.Timeout = duration(t, value)
			end = &settings.Timeout
		case "onTimeout":
			settings.OnTimeout = Action(value)
			change.OnTimeout = &settings.OnTimeout
		case "autoResume":
			settings.AutoResume = true
			change.AutoResume = ptr(value != "off")
		case "idleTimeout":
			settings.IdleTimeout = duration(t, value)
			change.IdleTimeout = &settings.IdleTimeout
		case "onIdle":
			settings.OnIdle = Action(value)
			change.OnIdle = &settings.OnIdle
		case "maxLifetime":
			settings.MaxLifetime = duration(t, value)
			change.MaxLifetime = &settings.MaxLifetime
		case "pausedRetention":
			settings.PausedRetention = duration(t, value)
			change.PausedRetention = &settings.PausedRetention
		case "checkpointEvery":
			settings.CheckpointEvery = duration(t, value)
			change.CheckpointEvery = &settings.CheckpointEvery
		case "refreshOnActivity":
			settings.RefreshOnActivity = map[string]Refresh{"": RefreshOnWork, "requests": RefreshOnRequests}[value]
			change.RefreshOnActivity = &settings.RefreshOnActivity
		case "filesystemFallback":
			settings.FilesystemFallback = true
		case "pauseMode":
			settings.PauseMode = Mode(value)
		case "serves":
			settings.Serves = true
			change.Serves = ptr(value != "off")
		case "boots":
			access.Boots = true
		case "boot":
			boot = true
		case "only":
			only = State(value)
		case "probe":
			access.Probe = true
		case "draining":
			access.Draining = true
		case "policy":
			access.Policy = WakePolicy(value)
		default:
			rest = append(rest, word)
		}
	}
	switch words[0] {
	case "connect", "resume", "timeout", "extend":
		d = duration(t, rest[0])
	}
	if change != (Patch{}) {
		along = &change
	}
	switch words[0] {
	case "create":
		return CreateRequested{Meta: m, Settings: settings}
	case "access":
		return access
	case "pause":
		mode := Memory
		if len(rest) > 0 {
			mode = Mode(rest[0])
		}
		return PauseRequested{Meta: m, Mode: mode}
	case "connect":
		return ConnectRequested{Meta: m, Timeout: d, Change: along, Boot: boot}
	case "resume":
		return ResumeRequested{Meta: m, Timeout: d, Change: along, Boot: boot}
	case "timeout":
		return TimeoutSet{Meta: m, Timeout: d}
	case "extend":
		return ExtendRequested{Meta: m, Timeout: d}
	case "kill":
		return KillRequested{m}
	case "started":
		return StartSucceeded{Op: op}
	case "startfailed":
		return StartFailed{Op: op, Detail: strings.Join(rest, " ")}
	case "startdamaged":
		return StartFailed{Op: op, Detail: strings.Join(rest, " "), Damaged: true}
	case "captured":
		mode := Memory
		if w.rec.Op != nil {
			mode = w.rec.Op.Mode
		}
		return CaptureReady{Op: op, Checkpoint: Checkpoint{ID: "image-" + op, Mode: mode, Bytes: 1 << 20}}
	case "captureended":
		return CaptureEnded{Op: op, Detail: strings.Join(rest, " ")}
	case "hindered":
		return CaptureEnded{Op: op, Detail: strings.Join(rest, " "), Inside: true}
	case "notcapturable":
		return CaptureEnded{Op: op, Detail: strings.Join(rest, " "), Inside: true, NotCapturable: true}
	case "snapshot":
		return SnapshotRequested{Meta: m, Only: only}
	case "restore":
		to := Restore{Snapshot: "s1", Checkpoint: Checkpoint{ID: "image-s1", Mode: Memory}}
		if len(rest) > 0 {
			to.Undo = rest[0]
		}
		return RestoreRequested{Meta: m, To: to, Only: only}
	case "snapshottaken":
		return SnapshotTaken{Op: op, Bytes: 1 << 20}
	case "snapshotnotcapturable":
		return SnapshotFailed{Op: op, Detail: strings.Join(rest, " "), NotCapturable: true}
	case "snapshotfailed":
		return SnapshotFailed{Op: op, Detail: strings.Join(rest, " ")}
	case "released":
		return ReleaseDone{Op: op}
	case "gone":
		return RuntimeGone{Generation: w.rec.Generation, Detail: "it crashed"}
	case "exhausted":
		return RuntimeGone{Generation: w.rec.Generation, Reason: OutOfMemory, Detail: "it took more memory than it may"}
	case "timer":
		return TimerFired{Op: m.Op, Activity: w.activity}
	case "patch":
		return SettingsPatched{Meta: m, Patch: change, Timeout: end}
	case "lease":
		return LeaseRequested{Meta: m, Lease: Lease{ID: rest[0], Reason: "a test", Until: w.now.Add(duration(t, rest[1]))}}
	case "release":
		return LeaseReleased{Meta: m, ID: rest[0]}
	case "taken":
		return TakenOver{Op: m.Op, From: "a", Checkpoint: Checkpoint{ID: "image-" + m.Op, Mode: Memory, Bytes: 1 << 20}, Launches: w.rec.Launches + 2}
	case "restart":
		return ServerStarted{Op: m.Op, Alive: rest[0] == "alive"}
	}
	t.Fatalf("unknown command %q", words[0])
	return nil
}

func ptr[T any](v T) *T { return &v }

func (w *world) step(ev Event) string {
	res, err := Step(w.rec, ev, w.now)
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %s", ev.Kind(), res.Verdict)
	if err != nil {
		e, _ := errors.AsType[*errdef.Error](err)
		fmt.Fprintf(&out, " %s", e.Code)
	}
	if from, to := w.rec.Situation(), res.Record.Situation(); from != to {
		fmt.Fprintf(&out, ", %s -> %s", from, to)
	}
	out.WriteString("\n")
	for _, e := range res.Entries {
		fmt.Fprintf(&out, "  log %s g%d%s\n", e.Type, e.Generation, detail(e.Detail))
	}
	for _, e := range res.Effects {
		fmt.Fprintf(&out, "  do %s", e.Kind)
		if e.Launch != 0 {
			fmt.Fprintf(&out, " launch %d", e.Launch)
		}
		if e.Generation != 0 {
			fmt.Fprintf(&out, " g%d", e.Generation)
		}
		if e.Checkpoint != nil {
			fmt.Fprintf(&out, " %s", e.Checkpoint.ID)
			if e.Kind == StartRuntime && e.Checkpoint.Mode == Filesystem {
				out.WriteString(" files")
			}
		}
		out.WriteString("\n")
	}
	w.rec = res.Record
	return out.String()
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func (w *world) show() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s g%d", w.rec.Situation(), w.rec.Generation)
	if idle := w.rec.Settings.IdleTimeout; idle != 0 && w.rec.State == Paused {
		fmt.Fprintf(&out, " idleTimeout=%s", idle)
	}
	if !w.rec.EndAt.IsZero() {
		fmt.Fprintf(&out, " endAt=%s", w.rec.EndAt.Sub(epoch))
	}
	if when, ok := w.rec.NextDeadline(w.activity); ok {
		fmt.Fprintf(&out, " next=%s(%s)", when.At.Sub(epoch), when.Clock)
	}
	if cp := w.rec.Checkpoint; cp != nil && cp.Without != "" && w.rec.State == Paused {
		fmt.Fprintf(&out, " without=%q", cp.Without)
	}
	if w.rec.LastError != "" {
		fmt.Fprintf(&out, " lastError=%q", w.rec.LastError)
	}
	if w.rec.Tombstone != nil {
		fmt.Fprintf(&out, " reason=%s", w.rec.Tombstone.Reason)
	}
	out.WriteString("\n")
	return out.String()
}
