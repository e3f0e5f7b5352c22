package gvisor

import (
	"os/exec"
	"testing"
)

// TestRemoveEndsWhatStays removes a runtime whose cgroup has a process that gVisor does
// not end: its own removal gives up, and is done again when the process is gone.
func TestRemoveEndsWhatStays(t *testing.T) {
	r := newRig(t)
	d := r.reopen(t).(*Driver)
	i := start(t, d, r.newSpec(t))
	stays := exec.Command("sleep", "1000")
	if err := stays.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stays.Wait() }()
	t.Cleanup(func() {
		_ = stays.Process.Kill()
		<-ended
	})
	if err := i.group.join(stays.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), i.id); err != nil {
		t.Fatal(err)
	}
	for _, dir := range i.group.dirs() {
		t.Errorf("the cgroup %s is left", dir)
	}
}
