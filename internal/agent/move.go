package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// move renames, and copies where source and destination are on different
// mounts: in a sandbox /tmp and /home may well be.
func move(ctx context.Context, source, destination string, user *account) error {
	if _, err := os.Lstat(source); err != nil {
		return pathFault(source, err)
	}
	if err := makeParents(destination, user); err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return faultf(invalid, "move to '%s': a parent is not a directory", destination)
		}
		return pathFault(destination, err)
	}
	err := os.Rename(source, destination)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EXDEV):
		return moveAcross(ctx, source, destination)
	case errors.Is(err, syscall.ENOTDIR):
		return faultf(invalid, "move '%s' to '%s': a directory cannot replace a file", source, destination)
	case errors.Is(err, fs.ErrExist):
		return faultf(exists, "move '%s' to '%s': a directory is there", source, destination)
	}
	return pathFault(source, err)
}

// moveAcross copies beside the destination and renames the copy into place,
// so that the destination is never half of the source, and the source is
// deleted only after.
func moveAcross(ctx context.Context, source, destination string) error {
	staging, err := os.MkdirTemp(filepath.Dir(filepath.Clean(destination)), stagedMove)
	if err != nil {
		return writeFault(destination, err)
	}
	defer os.RemoveAll(staging)
	replica := filepath.Join(staging, "copy")
	if err := copyTree(ctx, source, replica); err != nil {
		return writeFault(source, err)
	}
	if err := os.Rename(replica, destination); err != nil {
		return pathFault(destination, err)
	}
	if err := os.RemoveAll(source); err != nil {
		return pathFault(source, err)
	}
	return nil
}

// copyTree copies an entry and all below with modes, owners, times and
// metadata.
func copyTree(ctx context.Context, from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		err = copyDir(ctx, from, to)
	case mode.IsRegular():
		err = copyFile(ctx, from, to)
	case mode&fs.ModeSymlink != 0:
		var text string
		if text, err = os.Readlink(from); err == nil {
			err = os.Symlink(text, to)
		}
	default:
		st := info.Sys().(*syscall.Stat_t)
		err = unix.Mknod(to, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	return copyAttributes(from, to, info)
}

func copyDir(ctx context.Context, from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	children, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := copyTree(ctx, filepath.Join(from, child.Name()), filepath.Join(to, child.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(ctx context.Context, from, to string) error {
	// What was a file a moment ago may be a link by now, to what is not its
	// owner's to read.
	in, err := os.OpenFile(from, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := appendAll(ctx, out, in); err != nil {
		return err
	}
	return out.Close()
}

// copyAttributes sets the owner before the mode, for it clears set-uid bits,
// and the time last.
func copyAttributes(from, to string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return err
		}
	}
	for key, value := range fileMetadata(from) {
		// The other file system may have none; the move is worth more.
		_ = unix.Lsetxattr(to, xattrPrefix+key, []byte(value), 0)
	}
	return setTimes(to, info.ModTime())
}

func setTimes(path string, t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	times := []unix.Timespec{ts, ts}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
}
