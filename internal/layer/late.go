package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/pagemap"
)

// The pages of an image can come late: the image is sealed, with the checksums that they will
// have, while they still come from somewhere else. Until all are there their file has another
// name, so that nobody takes it for whole: Verify and Look return an errdef.Unavailable with
// code "memory_pending".

// lateSuffix ends the name of that file.
const lateSuffix = ".late"

// CodePending is that of an image of which pages are missing.
const CodePending = "memory_pending"

func errPending(image string) error {
	return errdef.New(errdef.Unavailable, CodePending, "the memory image %s is not whole yet: the rest of it is still to be read from object storage", image).
		WithRemedy("try again once object storage answers")
}

// imageDamaged is damaged of an image.
func imageDamaged(id string, err error) error {
	if errdef.CodeOf(err) == CodePending {
		return err
	}
	return damaged("memory image", id, err)
}

// LatePages says that the pages of the image come when it has its place: see [OpenLate]. They
// have their room on the disk from now on, where the file system can do that.
func (st *Staging) LatePages(size int64) error {
	f, err := os.OpenFile(LatePath(st.imageDir()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case err == nil, errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("import image: %w", err)
		}
	}
}

// Zeros says that a part of the pages has zeros, which need no room.
func (l *Late) Zeros(off, size int64) error {
	err := unix.Fallocate(int(l.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) { // it has them already
		return nil
	}
	return err
}

// MayBeLate reports whether a file of an image that has no map is its pages.
func MayBeLate(f File) bool { return f.Name == pagemap.Stream }

// LookLate is Look for an image whose pages may come late. It is for who knows which parts of
// them are there.
func (s *Store) LookLate(id, digest string) (m Manifest, late bool, err error) {
	if m, err = readManifest(s.ImageDir(id), id, digest); err != nil {
		return Manifest{}, false, damaged("memory image", id, err)
	}
	if _, err := os.Stat(LatePath(s.ImageDir(id))); err == nil {
		return m, true, nil
	}
	m, err = s.Look(id, digest)
	return m, false, err
}

// LatePath returns where the pages of the image in dir are as long as they are not whole.
func LatePath(dir string) string { return filepath.Join(dir, pagemap.Stream+lateSuffix) }

// Late is the pages of an image that are not whole.
type Late struct {
	*os.File
	Size int64
}

// OpenLate opens the pages of the image in dir that are not whole; nil if they are.
func OpenLate(dir string) (*Late, error) {
	f, err := os.OpenFile(LatePath(dir), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // as it says
	}
	if err != nil {
		return nil, fmt.Errorf("open late pages: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open late pages: %w", err), f.Close())
	}
	return &Late{f, info.Size()}, nil
}

// Complete says that all of them were written. They are durable then, and the image whole.
func (l *Late) Complete() error {
	err := l.Sync()
	if err == nil {
		err = os.Rename(l.File.Name(), strings.TrimSuffix(l.File.Name(), lateSuffix))
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(l.File.Name()))
	}
	if err != nil {
		return fmt.Errorf("complete late pages: %w", err)
	}
	return nil
}
