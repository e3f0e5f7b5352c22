package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Open returns the host's tree. It reports false on a host whose controllers
// belong to cgroup v1, which it does not look at any further.
//
// Where the tree cannot be seen or written (in "ip netns exec", which hides it,
// and in containers that show it read-only), Open mounts it for this process
// alone, without a place in the file system.
func Open() (t Tree, v2 bool, err error) {
	o := open()
	return o.tree, o.v2, o.err
}

type opened struct {
	tree Tree
	v2   bool
	err  error
}

var open = sync.OnceValue(func() (o opened) {
	o.tree, o.v2, o.err = find(system{})
	return o
})

// surroundings is what find looks at.
type surroundings interface {
	fsType(dir string) (magic int64, readOnly bool)
	ownGroups() (string, error) // /proc/self/cgroup
	mountTree() (dir string, err error)
}

func find(s surroundings) (Tree, bool, error) {
	magic, readOnly := s.fsType(Mount)
	if magic == unix.CGROUP2_SUPER_MAGIC && !readOnly {
		return At(Mount), true, nil
	}
	groups, err := s.ownGroups()
	if err != nil {
		return Tree{}, false, fmt.Errorf("find cgroups: %w", err)
	}
	if _, v1 := ownV1(groups); v1 {
		return Tree{}, false, findV1(s)
	}
	dir, err := s.mountTree()
	if err == nil {
		return At(dir), true, nil
	}
	if magic == unix.CGROUP2_SUPER_MAGIC {
		return Tree{}, true, noCgroups("%s is read-only, and cgroup v2 cannot be mounted elsewhere: %w", Mount, err).
			WithRemedy("run the container with --privileged, or remount it: mount -o remount,rw %s", Mount)
	}
	return Tree{}, true, noCgroups("no cgroups are mounted at %s, and cgroup v2 cannot be mounted: %w", Mount, err).
		WithRemedy("mount -t cgroup2 none %s", Mount)
}

// findV1 returns an error unless the controllers of v1 are where gVisor looks.
func findV1(s surroundings) error {
	magic, readOnly := s.fsType(filepath.Join(Mount, "memory"))
	switch {
	case magic != unix.CGROUP_SUPER_MAGIC:
		return noCgroups("the host has cgroup v1, and its memory controller is not at %s/memory", Mount).
			WithRemedy(`if this was started with "ip netns exec NAME", which hides it, use "nsenter --net=/run/netns/NAME"; else mount -t cgroup -o memory memory %s/memory`, Mount)
	case readOnly:
		return noCgroups("%s/memory is read-only", Mount).
			WithRemedy("run the container with --privileged")
	}
	return nil
}

func noCgroups(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Unfit, "no_cgroups", format, args...)
}

// system is the surroundings of this process.
type system struct{}

func (system) fsType(dir string) (int64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return int64(st.Type), st.Flags&unix.ST_RDONLY != 0
}

func (system) ownGroups() (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	return string(data), err
}

// mountTree mounts the tree where nobody else sees it. It goes with this
// process; the processes that it starts reach it through its descriptor.
func (system) mountTree() (string, error) {
	conf, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(conf)
	if err := unix.FsconfigCreate(conf); err != nil {
		return "", fmt.Errorf("fsconfig: %w", err)
	}
	mount, err := unix.Fsmount(conf, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return "", fmt.Errorf("fsmount: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), mount)
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err != nil {
		return "", errors.Join(err, unix.Close(mount))
	}
	return dir, nil
}
