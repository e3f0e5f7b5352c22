package volume

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Kind is what something in a volume is, in the words of E2B.
type Kind string

// The kinds.
const (
	File      Kind = "file"
	Directory Kind = "directory"
	Symlink   Kind = "symlink"
	Unknown   Kind = "unknown" // nothing that is read or written here
)

// Entry is something in a volume.
type Entry struct {
	Path   string // from the volume's directory, which is "/"
	Kind   Kind
	Size   int64
	Mode   uint32 // permission bits
	UID    int
	GID    int
	Atime  time.Time
	Mtime  time.Time
	Ctime  time.Time
	Target string // of a link
}

// Attributes are what a file or directory is to have. What is nil stays as it
// is, or gets a default where it is made.
type Attributes struct {
	UID, GID *int
	Mode     *uint32
}

// Parents says what happens where the directories that something is to be made
// in are missing.
type Parents string

// What can happen.
const (
	NeedParents Parents = "need" // it is an error
	MakeParents Parents = "make"
)

// Files is the files of one volume. Paths are from its directory, with or
// without a slash before them; a link on the way counts if it leads to a place
// in the volume by a relative path. Errors that a client should understand are
// *errdef.Error. What was changed without an error is durable.
type Files struct {
	dir     *os.File
	staging string // the directory of files that are not whole yet
	owner   int
}

// Files opens a volume.
func (s *Store) Files(id string) (*Files, error) {
	dir, err := os.OpenFile(s.Dir(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", id, err)
	}
	return &Files{dir: dir, staging: s.staging(), owner: s.owner}, nil
}

// Close gives the volume back.
func (f *Files) Close() error { return f.dir.Close() }

// The defaults of what is made.
const (
	fileMode      = 0o644
	directoryMode = 0o755
)

// Stat returns what is at a path; of a link the link itself.
func (f *Files) Stat(p string) (Entry, error) {
	file, err := f.find(p, unix.O_NOFOLLOW)
	if err != nil {
		return Entry{}, err
	}
	defer file.Close()
	return entryOf(file, p)
}

// Open opens a regular file for reading.
func (f *Files) Open(p string) (*os.File, Entry, error) {
	found, err := f.find(p, 0)
	if err != nil {
		return nil, Entry{}, err
	}
	defer found.Close()
	e, err := entryOf(found, p)
	if err == nil {
		err = requireFile(e)
	}
	if err != nil {
		return nil, e, err
	}
	file, err := reopen(found, unix.O_RDONLY)
	return file, e, pathError(p, err)
}

// Mkdir makes a directory. One that is there is an error, unless its parents are
// made as well.
func (f *Files) Mkdir(p string, a Attributes, parents Parents) (Entry, error) {
	if parents == MakeParents {
		if err := f.makeDirs(path.Dir(clean(p))); err != nil {
			return Entry{}, err
		}
	}
	err := f.mkdir(p, a)
	if err == nil || !errors.Is(err, fs.ErrExist) || parents != MakeParents {
		if err != nil {
			return Entry{}, pathError(p, err)
		}
		return f.Stat(p)
	}
	found, err := f.find(p, unix.O_DIRECTORY)
	if err != nil {
		return Entry{}, err
	}
	defer found.Close()
	return entryOf(found, p)
}

// makeDirs makes the directories of a clean path that are missing. Those that
// are there are made durable all the same: who has made them may not have come
// to it yet.
func (f *Files) makeDirs(dir string) error {
	for i, r := range dir + "/" {
		if r != '/' || i == 0 {
			continue
		}
		err := f.mkdir(dir[:i], Attributes{})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return pathError(dir[:i], err)
		}
	}
	return nil
}

// mkdir makes one directory, and its name durable, whoever has made it.
func (f *Files) mkdir(p string, a Attributes) error {
	parent, name, err := f.parent(p)
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return cmp.Or(syncNames(parent), err)
	}
	if err != nil {
		return err
	}
	if err := f.finishDir(parent, name, a); err != nil {
		_ = unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
		return err
	}
	return nil
}

// finishDir gives a new directory its attributes, and makes it durable.
func (f *Files) finishDir(parent *os.File, name string, a Attributes) error {
	// Whoever put something else in its place meanwhile has put it into this
	// volume, where they may do all of this themselves.
	made, err := openBeneath(parent, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer made.Close()
	if err := a.or(f.owner, directoryMode).apply(made); err != nil {
		return err
	}
	return errors.Join(failpoint.Fail(failpoint.VolumeDir), made.Sync(), syncNames(parent))
}

// Change changes the attributes of a file or directory; of a link, its owner.
func (f *Files) Change(p string, a Attributes) (Entry, error) {
	found, err := f.find(p, unix.O_NOFOLLOW)
	if err != nil {
		return Entry{}, err
	}
	defer found.Close()
	e, err := entryOf(found, p)
	if err != nil {
		return e, err
	}
	if e.Kind == Symlink && a.Mode != nil {
		return e, invalid(p, "is a link, which has no mode")
	}
	if err := errors.Join(a.apply(found), syncEntry(found, e)); err != nil {
		return e, pathError(p, err)
	}
	return entryOf(found, p)
}

// Remove removes a file, a link, or a directory with all that is in it.
func (f *Files) Remove(p string) error {
	if clean(p) == "/" {
		return invalid(p, "is the volume itself")
	}
	parent, name, err := f.parent(p)
	if err != nil {
		return err
	}
	defer parent.Close()
	if _, err := entryIn(parent, name); err != nil {
		return pathError(p, err)
	}
	if err := failpoint.Fail(failpoint.VolumeFileRemove); err != nil {
		return pathError(p, err)
	}
	return pathError(p, errors.Join(tree.RemoveAt(int(parent.Fd()), name), syncNames(parent)))
}

// What bounds a list: entries, and bytes of their paths and of where links lead.
const (
	maxEntries   = 100_000
	maxPathBytes = 16 << 20
)

// List returns what is in a directory, and so many levels of directories below
// it, sorted by path. It follows no link but those of the path itself.
func (f *Files) List(p string, depth int) ([]Entry, error) {
	top, err := f.find(p, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	all, pathBytes := []Entry{}, 0
	for level := []string{"."}; depth > 0 && len(level) > 0; depth-- {
		var below []string
		for _, dir := range level {
			names, err := readDir(top, dir, func(name string, e Entry) error {
				if len(all) >= maxEntries {
					return invalid(p, "has more than %d entries: list fewer levels of it", maxEntries)
				}
				e.Path = path.Join(clean(p), dir, name)
				if pathBytes += len(e.Path) + len(e.Target); pathBytes > maxPathBytes {
					return invalid(p, "has paths and links of more than %d MiB: list fewer levels of it", maxPathBytes>>20)
				}
				all = append(all, e)
				return nil
			})
			if err != nil && (dir == "." || !isMissing(err)) { // else it has gone meanwhile
				return nil, pathError(p, err)
			}
			below = append(below, names...)
		}
		level = below
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// readDir calls each for all that is in a directory below top, and returns the
// directories among it, as paths below top.
func readDir(top *os.File, dir string, each func(name string, e Entry) error) (below []string, err error) {
	d, err := openBeneath(top, dir, unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			e, err := entryIn(d, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // since it was read
			}
			if err == nil {
				err = each(name, e)
			}
			if err != nil {
				return nil, err
			}
			if e.Kind == Directory {
				below = append(below, path.Join(dir, name))
			}
		}
	}
}

// find opens what is at a path without opening it for anything.
func (f *Files) find(p string, flags int) (*os.File, error) {
	if err := checkPath(p); err != nil {
		return nil, err
	}
	file, err := openBeneath(f.dir, relative(p), unix.O_PATH|flags, 0)
	return file, pathError(p, err)
}

// parent finds the directory that something is to be made in, and its name there.
func (f *Files) parent(p string) (dir *os.File, name string, err error) {
	c := clean(p)
	if c == "/" {
		return nil, "", fs.ErrExist
	}
	dir, err = f.find(path.Dir(c), unix.O_DIRECTORY)
	return dir, path.Base(c), err
}

func checkPath(p string) error {
	if strings.Contains(p, "\x00") || p == "" {
		return invalid(p, "is no path")
	}
	return nil
}

// clean returns a path as it is shown.
func clean(p string) string { return path.Clean("/" + p) }

// relative returns a path as it is looked up.
func relative(p string) string { return "." + clean(p) }

// lookups bounds how often a path is looked up anew that was changed on the way.
const lookups = 100

// openBeneath opens a path below a directory, wherever links lead.
func openBeneath(dir *os.File, p string, flags int, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range lookups {
		fd, err := unix.Openat2(int(dir.Fd()), p, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), p), nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
	return nil, unix.EAGAIN
}

// inFD names what is open, whatever has become of its path.
func inFD(file *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", file.Fd()) }

// reopen opens what was found, which must be known to be a regular file or a
// directory: opening others can wait for somebody, or do something.
func reopen(found *os.File, flags int) (*os.File, error) {
	return os.OpenFile(inFD(found), flags, 0)
}

// or returns the attributes with what applies where they say nothing.
func (a Attributes) or(owner int, mode uint32) Attributes {
	return Attributes{UID: cmp.Or(a.UID, &owner), GID: cmp.Or(a.GID, &owner), Mode: cmp.Or(a.Mode, &mode)}
}

// apply gives the attributes to what is open, if only as a path.
func (a Attributes) apply(file *os.File) error {
	keep := -1
	if a.UID != nil || a.GID != nil {
		err := unix.Fchownat(int(file.Fd()), "", *cmp.Or(a.UID, &keep), *cmp.Or(a.GID, &keep), unix.AT_EMPTY_PATH)
		if err != nil {
			return err
		}
	}
	if a.Mode == nil { // after the owner, whose change takes set-uid bits away
		return nil
	}
	err := unix.Fchmod(int(file.Fd()), *a.Mode)
	if errors.Is(err, unix.EBADF) {
		err = unix.Chmod(inFD(file), *a.Mode)
	}
	return err
}

// entryOf describes what is open, if only as a path.
func entryOf(file *os.File, p string) (Entry, error) {
	e, err := entryIn(file, "")
	e.Path = clean(p)
	return e, pathError(p, err)
}

// entryIn describes a name in a directory, or with an empty one what is open
// itself.
func entryIn(dir *os.File, name string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Entry{}, err
	}
	e := Entry{
		Kind: Unknown, Size: st.Size, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid),
		Atime: time.Unix(st.Atim.Unix()), Mtime: time.Unix(st.Mtim.Unix()), Ctime: time.Unix(st.Ctim.Unix()),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind = File
	case unix.S_IFDIR:
		e.Kind = Directory
	case unix.S_IFLNK:
		e.Kind = Symlink
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(dir.Fd()), name, target)
		if err != nil {
			return Entry{}, err
		}
		e.Target = string(target[:n])
	}
	return e, nil
}

func requireFile(e Entry) error {
	switch e.Kind {
	case File:
		return nil
	case Directory:
		return invalid(e.Path, "is a directory")
	default:
		return invalid(e.Path, "is not a regular file")
	}
}

// tagged marks the errors of what is read, so that they are not taken for those
// of the file.
type tagged struct{ r io.Reader }

// ReadError is an error of the source of a file.
type ReadError struct{ Err error }

// Error implements error.
func (e *ReadError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// Read implements io.Reader.
func (t tagged) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		err = &ReadError{err}
	}
	return n, err
}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func invalid(p, format string, args ...any) error {
	return errdef.New(errdef.Invalid, "volume_path_invalid", "path %.200q %s", p, fmt.Sprintf(format, args...))
}

func conflict(p, what string) error {
	return errdef.New(errdef.Conflict, "volume_path_conflict", "path %.200q %s", p, what)
}

// pathError says what is wrong with a path.
func pathError(p string, err error) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*errdef.Error](err); known {
		return err
	}
	if _, source := errors.AsType[*ReadError](err); source {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errdef.New(errdef.NotFound, "volume_path_not_found", "path %.200q does not exist", p)
	case errors.Is(err, fs.ErrExist):
		return conflict(p, "exists")
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EAGAIN):
		return conflict(p, "changes all the time")
	case errors.Is(err, unix.ENOTDIR):
		return invalid(p, "is not a directory, or something above it is none")
	case errors.Is(err, unix.EISDIR):
		return invalid(p, "is a directory")
	case errors.Is(err, unix.EXDEV):
		return invalid(p, "leads out of the volume")
	case errors.Is(err, unix.ELOOP):
		return invalid(p, "has too many links")
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL):
		return invalid(p, "is no path")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errdef.New(errdef.Unavailable, "disk_full", "the state directory's disk is full")
	}
	return fmt.Errorf("path %q: %w", p, err)
}
