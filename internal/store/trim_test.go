package store_test

import (
	"slices"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestEventsOfASandboxAreBounded: the latest are kept, of other sandboxes all, and
// fewer when it has ended.
func TestEventsOfASandboxAreBounded(t *testing.T) {
	s := open(t, newPath(t))
	other := record("other", 1)
	commit(t, s, other, lines(1, "a", "b"))
	sb := record("loud", 1)
	many := slices.Repeat(lines(1, "x"), store.MostEvents+500)
	commit(t, s, sb, many)
	count := func(id string) []store.Event {
		t.Helper()
		events, err := s.LastEvents(t.Context(), id, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	if n := len(count("loud")); n != store.MostEvents {
		t.Errorf("%d events are kept, want %d", n, store.MostEvents)
	}
	// One by one, they are looked for now and then.
	for n := range 3000 {
		sb.Rev = int64(n + 1)
		if err := s.Commit(t.Context(), sb, lines(1, "y")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(count("loud")); n >= store.MostEvents+3000 {
		t.Errorf("%d events are kept", n)
	}
	last := count("loud")[0].Seq
	sb.Record.State = lifecycle.Terminated
	sb.Record.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Killed, At: at}
	commit(t, s, sb, lines(1, "the end"))
	events := count("loud")
	if len(events) != store.MostEventsEnded || events[0].Detail != "the end" || events[0].Seq != last+1 {
		t.Errorf("%d events are kept of one that has ended, the last is %+v", len(events), events[0])
	}
	if n := len(count("other")); n != 2 {
		t.Errorf("%d events are kept of the other sandbox", n)
	}
}
