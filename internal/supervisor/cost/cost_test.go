package cost

import (
	"fmt"
	"testing"
	"time"
)

// TestLabelsAreBounded: a key keeps its label for good, and those that come after
// many others are counted together.
func TestLabelsAreBounded(t *testing.T) {
	var l Ledger
	l.Wrote("", 1)
	for i := range 3 * mostLabels {
		l.Wrote(fmt.Sprint("key-", i), 10)
		l.Spent(fmt.Sprint("key-", i), time.Second)
	}
	now := map[string]Cost{"key-0": {Requests: 2}, fmt.Sprint("key-", 2*mostLabels): {Requests: 3}, "new": {Requests: 4}}
	for range 2 {
		sums := l.ByLabel(now)
		if len(sums) != mostLabels+1 { // its own, and one for all others
			t.Errorf("%d labels, want %d", len(sums), mostLabels+1)
		}
		if got, want := sums["key-0"], (Cost{Requests: 2, DatabaseBytes: 10, Checkpoints: time.Second}); got != want {
			t.Errorf("the first key: %+v, want %+v", got, want)
		}
		later := int64(3*mostLabels - (mostLabels - 1))
		if got, want := sums[Others], (Cost{Requests: 7, DatabaseBytes: 10 * later, Checkpoints: time.Duration(later) * time.Second}); got != want {
			t.Errorf("the others: %+v, want %+v", got, want)
		}
		if got := sums[NoKey].DatabaseBytes; got != 1 {
			t.Errorf("no key has %d bytes, want 1", got)
		}
	}
	var c Cost
	l.Fill("key-7", &c)
	if c.DatabaseBytes != 10 || c.Checkpoints != time.Second {
		t.Errorf("filled: %+v", c)
	}
}
