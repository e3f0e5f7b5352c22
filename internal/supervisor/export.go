package supervisor

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// Export is the right to read a paused sandbox as one stream. It reads the
// checkpoint that the sandbox had when the export began: that is never changed,
// and stays until Release, whatever becomes of the sandbox meanwhile; but for
// its end, which does not wait for long.
type Export struct {
	Manifest bundle.Manifest
	// Cut is closed when the sandbox is about to be removed, or the server
	// stops: whoever writes must break off at once.
	Cut <-chan struct{}
	// Write writes the bundle. It is called once.
	Write func(w io.Writer) error
	// Release gives the right back. It may be called more than once.
	Release func()

	ctx context.Context // ends with Cut
}

// exportTask begins the names of exports among the tasks of a box.
const exportTask = "export-"

// Export returns what reads a paused sandbox, after its checkpoint was verified
// in full. An operation in flight is waited for; a sandbox that runs is an
// errdef.WrongState with code "not_paused". It wakes nothing, and the sandbox may
// wake meanwhile.
func (s *Supervisor) Export(ctx context.Context, id string) (*Export, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	for {
		e, sb, ended, err := b.beginExport()
		if err != nil {
			return nil, err
		}
		if ended != nil {
			if _, err := b.wait(ctx, ended); err != nil {
				return nil, err
			}
			continue
		}
		if err := s.prepare(ctx, e, sb); err != nil {
			e.Release()
			return nil, fmt.Errorf("export sandbox %s: %w", id, err)
		}
		return e, nil
	}
}

// beginExport takes the right to read the checkpoint, or returns what tells the
// end of the operation in flight.
func (b *box) beginExport() (*Export, store.Sandbox, <-chan ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := b.sb.Record
	switch {
	case outcome.Alive(b.sb) != nil:
		return nil, b.sb, nil, outcome.Alive(b.sb)
	case rec.Op != nil:
		return nil, b.sb, b.awaitLocked(), nil
	case rec.State != lifecycle.Paused:
		return nil, b.sb, nil, errdef.New(errdef.WrongState, "not_paused", "the sandbox is %s; only a paused one can be exported", rec.State).
			WithRemedy("pause it first")
	}
	ctx, cancel := context.WithCancel(b.s.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	name := exportTask + ids.NewOp()
	b.tasks[name] = t
	var once sync.Once
	release := func() {
		once.Do(func() {
			cancel()
			b.mu.Lock()
			delete(b.tasks, name)
			b.mu.Unlock()
			close(t.done)
		})
	}
	return &Export{Cut: ctx.Done(), Release: release, ctx: ctx}, b.sb, nil, nil
}

// exportsInFlight returns the exports that read the checkpoint there is now.
func (b *box) exportsInFlight() []*task {
	var all []*task
	for name, t := range b.tasks {
		if strings.HasPrefix(name, exportTask) {
			all = append(all, t)
		}
	}
	return all
}

// awaitExports waits until nothing reads any more what is to be removed.
func awaitExports(exports []*task) {
	for _, t := range exports {
		<-t.done
	}
}

// prepare verifies what is to be exported, and writes the manifest.
func (s *Supervisor) prepare(ctx context.Context, e *Export, sb store.Sandbox) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	m, err := s.carrier.Describe(ctx, sb)
	if err != nil {
		return err
	}
	e.Manifest = m
	e.Write = func(w io.Writer) error {
		from := moving.From(e.ctx, s.o.Layers, *sb.Record.Checkpoint)
		if err := bundle.Write(w, m, from); err != nil {
			return fmt.Errorf("export sandbox %s: %w", m.ID, err)
		}
		return nil
	}
	return nil
}
