package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// Marks in the archives of layers, and in overlayfs.
const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // further marks of aufs, which mean nothing elsewhere
	opaqueXattr    = "trusted.overlay.opaque"
)

// paxXattr begins the names of the records that have extended attributes.
const paxXattr = "SCHILY.xattr."

// paxSparse begins the names of the records of a sparse file.
const paxSparse = "GNU.sparse."

// maxSparse bounds the sparse files of one layer together: they are written out, and
// what they have in zeros costs an archive nothing.
const maxSparse = 1 << 30

// maxPath bounds a name in an archive; the kernel takes no longer one.
const maxPath = 4096

// maxDirNames bounds the names of directories of one layer together. They are
// kept until the end, because what is made in a directory changes its time.
const maxDirNames = 64 << 20

// contents is what was unpacked.
type contents struct {
	bytes    int64
	entries  int
	devices  int
	implicit []string
}

// unpack unpacks the archive of a layer into the directory that root is open on.
func unpack(root int, archive io.Reader, limits Limits) (contents, error) {
	u := &unpacker{root: root, limits: limits, times: map[string]time.Time{}, implicit: map[string]bool{}, parentFD: -1}
	defer u.forgetParent()
	err := u.run(tar.NewReader(archive))
	c := u.contents
	for dir := range u.implicit {
		c.implicit = append(c.implicit, dir)
	}
	return c, err
}

// unpacker unpacks one layer. Every name is resolved from root by the kernel,
// which refuses to leave it and to follow a link.
type unpacker struct {
	root   int
	limits Limits
	contents
	times    map[string]time.Time // of directories, to be set at the end
	sparse   int64                // bytes in sparse files
	names    int                  // bytes of the names in times
	implicit map[string]bool      // directories that no entry has described

	parent   string // the directory that parentFD is open on
	parentFD int    // -1 for none
}

func (u *unpacker) run(in *tar.Reader) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return u.setTimes()
		}
		if err != nil {
			return notTar(err)
		}
		if u.entries++; u.entries > u.limits.Entries {
			return tooLarge("a layer has more than %d entries", u.limits.Entries)
		}
		if err := u.entry(h, in); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
	}
}

// notTar gives an error of the archive itself its class.
func notTar(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, tar.ErrInsecurePath) {
		return damaged("a layer is no tar archive: %v", err)
	}
	return err
}

// entry unpacks one entry.
func (u *unpacker) entry(h *tar.Header, data io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := localName(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return Invalid("%.200q belongs to %d:%d, which no user and group can be", h.Name, h.Uid, h.Gid)
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return Invalid("the root of a layer is no directory")
		}
		return u.describe(u.root, ".", h)
	}
	dir, base := path.Split(name)
	dir = path.Clean("./" + dir)
	for part := range strings.SplitSeq(dir, "/") {
		if strings.HasPrefix(part, aufsPrefix) {
			return nil
		}
		if strings.HasPrefix(part, whiteoutPrefix) {
			return Invalid("it lies below the mark %q of something that is removed", part)
		}
	}
	at, err := u.openParent(dir, h.ModTime)
	if err != nil {
		return err
	}
	if rest, marked := strings.CutPrefix(base, whiteoutPrefix); marked {
		return u.mark(at, base, rest)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(at, base, name, h)
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		return u.file(at, base, h, data)
	case tar.TypeSymlink:
		return u.symlink(at, base, h)
	case tar.TypeLink:
		return u.link(at, base, h)
	case tar.TypeFifo:
		return u.fifo(at, base, h)
	case tar.TypeChar, tar.TypeBlock:
		// A sandbox has a /dev of its own. To overlayfs some devices have a meaning.
		u.devices++
		return nil
	}
	return Invalid("%.200q is of a type, %q, that a layer cannot have", h.Name, h.Typeflag)
}

// localName returns the path of an entry below the root. A slash at its start
// means the root, as all programs that unpack images take it.
func localName(name string) (string, error) {
	if len(name) > maxPath {
		return "", Invalid("a name of %d bytes is too long", len(name))
	}
	if strings.ContainsRune(name, 0) {
		return "", Invalid("%.200q has a NUL in it", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", Invalid("%.200q leads out of the layer", name)
		}
	}
	return path.Clean("./" + name), nil
}

// beneath opens what is at a path below a directory. It follows no link and
// leaves neither the directory nor its mount.
func beneath(at int, name string, flags int) (fd int, err error) {
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

// openParent returns a descriptor of the directory of an entry, which it makes
// if no entry has. It stays open until another one is asked for.
func (u *unpacker) openParent(dir string, t time.Time) (int, error) {
	if dir == "." {
		return u.root, nil
	}
	if u.parentFD >= 0 && u.parent == dir {
		return u.parentFD, nil
	}
	u.forgetParent()
	fd, err := beneath(u.root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		fd, err = u.makeParents(dir, t)
	}
	if err != nil {
		return -1, err
	}
	u.parent, u.parentFD = dir, fd
	return fd, nil
}

// forgetParent is called also before anything is removed, which it might be.
func (u *unpacker) forgetParent() {
	if u.parentFD >= 0 {
		unix.Close(u.parentFD)
	}
	u.parentFD = -1
}

// makeParents makes the directories of a path that are missing, as root's, and
// opens the last.
func (u *unpacker) makeParents(dir string, t time.Time) (fd int, err error) {
	at, path := u.root, ""
	defer func() {
		if err != nil && at != u.root {
			unix.Close(at)
		}
	}()
	for part := range strings.SplitSeq(dir, "/") {
		path = strings.TrimPrefix(path+"/"+part, "/")
		next, err := beneath(at, part, unix.O_RDONLY|unix.O_DIRECTORY)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR) && isWhiteout(at, part):
			if err := u.mkdir(at, part); err != nil {
				return -1, err
			}
			if next, err = beneath(at, part, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
				return -1, err
			}
			if err := errors.Join(unix.Fchown(next, 0, 0), unix.Fchmod(next, 0o755), u.later(path, t)); err != nil {
				unix.Close(next)
				return -1, err
			}
			u.implicit[path] = true
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return -1, Invalid("it lies below %q, which the same layer makes a link or a file", path)
		case err != nil:
			return -1, err
		}
		if at != u.root {
			unix.Close(at)
		}
		at = next
	}
	return at, nil
}

func isWhiteout(at int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && tree.IsWhiteout(&st)
}

// mkdir makes a directory. One in the place of a whiteout shows nothing of what
// is below.
func (u *unpacker) mkdir(at int, name string) error {
	opaque := isWhiteout(at, name)
	if opaque {
		if err := unix.Unlinkat(at, name, 0); err != nil {
			return err
		}
	}
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return err
	}
	if opaque {
		return u.makeOpaque(at, name)
	}
	return nil
}

func (u *unpacker) makeOpaque(at int, name string) error {
	fd, err := beneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsetxattr(fd, opaqueXattr, []byte("y"), 0)
}

// mark carries out an entry that says what is removed of the layers below.
func (u *unpacker) mark(at int, base, removed string) error {
	if base == opaqueMark {
		return unix.Fsetxattr(at, opaqueXattr, []byte("y"), 0)
	}
	if strings.HasPrefix(base, aufsPrefix) {
		return nil
	}
	if removed == "" || removed == "." || removed == ".." {
		return Invalid("it removes nothing that there can be")
	}
	var st unix.Stat_t
	err := unix.Fstatat(at, removed, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return unix.Mknodat(at, removed, unix.S_IFCHR, 0)
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // what the layer itself has there stays
		return u.makeOpaque(at, removed)
	}
	return nil
}

// clear makes room for an entry of the same name as one before.
func (u *unpacker) clear(at int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(at, name, 0)
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		return Invalid("it replaces a directory in which the same layer has something")
	}
	return err
}

func (u *unpacker) directory(at int, base, name string, h *tar.Header) error {
	fd, err := beneath(at, base, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !isWhiteout(at, base) {
			if err := u.clear(at, base); err != nil {
				return err
			}
		}
		if err := u.mkdir(at, base); err != nil {
			return err
		}
		if fd, err = beneath(at, base, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return err
		}
	}
	defer unix.Close(fd)
	delete(u.implicit, name)
	return u.describe(fd, name, h)
}

// describe gives a directory its attributes.
func (u *unpacker) describe(fd int, name string, h *tar.Header) error {
	if err := attributes(fd, h); err != nil {
		return err
	}
	return u.later(name, h.ModTime)
}

// later notes the time of a directory for the end.
func (u *unpacker) later(name string, t time.Time) error {
	if _, known := u.times[name]; !known {
		if u.names += len(name); u.names > maxDirNames {
			return tooLarge("the names of a layer's directories take more than %d MiB", maxDirNames>>20)
		}
	}
	u.times[name] = t
	return nil
}

func (u *unpacker) setTimes() error {
	u.forgetParent()
	for name, t := range u.times {
		fd, err := beneath(u.root, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // something else has taken its place
		}
		if err != nil {
			return err
		}
		err = setTime(fd, t)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

func timesOf(t time.Time) []unix.Timespec {
	ts, err := unix.TimeToTimespec(t)
	if err != nil { // before or after what there is
		ts = unix.Timespec{}
	}
	return []unix.Timespec{ts, ts}
}

func setTime(fd int, t time.Time) error {
	return unix.UtimesNanoAt(fd, "", timesOf(t), unix.AT_EMPTY_PATH)
}

func (u *unpacker) file(at int, base string, h *tar.Header, data io.Reader) error {
	if err := u.clear(at, base); err != nil {
		return err
	}
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if isSparse(h) {
		if u.sparse += h.Size; u.sparse > maxSparse || u.sparse < 0 {
			return tooLarge("the sparse files of a layer have more than %d MiB", maxSparse>>20)
		}
	}
	n, err := io.Copy(descriptor(fd), data)
	if err != nil {
		return notTar(err)
	}
	u.bytes += n
	if err := attributes(fd, h); err != nil {
		return err
	}
	return setTime(fd, h.ModTime)
}

// isSparse reports whether an archive says of parts of a file only that they are
// zero. Then the file may be far larger than the archive.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, paxSparse) {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// descriptor writes to an open file.
type descriptor int

// Write implements io.Writer.
func (d descriptor) Write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := unix.Write(int(d), p[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// attributes gives an open file or directory its owner, mode and extended
// attributes, in this order: a change of the owner takes set-uid and
// capabilities away.
func attributes(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, paxXattr)
		if !ok || !kept(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return fmt.Errorf("set extended attribute %.200q: %w", name, err)
		}
	}
	return nil
}

// kept reports whether an extended attribute is the file's own. Those that the
// host's kernel acts on are left out: overlayfs', and labels of the host's
// policy.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" ||
		name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

func (u *unpacker) symlink(at int, base string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
		return Invalid("its link has no text that one can have")
	}
	if err := u.clear(at, base); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
		return err
	}
	return u.nodeAttributes(at, base, h)
}

// nodeAttributes is for what cannot be opened.
func (u *unpacker) nodeAttributes(at int, base string, h *tar.Header) error {
	if err := unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(at, base, timesOf(h.ModTime), unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpacker) fifo(at int, base string, h *tar.Header) error {
	if err := u.clear(at, base); err != nil {
		return err
	}
	if err := unix.Mknodat(at, base, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	if err := unix.Fchmodat(at, base, uint32(h.Mode)&0o7777, 0); err != nil {
		return err
	}
	return u.nodeAttributes(at, base, h)
}

// link makes another name of a file of the same layer.
func (u *unpacker) link(at int, base string, h *tar.Header) error {
	target, err := localName(h.Linkname)
	if err != nil {
		return err
	}
	dir, name := path.Split(target)
	from := u.root
	if dir != "" {
		if from, err = beneath(u.root, path.Clean(dir), unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return Invalid("it is a link to %.200q, which the layer does not have", h.Linkname)
		}
		defer unix.Close(from)
	}
	var st, own unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || tree.IsWhiteout(&st) {
		return Invalid("it is a link to %.200q, which the layer does not have", h.Linkname)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return Invalid("it is a link to %.200q, which is a directory", h.Linkname)
	}
	if err := unix.Fstatat(at, base, &own, unix.AT_SYMLINK_NOFOLLOW); err == nil && own.Ino == st.Ino {
		return nil // it is that already
	}
	if err := u.clear(at, base); err != nil {
		return err
	}
	return unix.Linkat(from, name, at, base, 0)
}
