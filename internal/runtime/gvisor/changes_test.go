package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// chain is a guest with a large heap whose images share their pages.
type chain struct {
	*early
	inst   *instance
	n      int
	id     string // of the last image
	digest string
	sealed layer.Manifest
}

func newChain(t *testing.T) *chain { return newChainOn(t, newRig(t)) }

func newChainOn(t *testing.T, r *rig) *chain {
	c := &chain{early: &early{rig: r}}
	c.d = c.reopen(t).(*Driver)
	c.spec = c.newSpec(t)
	c.inst = start(t, c.d, c.spec)
	var err error
	if c.sum, err = heap(t, c.inst, fmt.Sprintf("mib=%d&percent=100", heapMiB)); err != nil {
		t.Fatal(err)
	}
	return c
}

// write captures the runtime, which stays frozen, and leaves the image unsealed.
func (c *chain) write(t *testing.T) (id string, p *layer.Packs, err error) {
	t.Helper()
	c.n++
	id = fmt.Sprintf("image%d", c.n)
	dir, p, err := c.store.NewImageOver(id, c.id, c.digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.inst.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	return id, p, c.inst.CheckpointChanges(t.Context(), dir, runtime.Changes{Pack: p.Own, Base: p.Base, Keep: p.Keep})
}

// pause captures the runtime and removes it, and the image before. It returns how much
// of the new image was written for it.
func (c *chain) pause(t *testing.T) (written int64) {
	t.Helper()
	id, p, err := c.write(t)
	if err != nil {
		t.Fatal(err)
	}
	digest, _, err := c.store.Seal(layer.Manifest{ID: id, Runtime: "test"}, p)
	if err != nil {
		t.Fatal(err)
	}
	if c.sealed, err = c.store.Verify(id, digest); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.sealed.Files {
		if !pagemap.IsPack(f.Name) || f.Name == p.Own {
			written += f.Size
		}
	}
	c.remove(t)
	if c.id != "" {
		if err := c.store.RemoveImage(c.id); err != nil {
			t.Fatal(err)
		}
	}
	c.id, c.digest, c.image = id, digest, c.store.ImageDir(id)
	return written
}

func (c *chain) files() (files []runtime.ImageFile) {
	for _, f := range c.sealed.Files {
		files = append(files, runtime.ImageFile{Name: f.Name, Size: f.Size, Chunk: layer.ChunkSize, CRC32C: f.CRC32C})
	}
	return files
}

// wake restores the last image.
func (c *chain) wake(t *testing.T, allFirst bool) error {
	t.Helper()
	c.allFirst = allFirst
	i, err := c.restore(t, c.files())
	if err == nil {
		c.inst = i
	}
	return err
}

// check reads all of the heap.
func (c *chain) check(t *testing.T) {
	t.Helper()
	if got, err := heap(t, c.inst, "percent=100"); err != nil || got != c.sum {
		t.Fatalf("after %d images the heap's checksum is %s, %v; want %s", c.n, got, err, c.sum)
	}
}

// TestCaptureChanges captures a guest again and again: once all of it, then what it
// changed. Everything must be there each time, however it is woken.
func TestCaptureChanges(t *testing.T) {
	c := newChain(t)
	first := c.pause(t)
	if first < heapMiB<<20 {
		t.Fatalf("the first image has %d bytes", first)
	}
	for n := range 14 {
		if err := c.wake(t, n%2 == 0); err != nil {
			t.Fatal(err)
		}
		if n%5 != 4 { // else it is captured as early as it lets itself be
			c.check(t)
		}
		if n == 10 { // all of it is new
			var err error
			if c.sum, err = heap(t, c.inst, fmt.Sprintf("mib=%d&percent=100", heapMiB/2)); err != nil {
				t.Fatal(err)
			}
		}
		written := c.pause(t)
		t.Logf("image %d: %d bytes written, %d files", c.n, written, len(c.sealed.Files))
		if n != 10 && n != 11 && written > first/4 {
			t.Errorf("image %d has %d bytes of its own; the first had %d", c.n, written, first)
		}
		if len(c.sealed.Files) > pagemap.MaxPacks+4 {
			t.Errorf("image %d has %d files", c.n, len(c.sealed.Files))
		}
	}
	if err := c.wake(t, true); err != nil {
		t.Fatal(err)
	}
	c.check(t)
}

// TestWakeInWaiting wakes images with a map in runtimes that waited, which were made in
// another place, and captures them again.
func TestWakeInWaiting(t *testing.T) {
	r := newRig(t)
	r.warm = 1
	c := newChainOn(t, r)
	c.pause(t)
	for _, allFirst := range []bool{true, false, true} {
		r.awaitWarm(t, c.d)
		cid := waits(t, c.d)
		if err := c.wake(t, allFirst); err != nil {
			t.Fatal(err)
		}
		if got := c.inst.c.about().id; got != cid {
			t.Errorf("all first %t: it runs in %s, want %s, which waited", allFirst, got, cid)
		}
		c.check(t)
		c.pause(t)
		wantNoTrace(t, c.d, cid)
	}
}

// pageMap returns the map of the last image.
func (c *chain) pageMap(t *testing.T) *pagemap.Map {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.image, pagemap.Name))
	if err != nil {
		t.Fatal(err)
	}
	m, err := pagemap.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// bytesOf returns the first byte of a file of the last image, one in the middle, and the
// last. Of a pack they are those of pages that the image needs: nobody reads the others.
func (c *chain) bytesOf(t *testing.T, f layer.File) []int64 {
	t.Helper()
	at := []int64{0, f.Size / 2, f.Size - 1}
	if !pagemap.IsPack(f.Name) {
		return at
	}
	at = nil
	m := c.pageMap(t)
	for _, r := range m.Runs {
		if r.Pack != pagemap.Zeros && m.Packs[r.Pack] == f.Name {
			at = append(at, int64(r.At)*pagemap.PageSize, int64(r.At+r.Pages)*pagemap.PageSize-1)
		}
	}
	slices.Sort(at)
	if len(at) == 0 {
		return nil
	}
	return []int64{at[0], at[len(at)/2], at[len(at)-1]}
}

// TestChangesFindDamage flips a byte in each file of a chain, and wakes the guest in both
// ways. It does not start, or ends when the byte is read, and answers for no other memory
// before; the file is named.
func TestChangesFindDamage(t *testing.T) {
	c := newChain(t)
	for range 3 {
		c.pause(t)
		if err := c.wake(t, true); err != nil {
			t.Fatal(err)
		}
		c.check(t)
	}
	c.pause(t)
	packs, late := 0, 0
	damaged := func(f layer.File, at int64, allFirst bool) {
		t.Run(fmt.Sprintf("%s at %d, all first %t", f.Name, at, allFirst), func(t *testing.T) {
			path := filepath.Join(c.image, f.Name)
			flip(t, path, at)
			defer flip(t, path, at)
			if !allFirst && at == c.bytesOf(t, f)[2] && pagemap.IsPack(f.Name) {
				slow(t, path)
			}
			if c.wakeDamaged(t, f.Name, at, allFirst) {
				late++
			}
		})
	}
	for _, f := range c.sealed.Files {
		if pagemap.IsPack(f.Name) {
			packs++
		}
		if f.Name == pagemap.SumsName || f.Size == 0 {
			continue // no runtime reads it: the store verifies it
		}
		for _, at := range c.bytesOf(t, f) {
			for _, allFirst := range []bool{true, false} {
				damaged(f, at, allFirst)
			}
		}
	}
	if packs < 2 || late == 0 {
		t.Errorf("the chain has %d packs, and %d times damage was found when the guest ran", packs, late)
	}
	if err := c.wake(t, false); err != nil {
		t.Fatal(err)
	}
	c.check(t)
}

// slow has a file of an image read so slowly that a guest runs before all of it is
// there, until it is written to.
func slow(t *testing.T, path string) {
	t.Helper()
	if err := os.Chtimes(path, slowMark, slowMark); err != nil {
		t.Fatal(err)
	}
}

// slowMark is the time of a file that is to be read slowly. An image server that is
// nobody's sees no more of the test than its files.
var slowMark = time.Unix(1, 0)

// slowly reads a file so.
type slowly struct{ io.ReaderAt }

func (s slowly) ReadAt(p []byte, off int64) (int, error) {
	time.Sleep(30 * time.Millisecond)
	return s.ReaderAt.ReadAt(p, off)
}

// readsOf returns how the files of an image server are read.
func readsOf() func(*os.File) io.ReaderAt {
	return func(f *os.File) io.ReaderAt {
		var stat unix.Stat_t
		if unix.Fstat(int(f.Fd()), &stat) == nil && stat.Mtim.Sec == slowMark.Unix() {
			return slowly{f}
		}
		return f
	}
}

// wakeDamaged wakes an image of which a byte was flipped. It reports whether the guest
// ran before that was found.
func (c *chain) wakeDamaged(t *testing.T, name string, at int64, allFirst bool) (late bool) {
	t.Helper()
	err := c.wake(t, allFirst)
	if late = err == nil; late && !allFirst {
		if sum, err := heap(t, c.inst, "percent=100"); err == nil && sum != c.sum {
			t.Errorf("the guest answers %s (it was %s), with a byte of its image changed", sum, c.sum)
		}
		select {
		case <-c.inst.Exited():
		case <-time.After(time.Minute):
			t.Fatal("the runtime goes on")
		}
		err = c.inst.Damage()
		c.remove(t)
	} else if errdef.CodeOf(err) != codeDamaged {
		t.Errorf("restore: %v; want the code %s", err, codeDamaged)
	}
	if d, ok := errors.AsType[*imageserver.Damage](err); !ok || d.File != name || d.Offset != at&^(1<<20-1) {
		t.Errorf("damage %v; want it named", err)
	}
	return late
}

// TestWakeNearTheLimit wakes a guest that has all the memory that it may, in both ways.
// What reads its image has memory beside that, as long as it is there. The guest may
// hold so much then that a limit leaves its margin above that.
func TestWakeNearTheLimit(t *testing.T) {
	limit := int64(guestSpec.Limits.MemoryMiB+memoryOverhead) << 20
	c := newChain(t)
	for {
		used, _, err := memoryOf(c.inst.group)
		if err != nil {
			t.Fatal(err)
		}
		if used > limit-(12<<20) {
			break
		}
		if err := hold(t, c.inst, 4); err != nil {
			t.Fatal(err)
		}
	}
	for _, allFirst := range []bool{true, false} {
		c.pause(t)
		if err := c.wake(t, allFirst); err != nil {
			t.Fatal(err)
		}
		c.check(t)
		<-c.inst.loaded
		g, ok := memoryGroupOf(c.inst.group)
		if !ok {
			t.Fatal("nothing bounds the guest's memory")
		}
		for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if now, err := g.read(g.limit); err != nil || now <= limit+limitMargin {
				break
			}
		}
		if now, err := g.read(g.limit); err != nil || now < limit || now > limit+limitMargin {
			t.Errorf("the limit is %d, %v; want %d, or %d more at most", now, err, limit, limitMargin)
		}
	}
}

// TestAssembleChanges puts the files of a chain together for a build that knows none.
func TestAssembleChanges(t *testing.T) {
	c := newChain(t)
	c.pause(t)
	if err := c.wake(t, true); err != nil {
		t.Fatal(err)
	}
	c.check(t)
	c.pause(t)
	if err := os.MkdirAll(c.d.bundle("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(c.d.bundle("x"))
	whole, err := c.d.assemble("x", c.image, c.files())
	if err != nil {
		t.Fatal(err)
	}
	c.image, c.allFirst = whole, false
	i, err := c.restore(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.inst = i
	c.check(t)
}

// takers returns the image takers that this process has started.
func takers(t *testing.T) (pids []int) {
	t.Helper()
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range children {
		data, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(data)) {
			line, _ := os.ReadFile("/proc/" + field + "/cmdline")
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil && strings.TrimRight(string(line), "\x00") == imageTakerName {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestCaptureWithoutTaker kills what takes the image, some time after it has begun. The
// capture fails, the guest goes on, and the next capture is good.
func TestCaptureWithoutTaker(t *testing.T) {
	c := newChain(t)
	c.pause(t)
	if err := c.wake(t, true); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := range 8 {
		c.check(t)
		stop := make(chan struct{})
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			for begun := (time.Time{}); ; time.Sleep(time.Millisecond) {
				select {
				case <-stop:
					return
				default:
				}
				pids := takers(t)
				if len(pids) == 0 {
					continue
				}
				if begun.IsZero() {
					begun = time.Now()
				}
				if time.Since(begun) < time.Duration(n)*5*time.Millisecond {
					continue
				}
				for _, pid := range pids {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}()
		id, _, err := c.write(t)
		close(stop)
		<-killed
		if err != nil {
			failed++
			t.Logf("killed after %d ms: %v", n*5, err)
		}
		if pids := takers(t); len(pids) > 0 {
			t.Errorf("image takers are left: %v", pids)
		}
		if err := c.store.RemoveImage(id); err != nil {
			t.Fatal(err)
		}
		if err := c.inst.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if failed == 0 {
		t.Error("no capture failed")
	}
	c.check(t)
	c.pause(t)
	if err := c.wake(t, false); err != nil {
		t.Fatal(err)
	}
	c.check(t)
}
