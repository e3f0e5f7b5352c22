package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// noise is how many MiB of it a noisy guest has in its memory, which is most of that.
var noise = testmode.Choose(32, 64)

// noisy is a guest with noise in its memory.
type noisy struct {
	*guest
	ctx    context.Context
	digest string
}

const digestNoise = "cd /dev/shm && sha256sum noise*"

func (s *server) startNoisy(ctx context.Context) *noisy {
	s.t.Helper()
	n := &noisy{guest: s.startGuest(ctx, sleeper), ctx: ctx}
	n.change(fmt.Sprintf("head -c %dM /dev/urandom >/dev/shm/noise", noise))
	return n
}

// change changes the memory.
func (n *noisy) change(command string) {
	t := n.s.t
	t.Helper()
	exit, out := run(n.ctx, t, n.sb, "sh", "-c", command+" && "+digestNoise)
	if exit.Code != 0 {
		t.Fatalf("%s: %+v: %s", command, exit, out)
	}
	n.digest = out
}

// check compares the memory with what it was.
func (n *noisy) check(when string) {
	t := n.s.t
	t.Helper()
	if exit, out := run(n.ctx, t, n.sb, "sh", "-c", digestNoise); exit.Code != 0 || out != n.digest {
		t.Fatalf("%s: the digest of its memory is %q (%+v); was %q", when, out, exit, n.digest)
	}
	n.same(n.first, n.ask(n.ctx))
}

// goneOn is a sandbox that has gone on from this one.
func (n *noisy) goneOn(sb *client.Sandbox) *noisy {
	return &noisy{guest: n.guest.goneOn(sb), ctx: n.ctx, digest: n.digest}
}

// packs returns the files of pages of a paused sandbox's image, and how many bytes of
// the image no other has.
func (s *server) packs(ctx context.Context, id string) (packs []string, written int64) {
	s.t.Helper()
	dir := s.checkpointOf(ctx, id)
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			s.t.Fatal(err)
		}
		if pagemap.IsPack(e.Name()) {
			packs = append(packs, e.Name())
		}
		if !pagemap.IsPack(e.Name()) || e.Name() == pagemap.PackOf(filepath.Base(dir)) {
			written += info.Size()
		}
	}
	return packs, written
}

// TestDeltaPauses pauses a sandbox again and again, and each image has only what
// changed. Its memory is what it was each time: woken all at once or early, after a
// crash of the server, without the option, in its forks, from its snapshots and on
// another server. The images go with the last one that needs them.
func TestDeltaPauses(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t, "--delta-pauses", "1")
	n := s.startNoisy(ctx)
	s.pause(ctx, n.sb.ID)
	_, first := s.packs(ctx, n.sb.ID)
	if first < int64(noise)<<20 {
		t.Fatalf("the first image has %d bytes", first)
	}
	cycles := testmode.Choose(4, 10)
	for cycle := range cycles {
		n.check(fmt.Sprintf("cycle %d", cycle))
		n.change(fmt.Sprintf("dd if=/dev/urandom of=/dev/shm/noise bs=64k count=1 seek=%d conv=notrunc 2>/dev/null", cycle*50))
		if cycle == cycles-3 {
			s.crash()
			s.start()
		}
		begin := time.Now()
		s.pause(ctx, n.sb.ID)
		took := time.Since(begin)
		packs, written := s.packs(ctx, n.sb.ID)
		t.Logf("cycle %d: %d bytes written, in %s, %d packs", cycle, written, took, len(packs))
		if written > first/2 {
			t.Errorf("cycle %d: %d bytes were written; the first image had %d", cycle, written, first)
		}
		if len(packs) > pagemap.MaxPacks {
			t.Errorf("cycle %d: it has %d packs", cycle, len(packs))
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if faults, code := s.fsck(t); len(faults) > 0 || code != 0 {
		t.Errorf("fsck: %+v, exit code %d", faults, code)
	}
	s.start()
	n.check("woken")

	snaps := client.NewSnapshots(s.client)
	snap, err := snaps.Create(ctx, n.sb.ID, client.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	children, err := snaps.Fork(ctx, n.sb.ID, client.ForkOptions{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	then := n.digest
	n.change("head -c 1M /dev/urandom >/dev/shm/noise2")
	s.pause(ctx, n.sb.ID)
	for i, c := range children {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		child := n.goneOn(c.Sandbox)
		child.digest = then
		child.check(fmt.Sprintf("child %d", i))
		child.change(fmt.Sprintf("head -c %dM /dev/urandom >/dev/shm/noise3", i+1))
		s.pause(ctx, child.sb.ID)
		if packs, written := s.packs(ctx, child.sb.ID); len(packs) < 2 || written > first/2 {
			t.Errorf("child %d has the packs %v, %d bytes for itself", i, packs, written)
		}
		if i == 0 {
			s.kill(ctx, t, child.sb.ID)
			continue
		}
		child.check("a child whose sibling was killed")
	}
	n.check("after its child was killed")
	s.pause(ctx, n.sb.ID)
	if _, err := snaps.Restore(ctx, n.sb.ID, client.RestoreOptions{Snapshot: snap.ID, Discard: true}); err != nil {
		t.Fatal(err)
	}
	n.digest = then
	n.change("rm -f /dev/shm/noise2")
	n.check("taken back to its snapshot")
	if err := snaps.Delete(ctx, snap.ID); err != nil {
		t.Fatal(err)
	}
	n.check("without its snapshot")
	s.pause(ctx, n.sb.ID)

	file := s.exported(ctx, n.sb.ID)
	other := startServer(t, "--delta-pauses", "0")
	there := &noisy{guest: &guest{s: other, sb: other.imported(ctx, file, client.ImportOptions{NewID: true}), first: n.first}, ctx: ctx, digest: n.digest}
	there.check("on another server")

	// Another server reads it all the same, and leaves it as it is.
	s.restartWith("--delta-pauses", "0")
	n.check("without the option")
	s.pause(ctx, n.sb.ID)
	if packs, _ := s.packs(ctx, n.sb.ID); len(packs) > 0 {
		t.Errorf("without the option it has the packs %v", packs)
	}
	s.restartWith("--delta-pauses", "1", "--early-wake", "1")
	for cycle := range 3 {
		n.check(fmt.Sprintf("early, cycle %d", cycle))
		s.pause(ctx, n.sb.ID)
		n.ask(ctx)
		s.pause(ctx, n.sb.ID)
	}
	n.check("woken early")
}

// restartWith restarts the server with other options.
func (s *server) restartWith(args ...string) {
	s.t.Helper()
	if err := s.stop(); err != nil {
		s.t.Fatal(err)
	}
	s.args = args
	s.start()
}

// TestDamagedDelta flips a byte in every file of an image that shares pages with others.
// It is found, the file is named, and with the byte put back the sandbox wakes.
func TestDamagedDelta(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t, "--delta-pauses", "1", "--early-wake", "0") // else it may run before the byte is read
	n := s.startNoisy(ctx)
	for cycle := range 3 {
		n.check(fmt.Sprintf("cycle %d", cycle))
		s.pause(ctx, n.sb.ID)
	}
	dir := s.checkpointOf(ctx, n.sb.ID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if packs, _ := s.packs(ctx, n.sb.ID); len(packs) < 2 {
		t.Fatalf("it has the packs %v", packs)
	}
	// flipped calls check for each file, with a byte of it changed.
	flipped := func(check func(name string)) {
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > 0 {
				path := filepath.Join(dir, e.Name())
				flipByte(t, path, info.Size()/2)
				check(e.Name())
				flipByte(t, path, info.Size()/2)
			}
		}
	}
	flipped(func(name string) {
		s.checkDamaged(ctx, n.guest, "a byte of "+name+" changed")
		if got, err := s.client.Get(ctx, n.sb.ID); err != nil || !strings.Contains(got.LastError, name) {
			t.Errorf("its last error is %q, %v; want it to name %s", got.LastError, err, name)
		}
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	flipped(func(name string) {
		if faults, _ := s.fsck(t); !slices.ContainsFunc(faults, func(f fault) bool { return strings.Contains(fmt.Sprint(f), name) }) {
			t.Errorf("fsck does not name %s: %+v", name, faults)
		}
	})
	s.start()
	s.connect(ctx, n.sb.ID)
	n.check("with all bytes put back")
}

// flipByte changes a bit of a file in place, so that its hard links see it too.
func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{b[0] ^ 1}, at); err != nil {
		t.Fatal(err)
	}
}
