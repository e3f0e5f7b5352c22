package moving

import (
	"cmp"
	"context"
	"errors"
	goruntime "runtime"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/template"
)

// Request says how a bundle becomes a sandbox.
type Request struct {
	// NewID gives the sandbox another id. Otherwise it keeps its own, which must
	// be unknown here.
	NewID bool
	// Filesystem leaves the memory out: the sandbox boots afresh.
	Filesystem bool
	// Secrets gives the sandbox the use of the secrets of Key that have the names of
	// those it had. The names are those that the bundle says, whoever has made it.
	Secrets bool
	// Idempotency has the key by which a second import of the same bundle is
	// known, and a digest of how the bundle is to be imported; nil for none.
	Idempotency *store.Idempotency
	Key         string // the id of the API key whose it will be
	Actor       string
	// Named is told the name that the sandbox had, if it had one. It has none here if
	// another sandbox of Key has that name; nil for nobody.
	Named func(name string)
}

// Tell tells Named what a bundle says.
func (r Request) Tell(m bundle.Manifest) {
	if r.Named != nil {
		r.Named(m.Config.Name)
	}
}

// Carrier describes the sandboxes that leave a server, and judges those that come.
type Carrier struct {
	Driver      runtime.Driver
	Layers      *layer.Store
	Templates   *template.Store
	Checkpoints checkpoint.Reader
	Space       *space.Disk
	Limits      quota.Limits
	MaxTimeout  defaults.Ceiling
	// AgentToken returns the secret by which the agent of a sandbox knows this
	// server.
	AgentToken func(sandbox string) string
	// Knows reports whether a sandbox has an id, and CheckMounts refuses volumes that are
	// not here.
	Knows       func(id string) bool
	CheckMounts func(store.Config) error
}

// Describe verifies the checkpoint of a paused sandbox, and says in a manifest what
// a bundle of it holds and needs.
func (c Carrier) Describe(ctx context.Context, sb store.Sandbox) (bundle.Manifest, error) {
	cp := *sb.Record.Checkpoint
	image, err := c.Checkpoints.Verify(ctx, cp)
	if err != nil {
		return bundle.Manifest{}, err
	}
	m := bundle.Manifest{
		Kind: bundle.KindSandbox, ExportedAt: ids.Now(), ID: sb.ID, Generation: sb.Record.Generation, CreatedAt: sb.Record.CreatedAt,
		Settings: sb.Record.Settings, Config: sb.Config, Mode: cp.Mode, Layers: []bundle.Layer{},
		Needs: bundle.Needs{Template: sb.Config.Template, Architecture: goruntime.GOARCH},
	}
	from := From(ctx, c.Layers, cp)
	for n, id := range cp.Stack {
		if cp.Layers[id] == "" {
			return m, errdef.New(errdef.Unsupported, "not_portable", "layer %s was frozen by a version that took no checksums", id).
				WithRemedy("copy the files out of it with drowse cp")
		}
		l := bundle.Layer{Digest: cp.Layers[id]}
		if err := from.Layer(n, l.Measure); err != nil {
			return m, err
		}
		m.Layers = append(m.Layers, l)
	}
	if cp.Mode == lifecycle.Memory {
		if err := c.describeMemory(ctx, &m, cp, image); err != nil {
			return m, err
		}
	}
	return m, m.CheckSize()
}

// describeMemory adds to a manifest what the memory image is and needs.
func (c Carrier) describeMemory(ctx context.Context, m *bundle.Manifest, cp lifecycle.Checkpoint, image layer.Manifest) error {
	t, err := c.Templates.Resolve(m.Config.Template)
	if err != nil {
		return err
	}
	var system layer.System
	if m.Needs, system, err = c.offers(ctx, t); err != nil {
		return err
	}
	m.Needs.Runtime = image.Runtime
	if image.System != nil { // else it is of a version that did not note it
		system = *image.System
	}
	m.Needs.System = system.Digest
	files, err := c.Layers.Whole(image)
	if err != nil {
		return err
	}
	m.Image = &bundle.Image{Files: files}
	m.AgentToken = cp.AgentToken
	if m.AgentToken == "" {
		m.AgentToken = c.AgentToken(m.ID)
	}
	return nil
}

// offers returns what this server has for sandboxes of a template, and what the
// host's own directories are like that it shows.
func (c Carrier) offers(ctx context.Context, t template.Template) (bundle.Needs, layer.System, error) {
	driver := c.Driver.Capabilities()
	system, err := c.Templates.System(ctx, t)
	return bundle.Needs{Template: t.ID, Architecture: goruntime.GOARCH, Runtime: driver.Version, CPU: driver.CPU, System: system.Digest}, system, err
}

// entrySpace is what a file or directory takes besides its data.
const entrySpace = 4096

// Expect judges a manifest: whether the sandbox can live here, and as what.
func (c Carrier) Expect(ctx context.Context, m bundle.Manifest, req Request) (*Arrival, error) {
	a := &Arrival{Manifest: m, Mode: m.Mode, Op: ids.NewOp(), ID: m.ID, Config: m.Config, Actor: req.Actor}
	a.Config.Key, a.Config.Idempotency = req.Key, req.Idempotency
	if !req.Secrets {
		a.Config.Secrets = store.Withhold(a.Config.Secrets)
	}
	if req.NewID {
		a.ID = ids.New()
	}
	if req.Filesystem {
		a.Mode = lifecycle.Filesystem
	}
	if !ids.Valid(a.ID) || m.Generation < 1 {
		return nil, layer.Damaged("it is sandbox %.100q in generation %d", a.ID, m.Generation)
	}
	if err := Check(m); err != nil {
		return nil, err
	}
	if c.Knows(a.ID) {
		return nil, store.ErrSandboxExists(a.ID)
	}
	for n := range m.Layers {
		a.Stack = append(a.Stack, sweep.RuntimeID(a.ID, int64(n+1)))
	}
	if err := c.checkSettings(a); err != nil {
		return nil, err
	}
	t, err := c.templateFor(ctx, a)
	if err != nil {
		return nil, err
	}
	a.Config.Template, a.Config.Alias, a.Config.Image = t.ID, t.Alias, t.Digest()
	return a, c.Space.Check(space.Least + uint64(m.Bytes()) + uint64(m.Entries())*entrySpace)
}

// ExpectTaken judges a sandbox of another server whose checkpoint is to be made again of
// the bundle that a manifest begins: whether the sandbox can live here. It stays as it is
// but for what is here in the place of what was there.
func (c Carrier) ExpectTaken(ctx context.Context, m bundle.Manifest, sb store.Sandbox) (*Arrival, error) {
	return c.expectTaken(ctx, m, sb, func(n int) string { return sweep.RuntimeID(sb.ID, sb.Record.Launches+int64(n+1)) })
}

// ExpectSnapshot does so for a snapshot. This server may have taken it over before, so its
// layers get names that they never had.
func (c Carrier) ExpectSnapshot(ctx context.Context, m bundle.Manifest, snap store.Snapshot) (*Arrival, error) {
	return c.expectTaken(ctx, m, OfSnapshot(snap), func(int) string { return sweep.SnapshotLayerID(snap.ID, ids.New()) })
}

// OfSnapshot returns what a bundle has of a snapshot: a sandbox that sleeps with it.
func OfSnapshot(snap store.Snapshot) store.Sandbox {
	return store.Sandbox{ID: snap.ID, Config: snap.Config, Record: lifecycle.Record{
		State: lifecycle.Paused, Generation: snap.Generation, CreatedAt: snap.CreatedAt, Settings: snap.Settings, Checkpoint: &snap.Checkpoint,
	}}
}

// expectTaken is ExpectTaken with what the n-th layer will be called.
func (c Carrier) expectTaken(ctx context.Context, m bundle.Manifest, sb store.Sandbox, layerID func(n int) string) (*Arrival, error) {
	a := &Arrival{Manifest: m, Mode: sb.Record.Checkpoint.Mode, Op: ids.NewOp(), ID: sb.ID, Config: sb.Config}
	if m.ID != sb.ID || a.Mode == lifecycle.Memory && m.Mode != a.Mode {
		return nil, layer.Damaged("it is of %.100q, with its %.100s", m.ID, m.Mode)
	}
	if err := Check(m); err != nil {
		return nil, err
	}
	for n := range m.Layers {
		a.Stack = append(a.Stack, layerID(n))
	}
	if err := cmp.Or(c.fit(&a.Config.Limits), c.CheckMounts(a.Config)); err != nil {
		return nil, err
	}
	t, err := c.templateFor(ctx, a)
	if err != nil {
		return nil, err
	}
	a.Config.Template, a.Config.Alias, a.Config.Image = t.ID, t.Alias, t.Digest()
	return a, c.Space.Check(space.Least + uint64(m.Bytes()) + uint64(m.Entries())*entrySpace)
}

// Bring receives what the bundle of an arrival has, and calls place when it is complete, while
// its template stays. What place has not given a place is removed.
func (c Carrier) Bring(ctx context.Context, a *Arrival, from *bundle.Reader, removals *insist.Remover, place func() error) (err error) {
	if a.Staging, err = c.Layers.Stage(a.Op); err != nil {
		return err
	}
	defer removals.Insist(a.Staging.Remove, "unfinished copy could not be removed", "sandbox", a.ID)
	defer func() {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = errdef.New(errdef.Unavailable, "disk_full", "the disk became full while the sandbox was received: %w", err)
		}
	}()
	if err := a.Receive(ctx, from); err != nil {
		return err
	}
	_, release, err := c.Templates.Use(a.Config.Template) // it may have been removed meanwhile
	if err != nil {
		return err
	}
	defer release()
	return place()
}

// MayComeLate reports whether a file of the memory image of an arrival may come when its
// sandbox runs already.
func (c Carrier) MayComeLate(a *Arrival, f layer.File) bool {
	return a.Mode == lifecycle.Memory && c.Checkpoints.Late(layer.Manifest{Runtime: a.Manifest.Needs.Runtime, Build: a.Build}, f)
}

// checkSettings holds what the sandbox is to what is allowed here.
func (c Carrier) checkSettings(a *Arrival) error {
	if err := c.MaxTimeout.Check(defaults.OrUnlimited(a.Manifest.Settings.Timeout)); err != nil {
		return err
	}
	if err := fields.Check(a.Config); err != nil {
		return err
	}
	if _, err := lifecycle.Step(lifecycle.Record{State: lifecycle.Pending}, a.Event(), ids.Now()); err != nil {
		return err
	}
	if err := c.fit(&a.Config.Limits); err != nil {
		return err
	}
	return c.CheckMounts(a.Config)
}

// fit holds the limits of a sandbox to what is granted here. A machine with fewer
// processors gives fewer.
func (c Carrier) fit(l *store.Limits) error {
	if most := c.Limits.Most.CPUs; most > 0 {
		l.CPUs = min(l.CPUs, most)
	}
	granted, err := c.Limits.Grant(*l)
	if err != nil {
		return err
	}
	*l = granted
	return nil
}

// templateFor returns the template that the sandbox goes on with: with its memory
// its own one, among all else that this needs; without, the one that has the name
// now, if its own is not here.
func (c Carrier) templateFor(ctx context.Context, a *Arrival) (template.Template, error) {
	needs := a.Manifest.Needs
	t, err := c.Templates.Resolve(needs.Template)
	missing := errdef.Is(err, errdef.NotFound)
	if err != nil && !missing {
		return t, err
	}
	if a.Mode == lifecycle.Filesystem {
		has := bundle.Needs{Architecture: goruntime.GOARCH}
		if lacks := (bundle.Needs{Architecture: needs.Architecture}).Missing(has); lacks != "" {
			return t, cannotRun(a.Manifest, lacks)
		}
		if missing {
			return TemplateFor(c.Templates, a.Manifest)
		}
		return t, nil
	}
	has, system, err := c.offers(ctx, t)
	if err != nil {
		return t, err
	}
	a.System = system
	if build, ok := c.Checkpoints.BuildFor(needs.Runtime); ok {
		a.Build, has.Runtime = build, needs.Runtime
	}
	if lacks := needs.Missing(has); lacks != "" {
		return t, cannotRun(a.Manifest, lacks)
	}
	return t, nil
}

func cannotRun(m bundle.Manifest, lacks string) error {
	return errdef.New(errdef.Unsupported, "cannot_run_here", "%s cannot run here: %s", called(m.ID), lacks)
}

// called returns what has an id, for people.
func called(id string) string {
	if ids.Valid(id) {
		return "sandbox " + id
	}
	return "snapshot " + id
}
