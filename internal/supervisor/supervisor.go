// Package supervisor turns the decisions of package lifecycle into action. It
// is the only writer of sandbox records, and each record has one owner: a box,
// whose lock orders everything that happens to that sandbox.
//
// Every change goes the same way: Step decides, the store commits record and
// log entries in one transaction, and only then are the effects carried out,
// each in a goroutine that reports back with another event. What a caller is
// told has been committed before. Access is given as leases on a committed
// generation, and nobody sees a phase in between.
//
// What needs no such order is in the packages below this one, which know nothing
// of it. Preview links, volumes and the host's fitness are parts of a Supervisor.
//
// The package knows nothing of HTTP.
package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/capacity"
	"github.com/drowse-dev/drowse/internal/supervisor/capture"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/commits"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/disklimit"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/supervisor/fetch"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/fitness"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/merging"
	"github.com/drowse-dev/drowse/internal/supervisor/metrics"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
	"github.com/drowse-dev/drowse/internal/supervisor/once"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/outside"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
	"github.com/drowse-dev/drowse/internal/supervisor/putoff"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/remains"
	"github.com/drowse-dev/drowse/internal/supervisor/replication"
	"github.com/drowse-dev/drowse/internal/supervisor/services"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/supervisor/takeover"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
	"github.com/drowse-dev/drowse/internal/supervisor/tenure"
	"github.com/drowse-dev/drowse/internal/supervisor/timers"
	"github.com/drowse-dev/drowse/internal/supervisor/tokens"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/supervisor/volumes"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/trace"
	"github.com/drowse-dev/drowse/internal/volume"
)

// Options is what a supervisor works with.
type Options struct {
	Store     store.Store
	Layers    *layer.Store
	Templates *template.Store
	Volumes   *volume.Store
	Builds    *builds.Store // where the driver keeps programs; nil where it keeps none
	Driver    runtime.Driver
	RunDir    string // for mount points; emptied of strangers at start
	Ballast   string // a file to give up when the disk is full; empty for none
	// BackupNeeds reports whether a backup that is being made may need what is at a
	// path, or anything if that is empty. Nil is for no backups, ever.
	BackupNeeds func(path string) bool
	Log         *slog.Logger
	// Limits are those of a sandbox that asks for none, MostLimits the largest
	// that are granted; zero in MostLimits is no bound.
	Limits     store.Limits
	MostLimits store.Limits
	// VolumeDiskMiB is what a volume may hold that has no limit of its own; 0 for
	// no limit.
	VolumeDiskMiB int
	// MaxTimeout is the largest soft timeout that is granted; 0 for no bound.
	MaxTimeout time.Duration
	// WakeTimeout is how long an access waits for a sandbox to wake, and WakeQueue
	// how many may wait for one, and how many for its services to be ready.
	WakeTimeout time.Duration
	WakeQueue   int
	// Drain is how long an automatic pause waits for requests in flight.
	Drain    time.Duration
	Defaults Defaults
	// Images says how memory images are written and read.
	Images checkpoint.Ways
	// MaxRunning bounds how many sandboxes run at once; 0 for no bound.
	MaxRunning int
	// KeyLimits returns what the sandboxes that an API key has made may take
	// together. Nil bounds nothing.
	KeyLimits func(key string) store.KeyLimits
	// KeyLives reports whether there still is an API key. Nil ends none.
	KeyLives func(key string) bool
	// TrialTemplate is what Try starts a sandbox of.
	TrialTemplate string
	World         outside.World // its Internet, Secrets and Roots
	// SampleEvery is how often sandboxes that run are measured; 0 for never.
	SampleEvery time.Duration
	// DiskEvery is how often the disk is looked at, for sandboxes with a limit; 0
	// for never.
	DiskEvery time.Duration
	// ActivityEvery is how often it is looked whether the last activity of a sandbox
	// is to be stored; 0 for never.
	ActivityEvery time.Duration
	// ConfineEvery is how often it is looked whether a key takes nearly all processors;
	// 0 for never.
	ConfineEvery time.Duration
	// LogDir is where what the agents of sandboxes log is kept; empty for nowhere.
	LogDir string
	// Traced is told of each operation that ends, and must not wait; nil for nobody.
	Traced func(sandbox string, op trace.Operation)
	// Lease is what this process must have to serve; nil for nothing. OnFenced is called
	// once if another process has claimed the server, and must not wait; nil for nobody.
	Lease    tenure.Lease
	OnFenced func()
	// Blobs is where copies of checkpoints are kept, below a prefix that no other database
	// has; nil for nowhere. Replicated says that a pause which is asked for is answered when
	// its copy is there.
	Blobs      blobs.Store
	BlobPrefix string
	Replicated bool
	// LightSleep says how long frozen runtimes of paused sandboxes stay.
	LightSleep lightsleep.Options
}

// Supervisor owns all sandboxes of one state directory.
type Supervisor struct {
	*preview.Links
	*volumes.Room
	*snapshots.Shelf
	*calls.Reception
	*templates.Catalog
	*fitness.Watch
	*events.Log
	*names.Book
	*services.Board
	*takeover.Taker
	capacity.Gauge
	tokens.Tokens

	o        Options
	log      *slog.Logger
	timers   *timers.Timers[*box]
	guests   agentclient.Host
	launcher *launch.Launcher
	captures capture.Maker
	remains  *remains.Remover
	commits  *commits.Committer
	carrier  moving.Carrier
	replicas *replication.Replicator
	merger   merging.Merger
	guard    *disklimit.Guard

	tenure   *tenure.Tenure
	ctx      context.Context // ends the work of effects
	stop     context.CancelFunc
	work     insist.Work
	removals *insist.Remover
	putOff   *putoff.Queue

	outside     outside.World
	metrics     *metrics.Metrics
	fleet       usage.Fleet
	slots       quota.Slots
	resharing   *quota.Changes
	ledger      *cost.Ledger
	held        *held.Room // see CountHeld
	light       *lightsleep.Room
	checkpoints checkpoint.Reader
	space       *space.Disk

	mu    sync.RWMutex
	boxes map[string]*box

	creates *once.Keys[*box] // and imports, by their idempotency keys
}

// New recovers every sandbox in the store and returns when all of them are in
// a legal state, or when ctx ends.
func New(ctx context.Context, o Options) (*Supervisor, error) {
	secret, err := o.Store.Secret(ctx, "tokens")
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	s := &Supervisor{
		o: o, log: o.Log, boxes: map[string]*box{}, outside: o.World,
		resharing: quota.NewChanges(), tenure: tenure.New(o.Lease, o.OnFenced), creates: newCreates(),
		Book: names.New(), Tokens: tokens.New(secret), Log: events.New(o.Store), ledger: &cost.Ledger{}, held: held.New(),
	}
	if m, ok := o.Store.(meteredStore); ok {
		m.Meter(s.ledger.Wrote)
	}
	s.Links = preview.New(s, func(id string) string { return s.Derive("preview", id) }, o.KeyLives)
	if o.LogDir != "" {
		if err := os.MkdirAll(o.LogDir, 0o700); err != nil {
			return nil, fmt.Errorf("start supervisor: %w", err)
		}
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, s.stop)() // only while recovering
	s.Watch = fitness.New(fitness.Options{Trial: s.trial, Log: o.Log, Go: s.goOn})
	s.space = space.New(o.RunDir, o.Ballast)
	s.space.Restore()
	s.removals = insist.New(s.ctx, o.Log)
	s.putOff = putoff.New(putoff.Options{Needs: o.BackupNeeds, Go: s.goOn, Insist: s.removals.Insist, Log: o.Log})
	s.furnish()
	s.metrics = metrics.New(s.count)
	s.outside.Room, s.outside.Refused, s.outside.Log = egress.NewRoom(), s.metrics.Refused, o.Log
	s.light = lightsleep.New(o.LightSleep)
	s.slots.Bound(o.MaxRunning, o.KeyLimits)
	s.timers = timers.New((*box).fire)
	s.Catalog = templates.New(templates.Options{Store: o.Templates, Space: s.space, Limits: o.Limits, PutOff: s.putOff, Log: o.Log, Users: func(id string) []string {
		return s.thoseWith(func(c store.Config) bool { return c.Template == id })
	}})
	s.Gauge = capacity.New(capacity.Options{Driver: o.Driver, Slots: &s.slots, Memory: s.light, Disk: s.space, Templates: s.Catalog})
	s.Room, err = volumes.Open(ctx, s.volumeOptions())
	if err == nil {
		s.replicas, err = replication.New(ctx, replication.Options{Blobs: o.Blobs, Prefix: o.BlobPrefix, Server: o.Store.Self(), Store: o.Store, Log: o.Log, Now: ids.Now, Measured: s.metrics.Add, Export: func(ctx context.Context, id string) (*Export, error) { return exportCopy(ctx, s, id) }})
	}
	s.Taker = newTaker(s)
	if err == nil {
		err = s.recover(ctx)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("recover sandboxes: %w", err)
	}
	s.work.Go(func() { s.timers.Run(s.ctx) })
	s.work.Go(func() { s.tenure.Follow(s.ctx, func(why error) { resign(s, why) }) })
	s.work.Go(func() { s.Shelf.Expire(s.ctx) })
	s.work.Go(s.share)
	s.work.Go(func() { s.replicas.Run(s.ctx) })
	s.work.Go(func() { s.light.Run(s.ctx) })
	if o.ConfineEvery > 0 {
		s.work.Go(s.confine)
	}
	if o.DiskEvery > 0 {
		s.work.Go(func() { s.guard.Run(s.ctx, o.DiskEvery) })
		s.work.Go(func() { s.Survey(s.ctx, o.DiskEvery) })
	}
	if o.ActivityEvery > 0 {
		s.work.Go(func() { s.keepActivity(o.ActivityEvery) })
	}
	if o.SampleEvery > 0 {
		s.work.Go(func() { s.sample(o.SampleEvery) })
	}
	return s, nil
}

// furnish makes the rooms that work on the host.
func (s *Supervisor) furnish() {
	o := s.o
	s.checkpoints = checkpoint.Reader{Layers: o.Layers, Templates: o.Templates, Driver: o.Driver, Ledger: s.ledger, Fetches: fetch.New(s.ctx, o.Layers, s.space, o.Log), Log: o.Log, Ways: o.Images}
	s.guests = agentclient.Host{Secret: s.AgentToken, Token: s.EnvdToken, Lent: s.outside.Lent, Log: o.Log}
	s.Board = services.New(s.ctx, s, s.guests, o.WakeQueue, func(id string) (runtime.Instance, func(lifecycle.Entry) error) { return servedBy(s, id) })
	s.launcher = launch.New(launch.Options{
		Driver: o.Driver, Layers: o.Layers, Templates: o.Templates, Checkpoints: s.checkpoints, Guests: s.guests,
		RunDir: o.RunDir, Mounts: s.mountsOf, Sharers: s.slots.Sharers, Log: o.Log,
	})
	s.merger = merging.New(o.Layers, func() error { return s.space.Check(space.Least) })
	s.captures = capture.New(capture.Options{Layers: o.Layers, Checkpoints: s.checkpoints, Guests: s.guests, Space: s.space, Ledger: s.ledger, Log: o.Log})
	s.carrier = moving.Carrier{
		Driver: o.Driver, Layers: o.Layers, Templates: o.Templates, Checkpoints: s.checkpoints, Space: s.space,
		Limits: s.limits(), MaxTimeout: defaults.Ceiling(o.MaxTimeout), AgentToken: s.AgentToken, Knows: s.Knows, CheckMounts: func(c store.Config) error { return s.CheckMounts(c) },
	}
	s.Reception = &calls.Reception{Find: s.asked, Each: s.eachAsked, Ceiling: defaults.Ceiling(o.MaxTimeout), Pauses: s.launcher.Turns(), Answers: s.guests.Answers, Pace: calls.NewPace(), Log: o.Log}
	if o.Replicated {
		s.Reception.Kept = func(ctx context.Context, id string) error { return s.replicas.Wait(ctx, id) }
	}
	s.guard = disklimit.NewGuard(disklimit.Options{
		Layers: o.Layers, Space: s.space, Remove: o.Driver.Remove, Go: s.goOn, Log: o.Log,
		LimitVolume: func(ctx context.Context, id string) string { return s.Limit(ctx, id) },
		EachRunning: func(f func(*disklimit.Tenant)) {
			s.each(func(b *box) {
				if b.snapshot().Record.State == lifecycle.Running {
					f(b.tenant)
				}
			})
		},
	})
	s.commits = newCommitter(s)
	s.remains = remains.New(o.Driver, o.Layers, o.RunDir, s)
}

// goOn runs work in the background until the supervisor stops.
func (s *Supervisor) goOn(f func(context.Context)) { s.work.Go(func() { f(s.ctx) }) }

// sleep returns false at once when the supervisor stops.
func (s *Supervisor) sleep(d time.Duration) bool { return insist.Sleep(s.ctx, d) }

// Stop ends the supervisor's work in order: operations in flight end in their safer neighbour,
// running sandboxes go on by themselves. It waits for that until ctx ends.
func (s *Supervisor) Stop(ctx context.Context) error {
	if err := s.storeAllActivity(ctx); err != nil {
		s.log.Warn("last activity could not be stored", "err", err)
	}
	s.stop()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		s.removals.Wait()
		s.checkpoints.Fetches.Stopped()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop supervisor: operations still in flight: %w", ctx.Err())
	}
}

// Check returns an error if the supervisor could serve nobody now, because its
// store does not answer. If it hangs itself, so does Check.
func (s *Supervisor) Check(ctx context.Context) error {
	if _, err := s.LastEvent(ctx); err != nil {
		return fmt.Errorf("check supervisor: %w", err)
	}
	s.each(func(b *box) { b.snapshot() })
	return nil
}

func (s *Supervisor) box(id string) (*box, error) {
	if err := s.tenure.Over(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, ok := s.boxes[id]
	if !ok {
		return nil, outcome.NotFound(id)
	}
	if why := b.disowned.Load(); why != nil {
		return nil, *why
	}
	return b, nil
}

// Capabilities returns what the runtimes of this server can do.
func (s *Supervisor) Capabilities() runtime.Capabilities { return s.o.Driver.Capabilities() }

func (s *Supervisor) limits() quota.Limits {
	return quota.Limits{Default: s.o.Limits, Most: s.o.MostLimits}
}

// KeyUse returns what the sandboxes of a key take together now.
func (s *Supervisor) KeyUse(key string) store.Use { return s.slots.Of(key) }

// Create makes a sandbox and returns when it serves. With an idempotency key that
// has made one, it returns that one instead.
func (s *Supervisor) Create(ctx context.Context, req CreateRequest) (store.Sandbox, error) {
	if req.Config.Idempotency != nil {
		return s.createOnce(ctx, req)
	}
	b, ended, _, err := s.beginCreate(req)
	if err != nil {
		return store.Sandbox{}, err
	}
	return b.created(ctx, ended)
}

// beginCreate commits a new sandbox, and returns what tells when it serves, or when it is known what
// has become of one that failed.
func (s *Supervisor) beginCreate(req CreateRequest) (b *box, ended <-chan calls.Ending, known <-chan struct{}, err error) {
	begun, id := lifecycle.CreateRequested{Meta: calls.By(ids.NewOp(), req.Actor)}, ids.New()
	if ref := req.SnapshotRef(); ref != "" {
		snap, err := s.ByID(ref)
		if err == nil {
			req.Config, err = snapshots.Configure(snap, req.Config)
		}
		if err != nil {
			return nil, nil, nil, err
		}
		begun.Checkpoint, begun.Detail = &snap.Checkpoint, "from snapshot "+snapshots.Describe(snap)+" of "+snap.Sandbox
		req.Template = snap.Config.Template
	}
	if err := fields.CheckTemplateName(req.Template); err != nil {
		return nil, nil, nil, err
	}
	t, release, err := s.o.Templates.Use(req.Template)
	if err != nil {
		return nil, nil, nil, err
	}
	defer release()
	cfg, err := s.configOf(req, t)
	if err != nil {
		return nil, nil, nil, err
	}
	req.Settings.Serves = service.Resumes(cfg.Services)
	begun.Settings = req.Settings
	if !req.inherit {
		begun.Settings, cfg.FromServer = s.o.Defaults.Fill(req.Settings, req.Said...)
	}
	made := newBox(s, store.Sandbox{ID: id, Config: cfg, Record: lifecycle.Record{State: lifecycle.Pending}})
	if err := s.enlist(made); err != nil {
		return nil, nil, nil, err
	}
	if _, ended, err = made.request(req.first(begun)); err != nil {
		return nil, nil, unmade(made, err, false, func() {}), fmt.Errorf("create sandbox: %w", err)
	}
	s.Note(made.snapshot())
	return made, ended, nil, nil
}

// unmade forgets a sandbox whose first commit failed, and calls never. If it may be in the
// store nevertheless, it does so once it is known that it is not; what is returned is closed then. What is
// there ends, unless it is to be kept.
func unmade(b *box, err error, keep bool, never func()) <-chan struct{} {
	s, known := b.s, make(chan struct{})
	if !store.IsUnlearned(err) {
		s.forget(b.id)
		never()
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.last.Drop(); c != nil {
		b.sb = c.Sandbox
		b.sb.Rev = 1
	}
	s.goOn(func(context.Context) {
		defer close(known)
		was, is := calls.Learn(asked{b}, keep, func() bool { return s.sleep(storeRetry) })
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case !is || b.disowned.Load() != nil: // the next start knows, or who has it
		case was:
			s.Note(b.sb)
			s.creates.Restore(b.sb, b)
			s.replicas.Follow(lifecycle.Record{}, b.sb)
			b.arm()
		default:
			_ = s.slots.Move(b.sb, store.Sandbox{Config: b.sb.Config})
			b.sb.Record = lifecycle.Record{} // it holds nothing
			s.forget(b.id)
			never()
		}
	})
	return known
}

// first returns the first event of a sandbox, of which begun would start it.
func (req CreateRequest) first(begun lifecycle.CreateRequested) lifecycle.Event {
	if !req.asleep {
		return begun
	}
	return lifecycle.ImportRequested{Meta: begun.Meta, Settings: begun.Settings, Checkpoint: *begun.Checkpoint, Generation: 1, CreatedAt: ids.Now()}
}

// Judge returns why a create would be refused by what it asks for, whatever it starts from.
func Judge(s *Supervisor, req CreateRequest) error {
	_, err := s.configOf(req, template.Template{})
	return err
}

// configOf judges what is asked of a new sandbox, and fills in the rest.
func (s *Supervisor) configOf(req CreateRequest, t template.Template) (store.Config, error) {
	if err := fields.Check(req.Config); err != nil {
		return store.Config{}, err
	}
	if err := s.checkTimeout(defaults.OrUnlimited(req.Settings.Timeout)); err != nil {
		return store.Config{}, err
	}
	cfg, err := s.outside.Settle(req.Config)
	if err != nil {
		return store.Config{}, err
	}
	if err := s.space.Check(space.Least); err != nil {
		return store.Config{}, err
	}
	cfg.Template, cfg.Alias, cfg.Image = t.ID, t.Alias, t.Digest()
	granted, err := s.limits().Grant(cfg.Limits)
	cfg.Limits = granted
	return cfg, err
}

// created waits for the end of a create, if there is something to wait for. The
// sandbox lives on if the caller goes away: it has a timeout.
func (b *box) created(ctx context.Context, ended <-chan calls.Ending) (store.Sandbox, error) {
	if ended == nil { // it sleeps
		return b.view(), nil
	}
	end, err := calls.Wait(ctx, ended)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("create sandbox %s: %w", b.id, err)
	}
	sb := calls.As(asked{b}, end.Record)
	if end.Type != lifecycle.EntryRunning {
		return store.Sandbox{}, outcome.NotCreated(sb, b.unfitNow())
	}
	return sb, nil
}

// Metrics returns what the supervisor counts.
func (s *Supervisor) Metrics() prometheus.Collector { return s.metrics }

// each calls f for every box, without a lock held.
func (s *Supervisor) each(f func(*box)) {
	s.mu.RLock()
	boxes := slices.Collect(maps.Values(s.boxes))
	s.mu.RUnlock()
	for _, b := range boxes {
		if b.disowned.Load() == nil {
			f(b)
		}
	}
}

func (s *Supervisor) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, id)
}

// enlist makes a sandbox known, with the volumes that it asks for by their names.
func (s *Supervisor) enlist(b *box) error {
	return s.Claim(b.sb.Config.Volumes, func(mounts []store.VolumeMount) error {
		b.sb.Config.Volumes = mounts
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.boxes[b.id] != nil {
			return store.ErrSandboxExists(b.id)
		}
		s.boxes[b.id] = b
		return nil
	})
}
