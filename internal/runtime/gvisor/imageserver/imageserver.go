// Package imageserver gives a restored sentry the files of its memory image over a
// socket, in the order in which it asks for them, so that the guest runs before all
// of its memory has been read.
//
// Every byte is checked against the checksums of the image before the sentry hears
// that it is there. So a guest sees no byte that was not checked.
//
// The sentry is not trusted: what it asks for is bounded, and it reaches nothing but
// the files that the server was started with. gVisor's own server, which speaks the
// protocol, gives up with a panic on some of what a hostile sentry can say. So this
// belongs in a process of its own, one for each restore.
package imageserver

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

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
	// maxParallel is how many reads may be under way. A read that a task waits for
	// comes after those, so there are few.
	maxParallel = 2
	// maxOpens is how many files a sentry may open, one after the other: three are
	// needed.
	maxOpens = 16
	// maxDestinations is how many files of the sentry's one file may be read into.
	maxDestinations = 64
	// maxChunk bounds what is held of a file at a time.
	maxChunk = 16 << 20
	// workers is how many reads of a file are worked on at once.
	workers = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Serve gives the sentry at the other end of the socket conn the files, until it
// closes the connection. When a file is damaged, Serve calls damaged once, and never
// answers the read: the guest must not go on, and whoever is told ends it.
func Serve(conn int, files []File, damaged func(*Damage)) error {
	s := &server{files: map[string]File{}, damaged: damaged}
	for _, f := range files {
		if err := check(f.ImageFile); err != nil {
			return err
		}
		s.files[f.Name] = f
	}
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

// server implements stateipc.AsyncFileServerImpl.
type server struct {
	files   map[string]File
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
	return newReader(f, s.stop), nil
}

// stop tells of damage, and does not return: its read is never answered.
func (s *server) stop(d *Damage) {
	s.once.Do(func() { s.damaged(d) })
	select {}
}

// reader implements stateio.AsyncReader.
type reader struct {
	f    File
	stop func(*Damage)

	queue     chan read
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

func newReader(f File, stop func(*Damage)) *reader {
	r := &reader{f: f, stop: stop, queue: make(chan read, maxParallel), completed: make(chan stateio.Completion, maxParallel)}
	for range workers {
		r.workers.Go(r.work)
	}
	return r
}

// Close implements stateio.AsyncReader.
func (r *reader) Close() error {
	close(r.queue)
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
func (*reader) MaxParallel() int { return maxParallel }

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
	r.queue <- op
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
func (r *reader) work() {
	c := chunks{f: r.f, index: -1}
	for op := range r.queue {
		n, err := c.read(op)
		if d, ok := errors.AsType[*Damage](err); ok {
			r.stop(d)
		}
		r.completed <- stateio.Completion{ID: op.id, N: n, Err: err}
	}
}

// chunks reads checked chunks of a file, one at a time.
type chunks struct {
	f     File
	buf   []byte
	index int64 // of the chunk in buf, -1 for none
}

// read hands over what was asked for.
func (c *chunks) read(op read) (n uint64, err error) {
	if op.off < 0 || op.off >= c.f.Size {
		return 0, io.EOF
	}
	for _, at := range op.at {
		for at.Length() > 0 {
			off := op.off + int64(n)
			if off >= c.f.Size {
				return n, io.EOF
			}
			index := off / c.f.Chunk
			if err := c.load(index); err != nil {
				return n, err
			}
			part := c.buf[off-index*c.f.Chunk:]
			part = part[:min(uint64(len(part)), at.Length())]
			m, err := unix.Pwrite(op.to, part, int64(at.Start))
			if err == nil && m <= 0 {
				err = io.ErrShortWrite
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return n, fmt.Errorf("write to the sentry's memory: %w", err)
			}
			n += uint64(max(m, 0))
			at.Start += uint64(max(m, 0))
		}
	}
	return n, nil
}

// load makes buf the chunk, checked.
func (c *chunks) load(index int64) error {
	if c.index == index {
		return nil
	}
	c.index = -1
	if c.buf == nil {
		c.buf = make([]byte, c.f.Chunk)
	}
	off := index * c.f.Chunk
	c.buf = c.buf[:min(c.f.Chunk, c.f.Size-off)]
	if _, err := c.f.From.ReadAt(c.buf, off); err != nil {
		return &Damage{File: c.f.Name, Offset: off, Cause: err.Error()}
	}
	if crc32.Checksum(c.buf, castagnoli) != c.f.CRC32C[index] {
		return &Damage{File: c.f.Name, Offset: off}
	}
	c.index = index
	return nil
}
