package moving

import (
	"context"
	"fmt"
	"io"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Export is the right to read a paused sandbox as one stream. It reads the
// checkpoint that the sandbox had when the export began: that is never changed,
// and stays until Release, whatever becomes of the sandbox meanwhile; but for
// its end, which does not wait for long.
type Export struct {
	Manifest   bundle.Manifest
	Checkpoint string // the one that is read, as store.CopyOf has it
	// Cut is closed when the sandbox is about to be removed, or the server
	// stops: whoever writes must break off at once.
	Cut <-chan struct{}
	// Write writes the bundle. It is called once.
	Write func(w io.Writer) error
	// Release gives the right back. It may be called more than once.
	Release func()
}

// Right is the right to read the checkpoint of a sandbox as it is in Sandbox, as its
// owner gives it: until Context ends, or it is released.
type Right struct {
	Context context.Context
	Sandbox store.Sandbox
	Release func()
}

// Export verifies what is to be exported, and writes the manifest. After an error
// the right is given back.
func (c Carrier) Export(ctx context.Context, r Right) (*Export, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.Context, cancel)()
	m, err := c.Describe(ctx, r.Sandbox)
	if err != nil {
		r.Release()
		return nil, fmt.Errorf("export %s: %w", called(r.Sandbox.ID), err)
	}
	write := func(w io.Writer) error {
		if err := bundle.Write(w, m, From(r.Context, c.Layers, *r.Sandbox.Record.Checkpoint)); err != nil {
			return fmt.Errorf("export %s: %w", called(m.ID), err)
		}
		return nil
	}
	return &Export{Manifest: m, Checkpoint: store.CopyOf(*r.Sandbox.Record.Checkpoint), Cut: r.Context.Done(), Write: write, Release: r.Release}, nil
}
