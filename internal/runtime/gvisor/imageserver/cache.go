package imageserver

import (
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/drowse-dev/drowse/internal/planted"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cache holds the checked chunks that were used last, for all who read the same files.
// The pages of a stream are not aligned as the chunks of a pack are, so that reads that
// follow each other share a chunk: it is read and checked once, whoever comes first.
type cache struct {
	mu    sync.Mutex
	held  []*chunk
	most  int // chunks; more only while all of them are in use
	clock int64
}

// chunk is what one checksum covers.
type chunk struct {
	file  *File
	index int64
	buf   []byte
	ready chan struct{} // closed when buf or err is there
	err   error

	// Known to the cache, under its lock.
	users int
	used  int64 // when it was asked for last
}

// newCache returns a cache for reading so many files in turn. It is small, so that
// what it holds stays near the processor.
func newCache(files int) *cache { return &cache{most: 2*files + workers} }

// get returns a chunk of a file, checked. Whoever gets it puts it back.
func (c *cache) get(f *File, index int64) (*chunk, error) {
	k, mine := c.claim(f, index)
	if mine {
		k.err = k.load()
		close(k.ready)
	}
	<-k.ready
	if k.err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		k.users--
		k.file = nil // the next one tries again
		return nil, k.err
	}
	return k, nil
}

// holds reports whether the chunk with an offset of a file is there, or on its way.
func (c *cache) holds(f *File, off int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.held, func(k *chunk) bool { return k.file == f && k.index == off/f.Chunk })
}

// claim returns the chunk, and whether the caller is to load it.
func (c *cache) claim(f *File, index int64) (k *chunk, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	var oldest *chunk
	for _, k := range c.held {
		if k.file == f && k.index == index {
			k.users, k.used = k.users+1, c.clock
			return k, false
		}
		if k.users == 0 && (oldest == nil || k.used < oldest.used) {
			oldest = k
		}
	}
	k = oldest
	if k == nil || len(c.held) < c.most {
		k = &chunk{}
		c.held = append(c.held, k)
	}
	k.file, k.index, k.ready, k.err = f, index, make(chan struct{}), nil
	k.users, k.used = 1, c.clock
	return k, true
}

func (c *cache) put(k *chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.users--
}

// load reads the chunk and compares it with its checksum.
func (k *chunk) load() error {
	f := k.file
	off := k.index * f.Chunk
	n := min(f.Chunk, f.Size-off)
	if int64(cap(k.buf)) < n {
		k.buf = make([]byte, min(f.Chunk, f.Size))
	}
	k.buf = k.buf[:n]
	if _, err := f.From.ReadAt(k.buf, off); err != nil {
		return &Damage{File: f.Name, Offset: off, Cause: err.Error()}
	}
	if crc32.Checksum(k.buf, castagnoli) != f.CRC32C[k.index] && !planted.In(planted.UncheckedChunk) {
		return &Damage{File: f.Name, Offset: off}
	}
	return nil
}

// view reads by way of a cache. It holds one chunk, and is not safe for concurrent use.
type view struct {
	c *cache
	k *chunk // nil for none
}

// at returns what a file has from an offset on, as much as its chunk has, until the
// next call. At the end it is io.EOF.
func (v *view) at(f *File, off int64) (part []byte, err error) {
	if off >= f.Size {
		return nil, io.EOF
	}
	index := off / f.Chunk
	if v.k == nil || v.k.file != f || v.k.index != index {
		if v.k != nil {
			v.c.put(v.k)
			v.k = nil
		}
		if v.k, err = v.c.get(f, index); err != nil {
			return nil, err
		}
	}
	return v.k.buf[off-index*f.Chunk:], nil
}

// file is one file. It implements contents.
type file struct {
	view
	f *File
}

func (c *cache) file(f *File) *file { return &file{view{c: c}, f} }

func (f *file) at(off, _ int64) (part []byte, zeros int64, err error) {
	part, err = f.view.at(f.f, off)
	return part, 0, err
}
