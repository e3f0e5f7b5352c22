package supervisor

import (
	"context"
	"fmt"
	"io"
	goruntime "runtime"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/template"
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
	case alive(b.sb) != nil:
		return nil, b.sb, nil, alive(b.sb)
	case rec.Op != nil:
		return nil, b.sb, b.awaitLocked(), nil
	case rec.State != lifecycle.Paused:
		return nil, b.sb, nil, errdef.New(errdef.WrongState, "not_paused", "the sandbox is %s; only a paused one can be exported", rec.State).
			WithRemedy("pause it first")
	}
	ctx, cancel := context.WithCancel(b.s.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	name := exportTask + newOp()
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
	cp := *sb.Record.Checkpoint
	image, err := s.checkpoints.Verify(ctx, cp)
	if err != nil {
		return err
	}
	m := bundle.Manifest{
		Kind: bundle.KindSandbox, ExportedAt: now(), ID: sb.ID, Generation: sb.Record.Generation, CreatedAt: sb.Record.CreatedAt,
		Settings: sb.Record.Settings, Config: sb.Config, Mode: cp.Mode, Layers: []bundle.Layer{},
		Needs: bundle.Needs{Template: sb.Config.Template, Architecture: goruntime.GOARCH},
	}
	from := moving.From(ctx, s.o.Layers, cp)
	for n, id := range cp.Stack {
		if cp.Layers[id] == "" {
			return errdef.New(errdef.Unsupported, "not_portable", "layer %s was frozen by a version that took no checksums", id).
				WithRemedy("copy the files out of it with drowse cp")
		}
		l := bundle.Layer{Digest: cp.Layers[id]}
		if err := from.Layer(n, l.Measure); err != nil {
			return err
		}
		m.Layers = append(m.Layers, l)
	}
	if cp.Mode == lifecycle.Memory {
		if err := s.describeMemory(ctx, &m, cp, image); err != nil {
			return err
		}
	}
	if err := m.CheckSize(); err != nil {
		return err
	}
	e.Manifest = m
	e.Write = func(w io.Writer) error {
		from := moving.From(e.ctx, s.o.Layers, cp)
		if err := bundle.Write(w, m, from); err != nil {
			return fmt.Errorf("export sandbox %s: %w", m.ID, err)
		}
		return nil
	}
	return nil
}

// describeMemory adds to a manifest what the memory image is and needs.
func (s *Supervisor) describeMemory(ctx context.Context, m *bundle.Manifest, cp lifecycle.Checkpoint, image layer.Manifest) error {
	t, err := s.o.Templates.Resolve(m.Config.Template)
	if err != nil {
		return err
	}
	var system layer.System
	if m.Needs, system, err = s.offers(ctx, t); err != nil {
		return err
	}
	m.Needs.Runtime = image.Runtime
	if image.System != nil { // else it is of a version that did not note it
		system = *image.System
	}
	m.Needs.System = system.Digest
	m.Image = &bundle.Image{Files: image.Files}
	m.AgentToken = cp.AgentToken
	if m.AgentToken == "" {
		m.AgentToken = s.AgentToken(m.ID)
	}
	return nil
}

// offers returns what this server has for sandboxes of a template, and what the
// host's own directories are like that it shows.
func (s *Supervisor) offers(ctx context.Context, t template.Template) (bundle.Needs, layer.System, error) {
	driver := s.o.Driver.Capabilities()
	system, err := s.o.Templates.System(ctx, t)
	return bundle.Needs{Template: t.ID, Architecture: goruntime.GOARCH, Runtime: driver.Version, CPU: driver.CPU, System: system.Digest}, system, err
}
