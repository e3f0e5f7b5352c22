// Package starved says what the event log is told of processes that were ended for
// want of memory.
package starved

import (
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// every is how often the event log is told of processes that were ended
// for want of memory: a guest can have that as often as it likes.
const every = 10 * time.Second

// Count counts what was ended for want of memory and is in no entry of the
// event log.
type Count struct {
	count int
	at    time.Time // when that was last logged
}

// Note returns what the event log is to say of what was ended; empty if nothing
// yet. What comes too often is added to what is said next.
func (s *Count) Note(ended []agentapi.EndedProcess, now time.Time) string {
	s.count += len(ended)
	if len(ended) == 0 || now.Sub(s.at) < every {
		return ""
	}
	first := ended[0]
	detail := fmt.Sprintf("out of memory: process %d: %s held %d MiB, and was ended", first.PID, first.Command, first.Bytes>>20)
	if more := s.count - 1; more > 0 {
		detail += fmt.Sprintf("; so were %d others before or with it", more)
	}
	s.count, s.at = 0, now
	return detail
}
