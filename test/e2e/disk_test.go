package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// smallDisk returns a state directory on a file system of its own of so many
// MiB.
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	base, err := os.MkdirTemp("", "dw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "s")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, mib<<20), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", image},
		{"mount", "-o", "loop", image, dir}, // the loop device goes with the mount
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		state := filepath.Join(dir, "state")
		for _, left := range footprint(state, state) {
			t.Errorf("left behind: %s", left)
		}
		if err := destroy(state); err != nil {
			t.Error(err)
		}
		if err := poll(goneWithin, func() error { return unix.Unmount(dir, 0) }); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return filepath.Join(dir, "state")
}

// available returns the bytes that can still be written below dir.
func available(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// awaitSpace waits until so many bytes can be written again below dir: a file
// system need not have back at once what was removed.
func awaitSpace(t *testing.T, dir string, bytes int64) {
	t.Helper()
	eventually(t, time.Minute, "space is back", func() error {
		if n := available(t, dir); n < bytes {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
}

// fill leaves so many bytes below dir, and returns what gives them back.
func fill(t *testing.T, dir string, leave int64) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(filepath.Dir(dir), "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if size := available(t, dir) - leave; size > 0 {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
			t.Fatalf("fill the disk: %v", err)
		}
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("free the disk: %v", err)
		}
	}
}

// TestFullDisk pauses sandboxes whose memory does not fit on the disk. The
// pause fails and says so, and everything goes on as before; with space again,
// it works.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	dir := smallDisk(t, 400)
	s := startServerIn(t, dir)
	g, other := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	var held int
	if err := g.call(ctx, "GET", "/hold?mib=96", nil, &held); err != nil {
		t.Fatal(err)
	}
	before, otherBefore := g.ask(ctx), other.ask(ctx)

	free := fill(t, dir, 48<<20)
	defer free()
	s.refusedPause(ctx, t, g, before)
	other.same(otherBefore, other.ask(ctx))
	if n := named(dir, "", "images"); len(n) > 0 {
		t.Errorf("left of the pause that failed: %q", n)
	}

	// By its timeout: it is put off, not turned into a kill.
	if err := s.client.SetTimeout(ctx, g.sb.ID, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "pause at the timeout fails", func() error {
		if s.log.count(g.sb.ID, `msg="sandbox pause_failed"`, "cause=timeout") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	g.same(before, g.ask(ctx))
	if err := s.is(ctx, g.sb.ID, client.Running); err != nil {
		t.Error(err)
	}

	free()
	took := s.pause(ctx, g.sb.ID)
	s.waitGone(g.sb.ID)
	s.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
	g.checkAppended(ctx)
	t.Logf("pause of %d MiB after space was freed: %s", held, took.Round(time.Millisecond))
}

// What a person can be expected to read.
const (
	maxMessage = 1000
	maxLogLine = 4000
)

// refusedPause pauses the guest's sandbox, which must fail with a clear error
// and leave it running.
func (s *server) refusedPause(ctx context.Context, t *testing.T, g *guest, before report) {
	t.Helper()
	begin := time.Now()
	err := s.client.Pause(ctx, g.sb.ID)
	if err == nil {
		t.Fatalf("the pause worked, with %d bytes free", available(t, s.dir()))
	}
	if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the pause failed with %v, want unavailable and why", err)
	}
	t.Logf("pause refused after %s: %.300v", since(begin), err)
	if n := len(err.Error()); n > maxMessage {
		t.Errorf("the message has %d bytes", n)
	}
	if n := s.log.longest(); n > maxLogLine {
		t.Errorf("the server's log has a line of %d bytes", n)
	}
	if err := s.is(ctx, g.sb.ID, client.Running); err != nil {
		t.Error(err)
	}
	now := g.ask(ctx)
	g.same(before, now)
	eventually(t, 5*time.Second, "counter goes on", func() error {
		if g.ask(ctx).Counter == now.Counter {
			return errors.New("it stands still")
		}
		return nil
	})
}

// TestDiskFilledFromInside lets a guest fill the disk to the last byte, so that
// nothing at all can be written. Whoever can make space must be able to: the
// guest by deleting, the owner by killing a sandbox.
func TestDiskFilledFromInside(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	dir := smallDisk(t, 300)
	s := startServerIn(t, dir)
	g, asleep := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	doomed := s.create(ctx, sleeper)
	asleep.first = asleep.ask(ctx)
	s.pause(ctx, asleep.sb.ID)
	fillUp := func() {
		t.Helper()
		if exit, out := run(ctx, t, g.sb, "sh", "-c", "cat /dev/zero >>fill; echo >>fill; true"); !strings.Contains(out, "No space left") {
			t.Fatalf("%s: %s", exit.Status, out)
		}
	}
	fillUp()
	before := g.ask(ctx)

	impatient, cancel := context.WithTimeout(ctx, testmode.Patience())
	defer cancel()
	begin := time.Now()
	err := s.client.Pause(impatient, g.sb.ID)
	t.Logf("pause refused after %s: %.300v", since(begin), err)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status/100 != 5 || e.Message == "" {
		t.Errorf("the pause ended with %.300v, want a failure with a reason", err)
	}
	now, err := g.report(impatient)
	if err != nil {
		t.Fatalf("the guest whose pause failed cannot be reached: %v", err)
	}
	g.same(before, now)
	if err := s.client.Health(ctx); err != nil {
		t.Error(err)
	}
	for what, sb := range map[string]*client.Sandbox{"the full one": g.sb, "the sleeping one": asleep.sb} {
		if _, err := s.client.Get(ctx, sb.ID); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.client.Create(impatient, client.CreateOptions{}); err == nil {
		t.Error("a sandbox was created without space for it")
	} else {
		t.Logf("create refused: %.300v", err)
	}
	if err := s.client.Kill(impatient, doomed.ID); err != nil {
		t.Errorf("kill on a full disk: %v", err)
	} else {
		s.waitGone(doomed.ID)
	}

	fillUp()
	before = g.ask(ctx)
	s.crash()
	s.start()
	g.same(before, g.ask(ctx))
	if exit, out := run(ctx, t, g.sb, "rm", "fill"); exit.Code != 0 {
		t.Fatalf("rm: %s", out)
	}
	awaitSpace(t, dir, 50<<20)
	s.pause(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
	asleep.same(asleep.first, asleep.ask(ctx))
	g.checkAppended(ctx)
}

// TestSnapshotLeavesSpace takes snapshots of a sandbox that has more files than
// there is space to copy. The others go on to have some, also meanwhile; nothing is
// left, and the sandbox runs on.
func TestSnapshotLeavesSpace(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	dir := smallDisk(t, 1024)
	s := startServerIn(t, dir)
	g := s.startGuest(ctx, client.CreateOptions{})
	if exit, out := run(ctx, t, g.sb, "sh", "-c", "head -c 200M /dev/urandom >large && sync large"); exit.Code != 0 {
		t.Fatal(out)
	}
	snaps := client.NewSnapshots(s.client)
	free := fill(t, dir, 150<<20)
	before := available(t, dir)
	least := make(chan int64)
	taking, taken := context.WithCancel(ctx)
	go func() {
		n := before
		for taking.Err() == nil {
			n = min(n, available(t, dir))
			time.Sleep(time.Millisecond)
		}
		least <- n
	}()
	_, err := snaps.Create(ctx, g.sb.ID, client.SnapshotOptions{Name: "too-large"})
	taken()
	if err == nil || !strings.Contains(err.Error(), "MiB left") {
		t.Errorf("the snapshot: %v; want that there is no space", err)
	}
	if n := <-least; n < 16<<20 {
		t.Errorf("meanwhile there were %d MiB", n>>20)
	}
	awaitSpace(t, dir, before-(8<<20))
	if list, err := snaps.List(ctx, ""); err != nil || len(list) != 0 {
		t.Errorf("there are %+v, %v", list, err)
	}
	g.ask(ctx)
	free()
	awaitSpace(t, dir, 400<<20)
	if _, err := snaps.Create(ctx, g.sb.ID, client.SnapshotOptions{Name: "now"}); err != nil {
		t.Fatalf("with space: %v", err)
	}
	if err := snaps.Delete(ctx, "now"); err != nil {
		t.Error(err)
	}
}
