package lifecycle

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// events has one event of every kind.
var events = []Event{
	CreateRequested{}, ImportRequested{}, AccessRequested{}, PauseRequested{}, ConnectRequested{}, ResumeRequested{}, TimeoutSet{},
	ExtendRequested{}, SettingsPatched{}, LeaseRequested{}, LeaseReleased{}, SnapshotRequested{}, RestoreRequested{}, KillRequested{}, StartSucceeded{}, StartFailed{}, CaptureReady{}, CaptureEnded{},
	SnapshotTaken{}, SnapshotFailed{},
	LayersMerged{}, ReleaseDone{}, RuntimeGone{}, TimerFired{}, ServerStarted{}, TakenOver{},
}

func TestTableIsTotal(t *testing.T) {
	if len(events) != len(allKinds) {
		t.Fatalf("%d events and %d kinds", len(events), len(allKinds))
	}
	for _, at := range Situations() {
		if len(table[at]) != len(allKinds) {
			t.Errorf("%s has rules for %d kinds, want %d", at, len(table[at]), len(allKinds))
		}
		for _, ev := range events {
			rule, ok := table[at][ev.Kind()]
			if !ok {
				t.Errorf("no rule for %s in %s", ev.Kind(), at)
			}
			if rule.verdict == Refused && rule.refusal == nil {
				t.Errorf("%s in %s is refused without an error", ev.Kind(), at)
			}
		}
	}
}

func TestEverySituationIsReachedAndLeft(t *testing.T) {
	for _, at := range Situations() {
		reached := at == atPending
		left := at == atTerminated
		for from, rules := range table {
			for _, r := range rules {
				reached = reached || (from != at && slices.Contains(r.to, at))
				left = left || (from == at && slices.ContainsFunc(r.to, func(to Situation) bool { return to != at }))
			}
		}
		if !reached || !left {
			t.Errorf("%s: reached %v, left %v", at, reached, left)
		}
	}
}

// records has a record in every situation.
func records() map[Situation]Record {
	op := func(p Phase) *Operation { return &Operation{ID: "op", Phase: p, Attempt: 1} }
	cp := &Checkpoint{ID: "image", Mode: Memory}
	stone := &Tombstone{Reason: Killed}
	return map[Situation]Record{
		atPending:    {State: Pending},
		atCreating:   {State: Pending, Op: op(Creating)},
		atRunning:    {State: Running, Generation: 1},
		atSnapshot:   {State: Running, Generation: 1, Op: op(Snapshotting)},
		atPausing:    {State: Running, Generation: 1, Op: op(Pausing)},
		atPaused:     {State: Paused, Generation: 1, Checkpoint: cp},
		atResuming:   {State: Paused, Generation: 1, Checkpoint: cp, Op: op(Resuming)},
		atKilling:    {State: Terminated, Op: op(Killing), Tombstone: stone},
		atTerminated: {State: Terminated, Tombstone: stone},
	}
}

func TestEveryStepLandsWhereTheTableSays(t *testing.T) {
	for at, rec := range records() {
		if rec.Situation() != at {
			t.Fatalf("record for %s is in %s", at, rec.Situation())
		}
		for _, ev := range events {
			res, err := Step(rec, ev, epoch)
			if (err != nil) != (res.Verdict == Refused) {
				t.Errorf("%s in %s: verdict %s, error %v", ev.Kind(), at, res.Verdict, err)
			}
			if err != nil && errdef.ClassOf(err) == errdef.Internal {
				t.Errorf("%s in %s: error without a class: %v", ev.Kind(), at, err)
			}
			to := res.Record.Situation()
			if to != at && !slices.Contains(table[at][ev.Kind()].to, to) {
				t.Errorf("%s in %s leads to %s, which the table does not say", ev.Kind(), at, to)
			}
		}
	}
}

// TestPure holds the promise of doc.go: nothing here can do I/O or read the
// clock.
func TestPure(t *testing.T) {
	allowed := map[string]string{
		"cmp": "", "fmt": "formatting", "time": "types and arithmetic", "reflect": "comparing records", "slices": "", "strings": "",
		"github.com/drowse-dev/drowse/internal/errdef": "error classes",
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, banned := range []string{"time.Now", "time.Since", "time.After", "time.Sleep", "time.NewT", "go func"} {
			if strings.Contains(string(src), banned) {
				t.Errorf("%s uses %s", f, banned)
			}
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range parsed.Imports {
			if _, ok := allowed[strings.Trim(imp.Path.Value, `"`)]; !ok {
				t.Errorf("%s imports %s, which the pure core may not", f, imp.Path.Value)
			}
		}
	}
}
