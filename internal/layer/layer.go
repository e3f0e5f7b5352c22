// Package layer keeps the files of sandboxes: stacks of immutable layers with
// one writable top, mounted through the kernel's overlayfs, and memory images
// with the manifests and checksums that make them trustworthy.
//
// A layer is a directory below the store with one subdirectory for each tree
// of the template that it changes. Freezing a top makes it a layer: nothing is
// copied, and a later mount puts a new top over it. What Sync or Seal has
// returned for survives a power cut. The package knows nothing of sandboxes:
// ids are the caller's, and so is the decision what to delete.
package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Tree is a directory tree of a template that gets an overlay of its own.
// overlayfs does not see mounts below its lower directory, so a template made
// of several host directories needs one overlay for each.
type Tree struct {
	Name   string   `json:"name"`   // of the subdirectory in each layer
	Path   string   `json:"path"`   // where it is mounted; "/" for the root
	Lowers []string `json:"lowers"` // host directories, topmost first

	// Shared is how many of the last of them are the host's own, of which only
	// what everybody may read is shown.
	Shared int `json:"-"`

	// Fixed is what a sandbox cannot change.
	Fixed []Fixed `json:"-"`
}

// Store is a directory of layers and images.
type Store struct {
	layers  string
	images  string
	imports string // of what is not whole yet
	trial   string // where Probe mounts overlays

	abandoned map[string]bool // set by Open

	probing sync.Mutex
	mounter *mounter // nil until it has been looked for

	mu     sync.Mutex
	staged map[string]bool // the directories below imports that are being filled
}

// Open returns the store below dir, making its directories. What was being
// removed or imported when the last user of the store was killed is removed to
// the end.
func Open(dir string) (*Store, error) {
	s := At(dir)
	for _, d := range []string{s.layers, s.images, s.imports} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("open layer store: %w", err)
		}
	}
	if err := durable.Sync(dir); err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	if err := s.findAbandoned(); err != nil {
		return nil, err
	}
	return s, s.FinishRemovals()
}

// At returns the store below dir as it is.
func At(dir string) *Store {
	return &Store{
		layers: filepath.Join(dir, "layers"), images: filepath.Join(dir, "images"), imports: filepath.Join(dir, "imports"),
		trial:  filepath.Join(dir, ".trial"),
		staged: map[string]bool{}, abandoned: map[string]bool{},
	}
}

// LayerDir returns the directory of a layer.
func (s *Store) LayerDir(id string) string { return filepath.Join(s.layers, id) }

// workDir is where overlayfs keeps its scratch files for a top.
const workDir = ".work"

// Mount mounts trees at the directory at: the template's lowers, the frozen
// layers of stack (bottom first) over them, and the writable layer top, which
// is made if it does not exist. On error nothing stays mounted.
func (s *Store) Mount(at string, trees []Tree, stack []string, top string) (err error) {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return fmt.Errorf("mount layers: %w", err)
	}
	defer func() {
		if err != nil {
			_ = Unmount(at)
		}
	}()
	m, err := s.mounting()
	if err != nil {
		return err
	}
	// A frozen layer is whole without what overlayfs noted of it as a top, and the
	// notes count as names of its files.
	for _, id := range stack {
		if err := tree.Remove(filepath.Join(s.LayerDir(id), workDir)); err != nil {
			return fmt.Errorf("mount layers: %w", err)
		}
	}
	var notes []mounted
	for _, t := range trees {
		note, err := s.mountTree(m, at, t, stack, top)
		if err != nil {
			return fmt.Errorf("mount %s of layer %s: %w", t.Path, top, err)
		}
		notes = append(notes, note)
	}
	if len(trees) > 0 {
		if err := noteMounted(s.LayerDir(top), notes); err != nil {
			return fmt.Errorf("mount layers: %w", err)
		}
	}
	for _, t := range trees {
		for _, f := range t.Fixed {
			if err := mountFixed(filepath.Join(at, t.Path), f); err != nil {
				return fmt.Errorf("mount %s of layer %s: %w", t.Path, top, err)
			}
		}
	}
	return failpoint.Fail(failpoint.Mounted)
}

func (s *Store) mountTree(m mounter, at string, t Tree, stack []string, top string) (mounted, error) {
	upper := filepath.Join(s.LayerDir(top), t.Name)
	work := filepath.Join(s.LayerDir(top), workDir, t.Name)
	lowers := s.lowers(t, stack)
	if err := mkdirLike(upper, lowers[0]); err != nil {
		return mounted{}, err
	}
	if err := os.MkdirAll(work, 0o700); err != nil {
		return mounted{}, err
	}
	if err := failpoint.Fail(failpoint.Mount); err != nil {
		return mounted{}, err
	}
	o := overlay{at: filepath.Join(at, t.Path), lowers: lowers, upper: upper, work: work}
	if shared := o.lowers[len(o.lowers)-t.Shared:]; len(shared) > 0 && ViewsWork(shared) {
		// The view lies below the overlay that shows it, and goes with it.
		if err := mountView(o.at, shared, filepath.Join(s.LayerDir(top), workDir, nothingName)); err != nil {
			return mounted{}, err
		}
		o.lowers = append(o.lowers[:len(o.lowers)-t.Shared:len(o.lowers)-t.Shared], o.at)
	}
	note := mounted{At: o.at, Tree: t.Name, Lowers: lowers}
	return note, m.mount(o)
}

// lowers returns the lower directories of a tree, topmost first. A frozen
// layer without changes to the tree has no directory for it, or one that shows nothing
// else than what lies below.
func (s *Store) lowers(t Tree, stack []string) []string {
	dirs := slices.Clone(t.Lowers)
	for _, id := range stack {
		dir := filepath.Join(s.LayerDir(id), t.Name)
		if _, err := os.Stat(dir); err == nil && !showsSame(dir, dirs[0]) {
			dirs = slices.Insert(dirs, 0, dir)
		}
	}
	return dirs
}

// showsSame reports whether a directory of a layer is empty, and as the one below.
func showsSame(dir, below string) bool {
	var a, b unix.Stat_t
	if unix.Stat(dir, &a) != nil || unix.Stat(below, &b) != nil || a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid {
		return false
	}
	names, err := attributeNames(dir)
	if err != nil || slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(ownAttributes, name) }) {
		return false
	}
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// Has reports whether one of the layers has something at a path of a tree: a
// file of its own, or a whiteout. The path is relative to the tree.
func (s *Store) Has(layers []string, t Tree, path string) bool {
	return slices.ContainsFunc(layers, func(id string) bool {
		_, err := os.Lstat(filepath.Join(s.LayerDir(id), t.Name, path))
		return err == nil
	})
}

// mkdirLike makes dir with the mode, owner and times of model: the root of an
// overlay shows those of its upper directory.
func mkdirLike(dir, model string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(model, &st); err != nil {
		return fmt.Errorf("stat %s: %w", model, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(dir, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNano(dir, []unix.Timespec{st.Atim, st.Mtim})
}

// Frozen is what is known of a layer that was frozen.
type Frozen struct {
	Bytes   int64  // of blocks of its regular files
	Changed bool   // false of one without any change, which need not go into a stack
	Digest  string // by which VerifyLayer knows it; empty if it is unchanged
}

// Freeze ends writing to a top whose overlay nobody changes any more, takes its
// checksums and makes it durable.
func (s *Store) Freeze(ctx context.Context, top string) (Frozen, error) {
	dir := s.LayerDir(top)
	if err := failpoint.Fail(failpoint.LayerSync); err != nil {
		return Frozen{}, err
	}
	err := joinNames(ctx, dir)
	var f Frozen
	if err == nil {
		f, err = freeze(ctx, dir)
	}
	if err != nil {
		return Frozen{}, fmt.Errorf("freeze layer %s: %w", top, err)
	}
	return f, failpoint.Fail(failpoint.LayerSynced)
}

func freeze(ctx context.Context, dir string) (Frozen, error) {
	f, syncs, err := survey(ctx, dir, bounds{MaxNames, MaxNameBytes})
	if err == nil && f.Changed {
		f.Digest, err = writeListing(dir, func(add func(line) error) error { return list(ctx, dir, add) })
		if err == nil {
			err = syncLayer(ctx, dir, syncs)
		}
	}
	return f, err
}

// Layers returns the ids of all layers on disk.
func (s *Store) Layers() ([]string, error) { return names(s.layers) }

// HasLayer reports whether a layer is on disk.
func (s *Store) HasLayer(id string) bool {
	_, err := os.Lstat(s.LayerDir(id))
	return !errors.Is(err, fs.ErrNotExist)
}

// LayerRemains reports whether anything of a layer is on disk, be it half
// removed: RemoveLayer has something to do.
func (s *Store) LayerRemains(id string) bool {
	_, err := os.Lstat(s.LayerDir(id) + doomedSuffix)
	return s.HasLayer(id) || !errors.Is(err, fs.ErrNotExist)
}

// RemoveLayer deletes a layer that nothing is mounted over any more. It is
// idempotent.
func (s *Store) RemoveLayer(id string) error {
	if err := removeAll(s.layers, id); err != nil {
		return fmt.Errorf("remove layer %s: %w", id, err)
	}
	return nil
}

// removeAll deletes dir/id, first moving it out of the way, so that half a
// deletion is never taken for the thing itself.
func removeAll(dir, id string) error {
	if id == "" || strings.ContainsAny(id, "/.") {
		panic(fmt.Sprintf("internal error: layer: bad id %q", id))
	}
	doomed := filepath.Join(dir, id+doomedSuffix)
	if err := failpoint.Fail(failpoint.Doom); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(dir, id), doomed)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := failpoint.Fail(failpoint.Doomed); err != nil {
		return err
	}
	return tree.Remove(doomed)
}

// doomedSuffix is on the names of what is being removed.
const doomedSuffix = ".deleted"

// Unremoved returns the paths of layers and images whose removal did not come
// to its end, and of imports that did not and that nobody is at work on.
func (s *Store) Unremoved() ([]string, error) {
	var paths []string
	for _, dir := range []string{s.layers, s.images} {
		entries, err := readDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list removals: %w", err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), doomedSuffix) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	imports, err := readDir(s.imports)
	if err != nil {
		return nil, fmt.Errorf("list imports: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range imports {
		if path := filepath.Join(s.imports, e.Name()); !s.staged[path] {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// FinishRemovals removes what Unremoved returns.
func (s *Store) FinishRemovals() error {
	paths, err := s.Unremoved()
	for _, p := range paths {
		if filepath.Dir(p) == s.imports {
			err = errors.Join(err, detach(p)) // a process that was killed in OpenTrees leaves a mount
		}
		err = errors.Join(err, tree.Remove(p))
	}
	if err != nil {
		return fmt.Errorf("finish removals: %w", err)
	}
	return nil
}

// readDir is os.ReadDir, to which a directory that does not exist is empty.
func readDir(dir string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// names lists the entries of dir that are not half deleted.
func names(dir string) ([]string, error) {
	entries, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if !strings.Contains(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
