package gvisor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// EndedBy implements runtime.LimitWitness. Whichever of its processes the kernel
// kills for want of memory, gVisor ends the others; and gVisor's own process
// gives up where it gets no thread. So the whole runtime has ended of it.
func (i *instance) EndedBy() (runtime.Limit, error) {
	if i.tookTooMuch.Load() {
		return runtime.MemoryLimit, nil
	}
	kills, err := oomKills(i.group)
	if err != nil {
		return "", fmt.Errorf("end of runtime %s: %w", i.id, err)
	}
	if kills > 0 {
		return runtime.MemoryLimit, nil
	}
	refused, err := refusedTasks(i.group)
	if err != nil {
		return "", fmt.Errorf("end of runtime %s: %w", i.id, err)
	}
	if refused > 0 {
		return runtime.PIDsLimit, nil
	}
	return "", nil
}

// oomKills returns how many processes of a runtime the kernel killed because
// its cgroup was out of memory.
func oomKills(g group) (int64, error) {
	for _, events := range g.files("memory", "memory.oom_control", "memory.events") {
		if n, ok := counter(events, "oom_kill"); ok {
			return n, nil
		}
	}
	return 0, errors.New("no cgroup counts kills for want of memory")
}

// refusedTasks returns how often a runtime was refused a process or thread
// because its cgroup had as many as it may have.
func refusedTasks(g group) (int64, error) {
	for _, events := range g.files("pids", "pids.events", "pids.events") {
		if n, ok := counter(events, "max"); ok {
			return n, nil
		}
	}
	return 0, errors.New("no cgroup counts refused processes")
}

// counter returns the number in the line of a file that begins with a name.
func counter(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
