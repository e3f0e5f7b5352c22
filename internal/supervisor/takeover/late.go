package takeover

import (
	"context"
	"io"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
)

// Where a sandbox can run before its memory has been read, the pages of its memory are read
// from its copy when it is this server's already: see package fetch.

// latePages is where the pages come from of a checkpoint that is committed before they are here.
type latePages struct {
	is   bool
	part replica.Part
}

// of returns what has the bundle of an arrival pass over the pages, where they may come late.
func (l *latePages) of(c moving.Carrier, a *moving.Arrival, from *replica.Reader) func(layer.File, int64) bool {
	return func(f layer.File, offset int64) bool {
		if !c.MayComeLate(a, f) {
			return false
		}
		*l = latePages{is: true, part: from.Part(offset, f.Size)}
		a.LatePages = f.Size
		return true
	}
}

// check refuses a copy that lacks pages, as long as their sandbox is not this server's.
func (l latePages) check(ctx context.Context) error {
	if !l.is {
		return nil
	}
	return l.part.Check(ctx)
}

// from returns where the pages come from.
func (l latePages) from(context.Context) (replica.Part, error) { return l.part, nil }

// begin has the pages of an image read.
func begin(t *Taker, image string, open func(context.Context) (replica.Part, error)) {
	t.o.Removals.Insist(func() error { return t.o.Fetches.Begin(image, open) }, "memory image cannot be completed yet", "image", image)
}

// Complete has the pages read on of the checkpoint of a sandbox that this server had taken over
// when it ended, if some are missing.
func (t *Taker) Complete(sb store.Sandbox) {
	cp := sb.Record.Checkpoint
	if cp == nil || cp.Mode != lifecycle.Memory || sb.Record.State == lifecycle.Terminated {
		return
	}
	begin(t, cp.ID, func(ctx context.Context) (part replica.Part, err error) {
		from, _, err := t.o.Replicas.Open(ctx, sb)
		if err != nil {
			return part, err
		}
		defer from.Close()
		r, err := bundle.NewReader(from)
		if err != nil {
			return part, err
		}
		r.Skip = func(f layer.File, offset int64) bool {
			if layer.MayBeLate(f) {
				part = from.Part(offset, f.Size)
			}
			return true
		}
		return part, r.Extract(nowhere{})
	})
}

// nowhere is a bundle.Sink that keeps nothing.
type nowhere struct{}

// Layer implements bundle.Sink.
func (nowhere) Layer(int, layer.Entry, io.Reader) error { return nil }

// ImageFile implements bundle.Sink.
func (nowhere) ImageFile(string, int64, io.Reader) error { return nil }
