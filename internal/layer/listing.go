package layer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/tree"
)

// listingName is the file of a frozen layer that says what is in it. After
// listingForm there is a line for each entry, in the order of tree.Walk: how deep
// it lies, its name, all of it that a sandbox could see, and a checksum of its
// contents. So a line does not grow with the path, and a listing is written and
// compared in little memory.
const (
	listingName   = ".listing"
	listingFamily = "drowse listing "
	listingForm   = listingFamily + "2"
)

// line is a line of a listing.
type line struct {
	depth int
	name  string
	head  string // what there is to know without reading a file
	sum   string // of the contents of a regular file; "" of all else

	in  *tree.Path // for messages
	ino uint64
}

func (l line) String() string {
	return strconv.Itoa(l.depth) + " " + strconv.Quote(l.name) + " " + l.facts()
}

// facts is what follows the name.
func (l line) facts() string {
	if l.sum == "" {
		return l.head
	}
	return l.head + " " + l.sum
}

// short returns the path for a message.
func (l line) short() string {
	if l.depth == 0 {
		return strconv.Quote(".")
	}
	return strconv.Quote((&tree.Path{In: l.in, Name: l.name}).Short())
}

// kindAndSize returns the type of a line's entry, and of a regular file its size.
func (l line) kindAndSize() (kind uint32, size int64) {
	mode, rest, _ := strings.Cut(l.head, " ")
	bits, _ := strconv.ParseUint(mode, 8, 32)
	if kind = uint32(bits) & unix.S_IFMT; kind != unix.S_IFREG {
		return kind, 0
	}
	_, rest, _ = strings.Cut(rest, " ") // the owner
	_, rest, _ = strings.Cut(rest, " ") // the attributes
	text, _, _ := strings.Cut(rest, " ")
	size, _ = strconv.ParseInt(text, 10, 64)
	return kind, size
}

// maxPending is how many files are read, or wait for that or for their turn, at a
// time. They are open.
const maxPending = 64

// pending is a line whose checksum may still be taken.
type pending struct {
	line
	file   *os.File // nil if there is nothing to read
	size   int64
	shared *shared       // nil if the file has one name
	done   chan struct{} // closed when the line is complete, but for a sum that is shared
	err    error
}

// shared is the checksum of a file with several names. Only its first name in the
// order of the listing reads the file.
type shared struct {
	sum  string // set before any other name's turn comes
	more uint64 // how many more names may follow
}

// linkedFiles is the files with several names that a listing has met, by inode, but for
// those of which it has met all names. A layer has no more than MaxNames.
type linkedFiles map[uint64]*shared

// meet notes a name of a file, and reports whether it is the first one.
func (n linkedFiles) meet(st *unix.Stat_t) (s *shared, first bool) {
	if st.Nlink < 2 {
		return nil, true
	}
	s = n[st.Ino]
	if s == nil {
		s = &shared{more: uint64(st.Nlink) - 1}
		n[st.Ino] = s
		return s, true
	}
	if s.more--; s.more == 0 {
		delete(n, st.Ino)
	}
	return s, false
}

// list calls take for the lines of what a layer's directory holds now, in order.
// Files are read by as many goroutines as there are processors, each once, however
// many names it has: else 60,000 names of a file would cost as much as such files.
func list(ctx context.Context, dir string, take func(line) error) error {
	g, ctx := errgroup.WithContext(ctx)
	read, order := make(chan *pending, maxPending), make(chan *pending, maxPending)
	g.Go(func() error {
		defer close(order)
		defer close(read)
		met := linkedFiles{}
		return walk(ctx, dir, func(e *tree.Entry) error {
			p, err := met.describe(e)
			if err != nil {
				return err
			}
			return p.queue(ctx, read, order)
		})
	})
	for range goruntime.NumCPU() {
		g.Go(func() error {
			for p := range read {
				p.finish(ctx)
			}
			return nil
		})
	}
	g.Go(func() error {
		for p := range order {
			<-p.done
			if p.err != nil {
				return p.err
			}
			p.share()
			if err := take(p.line); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// queue gives the line to who reads the file, if there is one, and to who waits
// for lines in order.
func (p *pending) queue(ctx context.Context, read, order chan<- *pending) error {
	if p.file == nil {
		close(p.done)
	} else {
		select {
		case read <- p:
		case <-ctx.Done():
			_ = p.file.Close()
			return ctx.Err()
		}
	}
	select {
	case order <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish takes the checksum, and closes the file.
func (p *pending) finish(ctx context.Context) {
	defer close(p.done)
	defer p.file.Close()
	sum, err := contents(ctx, p.file, p.size)
	if err != nil {
		p.err = fmt.Errorf("read %s: %w", p.short(), err)
	}
	p.sum = sumText(sum)
}

// share takes the checksum from the file's first name, or leaves it to the others.
// It is called for one line after the other, in order.
func (p *pending) share() {
	switch {
	case p.shared == nil:
	case p.sum == "":
		p.sum = p.shared.sum
	default:
		p.shared.sum = p.sum
	}
}

// sumText is how a checksum is written. That of an empty file is 0.
func sumText(sum uint32) string { return fmt.Sprintf("%08x", sum) }

// checksum returns that of a regular file.
func (l line) checksum() (uint32, error) {
	sum, err := strconv.ParseUint(l.sum, 16, 32)
	return uint32(sum), err
}

// describe begins the line for an entry. Times and inode numbers are no part of
// it: a copy of the layer is as good.
func (n linkedFiles) describe(e *tree.Entry) (*pending, error) {
	l, err := header(e)
	p := &pending{line: l, size: e.Stat.Size, done: make(chan struct{})}
	if err != nil || e.Kind() != unix.S_IFREG {
		return p, err
	}
	if p.size == 0 {
		p.sum = sumText(0)
		return p, nil
	}
	var first bool
	if p.shared, first = n.meet(&e.Stat); !first {
		return p, nil
	}
	p.file, err = e.Open()
	return p, err
}

// header returns the line for an entry as far as it takes no reading of a file.
func header(e *tree.Entry) (line, error) {
	l := line{depth: e.Depth, name: e.Name, in: e.In, ino: e.Stat.Ino}
	path := tree.ProcPath(e.At, e.Name)
	attributes, err := attributes(path)
	if err != nil {
		return l, fmt.Errorf("attributes of %s: %w", l.short(), err)
	}
	l.head = fmt.Sprintf("%o %d:%d %08x", e.Stat.Mode, e.Stat.Uid, e.Stat.Gid, attributes)
	switch e.Kind() {
	case unix.S_IFREG:
		l.head += fmt.Sprintf(" %d", e.Stat.Size)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return l, fmt.Errorf("read link %s: %w", l.short(), err)
		}
		l.head += fmt.Sprintf(" %q", target)
	case unix.S_IFCHR, unix.S_IFBLK: // 0 is overlayfs' mark of what was removed
		l.head += fmt.Sprintf(" %d", e.Stat.Rdev)
	}
	return l, nil
}

// ownAttributes are extended attributes that overlayfs keeps for itself and
// changes when it likes.
var ownAttributes = []string{"trusted.overlay.impure", "trusted.overlay.origin", "trusted.overlay.uuid", attrLinks}

// attributes returns a checksum of an entry's extended attributes.
func attributes(path string) (uint32, error) {
	names, err := attributeNames(path)
	if len(names) == 0 || err != nil {
		return 0, err
	}
	sum := crc32.New(castagnoli)
	for _, name := range names {
		if slices.Contains(ownAttributes, name) {
			continue
		}
		value, err := attribute(path, name)
		if err != nil {
			return 0, &fs.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		fmt.Fprintf(sum, "%q %q\n", name, value)
	}
	return sum.Sum32(), nil
}

// attributeNames returns the names of an entry's extended attributes, sorted.
func attributeNames(path string) ([]string, error) {
	n, err := unix.Llistxattr(path, nil)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil
	}
	names := make([]byte, max(n, 0))
	if err == nil {
		n, err = unix.Llistxattr(path, names) // overlayfs asks for more than it gives
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	list := strings.FieldsFunc(string(names[:n]), func(c rune) bool { return c == 0 })
	slices.Sort(list)
	return list, nil
}

func attribute(path, name string) ([]byte, error) {
	n, err := unix.Lgetxattr(path, name, nil)
	if n == 0 || err != nil {
		return nil, err
	}
	value := make([]byte, n)
	n, err = unix.Lgetxattr(path, name, value)
	return value[:max(n, 0)], err
}

// contents returns a checksum of a file: that of the numbers and checksums of
// its chunks, those of zeros left out. So a huge file with holes takes no longer
// than what is in it, and is the same file when a copy has filled the holes.
func contents(ctx context.Context, f *os.File, size int64) (uint32, error) {
	sum := crc32.New(castagnoli)
	buf := make([]byte, min(ChunkSize, size))
	for at := int64(0); at < size; at += ChunkSize {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil { // this file system does not tell
			data = at
		}
		at = max(at, data/ChunkSize*ChunkSize)
		n, err := readChunk(f, buf[:min(ChunkSize, size-at)], at, data)
		if err != nil {
			return 0, err
		}
		addChunk(sum, at/ChunkSize, buf[:n])
	}
	return sum.Sum32(), nil
}

// readChunk reads what lies at an offset of a file, from data on, which is where the
// first data is. Holes are not read: a file may have a little data in each chunk.
func readChunk(f *os.File, chunk []byte, at, data int64) (n int, err error) {
	end := at + int64(len(chunk))
	clear(chunk[:data-at])
	for data < end {
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil || hole <= data || hole > end { // or it does not tell
			hole = end
		}
		if n, err := f.ReadAt(chunk[data-at:hole-at], data); err == io.EOF {
			return int(data-at) + n, nil
		} else if err != nil {
			return 0, err
		}
		if data, err = unix.Seek(int(f.Fd()), hole, unix.SEEK_DATA); err != nil {
			data = end // nothing but a hole
		}
		data = min(data, end)
		clear(chunk[hole-at : data-at])
	}
	return len(chunk), nil
}

func addChunk(sum hash.Hash32, number int64, data []byte) {
	if !bytes.Equal(data, zeros[:len(data)]) {
		fmt.Fprintf(sum, "%d %08x\n", number, crc32.Checksum(data, castagnoli))
	}
}

var zeros [ChunkSize]byte

// writeListing makes the listing of a layer of the lines that each calls add for,
// durable, and returns its SHA-256 in hex.
func writeListing(dir string, each func(add func(line) error) error) (digest string, err error) {
	path := filepath.Join(dir, listingName)
	f, err := durable.Create(path + ".new")
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 64<<10)
	fmt.Fprintln(w, listingForm)
	if err := each(func(l line) error {
		_, err := fmt.Fprintln(w, l)
		return err
	}); err != nil {
		return "", err
	}
	if err := errors.Join(w.Flush(), f.Sync()); err != nil {
		return "", err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), durable.Sync(dir)
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// VerifyLayer checks that a layer is the one that was frozen as digest and
// undamaged. The error is an errdef.Unavailable with code "checkpoint_damaged"
// and says what differs. Of a layer without a digest, which an older program
// froze, it is only known whether it is there.
func (s *Store) VerifyLayer(ctx context.Context, id, digest string) error {
	dir := s.LayerDir(id)
	if digest == "" {
		if !s.HasLayer(id) {
			return damaged("layer", id, fmt.Errorf("%s does not exist", dir))
		}
		return nil
	}
	c, err := compareWith(dir, digest)
	if err != nil {
		return damaged("layer", id, err)
	}
	defer c.lines.close()
	err = list(ctx, dir, func(now line) error {
		if planted.In(planted.UncheckedLayer) {
			return nil
		}
		_, err := c.compare(now, line.facts)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && !planted.In(planted.UncheckedLayer) {
		err = c.end()
	}
	if err != nil {
		return damaged("layer", id, err)
	}
	return nil
}

// VerifyStack verifies the layers of a stack by the digests that there are of
// them.
func (s *Store) VerifyStack(ctx context.Context, stack []string, digests map[string]string) error {
	for _, id := range stack {
		if err := s.VerifyLayer(ctx, id, digests[id]); err != nil {
			return err
		}
	}
	return nil
}

// comparer holds what there is against a listing, line by line.
type comparer struct {
	lines *listing
}

// compareWith opens the listing that was committed as digest.
func compareWith(dir, digest string) (*comparer, error) {
	l, err := openListing(dir, digest)
	return &comparer{lines: l}, err
}

// compare takes the next line of the listing, which must be about what now is
// about and say the same of it, and returns it. What is compared, part says.
func (c *comparer) compare(now line, part func(line) string) (line, error) {
	was, err := c.lines.next()
	switch {
	case errors.Is(err, io.EOF):
		return was, fmt.Errorf("%s was added", now.short())
	case err != nil:
		return was, err
	case was.depth == now.depth && was.name == now.name:
		if part(was) != part(now) {
			return was, fmt.Errorf("%s differs from what was written", now.short())
		}
		return was, nil
	case now.depth > was.depth || now.depth == was.depth && now.name < was.name:
		return was, fmt.Errorf("%s was added", now.short())
	}
	return was, fmt.Errorf("%s is missing", was.short())
}

// end holds that the listing has no more lines.
func (c *comparer) end() error {
	was, err := c.lines.next()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s is missing", was.short())
}

// listing reads the lines of a listing.
type listing struct {
	file *os.File
	r    *bufio.Reader
	way  []*tree.Path // that the line before lies in, from the top down
	old  []line       // of a listing in the form before
}

// openListing opens the listing of a layer if it is the one that was committed as
// digest.
func openListing(dir, digest string) (*listing, error) {
	f, err := os.Open(filepath.Join(dir, listingName))
	if err != nil {
		return nil, err
	}
	l, err := newListing(f, digest)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return l, nil
}

func newListing(f *os.File, digest string) (*listing, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != digest {
		return nil, fmt.Errorf("%s is not the one that was committed", listingName)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	l := &listing{file: f, r: bufio.NewReaderSize(f, 64<<10)}
	form, err := l.r.Peek(len(listingForm) + 1)
	if err == nil && string(form) == listingForm+"\n" {
		_, err = l.r.Discard(len(form))
		return l, err
	}
	if form, _ := l.r.Peek(len(listingFamily)); string(form) == listingFamily {
		first, err := l.r.ReadString('\n')
		return nil, errors.Join(fmt.Errorf("its listing is %q, and this version of drowse reads %q and the form before", strings.TrimSuffix(first, "\n"), listingForm), err)
	}
	l.old, err = readFlat(l.r)
	if l.old == nil {
		l.old = []line{}
	}
	return l, err
}

func (l *listing) close() { _ = l.file.Close() }

// next returns the next line; io.EOF after the last.
func (l *listing) next() (next line, err error) {
	if l.old != nil {
		if len(l.old) == 0 {
			return line{}, io.EOF
		}
		next, l.old = l.old[0], l.old[1:]
	} else {
		text, err := l.r.ReadString('\n')
		if err != nil {
			return line{}, err
		}
		next = parseLine(strings.TrimSuffix(text, "\n"))
	}
	if next.depth > 0 {
		if next.depth > len(l.way) {
			panic(fmt.Sprintf("internal error: layer: %q lies in nothing", next))
		}
		next.in = l.way[next.depth-1]
	}
	l.way = append(l.way[:next.depth], next.path())
	return next, nil
}

// path returns where the line's entry lies.
func (l line) path() *tree.Path {
	if l.depth == 0 {
		return nil
	}
	return &tree.Path{In: l.in, Name: l.name}
}

// parseLine reads what line.String has written. Its checksum was known.
func parseLine(text string) line {
	depth, rest, _ := strings.Cut(text, " ")
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		panic(fmt.Sprintf("internal error: layer: %q is no line of a listing", text))
	}
	l := line{}
	l.depth, err = strconv.Atoi(depth)
	name, err2 := strconv.Unquote(quoted)
	if err != nil || err2 != nil || len(rest) < len(quoted)+1 {
		panic(fmt.Sprintf("internal error: layer: %q is no line of a listing", text))
	}
	l.name = name
	l.setFacts(rest[len(quoted)+1:])
	return l
}

// setFacts takes apart what facts has put together.
func (l *line) setFacts(text string) {
	l.head = text
	if kind, _ := l.kindAndSize(); kind == unix.S_IFREG {
		i := strings.LastIndexByte(text, ' ')
		l.head, l.sum = text[:i], text[i+1:]
	}
}

// damaged is the error of a checkpoint of which a part is not what was written.
// What only could not be looked at now is not called so.
func damaged(kind, id string, err error) error {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR} {
		if errors.Is(err, passing) {
			return fmt.Errorf("verify %s %s: %w", kind, id, err)
		}
	}
	return errdef.New(errdef.Unavailable, "checkpoint_damaged", "%s %s is damaged: %w", kind, id, err).
		WithRemedy("the files are left as they are: put them back from a backup, or kill the sandbox; drowse fsck says what else is damaged")
}
