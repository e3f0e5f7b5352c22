// Package autopsy says what a runtime that ended by itself ended of.
package autopsy

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
)

// Of looks at a runtime that has ended. damage is not nil if it ended because its
// memory image is not what was written.
func Of(inst runtime.Instance, limits store.Limits, log *slog.Logger) (gone lifecycle.RuntimeGone, damage error) {
	gone.Detail = "its process exited"
	if e := checkpoint.DamageOf(inst); e != nil {
		gone.Reason, gone.Detail = lifecycle.RuntimeLost, e.Message
		return gone, e
	}
	w, ok := inst.(runtime.Witness)
	if !ok {
		return gone, nil
	}
	end, err := w.EndedBy()
	if err != nil {
		log.Warn("no trace of how a runtime ended", "runtime", inst.ID(), "err", err)
	}
	gone.Detail = cmp.Or(end.Words, gone.Detail)
	switch end.Limit {
	case runtime.MemoryLimit:
		gone.Reason = lifecycle.OutOfMemory
		gone.Detail = fmt.Sprintf("its processes and files in memory took more than its limit of %d MiB, and it was ended", limits.MemoryMiB)
	case runtime.PIDsLimit:
		gone.Reason = lifecycle.OutOfProcesses
		gone.Detail = fmt.Sprintf("its processes and their threads took its limit of %d tasks on the host, and its runtime could not go on without another", limits.PIDs)
	}
	return gone, nil
}
