package gvisor

import (
	"errors"
	"fmt"
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
	memory, stat, err := memoryOf(root, cid)
	if err != nil {
		return used, err
	}
	used.Memory, used.Cache = memory, parseCache(stat)
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

// cpuOf returns the CPU time that a runtime has used.
func cpuOf(root, cid string) (time.Duration, error) {
	for stat := range cgroupFiles(root, cid, "cpuacct", "cpuacct.usage", "cpu.stat") {
		unit, value := time.Nanosecond, stat // v1 says nothing else
		for line := range strings.Lines(stat) {
			if usec, ok := strings.CutPrefix(line, "usage_usec "); ok {
				unit, value = time.Microsecond, usec
			}
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
			return time.Duration(n) * unit, nil
		}
	}
	return 0, errors.New("no cgroup counts CPU time")
}
