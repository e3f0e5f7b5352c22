package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// Usage implements runtime.UsageMeter. It is what the cgroup counts, gVisor's
// own share included: nothing inside is asked.
func (i *instance) Usage() (runtime.Usage, error) {
	used, err := usageOf(cgroupRoot, i.c.ID)
	if err != nil {
		return runtime.Usage{}, fmt.Errorf("usage of runtime %s: %w", i.id, err)
	}
	return used, nil
}

func usageOf(root, cid string) (used runtime.Usage, err error) {
	stat, err := memoryStat(root, cid)
	if err != nil {
		return used, err
	}
	used.Memory, _ = parseMemory(stat)
	used.Cache = parseCache(stat)
	used.CPU, err = cpuOf(root, cid)
	return used, err
}

// parseCache returns what a memory.stat says of files in memory. v1 and v2 count
// those without a disk among them.
func parseCache(stat string) int64 {
	v1 := strings.Contains(stat, "\ntotal_cache ") || strings.HasPrefix(stat, "total_cache ")
	files, shared := "file", "shmem"
	if v1 {
		files, shared = "total_cache", "total_shmem"
	}
	var cache, inMemory int64
	for line := range strings.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case name == files:
			cache = n
		case name == shared:
			inMemory = n
		}
	}
	return max(cache-inMemory, 0)
}

// cpuOf reads the CPU time of a runtime from the hierarchy of cgroup v1 or v2
// that counts it.
func cpuOf(root, cid string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(root, "cpuacct", cgroupParent, cid, "cpuacct.usage"))
	if err == nil {
		ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		return time.Duration(ns), err
	}
	for _, hierarchy := range []string{"", "unified"} {
		data, err := os.ReadFile(filepath.Join(root, hierarchy, cgroupParent, cid, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
				us, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				return time.Duration(us) * time.Microsecond, err
			}
		}
	}
	return 0, errors.New("no cgroup counts CPU time")
}
