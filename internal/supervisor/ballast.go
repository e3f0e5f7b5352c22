package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
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

const (
	// leastSpace is the free space below which nothing new is begun.
	leastSpace = 32 << 20
	// wakeSpace is what a pause must leave: a sandbox that wakes writes to the
	// disk before it can give anything back.
	wakeSpace = 16 << 20
)

// statfs returns what there is of the state directory's disk.
func (s *Supervisor) statfs() (st unix.Statfs_t, err error) {
	if err := unix.Statfs(s.o.RunDir, &st); err != nil {
		return st, fmt.Errorf("look at the state directory's disk: %w", err)
	}
	return st, nil
}

// checkSpace refuses what a full disk would end half way.
func (s *Supervisor) checkSpace(least uint64) error {
	st, err := s.statfs()
	if err != nil {
		return err
	}
	if free := st.Bavail * uint64(st.Bsize); free < least && !planted.In(planted.NoWatermark) {
		return errdef.New(errdef.Unavailable, "disk_full", "the state directory's disk has %d MiB left", free>>20).
			WithRemedy("kill sandboxes that are not needed, or make room on the server")
	}
	return nil
}
