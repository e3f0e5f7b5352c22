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
	used, err := usageOf(i.group)
	if err != nil {
		return runtime.Usage{}, fmt.Errorf("usage of runtime %s: %w", i.id, err)
	}
	return used, nil
}

func usageOf(g group) (used runtime.Usage, err error) {
	memory, stat, err := memoryOf(g)
	if err != nil {
		return used, err
	}
	used.Memory, used.Cache = memory, stat.cache()
	used.CPU, err = cpuOf(g)
	return used, err
}

// cpuOf returns the CPU time that a runtime has used.
func cpuOf(g group) (time.Duration, error) {
	for _, stat := range g.files("cpuacct", "cpuacct.usage", "cpu.stat") {
		if n, ok := counter(stat, "usage_usec"); ok {
			return time.Duration(n) * time.Microsecond, nil
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(stat), 10, 64); err == nil { // v1 says nothing else
			return time.Duration(n), nil
		}
	}
	return 0, errors.New("no cgroup counts CPU time")
}
