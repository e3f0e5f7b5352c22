package supervisor

import (
	"testing"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/testmode"
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
	end, err := backup.Begin(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	kill(t, s, early)
	stop()
	s, stop = b.open()
	kill(t, s, late)
	if got := b.disk(); got != images {
		t.Errorf("%d images are left of %d", got, images)
	}
	end()
	testmode.Eventually(t, "what the last server was to remove is gone", func() bool { return b.disk() == images-1 })
	stop()
	s, _ = b.open()
	kill(t, s, later)
	b.wantNothingLeft()
}
