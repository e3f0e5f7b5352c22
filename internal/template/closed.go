package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// masksName is the directory of a template with one mask for each set of things
// that were found to be closed.
const masksName = "masks"

// Closed returns a template for a mount, without what not everybody on the host
// may read: files, and directories with all that is in them. Over the host's
// directories it has a layer with overlayfs' marks of what was removed.
//
// Below it, a view of the host's directories keeps their contents from being read
// (layer.ViewsWork). With one, the layer is only to hide names and sizes: what was
// found last will do, and if anything has changed, somebody looks for the next start.
// Without, it is all there is, and is looked for anew if anything has changed.
func (s *Store) Closed(ctx context.Context, t Template) (Template, error) {
	v := s.view(t)
	if v == nil {
		return t, nil
	}
	paths, err := v.closedPaths(ctx)
	if err != nil || len(paths) == 0 {
		return t, err
	}
	dir, err := s.mask(t, paths)
	if err != nil {
		return t, fmt.Errorf("hide closed files of the host: %w", err)
	}
	t.Trees = slices.Clone(t.Trees)
	for i, tree := range t.Trees {
		if mask := filepath.Join(dir, tree.Name); exists(mask) {
			own := len(tree.Lowers) - tree.Shared
			t.Trees[i].Lowers = slices.Concat(tree.Lowers[:own], []string{mask}, tree.Lowers[own:])
		}
	}
	return t, nil
}

// LookAhead looks at what sandboxes share of the host, which takes a second where much
// is installed, so that the first of them does not wait for it.
func LookAhead(ctx context.Context, s *Store) error {
	t, err := s.Resolve(Host)
	if err == nil {
		_, err = s.Closed(ctx, t)
	}
	return err
}

// closedPaths returns what not everybody may read.
func (v *view) closedPaths(ctx context.Context) ([]string, error) {
	if known := v.closed.Load(); known != nil && layer.ViewsWork(v.roots) {
		v.lookLater(ctx)
		return *known, nil
	}
	if _, err := v.system(ctx); err != nil {
		return nil, err
	}
	return *v.closed.Load(), nil
}

// mask returns the directory of a mask of some paths, which it makes if there is
// none. A mask is never changed: sandboxes have it mounted.
func (s *Store) mask(t Template, paths []string) (string, error) {
	sum := sha256.Sum256([]byte(strings.Join(paths, "\x00")))
	all := filepath.Join(s.Dir(t.ID), masksName)
	dir := filepath.Join(all, hex.EncodeToString(sum[:8]))
	s.masks.Lock()
	defer s.masks.Unlock()
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(all, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(all, ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for _, tree := range t.Trees {
		for _, root := range tree.Lowers[len(tree.Lowers)-tree.Shared:] {
			if err := maskTree(filepath.Join(tmp, tree.Name), root, paths); err != nil {
				return "", err
			}
		}
	}
	return dir, os.Rename(tmp, dir)
}

// maskTree marks what of the paths is below root as removed.
func maskTree(mask, root string, paths []string) error {
	last := ""
	for _, path := range paths {
		rel, below := strings.CutPrefix(path, root+"/")
		if !below || last != "" && strings.HasPrefix(path, last+"/") {
			continue // what is in a directory goes with it
		}
		last = path
		if err := likeHost(mask, root, filepath.Dir(rel)); err != nil {
			return err
		}
		if err := unix.Mknod(filepath.Join(mask, rel), unix.S_IFCHR, 0); err != nil && !errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "mknod", Path: path, Err: err}
		}
	}
	return nil
}

// likeHost makes a directory of a mask and those above it, with the modes and
// owners of the host's: a mount shows theirs.
func likeHost(mask, root, rel string) error {
	at := filepath.Join(mask, rel)
	if exists(at) {
		return nil
	}
	if rel != "." {
		if err := likeHost(mask, root, filepath.Dir(rel)); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, rel), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: filepath.Join(root, rel), Err: err}
	}
	return errors.Join(os.Mkdir(at, 0o700), os.Chown(at, int(st.Uid), int(st.Gid)), unix.Chmod(at, st.Mode&0o7777))
}

// CheckOutside refuses a directory of the server's own that sandboxes would see:
// one below a directory of the host that a base shows.
func CheckOutside(dir string, share ...string) error {
	real, err := resolve(dir)
	if err != nil {
		return fmt.Errorf("look for %s: %w", dir, err)
	}
	for _, name := range append(slices.Clone(systemDirs), share...) {
		shown, err := resolve(filepath.Join("/", name))
		if err != nil {
			return fmt.Errorf("look for /%s: %w", name, err)
		}
		if real == shown || strings.HasPrefix(real, shown+"/") {
			return errdef.New(errdef.Invalid, "directory_is_shared", "%s lies below /%s, which every sandbox sees", dir, name).
				WithRemedy("use a directory elsewhere, such as /var/lib/drowse")
		}
	}
	return nil
}

// resolve returns a path without symbolic links, as far as there is anything.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
}
