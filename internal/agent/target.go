package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names of what is not whole yet, in the directory where it will be. Watches do not
// tell of them; what becomes of a file they tell by its name.
const (
	stagedPrefix = ".drowse-staged-"
	stagedNew    = stagedPrefix + "new-"
	stagedOver   = stagedPrefix + "over-" // in the place of another
	stagedMove   = stagedPrefix + "move-"
)

// target is a file that is being written. Until it is whole it lies beside its place,
// and what is there stays: a client may go away in the middle, the sandbox may sleep,
// or the disk be full.
type target struct {
	*os.File
	dir    *os.File // of its place
	name   string   // of its place, in dir
	staged string   // in dir, until it is whole; empty if it is written in place
	linked bool     // its place has other names, which stay those of the same file
}

// openTarget makes a file to be written to path, with its parents, all that is new
// owned by the user. An existing file keeps its mode but gets the owner. Only one that
// can have no other beside it, as in /proc, is written in place: any other failure to
// make that leaves what is there. It does not wait for the reader of a FIFO.
func openTarget(path string, user *account) (*target, error) {
	if err := makeParents(path, user); err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return nil, faultf(internal, "create the parents of '%s': %w", path, rootCause(err))
		}
		return nil, writeFault(path, err)
	}
	t, old, err := place(path)
	if err != nil {
		return nil, writeFault(path, err)
	}
	if err = t.stage(old); err != nil {
		t.drop()
	}
	switch {
	case errors.Is(err, errAlone):
		if t, err = openInPlace(path); err != nil {
			return nil, err
		}
	case isNoSpace(err):
		return nil, writeFault(path, err)
	case err != nil:
		return nil, faultf(classOf(err), "path '%s' is as it was: a new file cannot be made beside it: %w", path, rootCause(err))
	}
	if err := claim(path, t.File, user); err != nil {
		t.drop()
		return nil, err
	}
	return t, nil
}

// maxLinks bounds how many links are followed, as the kernel does it.
const maxLinks = 40

// place finds where path leads. There is nothing, or old, which is no link.
func place(path string) (t *target, old *unix.Stat_t, err error) {
	for range maxLinks {
		// Never cleaned on the way: what is above a directory that was reached by a
		// link, the kernel knows.
		i := strings.LastIndexByte(path, '/') + 1
		t := &target{name: path[i:]}
		if t.name == "" || t.name == "." || t.name == ".." {
			return nil, nil, faultf(invalid, "path '%s' is a directory", path)
		}
		if t.dir, err = os.OpenFile(path[:i], unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return nil, nil, err
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(t.dir.Fd()), t.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return t, nil, nil
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return t, &st, nil
		}
		text := ""
		if err == nil {
			text, err = os.Readlink(path)
		}
		t.drop()
		switch {
		case err != nil:
			return nil, nil, err
		case strings.HasPrefix(text, "/"):
			path = text
		default:
			path = path[:i] + text
		}
	}
	return nil, nil, unix.ELOOP
}

// errAlone says that a place can have no file beside it.
var errAlone = errors.New("no file can be beside it")

// isAlone tells the errors of a directory that takes no new file from those of one
// that might another time.
func isAlone(err error) bool {
	return slices.ContainsFunc([]error{
		unix.EPERM, unix.EACCES, unix.EROFS, unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS,
	}, func(e error) bool { return errors.Is(err, e) })
}

// stage makes the file beside its place, with the owner, the mode and the attributes
// of what is there.
func (t *target) stage(old *unix.Stat_t) error {
	prefix, mode := stagedNew, uint32(0o666)
	if old != nil {
		if old.Mode&unix.S_IFMT != unix.S_IFREG {
			return errAlone
		}
		prefix, mode, t.linked = stagedOver, 0, old.Nlink > 1
	}
	name := prefix + strings.ToLower(rand.Text())
	fd, err := unix.Openat(int(t.dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if isAlone(err) {
		return errAlone
	}
	if err != nil {
		return err
	}
	t.File, t.staged = os.NewFile(uintptr(fd), name), name
	if old == nil {
		return nil
	}
	if err := errors.Join(t.Chown(int(old.Uid), int(old.Gid)), unix.Fchmod(fd, old.Mode&0o7777)); err != nil {
		return err
	}
	was, err := unix.Openat(int(t.dir.Fd()), t.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) { // it is removed meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(was)
	return mirrorAttributes(fd, was)
}

// openInPlace opens a file for writing from its beginning.
func openInPlace(path string) (*target, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o666)
	switch {
	case errors.Is(err, syscall.EISDIR):
		return nil, faultf(invalid, "path '%s' is a directory", path)
	case errors.Is(err, syscall.ENXIO):
		return nil, faultf(invalid, "path '%s' is not a regular file", path)
	case err != nil:
		return nil, writeFault(path, err)
	}
	return &target{File: file}, nil
}

// commit puts the whole file into its place. It is the target's last method but drop.
func (t *target) commit(ctx context.Context) error {
	if t.staged == "" {
		return t.Close()
	}
	err := error(unix.EBUSY)
	if !t.linked {
		err = unix.Renameat(int(t.dir.Fd()), t.staged, int(t.dir.Fd()), t.name)
	}
	if errors.Is(err, unix.EBUSY) { // or something is mounted there
		return t.overwrite(ctx)
	}
	if err != nil {
		return err
	}
	t.staged = ""
	return t.Close()
}

// overwrite copies the whole file into the one in its place, for which there is room
// before the first byte of it changes. Until then it ends with ctx, and not after:
// half of each would be left.
func (t *target) overwrite(ctx context.Context) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	fd, err := unix.Openat(int(t.dir.Fd()), t.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	place := os.NewFile(uintptr(fd), t.name)
	defer place.Close()
	size, err := t.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size > 0 { // not every file system can
		if err := unix.Fallocate(fd, 0, 0, size); isNoSpace(err) {
			return err
		}
	}
	info, err := t.Stat()
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	if _, err = t.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(place, t.File)
	}
	return errors.Join(err, place.Truncate(size), unix.Fchown(fd, int(st.Uid), int(st.Gid)),
		unix.Fchmod(fd, st.Mode&0o7777), mirrorAttributes(fd, int(t.Fd())))
}

// drop removes what is not in its place, and may be called again.
func (t *target) drop() {
	if t.staged != "" {
		_ = unix.Unlinkat(int(t.dir.Fd()), t.staged, 0)
		t.staged = ""
	}
	if t.File != nil {
		_ = t.Close()
	}
	if t.dir != nil {
		_ = t.dir.Close()
	}
}
