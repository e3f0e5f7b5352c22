package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/fsgofer"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/netns"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// The tests below hold what gVisor does and does not promise, one each. After an
// upgrade of gVisor a failure here says what to look at. docs/design/runtime-builds.md
// lists them.

// TestPrivateList: the page lists each of them, and each row of its table names
// tests of this package that exist.
func TestPrivateList(t *testing.T) {
	page, err := os.ReadFile("../../../docs/design/runtime-builds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| What drowse relies on |")
	if table, _, _ = strings.Cut(table, "\n\n"); !ok || table == "" {
		t.Fatal("the page has no table of what drowse relies on")
	}
	exist := testsHere(t)
	var listed []string
	for _, row := range strings.Split(table, "\n")[2:] { // the first is the rest of the head
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 3 || len(names) == 0 {
			t.Errorf("this row names no test: %s", row)
		}
		for _, name := range names {
			listed = append(listed, name[1])
			if !slices.Contains(exist, name[1]) {
				t.Errorf("the page lists %s, which is not there", name[1])
			}
		}
	}
	for _, test := range exist {
		if strings.HasPrefix(test, "TestPrivate") && test != "TestPrivateList" && !slices.Contains(listed, test) {
			t.Errorf("%s is not on the page", test)
		}
	}
}

// testsHere returns the names of the tests of this package.
func testsHere(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(string(source), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// startOne returns a driver, as many of whose runtimes wait, and a runtime that
// answers.
func startOne(t *testing.T, warm int) (*rig, *Driver, runtime.Spec, *instance) {
	t.Helper()
	r := newRig(t)
	r.warm = warm
	d, spec := r.reopen(t).(*Driver), r.newSpec(t)
	inst, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	askFresh(t, inst)
	return r, d, spec, inst.(*instance)
}

func awaitEnd(t *testing.T, inst runtime.Instance) {
	t.Helper()
	select {
	case <-inst.Exited():
	case <-time.After(testmode.Patience()):
		t.Error("the runtime has not ended")
	}
}

// TestPrivateTaskStacks: the stacks of a sentry name the functions in which a
// task runs and in which it has stopped. By them a server that finds a runtime
// again knows whether it is frozen.
func TestPrivateTaskStacks(t *testing.T) {
	_, _, _, inst := startOne(t, 0)
	c := inst.c.(local).c
	for _, frozen := range []bool{false, true} {
		if frozen {
			if err := inst.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		stacks, err := c.Sandbox.Stacks()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stacks, "kernel.(*Task).run(") {
			t.Errorf("frozen %t: no task is found in\n%.2000s", frozen, stacks)
		}
		if allStopped(stacks) != frozen {
			t.Errorf("taken for frozen: %t, and it is not so", !frozen)
		}
	}
}

// TestPrivateFreezeCount: freezes are counted, and a thaw too many is the end of
// the sentry. So the driver thaws only what it knows to be frozen.
func TestPrivateFreezeCount(t *testing.T) {
	_, _, _, inst := startOne(t, 0)
	c := inst.c.(local)
	for range 2 {
		if err := c.freeze(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.thaw(); err != nil {
		t.Fatal(err)
	}
	if stopped, err := c.stopped(); err != nil || !stopped {
		t.Errorf("frozen twice and thawed once, it runs: %v", err)
	}
	if err := c.thaw(); err != nil {
		t.Fatal(err)
	}
	askFresh(t, inst)
	_ = c.thaw() // the connection ends with the sentry
	awaitEnd(t, inst)
}

// TestPrivateCheckpointLeavesFrozen: a checkpoint that is to leave a frozen
// runtime running leaves it frozen. Up to the commit nothing in it may change.
func TestPrivateCheckpointLeavesFrozen(t *testing.T) {
	r, _, _, inst := startOne(t, 0)
	image := r.capture(t, inst)
	if stopped, err := inst.c.stopped(); err != nil || !stopped {
		t.Errorf("after the checkpoint it runs: %v", err)
	}
	if err := inst.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	askFresh(t, inst)
	if entries, err := os.ReadDir(image); err != nil || len(entries) == 0 {
		t.Errorf("the image has %v, %v", entries, err)
	}
}

// TestPrivateStateFiles: what gVisor keeps of a runtime has names that follow from
// its id, which is in all of them. The driver copies the state and mends it; what a
// killed process has left it removes, by the id.
func TestPrivateStateFiles(t *testing.T) {
	_, d, spec, _ := startOne(t, 0)
	found, err := names(d.root)
	if err != nil {
		t.Fatal(err)
	}
	of := slices.DeleteFunc(found, func(name string) bool { return !strings.Contains(name, spec.ID) })
	var want []string
	for _, path := range []string{d.stateFile(spec.ID, "state"), d.stateFile(spec.ID, "lock"), filepath.Join(d.root, "runsc-"+spec.ID+".sock")} {
		want = append(want, filepath.Base(path))
	}
	slices.Sort(of)
	slices.Sort(want)
	if !slices.Equal(of, want) {
		t.Errorf("gVisor keeps %q, and the driver knows of %q", of, want)
	}
	if err := os.WriteFile(d.stateFile(spec.ID, "state"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Adopt(t.Context(), spec.ID); err != nil {
		t.Errorf("a torn state is not mended from the copy: %v", err)
	}
}

// TestPrivateNetnsPin: gVisor pins one network namespace for all file servers
// below its own state, under a name with "netns" in it.
func TestPrivateNetnsPin(t *testing.T) {
	_, d, spec, inst := startOne(t, 0)
	pins, err := filepath.Glob(filepath.Join(d.root, "*netns*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pinned are %q, %v; want one", pins, err)
	}
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, inst)
	if err := d.letGo(); err != nil {
		t.Fatal(err)
	}
	if left, err := names(d.root); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}

// TestPrivatePrefixes: gVisor takes the beginning of an id for the id unless it is
// told otherwise. So ids have one length, and are looked up as they are.
func TestPrivatePrefixes(t *testing.T) {
	_, d, spec, _ := startOne(t, 0)
	part := spec.ID[:len(spec.ID)-1]
	c, err := container.Load(d.root, container.FullID{ContainerID: part}, container.LoadOpts{SkipCheck: true})
	if err != nil || c.ID != spec.ID {
		t.Errorf("%q is not taken for %s: %v", part, spec.ID, err)
	}
	if _, err := d.load(d.bundle(part), part); err == nil {
		t.Errorf("the driver takes %q for %s", part, spec.ID)
	}
}

// TestPrivateFileServerEnds: a restored sentry goes on without its file server,
// and every later open would fail. So the driver ends it.
func TestPrivateFileServerEnds(t *testing.T) {
	r, d, first, inst := startOne(t, 0)
	image := r.capture(t, inst)
	if err := d.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	spec := r.again(t, first)
	restored, err := d.Restore(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	askFresh(t, restored)
	if err := unix.Kill(restored.(*instance).c.about().gofer, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, restored)
}

// TestPrivateRootNames: the sentry opens files on the host, where they have names
// below /root, or below / if the file server made the root its own.
func TestPrivateRootNames(t *testing.T) {
	for _, warm := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d waiting", warm), func(t *testing.T) {
			_, _, _, inst := startOne(t, warm)
			if inst.c.about().lateRoot != (warm == 1) {
				t.Fatal("the runtime is not of the kind that is to be tested")
			}
			files, err := inst.OpenFiles()
			if err != nil || !slices.ContainsFunc(files, func(f runtime.OpenFile) bool { return f.Path == "/guest" }) {
				t.Errorf("open are %+v, %v; want the program that runs", files, err)
			}
		})
	}
}

// fields returns the names and types of what a struct has.
func fields(t reflect.Type) (list []string) {
	for i := range t.NumField() {
		list = append(list, t.Field(i).Name+" "+t.Field(i).Type.String())
	}
	return list
}

// TestPrivateGoferConfig: what gVisor's file server is told. The driver tells the
// same to the one that gets its root later; a field that is new has to be looked
// up in runsc/cmd/gofer.go.
func TestPrivateGoferConfig(t *testing.T) {
	want := []string{
		"HostUDS config.HostUDS", "HostFifo config.HostFifo", "CharDevicePolicy config.CharacterDevicePolicy", "DonateMountPointFD bool",
		"RUID int", "EUID int", "RGID int", "EGID int",
	}
	if got := fields(reflect.TypeFor[fsgofer.Config]()); !slices.Equal(got, want) {
		t.Errorf("the file server is told %q; the driver knows of %q", got, want)
	}
}

// TestPrivateFilterLayout: how gVisor keeps a filter of system calls that was
// compiled ahead. That its contents are right, TestSentryFilter holds.
func TestPrivateFilterLayout(t *testing.T) {
	want := []string{"Name string", "Bytecode32 []uint32", "VarOffsets map[string][]int"}
	if got := fields(reflect.TypeFor[precompiledseccomp.Program]()); !slices.Equal(got, want) {
		t.Errorf("a filter has %q; the driver knows of %q", got, want)
	}
	clear(precompiled)
	registerFilters()
	if len(precompiled) == 0 {
		t.Error("gVisor's list of filters is not where the driver puts one")
	}
}

// TestPrivateCgroupRoot: gVisor looks for the tree of cgroups once, in a variable
// that the driver sets before. It has no flag for it.
func TestPrivateCgroupRoot(t *testing.T) {
	_, d, spec, inst := startOne(t, 0)
	if d.place == nil {
		t.Log("this host has cgroup v1, where gVisor's own place is used")
	}
	pids, err := processesOf(inst.group)
	is := inst.c.about()
	if err != nil || !slices.Contains(pids, is.sentry) || !slices.Contains(pids, is.gofer) {
		t.Errorf("in the cgroup of %s are %v, %v; want processes %d and %d among them", spec.ID, pids, err, is.sentry, is.gofer)
	}
}

// TestPrivateAddresses: gVisor takes the addresses off the guest's interface when
// it starts. So they are put on again before every restore, into a namespace that
// is new.
func TestPrivateAddresses(t *testing.T) {
	_, d, spec, inst := startOne(t, 0)
	conn, err := inst.Dial(t.Context(), 1) // nobody listens there
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the guest answers with %v; its kernel must have the address", err)
	}
	ns, err := vnetns.GetFromPath(netnsOf(d.bundle(spec.ID)).Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(netns.GuestLink)
	if err != nil {
		t.Fatal(err)
	}
	if has, err := h.AddrList(link, netlink.FAMILY_V4); err != nil || len(has) > 0 {
		t.Errorf("the host's kernel has the guest's addresses %v, %v", has, err)
	}
}
