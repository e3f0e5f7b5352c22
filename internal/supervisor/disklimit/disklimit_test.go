package disklimit

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/sweep"
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

// unlinked is a runtime that has so much open that has no name.
type unlinked struct {
	runtime.Instance
	bytes int64
}

func (u *unlinked) Unlinked() (int64, error) { return u.bytes, nil }

// TestWokePastItsLimit: what has no name is in no frozen layer. A sandbox that woke
// with much of it may take a little more, as with any other files, and no more.
func TestWokePastItsLimit(t *testing.T) {
	layers, err := layer.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	if err := os.MkdirAll(filepath.Join(layers.LayerDir(sweep.RuntimeID("i1", 1)), "fs"), 0o755); err != nil {
		t.Fatal(err)
	}
	inst := &unlinked{}
	sb := store.Sandbox{ID: "i1", Config: store.Config{Limits: store.Limits{DiskMiB: 64}}, Record: lifecycle.Record{Generation: 1, Launch: 1}}
	m := NewMeter(layers)
	look := func(what string, bytes int64, past bool) {
		t.Helper()
		inst.bytes = bytes
		if got, err := m.Look(t.Context(), sb, inst); err != nil || (got != "") != past {
			t.Errorf("%s: %q, %v; past its limit: %t", what, got, err, past)
		}
	}
	look("within", 60*mib, false)
	look("past", 87*mib, true)
	sb.Record.Generation, sb.Record.Checkpoint = 2, &lifecycle.Checkpoint{}
	look("woken, and a little more", 93*mib, false)
	look("and as much as it may", 119*mib, false)
	look("and past that", 120*mib, true)
	sb.Record.Generation = 3
	look("woken, with room made", 10*mib, false)
	sb.Record.Generation = 4
	look("woken within its limit", 63*mib, false)
	look("and past it", 65*mib, true)

	m = NewMeter(layers) // of a server that has just started
	look("found past its limit", 90*mib, true)
	sb.Record.Generation = 5
	look("woken again", 91*mib, false)
}

// TestMakingRoom: a sandbox that woke past its limit removes what it has. Each removal
// writes a name into its top, which counts no more than what it hides; names that hide
// more than it has are what any names are.
func TestMakingRoom(t *testing.T) {
	layers, err := layer.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const limit = 64 << 20 / quota.BytesPerName // names
	frozen, top := filepath.Join(layers.LayerDir("frozen"), "fs"), filepath.Join(layers.LayerDir(sweep.RuntimeID("i1", 1)), "fs")
	for _, dir := range []string{frozen, top} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range limit + 100 {
		if err := os.WriteFile(filepath.Join(frozen, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hidden := 0
	hide := func(n int) {
		t.Helper()
		for ; hidden < n; hidden++ {
			if err := unix.Mknod(filepath.Join(top, strconv.Itoa(hidden)), unix.S_IFCHR, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	sb := store.Sandbox{ID: "i1", Config: store.Config{Limits: store.Limits{DiskMiB: 64}}, Record: lifecycle.Record{Generation: 2, Launch: 1, Checkpoint: &lifecycle.Checkpoint{Stack: []string{"frozen"}}}}
	m := NewMeter(layers)
	for _, step := range []struct {
		names int
		past  bool
	}{{0, false}, {limit / 2, false}, {limit + 100, false}, {2*limit + 100 + quota.LeastSlack/quota.BytesPerName + 1, true}} {
		hide(step.names)
		if got, err := m.Look(t.Context(), sb, &unlinked{}); err != nil || (got != "") != step.past {
			t.Errorf("with %d names that hide others: %q, %v; past its limit: %t", step.names, got, err, step.past)
		}
	}
}
