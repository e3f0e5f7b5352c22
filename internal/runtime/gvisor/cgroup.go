package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupParent holds the cgroups of all runtimes.
const cgroupParent = "drowse"

// cgroupPatience is how long killed processes may take to go.
const cgroupPatience = 5 * time.Second

// cgroupsOf returns the cgroups of a runtime in every hierarchy of cgroup v1 and
// v2.
func cgroupsOf(id string) []string {
	var dirs []string
	for _, pattern := range []string{
		filepath.Join(cgroupRoot, cgroupParent, id),
		filepath.Join(cgroupRoot, "*", cgroupParent, id),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic("internal error: " + err.Error()) // ids have no special characters
		}
		dirs = append(dirs, found...)
	}
	return dirs
}

// cgroupFiles yields the paths and texts of files of a runtime's cgroup: of the
// hierarchy of a controller in cgroup v1, and of those of v2. Which of them counts
// depends on the host.
func cgroupFiles(root, id, controller, v1, v2 string) iter.Seq2[string, string] {
	return func(yield func(path, text string) bool) {
		for _, file := range [][2]string{{controller, v1}, {"", v2}, {"unified", v2}} {
			path := filepath.Join(root, file[0], cgroupParent, id, file[1])
			data, err := os.ReadFile(path)
			if err == nil && !yield(path, string(data)) {
				return
			}
		}
	}
}

// removeCgroups ends what is left in the cgroups of a runtime and removes them.
func removeCgroups(id string) error {
	var errs []error
	for _, dir := range cgroupsOf(id) {
		errs = append(errs, removeCgroup(dir))
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	for end := time.Now().Add(cgroupPatience); ; time.Sleep(time.Millisecond) {
		if err := killAll(dir); err != nil {
			return err
		}
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
}

func killAll(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 0 {
			continue // 0 is a process of another namespace
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
