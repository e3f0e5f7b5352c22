package space

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ballast is a file that is given up when the disk is full, so that what frees
// space, such as the end of a sandbox, can still be recorded.
type ballast struct{ path string }

const (
	ballastSize = 8 << 20
	// ballastRoom is the free space above which it is put back.
	ballastRoom = 64 << 20
)

// drop gives the ballast up; false if it is gone already.
func (b ballast) drop() bool { return b.path != "" && os.Remove(b.path) == nil }

// restore puts the ballast back if it is gone and there is room again.
func (b ballast) restore() {
	var st unix.Statfs_t
	if b.path == "" || unix.Statfs(filepath.Dir(b.path), &st) != nil || st.Bavail*uint64(st.Bsize) < ballastRoom {
		return
	}
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // it is there
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, ballastSize); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		_ = os.Remove(b.path)
	}
}
