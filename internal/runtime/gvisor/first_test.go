package gvisor

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// TestRestoreContinuesFirst: an image whose first process is stopped wakes all the same,
// in each way that an image is restored.
func TestRestoreContinuesFirst(t *testing.T) {
	r, d, first, inst := startOne(t, 0)
	if err := inst.c.(local).c.SignalContainer(unix.SIGSTOP, false); err != nil {
		t.Fatal(err)
	}
	image := r.capture(t, inst)
	for name, files := range map[string][]runtime.ImageFile{"by gVisor": nil, "by an image server": unread(t, image)} {
		t.Run(name, func(t *testing.T) {
			spec := r.again(t, first)
			spec.Unread = files
			woken, err := d.Restore(t.Context(), spec, image)
			if err != nil {
				t.Fatal(err)
			}
			askFresh(t, woken)
			if err := d.Remove(t.Context(), spec.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHostKillsFirst: the first process is shielded from the guest, not from the host.
func TestHostKillsFirst(t *testing.T) {
	_, _, _, inst := startOne(t, 0)
	if err := inst.c.(local).c.SignalContainer(unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, inst)
}
