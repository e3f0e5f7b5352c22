package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// warmRig returns a driver for which one runtime waits.
func warmRig(t *testing.T) (*rig, *Driver) {
	r := newRig(t)
	r.warm = 1
	return r, r.reopen(t).(*Driver)
}

// waits returns the id of the runtime that waits.
func waits(t *testing.T, d *Driver) string {
	t.Helper()
	ids, err := names(d.waiting())
	if err != nil || len(ids) != 1 {
		t.Fatalf("%v wait, %v; want one", ids, err)
	}
	return ids[0]
}

// start starts a runtime that is removed at the end of the test.
func start(t *testing.T, d *Driver, spec runtime.Spec) *instance {
	t.Helper()
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	inst, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return inst.(*instance)
}

// traces returns what the host shows of the runtime that gVisor knows as cid.
func traces(t *testing.T, d *Driver, cid string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"/sys/fs/cgroup/drowse/" + cid, "/sys/fs/cgroup/*/drowse/" + cid,
		filepath.Join(d.root, "*"+cid+"*"), filepath.Join(d.waiting(), cid),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), cid) {
		found = append(found, "a mount")
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if line, _ := os.ReadFile(p); strings.Contains(string(line), cid) {
			found = append(found, p)
		}
	}
	return found
}

func wantNoTrace(t *testing.T, d *Driver, cid string) {
	t.Helper()
	if found := traces(t, d, cid); len(found) > 0 {
		t.Errorf("left of %s: %q", cid, found)
	}
}

// TestTakeWaiting follows a runtime from when it waits to its end.
func TestTakeWaiting(t *testing.T) {
	r, d := warmRig(t)
	cid := waits(t, d)
	if ids, err := d.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("list = %v, %v; want nothing while nothing was started", ids, err)
	}
	spec := r.newSpec(t)
	inst := start(t, d, spec)
	if inst.ID() != spec.ID || inst.c.about().id != cid {
		t.Fatalf("runtime %s is %s, want %s to be %s", inst.ID(), inst.c.about().id, spec.ID, cid)
	}
	if ids, err := d.List(t.Context()); err != nil || !slices.Equal(ids, []string{spec.ID}) {
		t.Errorf("list = %v, %v; want %s", ids, err, spec.ID)
	}
	if used, err := inst.Usage(); err != nil || used.Memory <= 0 {
		t.Errorf("usage = %+v, %v; want the memory of its processes", used, err)
	}
	r.awaitWarm(t, d)
	if next := waits(t, d); next == cid {
		t.Errorf("%s still waits", cid)
	}
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, d, cid)
	cid = waits(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, d, cid)
}

// TestLongStateDirectory has a runtime wait, taken and ended below a path that
// is longer than that of a socket may be.
func TestLongStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200), strings.Repeat("e", 200))
	r := newRigIn(t, dir)
	r.warm = 1
	d := r.reopen(t).(*Driver)
	cid := waits(t, d)
	if _, err := os.Lstat(filepath.Join(lateRootDir(filepath.Join(d.waiting(), cid)), rootSocket)); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	spec := r.newSpec(t)
	inst := start(t, d, spec)
	if inst.c.about().id != cid {
		t.Errorf("runtime %s is %s, want %s, which waited", spec.ID, inst.c.about().id, cid)
	}
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, d, cid)
}

// TestDeadIsNotTaken ends a process of the runtime that waits.
func TestDeadIsNotTaken(t *testing.T) {
	for name, pid := range map[string]func(*slot) int{
		"sentry":      func(s *slot) int { return s.c.SandboxPid() },
		"file server": func(s *slot) int { return s.c.GoferPid.Load() },
	} {
		t.Run(name, func(t *testing.T) {
			r, d := warmRig(t)
			cid := waits(t, d)
			d.pool.mu.Lock()
			victim := pid(d.pool.waiting[0])
			d.pool.mu.Unlock()
			end(t, victim)
			spec := r.newSpec(t)
			if inst := start(t, d, spec); inst.c.about().id == cid {
				t.Errorf("%s was taken, whose %s is dead", cid, name)
			}
			wantNoTrace(t, d, cid)
		})
	}
}

// end kills a process and waits until it is gone.
func end(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); err != nil || n != 1 {
		t.Fatalf("process %d does not end: %v", pid, err)
	}
}

// TestOtherShape starts what the runtime that waits cannot become. The next to
// wait can.
func TestOtherShape(t *testing.T) {
	r, d := warmRig(t)
	cid := waits(t, d)
	spec := r.newSpec(t)
	spec.Limits.MemoryMiB /= 2
	if inst := start(t, d, spec); inst.c.about().id != spec.ID {
		t.Errorf("%s was taken for other limits", inst.c.about().id)
	}
	for deadline := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		d.pool.mu.Lock()
		ready := len(d.pool.waiting) == 1 && d.pool.waiting[0].c.ID != cid
		d.pool.mu.Unlock()
		if ready {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no other runtime waits")
		}
	}
	wantNoTrace(t, d, cid)
	cid = waits(t, d)
	again := r.newSpec(t)
	again.Limits = spec.Limits
	if inst := start(t, d, again); inst.c.about().id != cid {
		t.Errorf("runtime is %s, want %s, which waited", inst.c.about().id, cid)
	}
}

// TestWaitingOfKilledServer opens the state of a server that was killed while
// runtimes waited or were being made, and while one was taken.
func TestWaitingOfKilledServer(t *testing.T) {
	r := newRig(t)
	r.warm = 2
	first := r.reopen(t).(*Driver)
	// Killed: it neither fills the pool nor takes from it any more.
	first.pool.stop()
	<-first.pool.stopped
	first.pool.mu.Lock()
	taken, left := first.pool.waiting[0], first.pool.waiting[1]
	first.pool.waiting = nil
	first.pool.mu.Unlock()
	spec := r.newSpec(t)
	if err := first.become(taken, spec); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(first.waiting(), "warm-half")
	if _, cancel, err := listenForRoot(lateRootDir(half)); err != nil {
		t.Fatal(err)
	} else {
		cancel()
	}
	if err := netnsOf(half).Create(); err != nil {
		t.Fatal(err)
	}

	r.warm = 0
	d := r.reopen(t).(*Driver)
	wantNoTrace(t, d, left.c.ID)
	wantNoTrace(t, d, "warm-half")
	// The one taken has its id, and is for who knows that to remove.
	if ids, err := d.List(t.Context()); err != nil || !slices.Equal(ids, []string{spec.ID}) {
		t.Errorf("list = %v, %v; want %s", ids, err, spec.ID)
	}
	if inst, err := d.Adopt(t.Context(), spec.ID); err == nil {
		t.Errorf("adopted %v, which never ran", inst.ID())
	}
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wantNoTrace(t, d, taken.c.ID)
}

// TestFileServerIsConfined looks at what the file server of a runtime that
// waited can do and see.
func TestFileServerIsConfined(t *testing.T) {
	r, d := warmRig(t)
	start(t, d, r.newSpec(t)) // another one
	r.awaitWarm(t, d)
	d.pool.mu.Lock()
	gofer := d.pool.waiting[0].c.GoferPid.Load()
	d.pool.mu.Unlock()
	// While it waits it sees an empty directory of its own.
	empty := filepath.Join("/proc", strconv.Itoa(gofer), "root")
	if inside, err := names(empty); err != nil || len(inside) > 0 {
		t.Errorf("before there is a root: %q, %v; want nothing", inside, err)
	}
	if above, err := names(empty + "/.."); err != nil || !slices.Equal(above, []string{"etc", "proc", "root"}) {
		t.Errorf("above it there is %q, %v; want what gVisor makes for every file server", above, err)
	}
	filters := seccompFilters(t, gofer)
	inst := start(t, d, r.newSpec(t))
	if inst.c.about().gofer != gofer {
		t.Fatal("the runtime is not the one that waited")
	}
	if got := seccompFilters(t, gofer); got != filters+1 {
		t.Errorf("%d filters of system calls, want one more than the %d before there was a root", got, filters)
	}
	// Its root is that of the runtime, and nothing is above it.
	root := filepath.Join("/proc", strconv.Itoa(gofer), "root")
	inside, err := names(root)
	if err != nil || !slices.Contains(inside, "guest") {
		t.Errorf("the root has %q, %v; want the guest in it", inside, err)
	}
	if above, err := names(root + "/../.."); err != nil || !slices.Equal(above, inside) {
		t.Errorf("above the root there is %q, %v; want only the root", above, err)
	}
}

func seccompFilters(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "Seccomp_filters:")
	text, _, _ = strings.Cut(text, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("number of filters: %v", err)
	}
	return n
}

// TestMountsNeedTheirOwn starts, and restores, a runtime that mounts something:
// it is made for that, and the one that waits goes on waiting.
func TestMountsNeedTheirOwn(t *testing.T) {
	r, d := warmRig(t)
	cid := waits(t, d)
	shared := t.TempDir()
	mounted := func(spec runtime.Spec) runtime.Spec {
		spec.Mounts = []runtime.Mount{{Source: shared, Path: "/mnt/shared"}}
		return spec
	}
	spec := mounted(r.newSpec(t))
	inst := start(t, d, spec)
	if inst.c.about().id != spec.ID {
		t.Errorf("runtime %s is %s, which was made before", inst.ID(), inst.c.about().id)
	}
	image := t.TempDir()
	if err := inst.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := inst.Checkpoint(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	next := mounted(r.again(t, spec))
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), next.ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.Restore(t.Context(), next, image); err != nil {
		t.Fatal(err)
	}
	if now := waits(t, d); now != cid {
		t.Errorf("%s waits in the place of %s", now, cid)
	}
}

// TestLastWaitsForOthers: an owner who has launched a lot leaves the runtime that waits
// to one who has not, whose it is made like; and gets one of its own all the same.
func TestLastWaitsForOthers(t *testing.T) {
	r, d := warmRig(t)
	modest := r.newSpec(t)
	modest.Owner, modest.Limits.MemoryMiB = "modest", 128
	start(t, d, modest)
	r.awaitShape(t, d, 128)
	busy := r.newSpec(t)
	d.pool.mu.Lock()
	for range 30 {
		d.pool.demand.launched("busy", shapeOf(busy), time.Now())
	}
	d.pool.mu.Unlock()
	cid := waits(t, d)
	busy.Owner, busy.Limits.MemoryMiB = "busy", 128
	if i := start(t, d, busy); i.c.about().id == cid {
		t.Error("the busy owner took what waited")
	}
	again := r.newSpec(t)
	again.Owner, again.Limits.MemoryMiB = "modest", 128
	if i := start(t, d, again); i.c.about().id != cid {
		t.Errorf("the modest owner got %s, want %s, which waited", i.c.about().id, cid)
	}
}

// awaitShape waits until a runtime with so much memory waits, and nothing else.
func (r *rig) awaitShape(t *testing.T, d *Driver, mebibytes int) {
	t.Helper()
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		d.pool.mu.Lock()
		fit := len(d.pool.waiting) == 1 && d.pool.waiting[0].shape.Limits.MemoryMiB == mebibytes
		d.pool.mu.Unlock()
		if fit {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no runtime of %d MiB waits", mebibytes)
		}
	}
}
