package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryFiles are the files of a cgroup that say what memory it may have and has,
// and the line of memory.stat with the files that nobody has read again, which the
// kernel gives up first.
type memoryFiles struct{ limit, usage, inactive string }

var (
	memoryV1 = memoryFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	memoryV2 = memoryFiles{"memory.max", "memory.current", "inactive_file"}
)

// noLimit is where limits begin that are none: v1 has no word for that.
const noLimit = math.MaxInt64 / 2

// OwnMemory returns what memory the cgroups that this process is in may have, those
// above included, and how much of that is left. ok is false if they have no limit.
// Memory that the kernel can take back at once, of files that were read, is left.
func OwnMemory() (limit, left int64, ok bool, err error) {
	groups, err := (system{}).ownGroups()
	if err != nil {
		return 0, 0, false, fmt.Errorf("find cgroups: %w", err)
	}
	if group, v1 := ownV1(groups); v1 {
		return At(filepath.Join(Mount, "memory")).memory(memoryV1, group)
	}
	tree, _, err := Open()
	if err != nil {
		tree = At(Mount) // to read is enough
	}
	return tree.memory(memoryV2, own(groups))
}

// memory looks at a cgroup and those above it. In a container the tree can begin
// below where the cgroup is: then only its top is looked at, the container's own.
func (t Tree) memory(f memoryFiles, group string) (limit, left int64, ok bool, err error) {
	for at := group; ; at = path.Dir(at) {
		most, free, limited, err := t.memoryOf(f, at)
		if err != nil {
			return 0, 0, false, fmt.Errorf("memory of cgroup %s: %w", at, err)
		}
		switch {
		case limited && ok:
			limit, left = min(limit, most), min(left, free)
		case limited:
			limit, left, ok = most, free, true
		}
		if at == "/" {
			return limit, left, ok, nil
		}
	}
}

// memoryOf looks at one cgroup. What it uses takes long to add up, and is not asked
// where there is no limit.
func (t Tree) memoryOf(f memoryFiles, group string) (limit, left int64, ok bool, err error) {
	text, err := t.read(group, f.limit)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || text == "max" {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, err
	}
	if limit, err = strconv.ParseInt(text, 10, 64); err != nil || limit >= noLimit {
		return 0, 0, false, err
	}
	if text, err = t.read(group, f.usage); err != nil {
		return 0, 0, false, err
	}
	used, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, 0, false, err
	}
	stat, err := t.read(group, "memory.stat")
	if err != nil {
		return 0, 0, false, err
	}
	for line := range strings.Lines(stat) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), f.inactive+" "); found {
			inactive, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, 0, false, fmt.Errorf("memory.stat: %w", err)
			}
			used -= min(inactive, used)
		}
	}
	return limit, max(limit-used, 0), true, nil
}

// ownV1 returns the cgroup of version 1 that counts memory, which a /proc/PID/cgroup
// names, and whether there is one.
func ownV1(text string) (group string, ok bool) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), "memory") {
			return path.Join("/", fields[2]), true
		}
	}
	return "", false
}
