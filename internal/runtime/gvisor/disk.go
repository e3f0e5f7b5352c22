package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Unlinked implements runtime.DiskMeter. gVisor holds open on the host what is
// open inside.
func (i *instance) Unlinked() (int64, error) {
	pids, err := processesOf(i.group)
	if err != nil {
		return 0, fmt.Errorf("open files of runtime %s: %w", i.id, err)
	}
	var bytes int64
	seen := map[uint64]bool{}
	for _, pid := range pids {
		for _, st := range unlinkedBy(pid) {
			if !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
		}
	}
	return bytes, nil
}

// processesOf returns the processes in a runtime's cgroup.
func processesOf(g group) ([]int, error) {
	for _, procs := range g.files("memory", "cgroup.procs", "cgroup.procs") {
		var pids []int
		for line := range strings.Lines(procs) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
		return pids, nil
	}
	return nil, errors.New("no cgroup lists its processes")
}

// unlinkedBy returns the files without a name, of a sandbox's root, that a
// process holds open; none if it has ended.
func unlinkedBy(pid int) (files []unix.Stat_t) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if st, ok := regularInRoot(filepath.Join(dir, fd.Name())); ok && st.Nlink == 0 {
			files = append(files, st)
		}
	}
	return files
}
