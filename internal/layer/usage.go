package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what something takes of a disk: bytes of blocks, and inodes.
type Usage struct {
	Bytes int64
	Files int64
}

// Plus returns the sum of both.
func (u Usage) Plus(v Usage) Usage { return Usage{u.Bytes + v.Bytes, u.Files + v.Files} }

// Minus returns what u has more than v.
func (u Usage) Minus(v Usage) Usage { return Usage{u.Bytes - v.Bytes, u.Files - v.Files} }

// Exceeds reports whether u has more of anything than most.
func (u Usage) Exceeds(most Usage) bool { return u.Bytes > most.Bytes || u.Files > most.Files }

// maxUsageDepth bounds how deep a tree is followed. A path of more elements is
// longer than the host's kernel takes.
const maxUsageDepth = 2048

// Usage returns what a layer takes, or, once that is more than enough, what has
// been counted of it. The layer may be a top that a sandbox is changing: it is
// not left on the way, whatever takes the place of a directory meanwhile.
func (s *Store) Usage(id string, enough Usage) (Usage, error) {
	u, err := UsageOf(s.LayerDir(id), enough)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of layer %s: %w", id, err)
	}
	return u, nil
}

// UsageOf returns the same of any directory.
func UsageOf(path string, enough Usage) (Usage, error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Usage{}, err
	}
	c := counter{enough: enough, linked: map[uint64]bool{}}
	err = c.count(dir, 1)
	return c.usage, err
}

// counter adds up what is in a tree.
type counter struct {
	enough Usage
	usage  Usage
	linked map[uint64]bool // inodes with several names that have been counted
}

// namesAtOnce bounds the memory that a directory of any size takes.
const namesAtOnce = 1024

// count adds what is below a directory, and closes it.
func (c *counter) count(dir *os.File, depth int) error {
	defer dir.Close()
	if depth > maxUsageDepth {
		return nil
	}
	for !c.usage.Exceeds(c.enough) {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := c.add(dir, name, depth); err != nil && !vanished(err) {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			return nil // at its end, or removed meanwhile
		}
	}
	return nil
}

func (c *counter) add(dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Nlink > 1 && !isDir {
		if c.linked[st.Ino] {
			return nil
		}
		c.linked[st.Ino] = true
	}
	c.usage = c.usage.Plus(Usage{st.Blocks * 512, 1})
	if !isDir || c.usage.Exceeds(c.enough) {
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return c.count(os.NewFile(uintptr(fd), name), depth+1)
}

// vanished reports whether what was to be looked at is not there any more, or
// something else is.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
