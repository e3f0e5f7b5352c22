package supervisor

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLittleSpace has a server with little room on its disk, which is not full
// yet: nothing new is begun, and what runs goes on.
func TestLittleSpace(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	wantCount(t, s, id, 1, 1)
	disk := filepath.Join(b.dir, "rootfs") // where the server looks
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	pauseErr := s.Pause(t.Context(), id, PauseRequest{})
	var createErr error
	if pauseErr != nil {
		_, createErr = s.Create(t.Context(), CreateRequest{Template: "test", Settings: record(t, s, id).Settings})
	}
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if pauseErr == nil {
		t.Fatal("it was paused")
	}
	hasCode(t, "create", createErr, "disk_full", "")
	wantCount(t, s, id, 2, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
