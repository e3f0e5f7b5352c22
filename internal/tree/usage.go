package tree

import (
	"context"

	"golang.org/x/sys/unix"
)

// DiskUsage returns what a file or directory takes on disk. A file with several
// names takes it once. What cannot be looked at takes nothing, and mounts below it
// are not looked into.
func DiskUsage(ctx context.Context, path string) (bytes int64) {
	var top unix.Stat_t
	if unix.Lstat(path, &top) != nil {
		return 0
	}
	if top.Mode&unix.S_IFMT != unix.S_IFDIR {
		return top.Blocks * 512
	}
	counted := map[id]bool{}                       // of several names
	_ = WalkLive(ctx, path, func(e *Entry) error { // after an error it is what was counted
		if e.Stat.Dev != top.Dev {
			return skipMount(e)
		}
		if e.Kind() != unix.S_IFDIR && e.Stat.Nlink > 1 {
			file := idOf(&e.Stat)
			if counted[file] {
				return nil
			}
			counted[file] = true
		}
		bytes += e.Stat.Blocks * 512
		return nil
	})
	return bytes
}

func skipMount(e *Entry) error {
	if e.Kind() == unix.S_IFDIR {
		return SkipDir
	}
	return nil
}
