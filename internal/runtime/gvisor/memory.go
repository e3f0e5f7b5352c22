package gvisor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// memoryOf returns the memory that the end of a runtime gives back, and the whole
// memory.stat that says so. The guest's memory is a file in memory, which the
// host counts as shared. Cached pages are left out: they are files of the host,
// and given up when they are in the way.
func memoryOf(root, cid string) (bytes int64, stat string, err error) {
	for stat := range cgroupFiles(root, cid, "memory", "memory.stat", "memory.stat") {
		if bytes, ok := parseMemory(stat); ok {
			return bytes, stat, nil
		}
	}
	return 0, "", errors.New("no cgroup counts it")
}

// parseMemory adds up what a memory.stat says of memory that is no cache. The
// names of v1 with "total" include what is below the cgroup, as those of v2 do.
func parseMemory(stat string) (bytes int64, ok bool) {
	for line := range strings.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "total_rss", "total_shmem", "anon", "shmem":
		default:
			continue
		}
		if name == "shmem" && strings.Contains(stat, "\ntotal_shmem ") {
			continue // v1's, of the cgroup alone
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, false
		}
		bytes, ok = bytes+n, true
	}
	return bytes, ok
}

// OutOfMemory implements runtime.MemoryWitness. Whichever of its processes the
// kernel kills for want of memory, gVisor ends the others: so the whole runtime
// has ended of it.
func (i *instance) OutOfMemory() (bool, error) {
	kills, err := oomKills(cgroupRoot, i.c.ID)
	if err != nil {
		return false, fmt.Errorf("end of runtime %s: %w", i.id, err)
	}
	return kills > 0, nil
}

// oomKills returns how many processes of a runtime the kernel killed because
// its cgroup was out of memory.
func oomKills(root, cid string) (int64, error) {
	for events := range cgroupFiles(root, cid, "memory", "memory.oom_control", "memory.events") {
		for line := range strings.Lines(events) {
			if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
				return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			}
		}
	}
	return 0, errors.New("no cgroup counts kills for want of memory")
}
