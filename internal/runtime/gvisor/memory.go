package gvisor

import (
	"errors"
	"strconv"
	"strings"
)

// memoryOf returns the memory that the end of a runtime gives back, and the whole
// memory.stat that says so.
func memoryOf(g group) (bytes int64, stat memoryStat, err error) {
	for _, text := range g.files("memory", "memory.stat", "memory.stat") {
		stat := parseMemoryStat(text)
		if bytes, ok := stat.memory(); ok {
			return bytes, stat, nil
		}
	}
	return 0, nil, errors.New("no cgroup counts it")
}

// memoryStat are the numbers of a memory.stat, in bytes for what is used here.
// The names of v1 and v2 differ, and none is in both with another meaning.
type memoryStat map[string]int64

// parseMemoryStat leaves out what is no number. v1 has two of each: taken are
// those named "total", which include what is below the cgroup, as v2's do.
func parseMemoryStat(text string) memoryStat {
	own, total := memoryStat{}, memoryStat{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		if name, ok := strings.CutPrefix(name, "total_"); ok {
			total[name] = n
		} else {
			own[name] = n
		}
	}
	if len(total) > 0 {
		return total
	}
	return own
}

// memory is what is no cache. The guest's memory is a file in memory, which the
// host counts as shared. Cached pages are left out: they are files of the host,
// and given up when they are in the way.
func (s memoryStat) memory() (bytes int64, ok bool) {
	_, v1 := s["rss"]
	_, v2 := s["anon"]
	return s["rss"] + s["anon"] + s["shmem"], v1 || v2
}

// cache is the files in memory that have a disk. v1 and v2 count those without
// among them.
func (s memoryStat) cache() int64 { return max(s["cache"]+s["file"]-s["shmem"], 0) }

// clean is the files in memory that can be given up at once.
func (s memoryStat) clean() int64 {
	waiting := s["dirty"] + s["writeback"] + s["file_dirty"] + s["file_writeback"]
	return max(s["active_file"]+s["inactive_file"]-waiting, 0)
}
