package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Entry is one thing in a layer, with all of it that a copy needs.
type Entry struct {
	Path       string // below the layer's directory; "." is that itself
	Mode       uint32 // type and permissions, as stat(2) has them
	UID, GID   int
	ModTime    time.Time
	Size       int64             // of a regular file
	Data       []Extent          // of a regular file, in order; the rest is holes
	Target     string            // of a symbolic link
	Link       string            // the path of a file before, of which this is one more name
	Attributes map[string]string // extended ones

	device uint64 // of a device; no export has any
}

// Extent is a part of a file that is no hole.
type Extent struct{ Offset, Length int64 }

// Bytes returns how long the entry's data is.
func (e Entry) Bytes() (n int64) {
	for _, x := range e.Data {
		n += x.Length
	}
	return n
}

// What a copy of a layer is bounded by.
const (
	// maxPath is how many bytes a path may have. A header of an archive holds two,
	// and attributes, in a mebibyte.
	maxPath = 256 << 10
	// maxPathBytes is how many all paths together may have.
	maxPathBytes = 1 << 30

	maxName    = 255 // bytes
	maxExtents = 4096

	maxAttributes = 256 << 10 // bytes, of one entry
)

// opaque and redirect are what overlayfs writes down in a layer and needs to
// find there again.
const (
	opaque   = "trusted.overlay.opaque"
	redirect = "trusted.overlay.redirect"
)

// Read calls f for everything in a frozen layer, in the order in which a
// [LayerWriter] takes it. The reader gives an entry's data, one extent after
// the other. What no copy could hold is an errdef.Unsupported with code
// "not_portable".
func (s *Store) Read(ctx context.Context, id string, f func(e Entry, data io.Reader) error) error {
	r := reader{linked: map[uint64]*tree.Path{}}
	return walk(ctx, s.LayerDir(id), func(t *tree.Entry) error {
		e, file, err := r.inspect(t)
		if file != nil {
			defer file.Close()
		}
		if err == nil {
			err = r.check(e)
		}
		if err != nil {
			return err
		}
		var parts []io.Reader
		for _, x := range e.Data {
			parts = append(parts, io.NewSectionReader(file, x.Offset, x.Length))
		}
		return f(e, io.MultiReader(parts...))
	})
}

// reader reads one layer.
type reader struct {
	all       bool                  // names of what is no regular file are joined as well, which no export can hold
	linked    map[uint64]*tree.Path // the first name of each file that has several
	pathBytes int64                 // of all paths so far
}

// check refuses what no copy could hold.
func (r *reader) check(e Entry) error {
	if r.pathBytes += int64(len(e.Path) + len(e.Link)); r.pathBytes > maxPathBytes {
		return errdef.New(errdef.Unsupported, "not_portable", "the paths of its files are longer than %d MiB together", maxPathBytes>>20).
			WithRemedy("pack what lies deep inside of directories with long names, and pause the sandbox again")
	}
	if err := e.check(); err != nil {
		return notPortable(e.Path, err)
	}
	return nil
}

func notPortable(path string, err error) error {
	return errdef.New(errdef.Unsupported, "not_portable", "%q cannot be copied to another place: %w", shortened(path), err).
		WithRemedy("remove it inside the sandbox, and pause it again")
}

// shortened returns a path for a message.
func shortened(path string) string {
	return (&tree.Path{Name: path}).Short()
}

// inspect returns what there is of an entry, and a file with data open.
func (r *reader) inspect(t *tree.Entry) (e Entry, file *os.File, err error) {
	p := t.Path()
	switch kind := t.Kind(); {
	case p.Length() > maxPath:
		return e, nil, notPortable(p.Short(), fmt.Errorf("its path has more than %d bytes", maxPath))
	case kind == unix.S_IFCHR && t.Stat.Rdev != 0:
		return e, nil, notPortable(p.Short(), errors.New("it is a device"))
	case t.Stat.Nlink > 1 && (kind == unix.S_IFREG || r.all && kind != unix.S_IFDIR && !tree.IsWhiteout(&t.Stat)):
		if first := r.linked[t.Stat.Ino]; first != nil {
			e = factsOf(t)
			e.Path, e.Link = p.String(), first.String()
			return e, nil, nil
		}
		r.linked[t.Stat.Ino] = p
	}
	e, file, err = inspect(t, maxExtents)
	e.Path = p.String()
	return e, file, err
}

// factsOf returns what a directory says of an entry.
func factsOf(t *tree.Entry) Entry {
	st := &t.Stat
	return Entry{Mode: st.Mode, UID: int(st.Uid), GID: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()), device: st.Rdev}
}

// inspect returns all that there is of an entry but its path, with the data of a file
// in no more pieces than most, and a file with data open.
func inspect(t *tree.Entry, most int) (e Entry, file *os.File, err error) {
	e = factsOf(t)
	switch t.Kind() {
	case unix.S_IFREG:
		if e.Size = t.Stat.Size; e.Size > 0 {
			if file, err = t.Open(); err != nil {
				return e, nil, err
			}
			e.Data = extents(file, e.Size, most)
		}
	case unix.S_IFLNK:
		if e.Target, err = os.Readlink(tree.ProcPath(t.At, t.Name)); err != nil {
			return e, nil, err
		}
	}
	e.Attributes, err = readAttributes(tree.ProcPath(t.At, t.Name))
	return e, file, err
}

// readAttributes returns the extended attributes of an entry that say something
// of it.
func readAttributes(path string) (map[string]string, error) {
	names, err := attributeNames(path)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	all := map[string]string{}
	for _, name := range names {
		if slices.Contains(ownAttributes, name) {
			continue
		}
		value, err := attribute(path, name)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		all[name] = string(value)
	}
	return all, nil
}

// extents returns what of a file is no hole. A file in more pieces than most, or on a
// file system that does not tell, is one.
func extents(f *os.File, size int64, most int) []Extent {
	whole := []Extent{{0, size}}
	var all []Extent
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil || len(all) == most {
			return whole
		}
		end, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return whole
		}
		all = append(all, Extent{data, end - data})
		at = end
	}
	return all
}

// check says what keeps an entry from being in a copy of a layer.
func (e Entry) check() error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	kind := e.Mode & unix.S_IFMT
	regular := kind == unix.S_IFREG
	switch kind {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFLNK, unix.S_IFCHR: // the last is overlayfs' mark of what was removed
	default:
		return fmt.Errorf("its type is %o", kind)
	}
	switch {
	case e.UID < 0 || e.GID < 0 || int64(e.UID) >= 1<<32-1 || int64(e.GID) >= 1<<32-1:
		return fmt.Errorf("its owner is %d:%d", e.UID, e.GID)
	case (e.Target != "") != (kind == unix.S_IFLNK) || strings.Contains(e.Target, "\x00") || len(e.Target) >= unix.PathMax:
		return errors.New("it has no target that a link can have")
	case e.Link != "" && (!regular || e.Size != 0 || len(e.Data) > 0 || len(e.Attributes) > 0):
		return errors.New("it is one more name of a file and something else")
	case e.Link != "":
		return checkPath(e.Link)
	case !regular && (e.Size != 0 || len(e.Data) > 0):
		return errors.New("it has contents and is no file")
	case len(e.Data) > maxExtents:
		return errors.New("it is in too many pieces")
	}
	at := int64(0)
	for _, x := range e.Data {
		if x.Offset < at || x.Length <= 0 || x.Length > e.Size-x.Offset {
			return errors.New("its pieces do not fit into it")
		}
		at = x.Offset + x.Length
	}
	return e.checkAttributes(kind)
}

func (e Entry) checkAttributes(kind uint32) error {
	size := 0
	for name, value := range e.Attributes {
		size += len(name) + len(value)
		switch {
		case size > maxAttributes:
			return errors.New("its attributes are too long")
		case kind != unix.S_IFDIR && kind != unix.S_IFREG:
			return fmt.Errorf("it has the attribute %q", name)
		case name == opaque && kind == unix.S_IFDIR && value == "y":
		case name == redirect && kind == unix.S_IFDIR && checkNames(strings.TrimPrefix(value, "/")) == nil:
		case name == "security.capability" && kind == unix.S_IFREG:
		case strings.HasPrefix(name, "user.") && len(name) <= maxName && !strings.ContainsAny(name, "=\x00"):
		default:
			return fmt.Errorf("it has the attribute %q", name)
		}
	}
	return nil
}

// checkPath refuses what is no path of a thing in a layer. What lies at its top
// and begins with a dot is the store's own.
func checkPath(path string) error {
	switch {
	case path == ".":
		return nil
	case strings.HasPrefix(path, "."):
		return errors.New("that is no path in a layer")
	}
	return checkNames(path)
}

// checkNames refuses a path that leads anywhere but down.
func checkNames(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("its path has more than %d bytes", maxPath)
	}
	for name := range strings.SplitSeq(path, "/") {
		if badName(name) {
			return errors.New("that is no path in a layer")
		}
	}
	return nil
}

func badName(name string) bool {
	return name == "" || name == "." || name == ".." || len(name) > maxName || strings.Contains(name, "\x00")
}
