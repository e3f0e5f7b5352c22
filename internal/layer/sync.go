package layer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/tree"
)

// maxSingleSyncs is how many files are synced one by one before syncing the
// whole file system is the cheaper way. One by one does not wait for what
// other sandboxes have written.
const maxSingleSyncs = 64

// What a layer is bounded by. Every name counts, also one more name of the same
// file: a layer is listed, verified and merged name by name.
const (
	MaxNames     = 2 << 20
	MaxNameBytes = 128 << 20
)

// walk calls f for all that belongs to a layer, the layer's own directory first.
// A layer of a template without trees has none.
func walk(ctx context.Context, dir string, f func(*tree.Entry) error) error {
	err := tree.Walk(ctx, dir, func(e *tree.Entry) error {
		if e.Depth == 1 {
			switch e.Name {
			case workDir:
				return tree.SkipDir
			case listingName, listingName + ".new":
				return nil
			}
		}
		return f(e)
	})
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(dir); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
	}
	return err
}

// bounds is what a layer is bounded by.
type bounds struct{ names, nameBytes int }

// survey says what is in a layer, and how much of it is to be synced. More than
// a layer may have is an errdef.Exhausted with code "too_many_files".
func survey(ctx context.Context, dir string, most bounds) (f Frozen, syncs int, err error) {
	names, bytes := 0, 0
	counted := map[uint64]bool{} // inodes with several names
	err = walk(ctx, dir, func(e *tree.Entry) error {
		if names, bytes = names+1, bytes+len(e.Name); names > most.names || bytes > most.nameBytes {
			return errdef.New(errdef.Exhausted, "too_many_files",
				"it has more than %d files and directories, or than %d MiB of their names; each name of a file counts", most.names, most.nameBytes>>20).
				WithRemedy("remove what is not needed inside the sandbox, or pack it into archives")
		}
		f.Changed = f.Changed || e.Depth > 1
		switch e.Kind() {
		case unix.S_IFREG:
			if !counted[e.Stat.Ino] {
				f.Bytes += e.Stat.Blocks * 512
			}
			if e.Stat.Nlink > 1 {
				counted[e.Stat.Ino] = true
			}
			syncs++
		case unix.S_IFDIR:
			syncs++
		}
		return nil
	})
	return f, syncs, err
}

// syncLayer makes a layer durable that has so many files and directories.
func syncLayer(ctx context.Context, dir string, syncs int) error {
	if planted.In(planted.UnsyncedLayer) {
		return nil
	}
	if syncs > maxSingleSyncs {
		return durable.SyncFilesystem(dir)
	}
	err := walk(ctx, dir, func(e *tree.Entry) error {
		if kind := e.Kind(); kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return nil
		}
		return durable.SyncAt(e.At, e.Name)
	})
	if err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(dir))
}
