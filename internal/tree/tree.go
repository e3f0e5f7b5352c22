// Package tree goes through directory trees that somebody hostile may have made,
// and removes them: of any depth, with paths of any length, and with any number
// of names in a directory.
//
// Nothing is looked up by a path. Each directory is opened by its name in the one
// that it is in, without following a link, so that a walk never leaves its tree,
// also while somebody changes it. A walk holds few descriptors open at a time:
// it closes the directories far above the one at hand, and opens them again as
// the ".." of what is below, if that is still the same directory. The memory for
// names is bounded too: a huge directory is read in several passes.
//
// The package knows nothing of layers. What a tree may have is for its callers to
// bound.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// mostOpen is how many directories a walk keeps open.
	mostOpen = 32
	// mostNames is how many bytes of names, with what Go adds to each, a walk has
	// of one directory and, about, of all of them.
	mostNames = 16 << 20
	nameCost  = 32
	// namesAtOnce is how many names are asked for at a time.
	namesAtOnce = 1024
)

// ErrMoved says that a directory was moved while a walk was below it.
var ErrMoved = errors.New("directories are moved while they are looked at")

// SkipDir is returned by a visit that has seen enough of a directory.
var SkipDir = fs.SkipDir

// Path is where something lies in a tree, as a chain of names. A walk makes one
// for each directory, and so needs no room for whole paths. A nil Path is the top
// of the tree.
type Path struct {
	In   *Path
	Name string
}

// String returns the path with slashes; "." for the top.
func (p *Path) String() string {
	if p == nil {
		return "."
	}
	var names []string
	for ; p != nil; p = p.In {
		names = append(names, p.Name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

// Short returns the path for a message: the middle of a long one is left out.
func (p *Path) Short() string {
	const most = 240
	text := p.String()
	if len(text) > most {
		text = text[:most/2] + "…" + text[len(text)-most/2:]
	}
	return text
}

// Length returns how many bytes the path has.
func (p *Path) Length() int {
	n := -1
	for ; p != nil; p = p.In {
		n += len(p.Name) + 1
	}
	return max(n, 1)
}

// Equal reports whether both are the same names.
func (p *Path) Equal(q *Path) bool {
	for ; p != nil && q != nil && p != q; p, q = p.In, q.In {
		if p.Name != q.Name {
			return false
		}
	}
	return p == q
}

// Entry is something in a tree. It is good until the visit returns.
type Entry struct {
	At    int    // descriptor of the directory that it is in
	Name  string // in that directory; "." for the top, which is At itself
	In    *Path  // that directory
	Depth int    // how many names its path has; 0 for the top
	Stat  unix.Stat_t
}

// Path returns the entry's path.
func (e *Entry) Path() *Path {
	if e.Depth == 0 {
		return nil
	}
	return &Path{e.In, e.Name}
}

// Kind returns the file type, as stat(2) has it.
func (e *Entry) Kind() uint32 { return e.Stat.Mode & unix.S_IFMT }

// IsWhiteout reports whether a file is overlayfs' mark that a name of the layers below
// was removed.
func IsWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// Open opens a regular file for reading. Nothing else is opened, and nobody at a
// FIFO is waited for.
func (e *Entry) Open() (*os.File, error) {
	fd, err := unix.Openat(e.At, e.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, e.error("open", err)
	}
	return os.NewFile(uintptr(fd), e.Name), nil
}

// error names the entry in an error.
func (e *Entry) error(op string, err error) error {
	return &fs.PathError{Op: op, Path: e.Path().Short(), Err: err}
}

// Walk calls visit for the top of the tree at path, and then for everything in
// it: a directory before what is in it, the names of each directory in the order
// of their bytes. For a directory visit may return [SkipDir].
//
// Nobody may change the tree meanwhile, or an error tells of it.
func Walk(ctx context.Context, path string, visit func(*Entry) error) error {
	return walk(ctx, path, false, visit)
}

// WalkLive is Walk for a tree that others change. What vanishes is left out. The
// error is [ErrMoved] if a directory was moved from above the one at hand.
func WalkLive(ctx context.Context, path string, visit func(*Entry) error) error {
	return walk(ctx, path, true, visit)
}

func walk(ctx context.Context, path string, live bool, visit func(*Entry) error) error {
	file, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	top := &Entry{At: int(file.Fd()), Name: "."}
	w := walker{ctx: ctx, live: live, visit: visit}
	w.stack = append(w.stack, &dir{file: file})
	defer w.close()
	if err := unix.Fstat(top.At, &top.Stat); err != nil {
		return top.error("stat", err)
	}
	w.stack[0].id = idOf(&top.Stat)
	if err := visit(top); err != nil {
		return skipped(err)
	}
	for len(w.stack) > 0 {
		if err := w.step(); err != nil {
			return err
		}
	}
	return nil
}

func skipped(err error) error {
	if errors.Is(err, SkipDir) {
		return nil
	}
	return err
}

// id tells a file from all others.
type id struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) id { return id{st.Dev, st.Ino} }

// dir is a directory that a walk is in.
type dir struct {
	path *Path
	file *os.File // nil while it is closed
	id   id

	names []string // the next ones
	last  string   // that was taken
	more  bool     // there are names after these
	read  bool
}

type walker struct {
	ctx   context.Context
	live  bool
	visit func(*Entry) error
	stack []*dir // from the top down to the directory at hand
	open  int    // stack[open:] are open
}

func (w *walker) close() {
	for _, d := range w.stack {
		if d.file != nil {
			_ = d.file.Close()
		}
	}
}

// step visits the next name of the directory at hand, or leaves that.
func (w *walker) step() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	d := w.stack[len(w.stack)-1]
	name, err := w.next(d)
	if err == io.EOF {
		return w.leave()
	}
	if err != nil {
		return &fs.PathError{Op: "readdir", Path: d.path.Short(), Err: err}
	}
	e := &Entry{At: int(d.file.Fd()), Name: name, In: d.path, Depth: len(w.stack)}
	if err := unix.Fstatat(e.At, name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if w.live && vanished(err) {
			return nil
		}
		return e.error("stat", err)
	}
	if err := w.visit(e); err != nil || e.Kind() != unix.S_IFDIR {
		return skipped(err)
	}
	return w.enter(e)
}

// next takes the next name of a directory; io.EOF at its end.
func (w *walker) next(d *dir) (string, error) {
	if len(d.names) == 0 {
		if d.read && !d.more {
			return "", io.EOF
		}
		if err := w.fill(d); err != nil {
			return "", err
		}
		if len(d.names) == 0 {
			return "", io.EOF
		}
	}
	d.last, d.names = d.names[0], d.names[1:]
	return d.last, nil
}

// fill reads the next names of a directory. If the walk has many of directories
// above, those are read anew when it comes back.
func (w *walker) fill(d *dir) error {
	held := 0
	for _, above := range slices.Backward(w.stack[:len(w.stack)-1]) {
		if held += cost(above.names); held > mostNames {
			above.names, above.more = nil, true
		}
	}
	var err error
	d.names, d.more, err = namesAfter(d.last, mostNames, d.file)
	d.read = true
	return err
}

func cost(names []string) (n int) {
	for _, name := range names {
		n += len(name) + nameCost
	}
	return n
}

// enter goes into a directory.
func (w *walker) enter(e *Entry) error {
	fd, err := unix.Openat(e.At, e.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if w.live && vanished(err) {
			return nil
		}
		return e.error("open", err)
	}
	d := &dir{path: e.Path(), file: os.NewFile(uintptr(fd), e.Name)}
	w.stack = append(w.stack, d)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return e.error("stat", err)
	}
	d.id = idOf(&st)
	if len(w.stack)-w.open > mostOpen {
		above := w.stack[w.open]
		_ = above.file.Close()
		above.file = nil
		w.open++
	}
	return nil
}

// leave goes back to the directory above.
func (w *walker) leave() error {
	n := len(w.stack) - 1
	d := w.stack[n]
	w.stack = w.stack[:n]
	defer d.file.Close()
	if n == 0 || w.stack[n-1].file != nil {
		return nil
	}
	above := w.stack[n-1]
	w.open = n - 1
	var err error
	above.file, err = Above(d.file, above.id.dev, above.id.ino)
	if err != nil {
		return &fs.PathError{Op: "return to", Path: above.path.Short(), Err: err}
	}
	return nil
}

// Above opens the directory that d is in, if it is the one of that device and
// inode.
func Above(d *os.File, dev, ino uint64) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (id{dev, ino}) != idOf(&st) {
		err = ErrMoved
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), ".."), nil
}

// vanished reports whether what was to be looked at is not there any more, or
// something else is.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Names returns the names in some directories that come after one, sorted, each
// once, and whether there are more: no more are returned at a time than fit into
// a bounded room.
func Names(after string, dirs ...*os.File) (names []string, more bool, err error) {
	return namesAfter(after, mostNames, dirs...)
}

func namesAfter(after string, most int, dirs ...*os.File) (names []string, more bool, err error) {
	room, end := 0, "" // names from end on are for another pass
	for _, d := range dirs {
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return nil, false, err
		}
		for {
			some, err := d.Readdirnames(namesAtOnce)
			for _, name := range some {
				if name <= after || more && name >= end {
					continue
				}
				names = append(names, name)
				room += len(name) + nameCost
			}
			if room > 2*most {
				names, room = first(names, most)
				more, end = true, after
				if len(names) > 0 {
					end = names[len(names)-1]
				}
			}
			if errors.Is(err, io.EOF) || err == nil && len(some) == 0 {
				break
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was removed
				return nil, false, err
			}
			if err != nil {
				break
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), more, nil
}

// first returns as many of the first names as fit, sorted, each once, and what
// they take.
func first(names []string, most int) ([]string, int) {
	slices.Sort(names)
	names = slices.Compact(names)
	room := 0
	for i, name := range names {
		if room += len(name) + nameCost; room > most {
			return slices.Clone(names[:i+1]), room
		}
	}
	return names, room
}

// OpenBelow opens what lies at path below the directory at, without following any
// link. The path may be longer than the kernel takes at once.
func OpenBelow(at *os.File, path string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	}
	from := int(at.Fd())
	for {
		part, rest := path, ""
		if len(path) >= unix.PathMax {
			i := strings.LastIndexByte(path[:unix.PathMax-1], '/')
			if i < 0 {
				return nil, unix.ENAMETOOLONG
			}
			part, rest = path[:i], path[i+1:]
		}
		if rest == "" {
			how.Flags = uint64(flags) | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := unix.Openat2(from, part, &how)
		if from != int(at.Fd()) {
			_ = unix.Close(from)
		}
		if err != nil {
			return nil, err
		}
		if rest == "" {
			return os.NewFile(uintptr(fd), part), nil
		}
		from, path = fd, rest
	}
}

// ProcPath returns a path by which system calls that take no descriptor find what
// has a name in the open directory at. It is short, however deep that lies. The
// last name is to be taken as it is: a call must not follow it.
func ProcPath(at int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", at, name) }
