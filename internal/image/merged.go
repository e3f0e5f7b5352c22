package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// Merged is the tree that layers make together, as overlayfs will show it. What
// is changed is written to the topmost, which is the caller's own. Links are
// followed within the tree, as they are in a sandbox, and never out of it.
type Merged struct {
	roots    []int // topmost first
	implicit []map[string]bool
}

// maxLinks is how many links the resolution of one path follows, as in the kernel.
const maxLinks = 40

// Merge opens the tree of layers, bottom first, below the directory top.
func (s *Store) Merge(top string, layers []Layer) (*Merged, error) {
	m := &Merged{}
	err := m.add(top, nil)
	for _, l := range slices.Backward(layers) {
		if err != nil {
			break
		}
		var dirs []string
		if dirs, err = s.ImplicitDirs(l.ID); err == nil {
			err = m.add(s.Files(l.ID), dirs)
		}
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Merged) add(dir string, implicit []string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	m.roots = append(m.roots, fd)
	set := map[string]bool{}
	for _, d := range implicit {
		set[d] = true
	}
	m.implicit = append(m.implicit, set)
	return nil
}

// Close gives the descriptors back.
func (m *Merged) Close() {
	for _, fd := range m.roots {
		unix.Close(fd)
	}
}

// node is what the tree has at a path.
type node struct {
	layer  int // which has it
	st     unix.Stat_t
	target string // of a link
}

func (n *node) kind() uint32 { return n.st.Mode & unix.S_IFMT }

func (n *node) isDir() bool { return n != nil && n.kind() == unix.S_IFDIR }

// find returns what is at a path without links in it, in the layers from one on;
// nil if nothing is.
func (m *Merged) find(p string, from int) (*node, error) {
	for i := from; i < len(m.roots); i++ {
		n, err := m.in(i, p)
		switch {
		case err == nil && tree.IsWhiteout(&n.st):
			return nil, nil
		case err == nil:
			n.layer = i
			return n, nil
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return nil, nil // a layer has something else in place of a directory of the path
		case !errors.Is(err, unix.ENOENT):
			return nil, err
		}
		if hidden, err := m.opaque(i, p); hidden || err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (m *Merged) in(i int, p string) (*node, error) {
	fd, err := beneath(m.roots[i], dot(p), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := &node{}
	if err := unix.Fstat(fd, &n.st); err != nil {
		return nil, err
	}
	if n.kind() == unix.S_IFLNK {
		buf := make([]byte, maxPath)
		l, err := unix.Readlinkat(fd, "", buf)
		if err != nil {
			return nil, err
		}
		n.target = string(buf[:l])
	}
	return n, nil
}

// opaque reports whether a layer hides what those below have at a path.
func (m *Merged) opaque(i int, p string) (bool, error) {
	for dir := path.Dir(dot(p)); ; dir = path.Dir(dir) {
		fd, err := beneath(m.roots[i], dir, unix.O_RDONLY|unix.O_DIRECTORY)
		if err == nil {
			value := make([]byte, 8)
			n, err := unix.Fgetxattr(fd, opaqueXattr, value)
			unix.Close(fd)
			if err == nil && string(value[:n]) == "y" {
				return true, nil
			}
			if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
				return false, err
			}
		} else if !errors.Is(err, unix.ENOENT) {
			return false, err
		}
		if dir == "." {
			return false, nil
		}
	}
}

func dot(p string) string { return path.Clean("./" + p) }

// resolve returns a path without links for one that may have some, and what is
// there; nil if nothing is. The last link is followed too, unless last is false.
func (m *Merged) resolve(p string, last bool) (real string, n *node, err error) {
	todo := strings.Split(p, "/")
	real = "."
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			real = path.Dir(real)
			continue
		}
		next := path.Join(real, part)
		if n, err = m.find(next, 0); err != nil {
			return "", nil, err
		}
		switch {
		case n == nil:
			return path.Join(append([]string{next}, todo...)...), nil, nil
		case n.kind() == unix.S_IFLNK && (last || len(todo) > 0):
			if links++; links > maxLinks {
				return "", nil, Invalid("%.200q has too many links", p)
			}
			if strings.HasPrefix(n.target, "/") {
				real = "."
			}
			todo = append(strings.Split(n.target, "/"), todo...)
			continue
		}
		real = next
	}
	if n == nil || real == "." || n.kind() == unix.S_IFLNK && last {
		n, err = m.find(real, 0)
	}
	return dot(real), n, err
}

// Has reports whether the tree has something at a path.
func (m *Merged) Has(p string) (bool, error) {
	_, n, err := m.resolve(p, true)
	return n != nil, err
}

// HasDir reports whether the tree has a directory at a path.
func (m *Merged) HasDir(p string) (bool, error) {
	_, n, err := m.resolve(p, true)
	return n.isDir(), err
}

// ReadFile returns the contents of a file of at most so many bytes, or nil if
// there is none.
func (m *Merged) ReadFile(p string, most int64) ([]byte, error) {
	real, n, err := m.resolve(p, true)
	if err != nil || n == nil {
		return nil, err
	}
	if n.kind() != unix.S_IFREG {
		return nil, Invalid("/%s is no file", p)
	}
	fd, err := beneath(m.roots[n.layer], real, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = Invalid("/%s has more than %d bytes", p, most)
	}
	return data, err
}

// Attributes are the mode and owner of what is made.
type Attributes struct {
	Mode     uint32
	UID, GID int
}

// MakeDir makes a directory, and those above it, unless there is one. What is
// there and is no directory gives way to it. It returns the path without links.
func (m *Merged) MakeDir(p string, a Attributes) (real string, err error) {
	if real, _, err = m.resolve(p, true); err != nil {
		return "", err
	}
	done := "."
	parts := strings.Split(real, "/")
	for i, part := range parts {
		if part == "." {
			continue
		}
		done = path.Join(done, part)
		as := Attributes{Mode: 0o755}
		if i == len(parts)-1 {
			as = a
		}
		if err := m.makeOne(done, as); err != nil {
			return "", fmt.Errorf("make /%s: %w", done, err)
		}
	}
	return real, nil
}

// makeOne makes a directory of the topmost layer, with the attributes of the one
// below that it is merged with.
func (m *Merged) makeOne(p string, a Attributes) error {
	n, err := m.find(p, 0)
	if err != nil || n.isDir() && n.layer == 0 {
		return err
	}
	if n.isDir() {
		if n, err = m.described(p, n); err != nil {
			return err
		}
		a = Attributes{Mode: n.st.Mode & 0o7777, UID: int(n.st.Uid), GID: int(n.st.Gid)}
	}
	at, err := beneath(m.roots[0], path.Dir(p), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	base := path.Base(p)
	if err := unix.Unlinkat(at, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := unix.Mkdirat(at, base, 0o700); err != nil {
		return err
	}
	fd, err := beneath(at, base, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Fchown(fd, a.UID, a.GID), unix.Fchmod(fd, a.Mode)); err != nil || !n.isDir() {
		return err
	}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{n.st.Atim, n.st.Mtim}, unix.AT_EMPTY_PATH)
}

// described returns, for a directory that its layer does not describe, the
// topmost of those below that does; the directory itself if none does.
func (m *Merged) described(p string, n *node) (*node, error) {
	for at := n; ; {
		if !m.implicit[at.layer][p] {
			return at, nil
		}
		if hidden, err := m.opaque(at.layer, path.Join(p, "x")); hidden || err != nil {
			return n, err
		}
		below, err := m.find(p, at.layer+1)
		if err != nil || !below.isDir() {
			return n, err
		}
		at = below
	}
}

// Describe gives directories that a layer uses and does not describe the
// attributes that they have in the layers below.
func (m *Merged) Describe() error {
	for _, dirs := range m.implicit {
		for p := range dirs {
			n, err := m.find(p, 0)
			if err != nil {
				return err
			}
			if !n.isDir() || !m.implicit[n.layer][p] {
				continue
			}
			if better, err := m.described(p, n); err != nil || better == n {
				if err != nil {
					return err
				}
				continue
			}
			if _, err := m.MakeDir(p, Attributes{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// place makes the directory of a path and opens it in the topmost layer, where
// nothing has the name then.
func (m *Merged) place(p string) (at int, base string, err error) {
	dir, err := m.MakeDir(path.Dir(dot(p)), Attributes{Mode: 0o755})
	if err != nil {
		return -1, "", err
	}
	if at, err = beneath(m.roots[0], dir, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return -1, "", err
	}
	base = path.Base(p)
	if err := unix.Unlinkat(at, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		unix.Close(at)
		return -1, "", err
	}
	return at, base, nil
}

// WriteFile writes a file, in place of what has its name. A link of that name is
// replaced, not followed; those above it are followed.
func (m *Merged) WriteFile(p string, data []byte, a Attributes) error {
	at, base, err := m.place(p)
	if err != nil {
		return fmt.Errorf("write /%s: %w", p, err)
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("write /%s: %w", p, err)
	}
	defer unix.Close(fd)
	if _, err := descriptor(fd).Write(data); err != nil {
		return fmt.Errorf("write /%s: %w", p, err)
	}
	return errors.Join(unix.Fchown(fd, a.UID, a.GID), unix.Fchmod(fd, a.Mode))
}

// Rewrite writes a file where the links of its path lead, with the attributes of
// the one that is there.
func (m *Merged) Rewrite(p string, data []byte, a Attributes) error {
	real, n, err := m.resolve(p, true)
	if err != nil {
		return err
	}
	if n != nil {
		a = Attributes{Mode: n.st.Mode & 0o7777, UID: int(n.st.Uid), GID: int(n.st.Gid)}
	}
	return m.WriteFile(real, data, a)
}

// Symlink makes a symbolic link in place of what has its name.
func (m *Merged) Symlink(target, p string) error {
	at, base, err := m.place(p)
	if err != nil {
		return fmt.Errorf("link /%s: %w", p, err)
	}
	defer unix.Close(at)
	return unix.Symlinkat(target, at, base)
}

// Copy puts a copy of a file of the host into the tree. A link would count as a name
// of the file, which a sandbox could see.
func (m *Merged) Copy(file, p string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return fmt.Errorf("stat %s: %w", file, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return m.WriteFile(p, data, Attributes{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)})
}
