package layer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSingleSyncs is how many files are synced one by one before syncing the
// whole file system is the cheaper way. One by one does not wait for what
// other sandboxes have written.
const maxSingleSyncs = 64

// sync makes a layer durable and reports what is in it.
func (s *Store) sync(dir string) (size int64, changed bool, err error) {
	var paths []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir && errors.Is(err, fs.ErrNotExist) {
			return nil // of a template without trees
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == workDir {
			return fs.SkipDir
		}
		if depth(rel) > 1 {
			changed = true
		}
		if d.Type().IsRegular() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			size += info.Size()
		}
		if d.IsDir() || d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	if !changed {
		return size, false, nil
	}
	if len(paths) > maxSingleSyncs {
		return size, true, syncFilesystem(dir)
	}
	for _, p := range paths {
		if err := syncPath(p); err != nil {
			return 0, false, err
		}
	}
	return size, true, syncPath(filepath.Dir(dir))
}

// depth counts the elements of a relative path; "." has none.
func depth(rel string) int {
	if rel == "." {
		return 0
	}
	n := 1
	for _, c := range rel {
		if c == '/' {
			n++
		}
	}
	return n
}

func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// syncPath fsyncs a file or directory.
func syncPath(path string) error {
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
