// Package history checks what clients saw of a sandbox against a sequential
// model of it: a history of calls from many clients at once is in order if each
// can be given one instant between its call and its return, such that a sandbox
// to which they happened one after the other would have given the same answers.
//
// What becomes of a sandbox is taken from its event log, which tells when each
// change was committed. The model holds that the log is one that a sandbox can
// have, and that every answer agrees with what was committed at its instant:
// accesses are served by the generation that runs, each once, with the memory
// of the one before; nothing is let through while a pause is under way; what a
// caller is told to be done is done; a lease is cut by a pause or the end alone.
// Nothing happens that nobody asked for.
//
// The package is for tests. It knows nothing of supervisors, servers or
// runtimes; those who record a history say what its instants are.
package history

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Kind is what was called, or the type of an entry of the log.
type Kind string

// The calls. An access and what is done with it are two: the lease may be given
// long before the program inside is reached.
const (
	Create     Kind = "create"
	Access     Kind = "access" // get a lease, waking the sandbox if that is allowed
	Count      Kind = "count"  // through a lease, have the program inside count one up
	Cut        Kind = "cut"    // lose a lease, from when it was given until that was noticed
	Pause      Kind = "pause"
	Resume     Kind = "resume"
	Connect    Kind = "connect"
	SetTimeout Kind = "set timeout"
	Kill       Kind = "kill"
	Move       Kind = "move" // to another server
	Read       Kind = "read" // look from outside
)

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	OK          Outcome = "ok"
	Unknown     Outcome = "unknown" // nobody told: it may have happened, may yet, and may never
	Awake       Outcome = "refused: it runs"
	Asleep      Outcome = "refused: it is paused"
	Ended       Outcome = "refused: it has ended"
	Unreachable Outcome = "refused: paused or ended" // where a caller is not told which
	Failed      Outcome = "failed"                   // in a way that nothing here explains
)

// Op is a call with its answer, or a change that the log tells of.
type Op struct {
	Kind   Kind
	Client int // from 1; 0 is the log
	// Call and Return are on any scale on which later is greater. A change was
	// committed between them.
	Call, Return int64
	// At is the time of the call, or that of the entry in the log.
	At      time.Time
	Timeout time.Duration // asked for

	Outcome    Outcome
	Err        error  // for people
	Via        string // for people: the server that was asked, where there are several
	Generation int64
	Count      int64
	End        time.Time // of the soft timeout; zero if the caller was not told
	// What a read saw.
	State lifecycle.State
	Phase lifecycle.Phase
	// Reason of the end, if the caller was told.
	Reason lifecycle.Reason
	// Cause of a change.
	Cause lifecycle.Cause
}

// See notes what a read saw.
func (o *Op) See(r lifecycle.Record) {
	o.State, o.Phase, o.Generation, o.End = r.State, r.Phase(), r.Generation, r.EndAt
	if r.Tombstone != nil {
		o.Reason = r.Tombstone.Reason
	}
}

// FromLog returns the change that an entry of the event log tells of, which was
// committed between call and ret.
func FromLog(e lifecycle.Entry, call, ret int64) Op {
	op := Op{Kind: Kind(e.Type), Call: call, Return: ret, At: e.At, Outcome: OK, Generation: e.Generation, Cause: e.Cause}
	if e.Type == lifecycle.EntryTerminated {
		op.Reason = lifecycle.ReasonOf(e.Detail)
	}
	return op
}

// Sort is what a call or change has in common with others of its sort.
func (o *Op) Sort() string {
	if o.Client == 0 {
		return strings.TrimSuffix(fmt.Sprintf("%s by %s", o.Kind, o.Cause), " by ")
	}
	return fmt.Sprintf("%s: %s", o.Kind, o.Outcome)
}

// String describes the call and its answer.
func (o *Op) String() string {
	s := string(o.Kind)
	if o.Timeout != 0 {
		s += fmt.Sprintf("(%s)", o.Timeout)
	}
	if o.Outcome != OK {
		s += ": " + string(o.Outcome)
		if o.Err != nil {
			s += ": " + o.Err.Error()
		}
		return s
	}
	if o.Cause != "" {
		s += fmt.Sprintf(" by %s", o.Cause)
	}
	if o.Kind == Read {
		s += fmt.Sprintf(": %s %s", o.State, o.Phase)
	}
	if o.Kind == Count {
		s += fmt.Sprintf(": %d", o.Count)
	}
	if o.Generation != 0 {
		s += fmt.Sprintf(", generation %d", o.Generation)
	}
	if !o.End.IsZero() {
		s += ", until " + clock(o.End)
	}
	if o.Reason != "" {
		s += ", " + string(o.Reason)
	}
	return s
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// History is all that was seen of one sandbox.
type History struct {
	Settings lifecycle.Settings // since its creation; they have a timeout
	// Servers says that servers came and went: operations broke off with them, runtimes were
	// lost, and sandboxes moved.
	Servers bool
	Ops     []Op
}

// Text lists the history for people, in the order of the calls, in milliseconds since the first.
// What was not answered has no end.
func (h History) Text() string {
	ops := slices.SortedStableFunc(slices.Values(h.Ops), func(x, y Op) int { return cmp.Compare(x.Call, y.Call) })
	var text strings.Builder
	for _, o := range ops {
		who, end := "log", "?"
		if o.Client != 0 {
			who = strings.TrimSpace(fmt.Sprintf("client %d %s", o.Client, o.Via))
		}
		if o.Outcome != Unknown {
			end = milliseconds(o.Return - ops[0].Call)
		}
		fmt.Fprintf(&text, "%10s to %10s  %-22s %s\n", milliseconds(o.Call-ops[0].Call), end, who, &o)
	}
	return text.String()
}

func milliseconds(instant int64) string { return fmt.Sprintf("%.1f", float64(instant)/1e6) }

// Check returns nil if the history is in order, and an error if it is not or if
// that cannot be told within so long.
func (h History) Check(within time.Duration) error {
	if o := h.unasked(); o != nil {
		return fmt.Errorf("in a history of %d operations on one sandbox nobody asked for this: %s", len(h.Ops), o)
	}
	if n, ok := h.miscounted(); ok {
		return fmt.Errorf("in a history of %d operations on one sandbox nobody can have counted to %d", len(h.Ops), n)
	}
	result := porcupine.CheckOperationsTimeout(h.model(), h.operations(), within)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("a history of %d operations on one sandbox is %s: nothing that can have been before it explains this: %s", len(h.Ops), result, h.unexplained(within))
	}
	return fmt.Errorf("a history of %d operations on one sandbox is %s", len(h.Ops), result)
}

// unexplained returns the operation that returned first of those that the longest order which
// the model allows does not have.
func (h History) unexplained(within time.Duration) *Op {
	ops := h.operations()
	_, info := porcupine.CheckOperationsVerbose(h.model(), ops, within)
	ordered := map[any]bool{}
	for _, partial := range info.PartialLinearizationsOperations() {
		for _, longest := range partial {
			if len(longest) > len(ordered) {
				clear(ordered)
				for _, o := range longest {
					ordered[o.Input] = true
				}
			}
		}
	}
	ops = slices.DeleteFunc(ops, func(o porcupine.Operation) bool { return ordered[o.Input] })
	first := slices.MinFunc(ops, func(x, y porcupine.Operation) int { return cmp.Compare(x.Return, y.Return) })
	return first.Input.(*Op)
}

// Draw writes a picture of the history and of how far it is in order, as a page
// for a browser.
func (h History) Draw(w io.Writer, within time.Duration) error {
	model := h.model()
	_, info := porcupine.CheckOperationsVerbose(model, h.operations(), within)
	return porcupine.Visualize(model, info, w)
}

// operations returns the history in porcupine's form. Calls that nobody was told
// the outcome of are left out: what became of the sandbox the log tells, and of
// what was counted inside see miscounted.
func (h History) operations() []porcupine.Operation {
	ops := make([]porcupine.Operation, 0, len(h.Ops))
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Outcome != Unknown {
			ops = append(ops, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return})
		}
	}
	return ops
}

// lines returns the counts that callers were told of, by the lines that the memory of the
// program inside has: a generation that was lost is the end of one, and what comes after it
// goes on from before it. The last line is that of the last generation.
func (h History) lines() (lines [][]Op) {
	lost := map[int64]bool{}
	var counts []Op
	for _, o := range h.Ops {
		switch {
		case o.Kind == runtimeLost:
			lost[o.Generation] = true
		case o.Kind == Count && o.Outcome == OK:
			counts = append(counts, o)
		}
	}
	line := func(last int64) []Op {
		return slices.DeleteFunc(slices.Clone(counts), func(o Op) bool {
			return o.Generation > last || lost[o.Generation] && o.Generation != last
		})
	}
	for _, generation := range slices.Sorted(maps.Keys(lost)) {
		lines = append(lines, line(generation))
	}
	return append(lines, line(math.MaxInt64))
}

// miscounted returns the first number that was counted, since a greater one was,
// and that no caller can have counted: none was told so, and there are not enough
// whose outcome nobody was told.
func (h History) miscounted() (int64, bool) {
	var untold []Op
	for _, o := range h.Ops {
		if o.Kind == Count && o.Outcome == Unknown {
			untold = append(untold, o)
		}
	}
	for _, line := range h.lines() {
		if n, ok := miscounted(line, untold); ok {
			return n, true
		}
	}
	return 0, false
}

func miscounted(told, untold []Op) (int64, bool) {
	slices.SortFunc(told, func(x, y Op) int { return cmp.Compare(x.Count, y.Count) })
	skipped := 0
	next := int64(1)
	for i, o := range told {
		before := slices.MinFunc(told[i:], func(x, y Op) int { return cmp.Compare(x.Return, y.Return) }).Return
		candidates := 0
		for _, u := range untold {
			if u.Call <= before {
				candidates++
			}
		}
		for ; next < o.Count; next++ {
			if skipped++; skipped > candidates {
				return next, true
			}
		}
		next++
	}
	return 0, false
}

// unasked returns a change that a call must have been the cause of, and that
// none was.
func (h History) unasked() *Op {
	for i := range h.Ops {
		change := &h.Ops[i]
		if by := causes(change); by != nil && !slices.ContainsFunc(h.Ops, func(o Op) bool {
			return slices.Contains(by, o.Kind) && o.Call <= change.Return && change.Call <= o.Return
		}) {
			return change
		}
	}
	return nil
}

// causes returns the calls of which one must have been under way when the
// change was committed; nil for none.
func causes(change *Op) []Kind {
	switch {
	case change.Kind == created:
		return []Kind{Create}
	case change.Kind == pausing && change.Cause == lifecycle.CauseCall:
		return []Kind{Pause}
	case change.Kind == pausing && change.Cause == lifecycle.CauseMove, change.Kind == moved && change.Cause == lifecycle.CauseMove:
		return []Kind{Move}
	case change.Kind == resuming && change.Cause == lifecycle.CauseMove: // a server that was started again goes on with a move
		return nil
	case change.Kind == resuming && change.Cause == lifecycle.CauseCall:
		return []Kind{Resume, Connect}
	case change.Kind == resuming:
		return []Kind{Access}
	case change.Kind == timeoutSet:
		return []Kind{SetTimeout, Connect}
	case change.Kind == terminated && change.Cause == lifecycle.CauseCall:
		return []Kind{Kill}
	}
	return nil
}
