// Package imageserver does the input and output of a sentry's memory image, over a
// socket.
//
// Serve gives a restored sentry the files of its image in the order in which it asks
// for them, so that the guest can run before all of its memory has been read. Every
// byte is checked against the checksums of the image before the sentry hears that it
// is there. So a guest sees no byte that was not checked.
//
// Receive takes the image of a sentry that is captured, and writes down only those
// pages that the image before it does not have.
//
// The sentry is not trusted: what it asks for is bounded, and it reaches nothing but
// the files that the server was started with. gVisor's own server, which speaks the
// protocol, gives up with a panic on some of what a hostile sentry can say. So this
// belongs in a process of its own, one for each restore and capture.
package imageserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

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

// Damage says where a file is not what it was.
type Damage struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"` // of the part that one checksum covers
	Cause  string `json:"cause,omitempty"`
}

// Error implements error.
func (d *Damage) Error() string {
	if d.Cause != "" {
		return fmt.Sprintf("%s at offset %d: %s", d.File, d.Offset, d.Cause)
	}
	return fmt.Sprintf("%s at offset %d differs from what was written", d.File, d.Offset)
}

// File is a file of an image.
type File struct {
	runtime.ImageFile
	From io.ReaderAt
}

// Bounds of what a sentry may ask for.
const (
	// maxRead is what one read may take: a chunk, so that reads in sequence are
	// checked without reading a byte twice.
	maxRead = 1 << 20
	// maxRanges is into how many pieces one read may go: single pages.
	maxRanges = maxRead / 4096
	// urgent is how much is asked for at once where a task waits for it, mostly: larger reads
	// have a worker of their own while the guest runs, so that those need not wait for them.
	urgent = 256 << 10
	// parallel is how many reads may be under way: more than are worked on, so that there
	// is always a next one. While the guest runs, the sentry asks for few that no task
	// waits for.
	parallel = 8
	// maxOpens is how many files a sentry may open, one after the other: three are
	// needed.
	maxOpens = 16
	// maxDestinations is how many files of the sentry's one file may be read into.
	maxDestinations = 64
	// maxChunk bounds what one checksum covers, and so what is held of a file.
	maxChunk = 16 << 20
	// workers is how many reads of a file are worked on at once.
	workers = 2
)

// Serve gives the sentry at the other end of the socket conn the files, until it
// closes the connection. With allFirst the guest runs only then. When a file is
// damaged, Serve calls damaged once, and never answers the read: the guest must not go
// on, and whoever is told ends it.
func Serve(conn int, files []File, allFirst bool, damaged func(*Damage)) error {
	s := &server{files: map[string]opener{}, early: !allFirst, damaged: damaged}
	if err := s.hold(files); err != nil {
		if d, ok := errors.AsType[*Damage](err); ok {
			damaged(d)
		}
		return err
	}
	return serve(conn, s)
}

// serve answers the sentry until it closes the connection.
func serve(conn int, s stateipc.AsyncFileServerImpl) error {
	afs, err := stateipc.NewAsyncFileServer(s)
	if err != nil {
		return err
	}
	sock, err := unet.NewSocket(conn)
	if err != nil {
		return err
	}
	rpc := urpc.NewServer()
	rpc.Register(afs)
	if err := rpc.Handle(sock); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("serve the sentry: %w", err)
	}
	return nil
}

// check refuses checksums that do not cover their file.
func check(f runtime.ImageFile) error {
	if f.Chunk <= 0 || f.Chunk > maxChunk || f.Size < 0 || (f.Size+f.Chunk-1)/f.Chunk != int64(len(f.CRC32C)) {
		return fmt.Errorf("%s: %d checksums of %d bytes do not cover %d bytes", f.Name, len(f.CRC32C), f.Chunk, f.Size)
	}
	return nil
}

// opener makes what reads a file: one for each worker, because it holds a chunk.
type opener func() contents

// contents is a file of which each part is checked before it is handed over.
type contents interface {
	// at returns what is at an offset, as much as there is in one piece: bytes, which
	// stay as they are until the next call, or so many zeros. At the end it is io.EOF.
	// Nobody changes the bytes. Who wants little says so, and may wait less for it.
	at(off, wanted int64) (part []byte, zeros int64, err error)
}

// Asked are the files that a sentry asks for. An image with a map has others, which it
// must not see: they hold the key of the digests, and pages that the sandbox has freed
// or that are of the sandbox it was forked from.
var Asked = []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}

// hold takes the files of an image. The stream of pages of an image with a map is put
// together of its packs.
func (s *server) hold(files []File) error {
	all := map[string]File{}
	for _, f := range files {
		if err := check(f.ImageFile); err != nil {
			return err
		}
		all[f.Name] = f
		if !slices.Contains(Asked, f.Name) {
			continue
		}
		held := newCache(1)
		s.files[f.Name] = func() contents { return held.file(&f) }
	}
	f, ok := all[pagemap.Name]
	if !ok {
		return nil
	}
	m, err := readMap(f, all)
	if err != nil {
		return err
	}
	x, held := pagemap.NewIndex(m), newCache(len(m.Packs))
	var packs []*File
	for _, name := range m.Packs {
		f := all[name]
		packs = append(packs, &f)
	}
	sums, digests := all[pagemap.SumsName], newCache(1)
	if !s.early { // nobody waits for a few pages
		sums = File{}
	}
	s.files[pagemap.Stream] = func() contents {
		return &pages{view: view{c: held}, x: x, packs: packs, key: m.Key, sums: &sums, digests: view{c: digests}}
	}
	return nil
}

// readMap reads the map of an image that has these files.
func readMap(f File, all map[string]File) (*pagemap.Map, error) {
	data := make([]byte, 0, f.Size)
	for c := newCache(1).file(&f); int64(len(data)) < f.Size; {
		part, _, err := c.at(int64(len(data)), f.Size)
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
	}
	m, err := pagemap.Decode(data)
	if err == nil {
		err = m.Check(func(name string) int64 {
			if f, ok := all[name]; ok {
				return f.Size
			}
			return -1
		})
	}
	if err != nil {
		return nil, &Damage{File: f.Name, Cause: err.Error()}
	}
	return m, nil
}

// Assemble writes a file of an image as the sentry would see it, checked, to another
// file, with holes for zeros. Damage is an error of type *Damage.
func Assemble(files []File, name string, to *os.File) error {
	s := &server{files: map[string]opener{}}
	if err := s.hold(files); err != nil {
		return err
	}
	open, ok := s.files[name]
	if !ok {
		return &Damage{File: name, Cause: "it is missing"}
	}
	var off int64
	for c := open(); ; {
		part, zeros, err := c.at(off, maxRead)
		if err == io.EOF {
			return to.Truncate(off)
		}
		if err == nil {
			_, err = to.WriteAt(part, off)
		}
		if err != nil {
			return err
		}
		off += int64(len(part)) + zeros
	}
}

// server implements stateipc.AsyncFileServerImpl.
type server struct {
	files   map[string]opener
	early   bool // the guest runs meanwhile
	damaged func(*Damage)
	once    sync.Once

	mu    sync.Mutex
	opens int
}

// Destroy implements stateipc.AsyncFileServerImpl.
func (s *server) Destroy() {}

// OpenWrite implements stateipc.AsyncFileServerImpl.
func (s *server) OpenWrite(string) (stateio.AsyncWriter, error) { return nil, unix.EROFS }

// OpenRead implements stateipc.AsyncFileServerImpl.
func (s *server) OpenRead(name string) (stateio.AsyncReader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[name]
	if !ok {
		return nil, unix.ENOENT
	}
	if s.opens++; s.opens > maxOpens {
		return nil, unix.EMFILE
	}
	return newReader(f, s.early, s.stop), nil
}

// stop tells of damage, and does not return: its read is never answered.
func (s *server) stop(d *Damage) {
	s.once.Do(func() { s.damaged(d) })
	select {}
}

// reader implements stateio.AsyncReader.
type reader struct {
	open opener
	stop func(*Damage)

	queue     chan read
	bulk      chan read // large ones, while the guest runs; else nil
	completed chan stateio.Completion
	workers   sync.WaitGroup
	inflight  int // known to the goroutine that gVisor calls from

	mu           sync.Mutex
	destinations []int // descriptors
}

// read is one that was asked for.
type read struct {
	id  int
	off int64
	to  int // a descriptor of the sentry's
	at  []memmap.FileRange
}

func newReader(open opener, early bool, stop func(*Damage)) *reader {
	r := &reader{open: open, stop: stop, queue: make(chan read, parallel), completed: make(chan stateio.Completion, parallel)}
	for range workers {
		r.workers.Go(func() { r.work(r.queue) })
	}
	if early {
		r.bulk = make(chan read, parallel)
		r.workers.Go(func() { r.work(r.bulk) })
	}
	return r
}

// Close implements stateio.AsyncReader.
func (r *reader) Close() error {
	close(r.queue)
	if r.bulk != nil {
		close(r.bulk)
	}
	r.workers.Wait()
	var errs []error
	for _, fd := range r.destinations {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// MaxReadBytes implements stateio.AsyncReader.
func (*reader) MaxReadBytes() uint64 { return maxRead }

// MaxRanges implements stateio.AsyncReader.
func (*reader) MaxRanges() int { return maxRanges }

// MaxParallel implements stateio.AsyncReader.
func (*reader) MaxParallel() int { return parallel }

// NeedRegisterDestinationFD implements stateio.AsyncReader.
func (*reader) NeedRegisterDestinationFD() bool { return false }

// RegisterDestinationFD implements stateio.AsyncReader. gVisor's server has mapped
// the file as well. But to write a page of a file in memory takes the kernel less than
// to fault it in, clear it and have it written.
func (r *reader) RegisterDestinationFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.DestinationFile, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.destinations) == maxDestinations {
		return nil, unix.EMFILE
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	r.destinations = append(r.destinations, own)
	return own, nil
}

// AddRead implements stateio.AsyncReader.
func (r *reader) AddRead(id int, off int64, to stateio.DestinationFile, at memmap.FileRange, _ []byte) {
	r.add(read{id, off, to.(int), []memmap.FileRange{at}})
}

// AddReadv implements stateio.AsyncReader.
func (r *reader) AddReadv(id int, off int64, _ uint64, to stateio.DestinationFile, at []memmap.FileRange, _ []unix.Iovec) {
	r.add(read{id, off, to.(int), at})
}

// add has a place in the queue: gVisor's server lets no id be used twice.
func (r *reader) add(op read) {
	r.inflight++
	if r.bulk != nil && op.length() > urgent {
		r.bulk <- op
	} else {
		r.queue <- op
	}
}

// length returns how many bytes are asked for.
func (op read) length() (n uint64) {
	for _, at := range op.at {
		n += at.Length()
	}
	return n
}

// Wait implements stateio.AsyncReader. A sentry may want to wait for more than
// there is.
func (r *reader) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	had := len(cs)
	cs, err := stateio.CompletionChanWait(r.completed, cs, min(least, r.inflight))
	r.inflight -= len(cs) - had
	return cs, err
}

// work carries out reads.
func (r *reader) work(queue <-chan read) {
	c := r.open()
	for op := range queue {
		n, err := op.from(c)
		if d, ok := errors.AsType[*Damage](err); ok {
			r.stop(d)
		}
		r.completed <- stateio.Completion{ID: op.id, N: n, Err: err}
	}
}

// from hands over what was asked for.
func (op read) from(c contents) (n uint64, err error) {
	little := op.length() <= urgent
	for _, at := range op.at {
		for at.Length() > 0 {
			off := op.off + int64(n)
			if off < 0 {
				return n, io.EOF
			}
			wanted := int64(maxRead)
			if little {
				wanted = int64(at.Length())
			}
			part, zeros, err := c.at(off, wanted)
			if err != nil {
				return n, err
			}
			m := min(uint64(zeros), at.Length())
			if zeros > 0 {
				err = makeZero(op.to, int64(at.Start), int64(m))
			} else {
				m, err = writeSome(op.to, part[:min(uint64(len(part)), at.Length())], int64(at.Start))
			}
			if err != nil {
				return n, fmt.Errorf("write to the sentry's memory: %w", err)
			}
			n += m
			at.Start += m
		}
	}
	return n, nil
}

// writeSome writes some of what is there to be written.
func writeSome(fd int, part []byte, at int64) (uint64, error) {
	m, err := unix.Pwrite(fd, part, at)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case err == nil && m <= 0:
		return 0, io.ErrShortWrite
	}
	return uint64(max(m, 0)), err
}

// makeZero has a part of a file in memory read as zeros, and take no memory.
func makeZero(fd int, at, n int64) error {
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// pages is the stream of pages of an image, read from its packs.
type pages struct {
	view
	x     *pagemap.Index
	packs []*File

	// For little that is wanted.
	key     pagemap.Key
	sums    *File // the digests of the pages
	digests view  // reads them
	sum     *pagemap.Summer
	buf     []byte
}

// at implements contents.
func (p *pages) at(off, wanted int64) (part []byte, zeros int64, err error) {
	if off >= p.x.Size() {
		return nil, 0, io.EOF
	}
	s := p.x.At(off)
	if s.Pack == pagemap.Zeros {
		return nil, s.Bytes, nil
	}
	f := p.packs[s.Pack]
	if wanted <= urgent && !p.c.holds(f, s.Off) {
		if part := p.few(f, s.Off, off, min(s.Bytes, wanted)); part != nil {
			return part, 0, nil
		}
	}
	part, err = p.view.at(f, s.Off)
	if err == io.EOF { // the map was compared with its size
		err = io.ErrUnexpectedEOF
	}
	return part[:min(int64(len(part)), s.Bytes)], 0, err
}

// few returns pages that are compared with their digests, without the rest of what one
// checksum covers; nil if that is not possible, or if they differ: then the checksum tells.
func (p *pages) few(f *File, at, off, n int64) []byte {
	if off%pagemap.PageSize != 0 || n%pagemap.PageSize != 0 || p.sums.From == nil {
		return nil
	}
	if p.sum == nil {
		sum, err := pagemap.NewSummer(p.key)
		if err != nil {
			return nil
		}
		p.sum, p.buf = sum, make([]byte, urgent)
	}
	part := p.buf[:n]
	if _, err := f.From.ReadAt(part, at); err != nil {
		return nil
	}
	var digests []byte
	for i := int64(0); i < n; i += pagemap.PageSize {
		if len(digests) < pagemap.SumSize {
			var err error
			if digests, err = p.digests.at(p.sums, (off+i)/pagemap.PageSize*pagemap.SumSize); err != nil || len(digests) < pagemap.SumSize {
				return nil
			}
		}
		if p.sum.Sum(part[i:][:pagemap.PageSize]) != [pagemap.SumSize]byte(digests) {
			return nil
		}
		digests = digests[pagemap.SumSize:]
	}
	return part
}
