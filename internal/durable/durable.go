// Package durable makes files and names survive a power cut.
package durable

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sync makes the contents of a file durable, or the names in a directory.
func Sync(path string) error { return SyncAt(unix.AT_FDCWD, path) }

// SyncAt does the same for what has a name in the open directory at. It follows
// no link at the end of the name.
func SyncAt(at int, name string) error {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := openat(at, name, flags|unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		fd, err = openat(at, name, flags)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if err := retried(func() error { return unix.Fsync(fd) }); err != nil {
		return &os.PathError{Op: "sync", Path: name, Err: err}
	}
	return nil
}

func openat(at int, name string, flags int) (fd int, err error) {
	err = retried(func() (err error) {
		fd, err = unix.Openat(at, name, flags, 0)
		return err
	})
	return fd, err
}

// retried calls f again where a signal has interrupted it.
func retried(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// SyncFilesystem makes everything durable on the file system that holds path.
func SyncFilesystem(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Create opens a file for writing, for its owner alone, in place of what has its
// name.
func Create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

// Replace gives a file other contents, and this mode whatever the umask is. Readers find
// the old contents or the new ones, and never a part, after a crash or power cut too.
// When it returns nil, the new ones are durable.
//
// The new contents are first in path+".new", which is removed on an error; the old ones
// then stay. Where only the last step fails, which makes the name durable, the new ones
// are in place already, but a power cut may bring back the old ones.
//
// A crash may leave path+".new". The next Replace of the same path writes over it, so
// that nobody else has to look for it. A path has one caller at a time.
func Replace(path string, data []byte, mode os.FileMode) error {
	next := path + ".new"
	f, err := Create(next)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return Sync(filepath.Dir(path))
}

// WriteFile writes a file, for its owner alone, and makes its contents durable.
// Its name is up to the caller.
func WriteFile(path string, data []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}
