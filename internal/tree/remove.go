package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Remove deletes what is at path with all that is in it. It is idempotent. A
// crash leaves less of it, for the next to remove.
//
// It needs two descriptors for a tree of any depth: directories that are not
// empty are moved up to its top, and emptied there one after the other.
func Remove(path string) error { return RemoveAt(unix.AT_FDCWD, path) }

// RemoveAt does the same for what has a name in the open directory at. Others may
// change the tree meanwhile. The error is ENOTEMPTY if they add to it at its end.
func RemoveAt(at int, name string) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return gone(removal(name, unix.Unlinkat(at, name, 0)))
	case err != nil:
		return removal(name, err)
	}
	top := os.NewFile(uintptr(fd), name)
	defer top.Close()
	r := remover{top: top}
	for {
		n, err := r.empty(top, r.removeDir)
		if err != nil {
			return fmt.Errorf("remove what is in %s: %w", name, err)
		}
		if n == 0 {
			return gone(removal(name, unix.Unlinkat(at, name, unix.AT_REMOVEDIR)))
		}
	}
}

func removal(name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "remove", Path: name, Err: err}
}

type remover struct {
	top   *os.File
	moved int // directories
}

// empty removes what is in a directory, directories by calling dir, and returns
// how many names it found.
func (r *remover) empty(in *os.File, dir func(in *os.File, name string) error) (found int, err error) {
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	for {
		some, err := in.ReadDir(namesAtOnce)
		if errors.Is(err, fs.ErrNotExist) {
			return found, nil // another removal was quicker
		}
		for _, e := range some {
			found++
			remove := dir
			if !e.IsDir() {
				remove = unlink
			}
			if err := remove(in, e.Name()); err != nil {
				return found, err
			}
		}
		if errors.Is(err, io.EOF) || err == nil && len(some) == 0 {
			return found, nil
		}
		if err != nil {
			return found, err
		}
	}
}

func unlink(in *os.File, name string) error {
	return gone(unix.Unlinkat(int(in.Fd()), name, 0))
}

// removeDir removes a directory at the top.
func (r *remover) removeDir(in *os.File, name string) error {
	err := unix.Unlinkat(int(in.Fd()), name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return gone(err)
	}
	fd, err := unix.Openat(int(in.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return gone(err)
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	if _, err := r.empty(d, r.moveUp); err != nil {
		return err
	}
	return gone(unix.Unlinkat(int(in.Fd()), name, unix.AT_REMOVEDIR))
}

// moveUp removes a directory that is deeper, or moves it to the top, where it
// gets a name that nothing has.
func (r *remover) moveUp(in *os.File, name string) error {
	err := unix.Unlinkat(int(in.Fd()), name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return gone(err)
	}
	for {
		r.moved++
		err := unix.Renameat2(int(in.Fd()), name, int(r.top.Fd()), fmt.Sprintf("removed-%d", r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return gone(err)
		}
	}
}

// gone drops the error of what is not there any more.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
