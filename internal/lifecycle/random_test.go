package lifecycle

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	randomSeed  = flag.Uint64("seed", 0, "seed of the random events; 0 for that of testmode")
	randomSteps = flag.Int("steps", 1_000_000, "number of random events")
)

// TestRandomEvents lets random events happen to records at random times, in
// orders that no caller would produce, and holds the core to what lifecycle.md
// promises after each of them.
func TestRandomEvents(t *testing.T) {
	seed := *randomSeed
	if seed == 0 {
		seed = testmode.Seed()
	}
	t.Logf("seed %d", seed)
	steps := *randomSteps
	if testing.Short() || !testmode.All() {
		steps /= 10
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	reached := map[Situation]int{}
	w := newWalk(rng)
	for i := range steps {
		if w.over() {
			w = newWalk(rng)
		}
		w.step()
		reached[w.rec.Situation()]++
		if len(w.wrong) > 0 {
			t.Fatalf("seed %d, event %d: %s\nhistory:\n%s", seed, i, strings.Join(w.wrong, "; "), w.story())
		}
	}
	for _, at := range Situations() {
		if reached[at] == 0 && at != atPending {
			t.Errorf("no event happened in %s", at)
		}
	}
	t.Logf("events by situation: %v", reached)
}

// walk is one record and what is known of it besides.
type walk struct {
	rng      *rand.Rand
	rec      Record
	now      time.Time
	activity Activity
	ops      []string // ids of operations so far

	steps       int
	launched    map[int64]bool
	rested      int64 // the last launch that stayed frozen
	pausedSince time.Time
	situation   Situation // as replayed from the log
	forgotten   bool

	checkpointing Record // as the last checkpoint began

	wrong   []string
	history []happened
}

type happened struct {
	at      time.Time
	from    Situation
	ev      Event
	verdict Verdict
	to      Situation
}

// story is the last of what happened, a line each.
func (w *walk) story() string {
	var out strings.Builder
	for _, h := range w.history[max(0, len(w.history)-30):] {
		fmt.Fprintf(&out, "%12s %-9s %s%+v: %s, %s\n", h.at.Sub(epoch), h.from, h.ev.Kind(), h.ev, h.verdict, h.to)
	}
	return out.String()
}

func newWalk(rng *rand.Rand) *walk {
	return &walk{
		rng: rng, rec: Record{State: Pending}, now: epoch, launched: map[int64]bool{}, situation: atPending, ops: []string{"none"},
	}
}

func (w *walk) over() bool { return w.forgotten || w.steps > 400 }

func (w *walk) fail(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *walk) chance(percent int) bool { return w.rng.IntN(100) < percent }

func pick[T any](w *walk, of ...T) T { return of[w.rng.IntN(len(of))] }

// durations are such that clocks cross each other in every order.
func (w *walk) duration() time.Duration {
	return pick(w, 0, time.Microsecond, time.Second, 15*time.Second, time.Minute, 5*time.Minute, time.Hour, 30*24*time.Hour)
}

func (w *walk) step() {
	w.steps++
	w.pass()
	ev := w.event()
	before := w.rec
	kept := deepCopy(before)
	res, err := Step(before, ev, w.now)
	w.history = append(w.history, happened{w.now, before.Situation(), ev, res.Verdict, res.Record.Situation()})
	if !reflect.DeepEqual(before, kept) {
		w.fail("the record passed in was modified")
	}
	w.rec = res.Record
	w.check(before, ev, res, err)
	if len(w.wrong) == 0 {
		w.checkTimers()
	}
}

// deepCopy copies what a record reaches through pointers.
func deepCopy(r Record) Record {
	r = clone(r)
	if r.Checkpoint != nil {
		cp := *r.Checkpoint
		cp.Stack, cp.Layers = slices.Clone(cp.Stack), maps.Clone(cp.Layers)
		r.Checkpoint = &cp
	}
	if r.Tombstone != nil {
		stone := *r.Tombstone
		r.Tombstone = &stone
	}
	r.Leases = slices.Clone(r.Leases)
	return r
}

// pass lets time go by: none, a little, exactly to the next deadline, or beyond
// it, as if the timer were late or the server had been down.
func (w *walk) pass() {
	next, ok := w.rec.NextDeadline(w.activity)
	switch n := w.rng.IntN(10); {
	case n < 4:
	case n < 6:
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(time.Minute))))
	case n < 8 && ok && next.At.After(w.now):
		w.now = next.At.Add(pick(w, 0, 0, -time.Microsecond, time.Microsecond))
	default:
		w.now = w.now.Add(w.duration())
	}
	if w.chance(20) {
		w.activity = Activity{Busy: w.chance(30), Since: w.now.Add(-w.duration()), Last: w.now.Add(-w.duration())}
		w.activity.Requests = Work{Busy: w.activity.Busy && w.chance(50), Last: w.activity.Last.Add(-w.duration())}
		if w.activity.Busy && w.chance(50) {
			w.activity.Recheck = w.now.Add(time.Second)
		}
	}
}

// op is the id of the operation in flight, or sometimes of another.
func (w *walk) op() string {
	if w.rec.Op != nil && w.chance(85) {
		return w.rec.Op.ID
	}
	return pick(w, w.ops...)
}

func (w *walk) newOp() string {
	id := fmt.Sprintf("op%d", w.steps)
	w.ops = append(w.ops, id)
	return id
}

func (w *walk) settings() Settings {
	return Settings{
		Timeout: w.duration(), OnTimeout: pick(w, Kill, Pause), OnIdle: pick(w, "", Kill, Pause), AutoResume: w.chance(50),
		IdleTimeout: w.duration(), MaxLifetime: pick(w, 0, 0, w.duration()), PausedRetention: pick(w, 0, w.duration()),
		CheckpointEvery:   pick(w, 0, 0, MinCheckpointEvery, time.Minute, time.Hour),
		RefreshOnActivity: pick(w, NoRefresh, NoRefresh, RefreshOnWork, RefreshOnRequests), PauseMode: pick(w, "", Memory, Memory, Filesystem),
	}
}

func (w *walk) event() Event {
	m := Meta{Op: w.newOp(), Actor: "key", Cause: CauseCall}
	if w.rec.State == Pending && w.rec.Op == nil && w.chance(70) {
		create := CreateRequested{Meta: m, Settings: w.settings()}
		if w.chance(30) {
			create.Checkpoint = &Checkpoint{ID: "image of a snapshot", Mode: Memory, Stack: []string{"0"}, Layers: map[string]string{"0": "digest"}}
		}
		return create
	}
	if w.rec.Op != nil && w.chance(50) { // so that operations end
		return w.outcome()
	}
	switch w.rng.IntN(19) {
	case 0:
		return CreateRequested{Meta: m, Settings: w.settings()}
	case 1, 2:
		return AccessRequested{Meta: m, Policy: pick(w, "", Wake, Keep, Ignore), Probe: w.chance(20), Draining: w.chance(50)}
	case 3:
		return PauseRequested{Meta: m, Mode: pick(w, Memory, Memory, Filesystem), Generation: pick(w, 0, 0, w.rec.Generation, w.rec.Generation+1)}
	case 4, 5:
		return ConnectRequested{Meta: m, Timeout: w.duration(), Boot: w.chance(30)}
	case 6:
		return ResumeRequested{Meta: m, Timeout: w.duration(), Boot: w.chance(30)}
	case 7:
		return TimeoutSet{Meta: m, Timeout: w.duration()}
	case 8:
		return ExtendRequested{Meta: m, Timeout: w.duration()}
	case 9:
		return SettingsPatched{Meta: m, Patch: w.patch(), Timeout: pick(w, nil, nil, new(w.duration()))}
	case 10:
		return pick[Event](w,
			LeaseRequested{Meta: m, Lease: Lease{ID: pick(w, "a", "b"), Until: w.now.Add(w.duration())}},
			LeaseReleased{Meta: m, ID: pick(w, "a", "b")})
	case 11:
		if w.chance(20) { // or nothing lives long
			return KillRequested{m}
		}
		if w.chance(20) {
			return w.taken(m.Op)
		}
		return ServerStarted{Op: m.Op, Alive: w.chance(80)}
	case 12:
		if w.chance(30) {
			return RuntimeGone{Generation: w.rec.Generation - int64(w.rng.IntN(2)), Detail: "it crashed"}
		}
		if w.chance(30) {
			return w.merged()
		}
		return w.outcome()
	case 13:
		return SnapshotRequested{Meta: m, Only: pick(w, "", "", Running, Paused)}
	case 14:
		return RestoreRequested{Meta: m, To: w.restore(), Only: pick(w, "", "", Running, Paused)}
	default:
		return TimerFired{Op: m.Op, Activity: w.activity}
	}
}

func (w *walk) outcome() Event {
	return pick[Event](w,
		StartSucceeded{Op: w.op()}, StartSucceeded{Op: w.op(), Thawed: w.rested == w.rec.Launch && w.rested != 0 && !w.boots()}, StartFailed{Op: w.op(), Detail: "boom"},
		w.captured(), w.captured(), CaptureEnded{Op: w.op()}, CaptureEnded{Op: w.op(), Detail: "disk full"},
		SnapshotTaken{Op: w.op()}, SnapshotFailed{Op: w.op(), Detail: "disk full"}, ReleaseDone{Op: w.op()})
}

// restore is to a snapshot of some other time, or of the checkpoint that there is.
func (w *walk) restore() Restore {
	to := Restore{Snapshot: "s", Undo: pick(w, "", "undo")}
	to.Checkpoint = Checkpoint{ID: "image of a snapshot", Mode: pick(w, Memory, Memory, Filesystem), Stack: []string{"0"}, Layers: map[string]string{"0": "digest"}}
	if cp := w.rec.Checkpoint; cp != nil && w.chance(30) {
		to.Checkpoint = *cp
	}
	return to
}

// boots reports whether the operation in flight does without memory.
func (w *walk) boots() bool { return w.rec.Op != nil && w.rec.Op.Boot }

// captured adds a layer to the stack: what the runtime writes to, or a copy of that.
func (w *walk) captured() Event {
	id := fmt.Sprint(w.steps)
	cp := Checkpoint{ID: "image" + id, Mode: Memory}
	cp.Stack, cp.Layers = w.rec.Lowers()
	cp.Stack, cp.Layers[id] = append(cp.Stack, id), "digest"
	ready := CaptureReady{Op: w.op(), Checkpoint: cp}
	if w.chance(30) {
		ready.Checkpoint.Copy, ready.Rests = id, true
	}
	if w.chance(30) {
		ready.Merged = new(w.merged())
	}
	return ready
}

// taken has another server have the sandbox, at the checkpoint that there is.
func (w *walk) taken(op string) Event {
	ev := TakenOver{Op: op, From: "a", Launches: w.rec.Launches}
	if cp := w.rec.Checkpoint; cp != nil {
		ev.Checkpoint = Checkpoint{ID: "image" + op, Mode: cp.Mode, Layers: map[string]string{}}
		for n := range cp.Stack {
			id := fmt.Sprintf("%s-%d", op, n)
			ev.Checkpoint.Stack, ev.Checkpoint.Layers[id] = append(ev.Checkpoint.Stack, id), "digest"
			ev.Launches++
		}
	}
	return ev
}

// merged is about layers of the stack, sometimes of one that is gone.
func (w *walk) merged() LayersMerged {
	ev := LayersMerged{Merged: []string{"gone", "too"}, Into: fmt.Sprint("merged", w.steps), Digest: "digest"}
	if cp := w.rec.Checkpoint; cp != nil && len(cp.Stack) > 1 && w.chance(80) {
		from := w.rng.IntN(len(cp.Stack) - 1)
		ev.Merged = cp.Stack[from : from+2]
	}
	return ev
}

func (w *walk) patch() Patch {
	var p Patch
	switch s := w.settings(); w.rng.IntN(7) {
	case 0:
		p.OnTimeout = &s.OnTimeout
	case 1:
		p.OnIdle, p.IdleTimeout = &s.OnIdle, &s.IdleTimeout
	case 2:
		p.AutoResume = &s.AutoResume
	case 3:
		p.MaxLifetime = &s.MaxLifetime
	case 4:
		p.PausedRetention = &s.PausedRetention
	case 5:
		p.RefreshOnActivity = &s.RefreshOnActivity
	case 6:
		p.CheckpointEvery = &s.CheckpointEvery
	}
	return p
}

func (w *walk) check(before Record, ev Event, res Result, err error) {
	after := res.Record
	if (err != nil) != (res.Verdict == Refused) {
		w.fail("verdict %s with error %v", res.Verdict, err)
	}
	if res.Changed == reflect.DeepEqual(before, after) {
		w.fail("Changed is %v", res.Changed)
	}
	if idle := res.Verdict == Refused || res.Verdict == Stale; idle && (res.Changed || res.Effects != nil || res.Entries != nil) {
		w.fail("a %s event had effects", res.Verdict)
	}
	if before.Op == nil && after.Checkpointing() {
		w.checkpointing = before
		w.checkpointing.Op = after.Op
	}
	w.checkMove(before, ev, res)
	w.checkNumbers(before, ev, after)
	w.checkState(before, after)
	w.checkStack(after)
	w.checkEffects(before, after, res.Effects, res.Entries)
	w.checkRestored(before, ev, res)
	if _, taken := ev.(TakenOver); !taken {
		w.checkBoot(before, after, res.Effects)
	} else if res.Changed && (after.Situation() != atPaused || !reflect.DeepEqual(*after.Checkpoint, ev.(TakenOver).Checkpoint)) {
		w.fail("taken over, it is %s at %+v", after.Situation(), after.Checkpoint)
	}
	w.checkLog(before, after, res)
	w.checkKills(before, ev, res)
	if _, asked := ev.(SnapshotRequested); asked || before.Phase() == Snapshotting && after.State == Running {
		w.checkUntouched(before, after)
	}
	if fired, ok := ev.(TimerFired); ok {
		w.checkFired(before, after, fired)
	}
}

// checkMove holds the table: where a step may lead.
func (w *walk) checkMove(before Record, ev Event, res Result) {
	from, to := before.Situation(), res.Record.Situation()
	if !slices.Contains(Situations(), to) {
		w.fail("%q is no situation", to)
	}
	if from != to && !slices.Contains(table[from][ev.Kind()].to, to) {
		w.fail("%s led from %s to %s, which the table does not say", ev.Kind(), from, to)
	}
	if b, a := before.Op, res.Record.Op; b != nil && a != nil && b.ID != a.ID && a.Phase != Killing {
		w.fail("%s overtook %s", a.Phase, b.Phase)
	}
	if from == to && from == atTerminated && !reflect.DeepEqual(before, res.Record) {
		w.fail("a terminated record changed")
	}
}

// checkNumbers holds that generations and launches are never reused.
func (w *walk) checkNumbers(before Record, ev Event, after Record) {
	_, started := ev.(StartSucceeded)
	grew := after.Generation - before.Generation
	serves := before.Op != nil && after.Op == nil && after.State == Running && started
	if (grew != 0 && grew != 1) || (grew == 1) != serves {
		w.fail("generation %d after %d", after.Generation, before.Generation)
	}
	if _, taken := ev.(TakenOver); !taken && (after.Launches < before.Launches || after.Launches > before.Launches+1) {
		w.fail("%d launches after %d", after.Launches, before.Launches)
	}
	if after.Launch != before.Launch && !serves {
		w.fail("launch %d serves after %d without a start", after.Launch, before.Launch)
	}
}

func (w *walk) checkState(before, after Record) {
	switch after.State {
	case Paused:
		if after.Checkpoint == nil {
			w.fail("paused without a checkpoint")
		}
		if !after.EndAt.IsZero() || after.Leases != nil {
			w.fail("paused with a soft timeout or a lease")
		}
		if before.State != Paused {
			w.pausedSince = w.now
		}
	case Running:
		if after.Generation < 1 || after.Launch < 1 {
			w.fail("running in generation %d, launch %d", after.Generation, after.Launch)
		}
		if slices.ContainsFunc(after.Deadlines(w.activity), func(d Deadline) bool { return d.Clock == ClockRetention }) {
			w.fail("running and its retention counts")
		}
	case Terminated:
		if after.Tombstone == nil || after.Tombstone.Reason == "" {
			w.fail("terminated without a tombstone")
		}
		if before.State == Terminated && !reflect.DeepEqual(before.Tombstone, after.Tombstone) {
			w.fail("the tombstone changed")
		}
	case Pending:
		if before.State != Pending {
			w.fail("it became pending")
		}
	}
	if op := before.Op; op != nil && op.Carry != nil && after.State == Running {
		w.checkCarried(*op, after)
	}
	if before.State == Terminated && after.State != Terminated {
		w.fail("it rose from the dead")
	}
	if before.Checkpoint != nil && after.Checkpoint == nil && after.State != Terminated {
		w.fail("its checkpoint is gone")
	}
}

// checkCarried holds that a checkpoint changes no clock and ends no hold.
func (w *walk) checkCarried(op Operation, after Record) {
	began := w.checkpointing
	if began.Op == nil || began.Op.ID != op.ID {
		w.fail("checkpoint %s did not begin", op.ID)
	}
	if !after.EndAt.Equal(began.EndAt) || after.EndIsLive != began.EndIsLive || !after.EndSetAt.Equal(began.EndSetAt) ||
		!after.StartedAt.Equal(began.StartedAt) || !reflect.DeepEqual(after.Leases, began.Leases) {
		w.fail("a checkpoint or restore changed %+v to %+v", began, after)
	}
}

// checkUntouched holds that a snapshot changes nothing of a sandbox but its
// operation.
func (w *walk) checkUntouched(before, after Record) {
	before.Op, after.Op = nil, nil
	if !reflect.DeepEqual(before, after) {
		w.fail("a snapshot changed %+v to %+v", before, after)
	}
}

// checkStack holds that a checkpoint knows the digests of its layers, and no
// others.
func (w *walk) checkStack(after Record) {
	cp := after.Checkpoint
	if cp == nil {
		return
	}
	for _, id := range cp.Stack {
		if cp.Layers[id] == "" {
			w.fail("layer %s has no digest", id)
		}
	}
	if len(cp.Layers) != len(cp.Stack) {
		w.fail("%d digests of %d layers", len(cp.Layers), len(cp.Stack))
	}
	lowers, digests := after.Lowers()
	if len(digests) != len(lowers) {
		w.fail("%d digests of %d lower layers", len(digests), len(lowers))
	}
	switch copied := cp.Copy; {
	case copied == "":
	case cp.Stack[len(cp.Stack)-1] != copied:
		w.fail("the copy %s is not on top of %v", copied, cp.Stack)
	case slices.Contains(lowers, copied) == after.Thawed:
		w.fail("the runtime went on: %v; it writes over %v, and %s is a copy", after.Thawed, lowers, copied)
	}
	if after.Thawed && after.State != Running && after.State != Terminated {
		w.fail("it is %s, and its runtime goes on", after.State)
	}
}

func (w *walk) checkEffects(before, after Record, effects []Effect, entries []Entry) {
	for _, e := range effects {
		switch e.Kind {
		case StartRuntime:
			if w.launched[e.Launch] || e.Launch != after.Launches || e.Launch == before.Launches {
				w.fail("launch %d is named again", e.Launch)
			}
			w.launched[e.Launch] = true
			if e.Generation != after.Generation+1 || after.Op == nil || e.Op != after.Op.ID || !reflect.DeepEqual(e.Checkpoint, startsFrom(after)) {
				w.fail("start of generation %d by %q from %v", e.Generation, e.Op, e.Checkpoint)
			}
		case DropCheckpoint:
			if before.Checkpoint == nil || e.Checkpoint.ID != before.Checkpoint.ID {
				w.fail("drop of %v, which was not the checkpoint", e.Checkpoint)
			}
			if booted := before.Op != nil && before.Op.Boot && after.State == Running; booted {
				break // see checkBoot
			}
			restored := slices.ContainsFunc(entries, func(e Entry) bool { return e.Type == EntryRestored })
			if after.State != Paused || after.Checkpoint.ID == e.Checkpoint.ID && !restored {
				w.fail("the checkpoint is dropped and none is newer")
			}
		case DropLayers:
			slept := before.Situation() == atPaused && after.Situation() == atPaused
			if fellAsleep := before.Situation() == atPausing && after.State == Paused; !slept && !fellAsleep {
				w.fail("layers are dropped while it is %s", before.Situation())
			}
			rests := slices.ContainsFunc(effects, func(e Effect) bool { return e.Kind == RestRuntime })
			for _, id := range e.Layers {
				if lowers, _ := before.Lowers(); rests && slices.Contains(lowers, id) {
					w.fail("layer %s is dropped below a runtime that stays", id)
				}
				if !slices.Contains(before.Checkpoint.Stack, id) || slices.Contains(after.Checkpoint.Stack, id) {
					w.fail("layer %s is dropped; the stack was %v and is %v", id, before.Checkpoint.Stack, after.Checkpoint.Stack)
				}
			}
		case RestRuntime:
			w.rested = e.Launch
			if after.State != Paused || e.Launch != before.Launch || after.Checkpoint.Mode != Memory {
				w.fail("launch %d is to stay frozen, and it is %s", e.Launch, after.Situation())
			}
		case ReleaseRuntime:
			if after.State == Running && after.Launch == e.Launch {
				w.fail("the serving runtime is released")
			}
		case ReleaseAll:
			if after.State != Terminated {
				w.fail("everything is released and it is %s", after.State)
			}
		case CaptureRuntime:
			if after.Phase() != Pausing || e.Launch != after.Launch {
				w.fail("capture of launch %d while %s", e.Launch, after.Situation())
			}
		case CaptureSnapshot:
			if after.Phase() != Snapshotting || e.Launch != after.Launch {
				w.fail("snapshot of launch %d while %s", e.Launch, after.Situation())
			}
		case Forget:
			if after.State != Terminated || w.now.Before(after.Tombstone.At.Add(TombstoneKept)) {
				w.fail("forgotten too early")
			}
			w.forgotten = true
		}
	}
}

// startsFrom is what the operation in flight starts a runtime from.
func startsFrom(r Record) *Checkpoint {
	if !r.Op.Boot {
		return r.Checkpoint
	}
	return new(r.Checkpoint.Files())
}

// checkBoot holds that memory goes when a boot that was asked for runs, and neither
// before nor otherwise.
func (w *walk) checkBoot(before, after Record, effects []Effect) {
	if op := before.Op; op == nil || !op.Boot || op.Phase != Resuming || after.State == Terminated {
		return
	}
	if before.Checkpoint.Mode != Memory {
		w.fail("a boot is asked for, and there is no memory to give up")
	}
	want := *before.Checkpoint
	if after.State == Running {
		want = want.Files()
	}
	if !reflect.DeepEqual(*after.Checkpoint, want) {
		w.fail("a boot that is %s has %+v", after.Situation(), after.Checkpoint)
	}
	drops := slices.ContainsFunc(effects, func(e Effect) bool { return e.Kind == DropCheckpoint })
	if drops != (after.State == Running) {
		w.fail("the memory is dropped: %v, and it is %s", drops, after.Situation())
	}
}

// checkRestored holds that a sandbox has the checkpoint of the snapshot exactly when
// the log says so, and that a restore which keeps the state before has captured it.
func (w *walk) checkRestored(before Record, ev Event, res Result) {
	said := slices.ContainsFunc(res.Entries, func(e Entry) bool { return e.Type == EntryRestored })
	var to *Restore
	if e, is := ev.(RestoreRequested); is && e.Only != "" && e.Only != before.State && res.Changed {
		w.fail("restored, and it is %s", before.State)
	}
	switch e := ev.(type) {
	case RestoreRequested:
		if before.Situation() == atPaused || before.Situation() == atRunning && e.To.Undo == "" {
			if res.Verdict == Refused {
				break
			}
			to = &e.To
		}
	case CaptureReady:
		if op := before.Op; res.Verdict == Applies && op != nil {
			to = op.Restore
		}
	}
	if said != (to != nil) {
		w.fail("restored is %v", said)
	}
	if to == nil {
		return
	}
	if cp := res.Record.Checkpoint; cp == nil || !reflect.DeepEqual(*cp, to.Checkpoint) {
		w.fail("it went back to %+v, and was to go to %+v", cp, to.Checkpoint)
	}
	if running := before.State == Running; running != (res.Record.Phase() == Resuming) {
		w.fail("it was %s, and is %s", before.Situation(), res.Record.Situation())
	}
}

// checkLog replays the log.
func (w *walk) checkLog(before, after Record, res Result) {
	for _, e := range res.Entries {
		if e.From != before.Situation() || e.To != after.Situation() || !e.At.Equal(w.now) || e.Generation != after.Generation {
			w.fail("entry %+v for %s to %s", e, before.Situation(), after.Situation())
		}
		if state(e.From) != state(w.situation) {
			w.fail("entry %s begins in %s, the log is in %s", e.Type, e.From, w.situation)
		}
		w.situation = e.To
	}
	if state(w.situation) != after.State {
		w.fail("the log says %s, the record %s", w.situation, after.State)
	}
}

// state is the committed state of a situation.
func state(at Situation) State {
	switch at {
	case atCreating:
		return Pending
	case atPausing, atSnapshot:
		return Running
	case atResuming:
		return Paused
	case atKilling:
		return Terminated
	}
	return State(at)
}

// checkKills holds who may end a sandbox, and that a request to always does.
func (w *walk) checkKills(before Record, ev Event, res Result) {
	alive := before.State != Terminated && before.Situation() != atPending
	if _, ok := ev.(KillRequested); ok && alive && (res.Verdict != Applies || res.Record.State != Terminated) {
		w.fail("a kill did not win: %s", res.Verdict)
	}
	if before.State == Terminated || res.Record.State != Terminated {
		return
	}
	switch ev.(type) {
	case CaptureEnded, CaptureReady, SnapshotTaken, SnapshotFailed:
		w.fail("a pause or snapshot became a kill")
	case KillRequested, TimerFired, RuntimeGone, ServerStarted, StartFailed:
	default:
		w.fail("%s ended it", ev.Kind())
	}
}

// checkFired holds that no clock acts early or does what was not asked.
func (w *walk) checkFired(before, after Record, ev TimerFired) {
	s := before.Settings
	var due time.Time
	var action Action
	switch reason := firedReason(before, after); reason {
	case "":
		return
	case string(MaxLifetimeExceeded):
		due, action = before.CreatedAt.Add(s.MaxLifetime), Kill
	case string(PausedExpired):
		due, action = w.pausedSince.Add(s.PausedRetention), Kill
	case string(CreateFailed):
		due, action = before.Op.Deadline, Kill
	case string(TimeoutExpired), string(CauseTimeout):
		due, action = before.EndAt, s.OnTimeout
		last := ev.Activity.Last
		if s.RefreshOnActivity == RefreshOnRequests {
			last = ev.Activity.Requests.Last
		}
		if s.RefreshOnActivity != NoRefresh && last.After(before.EndSetAt) {
			due = later(due, last.Add(s.Timeout))
		}
	case string(IdleTimeout), string(CauseIdle):
		due, action = later(ev.Activity.Since, before.StartedAt), s.IdleAction()
		for _, l := range before.Leases {
			due = later(due, l.Until)
		}
		due = due.Add(s.IdleTimeout)
		if before.EndIsLive {
			due = later(due, before.EndAt)
		}
		if ev.Activity.Busy {
			w.fail("idle while busy")
		}
	case string(CauseCheckpoint):
		due, action = later(before.StartedAt, before.PausedAt).Add(s.CheckpointEvery), Pause
	default:
		w.fail("a timer ended it: %s", reason)
		return
	}
	if action == Pause {
		due = later(due, before.PauseRetryAt)
	}
	if w.now.Before(due) {
		w.fail("fired %s early", due.Sub(w.now))
	}
	if killed := after.State == Terminated; killed != (action == Kill) {
		w.fail("asked to %s, it is %s", action, after.Situation())
	}
}

// firedReason is why a timer ended or paused a sandbox, empty if it did
// neither.
func firedReason(before, after Record) string {
	switch {
	case before.State != Terminated && after.State == Terminated:
		return string(after.Tombstone.Reason)
	case before.Op == nil && after.Phase() == Pausing:
		return string(after.Op.Cause)
	}
	return ""
}

// checkTimers holds that an operation in flight always has a deadline, and that
// a timer which fires exactly at a deadline gets somewhere: it is neither lost
// nor does it fire for ever.
func (w *walk) checkTimers() {
	next, ok := w.rec.NextDeadline(w.activity)
	if w.rec.Op != nil && (!ok || next.At.After(w.rec.Op.StartedAt.Add(24*time.Hour)) && next.At.After(w.now.Add(24*time.Hour))) {
		w.fail("%s has no deadline", w.rec.Situation())
	}
	if !ok || next.Clock == ClockRecheck {
		return
	}
	early, err := Step(w.rec, TimerFired{Op: "early", Activity: w.activity}, next.At.Add(-1))
	if err != nil || early.Verdict != Stale {
		w.fail("a timer before %s: %s, %v", next.Clock, early.Verdict, err)
	}
	rec, at := w.rec, later(next.At, w.now)
	for range 8 {
		res, err := Step(rec, TimerFired{Op: "probe", Activity: w.activity}, at)
		if err != nil {
			w.fail("the timer was refused: %v", err)
			return
		}
		rec = res.Record
		again, ok := rec.NextDeadline(w.activity)
		if !ok || again.At.After(at) || again.Clock == ClockRecheck || len(res.Effects) > 0 {
			return
		}
	}
	w.fail("%s fires for ever", next.Clock)
}
