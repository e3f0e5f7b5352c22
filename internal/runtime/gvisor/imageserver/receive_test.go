package imageserver

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/drowse-dev/drowse/internal/pagemap"
)

// captured is a sentry that is captured into a directory.
type captured struct {
	t      *testing.T
	dir    string
	client *stateipc.AsyncFileClient
	served chan error
	done   chan Written
	memfd  int32
	memory []byte
}

// guestPages is how many pages of memory the sentry has.
const guestPages = 2000

func capture(t *testing.T, memory []byte, pack string, most int64, base *Base) *captured {
	t.Helper()
	c := &captured{t: t, dir: t.TempDir(), served: make(chan error, 1), done: make(chan Written, 1)}
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(c.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	to := Capture{State: file("state"), Meta: file("meta"), Pack: file(pack), Map: file(pagemap.Name), Sums: file(pagemap.SumsName), PackName: pack, Most: most, Base: base}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() { c.served <- Receive(pair[1], to, func(w Written) { c.done <- w }) }()
	sock, err := unet.NewSocket(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = stateipc.NewAsyncFileClient(urpc.NewClient(sock)); err != nil {
		t.Fatal(err)
	}
	if c.memfd, c.memory, err = stateio.CreateMappedMemoryFD("memory", guestPages*pageSize); err != nil {
		t.Fatal(err)
	}
	copy(c.memory, memory)
	return c
}

func (c *captured) open(name string) (stateio.AsyncWriter, stateio.SourceFile) {
	c.t.Helper()
	w, err := c.client.OpenWrite(name)
	if err != nil {
		c.t.Fatal(err)
	}
	sf, err := w.RegisterSourceFD(c.memfd, uint64(len(c.memory)), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return w, sf
}

// save writes an image of the ranges as gVisor does: pages many at a time.
func (c *captured) save(ranges []memmap.FileRange) error {
	for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName} {
		aw, err := c.client.OpenWrite(name)
		if err != nil {
			return err
		}
		b, err := stateio.NewBufWriter(aw, 8<<20)
		if err != nil {
			return err
		}
		if _, err := b.Write(bytes.Repeat([]byte(name), 200_000)); err != nil {
			return err
		}
		if err := b.Close(); err != nil {
			return err
		}
	}
	w, sf := c.open(checkpointfiles.PagesFileName)
	free := []int{}
	for i := range w.MaxParallel() {
		free = append(free, i)
	}
	wait := func(n int) error {
		cs, err := w.Wait(nil, n)
		for _, done := range cs {
			if done.Err != nil {
				err = errors.Join(err, done.Err)
			}
			free = append(free, done.ID)
		}
		return err
	}
	for len(ranges) > 0 {
		var op []memmap.FileRange
		var vecs []unix.Iovec
		var total uint64
		for len(ranges) > 0 && len(op) < w.MaxRanges() && total < w.MaxWriteBytes() {
			fr := ranges[0]
			if n := w.MaxWriteBytes() - total; fr.Length() > n {
				fr.End = fr.Start + n
				ranges[0].Start = fr.End
			} else {
				ranges = ranges[1:]
			}
			op, vecs, total = append(op, fr), append(vecs, unix.Iovec{Base: &c.memory[fr.Start], Len: fr.Length()}), total+fr.Length()
		}
		if len(free) == 0 {
			if err := wait(1); err != nil {
				return err
			}
		}
		id := free[0]
		free = free[1:]
		if len(op) == 1 {
			w.AddWrite(id, sf, op[0], c.memory[op[0].Start:op[0].End])
		} else {
			w.AddWritev(id, total, sf, op, vecs)
		}
	}
	if err := wait(w.MaxParallel() - len(free)); err != nil {
		return err
	}
	if err := w.Finalize(); err != nil {
		return err
	}
	return w.Close()
}

// end closes the connection and waits for the end of the server.
func (c *captured) end() {
	c.t.Helper()
	c.client.DecRef()
	select {
	case err := <-c.served:
		if err != nil {
			c.t.Errorf("receive: %v", err)
		}
	case <-time.After(time.Minute):
		c.t.Error("it still receives")
	}
}

// image is what a capture has left.
type received struct {
	base  *Base
	index *pagemap.Index
	packs map[string][]byte
}

func (c *captured) result(older map[string][]byte) received {
	c.t.Helper()
	r := received{packs: map[string][]byte{}}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			c.t.Fatal(err)
		}
		return data
	}
	m, err := pagemap.Decode(read(pagemap.Name))
	if err != nil {
		c.t.Fatal(err)
	}
	sums := read(pagemap.SumsName)
	for _, name := range m.Packs {
		if data, ok := older[name]; ok {
			r.packs[name] = data
			continue
		}
		r.packs[name] = read(name)
	}
	if err := m.Check(func(name string) int64 {
		if name == pagemap.SumsName {
			return int64(len(sums))
		}
		return int64(len(r.packs[name]))
	}); err != nil {
		c.t.Fatal(err)
	}
	r.index = pagemap.NewIndex(m)
	r.base = &Base{Map: m, Sums: bytes.NewReader(sums), Keep: m.Packs}
	return r
}

// stream is the pages of an image.
func (r received) stream(t *testing.T) []byte {
	t.Helper()
	var packs []io.ReaderAt
	for _, name := range r.base.Map.Packs {
		packs = append(packs, bytes.NewReader(r.packs[name]))
	}
	data := make([]byte, r.index.Size())
	if _, err := pagemap.NewReader(r.index, packs).ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReceive captures memory again and again, with other pages in use each time, and
// some of them changed. Only what changed is written, and each image has all.
func TestReceive(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	memory := make([]byte, guestPages*pageSize)
	page := func(i int) []byte { return memory[i*pageSize:][:pageSize] }
	fill := func(p []byte) {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	for i := range guestPages {
		if i%7 != 0 {
			fill(page(i))
		}
	}
	var last received
	for n := range 6 {
		var ranges []memmap.FileRange
		var want []byte
		for at := 0; at < guestPages; {
			run := min(1+random.IntN(500), guestPages-at)
			if random.IntN(3) > 0 || n == 0 {
				ranges = append(ranges, memmap.FileRange{Start: uint64(at * pageSize), End: uint64((at + run) * pageSize)})
				want = append(want, memory[at*pageSize:(at+run)*pageSize]...)
			}
			at += run
		}
		pack := "pack-" + string(rune('a'+n))
		c := capture(t, memory, pack, 1<<30, last.base)
		if err := c.save(ranges); err != nil {
			t.Fatal(err)
		}
		w := <-c.done
		c.end()
		last = c.result(last.packs)
		if got := last.stream(t); !bytes.Equal(got, want) {
			t.Fatalf("image %d has other pages than memory", n)
		}
		own := int64(len(last.packs[pack]))
		if w.Pages*pageSize != int64(len(want)) || own != (w.Pages-w.Zeros-w.Kept)*pageSize {
			t.Errorf("image %d: %+v of %d bytes, and a pack of %d", n, w, len(want), own)
		}
		if n > 0 && w.Kept == 0 {
			t.Errorf("image %d: %+v: nothing was kept", n, w)
		}
		state, err := os.ReadFile(filepath.Join(c.dir, "state"))
		if err != nil || !bytes.Equal(state, bytes.Repeat([]byte(checkpointfiles.StateFileName), 200_000)) {
			t.Errorf("image %d: its state has %d bytes, %v", n, len(state), err)
		}
		for range 20 {
			i := random.IntN(guestPages)
			if i%3 == 0 {
				clear(page(i))
			} else {
				fill(page(i))
			}
		}
		last.base.Keep = last.base.Map.Packs[max(0, len(last.base.Map.Packs)-3):] // the oldest is given up
	}
}

// TestReceiveSame captures what has not changed at all: nothing is written.
func TestReceiveSame(t *testing.T) {
	memory := make([]byte, guestPages*pageSize)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(memory)
	all := func() []memmap.FileRange { return []memmap.FileRange{{Start: 0, End: guestPages * pageSize}} }
	first := capture(t, memory, "pack-a", 1<<30, nil)
	if err := first.save(all()); err != nil {
		t.Fatal(err)
	}
	first.end()
	a := first.result(nil)
	for _, c := range []struct {
		keep []string
		kept int64
	}{{[]string{"pack-a"}, guestPages}, {nil, 0}} {
		a.base.Keep = c.keep
		second := capture(t, memory, "pack-b", 1<<30, a.base)
		if err := second.save(all()); err != nil {
			t.Fatal(err)
		}
		if w := <-second.done; w.Kept != c.kept {
			t.Errorf("with %v to keep: %+v", c.keep, w)
		}
		second.end()
		if b := second.result(a.packs); !bytes.Equal(b.stream(t), memory) {
			t.Errorf("with %v to keep it has other pages than memory", c.keep)
		}
	}
}

// TestReceiveRefuses what a sentry that was taken over may ask for. It harms its own
// image alone: that is never complete.
func TestReceiveRefuses(t *testing.T) {
	pages := checkpointfiles.PagesFileName
	one := func(c *captured, name string, fr memmap.FileRange) error {
		w, sf := c.open(name)
		w.AddWrite(0, sf, fr, c.memory[fr.Start:min(fr.End, uint64(len(c.memory)))])
		cs, err := w.Wait(nil, 1)
		for _, done := range cs {
			err = errors.Join(err, done.Err)
		}
		if final := w.Finalize(); err == nil || final == nil {
			return errors.Join(err, final)
		}
		return err
	}
	for name, do := range map[string]func(c *captured) error{
		"a file of another name": func(c *captured) error {
			_, err := c.client.OpenWrite("../manifest.json")
			return err
		},
		"a file to read": func(c *captured) error {
			_, err := c.client.OpenRead(pages)
			return err
		},
		"a file twice": func(c *captured) error {
			c.open(pages)
			_, err := c.client.OpenWrite(pages)
			return err
		},
		"a part of a page":   func(c *captured) error { return one(c, pages, memmap.FileRange{Start: 0, End: 100}) },
		"a page between two": func(c *captured) error { return one(c, pages, memmap.FileRange{Start: 100, End: 100 + pageSize}) },
		"more than it has": func(c *captured) error {
			return one(c, pages, memmap.FileRange{Start: 0, End: (guestPages + 1) * pageSize})
		},
		"too much at once": func(c *captured) error { return one(c, pages, memmap.FileRange{Start: 0, End: maxRead + pageSize}) },
		"more than it may": func(c *captured) error { return one(c, pages, memmap.FileRange{Start: 0, End: 101 * pageSize}) },
		"more state than it may": func(c *captured) error {
			return one(c, checkpointfiles.StateFileName, memmap.FileRange{Start: 0, End: 101 * pageSize})
		},
		"memory that it has cut": func(c *captured) error {
			w, sf := c.open(pages)
			if err := unix.Ftruncate(int(c.memfd), pageSize); err != nil {
				c.t.Fatal(err)
			}
			w.AddWrite(0, sf, memmap.FileRange{Start: 0, End: 2 * pageSize}, nil)
			cs, err := w.Wait(nil, 1)
			for _, done := range cs {
				err = errors.Join(err, done.Err)
			}
			return err
		},
		"memory without end": func(c *captured) error {
			w, _ := c.open(pages)
			for range maxDestinations {
				if _, err := w.RegisterSourceFD(c.memfd, pageSize, nil); err != nil {
					return err
				}
			}
			return nil
		},
		"a write under the number of another": func(c *captured) error {
			w, sf := c.open(pages)
			w.AddWrite(0, sf, memmap.FileRange{Start: 0, End: pageSize}, c.memory[:pageSize])
			w.AddWrite(0, sf, memmap.FileRange{Start: 0, End: pageSize}, c.memory[:pageSize])
			cs, err := w.Wait(nil, 2)
			for _, done := range cs {
				err = errors.Join(err, done.Err)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := capture(t, nil, "pack-a", 100*pageSize, nil)
			if err := do(c); err == nil {
				t.Error("no error")
			}
			select {
			case w := <-c.done:
				t.Errorf("its image is complete: %+v", w)
			default:
			}
		})
	}
}

// TestReceiveOnFullDisk: the sentry is told that there is no room.
func TestReceiveOnFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	memory := bytes.Repeat([]byte{1}, pageSize)
	w := newPagesWriter(&receiver{c: Capture{Pack: full, Sums: full}, left: 1 << 20})
	fd, mapped, err := stateio.CreateMappedMemoryFD("memory", pageSize)
	if err != nil {
		t.Fatal(err)
	}
	copy(mapped, memory)
	sf, err := w.RegisterSourceFD(fd, pageSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.AddWrite(0, sf, memmap.FileRange{Start: 0, End: pageSize}, mapped)
	cs, err := w.Wait(nil, 1)
	if err != nil || len(cs) != 1 || cs[0].Err != unix.ENOSPC || cs[0].N != 0 {
		t.Errorf("%+v, %v; want no space", cs, err)
	}
	if err := w.Finalize(); err != unix.ENOSPC {
		t.Errorf("at the end: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
