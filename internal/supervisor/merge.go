package supervisor

import (
	"context"
	"errors"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/merging"
)

// mergeLocked is called when something has changed: if the sandbox sleeps, a layer that waits for
// that takes its place in the stack, or a merge begins. The sandbox never waits for one: it may
// wake, run and sleep again meanwhile. The layers that are merged never change, and are removed
// only when the stack is without them. That is committed only while the sandbox sleeps, or falls
// asleep for a checkpoint on the way, when nothing is mounted over them but what is released
// already, and never runs again.
func (b *box) mergeLocked(before lifecycle.Record) {
	rec := b.sb.Record
	if m := b.merged; m != nil && rec.Checkpoint != nil && slices.Contains(rec.Checkpoint.Stack, m.Into) {
		b.merged = nil
		b.s.metrics.Merged("committed")
		b.s.log.Info("layers merged", "sandbox", b.id, "layers", len(m.Merged), "layer", m.Into)
	}
	if m := b.merged; m != nil && rec.Op == nil && rec.Checkpoint != nil && !slices.Contains(rec.Checkpoint.Stack, m.Merged[0]) {
		b.merged = nil // the stack has become another
		b.dropMerge(m.Into, "dropped")
	}
	asleep := rec.Situation() == lifecycle.Situation(lifecycle.Paused) && b.bed.Stays() == nil
	frozen := asleep && rec.Checkpoint != before.Checkpoint && rec.Restored == before.Restored || before.Checkpointing() && before.Op.Cause == lifecycle.CauseCheckpoint && rec.Op == nil
	switch {
	case asleep && b.merged != nil:
		b.commitMergeLocked()
	case frozen && !rec.Thawed && !b.merging && b.merged == nil && rec.Checkpoint != nil && len(merging.Mergeable(rec.Checkpoint)) > 1:
		b.merging = true
		b.spawn("merge", b.merge)
	}
}

// waitingMerge returns the merged layer that waits for its place in the stack;
// nil if there is none.
func (b *box) waitingMerge() *lifecycle.LayersMerged {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.merged
}

// commitMergeLocked puts the merged layer into the stack. One that could not be
// committed is not given up, but tried again: the store may have taken it.
func (b *box) commitMergeLocked() {
	err := b.settleLocked()
	if b.merged == nil { // it was that
		return
	}
	var res lifecycle.Result
	if err == nil {
		res, err = b.applyLocked(*b.merged)
	}
	switch {
	case err != nil:
		b.s.log.Error("merged layer could not be committed", "sandbox", b.id, "layer", b.merged.Into, "err", err)
		b.s.work.Go(func() {
			if b.s.sleep(storeRetry) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.mergeLocked(b.sb.Record)
			}
		})
	case res.Verdict != lifecycle.Applies: // the stack has become another
		b.dropMerge(b.merged.Into, "dropped")
		b.merged = nil
	}
}

// merge merges the layers of the stack, if that is worth it.
func (b *box) merge(ctx context.Context) {
	ev, err := b.s.merger.Merge(ctx, b.id, func() *lifecycle.Checkpoint { return b.record().Checkpoint })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.merging = false
	switch {
	case ctx.Err() != nil && ev != nil, errors.Is(err, merging.ErrTaken):
		b.dropMerge(ev.Into, "dropped")
	case err != nil:
		b.s.log.Warn("layers could not be merged", "sandbox", b.id, "err", err)
		b.dropMerge(ev.Into, "failed")
	case ev != nil:
		b.merged = ev
		b.mergeLocked(b.sb.Record)
	}
}

// dropMerge removes a merged layer that did not get into the stack, or what there is of it.
func (b *box) dropMerge(id, outcome string) {
	b.s.metrics.Merged(outcome)
	b.background(func(context.Context) { b.dropLayers([]string{id}) })
}

// dropLayers carries out DropLayers.
func (b *box) dropLayers(ids []string) {
	for _, id := range ids {
		b.s.removals.Insist(func() error { return b.s.RemoveLayer(id, "") }, "layer could not be removed", "sandbox", b.id, "layer", id)
	}
}
