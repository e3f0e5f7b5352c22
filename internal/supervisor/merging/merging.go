// Package merging joins the layers of a sandbox that sleeps into one, where that is
// worth it: a wake mounts every layer, and verifies what is in it also if nobody can
// see it any more. It changes nothing of what is there; the layer that it makes has
// yet to take its place in the stack.
package merging

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ownthread"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// When layers are merged.
const (
	// MaxDepth is how many layers a stack may have before some are merged: few to
	// mount, and a merge comes only with every few pauses.
	MaxDepth = 8
	// LeastHidden is how few bytes that nobody can see are not worth a merge. More
	// may be half of those in sight.
	LeastHidden = 1 << 20
	// perName is what a name counts for beside the bytes of files, which are copied.
	perName = 4 << 10
)

// Merger merges layers, of one sandbox at a time.
type Merger struct {
	Layers *layer.Store
	Room   func() error  // refuses to go on without space on the disk
	Turn   chan struct{} // has room for one
}

// New returns what merges the layers of a store for as long as there is room.
func New(layers *layer.Store, room func() error) Merger {
	return Merger{layers, room, make(chan struct{}, 1)}
}

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

// ErrTaken is the error of a merge whose layers were taken from the sandbox meanwhile:
// it went back to a snapshot, or was killed.
var ErrTaken = errors.New("the layers are no longer the sandbox's")

// Merge returns the layer that it made of those of a sandbox's checkpoint, which is
// asked for when its turn has come, and after an error; nil if there was no need for
// one. After an error there may be some of it.
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
	ev := &lifecycle.LayersMerged{Into: sweep.MergedID(sandbox, ids.New())}
	err := nicely(func() (err error) {
		if ev.Merged, err = m.worthIt(Mergeable(cp), cp.Layers); len(ev.Merged) > 0 {
			ev.Digest, err = m.Layers.Merge(ctx, ev.Merged, cp.Layers, ev.Into, m.Room)
		}
		return err
	})
	if err != nil && !keeps(checkpoint(), cp.Stack) {
		return ev, fmt.Errorf("%w: %w", ErrTaken, err)
	}
	if len(ev.Merged) == 0 && err == nil {
		return nil, nil
	}
	return ev, err
}

// keeps reports whether a checkpoint has all layers of a stack.
func keeps(cp *lifecycle.Checkpoint, stack []string) bool {
	return cp != nil && !slices.ContainsFunc(stack, func(id string) bool { return !slices.Contains(cp.Stack, id) })
}

// worthIt returns the layers of a stack that are to be merged: all where much of them
// is hidden; else, of a deep stack, the topmost.
func (m Merger) worthIt(stack []string, digests map[string]string) ([]string, error) {
	sizes, err := m.Layers.Hidden(stack, digests)
	if err != nil {
		return nil, err
	}
	var hidden, seen int64
	for _, s := range sizes {
		hidden += s.Hidden
		seen += s.Bytes - s.Hidden
	}
	switch {
	case hidden > max(LeastHidden, seen/2):
		return stack, nil
	case len(stack) > MaxDepth:
		return stack[lowest(sizes):], nil
	}
	return nil, nil
}

// lowest returns the lowest layer of a deep stack that is to be merged with all above
// it: one that is no larger than these together. So each byte is copied a few times in
// the life of a sandbox, however often it is paused, and a stack stays about as deep
// as its size has bits.
func lowest(sizes []layer.Size) (n int) {
	above := int64(0)
	n = len(sizes) - 2
	for i, s := range slices.Backward(sizes) {
		size := s.Bytes + perName*int64(s.Names)
		if size <= above {
			n = i
		}
		above += size
	}
	return min(n, len(sizes)-2)
}

const lowestPriority = 19

// nicely runs f on a thread that yields to all others.
func nicely(f func() error) error {
	return ownthread.Run(func() error {
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowestPriority); err != nil {
			return fmt.Errorf("lower the priority: %w", err)
		}
		return f()
	})
}
