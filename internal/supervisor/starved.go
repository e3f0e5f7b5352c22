package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// watchMemory has the largest processes of a runtime ended before it takes more
// memory than it may, which would end it.
func watchMemory(ctx context.Context, b *box, inst runtime.Instance) {
	w, ok := inst.(runtime.MemoryWatcher)
	if !ok {
		return
	}
	// Like the watch for its end, it ends with what serves, and nobody waits for it.
	go w.WatchMemory(ctx, func(ctx context.Context, bytes int64) error {
		ended, err := b.agent(inst).Relieve(ctx, bytes)
		if err != nil {
			b.s.log.Warn("sandbox ends no process, and takes more memory than it may", "sandbox", b.id, "runtime", inst.ID(), "err", err)
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if detail := b.starved.Note(ended, ids.Now()); detail != "" {
			if err := b.logEntry(lifecycle.Entry{Type: lifecycle.EntryStarved, At: ids.Now(), Detail: detail}); err != nil {
				b.s.log.Error("event could not be logged", "sandbox", b.id, "type", lifecycle.EntryStarved, "err", err)
			}
		}
		return nil
	})
}
