package moving

import (
	"context"
	"io"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Source is the files of a checkpoint, as a bundle takes them.
type Source struct {
	ctx    context.Context
	layers *layer.Store
	cp     lifecycle.Checkpoint
}

// From returns the files of a checkpoint. Reading them ends with ctx.
func From(ctx context.Context, layers *layer.Store, cp lifecycle.Checkpoint) Source {
	return Source{ctx, layers, cp}
}

// Layer implements bundle.Source.
func (x Source) Layer(n int, f func(layer.Entry, io.Reader) error) error {
	return x.layers.Read(x.ctx, x.cp.Stack[n], f)
}

// ImageFile implements bundle.Source.
func (x Source) ImageFile(name string) (io.ReadCloser, error) {
	return x.layers.OpenWhole(x.cp.ID, name)
}
