package layer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenTree is a tree of a template with layers over it, to be read.
type OpenTree struct {
	Tree
	Root *os.File
	// Changes are the directories of the layers that have changes to the tree,
	// topmost first.
	Changes []string
}

// OpenTrees are the trees of a template. Their mounts are nowhere in the file
// system: they go with Close, and with the process.
type OpenTrees struct {
	Trees []OpenTree
	s     *Store
	dir   string // with an empty directory for each, which a mount needs to stay
}

// OpenTrees opens trees with frozen layers over them (bottom first), as a sandbox
// sees them, but for what is mounted into it. The caller closes them, and keeps the
// layers until then.
func (s *Store) OpenTrees(trees []Tree, stack []string) (_ *OpenTrees, err error) {
	opened := &OpenTrees{s: s, dir: filepath.Join(s.imports, "view-"+strings.ToLower(rand.Text()))}
	s.mu.Lock()
	s.staged[opened.dir] = true
	s.mu.Unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.Close())
		}
	}()
	for i, t := range trees {
		o := OpenTree{Tree: t}
		lowers := s.lowers(t, stack)
		o.Changes = slices.Clone(lowers[:len(lowers)-len(t.Lowers)])
		if o.Root, err = openTree(filepath.Join(opened.dir, strconv.Itoa(i)), lowers, t.Shared); err != nil {
			return nil, fmt.Errorf("open %s of a template: %w", t.Path, err)
		}
		opened.Trees = append(opened.Trees, o)
	}
	return opened, nil
}

// Close ends the mounts.
func (o *OpenTrees) Close() error {
	for _, t := range o.Trees {
		t.Root.Close()
	}
	err := os.RemoveAll(o.dir)
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	delete(o.s.staged, o.dir)
	return err
}

// openTree mounts directories over each other, of which the last are the host's
// own, and takes the mount out of the file system again.
func openTree(dir string, lowers []string, shared int) (root *os.File, err error) {
	at, nothing := filepath.Join(dir, "at"), filepath.Join(dir, nothingName)
	for _, d := range []string{at, nothing} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	defer func() {
		err = errors.Join(err, Unmount(at))
		if err != nil && root != nil {
			root.Close()
		}
	}()
	if host := lowers[len(lowers)-shared:]; shared > 0 && ViewsWork(host) {
		if err := mountView(at, host, nothing); err != nil {
			return nil, err
		}
		lowers = append(lowers[:len(lowers)-shared:len(lowers)-shared], at)
	}
	if err := mountToRead(at, lowers, nothing); err != nil {
		return nil, err
	}
	return os.Open(at)
}

// mountToRead mounts directories over each other, topmost first. As with an overlay
// that has a top, what was renamed in a layer is found where it was.
func mountToRead(at string, lowers []string, nothing string) error {
	if len(lowers) >= MaxLowers {
		return tooMany(len(lowers))
	}
	var opened []int
	defer func() {
		for _, fd := range opened {
			unix.Close(fd)
		}
	}()
	var names []string
	// Without a top the kernel wants two directories at least.
	for _, dir := range append(append([]string{at}, lowers...), nothing) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: dir, Err: err}
		}
		opened = append(opened, fd)
		names = append(names, strconv.Itoa(fd))
	}
	data := "redirect_dir=follow,metacopy=off,index=off,nfs_export=off,lowerdir=" + strings.Join(names[1:], ":")
	if len(data) >= os.Getpagesize() { // the kernel would cut it off
		return tooMany(len(lowers))
	}
	return inDirectory("/proc/thread-self/fd", func() error {
		return unix.Mount(mountSource, names[0], "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data)
	})
}
