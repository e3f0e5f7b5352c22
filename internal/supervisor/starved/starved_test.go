package starved

import (
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// TestStarvationIsToldSometimes ends processes for want of memory as often as a
// guest can have that. The event log is told once in ten seconds, and all are
// counted.
func TestStarvationIsToldSometimes(t *testing.T) {
	var s Count
	ended := []agentapi.EndedProcess{{PID: 12, Command: "python3 train.py", Bytes: 250 << 20}}
	begin := time.Now()
	if got := s.Note(nil, begin); got != "" {
		t.Errorf("of nothing it says %q", got)
	}
	var said []string
	for i := range 2001 { // from 0 to 20 s
		if detail := s.Note(ended, begin.Add(time.Duration(i)*10*time.Millisecond)); detail != "" {
			said = append(said, detail)
		}
	}
	if len(said) != 3 {
		t.Fatalf("it says %d times something, want 3", len(said))
	}
	if want := "out of memory: process 12: python3 train.py held 250 MiB, and was ended"; said[0] != want {
		t.Errorf("first it says %q, want %q", said[0], want)
	}
	for _, detail := range said[1:] {
		if !strings.HasSuffix(detail, "was ended; so were 999 others before or with it") {
			t.Errorf("later it says %q", detail)
		}
	}
}
