package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/disklimit"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// tenant is a sandbox whose files a test writes.
type tenant struct {
	*bench
	s   *Supervisor
	id  string
	box *box
}

const tenantLimit = 64 // MiB

func (b *bench) tenant() *tenant {
	b.t.Helper()
	b.limits = store.Limits{DiskMiB: tenantLimit}
	s, _ := b.open()
	id := create(b.t, s, CreateRequest{Settings: sleepy})
	box, err := s.box(id)
	if err != nil {
		b.t.Fatal(err)
	}
	return &tenant{b, s, id, box}
}

// write adds a file of so many MiB.
func (tn *tenant) write(name string, mib int64) {
	tn.t.Helper()
	allocate(tn.t, filepath.Join(tn.s.rootfs(sweep.RuntimeID(tn.id, record(tn.t, tn.s, tn.id).Launch)), name), mib)
}

func (tn *tenant) remove(name string) {
	tn.t.Helper()
	if err := os.Remove(filepath.Join(tn.s.rootfs(sweep.RuntimeID(tn.id, record(tn.t, tn.s, tn.id).Launch)), name)); err != nil {
		tn.t.Fatal(err)
	}
}

// allocate makes a file of so many MiB.
func allocate(t *testing.T, path string, mib int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if mib == 0 {
		return
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, mib<<20); err != nil {
		t.Fatal(err)
	}
}

// staysUp looks at the disk, which changes nothing.
func (tn *tenant) staysUp(why string) {
	tn.t.Helper()
	tn.box.tenant.Limit(tn.t.Context())
	if rec := record(tn.t, tn.s, tn.id); rec.State != lifecycle.Running || rec.Op != nil {
		tn.t.Fatalf("%s: it is %s", why, rec.Situation())
	}
}

// isPaused looks at the disk, which has the sandbox paused.
func (tn *tenant) isPaused(detail string) {
	tn.t.Helper()
	tn.box.tenant.Limit(tn.t.Context())
	tn.wantPaused(detail)
}

// wantPaused waits until it is paused because of the disk.
func (tn *tenant) wantPaused(detail string) {
	tn.t.Helper()
	testmode.Eventually(tn.t, "the pause", func() bool { return record(tn.t, tn.s, tn.id).Situation() == lifecycle.Situation(lifecycle.Paused) })
	events, err := tn.s.Events(tn.t.Context(), tn.id, 0, 100)
	if err != nil {
		tn.t.Fatal(err)
	}
	var last lifecycle.Entry
	for _, e := range events {
		if e.Type == lifecycle.EntryPausing {
			last = e.Entry
		}
	}
	if last.Cause != lifecycle.CauseDisk || !strings.Contains(last.Detail, detail) {
		tn.t.Errorf("it was paused because of %s (%s), want %q", last.Cause, last.Detail, detail)
	}
}

// TestDiskLimit has a sandbox write more than it may. It sleeps, loses nothing,
// and may go on when it is woken, but not take much more.
func TestDiskLimit(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	s := tn.s
	wantCount(t, s, tn.id, 1, 1)
	tn.write("some", tenantLimit-1)
	tn.staysUp("below its limit")
	tn.write("more", 2)
	tn.isPaused("its files take 65 MiB, and its limit is 64 MiB")
	wantCount(t, s, tn.id, 2, 2)
	tn.write("little", quota.LeastSlack>>20-1)
	tn.staysUp("woken past its limit")
	tn.write("much", 2)
	tn.isPaused("its files take 98 MiB")
	wantCount(t, s, tn.id, 3, 3)
	tn.staysUp("woken once more")
}

// TestDiskLimitAfterRemoval: what a sandbox has removed of its frozen layers does not
// count, also before the next pause, and is not shown as taken.
func TestDiskLimitAfterRemoval(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	tn.write("some", tenantLimit-14)
	if err := tn.s.Pause(t.Context(), tn.id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, tn.s, tn.id, 1, 2)
	tn.remove("some")
	tn.write("other", tenantLimit-24)
	tn.staysUp("with room made")
	if taken := tn.box.tenant.Taken().Bytes >> 20; taken != tenantLimit-24 {
		t.Errorf("it takes %d MiB, want %d", taken, tenantLimit-24)
	}
	tn.write("more", 25)
	tn.isPaused("its files take 65 MiB, and its limit is 64 MiB")
}

// TestDiskLimitOfWhatIsHidden: a sandbox that woke far past its limit, and has removed
// all, may write as much as its limit. What it has hidden is still on the disk, and
// counts where it is more than that.
func TestDiskLimitOfWhatIsHidden(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	tn.write("some", 3*tenantLimit)
	tn.isPaused("its files take 192 MiB")
	wantCount(t, tn.s, tn.id, 1, 2)
	tn.remove("some")
	tn.write("new", tenantLimit)
	tn.staysUp("with as much as its limit")
	tn.write("more", tenantLimit/2+1)
	tn.isPaused("its files take 225 MiB")
}

func TestDiskLimitOfFiles(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	for i := range tenantLimit << 20 / quota.BytesPerName {
		tn.write(strconv.Itoa(i), 0)
	}
	tn.isPaused("names, one for each 16 KiB, and its limit is 64 MiB")
}

// TestDiskLimitWithoutRoom has no room for a pause: a sandbox over its limit goes,
// back to its last pause if there is one.
func TestDiskLimitWithoutRoom(t *testing.T) {
	for name, slept := range map[string]bool{"never slept": false, "has slept": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.littleDisk(disklimit.ScarceSpace>>20 - 1)
			tn := b.tenant()
			s := tn.s
			wantCount(t, s, tn.id, 1, 1)
			generation := int64(1)
			if slept {
				if err := s.Pause(t.Context(), tn.id, PauseRequest{}); err != nil {
					t.Fatal(err)
				}
				generation++
				wantCount(t, s, tn.id, 2, generation)
			}
			tn.write("much", tenantLimit+1)
			tn.box.tenant.Limit(tn.t.Context())
			if slept {
				testmode.Eventually(t, "the way back", func() bool { return record(t, s, tn.id).State == lifecycle.Paused })
				if e := record(t, s, tn.id).LastError; !strings.HasPrefix(e, string(lifecycle.OutOfDisk)) {
					t.Errorf("its last error is %q", e)
				}
				return
			}
			testmode.Eventually(t, "the end", func() bool { return record(t, s, tn.id).State == lifecycle.Terminated })
			if stone := record(t, s, tn.id).Tombstone; stone.Reason != lifecycle.OutOfDisk || !strings.Contains(stone.Detail, "no room for a pause") {
				t.Errorf("it ended of %s (%s)", stone.Reason, stone.Detail)
			}
		})
	}
}

// TestDiskLimitBelowManyDirectories hides what it takes below more directories
// than a path can name.
func TestDiskLimitBelowManyDirectories(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	tn.hide(treetest.Shape{Deep: 2200}, tenantLimit+1)
	tn.isPaused("and its limit is 64 MiB")
	wantCount(t, tn.s, tn.id, 1, 2)
}

// hide makes a hostile tree in the sandbox, with a file of so many MiB at the
// bottom of it.
func (tn *tenant) hide(shape treetest.Shape, mib int64) {
	tn.t.Helper()
	root := tn.s.rootfs(sweep.RuntimeID(tn.id, record(tn.t, tn.s, tn.id).Launch))
	treetest.Make(tn.t, root, shape)
	tn.t.Cleanup(func() { // testing cannot remove it
		if err := tree.Remove(filepath.Join(tn.dir, "layers")); err != nil {
			tn.t.Error(err)
		}
	})
	top, err := os.Open(root)
	if err != nil {
		tn.t.Fatal(err)
	}
	defer top.Close()
	bottom, err := tree.OpenBelow(top, "deep/"+strings.Repeat("d/", shape.Deep-1)+"d", unix.O_PATH)
	if err != nil {
		tn.t.Fatal(err)
	}
	defer bottom.Close()
	allocate(tn.t, tree.ProcPath(int(bottom.Fd()), "much"), mib)
}

// TestDiskLimitThatNoPauseKeeps has a pause fail each time: then the limit ends
// the runtime, and does not go without effect.
func TestDiskLimitThatNoPauseKeeps(t *testing.T) {
	b := newBench(t)
	b.set(func() { b.checkpoint = func() error { return errors.New("the guest prevents it") } })
	tn := b.tenant()
	tn.write("much", tenantLimit+1)
	tn.box.tenant.Limit(tn.t.Context())
	testmode.Eventually(t, "the failure", func() bool {
		events, err := tn.s.Events(t.Context(), tn.id, 0, 100)
		return err == nil && slices.ContainsFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryPauseFailed })
	})
	if rec := record(t, tn.s, tn.id); rec.State != lifecycle.Running {
		t.Fatalf("after one failure it is %s", rec.Situation())
	}
	testmode.Eventually(t, "the end", func() bool {
		tn.box.tenant.Limit(t.Context()) // which does nothing while a pause is tried
		return record(t, tn.s, tn.id).State == lifecycle.Terminated
	})
	stone := record(t, tn.s, tn.id).Tombstone
	if stone.Reason != lifecycle.OutOfDisk || !strings.Contains(stone.Detail, "could not be paused") || !strings.Contains(stone.Detail, "the guest prevents it") {
		t.Errorf("it ended of %s (%s)", stone.Reason, stone.Detail)
	}
}

// TestUncountedIsPastTheLimit: what cannot be measured does not run on.
func TestUncountedIsPastTheLimit(t *testing.T) {
	b := newBench(t)
	tn := b.tenant()
	top := filepath.Join(tn.dir, "layers", sweep.RuntimeID(tn.id, 1))
	if err := os.Rename(top, top+".away"); err != nil {
		t.Fatal(err)
	}
	tn.box.tenant.Limit(tn.t.Context())
	if err := os.Rename(top+".away", top); err != nil {
		t.Fatal(err)
	}
	tn.wantPaused("could not be counted")
}

// littleDisk makes the disk where the server looks for room one of so many MiB.
func (b *bench) littleDisk(mib int) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "rootfs")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(mib)+"m"); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			b.t.Error(err)
		}
	})
}
