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

	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/planted"
)

// Capture is where the memory image of a sentry goes.
type Capture struct {
	// The files, empty and open for writing.
	State, Meta, Pack, Map, Sums *os.File
	PackName                     string
	// Most bounds what the sentry may have written in all.
	Most int64
	Base *Base // nil to write all
}

// Base is an image of which pages need not be written again.
type Base struct {
	Map  *pagemap.Map
	Sums io.ReaderAt
	// Keep names the packs that the new image may go on using.
	Keep []string
}

// Written says what became of the pages of a sentry.
type Written struct {
	Pages int64 `json:"pages"` // of the image
	Zeros int64 `json:"zeros"` // of them
	Kept  int64 `json:"kept"`  // of them, in packs of the base
}

const (
	// maxWrites is how many writes may be under way.
	maxWrites = 4
	// writeOut is how much is written to a pack until the disk is to begin with it.
	writeOut = 8 << 20
	pageSize = pagemap.PageSize
)

// Receive takes the image of the sentry at the other end of the socket conn. It calls
// done when the image is complete, and returns when the sentry closes the connection.
// Nothing is synced.
//
// Each range of memory is read into memory of this process once. What is compared is
// what is written, whatever the sentry does meanwhile.
func Receive(conn int, c Capture, done func(Written)) error {
	r, err := newReceiver(c, done)
	if err != nil {
		return err
	}
	return serve(conn, r)
}

// receiver implements stateipc.AsyncFileServerImpl.
type receiver struct {
	c    Capture
	done func(Written)

	// Set before the sentry is served.
	m     pagemap.Map    // without runs
	own   uint32         // the pack that is written
	index *pagemap.Index // of the base; nil without
	packs []uint32       // what the packs of the base are in m; Zeros for those that are given up

	mu       sync.Mutex
	opened   map[string]bool
	left     int64 // bytes that may still be written
	complete int   // files
	written  Written
}

func newReceiver(c Capture, done func(Written)) (*receiver, error) {
	r := &receiver{c: c, done: done, left: c.Most, opened: map[string]bool{}}
	key, err := pagemap.NewKey()
	if err != nil {
		return nil, err
	}
	if c.Base != nil {
		if err := r.use(c.Base); err != nil {
			return nil, err
		}
		key = c.Base.Map.Key
	}
	r.own = uint32(len(r.m.Packs))
	r.m.Key, r.m.Packs = key, append(r.m.Packs, c.PackName)
	return r, nil
}

// use takes the base.
func (r *receiver) use(b *Base) error {
	r.index = pagemap.NewIndex(b.Map)
	for _, name := range b.Map.Packs {
		at := uint32(pagemap.Zeros)
		if slices.Contains(b.Keep, name) {
			at = uint32(len(r.m.Packs))
			r.m.Packs = append(r.m.Packs, name)
		}
		r.packs = append(r.packs, at)
	}
	if n := len(r.m.Packs); n >= pagemap.MaxPacks {
		return fmt.Errorf("internal error: %d packs are to be kept", n)
	}
	return nil
}

// Destroy implements stateipc.AsyncFileServerImpl.
func (r *receiver) Destroy() {}

// OpenRead implements stateipc.AsyncFileServerImpl.
func (r *receiver) OpenRead(string) (stateio.AsyncReader, error) { return nil, unix.EACCES }

// OpenWrite implements stateipc.AsyncFileServerImpl. Each file is written once.
func (r *receiver) OpenWrite(name string) (stateio.AsyncWriter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opened[name] {
		return nil, unix.EEXIST
	}
	var w stateio.AsyncWriter
	switch name {
	case checkpointfiles.StateFileName:
		w = &plainWriter{sources: sources{}, r: r, to: r.c.State}
	case checkpointfiles.PagesMetadataFileName:
		w = &plainWriter{sources: sources{}, r: r, to: r.c.Meta}
	case checkpointfiles.PagesFileName:
		w = newPagesWriter(r)
	default:
		return nil, unix.ENOENT
	}
	r.opened[name] = true
	return w, nil
}

// spend takes from what may be written.
func (r *receiver) spend(n uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > uint64(r.left) {
		return unix.EFBIG
	}
	r.left -= int64(n)
	return nil
}

// finish is told of each file that is complete.
func (r *receiver) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete++; r.complete == 3 {
		r.done(r.written)
	}
}

// sources is the files of memory that a sentry writes from.
type sources struct {
	mu    sync.Mutex
	files []int // descriptors
}

// source is one of them.
type source struct {
	number uint32
	fd     int
}

// RegisterSourceFD implements stateio.AsyncWriter. gVisor's server has mapped the file
// as well. But a sentry can cut a mapped file short under its reader.
func (s *sources) RegisterSourceFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.SourceFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.files) == maxDestinations {
		return nil, unix.EMFILE
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, own)
	return source{uint32(len(s.files) - 1), own}, nil
}

func (s *sources) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, fd := range s.files {
		errs = append(errs, unix.Close(fd))
	}
	s.files = nil
	return errors.Join(errs...)
}

// MaxWriteBytes implements stateio.AsyncWriter.
func (*sources) MaxWriteBytes() uint64 { return maxRead }

// MaxRanges implements stateio.AsyncWriter.
func (*sources) MaxRanges() int { return maxRanges }

// MaxParallel implements stateio.AsyncWriter.
func (*sources) MaxParallel() int { return maxWrites }

// NeedRegisterSourceFD implements stateio.AsyncWriter.
func (*sources) NeedRegisterSourceFD() bool { return true }

// Reserve implements stateio.AsyncWriter.
func (*sources) Reserve(uint64) {}

// readAll reads all of a range of a file of memory. The end of the file is an error:
// the range was in it when the sentry registered it.
func readAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(fd, p, off)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n <= 0:
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// plainWriter is a file that is written as it comes. It implements stateio.AsyncWriter.
type plainWriter struct {
	sources
	r   *receiver
	to  *os.File
	off int64
	buf []byte
	cs  []stateio.Completion
	err error
}

// Close implements stateio.AsyncWriter.
func (w *plainWriter) Close() error { return w.close() }

// AddWrite implements stateio.AsyncWriter.
func (w *plainWriter) AddWrite(id int, from stateio.SourceFile, at memmap.FileRange, _ []byte) {
	w.AddWritev(id, at.Length(), from, []memmap.FileRange{at}, nil)
}

// AddWritev implements stateio.AsyncWriter.
func (w *plainWriter) AddWritev(id int, total uint64, from stateio.SourceFile, at []memmap.FileRange, _ []unix.Iovec) {
	if w.err == nil {
		w.err = w.r.spend(total)
	}
	for _, fr := range at {
		if w.err != nil {
			break
		}
		w.buf = slices.Grow(w.buf[:0], int(fr.Length()))[:fr.Length()]
		if w.err = readAll(from.(source).fd, w.buf, int64(fr.Start)); w.err == nil {
			_, w.err = w.to.WriteAt(w.buf, w.off)
			w.off += int64(len(w.buf))
		}
	}
	c := stateio.Completion{ID: id, N: total}
	if w.err != nil {
		c.N, c.Err = 0, errnoOf(w.err)
	}
	w.cs = append(w.cs, c)
}

// Wait implements stateio.AsyncWriter.
func (w *plainWriter) Wait(cs []stateio.Completion, _ int) ([]stateio.Completion, error) {
	cs = append(cs, w.cs...)
	w.cs = w.cs[:0]
	return cs, nil
}

// Finalize implements stateio.AsyncWriter.
func (w *plainWriter) Finalize() error {
	if w.err != nil {
		return errnoOf(w.err)
	}
	w.r.finish()
	return nil
}

// errnoOf returns what the sentry is told of an error: it takes numbers.
func errnoOf(err error) error {
	if n, ok := errors.AsType[unix.Errno](err); ok {
		return n
	}
	return unix.EIO
}

// pagesWriter writes the pages that the base does not have. It implements
// stateio.AsyncWriter.
type pagesWriter struct {
	sources
	r *receiver

	queue     chan write
	completed chan stateio.Completion
	workers   sync.WaitGroup
	inflight  int   // known to the goroutine that gVisor calls from
	pages     int64 // of the stream so far; likewise

	mu      sync.Mutex
	err     error // the first
	runs    []placed
	end     int64 // of the pack
	begun   int64 // up to where the disk was told to begin
	written Written
}

// write is one that was asked for.
type write struct {
	id    int
	total uint64
	from  source
	at    []memmap.FileRange
	page  int64 // the number of its first page in the stream
}

// placed is a run, with its place in the stream.
type placed struct {
	page int64
	pagemap.Run
}

func newPagesWriter(r *receiver) *pagesWriter {
	w := &pagesWriter{r: r, queue: make(chan write, maxWrites), completed: make(chan stateio.Completion, maxWrites)}
	for range workers {
		w.workers.Go(w.work)
	}
	return w
}

// Close implements stateio.AsyncWriter.
func (w *pagesWriter) Close() error {
	close(w.queue)
	w.workers.Wait()
	return w.close()
}

// AddWrite implements stateio.AsyncWriter.
func (w *pagesWriter) AddWrite(id int, from stateio.SourceFile, at memmap.FileRange, _ []byte) {
	w.add(write{id: id, total: at.Length(), from: from.(source), at: []memmap.FileRange{at}})
}

// AddWritev implements stateio.AsyncWriter.
func (w *pagesWriter) AddWritev(id int, total uint64, from stateio.SourceFile, at []memmap.FileRange, _ []unix.Iovec) {
	w.add(write{id: id, total: total, from: from.(source), at: at})
}

// add has a place in the queue: gVisor's server lets no id be used twice.
func (w *pagesWriter) add(op write) {
	op.page = w.pages
	w.pages += int64(op.total / pageSize)
	w.inflight++
	w.queue <- op
}

// Wait implements stateio.AsyncWriter. A sentry may want to wait for more than there
// is.
func (w *pagesWriter) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	had := len(cs)
	cs, err := stateio.CompletionChanWait(w.completed, cs, min(least, w.inflight))
	w.inflight -= len(cs) - had
	return cs, err
}

// work carries out writes.
func (w *pagesWriter) work() {
	k := keeper{w: w, buf: make([]byte, maxRead), sums: make([]byte, maxRanges*pagemap.SumSize), known: make([]byte, maxRanges*pagemap.SumSize)}
	var err error
	if k.sum, err = pagemap.NewSummer(w.r.m.Key); err != nil {
		w.fail(err)
	}
	for op := range w.queue {
		err := w.failed()
		if err == nil {
			err = k.write(op)
		}
		c := stateio.Completion{ID: op.id, N: op.total}
		if err != nil {
			w.fail(err)
			c.N, c.Err = 0, errnoOf(err)
		}
		w.completed <- c
	}
}

func (w *pagesWriter) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *pagesWriter) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// keeper carries out writes, one at a time.
type keeper struct {
	w     *pagesWriter
	sum   *pagemap.Summer
	buf   []byte // the pages of a write
	sums  []byte // their digests
	known []byte // digests in the base
}

// write writes the pages that are new.
func (k *keeper) write(op write) error {
	if err := k.w.r.spend(op.total); err != nil {
		return err
	}
	var runs []placed
	var fresh []byte // those of buf that are to be written, moved to its beginning
	n := 0           // bytes of buf that are used
	for _, at := range op.at {
		size := int(at.Length())
		if at.Start%pageSize != 0 || size%pageSize != 0 || at.End/pageSize > 1<<32 || n+size > len(k.buf) {
			return unix.EINVAL
		}
		part := k.buf[n:][:size]
		if err := readAll(op.from.fd, part, int64(at.Start)); err != nil {
			return fmt.Errorf("read memory: %w", err)
		}
		found, kept, err := k.compare(op.from.number, uint32(at.Start/pageSize), op.page+int64(n/pageSize), part)
		if err != nil {
			return err
		}
		runs, fresh = append(runs, found...), k.buf[:len(fresh)+copy(k.buf[len(fresh):], kept)]
		n += size
	}
	return k.place(op, runs, fresh, n/pageSize)
}

// compare sorts out the pages of a part of memory. It returns them as runs; those that
// are to be written have no place yet, and are moved to the beginning of part.
func (k *keeper) compare(file, first uint32, page int64, part []byte) (runs []placed, fresh []byte, err error) {
	w, n := k.w, uint32(len(part)/pageSize)
	sums := k.sums[:0]
	var base pagemap.Known
	var known []byte // digests of the pages of base
	for i := range n {
		p := part[i*pageSize:][:pageSize]
		sum := k.sum.Sum(p)
		sums = append(sums, sum[:]...)
		if base.Pages == 0 && w.r.index != nil {
			if base = w.r.index.Find(file, first+i); base.Pages > 0 {
				base.Pages = min(base.Pages, n-i)
				known = k.known[:base.Pages*pagemap.SumSize]
				if _, err := w.r.c.Base.Sums.ReadAt(known, base.Stream*pagemap.SumSize); err != nil {
					return nil, nil, fmt.Errorf("read the digests of the image before: %w", err)
				}
			}
		}
		run := pagemap.Run{File: file, Source: first + i, Pages: 1, Pack: w.r.own}
		switch {
		case k.sum.IsZero(sum):
			run.Pack = pagemap.Zeros
		case base.Pages > 0 && base.Pack != pagemap.Zeros && w.r.packs[base.Pack] != pagemap.Zeros &&
			([pagemap.SumSize]byte(known) == sum || planted.In(planted.UncomparedPage)):
			run.Pack, run.At = w.r.packs[base.Pack], base.At
		default:
			fresh = part[:len(fresh)+copy(part[len(fresh):], p)]
		}
		if base.Pages > 0 {
			base.Pages, base.At, known = base.Pages-1, base.At+1, known[pagemap.SumSize:]
		}
		runs = append(runs, placed{page + int64(i), run})
	}
	_, err = w.r.c.Sums.WriteAt(sums, page*pagemap.SumSize)
	return runs, fresh, err
}

// place writes what is new to the pack, and notes where all is.
func (k *keeper) place(op write, runs []placed, fresh []byte, pages int) error {
	w := k.w
	w.mu.Lock()
	at := w.end
	w.end += int64(len(fresh))
	w.mu.Unlock()
	if len(fresh) > 0 {
		if _, err := w.r.c.Pack.WriteAt(fresh, at); err != nil {
			return fmt.Errorf("write pages: %w", err)
		}
	}
	w.mu.Lock()
	next := uint32(at / pageSize)
	for _, p := range runs {
		switch p.Pack {
		case w.r.own:
			p.At = next
			next++
		case pagemap.Zeros:
			w.written.Zeros++
		default:
			w.written.Kept++
		}
		w.note(p)
	}
	w.written.Pages += int64(pages)
	from, n := w.begun, w.end-w.begun
	if n >= writeOut {
		w.begun = w.end
	}
	w.mu.Unlock()
	if n >= writeOut {
		// A hint: what is to be synced in the end may as well be on its way.
		_ = unix.SyncFileRange(int(w.r.c.Pack.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
	}
	return nil
}

// note adds a page to the runs. Callers hold mu.
func (w *pagesWriter) note(p placed) {
	if n := len(w.runs); n > 0 {
		last := &w.runs[n-1]
		if last.page+int64(last.Pages) == p.page && last.Run.Joins(p.Run) {
			last.Pages += p.Pages
			return
		}
	}
	w.runs = append(w.runs, p)
}

// Finalize implements stateio.AsyncWriter. No write is under way.
func (w *pagesWriter) Finalize() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return errnoOf(w.err)
	}
	slices.SortFunc(w.runs, func(a, b placed) int { return int(a.page - b.page) })
	m := w.r.m
	for _, p := range w.runs {
		m.Append(p.Run)
	}
	m.Prune(w.r.c.PackName)
	if _, err := w.r.c.Map.WriteAt(m.Encode(), 0); err != nil {
		w.err = fmt.Errorf("write the map of pages: %w", err)
		return errnoOf(w.err)
	}
	w.r.mu.Lock()
	w.r.written = w.written
	w.r.mu.Unlock()
	w.r.finish()
	return nil
}
