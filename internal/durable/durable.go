// Package durable makes files and names survive a power cut.
package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes the contents of a file durable, or the names in a directory.
func Sync(path string) error {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		f, err = os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
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

// WriteFile writes a file, for its owner alone, and makes its contents durable.
// Its name is up to the caller.
func WriteFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}
