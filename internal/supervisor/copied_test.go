package supervisor

import (
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestCopied has a guest told that its memory is a copy where another one may have
// gone on from it as well, and not after a plain wake.
func TestCopied(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	want := func(what string, want bool) {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if got := b.last.copied.Load(); got != want {
			t.Errorf("%s: told of a copy: %t, want %t", what, got, want)
		}
	}
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}})
	want("a new sandbox", false)
	pauseAndWake(t, s, id)
	want("a wake", false)

	b.crash(record(t, s, id), id)
	testmode.Eventually(t, "the loss", func() bool { return record(t, s, id).State == lifecycle.Paused })
	wake(t, s, id)
	want("a second wake from one checkpoint", true)
	pauseAndWake(t, s, id)
	want("a wake from the next", false)

	snap := take(t, s, id, SnapshotRequest{})
	child := from(t, s, snap.ID)
	want("a sandbox from a snapshot", true)
	pauseAndWake(t, s, child)
	want("its own wake", false)
	restore(t, s, id, RestoreRequest{Snapshot: snap.ID})
	want("a restore", true)
	if _, err := s.Fork(t.Context(), id, ForkRequest{Count: 1}); err != nil {
		t.Fatal(err)
	}
	want("a child of a fork", true)
}
