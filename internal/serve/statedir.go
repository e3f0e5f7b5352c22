package serve

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// leastDisk is the size of a file system, in bytes, on which a server can do
// something: it keeps 8 MiB back, and starts nothing below 32 MiB of free space.
const leastDisk = 64 << 20

// makeStateDir makes the state directory, and returns its path without symbolic
// links and from the root: mounts and runtimes are found again by their paths,
// from whatever directory the next server is started.
func makeStateDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", errdef.New(errdef.Invalid, "state_dir", "cannot make the state directory: %w", err).
			WithRemedy("choose another with --state-dir")
	}
	real, err := realDir(dir)
	if err != nil {
		return "", err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(real, &st); err == nil && st.Blocks*uint64(st.Bsize) < leastDisk {
		return "", errdef.New(errdef.Unsupported, "state_dir_unusable", "%s cannot be the state directory: its file system has %d MiB in all, and a server needs %d", dir, st.Blocks*uint64(st.Bsize)>>20, leastDisk>>20).
			WithRemedy("choose a directory on a larger one with --state-dir: paused sandboxes keep their memory there")
	}
	return real, nil
}

// realDir returns the path of a directory without symbolic links and from the
// root. One that does not exist is returned as it is.
func realDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return abs, nil
	}
	return real, err
}
