package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// faultyBinary is the server with failpoints.
var faultyBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(guestBinary), "drowse-faulty")
	return path, buildServer(path, "-tags=failpoint")
})

// faults is a server with failpoints, and two sandboxes that must not lose
// anything.
type faults struct {
	t      *testing.T
	ctx    context.Context
	kind   int
	s      *server
	db     *store.SQL // of the server, which may be dead
	points string     // the directory of the failpoints
	serial int

	export   []byte // of counting, asleep
	counting *guest
	last     report // of counting
	written  *client.Sandbox
	lines    int // in written's file
	volume   client.Volume
}

// The kinds of servers on which faults strike, and their options.
const (
	_           = iota // no runtimes wait
	warmServer         // one does
	deltaServer        // none does, and images share their pages
	lightServer        // none does, and the runtimes of sandboxes that sleep stay
)

var serverKinds = [][]string{{"--warm-runtimes", "0"}, {"--warm-runtimes", "1"}, {"--warm-runtimes", "0", "--delta-pauses", "1"}, {"--warm-runtimes", "0", "--light-sleep", "1h"}}

// warmOf returns how many runtimes wait on a kind of server.
func warmOf(kind int) int {
	if kind == warmServer {
		return 1
	}
	return 0
}

func startFaulty(ctx context.Context, t *testing.T, kind int) *faults {
	t.Helper()
	binary, err := faultyBinary()
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{t: t, ctx: ctx, kind: kind, s: newServer(t, stateDir(t)), points: t.TempDir()}
	f.s.binary, f.s.args = binary, serverKinds[kind]
	f.s.env = []string{failpoint.EnvDir + "=" + f.points}
	t.Cleanup(f.s.cleanUp)
	f.s.start()
	if f.db, err = store.Open(ctx, filepath.Join(f.s.dir(), "drowse.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close() })
	options := client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)}
	f.counting = f.s.startGuest(ctx, options)
	f.written = f.s.create(ctx, options)
	f.replace(f.written)
	// From here on there is a checkpoint of each to lose.
	f.bring(f.counting.sb.ID, lifecycle.Paused)
	f.export = f.s.exported(ctx, f.counting.sb.ID)
	for _, err := range []error{f.resume(f.counting.sb.ID), f.pauseFiles(f.written.ID), f.resume(f.written.ID)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.last = f.counting.ask(ctx)
	return f
}

// end holds that both sandboxes still have everything, and stops the server.
func (f *faults) end() {
	f.bring(f.counting.sb.ID, lifecycle.Running)
	f.bring(f.written.ID, lifecycle.Running)
	f.check(memory)
	f.check(files)
	f.s.cleanUp()
}

// tell has t told of everything from now on.
func (f *faults) tell(t *testing.T) { f.t, f.s.t = t, t }

// arm lets faults strike from now on, and forgets what was before.
func (f *faults) arm(all ...failpoint.Armed) {
	f.t.Helper()
	var b strings.Builder
	for _, a := range all {
		f.serial++
		a.Serial = f.serial
		b.WriteString(a.String())
	}
	for _, name := range []string{failpoint.StruckFile, failpoint.ReachedFile} {
		if err := os.Remove(filepath.Join(f.points, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			f.t.Fatal(err)
		}
	}
	// At once: the server may be reading it.
	armed := filepath.Join(f.points, failpoint.ArmedFile)
	if err := errors.Join(os.WriteFile(armed+".new", []byte(b.String()), 0o600), os.Rename(armed+".new", armed)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *faults) disarm() {
	if err := os.Remove(filepath.Join(f.points, failpoint.ArmedFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
}

// struck reports whether the fault at p has struck.
func (f *faults) struck(p failpoint.Point) bool {
	data, _ := os.ReadFile(filepath.Join(f.points, failpoint.StruckFile))
	return strings.Contains("\n"+string(data), "\n"+string(p)+" ")
}

// bring pauses or resumes a sandbox, if it is not in that state.
func (f *faults) bring(id string, to lifecycle.State) {
	f.t.Helper()
	if id == "" || f.records()[id].State == to {
		return
	}
	var err error
	switch {
	case to == lifecycle.Running:
		err = f.resume(id)
	case f.written != nil && id == f.written.ID:
		err = f.pauseFiles(id)
	default:
		err = f.pause(id)
	}
	if err != nil {
		f.t.Fatalf("bring %s to %s: %v", id, to, err)
	}
	f.settle("nothing", id, operation{})
}

// check holds that a sandbox has kept what it had.
func (f *faults) check(which subject) {
	f.t.Helper()
	if f.t.Failed() {
		return
	}
	switch which {
	case memory:
		now := f.counting.ask(f.ctx)
		f.counting.same(f.last, now)
		f.counting.checkAppended(f.ctx)
		f.last = now
	case files:
		f.bring(f.written.ID, lifecycle.Running)
		var want strings.Builder
		for n := range f.lines {
			fmt.Fprintln(&want, n+1)
		}
		if _, got := run(f.ctx, f.t, f.written, "cat", "lines"); f.lines > 0 && got != want.String() {
			f.t.Errorf("the file has %q, want %q", got, want.String())
		}
	}
}

// records reads what the server has committed.
func (f *faults) records() map[string]lifecycle.Record {
	f.t.Helper()
	list, err := f.db.Sandboxes(f.ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	all := map[string]lifecycle.Record{}
	for _, sb := range list {
		all[sb.ID] = sb.Record
	}
	return all
}

// settledWithin bounds what follows an operation: a fault in it may be tried
// again only after a while.
const settledWithin = time.Minute

// settle waits until nothing is in flight and nothing on the host is nobody's.
func (f *faults) settle(after, id string, o operation) {
	f.t.Helper()
	if err := poll(settledWithin, func() error { return f.unsettled(id, o) }); err != nil {
		f.t.Fatalf("after %s: %v", after, err)
	}
}

// unsettled returns an error that says what is in flight, lost or left behind.
func (f *faults) unsettled(id string, o operation) error {
	all := f.records()
	for id, rec := range all {
		if rec.Op != nil {
			return fmt.Errorf("sandbox %s is still %s", id, rec.Phase())
		}
	}
	// It follows a pause, and would come in the way of what is tried next.
	if n, err := f.s.metric(f.ctx, "drowse_layer_merges"); n != 0 || err != nil {
		return errors.Join(fmt.Errorf("the layers of %v sandboxes are still being merged", n), err)
	}
	rec := all[id]
	if o.clock && rec.State == lifecycle.Running && rec.EndAt.Before(time.Now()) && rec.PauseRetryAt.IsZero() {
		return errors.New("its time has come, and it has not ended")
	}
	want, running := belongings(all, f.sleepsLightly)
	volumes, err := f.db.Volumes(f.ctx)
	if err != nil {
		return err
	}
	snaps, err := f.db.Snapshots(f.ctx)
	if err != nil {
		return err
	}
	for _, snap := range snaps {
		addFiles(want, snap.Checkpoint)
	}
	want["volumes/.writing"] = true
	for _, v := range volumes {
		want["volumes/"+v.ID] = true
	}
	for _, d := range []string{"images", "layers", "imports", "run/rootfs", "run/gv/bundles", "volumes", "volumes/.writing"} {
		for _, path := range glob(filepath.Join(f.s.dir(), d, "*")) {
			name := filepath.Join(d, filepath.Base(path))
			if !want[name] {
				return fmt.Errorf("%s is nobody's", name)
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("missing: %v", want)
	}
	return f.strays(all, running)
}

// sleepsLightly reports whether the runtime of a sandbox stays while it sleeps.
func (f *faults) sleepsLightly(id string) bool {
	info, err := f.s.client.Get(f.ctx, id)
	return err == nil && info.Sleep == client.LightSleep
}

// belongings returns the files that records tell of, and the runtimes that run or stay.
func belongings(all map[string]lifecycle.Record, light func(id string) bool) (files map[string]bool, running []string) {
	files = map[string]bool{}
	for id, rec := range all {
		if rec.State == lifecycle.Terminated {
			continue
		}
		if cp := rec.Checkpoint; cp != nil {
			addFiles(files, *cp)
		}
		if rec.State == lifecycle.Running || light(id) {
			launch := fmt.Sprintf("%sr%07d", id, rec.Launch)
			running = append(running, launch)
			files["layers/"+launch], files["run/rootfs/"+launch], files["run/gv/bundles/"+launch] = true, true, true
		}
	}
	return files, running
}

// addFiles adds those of a checkpoint.
func addFiles(files map[string]bool, cp lifecycle.Checkpoint) {
	if cp.Mode == lifecycle.Memory {
		files["images/"+cp.ID] = true
	}
	for _, l := range cp.Stack {
		files["layers/"+l] = true
	}
}

// strays returns an error that names processes, mounts and cgroups of none of
// the runtimes.
func (f *faults) strays(all map[string]lifecycle.Record, running []string) error {
	dir := f.s.dir()
	var owned []string
	for _, id := range running {
		owned = append(owned, processes(dir, id)...)
	}
	pid := func(line string) string { before, _, _ := strings.Cut(line, " ("); return before }
	ours := fmt.Sprintf("process %d", f.s.pid())
	for _, line := range processes(dir, dir) {
		if pid(line) == ours || waits(dir, line) || slices.ContainsFunc(owned, func(o string) bool { return pid(o) == pid(line) }) {
			continue
		}
		return fmt.Errorf("%s is nobody's", line)
	}
	known := owners(dir)
	found := mounts(dir)
	for id := range all {
		found = append(found, cgroups(dir, id)...)
	}
	for _, line := range found {
		if strings.Contains(line, "/run/gv/runsc/") { // gVisor's own pin, which all share
			continue
		}
		mine := func(id string) bool {
			return strings.Contains(line, id) || known[warmID.FindString(line)] == id
		}
		if !slices.ContainsFunc(running, mine) && !waits(dir, line) {
			return fmt.Errorf("%s is nobody's", line)
		}
	}
	return nil
}

// launch starts the server and returns when it answers or has ended.
func (f *faults) launch() error {
	s := f.s
	s.cmd, s.exited = s.command(), make(chan error, 1)
	if err := startCommand(s.cmd); err != nil {
		return err
	}
	cmd, exited := s.cmd, s.exited
	go func() { exited <- cmd.Wait() }()
	for {
		if s.client.Health(f.ctx) == nil {
			return nil
		}
		select {
		case err := <-exited:
			return fmt.Errorf("the server ended: %w", err)
		case <-f.ctx.Done():
			return f.ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

func killed(err error) bool {
	var exit interface{ Sys() any }
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
