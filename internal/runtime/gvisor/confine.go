package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CPUTime implements runtime.Confiner.
func (i *instance) CPUTime() (time.Duration, error) {
	used, err := cpuOf(i.group)
	if err != nil {
		return 0, fmt.Errorf("runtime %s: %w", i.id, err)
	}
	return used, nil
}

// Confine implements runtime.Confiner.
func (i *instance) Confine(n int) error {
	if err := i.group.confine(n); err != nil {
		return fmt.Errorf("runtime %s: %w", i.id, err)
	}
	return nil
}

// confine keeps the processes of a group on the first n processors of those that
// its parent may use. The sandboxes that are confined so share the same ones, and
// what is left is for all others.
func (g group) confine(n int) error {
	for path := range g.files("cpuset", "cpuset.cpus", "cpuset.cpus") {
		parent := filepath.Dir(filepath.Dir(path))
		all, err := os.ReadFile(filepath.Join(parent, "cpuset.cpus.effective"))
		v2 := !os.IsNotExist(err)
		if !v2 {
			all, err = os.ReadFile(filepath.Join(parent, "cpuset.cpus"))
		}
		if err != nil {
			return fmt.Errorf("confine to processors: %w", err)
		}
		processors, err := parseProcessors(string(all))
		if err != nil {
			return fmt.Errorf("confine to processors: %w", err)
		}
		if n > 0 && n < len(processors) {
			processors = processors[:n]
		}
		text := strings.Join(processors, ",")
		if n == 0 && v2 {
			text = "\n" // again those of its parent, whichever these will be
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("confine to processors: %w", err)
		}
	}
	return nil
}

// parseProcessors reads a list of the kernel's such as "0-3,8", ascending.
func parseProcessors(list string) (each []string, err error) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("processors %q: %w", list, err)
		}
		last, err := strconv.ParseUint(to, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("processors %q: %w", list, err)
		}
		for p := first; p <= last; p++ {
			each = append(each, strconv.FormatUint(p, 10))
		}
	}
	return slices.Clip(each), nil
}
