package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is a file in a state directory on which each backup of it holds a shared
// lock. The kernel takes the lock away when the backup ends, however it ends. The file's
// time says since when nothing that is made is needed: see [Mark.Settle].
const lockName = "backup.lock"

// endless is that time while the database is being copied.
var endless = time.Unix(math.MaxInt32, 0)

// Mark says that a backup is being made.
type Mark struct{ file *os.File }

// Begin says that a backup of the state directory dir begins. Until [Mark.End], what the
// database needs at any moment from now on is not removed: see [Needs].
func Begin(dir string) (*Mark, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin backup: %w", err)
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart}
	if err := errors.Join(unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock), os.Chtimes(path, endless, endless)); err != nil {
		return nil, errors.Join(fmt.Errorf("begin backup: %w", err), f.Close())
	}
	return &Mark{f}, nil
}

// Settle says that the database was copied: what is made from now on, the backup does
// not need.
func (m *Mark) Settle() error {
	now := time.Now()
	return os.Chtimes(m.file.Name(), now, now)
}

// Alone reports whether no other backup of the directory is being made.
func (m *Mark) Alone() bool { return !locked(m.file) }

// End says that the backup has ended.
func (m *Mark) End() { _ = m.file.Close() }

// locked reports whether somebody else holds the lock.
func locked(f *os.File) bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock)
	return err != nil || lock.Type != unix.F_UNLCK // if it cannot be told, nothing is lost by waiting
}

// Needs reports whether a backup of the state directory dir is being made that may need
// what is at path, or anything if that is empty. Who wants to remove something asks after
// the database has said that nobody needs it: a backup that begins later has a database
// that says so too, and does not copy it.
func Needs(dir, path string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer f.Close()
	if !locked(f) {
		return false
	}
	var made unix.Statx_t
	if path == "" || unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &made) != nil || made.Mask&unix.STATX_BTIME == 0 {
		return true
	}
	info, err := f.Stat()
	return err != nil || !time.Unix(made.Btime.Sec, int64(made.Btime.Nsec)).After(info.ModTime())
}
