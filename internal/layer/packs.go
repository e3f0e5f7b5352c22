package layer

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/planted"
)

// An image with a map of pages has hard links to packs of the images before it. The
// links are made before the capture, when it is not known yet which of them it will
// need; Seal takes the others away again. No file of an image is ever changed once it
// is sealed, so that it does not matter whose it was first.

// Packs is what an image that is being made may share with another.
type Packs struct {
	Own  string   // the name of the pack that is to be written
	Base string   // the directory of the other image; empty for none
	Keep []string // those of its packs that are in the directory of the new one

	files []File // those of Keep, as they are in the manifest of the other
}

// linked returns what is known of a pack that was linked.
func (p *Packs) linked(name string) (File, bool) {
	if p == nil {
		return File{}, false
	}
	i := slices.IndexFunc(p.files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return File{}, false
	}
	return p.files[i], true
}

// NewImageOver makes the directory of a new image that may share pages with the image
// base, sealed as digest; with no base, or one that has no map or is not what was
// sealed, it will share none.
func (s *Store) NewImageOver(id, base, digest string) (dir string, p *Packs, err error) {
	if dir, err = s.NewImage(id); err != nil {
		return "", nil, err
	}
	p = &Packs{Own: pagemap.PackOf(id)}
	if base == "" {
		return dir, p, nil
	}
	from := s.ImageDir(base)
	m, err := lookIn(from, base, digest)
	if err != nil || !m.Mapped() || verifySizes(from, m) != nil || verifyFile(from, fileOf(m, pagemap.SumsName)) != nil {
		return dir, p, nil // the pause does not need it, and the next wake does not either
	}
	pages, err := readMap(from, m)
	if err != nil {
		return dir, p, nil
	}
	keep := pages.Worth(func(name string) int64 { return fileOf(m, name).Size })
	for _, name := range keep {
		if err := failpoint.Fail(failpoint.ImageLink); err != nil {
			return "", nil, err
		}
		err := os.Link(filepath.Join(from, name), filepath.Join(dir, name))
		if cannotLink(err) {
			continue // its pages are written once more
		}
		if err != nil {
			return "", nil, fmt.Errorf("make image: %w", err)
		}
		p.Keep, p.files = append(p.Keep, name), append(p.files, fileOf(m, name))
	}
	p.Base = from
	return dir, p, nil
}

// cannotLink reports whether err says that the file system links no files, or not this
// one once more.
func cannotLink(err error) bool {
	return errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

// dropUnneeded takes away the links that the map of a new image does not refer to.
func (p *Packs) dropUnneeded(dir string) error {
	if err := failpoint.Fail(failpoint.ImageUnlink); err != nil {
		return err
	}
	pages, err := decodeMap(dir)
	if err != nil {
		return err
	}
	for _, name := range p.Keep {
		if slices.Contains(pages.Packs, name) && !planted.In(planted.DroppedPack) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// fileOf returns the entry of a file in a manifest; with size -1 if it has none.
func fileOf(m Manifest, name string) File {
	if i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == name }); i >= 0 {
		return m.Files[i]
	}
	return File{Name: name, Size: -1}
}

// readMap reads the map of an image, which is verified, and compares it with the files
// of the image.
func readMap(dir string, m Manifest) (*pagemap.Map, error) {
	if err := verifyFile(dir, fileOf(m, pagemap.Name)); err != nil {
		return nil, err
	}
	pages, err := decodeMap(dir)
	if err != nil {
		return nil, err
	}
	return pages, pages.Check(func(name string) int64 { return fileOf(m, name).Size })
}

// maxMap bounds what is read of a map: its size follows from how much memory a sandbox
// has, and in how many pieces.
const maxMap = 1 << 28

// decodeMap reads the map of an image.
func decodeMap(dir string) (*pagemap.Map, error) {
	f, err := os.Open(filepath.Join(dir, pagemap.Name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMap))
	if err != nil {
		return nil, err
	}
	return pagemap.Decode(data)
}

// LookMapped is Look for an image with a map: the digests of its pages, which no
// runtime reads, are verified as well.
func (s *Store) LookMapped(id, digest string) (Manifest, error) {
	m, err := s.Look(id, digest)
	if err != nil || !m.Mapped() {
		return m, err
	}
	if err := verifyFile(s.ImageDir(id), fileOf(m, pagemap.SumsName)); err != nil {
		return Manifest{}, imageDamaged(id, err)
	}
	return m, nil
}

// Whole returns the files of an image as they would be if it shared none with others,
// given its manifest. It reads all pages of an image that has a map.
func (s *Store) Whole(m Manifest) ([]File, error) {
	if !m.Mapped() {
		return m.Files, nil
	}
	// The export says what its files are by these checksums, so that what they are of is
	// compared with those of the image.
	pages, closeAll, err := s.openPages(m.ID, func(name string, f io.ReaderAt) io.ReaderAt {
		return &checked{from: f, file: fileOf(m, name), index: -1}
	})
	if err != nil {
		return nil, err
	}
	defer closeAll()
	sums, size, err := checksum(pages)
	if err != nil {
		return nil, damaged("memory image", m.ID, err)
	}
	files := []File{{Name: pagemap.Stream, Size: size, CRC32C: sums}}
	for _, f := range m.Files {
		if f.Name != pagemap.Name && f.Name != pagemap.SumsName && !pagemap.IsPack(f.Name) {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	return files, nil
}

// OpenWhole opens a file of those that Whole returns.
func (s *Store) OpenWhole(id, name string) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(s.ImageDir(id), name))
	if !errors.Is(err, os.ErrNotExist) || name != pagemap.Stream {
		return f, err
	}
	pages, closeAll, err := s.openPages(id, func(_ string, f io.ReaderAt) io.ReaderAt { return f })
	if err != nil {
		return nil, err
	}
	return stream{pages, closeAll}, nil
}

// stream is the pages of an image as one file.
type stream struct {
	io.Reader
	close func() error
}

// Close implements io.Closer.
func (s stream) Close() error { return s.close() }

// checked reads a file of an image by its checksums, a chunk at a time.
type checked struct {
	from  io.ReaderAt
	file  File
	buf   []byte
	index int64 // of the chunk in buf, -1 for none
}

// ReadAt implements io.ReaderAt.
func (c *checked) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		index := off / ChunkSize
		if off >= c.file.Size {
			return n, io.EOF
		}
		if index != c.index {
			c.index = -1
			c.buf = slices.Grow(c.buf[:0], ChunkSize)[:min(ChunkSize, c.file.Size-index*ChunkSize)]
			if _, err := c.from.ReadAt(c.buf, index*ChunkSize); err != nil {
				return n, fmt.Errorf("%s: %w", c.file.Name, err)
			}
			if crc32.Checksum(c.buf, castagnoli) != c.file.CRC32C[index] {
				return n, fmt.Errorf("%s differs from what was written", c.file.Name)
			}
			c.index = index
		}
		m := copy(p[n:], c.buf[off-index*ChunkSize:])
		n, off = n+m, off+int64(m)
	}
	return n, nil
}

// openPages opens the pages of an image that has a map and was verified. Its packs are
// read through what by makes of them.
func (s *Store) openPages(id string, by func(name string, f io.ReaderAt) io.ReaderAt) (_ io.Reader, closeAll func() error, err error) {
	dir := s.ImageDir(id)
	m, err := decodeMap(dir)
	if err != nil {
		return nil, nil, err
	}
	var packs []io.ReaderAt
	var open []*os.File
	closeAll = func() error {
		var errs []error
		for _, f := range open {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	for _, name := range m.Packs {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		open, packs = append(open, f), append(packs, by(name, f))
	}
	x := pagemap.NewIndex(m)
	return io.NewSectionReader(pagemap.NewReader(x, packs), 0, x.Size()), closeAll, nil
}
