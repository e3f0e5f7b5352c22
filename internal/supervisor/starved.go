package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// starvedEvery is how often the event log is told of processes that were ended
// for want of memory: a guest can have that as often as it likes.
const starvedEvery = 10 * time.Second

// watchMemory has the largest processes of a runtime ended before it takes more
// memory than it may, which would end it.
func watchMemory(b *box, inst runtime.Instance) {
	w, ok := inst.(runtime.MemoryWatcher)
	if !ok {
		return
	}
	// Like the watch for its end, it ends with the runtime or the server, and
	// nobody waits for it.
	go w.WatchMemory(b.s.ctx, func(ctx context.Context, bytes int64) error {
		ended, err := b.agent(inst).Relieve(ctx, bytes)
		if err != nil {
			b.s.log.Warn("sandbox ends no process, and takes more memory than it may", "sandbox", b.id, "runtime", inst.ID(), "err", err)
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if detail := b.starved.note(ended, now()); detail != "" {
			e := lifecycle.Entry{Type: lifecycle.EntryStarved, At: now(), Detail: detail}
			if err := b.logEntry(e); err != nil {
				b.s.log.Error("event could not be logged", "sandbox", b.id, "type", e.Type, "err", err)
			}
		}
		return nil
	})
}

// starvation counts what was ended for want of memory and is in no entry of the
// event log.
type starvation struct {
	count int
	at    time.Time // when that was last logged
}

// note returns what the event log is to say of what was ended; empty if nothing
// yet. What comes too often is added to what is said next.
func (s *starvation) note(ended []agentapi.EndedProcess, now time.Time) string {
	s.count += len(ended)
	if len(ended) == 0 || now.Sub(s.at) < starvedEvery {
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
