package supervisor

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// When layers are merged. A wake mounts every layer, and verifies what is in it
// also if nobody can see it any more.
const (
	// maxDepth is how many layers a stack may have: few to mount, and a merge,
	// which touches every file, comes only with every eighth pause.
	maxDepth = 8
	// Hidden bytes may be half of those in sight, or so few that a merge would
	// gain nothing.
	leastHidden = 1 << 20
)

// mergeLocked is called when something has changed: if the sandbox sleeps, a
// layer that waits for that takes its place in the stack, or a merge begins. The
// sandbox never waits for one: it may wake, run and sleep again meanwhile. The
// layers that are merged never change, and are removed only when the stack is
// without them. That is committed only while the sandbox sleeps, or falls asleep
// for a checkpoint on the way, when nothing is mounted over them but what is
// released already, and never runs again.
func (b *box) mergeLocked(before lifecycle.Record) {
	rec := b.sb.Record
	if m := b.merged; m != nil && rec.Checkpoint != nil && slices.Contains(rec.Checkpoint.Stack, m.Into) {
		b.merged = nil
		b.s.metrics.merges.WithLabelValues("committed").Inc()
		b.s.log.Info("layers merged", "sandbox", b.id, "layers", len(m.Merged), "layer", m.Into)
	}
	asleep := rec.Situation() == lifecycle.Situation(lifecycle.Paused)
	frozen := asleep && rec.Checkpoint != before.Checkpoint || before.Checkpointing() && rec.Op == nil
	switch {
	case asleep && b.merged != nil:
		b.commitMergeLocked()
	case frozen && !b.merging && b.merged == nil && rec.Checkpoint != nil && len(mergeable(rec.Checkpoint)) > 1:
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

// mergeable returns the layers of a stack that can be merged: those above the
// last one that an older version froze, without a listing.
func mergeable(cp *lifecycle.Checkpoint) []string {
	for i, id := range slices.Backward(cp.Stack) {
		if cp.Layers[id] == "" {
			return cp.Stack[i+1:]
		}
	}
	return cp.Stack
}

// commitMergeLocked puts the merged layer into the stack. One that could not be
// committed is not given up, but tried again: the store may have taken it.
func (b *box) commitMergeLocked() {
	ev := *b.merged
	res, err := b.applyLocked(ev)
	switch {
	case err != nil:
		b.s.log.Error("merged layer could not be committed", "sandbox", b.id, "layer", ev.Into, "err", err)
		b.s.work.Go(func() {
			if b.s.sleep(storeRetry) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.mergeLocked(b.sb.Record)
			}
		})
	case res.Verdict != lifecycle.Applies: // the stack has become another
		b.merged = nil
		b.dropMerge(ev.Into, "dropped")
	}
}

// merge merges the layers of the stack, if that is worth it.
func (b *box) merge(ctx context.Context) {
	ev, err := b.tryMerge(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.merging = false
	switch {
	case ctx.Err() != nil && ev != nil:
		b.dropMerge(ev.Into, "dropped")
	case err != nil:
		b.s.log.Warn("layers could not be merged", "sandbox", b.id, "err", err)
		b.dropMerge(ev.Into, "failed")
	case ev != nil:
		b.merged = ev
		b.mergeLocked(b.sb.Record)
	}
}

// tryMerge returns the layer that it made; nil if there was no need for one.
// After an error there may be some of it.
func (b *box) tryMerge(ctx context.Context) (*lifecycle.LayersMerged, error) {
	select {
	case b.s.merges <- struct{}{}:
		defer func() { <-b.s.merges }()
	case <-ctx.Done():
		return nil, nil
	}
	cp := b.snapshot().Record.Checkpoint
	if cp == nil {
		return nil, nil
	}
	ev := &lifecycle.LayersMerged{Merged: mergeable(cp), Into: sweep.MergedID(b.id, newID())}
	needed := false
	err := nicely(func() (err error) {
		if needed, err = b.s.needsMerge(ev.Merged, cp.Layers); needed {
			ev.Digest, err = b.s.o.Layers.Merge(ctx, ev.Merged, cp.Layers, ev.Into)
		}
		return err
	})
	if !needed && err == nil {
		return nil, nil
	}
	return ev, err
}

func (s *Supervisor) needsMerge(stack []string, digests map[string]string) (bool, error) {
	if len(stack) > maxDepth {
		return true, nil
	}
	hidden, total, err := s.o.Layers.Hidden(stack, digests)
	return hidden > max(leastHidden, (total-hidden)/2), err
}

// dropMerge removes a merged layer that did not get into the stack, or what there
// is of it.
func (b *box) dropMerge(id, outcome string) {
	b.s.metrics.merges.WithLabelValues(outcome).Inc()
	b.background(func(context.Context) { b.dropLayers([]string{id}) })
}

// dropLayers carries out DropLayers.
func (b *box) dropLayers(ids []string) {
	for _, id := range ids {
		b.s.insist(func() error { return b.s.RemoveLayer(b.id, id) }, "layer could not be removed", "sandbox", b.id, "layer", id)
	}
}

// nicely runs f on a thread that yields to all others.
func nicely(f func() error) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // and never unlock it: the thread ends with this
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestPriority); err != nil {
			done <- fmt.Errorf("lower the priority: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

const lowestPriority = 19
