package imageserver

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/drowse-dev/drowse/internal/runtime"
)

// image is a file of random bytes, and what is known of it.
func image(size int, chunk int64) ([]byte, runtime.ImageFile) {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(data)
	return data, describe("pages.img", data, chunk)
}

// describe returns what is known of a file.
func describe(name string, data []byte, chunk int64) runtime.ImageFile {
	f := runtime.ImageFile{Name: name, Size: int64(len(data)), Chunk: chunk}
	for part := range slices.Chunk(data, int(chunk)) {
		f.CRC32C = append(f.CRC32C, crc32.Checksum(part, castagnoli))
	}
	return f
}

// sentry is the other end: gVisor's own client, with memory to read into.
type sentry struct {
	t      *testing.T
	client *stateipc.AsyncFileClient
	served chan error
	damage chan *Damage
	memfd  int32
	memory []byte
}

func newSentry(t *testing.T, contents io.ReaderAt, f runtime.ImageFile) *sentry {
	t.Helper()
	return newSentryThat(t, []File{{f, contents}}, false)
}

func newSentryThat(t *testing.T, files []File, allFirst bool) *sentry {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &sentry{t: t, served: make(chan error, 1), damage: make(chan *Damage, 2)}
	go func() {
		s.served <- Serve(pair[1], files, allFirst, func(d *Damage) { s.damage <- d })
	}()
	sock, err := unet.NewSocket(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	if s.client, err = stateipc.NewAsyncFileClient(urpc.NewClient(sock)); err != nil {
		t.Fatal(err)
	}
	if s.memfd, s.memory, err = stateio.CreateMappedMemoryFD("memory", 4<<20); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sentry) open() stateio.AsyncReader {
	s.t.Helper()
	r, err := s.client.OpenRead("pages.img")
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *sentry) destination(r stateio.AsyncReader) stateio.DestinationFile {
	s.t.Helper()
	df, err := r.RegisterDestinationFD(s.memfd, uint64(len(s.memory)), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return df
}

// read reads into the beginning of the memory.
func (s *sentry) read(r stateio.AsyncReader, df stateio.DestinationFile, off int64, n int) (stateio.Completion, error) {
	fr := memmap.FileRange{Start: 0, End: uint64(n)}
	clear(s.memory)
	r.AddRead(0, off, df, fr, s.memory[:n])
	cs, err := r.Wait(nil, 1)
	if err != nil || len(cs) != 1 {
		return stateio.Completion{}, errors.Join(err, errors.New("no completion"))
	}
	return cs[0], nil
}

// TestServe reads ranges of all kinds, over the borders of chunks and past the end.
func TestServe(t *testing.T) {
	data, f := image(3<<20+12345, 1<<20)
	s := newSentry(t, bytes.NewReader(data), f)
	if _, err := s.client.OpenRead("../manifest.json"); err == nil {
		t.Error("a file was opened that is not of the image")
	}
	if _, err := s.client.OpenWrite("pages.img"); err == nil {
		t.Error("a file was opened for writing")
	}
	r := s.open()
	df := s.destination(r)
	size := len(data)
	for _, c := range []struct {
		off int64
		n   int
	}{{0, 4096}, {0, 1 << 20}, {1 << 20, 1 << 20}, {1<<20 - 4096, 8192}, {1<<20 - 1, 1 << 20}, {3 << 20, 12345}, {int64(size) - 1, 1}} {
		got, err := s.read(r, df, c.off, c.n)
		if err != nil || got.N != uint64(c.n) || got.Err != nil || !bytes.Equal(s.memory[:c.n], data[c.off:][:c.n]) {
			t.Errorf("read of %d at %d: %+v, %v", c.n, c.off, got, err)
		}
	}
	for _, c := range []struct {
		off  int64
		n    int
		want uint64
	}{{int64(size), 1, 0}, {int64(size) - 10, 100, 10}, {-1, 1, 0}, {1 << 62, 1, 0}, {-1 << 63, 4096, 0}} {
		if got, err := s.read(r, df, c.off, c.n); err != nil || got.N != c.want || got.Err != io.EOF {
			t.Errorf("read of %d at %d: %+v, %v; want %d bytes and the end", c.n, c.off, got, err, c.want)
		}
	}
	// Pieces, as of a guest's memory.
	var frs []memmap.FileRange
	var vecs []unix.Iovec
	for i := range 100 {
		start := uint64(i) * 8192
		frs = append(frs, memmap.FileRange{Start: start, End: start + 4096})
		vecs = append(vecs, unix.Iovec{Base: &s.memory[start], Len: 4096})
	}
	clear(s.memory)
	r.AddReadv(1, 1<<20-100*1024, 100*4096, df, frs, vecs)
	if cs, err := r.Wait(nil, 1); err != nil || len(cs) != 1 || cs[0].N != 100*4096 || cs[0].Err != nil {
		t.Fatalf("read in pieces: %+v, %v", cs, err)
	}
	for i, fr := range frs {
		if !bytes.Equal(s.memory[fr.Start:fr.End], data[1<<20-100*1024+i*4096:][:4096]) {
			t.Errorf("piece %d differs", i)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	s.client.DecRef()
	select {
	case err := <-s.served:
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it still serves")
	}
}

// TestServeMapped serves an image with a map. The sentry gets the kernel's state and the
// pages that the image needs, and none of the files that these come from.
func TestServeMapped(t *testing.T) {
	memory := make([]byte, guestPages*pageSize)
	_, _ = rand.NewChaCha8([32]byte{5}).Read(memory)
	c := capture(t, memory, "pack-a", 1<<30, nil)
	if err := c.save([]memmap.FileRange{{Start: 0, End: guestPages * pageSize}}); err != nil {
		t.Fatal(err)
	}
	c.end()
	var files []File
	for name, at := range map[string]string{
		checkpointfiles.StateFileName: "state", checkpointfiles.PagesMetadataFileName: "meta",
		"pack-a": "pack-a", pagemap.Name: pagemap.Name, pagemap.SumsName: pagemap.SumsName,
	} {
		data, err := os.ReadFile(filepath.Join(c.dir, at))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{describe(name, data, 1<<20), bytes.NewReader(data)})
	}
	s := newSentryThat(t, files, false)
	for _, name := range []string{pagemap.Name, pagemap.SumsName, "pack-a"} {
		if _, err := s.client.OpenRead(name); err == nil {
			t.Errorf("a sentry opened %s", name)
		}
	}
	for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName} {
		if _, err := s.client.OpenRead(name); err != nil {
			t.Errorf("a sentry cannot open %s: %v", name, err)
		}
	}
	r := s.open()
	if got, err := s.read(r, s.destination(r), 5*pageSize, 1<<20); err != nil || got.Err != nil || !bytes.Equal(s.memory[:1<<20], memory[5*pageSize:][:1<<20]) {
		t.Errorf("read of pages: %+v, %v", got, err)
	}
}

// TestServeFew reads single pages of an image with a map, while the guest runs: each is
// compared with its digest. Damage of others does not matter to it, and its own is never
// answered. Where the digests are damaged, the checksum decides.
func TestServeFew(t *testing.T) {
	memory := make([]byte, guestPages*pageSize)
	_, _ = rand.NewChaCha8([32]byte{6}).Read(memory)
	c := capture(t, memory, "pack-a", 1<<30, nil)
	if err := c.save([]memmap.FileRange{{Start: 0, End: guestPages * pageSize}}); err != nil {
		t.Fatal(err)
	}
	c.end()
	serve := func(flipped string, at int) *sentry {
		var files []File
		for _, name := range []string{"pack-a", pagemap.Name, pagemap.SumsName} {
			data, err := os.ReadFile(filepath.Join(c.dir, name))
			if err != nil {
				t.Fatal(err)
			}
			f := describe(name, data, 1<<20)
			if name == flipped {
				data[at] ^= 1
			}
			files = append(files, File{f, bytes.NewReader(data)})
		}
		return newSentryThat(t, files, false)
	}
	data, err := os.ReadFile(filepath.Join(c.dir, pagemap.Name))
	if err != nil {
		t.Fatal(err)
	}
	m, err := pagemap.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	const page, n = 7, 3
	of := func(page int64) int { return int(pagemap.NewIndex(m).At(page * pageSize).Off) } // in the pack
	for _, test := range []struct {
		name    string
		flipped string
		at      int
		damaged bool
	}{
		{"whole", "", 0, false},
		{"the page before", "pack-a", of(page-1) + pageSize - 1, false},
		{"the page behind", "pack-a", of(page + n), false},
		{"the first page", "pack-a", of(page), true},
		{"the last page", "pack-a", of(page+n-1) + pageSize - 1, true},
		{"its digest", pagemap.SumsName, page * pagemap.SumSize, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(test.flipped, test.at)
			r := s.open()
			df := s.destination(r)
			r.AddRead(0, page*pageSize, df, memmap.FileRange{Start: 0, End: n * pageSize}, s.memory[:n*pageSize])
			if test.damaged {
				go func() { _, _ = r.Wait(nil, 1) }() // it is never answered
				select {
				case d := <-s.damage:
					if want := int64(test.at) &^ (1<<20 - 1); d.File != "pack-a" || d.Offset != want {
						t.Errorf("damage %+v, want that of the chunk at %d", d, want)
					}
				case <-time.After(time.Minute):
					t.Error("nobody was told of the damage")
				}
				return
			}
			if cs, err := r.Wait(nil, 1); err != nil || len(cs) != 1 || cs[0].N != n*pageSize || cs[0].Err != nil {
				t.Fatalf("read: %+v, %v", cs, err)
			}
			if !bytes.Equal(s.memory[:n*pageSize], memory[page*pageSize:][:n*pageSize]) {
				t.Error("the pages differ")
			}
		})
	}
}

// TestServeParallel has as many reads under way as may be, not aligned as chunks are.
func TestServeParallel(t *testing.T) {
	const size, n = 4<<20 - 12288, 100 << 10
	data, f := image(size, 64<<10)
	s := newSentry(t, bytes.NewReader(data), f)
	r := s.open()
	if got := r.MaxParallel(); got != parallel {
		t.Fatalf("%d reads may be under way, want %d", got, parallel)
	}
	df := s.destination(r)
	free := []int{0, 1, 2, 3, 4, 5, 6, 7}
	wait := func(least int) {
		cs, err := r.Wait(nil, least)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if c.Err != nil {
				t.Fatalf("%+v", c)
			}
			free = append(free, c.ID)
		}
	}
	for off := 0; off < size; off += n {
		if len(free) == 0 {
			wait(1)
		}
		fr := memmap.FileRange{Start: uint64(off), End: uint64(min(off+n, size))}
		r.AddRead(free[0], int64(off), df, fr, s.memory[fr.Start:fr.End])
		free = free[1:]
	}
	wait(parallel - len(free))
	if !bytes.Equal(s.memory[:size], data) {
		t.Error("the memory differs from the file")
	}
}

// TestServeFindsDamage: a read of a damaged chunk is never answered, even if it wants
// another part of that chunk, and other chunks are read before.
func TestServeFindsDamage(t *testing.T) {
	data, f := image(3<<20, 1<<20)
	data[2<<20-1] ^= 1
	s := newSentry(t, bytes.NewReader(data), f)
	r := s.open()
	df := s.destination(r)
	for _, off := range []int64{0, 2 << 20} {
		if got, err := s.read(r, df, off, 4096); err != nil || got.Err != nil {
			t.Fatalf("read at %d: %+v, %v", off, got, err)
		}
	}
	clear(s.memory)
	answered := make(chan struct{})
	go func() {
		r.AddRead(0, 1<<20, df, memmap.FileRange{Start: 0, End: 4096}, s.memory[:4096])
		_, _ = r.Wait(nil, 1)
		close(answered)
	}()
	select {
	case d := <-s.damage:
		if want := (Damage{File: "pages.img", Offset: 1 << 20}); *d != want {
			t.Errorf("damage %+v, want %+v", *d, want)
		}
	case <-answered:
		t.Fatal("the read was answered")
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
	select {
	case <-answered:
		t.Error("the read was answered")
	case <-time.After(200 * time.Millisecond):
	}
	if !bytes.Equal(s.memory[:4096], make([]byte, 4096)) {
		t.Error("bytes of a damaged chunk came to the sentry")
	}
}

// cut is a file that has become shorter.
type cut struct{ io.ReaderAt }

func (cut) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestServeFindsWhatIsMissing(t *testing.T) {
	_, f := image(2<<20, 1<<20)
	s := newSentry(t, cut{}, f)
	r := s.open()
	df := s.destination(r)
	go func() { _, _ = s.read(r, df, 0, 4096) }()
	select {
	case d := <-s.damage:
		if d.Offset != 0 || d.Cause == "" {
			t.Errorf("damage %+v, want one at 0 with its cause", *d)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
}

// TestServeBounds: a sentry may not open files, or register memory, without end.
func TestServeBounds(t *testing.T) {
	data, f := image(1<<20, 1<<20)
	s := newSentry(t, bytes.NewReader(data), f)
	r := s.open()
	for n := 0; ; n++ {
		if _, err := r.RegisterDestinationFD(s.memfd, 4096, nil); err != nil {
			if n != maxDestinations {
				t.Errorf("refused after %d destinations: %v", n, err)
			}
			break
		}
		if n > maxDestinations {
			t.Fatal("destinations without end")
		}
	}
	for n := 1; ; n++ {
		if _, err := s.client.OpenRead("pages.img"); err != nil {
			if n != maxOpens {
				t.Errorf("refused after %d opens: %v", n, err)
			}
			break
		}
		if n > maxOpens {
			t.Fatal("opens without end")
		}
	}
}

// TestServeRefusesChecksums that do not cover a file.
func TestServeRefusesChecksums(t *testing.T) {
	for _, f := range []runtime.ImageFile{
		{Name: "a", Size: 1, Chunk: 1 << 20},
		{Name: "a", Size: 1<<20 + 1, Chunk: 1 << 20, CRC32C: []uint32{1}},
		{Name: "a", Size: 1, Chunk: 0, CRC32C: []uint32{1}},
		{Name: "a", Size: 1, Chunk: 1 << 40, CRC32C: []uint32{1}},
		{Name: "a", Size: -1, Chunk: 1 << 20},
	} {
		if err := Serve(-1, []File{{f, nil}}, true, nil); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
}
