package gvisor

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/pagemap"

	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// first returns the blocks that the last image lists; none if it has no list.
func (c *chain) first(t *testing.T) (blocks []uint32) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.image, firstUseFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || len(data)%4 != 0 || len(data) > maxFirstUse {
		t.Fatalf("a list of %d bytes, %v", len(data), err)
	}
	for ; len(data) > 0; data = data[4:] {
		blocks = append(blocks, binary.LittleEndian.Uint32(data))
	}
	return blocks
}

// setFirst gives the last image another list.
func (c *chain) setFirst(t *testing.T, list []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.image, firstUseFile), list, 0o600); err != nil {
		t.Fatal(err)
	}
	c.sealed.Files = slices.DeleteFunc(c.sealed.Files, func(f layer.File) bool { return f.Name == firstUseFile })
	for _, f := range unread(t, c.image) {
		if f.Name == firstUseFile {
			c.sealed.Files = append(c.sealed.Files, layer.File{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C})
		}
	}
}

// slowPack has the pages of the last image read so slowly that the guest uses some
// before all are there.
func (c *chain) slowPack(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(c.image, pagemap.PackOf("image1"))
	slow(t, path)
	return path
}

// TestFirstUse wakes a guest that uses a part of its memory while that is being loaded:
// the next image lists that part. It lists nothing after a wake in which all was loaded
// first: then nobody sees what is used.
func TestFirstUse(t *testing.T) {
	c := newChain(t)
	c.pause(t)
	if got := c.first(t); len(got) > 0 {
		t.Errorf("a guest that was not woken yet used %d blocks", len(got))
	}
	const blocks = heapMiB << 20 / (64 << 10)
	for cycle := range 2 {
		c.slowPack(t)
		if err := c.wake(t, false); err != nil {
			t.Fatal(err)
		}
		if _, err := heap(t, c.inst, "percent=4"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.inst.loaded:
			t.Fatal("all was loaded before the guest had used some of it")
		default:
		}
		c.pause(t)
		got := c.first(t)
		t.Logf("cycle %d: %d blocks of %d", cycle, len(got), blocks)
		if len(got) < blocks/25 || len(got) > blocks/2 {
			t.Errorf("cycle %d: the guest used 4 %% of its heap, which has %d blocks: %d are listed", cycle, blocks, len(got))
		}
		sorted := slices.Sorted(slices.Values(got))
		if len(slices.Compact(sorted)) != len(got) {
			t.Errorf("cycle %d: blocks are listed twice", cycle)
		}
	}
	if err := c.wake(t, true); err != nil {
		t.Fatal(err)
	}
	c.check(t)
	c.pause(t)
	if got := c.first(t); len(got) > 0 {
		t.Errorf("%d blocks are listed after a wake in which all was loaded first", len(got))
	}
}

// TestFirstUseIsReadFirst wakes an image with two damaged parts. The one that is found is
// the first one, unless the list has the second.
func TestFirstUseIsReadFirst(t *testing.T) {
	c := newChain(t)
	c.pause(t)
	path := c.slowPack(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second := info.Size()/4, info.Size()*3/4
	flip(t, path, first)
	flip(t, path, second)
	found := func() int64 {
		c.slowPack(t)
		err := c.wake(t, false)
		var damage error
		if err != nil {
			damage = err
		} else {
			<-c.inst.Exited()
			damage = c.inst.Damage()
		}
		d, ok := errors.AsType[*imageserver.Damage](damage)
		if !ok {
			t.Fatalf("the wake of a damaged image: %v, %v", err, damage)
		}
		c.remove(t)
		return d.Offset
	}
	if got, want := found(), first&^(layer.ChunkSize-1); got != want {
		t.Errorf("without a list damage was found at %d first, want %d", got, want)
	}
	m := c.pageMap(t)
	page := uint32(second / pagemap.PageSize)
	i := slices.IndexFunc(m.Runs, func(r pagemap.Run) bool { return r.Pack == 0 && r.At <= page && page < r.At+r.Pages })
	if i < 0 {
		t.Fatal("no run has the second part")
	}
	block := (m.Runs[i].Source + page - m.Runs[i].At) / 16
	c.setFirst(t, binary.LittleEndian.AppendUint32(nil, block))
	if got, want := found(), second&^(layer.ChunkSize-1); got != want {
		t.Errorf("damage was found at %d first, want %d, of block %d, which is listed", got, want, block)
	}
}

// TestFirstUseOfAnything wakes images with lists that no gVisor wrote: of what is not
// there, of parts of numbers, of the same again and again. A list that was damaged is not used.
func TestFirstUseOfAnything(t *testing.T) {
	c := newChain(t)
	c.pause(t)
	noise := make([]byte, maxFirstUse)
	_, _ = rand.Read(noise)
	small := make([]byte, 32<<10) // the same again and again, in any order
	for i := range len(small) / 4 {
		binary.LittleEndian.PutUint32(small[4*i:], uint32(noise[i])<<3)
	}
	for _, list := range [][]byte{nil, {1, 2, 3}, noise, small} {
		c.setFirst(t, list)
		if err := c.wake(t, false); err != nil {
			t.Fatalf("a list of %d bytes: %v", len(list), err)
		}
		c.check(t)
		c.remove(t)
	}
	flip(t, filepath.Join(c.image, firstUseFile), 0)
	if got := firstUseOf(c.image, c.files()); got != nil {
		t.Errorf("a damaged list is used: %d bytes", len(got))
	}
	if err := c.wake(t, false); err != nil {
		t.Errorf("the wake of an image with a damaged list: %v", err)
	}
}

// TestImageServerWaits wakes guests with image servers that waited, and without where
// these have died. Those that wait end with their server.
func TestImageServerWaits(t *testing.T) {
	r := newRig(t)
	r.warm = 1
	c := newChainOn(t, r)
	c.pause(t)
	waiting := func() (pid int) {
		p := &c.d.pool.images
		eventually(t, "an image server waits", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.waiting) == 0 {
				return false
			}
			pid = p.waiting[0].pid()
			return true
		})
		return pid
	}
	for n := range 3 {
		pid := 0
		if n > 0 {
			pid = waiting()
		}
		if n == 2 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it has ended", func() bool { return exited(pid) })
		}
		c.slowPack(t)
		if err := c.wake(t, false); err != nil {
			t.Fatal(err)
		}
		if got := imageServerOf(t, c.inst); n == 1 && got != pid || n == 2 && (got == pid || got == 0) {
			t.Errorf("wake %d is served by process %d; %d waited", n, got, pid)
		}
		c.check(t)
		c.remove(t)
	}
	pid := waiting()
	if err := c.d.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended with its server", func() bool { return exited(pid) })
}

// TestPoolFillsBoth takes the runtime that waits while an image server is about to be
// started: then both wait again.
func TestPoolFillsBoth(t *testing.T) {
	r, d := warmRig(t)
	spec := r.newSpec(t)
	images := &d.pool.images
	images.mu.Lock()
	images.size = 1
	images.mu.Unlock()
	d.pool.look()
	start(t, d, spec)
	r.awaitWarm(t, d)
	eventually(t, "an image server waits", func() bool { return !images.lacks() })
}

// eventually waits for a state.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
