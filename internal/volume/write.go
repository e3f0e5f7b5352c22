package volume

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
)

// Write makes a file of what it reads, durably and at once: until then there is
// the old one, or none, and whoever has the old one open keeps it. What it reads
// is written outside of the volume first, where no sandbox can come to it. The
// new file has the owner and the mode of the old one, where a says nothing.
func (f *Files) Write(p string, from io.Reader, a Attributes, parents Parents) (Entry, error) {
	// What cannot be written is refused before it is read.
	at, err := f.place(p)
	if err == nil {
		at.close()
	} else if parents != MakeParents || !errdef.Is(err, errdef.NotFound) {
		return Entry{}, err
	}
	staged, err := f.stage(from)
	if err != nil {
		return Entry{}, pathError(p, err)
	}
	defer staged.drop()
	if parents == MakeParents {
		if err := f.makeDirs(path.Dir(clean(p))); err != nil {
			return Entry{}, err
		}
	}
	if err := f.put(p, staged, a); err != nil {
		return Entry{}, err
	}
	return entryOf(staged.file, p)
}

// staged is a file that is written, and not in the volume yet.
type staged struct {
	dir  *os.File
	file *os.File
	name string // in dir
}

// stage writes what it reads to a file outside of the volume.
func (f *Files) stage(from io.Reader) (_ *staged, err error) {
	if err := failpoint.Fail(failpoint.VolumeWrite); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(f.staging, "")
	if err != nil {
		return nil, err
	}
	s := &staged{file: file, name: path.Base(file.Name())}
	defer func() {
		if err != nil {
			s.drop()
		}
	}()
	if s.dir, err = os.Open(f.staging); err != nil {
		return nil, err
	}
	_, err = io.Copy(file, tagged{from})
	return s, err
}

// drop removes what is left outside of the volume: the file, or the one that it
// has replaced.
func (s *staged) drop() {
	_ = os.Remove(path.Join(path.Dir(s.file.Name()), s.name)) // else the next server does
	s.file.Close()
	if s.dir != nil {
		s.dir.Close()
	}
}

// placeTries bounds how often a file is put into its place, where others make
// and remove what is there all the time.
const placeTries = 100

// put gives a file that was staged its attributes and its place.
func (f *Files) put(p string, s *staged, a Attributes) error {
	for range placeTries {
		at, err := f.place(p)
		if err != nil {
			return err
		}
		err = f.putAt(at, s, a)
		at.close()
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return pathError(p, err)
		}
	}
	return conflict(p, "changes all the time")
}

func (f *Files) putAt(at place, s *staged, a Attributes) error {
	uid, gid, mode := f.owner, f.owner, uint32(fileMode)
	if at.old != nil {
		uid, gid, mode = at.old.UID, at.old.GID, at.old.Mode
	}
	if err := (Attributes{UID: &uid, GID: &gid, Mode: &mode}).apply(s.file); err != nil {
		return err
	}
	if err := a.apply(s.file); err != nil {
		return err
	}
	if err := errors.Join(failpoint.Fail(failpoint.VolumeWriteSync), s.file.Sync(), failpoint.Fail(failpoint.VolumeWritePlace)); err != nil {
		return err
	}
	if err := at.swap(s); err != nil {
		return err
	}
	if err := errors.Join(failpoint.Fail(failpoint.VolumeWritten), syncNames(at.dir)); err != nil {
		// Who is told that it failed finds what was there before.
		return errors.Join(err, at.swapBack(s))
	}
	return nil
}

// place is where a file is to be.
type place struct {
	path string // as it was asked for
	dir  *os.File
	name string
	old  *Entry // the regular file that is there; nil for nothing
}

func (at place) close() { at.dir.Close() }

// swap puts the staged file there. What was there has its name afterwards.
func (at place) swap(s *staged) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if at.old != nil {
		flags = unix.RENAME_EXCHANGE
	}
	if err := unix.Renameat2(int(s.dir.Fd()), s.name, int(at.dir.Fd()), at.name, flags); err != nil || at.old == nil {
		return err
	}
	was, err := entryIn(s.dir, s.name)
	was.Path = at.path
	if err == nil {
		err = requireFile(was)
	}
	if err != nil { // something else came meanwhile
		return errors.Join(err, at.swapBack(s))
	}
	return nil
}

func (at place) swapBack(s *staged) error {
	if at.old != nil {
		return unix.Renameat2(int(s.dir.Fd()), s.name, int(at.dir.Fd()), at.name, unix.RENAME_EXCHANGE)
	}
	return unix.Renameat2(int(at.dir.Fd()), at.name, int(s.dir.Fd()), s.name, unix.RENAME_NOREPLACE)
}

// maxLinks bounds how many links are followed, as the kernel does it.
const maxLinks = 40

// place finds where a file is to be written: at the path, or where the links
// there lead.
func (f *Files) place(p string) (place, error) {
	if err := checkPath(p); err != nil {
		return place{}, err
	}
	// Never cleaned on the way: what is above a directory that was reached by a
	// link, the kernel knows.
	at := relative(p)
	for links := range maxLinks {
		above, name := at[:strings.LastIndexByte(at, '/')+1], at[strings.LastIndexByte(at, '/')+1:]
		dir, err := openBeneath(f.dir, "./"+above, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return place{}, pathError(p, err)
		}
		found, target, err := placeIn(dir, name, p)
		if err == nil && target == "" {
			if found.old == nil && links > 0 {
				err = conflict(p, "is a link that leads nowhere")
			} else {
				return found, nil
			}
		}
		dir.Close()
		if err != nil {
			return place{}, pathError(p, err)
		}
		at = above + target
	}
	return place{}, pathError(p, unix.ELOOP)
}

// placeIn looks up a name in a directory: it is a place, or a link with a target.
func placeIn(dir *os.File, name, p string) (at place, target string, err error) {
	if name == "" || name == "." || name == ".." {
		return at, "", unix.EISDIR
	}
	e, err := entryIn(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return place{path: p, dir: dir, name: name}, "", nil
	case err != nil:
		return at, "", err
	case e.Kind == Symlink && path.IsAbs(e.Target):
		return at, "", unix.EXDEV
	case e.Kind == Symlink:
		return at, strings.TrimRight(e.Target, "/"), nil
	}
	e.Path = p
	return place{path: p, dir: dir, name: name, old: &e}, "", requireFile(e)
}

// syncNames makes the names in a directory durable that is open, if only as a
// path.
func syncNames(dir *os.File) error {
	d, err := reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// syncEntry makes durable what was found, where it can be opened.
func syncEntry(found *os.File, e Entry) error {
	if e.Kind != File && e.Kind != Directory {
		return nil
	}
	file, err := reopen(found, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}
