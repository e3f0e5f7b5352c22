package layer

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/planted"
)

// maxSingleSyncs is how many files are synced one by one before syncing the
// whole file system is the cheaper way. One by one does not wait for what
// other sandboxes have written.
const maxSingleSyncs = 64

// walk calls f for all that belongs to a layer, the layer's own directory first.
// A layer of a template without trees has none.
func walk(dir string, f func(path, rel string, d fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch rel {
		case workDir:
			return fs.SkipDir
		case listingName, listingName + ".new":
			return nil
		}
		return f(path, rel, d)
	})
}

// survey says what is in a layer, and which of it is to be synced.
func survey(dir string) (f Frozen, paths []string, err error) {
	err = walk(dir, func(path, rel string, d fs.DirEntry) error {
		if depth(rel) > 1 {
			f.Changed = true
		}
		if d.Type().IsRegular() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			f.Bytes += info.Size()
		}
		if d.IsDir() || d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return nil
	})
	return f, paths, err
}

// syncLayer makes a layer durable of which paths are the files and directories.
func syncLayer(dir string, paths []string) error {
	if planted.In(planted.UnsyncedLayer) {
		return nil
	}
	if len(paths) > maxSingleSyncs {
		return durable.SyncFilesystem(dir)
	}
	for _, p := range paths {
		if err := durable.Sync(p); err != nil {
			return err
		}
	}
	return durable.Sync(filepath.Dir(dir))
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
