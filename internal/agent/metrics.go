package agent

import (
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// metrics is the body of GET /metrics; sizes are bytes.
type metrics struct {
	Timestamp   int64   `json:"ts"`
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"`
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

func (a *Agent) handleMetrics(w http.ResponseWriter, _ *http.Request) {
	m := metrics{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU()}
	stat, err := os.ReadFile("/proc/stat")
	if err == nil {
		m.CPUUsedPct = a.usage.since(parseCPU(string(stat)))
	}
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		writeError(w, faultf(internal, "read the memory's state: %w", err))
		return
	}
	m.addMemory(parseMemory(string(info)))
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		writeError(w, faultf(internal, "read the disk's state: %w", err))
		return
	}
	m.DiskTotal = fs.Blocks * uint64(fs.Bsize)
	m.DiskUsed = (fs.Blocks - min(fs.Bfree, fs.Blocks)) * uint64(fs.Bsize)
	writeJSON(w, http.StatusOK, m)
}

func (m *metrics) addMemory(mem map[string]uint64) {
	m.MemTotal = mem["MemTotal"]
	free, ok := mem["MemAvailable"]
	if !ok {
		free = mem["MemFree"] + mem["Buffers"] + mem["Cached"]
	}
	m.MemUsed = m.MemTotal - min(free, m.MemTotal)
	m.MemCache = mem["Cached"]
	m.MemTotalMiB, m.MemUsedMiB = m.MemTotal>>20, m.MemUsed>>20
}

// parseMemory reads lines like "MemTotal:  2048 kB".
func parseMemory(text string) map[string]uint64 {
	mem := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if kib, err := strconv.ParseUint(fields[0], 10, 54); err == nil {
			mem[key] = kib << 10
		}
	}
	return mem
}

// cpuTime is time since boot, in ticks.
type cpuTime struct{ busy, total uint64 }

// parseCPU reads the first line of /proc/stat: user nice system idle iowait
// and kinds of busy; guest time, at the end, is already in user time.
func parseCPU(text string) cpuTime {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	var t cpuTime
	for i, f := range fields[min(1, len(fields)):min(9, len(fields))] {
		ticks, err := strconv.ParseUint(f, 10, 62)
		if err != nil {
			return cpuTime{}
		}
		t.total += ticks
		if i != 3 && i != 4 {
			t.busy += ticks
		}
	}
	return t
}

// cpuUsage remembers the last reading: usage is that between two requests,
// or since boot for the first.
type cpuUsage struct {
	mu      sync.Mutex
	last    cpuTime
	percent float64
}

// minTicks is what must have passed for a new figure; over less, one tick
// more or less is all there is to see.
const minTicks = 20

func (u *cpuUsage) since(now cpuTime) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	total := int64(now.total - u.last.total)
	if total < minTicks && total >= 0 {
		return u.percent
	}
	busy := max(int64(now.busy-u.last.busy), 0)
	u.last = now
	if total > 0 {
		u.percent = math.Round(min(float64(busy)/float64(total), 1)*10000) / 100
	}
	return u.percent
}
