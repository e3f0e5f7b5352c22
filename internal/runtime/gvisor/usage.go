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
	used.Memory, used.Cache = memory, stat.cache()
	used.CPU, err = cpuOf(root, cid)
	return used, err
}

// cpuOf returns the CPU time that a runtime has used.
func cpuOf(root, cid string) (time.Duration, error) {
	for _, stat := range cgroupFiles(root, cid, "cpuacct", "cpuacct.usage", "cpu.stat") {
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
