package history

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is the time of an instant: one a second.
func at(instant int64) time.Time { return began.Add(time.Duration(instant) * time.Second) }

// logged is an entry that was committed at an instant.
func logged(instant int64, t lifecycle.EntryType, generation int64, cause lifecycle.Cause, detail string) Op {
	e := lifecycle.Entry{Type: t, At: at(instant), Generation: generation, Cause: cause, Detail: detail}
	return FromLog(e, instant, instant)
}

// called is a call that returned at ret; one that was refused if how is not OK.
func called(kind Kind, call, ret int64, how Outcome, answer Op) Op {
	answer.Kind, answer.Client, answer.Call, answer.Return, answer.At, answer.Outcome = kind, 1, call, ret, at(call), how
	return answer
}

const (
	byCall    = lifecycle.CauseCall
	byAccess  = lifecycle.CauseAccess
	byTimeout = lifecycle.CauseTimeout
)

// pausedAt11 is the beginning of most histories: a sandbox that is created, used
// once, and paused from 10 to 11.
func pausedAt11(more ...Op) []Op {
	return append([]Op{
		called(Create, 0, 2, OK, Op{Generation: 1, End: at(101)}),
		logged(0, lifecycle.EntryCreated, 0, byCall, ""),
		logged(1, lifecycle.EntryRunning, 1, byCall, ""),
		called(Access, 3, 4, OK, Op{Generation: 1}),
		called(Count, 4, 5, OK, Op{Generation: 1, Count: 1}),
		called(Pause, 9, 12, OK, Op{}),
		logged(10, lifecycle.EntryPausing, 1, byCall, ""),
		logged(11, lifecycle.EntryPaused, 1, byCall, ""),
	}, more...)
}

// wokenAt21 goes on with an access that wakes the sandbox.
func wokenAt21(more ...Op) []Op {
	return append(pausedAt11(
		called(Access, 20, 22, OK, Op{Generation: 2}),
		logged(20, lifecycle.EntryResuming, 1, byAccess, ""),
		logged(21, lifecycle.EntryResumed, 2, byAccess, ""),
	), more...)
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name  string
		ops   []Op
		wrong string // part of the error; empty if the history is in order
	}{
		{"a life", wokenAt21(
			called(Count, 22, 23, OK, Op{Generation: 2, Count: 2}),
			called(Read, 24, 25, OK, Op{State: lifecycle.Running, Generation: 2, End: at(321)}),
			called(Kill, 30, 33, OK, Op{}),
			logged(31, lifecycle.EntryTerminated, 2, byCall, "Killed"),
			called(Pause, 34, 35, Ended, Op{Reason: lifecycle.Killed}),
		), ""},
		{"a second pause joins the first", pausedAt11(called(Pause, 10, 13, OK, Op{})), ""},
		{"a second pause comes too late", pausedAt11(called(Read, 11, 12, OK, Op{State: lifecycle.Paused, Generation: 1}), called(Pause, 13, 14, OK, Op{})), "Illegal"},
		{"an access waits for the end of the pause", wokenAt21(called(Access, 10, 23, OK, Op{Generation: 2})), ""},
		{"an access in the instant in which the pause begins", pausedAt11(called(Access, 10, 11, OK, Op{Generation: 1}), called(Read, 10, 10, OK, Op{State: lifecycle.Running, Phase: lifecycle.Pausing, Generation: 1, End: at(101)})), ""},
		{"an access begins behind the barrier and passes it", []Op{
			called(Create, 0, 2, OK, Op{Generation: 1}), logged(0, lifecycle.EntryCreated, 0, byCall, ""), logged(1, lifecycle.EntryRunning, 1, byCall, ""),
			called(Pause, 9, 15, OK, Op{}), logged(10, lifecycle.EntryPausing, 1, byCall, ""), logged(14, lifecycle.EntryPaused, 1, byCall, ""),
			called(Access, 11, 12, OK, Op{Generation: 1}),
		}, "Illegal"},
		{"a lease is used behind the barrier", []Op{
			called(Create, 0, 2, OK, Op{Generation: 1}), logged(0, lifecycle.EntryCreated, 0, byCall, ""), logged(1, lifecycle.EntryRunning, 1, byCall, ""),
			called(Access, 3, 4, OK, Op{Generation: 1}),
			called(Pause, 9, 15, OK, Op{}), logged(10, lifecycle.EntryPausing, 1, byCall, ""), logged(14, lifecycle.EntryPaused, 1, byCall, ""),
			called(Count, 11, 12, OK, Op{Generation: 1, Count: 1}),
		}, ""},
		{"a lease is used after the pause", pausedAt11(called(Count, 12, 13, OK, Op{Generation: 1, Count: 2})), "Illegal"},
		{"a lease is cut by the pause", pausedAt11(called(Cut, 5, 11, OK, Op{Generation: 1})), ""},
		{"a lease is cut by nothing", pausedAt11(called(Cut, 5, 6, OK, Op{Generation: 1})), "Illegal"},
		{"a generation is used again", pausedAt11(
			called(Access, 20, 22, OK, Op{Generation: 1}),
			logged(20, lifecycle.EntryResuming, 1, byAccess, ""),
			logged(21, lifecycle.EntryResumed, 1, byAccess, ""),
		), "Illegal"},
		{"the old generation answers", wokenAt21(called(Count, 22, 23, OK, Op{Generation: 1, Count: 2})), "Illegal"},
		{"memory is lost", wokenAt21(called(Count, 22, 23, OK, Op{Generation: 2, Count: 1})), "Illegal"},
		{"a request is served twice", wokenAt21(called(Count, 22, 23, OK, Op{Generation: 2, Count: 3})), "nobody can have counted to 2"},
		{"a request is served and its caller not told", wokenAt21(
			called(Count, 8, 9, Unknown, Op{}), called(Count, 22, 23, OK, Op{Generation: 2, Count: 3}),
		), ""},
		{"a request is served before it is made", wokenAt21(
			called(Count, 22, 23, OK, Op{Generation: 2, Count: 3}), called(Count, 24, 25, Unknown, Op{}),
		), "nobody can have counted to 2"},
		{"a pause returns before its commit", append(pausedAt11(), called(Pause, 10, 10, OK, Op{})), "Illegal"},
		{"a read is stale", pausedAt11(called(Read, 13, 14, OK, Op{State: lifecycle.Running, Generation: 1, End: at(101)})), "Illegal"},
		{"a pause nobody asked for", wokenAt21(
			logged(30, lifecycle.EntryPausing, 2, byCall, ""), logged(31, lifecycle.EntryPaused, 2, byCall, ""),
		), "nobody asked for this: pausing by call"},
		{"it expires early", append(pausedAt11()[:5],
			logged(100, lifecycle.EntryPausing, 1, byTimeout, ""), logged(102, lifecycle.EntryPaused, 1, byTimeout, ""),
		), "Illegal"},
		{"it expires", append(pausedAt11()[:5],
			logged(101, lifecycle.EntryPausing, 1, byTimeout, ""), logged(102, lifecycle.EntryPaused, 1, byTimeout, ""),
		), ""},
		{"a timeout is set and shortens", wokenAt21(
			called(SetTimeout, 30, 31, OK, Op{Timeout: 5 * time.Second, End: at(35)}), logged(30, lifecycle.EntryTimeoutSet, 2, "", ""),
			called(Read, 32, 33, OK, Op{State: lifecycle.Running, Generation: 2, End: at(35)}),
		), ""},
		{"a timeout is set twice in an instant", wokenAt21(
			called(SetTimeout, 30, 31, OK, Op{Timeout: 5 * time.Second, End: at(35)}), logged(30, lifecycle.EntryTimeoutSet, 2, "", ""),
			called(SetTimeout, 30, 31, OK, Op{Timeout: 5 * time.Second, End: at(35)}),
		), ""},
		{"a timeout is set to something else", wokenAt21(
			called(SetTimeout, 30, 31, OK, Op{Timeout: 5 * time.Second, End: at(36)}), logged(30, lifecycle.EntryTimeoutSet, 2, "", ""),
		), "Illegal"},
		{"a connect extends", wokenAt21(
			called(Connect, 30, 31, OK, Op{Timeout: 300 * time.Second, Generation: 2, End: at(330)}), logged(30, lifecycle.EntryTimeoutSet, 2, "", ""),
		), ""},
		{"a connect shortens", wokenAt21(
			called(Connect, 30, 31, OK, Op{Timeout: 5 * time.Second, Generation: 2, End: at(35)}), logged(30, lifecycle.EntryTimeoutSet, 2, "", ""),
		), "Illegal"},
		{"a connect gives less than was asked for", wokenAt21(
			called(Connect, 30, 31, OK, Op{Timeout: 300 * time.Second, Generation: 2, End: at(321)}),
		), "Illegal"},
		{"something fails", pausedAt11(called(Access, 20, 21, Failed, Op{})), "Illegal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := History{
				Settings: lifecycle.Settings{Timeout: 100 * time.Second, OnTimeout: lifecycle.Pause, AutoResume: true},
				Ops:      test.ops,
			}
			err := h.Check(time.Minute)
			switch {
			case test.wrong == "" && err != nil:
				t.Errorf("in order, got %v", err)
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("got %v, want %s", err, test.wrong)
			}
			var picture strings.Builder
			if err := h.Draw(&picture, time.Minute); err != nil || !strings.Contains(picture.String(), string(Create)) {
				t.Errorf("no picture: %v", err)
			}
		})
	}
}

// TestServers: where servers come and go, what was counted since the last checkpoint is
// forgotten where the log says so, and nowhere else.
func TestServers(t *testing.T) {
	byServer := lifecycle.CauseRecovery
	counted := wokenAt21(called(Count, 22, 23, OK, Op{Generation: 2, Count: 2}))
	lost := append(slices.Clone(counted),
		logged(30, lifecycle.EntryRuntimeLost, 2, byServer, ""),
		called(Access, 40, 42, OK, Op{Generation: 3}),
		logged(40, lifecycle.EntryResuming, 2, lifecycle.CauseAccess, ""),
		logged(41, lifecycle.EntryResumed, 3, lifecycle.CauseAccess, ""),
	)
	for _, test := range []struct {
		name  string
		ops   []Op
		wrong string
	}{
		{"a count is forgotten", append(slices.Clone(lost), called(Count, 43, 44, OK, Op{Generation: 3, Count: 2})), ""},
		{"more is forgotten than the last checkpoint has", append(slices.Clone(lost), called(Count, 43, 44, OK, Op{Generation: 3, Count: 1})), "Illegal"},
		{"a count is kept that is said to be lost", append(slices.Clone(lost), called(Count, 43, 44, OK, Op{Generation: 3, Count: 3})), "nobody can have counted to 2"},
		{"the lost generation answers", append(slices.Clone(lost), called(Count, 43, 44, OK, Op{Generation: 2, Count: 3})), "Illegal"},
		{"one that runs is moved", append(slices.Clone(counted), logged(30, lifecycle.EntryMoved, 2, byServer, "")), "Illegal"},
		{"one that sleeps is moved", append(pausedAt11(logged(15, lifecycle.EntryMoved, 1, byServer, "")), wokenAt21()[len(pausedAt11()):]...), ""},
		{"a pause breaks off", append(slices.Clone(counted),
			called(Pause, 29, 40, Unknown, Op{}), logged(30, lifecycle.EntryPausing, 2, lifecycle.CauseCall, ""), logged(35, lifecycle.EntryPauseFailed, 2, lifecycle.CauseCall, ""),
			called(Count, 43, 44, OK, Op{Generation: 2, Count: 3}),
		), ""},
		{"one that has slept is lost for good", append(slices.Clone(counted), logged(30, lifecycle.EntryTerminated, 2, byServer, "RuntimeLost")), "Illegal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := History{Settings: lifecycle.Settings{Timeout: 100 * time.Second, OnTimeout: lifecycle.Pause, AutoResume: true}, Servers: true, Ops: test.ops}
			err := h.Check(time.Minute)
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%v, want %q", err, test.wrong)
			}
		})
	}
	if err := (History{Settings: lifecycle.Settings{Timeout: 100 * time.Second, OnTimeout: lifecycle.Pause, AutoResume: true}, Ops: lost}).Check(time.Minute); err == nil {
		t.Error("a runtime is lost where no server comes or goes")
	}
}
