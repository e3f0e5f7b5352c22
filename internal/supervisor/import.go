package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	goruntime "runtime"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/template"
)

// ImportRequest says how a bundle becomes a sandbox.
type ImportRequest struct {
	// NewID gives the sandbox another id. Otherwise it keeps its own, which must
	// be unknown here.
	NewID bool
	// Filesystem leaves the memory out: the sandbox boots afresh.
	Filesystem bool
	// Idempotency has the key by which a second import of the same bundle is
	// known, and a digest of how the bundle is to be imported; nil for none.
	Idempotency *store.Idempotency
	Key         string // the id of the API key whose it will be
	Actor       string
}

// Import makes a paused sandbox of a bundle, and returns when that is
// committed. Until then nothing of it is seen, and after an error nothing is
// left of it. What cannot run here is refused before its contents are read. With
// an idempotency key that has made a sandbox of the same bundle, Import returns
// that one, also before the contents are read.
func (s *Supervisor) Import(ctx context.Context, r io.Reader, req ImportRequest) (store.Sandbox, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	sb, err := s.importFrom(ctx, s.space.Within(ctx, r), req)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = errdef.New(errdef.Unavailable, "disk_full", "the disk became full during the import: %w", err)
	}
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("import sandbox: %w", err)
	}
	return sb, nil
}

func (s *Supervisor) importFrom(ctx context.Context, r io.Reader, req ImportRequest) (store.Sandbox, error) {
	from, err := bundle.NewReader(r)
	if err != nil {
		return store.Sandbox{}, err
	}
	if req.Idempotency == nil {
		b, err := s.receive(ctx, from, req)
		if err != nil {
			return store.Sandbox{}, err
		}
		return b.view(), nil
	}
	as := *req.Idempotency
	as.Request, as.At = as.Request+from.Digest, now()
	req.Idempotency = &as
	b, fresh, err := s.creates.Do(ctx, store.Config{Key: req.Key, Idempotency: &as}, func() (*box, error) { return s.receive(ctx, from, req) })
	switch {
	case err != nil:
		return store.Sandbox{}, err
	case fresh:
		return b.view(), nil
	}
	return b.createdBefore(ctx)
}

// receive takes what is in a bundle, and commits the sandbox.
func (s *Supervisor) receive(ctx context.Context, from *bundle.Reader, req ImportRequest) (*box, error) {
	if err := s.space.Check(space.Least); err != nil {
		return nil, err
	}
	a, err := s.expect(ctx, from.Manifest, req)
	if err != nil {
		return nil, err
	}
	if a.Staging, err = s.o.Layers.Stage(a.op); err != nil {
		return nil, err
	}
	defer s.insist(a.Staging.Remove, "unfinished import could not be removed", "sandbox", a.id)
	if err := a.Receive(ctx, a.op, from); err != nil {
		return nil, err
	}
	return s.admit(a)
}

// arrival is a sandbox that is being imported.
type arrival struct {
	moving.Arrival
	op, id string
	config store.Config
	actor  string
}

// sandboxID is what newID makes.
var sandboxID = regexp.MustCompile(`^i[0-9a-z]{20}$`)

// expect judges a manifest: whether the sandbox can live here, and as what.
func (s *Supervisor) expect(ctx context.Context, m bundle.Manifest, req ImportRequest) (*arrival, error) {
	a := &arrival{Arrival: moving.Arrival{Manifest: m, Mode: m.Mode}, op: newOp(), id: m.ID, config: m.Config, actor: req.Actor}
	a.config.Key, a.config.Idempotency = req.Key, req.Idempotency
	if req.NewID {
		a.id = newID()
	}
	if req.Filesystem {
		a.Mode = lifecycle.Filesystem
	}
	if !sandboxID.MatchString(a.id) || m.Generation < 1 {
		return nil, layer.Damaged("it is sandbox %.100q in generation %d", a.id, m.Generation)
	}
	if err := moving.Check(m); err != nil {
		return nil, err
	}
	if _, err := s.box(a.id); err == nil {
		return nil, errExists(a.id)
	}
	for n := range m.Layers {
		a.Stack = append(a.Stack, runtimeID(a.id, int64(n+1)))
	}
	if err := s.checkTimeout(orUnlimited(m.Settings.Timeout)); err != nil {
		return nil, err
	}
	if err := fields.Check(a.config); err != nil {
		return nil, err
	}
	if _, err := lifecycle.Step(lifecycle.Record{State: lifecycle.Pending}, a.event(), now()); err != nil {
		return nil, err
	}
	if err := s.fit(&a.config.Limits); err != nil {
		return nil, err
	}
	if err := s.CheckMounts(a.config); err != nil {
		return nil, err
	}
	t, err := s.templateFor(ctx, a)
	if err != nil {
		return nil, err
	}
	a.config.Template, a.config.Alias, a.config.Image = t.ID, t.Alias, t.Digest()
	return a, s.space.Check(space.Least + uint64(m.Bytes()) + uint64(m.Entries())*entrySpace)
}

// entrySpace is what a file or directory takes besides its data.
const entrySpace = 4096

// fit holds the limits of a sandbox to what is granted here. A machine with
// fewer processors gives fewer.
func (s *Supervisor) fit(l *store.Limits) error {
	if most := s.o.MostLimits.CPUs; most > 0 {
		l.CPUs = min(l.CPUs, most)
	}
	granted, err := s.limits().Grant(*l)
	if err != nil {
		return err
	}
	*l = granted
	return nil
}

// templateFor returns the template that the sandbox goes on with: with its
// memory its own one, among all else that this needs; without, the one that has
// the name now, if its own is not here.
func (s *Supervisor) templateFor(ctx context.Context, a *arrival) (template.Template, error) {
	needs := a.Manifest.Needs
	t, err := s.o.Templates.Resolve(needs.Template)
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
			return moving.TemplateFor(s.o.Templates, a.Manifest)
		}
		return t, nil
	}
	has, system, err := s.offers(ctx, t)
	if err != nil {
		return t, err
	}
	a.System = system
	if build, ok := s.checkpoints.BuildFor(needs.Runtime); ok {
		a.Build, has.Runtime = build, needs.Runtime
	}
	if lacks := needs.Missing(has); lacks != "" {
		return t, cannotRun(a.Manifest, lacks)
	}
	return t, nil
}

func cannotRun(m bundle.Manifest, lacks string) error {
	return errdef.New(errdef.Unsupported, "cannot_run_here", "sandbox %s cannot run here: %s", m.ID, lacks)
}

func (a *arrival) event() lifecycle.ImportRequested {
	return lifecycle.ImportRequested{
		Meta: call(a.op, a.actor), Settings: a.Manifest.Settings, Checkpoint: a.Checkpoint,
		Generation: a.Manifest.Generation, Launches: int64(len(a.Stack)), CreatedAt: a.Manifest.CreatedAt,
	}
}

// admit gives what was received its place, and commits the sandbox.
func (s *Supervisor) admit(a *arrival) (*box, error) {
	_, release, err := s.o.Templates.Use(a.config.Template) // it may have been removed meanwhile
	if err != nil {
		return nil, err
	}
	defer release()
	b := newBox(s, store.Sandbox{ID: a.id, Config: a.config, Record: lifecycle.Record{State: lifecycle.Pending}})
	if err := s.enlist(b); err != nil { // it has become known since it was looked for, or a volume has gone
		return nil, err
	}
	image := ""
	if a.Mode == lifecycle.Memory {
		image = a.Checkpoint.ID
	}
	err = a.Staging.Place(a.Stack, image)
	if err == nil {
		_, err = b.apply(a.event())
	}
	if err != nil {
		s.insist(func() error { return a.remove(s.o.Layers) }, "failed import could not be removed", "sandbox", a.id)
		s.forget(a.id)
		return nil, err
	}
	return b, nil
}

func (a *arrival) remove(from *layer.Store) error {
	errs := []error{from.RemoveImage(a.Checkpoint.ID)}
	for _, id := range a.Stack {
		errs = append(errs, from.RemoveLayer(id))
	}
	return errors.Join(errs...)
}
