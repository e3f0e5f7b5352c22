package gvisor

import (
	"strings"
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

// TestLastWords: a runtime says how it ended, until it is removed.
func TestLastWords(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(local) error
		want string
	}{
		"killed":       {func(l local) error { return l.c.SignalContainer(unix.SIGKILL, false) }, "its first process was ended by signal 9 (killed)"},
		"panicked":     {func(l local) error { return l.c.SignalContainer(unix.SIGABRT, false) }, "its first process exited with status 2: SIGABRT: abort"},
		"failed":       {func(l local) error { _ = l.thaw(); return nil }, "its runtime failed: panic: "},
		"from outside": {func(l local) error { return unix.Kill(l.c.SandboxPid(), unix.SIGKILL) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, inst := startOne(t, 1)
			if err := tt.end(inst.c.(local)); err != nil {
				t.Fatal(err)
			}
			awaitEnd(t, inst)
			end, err := inst.EndedBy()
			if got := end.Words; err != nil || end.Limit != "" || !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("it ended by %+v, %v; want the words %q", end, err, tt.want)
			}
		})
	}
}
