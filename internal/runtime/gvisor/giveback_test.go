package gvisor

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestGiveBack: a process gives memory back after its start, and when it has worked and
// does nothing any more; not while it works, nor for little.
func TestGiveBack(t *testing.T) {
	const mib = 1 << 20
	var k keeper
	for _, step := range []struct {
		what            string
		allocated, held uint64
		full            bool
		left            uint64 // held after it was given back
	}{
		{"after the start", 9 * mib, 8 * mib, true, 5 * mib},
		{"nothing since", 9 * mib, 5 * mib, false, 0},
		{"it works", 40 * mib, 12 * mib, false, 0},
		{"it works on", 80 * mib, 13 * mib, false, 0},
		{"it has stopped", 80*mib + 1000, 13 * mib, true, 6 * mib},
		{"nothing since then", 80*mib + 2000, 6*mib + 1000, false, 0},
		{"it worked a little", 81 * mib, 6*mib + 2000, false, 0},
		{"which is not worth it", 81 * mib, 6*mib + 2000, false, 0},
	} {
		now := heapUse{step.allocated, step.held}
		if full := k.full(now); full != step.full {
			t.Errorf("%s: gives back %t", step.what, full)
		}
		if step.full {
			k.last = heapUse{step.allocated, step.left}
		}
	}
}

// TestReadHeap: the numbers are there under these names.
func TestReadHeap(t *testing.T) {
	before := readHeap()
	block := make([]byte, 4<<20)
	now := readHeap()
	if now.allocated < before.allocated+uint64(len(block)) || now.held < uint64(len(block)) {
		t.Errorf("%+v after %+v and %d bytes", now, before, len(block))
	}
}

// TestIdleRuntimeGivesBack: a file server that does nothing holds less than when it had
// started. Where this process stands still from that start on it sees the less only, so it
// tries again.
func TestIdleRuntimeGivesBack(t *testing.T) {
	for try := 1; ; try++ {
		_, _, _, inst := startOne(t, 0)
		pid := inst.c.(local).c.GoferPid.Load()
		before, now := anonymous(t, pid), int64(0)
		for begin := time.Now(); time.Since(begin) < 10*afterStart; time.Sleep(100 * time.Millisecond) {
			if now = anonymous(t, pid); now <= before-256<<10 {
				return
			}
		}
		if try == 3 {
			t.Fatalf("it holds %d KiB after %d", now>>10, before>>10)
		}
	}
}

// anonymous returns the memory of a process that is no file's, in bytes.
func anonymous(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "Anonymous: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("process %d: %s", pid, data)
	return 0
}
