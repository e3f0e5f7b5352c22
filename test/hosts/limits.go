package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// limited is a sandbox whose limits no other has, so that they name its cgroup.
var limited = client.CreateOptions{CPUs: 1, MemoryMiB: 208, PIDs: 345}

// memoryMax is that of its cgroup: 64 MiB are for the runtime itself, and within
// another 256 MiB, which only a runtime with a sandbox has, the server ends the
// largest process (memoryReserve of package gvisor).
const (
	memoryReserve = 256 << 20
	memoryMax     = (208+64)<<20 + memoryReserve
)

// limitsSet are the files of its cgroup with what the kernel must say in them.
// A kernel without swap has no file for it.
var limitsSet = map[string]map[string]string{
	"v2": {
		"memory.max": fmt.Sprint(memoryMax), "memory.oom.group": "1", "memory.swap.max": "0",
		"cpu.max": "100000 100000", "pids.max": "345",
	},
	"v1": {"memory.limit_in_bytes": fmt.Sprint(memoryMax), "cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000", "pids.max": "345"},
}

// limits reads the limits of a sandbox back from the kernel: after its start,
// twice as much memory while it is frozen, and the same as at first after it woke.
func (g *guest) limits(ctx context.Context) error {
	c, err := g.counter(ctx, limited)
	if err != nil {
		return err
	}
	if err := limitsRead(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- g.client.Pause(ctx, c.ID) }()
	// It is higher for moments only, which a search for the files would miss.
	files, most := memoryFiles(), int64(0)
	for paused := false; !paused; time.Sleep(100 * time.Microsecond) {
		select {
		case err := <-done:
			if err != nil {
				return g.withJournal(err)
			}
			paused = true
		default:
			most = max(most, highest(files))
		}
	}
	if most != 2*memoryMax {
		return fmt.Errorf("during the pause the limit of memory was %d at most, want %d", most, 2*memoryMax)
	}
	if _, err := g.goesOn(ctx, c, 1); err != nil {
		return g.withJournal(err)
	}
	return errors.Join(limitsRead(ctx), g.kill(ctx, c.ID))
}

// limitsRead compares what the kernel says of every cgroup with such a limit of
// processes. A runtime that waits to be the next such sandbox has the same limits,
// but for the reserve of memory, which is added just after the start.
func limitsRead(ctx context.Context) error {
	err := poll(ctx, func() error {
		if most := highest(memoryFiles()); most != memoryMax {
			return fmt.Errorf("the limit of memory is %d at most, want %d", most, memoryMax)
		}
		return nil
	})
	if err != nil {
		return err
	}
	groups := limitedGroups("pids.max", "345")
	want := limitsSet["v1"]
	if cgroupVersion() == "v2" {
		want = limitsSet["v2"]
	}
	var errs []error
	for _, group := range groups {
		for name, text := range want {
			files := cgroupFiles(group, name)
			if len(files) == 0 && name != "memory.swap.max" {
				errs = append(errs, fmt.Errorf("cgroup %s has no %s", group, name))
			}
			for _, file := range files {
				got := contents(file)
				if got == text || text == fmt.Sprint(memoryMax) && got == fmt.Sprint(memoryMax-memoryReserve) {
					continue
				}
				errs = append(errs, fmt.Errorf("%s is %q, want %q", file, got, text))
			}
		}
	}
	return errors.Join(errs...)
}

// limitedGroups returns the names of the cgroups in which a file says so.
func limitedGroups(file, text string) []string {
	var groups []string
	for _, path := range cgroupFiles("*", file) {
		if contents(path) == text {
			groups = append(groups, filepath.Base(filepath.Dir(path)))
		}
	}
	return groups
}

// memoryFiles returns the paths of what says how much memory those cgroups may use.
func memoryFiles() (paths []string) {
	for _, group := range limitedGroups("pids.max", "345") {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			paths = append(paths, cgroupFiles(group, name)...)
		}
	}
	return paths
}

// highest returns the highest number in files; 0 if they have none.
func highest(files []string) (most int64) {
	for _, file := range files {
		var n int64
		if _, err := fmt.Sscan(contents(file), &n); err == nil {
			most = max(most, n)
		}
	}
	return most
}

// cgroupFiles returns the paths of a file of a sandbox's cgroup, wherever drowse
// makes it: under systemd, in a hierarchy of its own, and in those of v1.
func cgroupFiles(group, name string) []string {
	var found []string
	for _, parent := range []string{"*/drowse-sandboxes.scope", "drowse-sandboxes.scope", "drowse", "*/drowse"} {
		found = append(found, glob(filepath.Join("/sys/fs/cgroup", parent, group, name))...)
	}
	return found
}

func contents(file string) string {
	b, _ := os.ReadFile(file) // the cgroup of one that waited may have gone
	return strings.TrimSpace(string(b))
}
