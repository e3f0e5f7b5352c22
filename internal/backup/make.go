package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// maker makes a copy of entries in the order of a walk: a directory before what is
// in it. No path is looked up: each entry is made in a directory that the maker has
// made and holds open, or opens again as what is above one that it holds open.
type maker struct {
	at    string    // where the top is made
	open  []*madeIn // from the top down to the last one
	links *os.File  // see linksName
}

// linksName is a directory in the top that has, while the copy is made, one more name
// of each file with several: the number of the entry that came first. So a file is
// found at once, however deep it is.
const linksName = ".links"

// madeIn is a directory that is being filled.
type madeIn struct {
	entry entry    // what it gets when it is full
	file  *os.File // nil while it is closed
	id    inode
}

// mostOpen is how many of the last directories are held open, besides the top.
const mostOpen = 32

// abort closes what is open.
func (m *maker) abort() {
	for _, d := range m.open {
		if d.file != nil {
			_ = d.file.Close()
		}
	}
	m.open = nil
	if m.links != nil {
		_ = m.links.Close()
		m.links = nil
	}
}

// leaveUntil completes directories until so many are left.
func (m *maker) leaveUntil(depth int) error {
	for len(m.open) > depth {
		if err := m.leave(); err != nil {
			return err
		}
	}
	return nil
}

// leave completes the last directory. It gets its attributes and times last, because
// a default ACL is inherited by what is made in it, and filling it changes its times.
func (m *maker) leave() (err error) {
	n := len(m.open) - 1
	d := m.open[n]
	m.open = m.open[:n]
	defer d.file.Close()
	if n > 0 && m.open[n-1].file == nil {
		above := m.open[n-1]
		if above.file, err = tree.Above(d.file, above.id.dev, above.id.ino); err != nil {
			return fmt.Errorf("return to what is above the copy of %.100q: %w", d.entry.Name, err)
		}
	}
	if n == 0 && m.links != nil {
		if err := tree.Remove(filepath.Join(m.at, linksName)); err != nil {
			return err
		}
	}
	return dress(int(d.file.Fd()), ".", d.entry)
}

// in returns the directory in which an entry is made.
func (m *maker) in() int { return int(m.open[len(m.open)-1].file.Fd()) }

// make makes what an entry is. A file is open for its contents, and a directory is the
// next to be filled.
func (m *maker) make(e entry) (*os.File, error) {
	if e.Depth == 0 {
		return nil, m.enter(e, unix.AT_FDCWD, m.at)
	}
	name := string(e.Name)
	switch e.kind() {
	case unix.S_IFREG:
		fd, err := unix.Openat(m.in(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	case unix.S_IFDIR:
		return nil, m.enter(e, m.in(), name)
	case unix.S_IFLNK:
		return nil, unix.Symlinkat(string(e.Link), m.in(), name)
	}
	return nil, unix.Mknodat(m.in(), name, e.kind()|0o600, int(e.Rdev))
}

// enter makes a directory and goes into it.
func (m *maker) enter(e entry, at int, name string) error {
	f, err := mkdir(at, name)
	if err != nil {
		return err
	}
	d := &madeIn{entry: e, file: f}
	m.open = append(m.open, d)
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	d.id = inode{dev: st.Dev, ino: st.Ino}
	if far := len(m.open) - mostOpen - 1; far > 0 { // the links are in the top
		_ = m.open[far].file.Close()
		m.open[far].file = nil
	}
	return nil
}

// link gives a file that was made one more name.
func (m *maker) link(e entry) error {
	links, first := int(m.links.Fd()), strconv.FormatInt(e.Same, 10)
	err := unix.Linkat(links, first, m.in(), string(e.Name), 0)
	if errors.Is(err, unix.EMLINK) { // the name among the links is one too many
		err = unix.Renameat2(links, first, m.in(), string(e.Name), unix.RENAME_NOREPLACE)
	}
	return err
}

// finish gives what was made, as the n-th entry, what the original has besides its
// contents. For a directory that is done when it is full.
func (m *maker) finish(e entry, n int64, linked bool) (err error) {
	if e.kind() == unix.S_IFDIR {
		return nil
	}
	if err := dress(m.in(), string(e.Name), e); err != nil || !linked {
		return err
	}
	if m.links == nil {
		if m.links, err = mkdir(int(m.open[0].file.Fd()), linksName); err != nil {
			return err
		}
	}
	return unix.Linkat(m.in(), string(e.Name), int(m.links.Fd()), strconv.FormatInt(n, 10), 0)
}

// mkdir makes a directory and opens it.
func mkdir(at int, name string) (*os.File, error) {
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// dress does so in the order in which no step undoes another: a change of the owner
// takes capabilities and set-uid bits away.
func dress(at int, name string, e entry) error {
	if err := unix.Fchownat(at, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	for attr, value := range e.Attrs {
		if err := unix.Lsetxattr(tree.ProcPath(at, name), attr, value, 0); err != nil {
			return fmt.Errorf("the attribute %s cannot be set: %w", attr, err)
		}
	}
	if e.kind() != unix.S_IFLNK {
		if err := unix.Fchmodat(at, name, e.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	then := unix.Timespec{Sec: e.Mtime[0], Nsec: e.Mtime[1]}
	if err := unix.UtimesNanoAt(at, name, []unix.Timespec{then, then}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}
