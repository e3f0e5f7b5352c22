package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockName is a file in a state directory on which a backup of it holds a shared lock.
// The kernel takes the lock away when the backup ends, however it ends.
const lockName = "backup.lock"

// Begin says that a backup of the state directory dir begins: until end, what the
// database needs at any moment from now on is not removed. See [UnderWay].
func Begin(dir string) (end func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = ignoringSignals(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_SH) }) // a look takes no time
	}
	if err != nil {
		return nil, fmt.Errorf("begin backup of %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// UnderWay reports whether a backup of the state directory dir is being made. Who wants
// to remove something asks after the database has said that nobody needs it: a backup
// that begins later has a database that says so too, and does not copy it.
func UnderWay(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true // it cannot be told, and nothing is lost by waiting
	}
	defer f.Close()
	err = ignoringSignals(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	return err != nil
}

func ignoringSignals(f func() error) (err error) {
	for {
		if err = f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
