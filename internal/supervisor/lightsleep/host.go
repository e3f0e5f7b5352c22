package lightsleep

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/cgroup"
)

// Host is what a room sees of the machine.
type Host struct {
	Memory    int64         // bytes that the machine has, or that the server's cgroups may have if those are fewer
	Available int64         // bytes of them that can be used without anybody having to give up any
	Stalled   time.Duration // how long tasks have waited for memory since the machine's start; 0 where the kernel does not count that
}

// look looks at the machine. Where that fails, the log has it once.
func (r *Room) look() (Host, error) {
	host, err := r.o.Look()
	if was := r.blind.Swap(err != nil); was != (err != nil) {
		if err != nil {
			r.o.Log.Warn("the machine's memory cannot be looked at: no more frozen runtimes of paused sandboxes stay", "err", err)
		} else {
			r.o.Log.Info("the machine's memory can be looked at again")
		}
	}
	return host, err
}

// Available returns how many bytes of memory the machine has for more.
func (r *Room) Available() (int64, error) {
	host, err := r.o.Look()
	return host.Available, err
}

// thisHost looks at the machine that this runs on. A server in a container has what
// its cgroups leave it.
func thisHost() (Host, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Host{}, err
	}
	var h Host
	if h.Memory, h.Available, err = parseMeminfo(string(text)); err != nil {
		return Host{}, err
	}
	limit, left, limited, err := cgroup.OwnMemory()
	if err != nil {
		return Host{}, err
	}
	if limited {
		h.Memory, h.Available = min(h.Memory, limit), min(h.Available, left)
	}
	if text, err := os.ReadFile("/proc/pressure/memory"); err == nil { // not every kernel counts that
		h.Stalled, err = parseStalled(string(text))
		if err != nil {
			return Host{}, err
		}
	}
	return h, nil
}

// parseMeminfo returns what memory /proc/meminfo says there is.
func parseMeminfo(text string) (total, available int64, err error) {
	values := map[string]int64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name != "MemTotal" && name != "MemAvailable" {
			continue
		}
		value, unit, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || unit != "kB" || n < 0 {
			return 0, 0, fmt.Errorf("/proc/meminfo has the line %q", strings.TrimSpace(line))
		}
		values[name] = n << 10
	}
	total, ok := values["MemTotal"]
	available, ok2 := values["MemAvailable"]
	if !ok || !ok2 {
		return 0, 0, fmt.Errorf("/proc/meminfo has no MemTotal, or no MemAvailable")
	}
	return total, available, nil
}

// parseStalled returns how long some tasks have waited, which a file of
// /proc/pressure counts in microseconds.
func parseStalled(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields {
			if value, ok := strings.CutPrefix(field, "total="); ok {
				n, err := strconv.ParseInt(value, 10, 64)
				if err != nil {
					return 0, fmt.Errorf("/proc/pressure/memory has the line %q: %w", strings.TrimSpace(line), err)
				}
				return time.Duration(n) * time.Microsecond, nil
			}
		}
	}
	return 0, fmt.Errorf("/proc/pressure/memory has no total of some")
}
