package supervisor

import (
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// newer is a driver of another version than the one that wrote the images.
type newer struct{ runtime.Driver }

func (newer) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "none", MemoryPause: true, Version: "fake 2"}
}

// TestUnreadableImage has a server meet a memory image that its runtime cannot
// read: the sandbox stays paused and says why, until its owner lets it boot
// afresh. With the old runtime it wakes as it was.
func TestUnreadableImage(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	old := create(t, s, CreateRequest{Settings: sleepy})
	for _, id := range []string{id, old} {
		wantCount(t, s, id, 1, 1)
		if err := s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	b.driver = newer{b.machine.Driver()}
	s, stop = b.open()
	before := b.started()
	_, err := s.Connect(t.Context(), id, time.Hour, "")
	hasCode(t, "resume", err, "checkpoint_unreadable", "")
	_, _, err = count(t.Context(), s, id)
	hasCode(t, "access", err, "checkpoint_unreadable", "")
	if r := record(t, s, id); r.State != lifecycle.Paused || r.LastError == "" || b.started() != before {
		t.Errorf("it is %s with the error %q after %d starts", r.State, r.LastError, b.started()-before)
	}
	if _, err := s.Patch(t.Context(), id, Patch{Settings: lifecycle.Patch{FilesystemFallback: new(true)}}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), id, time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, id, 1, 2) // its memory is new
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil || events[len(events)-1].Detail == "" {
		t.Errorf("the log does not say that it has booted afresh: %+v, %v", events, err)
	}
	if err := s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
		t.Fatal(err)
	}
	wantWriter(t, s, id, "fake 2")
	stop()

	b.driver = nil
	s, _ = b.open()
	wantCount(t, s, old, 2, 2)
}

// wantWriter checks what wrote a sandbox's memory image.
func wantWriter(t *testing.T, s *Supervisor, id, version string) {
	t.Helper()
	m, err := s.verify(t.Context(), *record(t, s, id).Checkpoint)
	if err != nil || m.Runtime != version {
		t.Errorf("the image is of %s, %v; want %s", m.Runtime, err, version)
	}
}
