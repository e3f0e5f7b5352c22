package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Staging is where the layers and the image of an import are put together,
// out of everybody's way, until all of them are there and known to be whole.
// What it is given may come from anywhere: nothing is made outside, and nothing
// that is no part of a layer or image.
//
// What does not fit is an errdef.Invalid with code "import_damaged".
type Staging struct {
	s   *Store
	dir string
}

// imageDirName is the directory of the image in a staging.
const imageDirName = "image"

// Stage begins an import of a name that is not used again. Remove ends it.
func (s *Store) Stage(name string) (*Staging, error) {
	if err := failpoint.Fail(failpoint.ImportMake); err != nil {
		return nil, err
	}
	st := &Staging{s: s, dir: filepath.Join(s.imports, name)}
	s.mu.Lock()
	s.staged[st.dir] = true
	s.mu.Unlock()
	for _, dir := range []string{st.dir, st.imageDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("stage import: %w", err), st.Remove())
		}
	}
	return st, nil
}

func (st *Staging) layerDir(n int) string { return filepath.Join(st.dir, strconv.Itoa(n)) }

func (st *Staging) imageDir() string { return filepath.Join(st.dir, imageDirName) }

// Remove deletes what is still staged. It is idempotent.
func (st *Staging) Remove() error {
	err := tree.Remove(st.dir)
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	delete(st.s.staged, st.dir)
	if err != nil {
		return fmt.Errorf("remove import: %w", err)
	}
	return nil
}

// Damaged returns the error of an import that is not what was exported.
func Damaged(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return errdef.New(errdef.Invalid, "import_damaged", "this is not a whole and unchanged export of a sandbox: %w", err).
		WithRemedy("copy the file again, or export the sandbox again")
}

// imageFileName is what a runtime calls a file of an image.
var imageFileName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// AddImageFile puts a file into the image. The data ends after size bytes.
func (st *Staging) AddImageFile(name string, size int64, data io.Reader) error {
	// An export has whole images: see Whole.
	if !imageFileName.MatchString(name) || name == manifestName || name == pagemap.Name || name == pagemap.SumsName || pagemap.IsPack(name) {
		return Damaged("a memory image has no file %q", name)
	}
	f, err := os.OpenFile(filepath.Join(st.imageDir(), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return Damaged("the memory image has %q twice", name)
	}
	if err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	defer f.Close()
	n, err := io.Copy(f, data)
	if err == nil && n != size {
		err = Damaged("%q of the memory image has %d bytes instead of %d", name, n, size)
	}
	if err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	return nil
}

// SealImage makes the image durable as that of m.ID, checks that its files are
// those that m lists, and returns its digest. Pages that come late are what m
// says of them.
func (st *Staging) SealImage(m Manifest) (digest string, err error) {
	got := m
	if digest, err = seal(st.imageDir(), &got, nil); err != nil {
		return "", fmt.Errorf("import image: %w", err)
	}
	same := func(a, b File) bool { return a.Name == b.Name && a.Size == b.Size && slices.Equal(a.CRC32C, b.CRC32C) }
	if !slices.EqualFunc(got.Files, m.Files, same) {
		return "", Damaged("the memory image differs from what was written")
	}
	return digest, nil
}

// Place gives the staged layers, bottom first, and the image their places in
// the store, durably. An empty image is none. It is fs.ErrExist, and none has its place,
// where there is a layer of such a name. After another error some may be in their places.
func (st *Staging) Place(layers []string, image string) error {
	if i := slices.IndexFunc(layers, st.s.HasLayer); i >= 0 {
		return fmt.Errorf("place import: layer %s: %w", layers[i], fs.ErrExist)
	}
	if err := failpoint.Fail(failpoint.ImportPlace); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(st.dir, placesName), []byte(strings.Join(append(slices.Clone(layers), image), "\n"))); err != nil {
		return fmt.Errorf("place import: %w", err)
	}
	if err := durable.Sync(st.dir); err != nil {
		return fmt.Errorf("place import: %w", err)
	}
	for n, id := range layers {
		if err := os.Rename(st.layerDir(n), st.s.LayerDir(id)); err != nil {
			return fmt.Errorf("place import: %w", err)
		}
	}
	if image != "" {
		if err := os.Rename(st.imageDir(), st.s.ImageDir(image)); err != nil {
			return fmt.Errorf("place import: %w", err)
		}
	}
	for _, dir := range []string{st.s.layers, st.s.images} {
		if err := durable.Sync(dir); err != nil {
			return fmt.Errorf("place import: %w", err)
		}
	}
	return failpoint.Fail(failpoint.ImportPlaced)
}

// placesName is the file of a staging that says what its parts will be called.
const placesName = "places"

// findAbandoned notes what imports have given places in the store that did not
// come to their end.
func (s *Store) findAbandoned() error {
	paths, err := s.Unremoved()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if filepath.Dir(path) != s.imports {
			continue
		}
		data, err := os.ReadFile(filepath.Join(path, placesName))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("look at import: %w", err)
		}
		for id := range strings.SplitSeq(string(data), "\n") {
			s.abandoned[id] = true
		}
	}
	return nil
}

// Abandoned reports whether a layer or image was an import's that had not come to
// its end when the store was opened. If no record names it now, none will.
func (s *Store) Abandoned(id string) bool { return s.abandoned[id] }

// LayerWriter makes a layer of entries in the order of [Store.Read]: the
// layer's own directory first, and everything after the directory that it is
// in and before what comes after that. No path is ever looked up: an entry is
// made in a directory that the writer itself has made and holds open, or opens
// again as what is above one that it holds open.
type LayerWriter struct {
	dir  string
	open []*openDir // from the layer's own directory down to the last one
	way  string     // the path of the last one
}

// openDir is a directory that is being filled.
type openDir struct {
	uid, gid int
	mode     uint32
	modTime  time.Time
	file     *os.File // nil while it is closed
	dev, ino uint64
}

// mostOpen is how many of the last directories are held open, besides the first.
const mostOpen = 32

// NewLayer begins the n-th layer of the stack, the lowest being number 0.
func (st *Staging) NewLayer(n int) (*LayerWriter, error) {
	dir := st.layerDir(n)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("import layer: %w", err)
	}
	return &LayerWriter{dir: dir}, nil
}

// last returns the directory that is being filled.
func (w *LayerWriter) last() *openDir { return w.open[len(w.open)-1] }

// Add makes an entry. The data ends with the last extent.
func (w *LayerWriter) Add(e Entry, data io.Reader) error {
	if err := failpoint.Fail(failpoint.ImportEntry); err != nil {
		return err
	}
	if err := e.check(); err != nil {
		return Damaged("%q: %w", shortened(e.Path), err)
	}
	if e.Path == "." || len(w.open) == 0 {
		return w.begin(e)
	}
	parent, name := path.Split(e.Path)
	if err := w.leaveUntil(path.Clean(parent)); err != nil {
		return err
	}
	if parent == "" && e.Mode&unix.S_IFMT != unix.S_IFDIR {
		return Damaged("%q is not in a tree of the layer", shortened(e.Path))
	}
	err := w.make(int(w.last().file.Fd()), name, e, data)
	if errors.Is(err, unix.EEXIST) {
		return Damaged("%q is there twice", shortened(e.Path))
	}
	if err != nil {
		return fmt.Errorf("import %q: %w", shortened(e.Path), err)
	}
	return nil
}

// begin takes up the layer's own directory.
func (w *LayerWriter) begin(e Entry) error {
	if e.Path != "." || len(w.open) > 0 || e.Mode&unix.S_IFMT != unix.S_IFDIR {
		return Damaged("%q does not begin a layer", shortened(e.Path))
	}
	f, err := os.Open(w.dir)
	if err == nil {
		err = w.enter(e, f)
	}
	if err != nil {
		return fmt.Errorf("import layer: %w", err)
	}
	return nil
}

// enter goes into a directory that was made. What e says of it but its attributes
// it gets when it is full.
func (w *LayerWriter) enter(e Entry, f *os.File) error {
	d := &openDir{uid: e.UID, gid: e.GID, mode: e.Mode, modTime: e.ModTime, file: f}
	w.open, w.way = append(w.open, d), e.Path
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	d.dev, d.ino = st.Dev, st.Ino
	if far := len(w.open) - mostOpen - 1; far > 0 { // links need the first
		_ = w.open[far].file.Close()
		w.open[far].file = nil
	}
	return e.setAttributes(int(f.Fd()))
}

// leaveUntil completes the directories below the one at path.
func (w *LayerWriter) leaveUntil(path string) error {
	for w.way != path {
		if len(w.open) == 1 {
			return Damaged("%q is not among the directories that are open", shortened(path))
		}
		if err := w.leave(); err != nil {
			return err
		}
	}
	return nil
}

// leave completes the last directory. Its time is set last, because filling it
// changes that.
func (w *LayerWriter) leave() error {
	last := w.last()
	w.open = w.open[:len(w.open)-1]
	defer last.file.Close()
	if err := w.reopen(last); err != nil {
		return fmt.Errorf("import layer: %w", err)
	}
	e := Entry{UID: last.uid, GID: last.gid, Mode: last.mode, ModTime: last.modTime}
	if err := e.dress(int(last.file.Fd())); err != nil {
		return fmt.Errorf("import %q: %w", shortened(w.way), err)
	}
	w.way = path.Dir(w.way)
	return nil
}

// reopen opens the directory above one that is left, if it is closed.
func (w *LayerWriter) reopen(left *openDir) (err error) {
	if len(w.open) > 0 && w.last().file == nil {
		above := w.last()
		above.file, err = tree.Above(left.file, above.dev, above.ino)
	}
	return err
}

// Close completes the layer, makes it durable and returns what it is known by.
// Abort, after it or without it, gives back what the writer holds.
func (w *LayerWriter) Close(ctx context.Context) (Frozen, error) {
	if len(w.open) == 0 {
		return Frozen{}, Damaged("a layer is missing")
	}
	for len(w.open) > 0 {
		if err := w.leave(); err != nil {
			return Frozen{}, err
		}
	}
	f, err := freeze(ctx, w.dir)
	if err != nil {
		return Frozen{}, fmt.Errorf("import layer: %w", err)
	}
	return f, nil
}

// FlatDigest returns what programs before the present form of listings knew the
// layer by. Close has completed it.
func (w *LayerWriter) FlatDigest(ctx context.Context) (string, error) {
	digest, err := flatDigest(ctx, w.dir)
	if err != nil {
		return "", fmt.Errorf("import layer: %w", err)
	}
	return digest, nil
}

// Abort closes what is open. It is idempotent.
func (w *LayerWriter) Abort() {
	for _, d := range w.open {
		if d.file != nil {
			_ = d.file.Close()
		}
	}
	w.open = nil
}

// make makes e as name in the directory at.
func (w *LayerWriter) make(at int, name string, e Entry, data io.Reader) error {
	switch kind := e.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		return w.makeDir(at, name, e)
	case e.Link != "":
		return w.link(at, name, e)
	case kind == unix.S_IFREG:
		return makeFile(at, name, e, data)
	}
	return e.makeSpecial(at, name)
}

// makeSpecial makes what is neither a directory nor a file. A character device with
// the number 0 is overlayfs' mark of what was removed.
func (e Entry) makeSpecial(at int, name string) error {
	if e.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err := unix.Symlinkat(e.Target, at, name); err != nil {
			return err
		}
		return e.dressName(at, name)
	}
	if err := unix.Mknodat(at, name, e.Mode, int(e.device)); err != nil {
		return err
	}
	return e.dressName(at, name)
}

func (w *LayerWriter) makeDir(at int, name string, e Entry) error {
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return w.enter(e, os.NewFile(uintptr(fd), name))
}

// link gives a file of this layer one more name. Its path is looked up without
// following any link.
func (w *LayerWriter) link(at int, name string, e Entry) error {
	f, err := tree.OpenBelow(w.open[0].file, e.Link, unix.O_PATH)
	if err != nil {
		return Damaged("%q is one more name of %q: %w", shortened(e.Path), shortened(e.Link), err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind != e.Mode&unix.S_IFMT || kind == unix.S_IFDIR {
		return Damaged("%q is one more name of %q, which is of another type", shortened(e.Path), shortened(e.Link))
	}
	return unix.Linkat(int(f.Fd()), "", at, name, unix.AT_EMPTY_PATH)
}

func makeFile(at int, name string, e Entry, data io.Reader) error {
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := f.Truncate(e.Size); err != nil {
		return err
	}
	for _, x := range e.Data {
		if _, err := io.CopyN(io.NewOffsetWriter(f, x.Offset), data, x.Length); err != nil {
			return err
		}
	}
	return e.dress(fd)
}

// dress gives an open file or directory its owner, attributes, permissions and
// time, in the order in which none of them undoes another.
func (e Entry) dress(fd int) error {
	if err := unix.Fchown(fd, e.UID, e.GID); err != nil {
		return err
	}
	if err := e.setAttributes(fd); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, e.Mode&0o7777); err != nil {
		return err
	}
	return e.setTime(fd, "", unix.AT_EMPTY_PATH)
}

func (e Entry) setAttributes(fd int) error {
	for name, value := range e.Attributes {
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// dressName does the same for what cannot be opened.
func (e Entry) dressName(at int, name string) error {
	if err := unix.Fchownat(at, name, e.UID, e.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	for attr, value := range e.Attributes {
		if err := unix.Lsetxattr(tree.ProcPath(at, name), attr, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", attr, err)
		}
	}
	if e.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(at, name, e.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return e.setTime(at, name, unix.AT_SYMLINK_NOFOLLOW)
}

func (e Entry) setTime(at int, name string, flags int) error {
	ts, err := unix.TimeToTimespec(e.ModTime)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(at, name, []unix.Timespec{ts, ts}, flags)
}
