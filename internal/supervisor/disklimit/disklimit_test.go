package disklimit

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDue holds when sandboxes are measured.
func TestDue(t *testing.T) {
	const block = 4096
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var w Watch
	for _, step := range []struct {
		name         string
		after        time.Duration // the start
		blocks, file uint64        // free
		want         bool
	}{
		{"the first look", 0, 1 << 20, 1 << 20, true},
		{"nothing happened", time.Second, 1 << 20, 1 << 20, false},
		{"a little was written", 2 * time.Second, 1<<20 - 1000, 1 << 20, false},
		{"little by little much was written", 3 * time.Second, 1<<20 - shrunkBytes/block, 1 << 20, true},
		{"space was freed", 4 * time.Second, 1 << 21, 1 << 20, false},
		{"and is written to", 5 * time.Second, 1<<21 - shrunkBytes/block, 1 << 20, true},
		{"many files were made", 6 * time.Second, 1<<21 - shrunkBytes/block, 1<<20 - shrunkFiles, true},
		{"nothing for long, almost", 35 * time.Second, 1<<21 - shrunkBytes/block, 1<<20 - shrunkFiles, false},
		{"nothing for long", 36 * time.Second, 1<<21 - shrunkBytes/block, 1<<20 - shrunkFiles, true},
	} {
		if got := w.Due(unix.Statfs_t{Bsize: block, Bavail: step.blocks, Ffree: step.file}, start.Add(step.after)); got != step.want {
			t.Errorf("%s: due: %t", step.name, got)
		}
	}
}
