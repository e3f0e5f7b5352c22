package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/volume"
)

// TestBackupHoldsBackRemovals ends sandboxes while a backup is being made. Their files
// stay until it has ended, also over a restart of the server, and no longer.
func TestBackupHoldsBackRemovals(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	sleeper := func() string {
		t.Helper()
		id := create(t, s, CreateRequest{})
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		return id
	}
	early, late, later := sleeper(), sleeper(), sleeper()
	const images = 3 // they have written no files
	testmode.Eventually(t, "what the sleepers ran on is gone", func() bool { return b.disk() == images })
	v, err := s.CreateVolume(t.Context(), "data", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "volumes", v.ID, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mark, err := backup.Begin(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer mark.End()
	kill(t, s, early)
	if err := s.DeleteVolume(t.Context(), v.ID); err != nil {
		t.Fatal(err)
	}
	stop()
	s, stop = b.open()
	kill(t, s, late)
	if got := b.disk(); got != images {
		t.Errorf("%d images are left of %d", got, images)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "volumes", v.ID+volume.Discarded, "file")); err != nil {
		t.Errorf("the volume that was deleted is gone: %v", err)
	}
	mark.End()
	testmode.Eventually(t, "what the last server was to remove is gone", func() bool { return b.disk() == images-1 })
	stop()
	s, _ = b.open()
	kill(t, s, later)
	if left := testmode.Names(t, filepath.Join(b.dir, "volumes")); len(left) > 1 { // where files are written
		t.Errorf("left of volumes: %q", left)
	}
	b.wantNothingLeft()
}
