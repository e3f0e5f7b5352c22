package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestKeysShareTheHost: each sandbox had the same part of the CPU time, so that
// a key with many of them had most of it.
func TestKeysShareTheHost(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	of := func(key string) string {
		return create(t, s, CreateRequest{Settings: sleepy, Config: store.Config{Key: key}})
	}
	modest := of("modest")
	var greedy []string
	want := func(ids []string, n int) {
		t.Helper()
		testmode.Eventually(t, fmt.Sprintf("%d sandboxes share among %d", len(ids), n), func() bool {
			for _, id := range ids {
				if b.machine.Sharers(sweep.RuntimeID(id, record(t, s, id).Launch)) != n {
					return false
				}
			}
			return true
		})
	}
	for _, sharers := range []int{1, 2, 4, 4, 8} { // few starts change the parts of all
		greedy = append(greedy, of("greedy"))
		want(greedy, sharers)
	}
	want([]string{modest}, 1)
	for _, id := range greedy[2:] {
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	want(greedy[:2], 2)

	runs := map[string]int{} // of each key, and of none that sleeps
	for _, r := range confinable(s) {
		runs[r.Key]++
		if err := errors.Join(r.Confine(1), r.Yield(true)); err != nil {
			t.Error(err)
		}
	}
	if want := map[string]int{"modest": 1, "greedy": 2}; !maps.Equal(runs, want) {
		t.Errorf("can be made to step back: %v, want %v", runs, want)
	}
	stop()
	s, _ = b.open() // which finds them as they are
	want(greedy[:2], 2)
	testmode.Eventually(t, "what an earlier server had step back is free", func() bool {
		id := sweep.RuntimeID(modest, record(t, s, modest).Launch)
		return b.machine.Confined(id) == 0 && !b.machine.Yields(id)
	})
}
