package store

import (
	"testing"
	"time"
)

// TestGone: a server is gone when its lease is over, and others may have renewed theirs.
func TestGone(t *testing.T) {
	const long = time.Hour
	for name, tt := range map[string]struct {
		owner Server
		held  time.Duration // of the one that asks
		want  time.Duration
	}{
		"its lease lasts":                {Server{Left: time.Second}, long, -time.Second},
		"its lease is over":              {Server{Left: -time.Second}, long, time.Second},
		"the database was away":          {Server{Left: -long}, 0, -BackWithin},
		"it is back for long enough":     {Server{Left: -long}, BackWithin + time.Second, time.Second},
		"it leaves, and its lease lasts": {Server{Left: time.Second, Leaving: true}, 0, -time.Second},
		"it has left":                    {Server{Left: -time.Second, Leaving: true}, 0, time.Second},
	} {
		tt.owner.ID = "b"
		if got := Gone([]Server{{ID: "a", Left: 1, Held: tt.held}, tt.owner}, "a", "b"); got != tt.want {
			t.Errorf("where %s: %s, want %s", name, got, tt.want)
		}
	}
	if got := Gone([]Server{{ID: "a"}}, "a", "b"); got < LostAfter {
		t.Errorf("one that nobody knows is gone for %s", got)
	}
	if got := Gone([]Server{{ID: "b", Left: -long}}, "a", "b"); got >= 0 {
		t.Errorf("for one that nobody knows it is gone for %s", got)
	}
}
