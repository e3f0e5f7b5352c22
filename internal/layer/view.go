package layer

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A view shows directories of the host read-only, and of them only what every
// user of the host may read.
//
// It is an overlay, because overlayfs asks with the rights of whoever mounted it
// whether a file below may be opened, whoever opens it. A view is mounted by a
// thread that has the rights of nobody. So root inside a sandbox, and gVisor's
// file server, read no file that is private to root on the host: not through
// another name, not after a change of its mode in the sandbox, which would copy
// it, and not if it was made while the sandbox ran. Their names can be seen; a
// template leaves out those that it knows of.
//
// The kernel stacks two overlays at most. Where the host's directories lie on an
// overlay themselves, as in a container, there is no room for a view.

// nobody is the user and group that own nothing.
const nobody = 65534

// nothingName is an empty directory beside the work directories of a top: an
// overlay without a top needs two directories.
const nothingName = "nothing"

// ViewsWork reports whether views of directories can be mounted below overlays.
func ViewsWork(dirs []string) bool {
	for _, dir := range dirs {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) != nil || st.Type == unix.OVERLAYFS_SUPER_MAGIC {
			return false
		}
	}
	return true
}

// mountView mounts a view of directories, topmost first, at a directory.
func mountView(at string, dirs []string, nothing string) error {
	if err := os.MkdirAll(nothing, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(nothing, 0o755); err != nil {
		return err
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var names []string
	for _, dir := range append(append([]string{at}, dirs...), nothing) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: dir, Err: err}
		}
		fds = append(fds, fd)
		names = append(names, strconv.Itoa(fd))
	}
	err := inDirectory("/proc/thread-self/fd", func() error {
		return asNobody(func() error {
			mount := func(more string) error {
				return unix.Mount(mountSource, names[0], "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+strings.Join(names[1:], ":")+more)
			}
			// An overlay over the view has an index only if the view has handles of
			// its files. Such a view must not follow renamed directories: it has none.
			if err := mount(",nfs_export=on,redirect_dir=nofollow"); !errors.Is(err, unix.EINVAL) {
				return err
			}
			return mount("")
		})
	})
	if err != nil {
		return fmt.Errorf("mount view of %s: %w", strings.Join(dirs, ", "), err)
	}
	return nil
}

// asNobody calls f with the file system rights of nobody, and the one capability
// that mounting takes. The thread, which must be one of package ownthread, does not
// get its rights back.
func asNobody(f func() error) error {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("become nobody: %w", err)
	}
	// Of this thread alone, which the functions of the standard library are not.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("become nobody: %w", errno)
	}
	for _, call := range []uintptr{unix.SYS_SETFSGID, unix.SYS_SETFSUID} {
		unix.RawSyscall(call, nobody, 0, 0)
		if now, _, _ := unix.RawSyscall(call, nobody, 0, 0); now != nobody { // neither says that it failed
			return errors.New("become nobody: refused by the kernel")
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	data[unix.CAP_SYS_ADMIN/32] = unix.CapUserData{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("become nobody: %w", err)
	}
	// The kernel takes a process that changes its rights for one with secrets.
	// That is for all of its threads.
	defer unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(dumpable), 0, 0, 0)
	return f()
}
