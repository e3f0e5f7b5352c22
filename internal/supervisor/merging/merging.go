// Package merging joins the layers of a sandbox that sleeps into one, where that is
// worth it: a wake mounts every layer, and verifies what is in it also if nobody can
// see it any more. It changes nothing of what is there; the layer that it makes has
// yet to take its place in the stack.
package merging

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// When layers are merged.
const (
	// MaxDepth is how many layers a stack may have: few to mount, and a merge,
	// which touches every file, comes only with every eighth pause.
	MaxDepth = 8
	// LeastHidden is how few bytes that nobody can see are not worth a merge. More
	// may be half of those in sight.
	LeastHidden = 1 << 20
)

// Merger merges layers, of one sandbox at a time.
type Merger struct {
	Layers *layer.Store
	Turn   chan struct{} // has room for one
}

// New returns what merges the layers of a store.
func New(layers *layer.Store) Merger { return Merger{layers, make(chan struct{}, 1)} }

// Mergeable returns the layers of a stack that can be merged: those above the last
// one that an older version froze, without a listing.
func Mergeable(cp *lifecycle.Checkpoint) []string {
	for i, id := range slices.Backward(cp.Stack) {
		if cp.Layers[id] == "" {
			return cp.Stack[i+1:]
		}
	}
	return cp.Stack
}

// Merge returns the layer that it made of those of a sandbox's checkpoint, which is
// asked for when its turn has come; nil if there was no need for one. After an error
// there may be some of it.
func (m Merger) Merge(ctx context.Context, sandbox string, checkpoint func() *lifecycle.Checkpoint) (*lifecycle.LayersMerged, error) {
	select {
	case m.Turn <- struct{}{}:
		defer func() { <-m.Turn }()
	case <-ctx.Done():
		return nil, nil
	}
	cp := checkpoint()
	if cp == nil {
		return nil, nil
	}
	ev := &lifecycle.LayersMerged{Merged: Mergeable(cp), Into: sweep.MergedID(sandbox, ids.New())}
	needed := false
	err := nicely(func() (err error) {
		if needed, err = m.needed(ev.Merged, cp.Layers); needed {
			ev.Digest, err = m.Layers.Merge(ctx, ev.Merged, cp.Layers, ev.Into)
		}
		return err
	})
	if !needed && err == nil {
		return nil, nil
	}
	return ev, err
}

func (m Merger) needed(stack []string, digests map[string]string) (bool, error) {
	if len(stack) > MaxDepth {
		return true, nil
	}
	hidden, total, err := m.Layers.Hidden(stack, digests)
	return hidden > max(LeastHidden, (total-hidden)/2), err
}

const lowestPriority = 19

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
