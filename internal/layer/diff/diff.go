// Package diff writes the files of sandboxes as OCI layers: tar archives that any
// program reads that reads images.
//
// Everything is read through a mount of the layers, so that it is what the sandbox
// saw, and below directories that the sandbox named: no link is followed, and only
// regular files are opened. The same files make the same bytes. What an archive
// cannot have is refused, and named.
package diff

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// Marks of OCI layers, and of overlayfs.
const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
	redirectXattr  = "trusted.overlay.redirect"
	paxXattr       = "SCHILY.xattr."
)

// longestPath is the longest that the kernel takes, and readers of archives.
const longestPath = unix.PathMax - 1

// Options are what is written, and what is not.
type Options struct {
	// Below is what the changes are to be applied to; nil to write all files.
	Below []layer.OpenTree
	// Omit reports whether what is at a path of the sandbox (without the first
	// slash) is left out. Of a directory nothing is written then.
	Omit func(path string) bool
	// MostBytes bounds what is in the files, and MostEntries how many names there are.
	MostBytes   int64
	MostEntries int
	// MostLinked bounds the bytes of paths of files that have several names. They are
	// kept in memory.
	MostLinked int
}

// Stats are what was written.
type Stats struct {
	Entries int
	Bytes   int64 // in regular files
	// Left are sockets and devices, which an archive of files does not have.
	Left int
	// Closed are files that are the host's and not for everybody: they could not be
	// read in a sandbox either.
	Closed int
}

// Write writes trees as one layer: all files, or what was changed in them since
// what Options.Below has. The trees are written in their order.
func Write(ctx context.Context, out io.Writer, trees []layer.OpenTree, o Options) (Stats, error) {
	w := &writer{ctx: ctx, out: tar.NewWriter(out), o: o}
	for i, t := range trees {
		w.root, w.at, w.links = int(t.Root.Fd()), strings.Trim(t.Path, "/"), map[inode]string{}
		var err error
		if o.Below == nil {
			err = w.whole("")
		} else {
			w.below = int(o.Below[i].Root.Fd())
			err = w.changed("", t.Changes)
		}
		if err != nil {
			return w.stats, err
		}
	}
	return w.stats, w.out.Close()
}

// inode is a file of several names.
type inode struct{ dev, ino uint64 }

// writer writes one layer. Paths are relative to the root of the tree; empty for
// the root.
type writer struct {
	ctx   context.Context
	out   *tar.Writer
	o     Options
	stats Stats

	root  int    // of the tree
	below int    // of the same tree without the changes
	at    string // where the tree is mounted, without slashes
	links map[inode]string

	linked int // bytes of all names in links so far
}

// beneath opens what is at a path below a directory. It follows no link.
func beneath(at int, name string, flags int) (fd int, err error) {
	if name == "" {
		name = "."
	}
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err = unix.Openat2(at, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// look returns what is at a path; nil if nothing is.
func look(at int, name string) (*unix.Stat_t, error) {
	fd, err := beneath(at, name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	st := &unix.Stat_t{}
	if err := unix.Fstat(fd, st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st, nil
}

// namesIn returns what a directory has, sorted; closed if it may not be read.
func namesIn(at int, name string) (names []string, closed bool, err error) {
	fd, err := beneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EACCES) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if names, err = f.Readdirnames(-1); err != nil {
		return nil, false, err
	}
	slices.Sort(names)
	return names, false, nil
}

// whole writes a directory and all that is in it.
func (w *writer) whole(dir string) error {
	st, err := look(w.root, dir)
	if err != nil {
		return err
	}
	if st == nil {
		return changedMeanwhile(w.name(dir))
	}
	return w.wholeOf(dir, st, false)
}

// wholeOf is whole of a directory that is known. One that hides what was at its
// place says so.
func (w *writer) wholeOf(dir string, st *unix.Stat_t, hides bool) error {
	if err := w.directory(dir, st); err != nil {
		return err
	}
	if hides {
		if err := w.mark(path.Join(dir, opaqueMark)); err != nil {
			return err
		}
	}
	names, closed, err := namesIn(w.root, dir)
	if err != nil {
		return err
	}
	if closed {
		w.stats.Closed++
	}
	for _, base := range names {
		name := path.Join(dir, base)
		if w.omits(name) {
			continue
		}
		if err := w.check(name); err != nil {
			return err
		}
		st, err := look(w.root, name)
		switch {
		case err != nil:
			return err
		case st == nil:
			return changedMeanwhile(w.name(name))
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			err = w.wholeOf(name, st, false)
		default:
			err = w.entry(name, st)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed writes a directory, and what the same directory of some layers has
// changed of it. The layers are only asked for names: what is at them, the mount
// says.
func (w *writer) changed(dir string, layers []string) error {
	st, err := look(w.root, dir)
	if err != nil {
		return err
	}
	if st == nil {
		return changedMeanwhile(w.name(dir))
	}
	had, err := look(w.below, dir)
	if err != nil {
		return err
	}
	hides, touched, err := w.touched(dir, layers)
	if err != nil {
		return err
	}
	isDir := had != nil && had.Mode&unix.S_IFMT == unix.S_IFDIR
	if hides || !isDir {
		return w.wholeOf(dir, st, isDir)
	}
	if len(layers) == 0 {
		return nil // nothing in the tree has changed
	}
	if err := w.directory(dir, st); err != nil {
		return err
	}
	for _, base := range touched {
		name := path.Join(dir, base)
		if w.omits(name) {
			continue
		}
		if err := w.changedAt(name, layers); err != nil {
			return err
		}
	}
	return nil
}

// changedAt writes what has become of a name that layers have changed.
func (w *writer) changedAt(name string, layers []string) error {
	st, err := look(w.root, name)
	if err != nil {
		return err
	}
	if st == nil {
		had, err := look(w.below, name)
		if had == nil || err != nil {
			return err // it came and went
		}
		if err := w.check(name); err != nil {
			return err
		}
		return w.mark(path.Join(path.Dir(name), whiteoutPrefix+path.Base(name)))
	}
	if err := w.check(name); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return w.changed(name, layers)
	}
	return w.entry(name, st)
}

// touched returns the names that layers have in a directory. hides says that one of
// them has a directory of its own there, or one that was somewhere else before.
// What a layer has under the name of a directory that was moved away and come back
// may belong to the other one: names are more than was changed, and never less.
func (w *writer) touched(dir string, layers []string) (hides bool, names []string, err error) {
	for _, l := range layers {
		top, err := unix.Open(l, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, nil, &os.PathError{Op: "open", Path: l, Err: err}
		}
		own, has, err := touchedIn(top, dir)
		unix.Close(top)
		if err != nil {
			return false, nil, fmt.Errorf("layer %s: %w", l, err)
		}
		hides, names = hides || own, append(names, has...)
	}
	slices.Sort(names)
	return hides, slices.Compact(names), nil
}

func touchedIn(top int, dir string) (hides bool, names []string, err error) {
	st, err := look(top, dir)
	if st == nil || err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// What is no directory hides what lies below: a directory over it is new.
		return st != nil && err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR, nil, err
	}
	fd, err := beneath(top, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false, nil, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	if dir != "" { // that of a root says nothing
		for _, attribute := range []string{opaqueXattr, redirectXattr} {
			n, err := unix.Fgetxattr(fd, attribute, nil)
			if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
				return false, nil, err
			}
			hides = hides || err == nil && n > 0
		}
	}
	names, err = f.Readdirnames(-1)
	return hides, names, err
}

// name returns the path of something in the sandbox.
func (w *writer) name(p string) string { return path.Join(w.at, p) }

func (w *writer) omits(p string) bool { return w.o.Omit != nil && w.o.Omit(w.name(p)) }

// check refuses what an archive cannot say.
func (w *writer) check(p string) error {
	name := w.name(p)
	if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
		return unfit(name, "names that begin with %q mean in an image that a file is removed", whiteoutPrefix)
	}
	if len(name)+len(whiteoutPrefix) > longestPath {
		return unfit(name, "a path of %d bytes is too long", len(name))
	}
	return nil
}

func unfit(name, why string, args ...any) error {
	return errdef.New(errdef.Invalid, "snapshot_unfit", "/%.200q cannot be in an OCI image: "+why, append([]any{name}, args...)...).
		WithRemedy("remove it from the sandbox and take another snapshot; drowse export moves sandboxes as they are")
}

func changedMeanwhile(name string) error {
	return errdef.New(errdef.Conflict, "files_changed", "/%.200q has changed while it was read", name).
		WithRemedy("try again; the snapshot or its template may have been removed meanwhile")
}

// header is what every entry has.
func (w *writer) header(p string, st *unix.Stat_t, kind byte) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: w.name(p), Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX,
	}
}

func (w *writer) put(h *tar.Header) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.stats.Entries++; w.stats.Entries > w.o.MostEntries {
		return errdef.New(errdef.Exhausted, "image_too_large", "there are more than %d files and directories, which is the most that a layer of an image may have", w.o.MostEntries).
			WithRemedy("remove some from the sandbox and take another snapshot; drowse export moves sandboxes as they are")
	}
	return w.out.WriteHeader(h)
}

// mark writes an entry that removes something.
func (w *writer) mark(p string) error {
	return w.put(&tar.Header{Typeflag: tar.TypeReg, Name: w.name(p), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

func (w *writer) directory(dir string, st *unix.Stat_t) error {
	h := w.header(dir, st, tar.TypeDir)
	if h.Name == "" {
		h.Name = "."
	}
	h.Name += "/"
	fd, err := beneath(w.root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		err = extended(fd, h)
		unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("read /%s: %w", w.name(dir), err)
	}
	return w.put(h)
}

// entry writes what is no directory.
func (w *writer) entry(p string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK, unix.S_IFIFO:
	default:
		w.stats.Left++
		return nil
	}
	if st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, known := w.links[id]; known {
			h := w.header(p, st, tar.TypeLink)
			h.Linkname = first
			return w.put(h)
		}
		if w.linked += len(w.name(p)); w.linked > w.o.MostLinked {
			return errdef.New(errdef.Exhausted, "image_too_large", "the paths of files with several names have more than %d bytes together, /%.200q among them", w.o.MostLinked, w.name(p)).
				WithRemedy("remove some from the sandbox and take another snapshot; drowse export moves sandboxes as they are")
		}
		defer func() { w.links[id] = w.name(p) }()
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return w.link(p, st)
	case unix.S_IFIFO:
		return w.put(w.header(p, st, tar.TypeFifo))
	}
	return w.file(p, st)
}

func (w *writer) link(p string, st *unix.Stat_t) error {
	fd, err := beneath(w.root, p, unix.O_PATH)
	if err != nil {
		return &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer unix.Close(fd)
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return &os.PathError{Op: "readlink", Path: p, Err: err}
	}
	h := w.header(p, st, tar.TypeSymlink)
	h.Linkname = string(text[:n])
	return w.put(h)
}

func (w *writer) file(p string, st *unix.Stat_t) error {
	fd, err := beneath(w.root, p, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) {
		w.stats.Closed++
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: w.name(p), Err: err}
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	h := w.header(p, st, tar.TypeReg)
	h.Size = st.Size
	if w.stats.Bytes += st.Size; w.stats.Bytes > w.o.MostBytes || w.stats.Bytes < 0 {
		return errdef.New(errdef.Exhausted, "image_too_large", "the files have more than %d GiB, /%.200q with %d bytes among them", w.o.MostBytes>>30, w.name(p), st.Size).
			WithRemedy("remove large files from the sandbox, holes in them counted, and take another snapshot")
	}
	if err := extended(fd, h); err != nil {
		return fmt.Errorf("read /%s: %w", w.name(p), err)
	}
	if err := w.put(h); err != nil {
		return err
	}
	n, err := io.Copy(w.out, io.LimitReader(stopping{w.ctx, f}, st.Size))
	if err == nil && n != st.Size {
		return changedMeanwhile(w.name(p))
	}
	return err
}

// stopping reads until its context ends.
type stopping struct {
	ctx context.Context
	in  io.Reader
}

// Read implements io.Reader.
func (s stopping) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.in.Read(p)
}

// extended adds extended attributes. Those that only mean something on this host
// are left out.
func extended(fd int, h *tar.Header) error {
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return nil
	}
	list := make([]byte, max(size, 0))
	if err == nil {
		size, err = unix.Flistxattr(fd, list)
	}
	if err != nil {
		return fmt.Errorf("list extended attributes: %w", err)
	}
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		if !strings.HasPrefix(name, "user.") && name != "security.capability" && name != "system.posix_acl_access" && name != "system.posix_acl_default" {
			continue
		}
		if strings.Contains(name, "=") {
			return unfit(strings.TrimSuffix(h.Name, "/"), "it has an extended attribute %.100q, and the name has a = in it", name)
		}
		n, err := unix.Fgetxattr(fd, name, nil)
		value := make([]byte, max(n, 0))
		if err == nil && n > 0 {
			n, err = unix.Fgetxattr(fd, name, value)
		}
		if err != nil {
			return fmt.Errorf("get extended attribute %.100q: %w", name, err)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+name] = string(value[:n])
	}
	return nil
}
