// Package pagemap is the form in which a memory image shares pages with the images
// before it.
//
// Such an image has its pages in several files, its packs. One of them it wrote
// itself; the others are hard links to packs of the images before it, so that the
// file system knows for how long each is needed. The map says where each page is, in
// the order in which the runtime wrote them and will read them: its stream. The sums
// are a digest of each page, by which the next capture recognises those that are
// still the same.
//
// The digests are tags of AES-GCM under a key that no guest learns, over data that is
// only authenticated. For two pages that differ, the tags are the same with a
// probability of less than 2^-119, whatever the pages are: the key was not known to
// whoever made them. A tag takes a tenth of the time of SHA-256.
//
// What is decoded may come from a sentry that a guest has taken over: all of it is
// bounded here.
package pagemap

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/planted"
)

const (
	// Name is the file of an image that holds its map, and SumsName that of the
	// digests, SumSize bytes for each page of the stream.
	Name     = "pages.map"
	SumsName = "pages.sums"
	// Stream is the file that the pages are to the runtime, and are in an image
	// without a map.
	Stream = "pages.img"
	// PageSize is what is compared and referred to.
	PageSize = 4096
	SumSize  = 16
	// MaxPacks bounds how many files the pages of an image are in.
	MaxPacks = 8

	// Zeros is the Pack of pages of zeros, which are in none.
	Zeros = math.MaxUint32

	packPrefix = "pack-"
	version    = 1
	keySize    = 16
	headSize   = 8 + 4 + 4 + keySize + 4 + 8
	runSize    = 20
	// maxPages bounds a stream: 4 TiB.
	maxPages = 1 << 30
)

var magic = []byte("drwpages")

// packName is what a pack may be called.
var packName = lazyregexp.New(`^pack-[a-z0-9][a-z0-9._-]{0,58}$`)

// PackOf returns the name of the pack that the image id writes.
func PackOf(id string) string { return packPrefix + strings.ToLower(id) }

// IsPack reports whether a file of an image is a pack.
func IsPack(name string) bool { return strings.HasPrefix(name, packPrefix) }

// Key is what makes digests. Only those of one key can be compared.
type Key [keySize]byte

// NewKey returns a random key.
func NewKey() (k Key, err error) {
	_, err = io.ReadFull(rand.Reader, k[:])
	return k, err
}

// Summer makes digests of pages. It is not safe for concurrent use.
type Summer struct {
	aead cipher.AEAD
	zero [SumSize]byte
	buf  []byte
}

// noNonce: a tag hides nothing here, so that a nonce may be used again. The tag of a
// page then is a function of key and page.
var noNonce [12]byte

// NewSummer returns a Summer for a key.
func NewSummer(k Key) (*Summer, error) {
	block, err := aes.NewCipher(k[:])
	if err != nil {
		return nil, err
	}
	s := &Summer{buf: make([]byte, 0, SumSize)}
	if s.aead, err = cipher.NewGCM(block); err != nil {
		return nil, err
	}
	s.zero = s.Sum(make([]byte, PageSize))
	return s, nil
}

// Sum returns the digest of a page.
func (s *Summer) Sum(page []byte) (sum [SumSize]byte) {
	s.buf = s.aead.Seal(s.buf[:0], noNonce[:], nil, page)
	return [SumSize]byte(s.buf)
}

// IsZero reports whether a digest is that of a page of zeros.
func (s *Summer) IsZero(sum [SumSize]byte) bool { return sum == s.zero }

// Run is pages that follow each other in the stream, in the memory they come from,
// and in their pack.
type Run struct {
	File   uint32 // the file of memory, counted as the runtime named them
	Source uint32 // the number of the first page in that file
	Pages  uint32
	Pack   uint32 // its place in Packs, or Zeros
	At     uint32 // the number of the first page in the pack
}

// Map is the map of an image.
type Map struct {
	Key   Key
	Packs []string
	Runs  []Run // of the whole stream, in order
}

// Pages returns how many pages the stream has.
func (m *Map) Pages() (n int64) {
	for _, r := range m.Runs {
		n += int64(r.Pages)
	}
	return n
}

// Live returns how many bytes of each pack the image needs.
func (m *Map) Live() []int64 {
	live := make([]int64, len(m.Packs))
	for _, r := range m.Runs {
		if r.Pack != Zeros {
			live[r.Pack] += int64(r.Pages) * PageSize
		}
	}
	return live
}

// Prune leaves out the packs that the map does not refer to, but for own.
func (m *Map) Prune(own string) {
	live, packs := m.Live(), m.Packs
	became := make([]uint32, len(packs))
	m.Packs = nil
	for i, name := range packs {
		if became[i] = uint32(len(m.Packs)); live[i] > 0 || name == own {
			m.Packs = append(m.Packs, name)
		}
	}
	for i := range m.Runs {
		if r := &m.Runs[i]; r.Pack != Zeros {
			r.Pack = became[r.Pack]
		}
	}
}

// Append adds a run, as part of the last one where it goes on there.
func (m *Map) Append(r Run) {
	if n := len(m.Runs); n > 0 && m.Runs[n-1].Joins(r) {
		m.Runs[n-1].Pages += r.Pages
		return
	}
	m.Runs = append(m.Runs, r)
}

// Joins reports whether next is what comes after r.
func (r Run) Joins(next Run) bool {
	return r.File == next.File && r.Pack == next.Pack && uint64(r.Source)+uint64(r.Pages) == uint64(next.Source) &&
		(r.Pack == Zeros || uint64(r.At)+uint64(r.Pages) == uint64(next.At)) && uint64(r.Pages)+uint64(next.Pages) <= maxPages
}

// Encode returns the map as its file.
func (m *Map) Encode() []byte {
	le := binary.LittleEndian
	data := make([]byte, 0, headSize+len(m.Packs)*32+len(m.Runs)*runSize)
	data = append(data, magic...)
	data = le.AppendUint32(data, version)
	data = le.AppendUint32(data, PageSize)
	data = append(data, m.Key[:]...)
	data = le.AppendUint32(data, uint32(len(m.Packs)))
	data = le.AppendUint64(data, uint64(len(m.Runs)))
	for _, p := range m.Packs {
		data = le.AppendUint16(data, uint16(len(p)))
		data = append(data, p...)
	}
	for _, r := range m.Runs {
		for _, v := range []uint32{r.File, r.Source, r.Pages, r.Pack, r.At} {
			data = le.AppendUint32(data, v)
		}
	}
	return data
}

// Decode reads the file of a map.
func Decode(data []byte) (*Map, error) {
	m, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	return m, nil
}

var errTorn = errors.New("it is not whole")

func decode(data []byte) (*Map, error) {
	le := binary.LittleEndian
	if len(data) < headSize || string(data[:8]) != string(magic) {
		return nil, errors.New("it is no page map")
	}
	if v := le.Uint32(data[8:]); v != version {
		return nil, fmt.Errorf("it is of version %d, and this drowse reads version %d", v, version)
	}
	if n := le.Uint32(data[12:]); n != PageSize {
		return nil, fmt.Errorf("it is of pages of %d bytes", n)
	}
	m := &Map{Key: Key(data[16:])}
	packs, runs := le.Uint32(data[16+keySize:]), le.Uint64(data[20+keySize:])
	if packs > MaxPacks {
		return nil, fmt.Errorf("it has %d packs", packs)
	}
	data = data[headSize:]
	for range packs {
		if len(data) < 2 || len(data) < 2+int(le.Uint16(data)) {
			return nil, errTorn
		}
		name := string(data[2:][:le.Uint16(data)])
		if !packName.MatchString(name) || slices.Contains(m.Packs, name) {
			return nil, fmt.Errorf("it has a pack %q", name)
		}
		m.Packs, data = append(m.Packs, name), data[2+len(name):]
	}
	if uint64(len(data)) != runs*runSize || runs > maxPages {
		return nil, errTorn
	}
	m.Runs = make([]Run, runs)
	var pages int64
	for i := range m.Runs {
		v := func(n int) uint32 { return le.Uint32(data[i*runSize+4*n:]) }
		r := Run{v(0), v(1), v(2), v(3), v(4)}
		if pages += int64(r.Pages); r.Pages == 0 || pages > maxPages || r.Pack != Zeros && r.Pack >= packs {
			return nil, fmt.Errorf("run %d is %+v", i, r)
		}
		m.Runs[i] = r
	}
	return m, nil
}

// Check refuses a map that refers to more than there is. size gives the size of a
// file of its image, -1 if there is none.
func (m *Map) Check(size func(name string) int64) error {
	limits := make([]int64, len(m.Packs))
	for i, p := range m.Packs {
		if limits[i] = size(p); limits[i] < 0 {
			return fmt.Errorf("%s: it refers to %s, which is not there", Name, p)
		}
	}
	for i, r := range m.Runs {
		if r.Pack != Zeros && (int64(r.At)+int64(r.Pages))*PageSize > limits[r.Pack] {
			return fmt.Errorf("%s: run %d goes past the end of %s", Name, i, m.Packs[r.Pack])
		}
	}
	if got, want := size(SumsName), m.Pages()*SumSize; got != want {
		return fmt.Errorf("%s has %d bytes instead of %d", SumsName, got, want)
	}
	return nil
}

// Worth returns the packs of an image, given the map, that the next one should go on
// using: those of which more than half is needed. Where there would be too many, those
// with the least in them are written again, with what else has changed.
func (m *Map) Worth(size func(name string) int64) []string {
	live := m.Live()
	var keep []int
	for i, p := range m.Packs {
		if live[i] > 0 && 2*live[i] >= size(p) {
			keep = append(keep, i)
		}
	}
	if len(keep) >= MaxPacks && !planted.In(planted.EndlessChain) { // one more is written
		slices.SortStableFunc(keep, func(a, b int) int { return int((live[b] - live[a]) / PageSize) })
		keep = keep[:MaxPacks/2]
	}
	names := make([]string, len(keep))
	for i, k := range keep {
		names[i] = m.Packs[k]
	}
	return names
}

// Stretch is pages that follow each other in a pack.
type Stretch struct {
	Pack  uint32 // or Zeros
	Off   int64  // in the pack
	Bytes int64
}

// Index finds the pages of a map.
type Index struct {
	m      *Map
	starts []int64 // of each run, in pages of the stream
	order  []int   // of runs, by file and source
	pages  int64
}

// NewIndex returns an index of a map.
func NewIndex(m *Map) *Index {
	x := &Index{m: m, starts: make([]int64, len(m.Runs)), order: make([]int, len(m.Runs))}
	for i, r := range m.Runs {
		x.starts[i], x.order[i] = x.pages, i
		x.pages += int64(r.Pages)
	}
	slices.SortFunc(x.order, func(a, b int) int {
		p, q := m.Runs[a], m.Runs[b]
		switch {
		case p.File != q.File:
			return int(int64(p.File) - int64(q.File))
		default:
			return int(int64(p.Source) - int64(q.Source))
		}
	})
	return x
}

// Size returns how many bytes the stream has.
func (x *Index) Size() int64 { return x.pages * PageSize }

// At returns where the stream is from an offset on, for as long as that is in one
// piece. The offset is not past the end.
func (x *Index) At(off int64) Stretch {
	page := off / PageSize
	i := sort.Search(len(x.starts), func(i int) bool { return x.starts[i] > page }) - 1
	r, within := x.m.Runs[i], off-x.starts[i]*PageSize
	s := Stretch{Pack: r.Pack, Bytes: int64(r.Pages)*PageSize - within}
	if r.Pack != Zeros {
		s.Off = int64(r.At)*PageSize + within
	}
	return s
}

// Known is pages of memory that an image has.
type Known struct {
	Stream int64 // the number of the first in the stream
	Pack   uint32
	At     uint32
	Pages  uint32
}

// Find returns the pages from source on that are in one piece in the image; with no
// Pages if it does not have the first.
func (x *Index) Find(file, source uint32) Known {
	n := sort.Search(len(x.order), func(n int) bool {
		r := x.m.Runs[x.order[n]]
		return r.File > file || r.File == file && r.Source > source
	}) - 1
	if n < 0 {
		return Known{}
	}
	i := x.order[n]
	r := x.m.Runs[i]
	within := source - r.Source
	if r.File != file || within >= r.Pages {
		return Known{}
	}
	return Known{Stream: x.starts[i] + int64(within), Pack: r.Pack, At: r.At + within, Pages: r.Pages - within}
}

// Reader reads the stream of an image as one file.
type Reader struct {
	x     *Index
	packs []io.ReaderAt
}

// NewReader returns a reader, given the packs in the order of the map.
func NewReader(x *Index, packs []io.ReaderAt) *Reader { return &Reader{x, packs} }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		if off < 0 || off >= r.x.Size() {
			return n, io.EOF
		}
		s := r.x.At(off)
		part := p[n:][:min(int64(len(p)-n), s.Bytes)]
		if s.Pack == Zeros {
			clear(part)
		} else if _, err := r.packs[s.Pack].ReadAt(part, s.Off); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return n, fmt.Errorf("%s at %d: %w", r.x.m.Packs[s.Pack], s.Off, err)
		}
		n, off = n+len(part), off+int64(len(part))
	}
	return n, nil
}
