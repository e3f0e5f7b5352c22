package layer

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Fixed is a directory of a tree that a sandbox sees and does not change, root in
// it included: whatever its layers say, this is what is there.
type Fixed struct {
	Path   string // relative to the tree
	Source string // on the host
}

// mountFixed shows a directory of the host, read-only, in the tree that is mounted
// at a directory. What a sandbox has made of its files is hostile: no link is
// followed on the way, and what is no directory is not mounted over.
func mountFixed(at string, f Fixed) error {
	target, err := descend(at, f.Path, unix.RESOLVE_NO_XDEV)
	if errors.Is(err, errReplaced) {
		if err := makeAgain(at, f.Path); err != nil {
			return err
		}
		target, err = descend(at, f.Path, unix.RESOLVE_NO_XDEV)
	}
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := unix.Mount(f.Source, descriptorPath(target), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show %s: %w", f.Path, err)
	}
	mounted, err := descend(at, f.Path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mounted)
	const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", descriptorPath(mounted), "", flags, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", f.Path, err)
	}
	return nil
}

// makeAgain makes a directory that a sandbox has moved away, or put something else
// in the place of.
func makeAgain(at, name string) error {
	parent, err := descend(at, path.Dir(name), unix.RESOLVE_NO_XDEV)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Unlinkat(parent, path.Base(name), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove what is in the place of %s: %w", name, err)
	}
	if err := unix.Mkdirat(parent, path.Base(name), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return nil
}

var errReplaced = errors.New("the sandbox has removed or replaced the directory, and cannot start without it")

// descend opens a directory below another without following a link.
func descend(at, name string, resolve uint64) (int, error) {
	top, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", at, err)
	}
	defer unix.Close(top)
	fd, err := unix.Openat2(top, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolve,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return -1, fmt.Errorf("open %s: %w (%w)", name, errReplaced, err)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s in %s: %w", name, at, err)
	}
	return fd, nil
}

func descriptorPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
