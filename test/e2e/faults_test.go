package e2e

import (
	"bytes"
	"cmp"
	"context"
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

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

var (
	faultTable = flag.String("faults.table", "", "let every fault strike wherever it can, and write the outcome to this file")
	faultsOnly = flag.String("faults.only", "", "only in operations whose names match this; the file keeps what it says of the others")
)

// TestFaults lets the server crash, fail and find the disk full at each step of
// each operation at which something is written down or changes outside, on real
// sandboxes. Afterwards, and after a restart where it crashed, the sandbox is in
// the state before the operation or in the one after it, it has lost neither
// memory nor files, nothing is on the host that nobody owns, and the operation
// works when it is asked for again. A volume is there whole or not at all, and its
// file has what it had or what was written.
//
// With -faults.table every fault strikes wherever it can. Without, a crash and
// one of the others strike at each point, in one of the operations that come
// there.
func TestFaults(t *testing.T) {
	skipWithSeveral(t, "faults of one server, of a build of its own")
	within := 12 * time.Minute
	if *faultTable != "" {
		within = 80 * time.Minute
	}
	ctx := deadline(t, within)
	plan := explore(ctx, t)
	if plan == nil {
		return
	}
	if *faultTable == "" {
		plan = sample(plan)
	}
	t.Logf("%d faults", len(plan))
	rows := tryAll(ctx, t, plan)
	if *faultTable != "" && !t.Failed() {
		old, err := os.ReadFile(*faultTable)
		if err != nil && *faultsOnly != "" {
			t.Fatal(err)
		}
		if err := os.WriteFile(*faultTable, []byte(faultReport(rows, string(old))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// explore returns every fault that can strike, and holds that there is one at
// each point. The kinds of servers are explored side by side. Without a plan, t has
// failed.
func explore(ctx context.Context, t *testing.T) []trial {
	only := regexp.MustCompile(*faultsOnly)
	plans := make([][]trial, len(serverKinds))
	t.Run("explore", func(t *testing.T) {
		for kind := range serverKinds {
			these := slices.DeleteFunc(slices.Clone(operations), func(o operation) bool { return o.kind != kind || !only.MatchString(o.name) })
			if len(these) == 0 {
				continue
			}
			t.Run(strings.Join(serverKinds[kind], " "), func(t *testing.T) {
				t.Parallel()
				f := startFaulty(ctx, t, kind)
				for _, o := range these {
					plans[kind] = append(plans[kind], f.explore(o)...)
				}
				f.end()
			})
		}
	})
	if t.Failed() {
		return nil
	}
	plan := slices.Concat(plans...)
	if *faultsOnly != "" {
		return plan
	}
	for _, step := range failpoint.Catalogue() {
		if !slices.ContainsFunc(plan, func(tr trial) bool { return tr.point == step.Point }) {
			t.Errorf("no operation comes to %s", step.Point)
		}
	}
	return plan
}

// lanes is how many servers have faults strike at once: each waits more than it
// works. What a fault leaves behind is looked for by the server's state directory.
const lanes = 3

// tryAll lets every fault strike. It parts them among servers, each of one kind, on
// which one fault strikes after the other.
func tryAll(ctx context.Context, t *testing.T, plan []trial) []row {
	rows := make([]row, len(plan))
	most := len(plan)/lanes + 1
	t.Run("try", func(t *testing.T) {
		for begin := 0; begin < len(plan); {
			end := begin + 1
			for end < len(plan) && end-begin < most && plan[end].op.kind == plan[begin].op.kind {
				end++
			}
			part, of, first := plan[begin:end], rows[begin:end], begin+1
			t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) {
				t.Parallel()
				tryInTurn(ctx, t, part, of, first)
			})
			begin = end
		}
	})
	if i := slices.IndexFunc(rows, func(r row) bool { return r.answer == "" }); i >= 0 && !t.Failed() {
		t.Errorf("nothing is known of %s, which was not tried", plan[i])
	}
	return rows
}

// tryInTurn lets one fault strike after the other on a server, and has rows say what
// came of each. They are numbered from first on.
func tryInTurn(ctx context.Context, t *testing.T, plan []trial, rows []row, first int) {
	var f *faults
	for i, tr := range plan {
		if f == nil {
			f = startFaulty(ctx, t, tr.op.kind)
		}
		whole := t.Run(fmt.Sprintf("%d %s", first+i, tr), func(t *testing.T) {
			f.tell(t)
			rows[i] = f.try(tr)
		})
		f.tell(t)
		if !whole {
			f.s.cleanUp()
			f = nil // the next gets another
		}
	}
	if f != nil {
		f.end()
	}
}

// sample chooses a crash and one of the other faults for each point, in one of
// the operations that come there, not always the same one.
func sample(plan []trial) []trial {
	type where struct {
		point failpoint.Point
		crash bool
	}
	all := map[where][]trial{}
	var order []where
	for _, tr := range plan {
		if tr.fault == failpoint.Hold {
			continue
		}
		w := where{tr.point, tr.fault == failpoint.Crash}
		if all[w] == nil {
			order = append(order, w)
		}
		all[w] = append(all[w], tr)
	}
	var chosen []trial
	for i, w := range order {
		chosen = append(chosen, all[w][i%len(all[w])])
	}
	// One server after the other.
	slices.SortStableFunc(chosen, func(a, b trial) int { return a.op.kind - b.op.kind })
	return chosen
}

// trial is one fault, at one pass of a point, in one operation.
type trial struct {
	op    operation
	point failpoint.Point
	nth   int
	fault failpoint.Fault
}

func (tr trial) String() string {
	return fmt.Sprintf("%s at pass %d of %s in %s", tr.fault, tr.nth, tr.point, tr.op.name)
}

// operation is one in which faults strike.
type operation struct {
	name     string
	on       subject
	from, to lifecycle.State
	kind     int             // of server
	only     string          // it is about the points whose names begin so
	also     failpoint.Point // an error there, which is what the operation is about
	begin    func(f *faults, id string) error
	clock    bool // a clock carries it out; begin only sets it
	snapshot bool // there is one of the counting sandbox before
	back     bool // there is one of the sandbox itself, and it goes back to that
	// What there is of the volume before and after; empty where it is not about one.
	was, is volumeState
}

// subject is what an operation is tried on.
type subject int

const (
	nothing  subject = iota
	memory           // the sandbox whose guest counts, in memory and in a file
	files            // the sandbox that has files alone
	somebody         // a sandbox that will not be needed again
	shared           // the volume
)

var operations = []operation{
	{name: "create", to: lifecycle.Running, begin: (*faults).create},
	{name: "create from a waiting runtime", to: lifecycle.Running, kind: warmServer, only: warmPoints, begin: (*faults).create},
	{name: "pause", on: memory, from: lifecycle.Running, to: lifecycle.Paused, begin: (*faults).pause},
	{name: "pause that writes what changed", on: memory, from: lifecycle.Running, to: lifecycle.Paused, kind: deltaServer, begin: (*faults).pause},
	{name: "snapshot that writes what changed", on: memory, from: lifecycle.Running, to: lifecycle.Running, kind: deltaServer, only: imagePoints, begin: (*faults).takeSnapshot},
	{name: "resume from an image with a map", on: memory, from: lifecycle.Paused, to: lifecycle.Running, kind: deltaServer, begin: (*faults).resume},
	{name: "pause to a light sleep", on: memory, from: lifecycle.Running, to: lifecycle.Paused, kind: lightServer, begin: (*faults).pause},
	{name: "wake from a light sleep", on: memory, from: lifecycle.Paused, to: lifecycle.Running, kind: lightServer, begin: (*faults).resume},
	{name: "kill in a light sleep", on: somebody, from: lifecycle.Paused, to: lifecycle.Terminated, kind: lightServer, begin: (*faults).kill},
	{name: "pause that fails", on: memory, from: lifecycle.Running, to: lifecycle.Running, also: failpoint.Checkpointed, begin: (*faults).failingPause},
	{name: "pause of the files", on: files, from: lifecycle.Running, to: lifecycle.Paused, begin: (*faults).pauseFiles},
	{name: "resume", on: memory, from: lifecycle.Paused, to: lifecycle.Running, begin: (*faults).resume},
	{name: "resume in a waiting runtime", on: memory, from: lifecycle.Paused, to: lifecycle.Running, kind: warmServer, only: warmPoints, begin: (*faults).resume},
	{name: "resume of the files", on: files, from: lifecycle.Paused, to: lifecycle.Running, begin: (*faults).resume},
	{name: "import", to: lifecycle.Paused, begin: (*faults).importCopy},
	{name: "snapshot", on: memory, from: lifecycle.Running, to: lifecycle.Running, begin: (*faults).takeSnapshot},
	{name: "snapshot of a paused one", on: memory, from: lifecycle.Paused, to: lifecycle.Paused, begin: (*faults).takeSnapshot},
	{name: "create from a snapshot", to: lifecycle.Running, snapshot: true, begin: (*faults).fromSnapshot},
	{name: "delete a snapshot", on: memory, from: lifecycle.Running, to: lifecycle.Running, snapshot: true, begin: (*faults).deleteSnapshot},
	{name: "restore", on: memory, from: lifecycle.Running, to: lifecycle.Running, snapshot: true, back: true, begin: (*faults).restore},
	{name: "restore of a paused one", on: memory, from: lifecycle.Paused, to: lifecycle.Paused, snapshot: true, back: true, begin: (*faults).restore},
	{name: "restore that keeps nothing", on: memory, from: lifecycle.Running, to: lifecycle.Running, snapshot: true, back: true, begin: (*faults).restoreAlone},
	{name: "kill", on: somebody, from: lifecycle.Running, to: lifecycle.Terminated, begin: (*faults).kill},
	{name: "kill of a paused one", on: somebody, from: lifecycle.Paused, to: lifecycle.Terminated, begin: (*faults).kill},
	{name: "expiry that pauses", on: memory, from: lifecycle.Running, to: lifecycle.Paused, clock: true, begin: (*faults).expire},
	{name: "expiry that kills", on: somebody, from: lifecycle.Running, to: lifecycle.Terminated, clock: true, begin: (*faults).expire},
	{name: "merge of layers after a pause", on: files, from: lifecycle.Running, to: lifecycle.Paused, only: mergePoints, begin: (*faults).merge},
	{name: "restart in the middle of a pause", on: memory, from: lifecycle.Running, to: lifecycle.Running, begin: (*faults).restart},
	{name: "create a volume", on: shared, was: noVolume, is: emptyVolume, begin: (*faults).createVolume},
	{name: "write a new file to a volume", on: shared, was: emptyVolume, is: newVolume, begin: (*faults).writeVolume},
	{name: "write a file of a volume again", on: shared, was: oldVolume, is: newVolume, begin: (*faults).writeVolume},
	{name: "remove a file of a volume", on: shared, was: oldVolume, is: emptyVolume, begin: (*faults).clearVolume},
	{name: "create with a volume", to: lifecycle.Running, only: supervisorPoints, was: oldVolume, is: oldVolume, begin: (*faults).createWithVolume},
	{name: "delete a volume", on: shared, was: oldVolume, is: noVolume, begin: (*faults).deleteVolume},
	{name: "delete of a volume that fails", on: shared, was: oldVolume, is: oldVolume, also: failpoint.VolumeStrike, begin: (*faults).failingDelete},
}

// What some operations are about, and the others are not: runtimes that wait are
// made in the background, at any time, and a merge comes after a pause.
const (
	warmPoints  = "gvisor/warm-"
	mergePoints = "layer/merge"
	imagePoints = "layer/image-"
	// Where a sandbox with a volume could differ from one without.
	supervisorPoints = "supervisor/"
)

func (f *faults) create(string) error {
	_, err := f.s.client.Create(f.ctx, client.CreateOptions{Timeout: time.Hour})
	return err
}

func (f *faults) importCopy(string) error {
	_, err := f.s.client.Import(f.ctx, bytes.NewReader(f.export), client.ImportOptions{NewID: true})
	return err
}

func (f *faults) pause(id string) error { return f.s.client.Pause(f.ctx, id) }

func (f *faults) failingPause(id string) error {
	if err := f.pause(id); err == nil {
		return errors.New("the pause did not fail")
	}
	return nil
}

func (f *faults) pauseFiles(id string) error {
	_, err := f.s.client.PauseWith(f.ctx, id, client.Filesystem)
	return err
}

// merge pauses a sandbox, of which most is hidden then, and returns when its
// layers are merged, could not be, or nobody merges them any more.
func (f *faults) merge(id string) error {
	ended := func() int {
		return f.s.log.count(id, `msg="layers merged"`) + f.s.log.count(id, `msg="layers could not be merged"`)
	}
	before := ended()
	pause := f.pause
	if id == f.written.ID {
		pause = f.pauseFiles
	}
	if err := pause(id); err != nil {
		return err
	}
	return poll(time.Minute, func() error {
		all, err := f.db.Sandboxes(f.ctx)
		killed := slices.ContainsFunc(all, func(sb store.Sandbox) bool { return sb.ID == id && sb.Record.State == lifecycle.Terminated })
		if err != nil || ended() == before && !killed && f.s.client.Health(f.ctx) == nil {
			return errors.Join(err, errors.New("the merge goes on"))
		}
		return nil
	})
}

// replace writes the same file in a sandbox, which is most of what it has.
func (f *faults) replace(sb *client.Sandbox) {
	f.t.Helper()
	if exit, out := run(f.ctx, f.t, sb, "sh", "-c", "head -c 4000000 /dev/urandom >big"); exit.Code != 0 {
		f.t.Fatalf("write: %s", out)
	}
}

func (f *faults) resume(id string) error {
	_, err := f.s.client.Resume(f.ctx, id, time.Hour)
	return err
}

func (f *faults) kill(id string) error { return f.s.client.Kill(f.ctx, id) }

func (f *faults) expire(id string) error { return f.s.client.SetTimeout(f.ctx, id, 0) }

// restart starts the server that crashed in the middle of a pause.
func (f *faults) restart(string) error {
	err := f.launch()
	if err != nil {
		f.s.cmd = nil
	}
	return err
}

// explore carries out an operation without a fault, and returns every fault
// that could have struck.
func (f *faults) explore(o operation) []trial {
	f.t.Helper()
	all := o.strikes(f.passes(o), false)
	if *faultTable != "" && o.on != nothing && o.overtaken() && o.only != mergePoints && o.to != lifecycle.Terminated && o.name != restartName {
		// A sandbox of its own, which does not survive being held. It comes to some
		// points less often: there is nothing to be merged.
		held := o
		if o.on != shared {
			held.on = somebody
		}
		all = append(all, held.strikes(f.passes(held), true)...)
	}
	return all
}

// passes carries out an operation without a fault, and returns how often it
// came to each point.
func (f *faults) passes(o operation) map[failpoint.Point]int {
	f.t.Helper()
	id := f.ready(o)
	f.arm(o.extra()...)
	if err := o.begin(f, id); err != nil {
		f.t.Fatalf("%s: %v", o.name, err)
	}
	f.settle(o.name, id, o)
	f.disarm()
	data, err := os.ReadFile(filepath.Join(f.points, failpoint.ReachedFile))
	if err != nil {
		f.t.Fatal(err)
	}
	passes := map[failpoint.Point]int{}
	for _, line := range strings.Fields(string(data)) {
		passes[failpoint.Point(line)]++
	}
	f.finish(o, id)
	return passes
}

// strikes returns every fault that can strike an operation, or, held, where a
// kill can overtake it.
func (o operation) strikes(passes map[failpoint.Point]int, held bool) []trial {
	var all []trial
	for _, step := range failpoint.Catalogue() {
		ofMerge := strings.HasPrefix(string(step.Point), mergePoints) // any pause may be followed by one
		if !strings.HasPrefix(string(step.Point), o.only) || ofMerge && o.only == "" || step.Point == o.also {
			continue
		}
		most := passes[step.Point]
		if o.only == "" && passes[failpoint.Merge] > 0 && (step.Point == failpoint.Doom || step.Point == failpoint.Doomed) {
			most = min(most, 1) // the others may be of the merge, which does not follow each time
		}
		// Of a crowd the first and the last.
		for nth := 1; nth <= most; nth++ {
			if nth > 1 && nth < most {
				continue
			}
			if held {
				all = append(all, trial{o, step.Point, nth, failpoint.Hold})
				continue
			}
			all = append(all, trial{o, step.Point, nth, failpoint.Crash})
			if !step.CrashOnly {
				all = append(all, trial{o, step.Point, nth, failpoint.Error}, trial{o, step.Point, nth, failpoint.DiskFull})
			}
		}
	}
	return all
}

// extra is what has to go wrong for the operation to be what it is.
func (o operation) extra() []failpoint.Armed {
	if o.also == "" {
		return nil
	}
	return []failpoint.Armed{{Point: o.also, Fault: failpoint.Error, Nth: 1}}
}

// row is what came of a trial.
type row struct {
	trial
	answer string
	state  string
}

// faultReport returns the table of docs/results/faults.md, with what an old one says of
// operations that were not tried.
func faultReport(rows []row, old string) string {
	var b strings.Builder
	b.WriteString(`# What a fault leaves behind

Made by ` + "`make faults`" + `, which lets each fault strike at each step of each operation, on real sandboxes with gVisor. After every one of these lines the following held, or there would be no table: no operation was in flight any more; the guest's counter in memory and its files went on from where they were; no process, mount, network namespace, cgroup or file was left that no record names; and the operation succeeded when it was asked for again. A volume was there whole or not at all, and its file had all of what it had before or of what was written.

*crash*: the server is killed there and started again. *error*: the step fails once. *full*: the disk is full from there on, for ` + fullFor.String() + ` or until the operation ends. *hold*: the operation is held up there, and a kill overtakes it, or where it is one on a volume, the volume's deletion. *Pass* counts how often the operation comes to the point. *Answer* is what the caller was told; *state* is the sandbox's afterwards, or what there is of the volume: nothing, no file, the old one or the new one.

| Point | Where |
|---|---|
`)
	for _, step := range failpoint.Catalogue() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", step.Point, step.Where)
	}
	for _, o := range slices.SortedStableFunc(slices.Values(operations), func(a, b operation) int { return a.kind - b.kind }) {
		title := strings.ToUpper(o.name[:1]) + o.name[1:]
		section := fmt.Sprintf("\n## %s\n\n| Point | Pass | Fault | Answer | State |\n|---|---|---|---|---|\n", title)
		tried := false
		for _, r := range rows {
			if r.op.name == o.name {
				tried = true
				section += fmt.Sprintf("| `%s` | %d | %s | %s | %s |\n", r.point, r.nth, r.fault, r.answer, r.state)
			}
		}
		if _, kept, ok := strings.Cut(old, "\n## "+title+"\n"); ok && !tried {
			kept, _, _ = strings.Cut(kept, "\n## ")
			section, tried = "\n## "+title+"\n"+kept, true
		}
		if tried {
			b.WriteString(section)
		}
	}
	return b.String()
}

// fullFor is for how long a full disk stays full, unless the operation ends
// before: long enough to be met again by what is tried again.
const fullFor = 1500 * time.Millisecond

// overtaking is how long a kill has to overtake an operation that is held.
const overtaking = 50 * time.Millisecond

// try lets a fault strike, and holds that nothing is lost by it.
func (f *faults) try(tr trial) row {
	t, o := f.t, tr.op
	t.Helper()
	if o.on == shared {
		return f.tryVolume(tr)
	}
	id := f.ready(o)
	before := f.records()
	f.arm(append(o.extra(), failpoint.Armed{Point: tr.point, Fault: tr.fault, Nth: tr.nth})...)
	answer := make(chan error, 1)
	go func() { answer <- o.begin(f, id) }()
	err := f.await(tr, id, answer)
	f.disarm()
	if f.s.cmd == nil { // it crashed, or refused to start
		f.s.start()
	}
	if id == "" {
		id = f.newcomer(before)
	}
	f.settle(tr.String(), id, o)
	rec := f.records()[id]
	out := row{trial: tr, state: cmp.Or(string(rec.State), "not there")}
	if rec.Tombstone != nil {
		out.state += ": " + string(rec.Tombstone.Reason)
	}
	out.answer = tr.answer(err)
	f.judge(tr, rec, before[id], err)
	if rec.State != o.to && !t.Failed() && tr.fault != failpoint.Hold {
		f.again(tr, id)
	}
	f.check(o.on)
	f.finish(o, id)
	if o.was != "" {
		f.wantVolume(tr, o.was)
	}
	return out
}

// answer is how the table calls what the caller was told.
func (tr trial) answer(err error) string {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case tr.fault == failpoint.Crash:
		return "none"
	case err == nil:
		return "ok"
	case ok:
		return e.Code
	}
	return "error"
}

// again carries out the operation that came to nothing, with nothing in its way.
func (f *faults) again(tr trial, id string) {
	o := tr.op
	f.t.Helper()
	begin := o.begin
	if o.clock && o.to == lifecycle.Paused {
		begin = (*faults).pause // the clock itself waits for a minute
	}
	before := f.records()
	if err := begin(f, id); err != nil {
		f.t.Errorf("after %s: again: %v", tr, err)
	}
	if o.on == nothing {
		id = f.newcomer(before)
	}
	f.settle(tr.String()+", and again", id, o)
	if got := f.records()[id].State; got != o.to {
		f.t.Errorf("after %s: again: it is %s", tr, got)
	}
}

// await returns what the operation answered.
func (f *faults) await(tr trial, id string, answer chan error) error {
	t := f.t
	t.Helper()
	within := time.After(2 * time.Minute)
	switch {
	case tr.op.name == restartName && tr.fault == failpoint.Crash:
		return <-answer // the server's end is seen by who starts it
	case tr.fault == failpoint.Crash:
		select {
		case err := <-f.s.exited:
			f.s.cmd = nil
			httpClient.CloseIdleConnections()
			if !killed(err) {
				t.Errorf("%s: the server ended with %v", tr, err)
			}
		case <-within:
			t.Fatalf("%s: no crash", tr)
		}
		return <-answer
	}
	// What comes after the answer is part of the operation.
	if err := poll(time.Minute, func() error {
		if !f.struck(tr.point) {
			return errors.New("it never came there")
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", tr, err)
	}
	switch tr.fault {
	case failpoint.Hold:
		killed := make(chan error, 1)
		go func() { killed <- f.overtake(tr.op, id) }()
		time.Sleep(overtaking)
		f.disarm()
		if err := <-killed; err != nil {
			t.Errorf("%s: kill: %v", tr, err)
		}
	case failpoint.DiskFull:
		over := time.After(fullFor)
		if len(answer) > 0 {
			<-over
		}
		select {
		case err := <-answer:
			answer <- err
		case <-over:
		}
		f.disarm()
	}
	select {
	case err := <-answer:
		return err
	case <-within:
		t.Fatalf("%s: no answer", tr)
		return nil
	}
}

// judge holds that the state is a legal one, and what the answer says.
func (f *faults) judge(tr trial, rec, before lifecycle.Record, err error) {
	t, o := f.t, tr.op
	t.Helper()
	switch {
	case tr.fault == failpoint.Hold:
		if rec.State != lifecycle.Terminated || rec.Tombstone.Reason != lifecycle.Killed {
			t.Errorf("%s: the sandbox is %s, want killed", tr, rec.State)
		}
	case rec.State == o.to && (tr.fault == failpoint.Crash || err == nil):
	case rec.State == o.from && (tr.fault == failpoint.Crash || err != nil || o.clock):
		// Undone. A runtime that was there goes on, a checkpoint is the same.
		if rec.State == lifecycle.Running && (rec.Generation != before.Generation || rec.Launch != before.Launch) {
			t.Errorf("%s: generation %d became %d", tr, before.Generation, rec.Generation)
		}
	case o.back && rec.State == lifecycle.Paused && err != nil: // it is at the snapshot, and did not wake
		if cp := before.Checkpoint; cp != nil && cp.ID == rec.Checkpoint.ID {
			t.Errorf("%s: it did not go back, and is paused", tr)
		}
	case o.on == nothing && rec.State == "" && (tr.fault == failpoint.Crash || err != nil): // not even begun
	case o.on == nothing && rec.State == lifecycle.Terminated && (tr.fault == failpoint.Crash || err != nil):
		if rec.Tombstone.Reason != lifecycle.CreateFailed {
			t.Errorf("%s: it ended with %s", tr, rec.Tombstone.Reason)
		}
	case o.to == lifecycle.Terminated && rec.State == lifecycle.Terminated: // a kill may say that it goes on
	default:
		t.Errorf("%s: the answer is %v, and the sandbox is %s (%s)", tr, err, rec.State, rec.LastError)
	}
}

// ready brings the sandbox of an operation into the state where it begins, and
// returns its id.
func (f *faults) ready(o operation) string {
	t := f.t
	t.Helper()
	var id string
	sandbox := f.written
	if o.was != "" {
		f.bringVolume(o.was)
	}
	switch o.on {
	case nothing, shared:
	case memory:
		id = f.counting.sb.ID
		f.bring(id, lifecycle.Running)
		f.last = f.counting.ask(f.ctx)
	case files:
		id = f.written.ID
		f.bring(id, lifecycle.Running)
		f.lines++
		if exit, out := run(f.ctx, t, f.written, "sh", "-c", fmt.Sprintf("echo %d >>lines", f.lines)); exit.Code != 0 {
			t.Fatalf("write a line: %s", out)
		}
	case somebody:
		options := client.CreateOptions{Timeout: time.Hour}
		if o.to == lifecycle.Paused {
			options.OnTimeout = client.Pause
		}
		sb, err := f.s.client.Create(f.ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		id, sandbox = sb.ID, sb
		if o.only == mergePoints {
			f.replace(sb)
		}
		f.bring(id, lifecycle.Paused)
	}
	f.bring(id, o.from)
	if o.only == mergePoints {
		f.replace(sandbox)
	}
	if o.snapshot {
		of := f.counting.sb.ID
		if o.back {
			of = id
		}
		f.bring(of, lifecycle.Running)
		if err := f.takeSnapshot(of); err != nil {
			t.Fatal(err)
		}
		if id == f.counting.sb.ID && !o.back {
			f.last = f.counting.ask(f.ctx)
		}
		f.bring(id, o.from)
	}
	f.s.waitWarm(warmOf(o.kind))
	if o.name == restartName {
		f.arm(failpoint.Armed{Point: failpoint.Checkpointed, Fault: failpoint.Crash, Nth: 1})
		_ = f.pause(id)
		if err := <-f.s.exited; !killed(err) {
			t.Fatalf("the server ended with %v", err)
		}
		f.s.cmd = nil
		httpClient.CloseIdleConnections()
		f.disarm()
	}
	return id
}

const restartName = "restart in the middle of a pause"

// finish ends sandboxes that are not needed again.
func (f *faults) finish(o operation, id string) {
	f.t.Helper()
	f.dropSnapshots()
	if (o.on != nothing && o.on != somebody) || f.t.Failed() {
		return
	}
	for other, rec := range f.records() {
		if other == f.counting.sb.ID || other == f.written.ID || rec.State == lifecycle.Terminated {
			continue
		}
		if err := f.kill(other); err != nil {
			f.t.Errorf("clean up: %v", err)
		}
		f.settle("nothing", other, operation{})
	}
}

// newcomer returns the id of the sandbox that was not there before; empty if
// there is none.
func (f *faults) newcomer(before map[string]lifecycle.Record) string {
	for id := range f.records() {
		if _, was := before[id]; !was {
			return id
		}
	}
	return ""
}
