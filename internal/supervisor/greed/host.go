package greed

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is what /proc/stat counts in.
const tick = 10 * time.Millisecond

// Busy returns how long the host's processors have run anything at all since its
// start, together.
func Busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy adds up the first line of /proc/stat, but for the time in which nothing
// ran. What guests of a hypervisor took is in it already.
func parseBusy(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal guest guest_nice
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var busy time.Duration
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		busy += time.Duration(n) * tick
	}
	return busy, nil
}
