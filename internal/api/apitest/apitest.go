// Package apitest is what the tests of the dialects share: a supervisor in
// memory, driven by the lifecycle's own table, and an API key.
package apitest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// Epoch is when every test begins.
var Epoch = time.Date(2026, 9, 1, 12, 0, 0, 123456000, time.UTC)

// GoodKey is an admin key; KeyID is its id and Actor what a call with it is
// recorded as.
const (
	GoodKey = "e2b_00112233445566778899aabbccddeeff00112233"
	KeyID   = "b6f0c1de-0000-4000-8000-000000000001"
	Actor   = "key:" + KeyID
)

// The keys of the other roles; [KeyIDOf] has their ids.
const (
	FullKey = "e2b_f000000000000000000000000000000000000000"
	OwnKey  = "e2b_0a00000000000000000000000000000000000000"
	ReadKey = "e2b_0b00000000000000000000000000000000000000"
)

var ring = map[string]store.Key{
	GoodKey: {ID: KeyID, Role: store.RoleAdmin},
	FullKey: {ID: "b6f0c1de-0000-4000-8000-000000000002", Role: store.RoleFull},
	OwnKey:  {ID: "b6f0c1de-0000-4000-8000-000000000003", Role: store.RoleOwn},
	ReadKey: {ID: "b6f0c1de-0000-4000-8000-000000000004", Role: store.RoleRead},
}

// KeyIDOf returns the id of a key.
func KeyIDOf(text string) string { return ring[text].ID }

// Keyring knows a key of each role.
type Keyring struct{}

// Check returns the key that text is.
func (Keyring) Check(text string) (store.Key, error) {
	key, known := ring[text]
	if !known {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "unknown API key")
	}
	return key, nil
}

// Current returns the key of an id.
func (Keyring) Current(id string) (store.Key, error) {
	for _, key := range ring {
		if key.ID == id {
			return key, nil
		}
	}
	return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "unknown API key")
}

// AddTo stores the keys, for what belongs to them.
func (Keyring) AddTo(ctx context.Context, st store.Store) error {
	for text, key := range ring {
		key.Name, key.Hash, key.CreatedAt = "the "+string(key.Role)+" key", sha256.Sum256([]byte(text)), Epoch
		if err := st.AddKey(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// Take lets every call through.
func (Keyring) Take(string) error { return nil }

// Bind returns a context that ends with ctx: these keys stay good.
func (Keyring) Bind(ctx context.Context, _ string) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

// Fake is a supervisor in memory. Every operation ends before the call
// returns, and time stands still unless a test moves it. The exported fields
// are for tests that do nothing concurrently; the methods may be called by any
// goroutine.
type Fake struct {
	*EventLog

	mu  sync.Mutex
	seq int
	log []store.Event
	// told is how many events there were, of sandboxes that are forgotten too.
	told int64
	// reached is when a sandbox had the last request that counts.
	reached map[string]time.Time
	// snapshots are those that sandboxes can start from; nil for any.
	snapshots *Snapshots

	volumes []store.Volume
	// volumeUses are bytes by volume; nil for one of which that is not known.
	volumeUses map[string]*int64
	// changed is closed and replaced at every commit.
	changed chan struct{}

	Now       time.Time
	Sandboxes map[string]store.Sandbox
	Held      map[string][]awake.Hold // observed holds by sandbox
	Blind     map[string]awake.Blindness
	Light     map[string]bool // whose runtime stands by while memory is kept asleep
	Logged    map[string][]journal.Line
	Measured  map[string][]usage.Sample
	Ran       []usage.FleetSample
	Limit     time.Duration // the ceiling of timeouts; 0 for none
	Defaults  supervisor.Defaults
	Created   []supervisor.CreateRequest
	Pauses    []supervisor.PauseRequest
	Actors    []string
	Err       error // returned by every call if set
	Panics    any   // panicked with by every call if set
}

// NewFake returns a fake without sandboxes, at Epoch.
func NewFake() *Fake {
	f := &Fake{
		Now: Epoch, Sandboxes: map[string]store.Sandbox{}, Held: map[string][]awake.Hold{},
		Blind: map[string]awake.Blindness{}, Light: map[string]bool{},
		changed: make(chan struct{}), reached: map[string]time.Time{}, volumeUses: map[string]*int64{},
	}
	f.EventLog = &EventLog{f}
	return f
}

// enter begins a call: the caller must unlock mu, also after an error.
func (f *Fake) enter() error {
	f.mu.Lock()
	if f.Panics != nil {
		p := f.Panics
		f.mu.Unlock()
		panic(p)
	}
	return f.Err
}

func (f *Fake) nextID() string {
	f.seq++
	return fmt.Sprintf("op%d", f.seq)
}

func (f *Fake) meta(actor string) lifecycle.Meta {
	f.Actors = append(f.Actors, actor)
	return lifecycle.Meta{Op: f.nextID(), Actor: actor, Cause: lifecycle.CauseCall}
}

// commit records a change and tells those who wait.
func (f *Fake) commit(sb store.Sandbox, entries []lifecycle.Entry) {
	f.Sandboxes[sb.ID] = sb
	for _, e := range entries {
		f.told++
		f.log = append(f.log, store.Event{Seq: f.told, Sandbox: sb.ID, Key: sb.Config.Key, Entry: e})
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// step applies an event and carries out its effects at once.
func (f *Fake) step(sb *store.Sandbox, ev lifecycle.Event) error {
	res, err := lifecycle.Step(sb.Record, ev, f.Now)
	if err != nil {
		return err
	}
	mode := lifecycle.Memory
	if op := res.Record.Op; op != nil && op.Mode != "" {
		mode = op.Mode
	}
	sb.Record = res.Record
	if sb.Record.State == lifecycle.Terminated && sb.Record.Op == nil {
		*sb = fields.Remembered(*sb)
	}
	f.commit(*sb, res.Entries)
	for _, e := range res.Effects {
		var observed lifecycle.Event
		switch e.Kind {
		case lifecycle.StartRuntime:
			observed = lifecycle.StartSucceeded{Op: e.Op}
		case lifecycle.CaptureRuntime:
			observed = lifecycle.CaptureReady{Op: e.Op, Checkpoint: lifecycle.Checkpoint{ID: e.Op, Mode: mode, Bytes: 4096}, Freed: 1 << 20}
		case lifecycle.CaptureSnapshot:
			observed = lifecycle.SnapshotTaken{Op: e.Op, Bytes: 1 << 20}
		case lifecycle.ReleaseAll:
			observed = lifecycle.ReleaseDone{Op: e.Op}
		case lifecycle.Forget:
			delete(f.Sandboxes, sb.ID)
			f.log = slices.DeleteFunc(f.log, func(has store.Event) bool { return has.Sandbox == sb.ID })
			continue
		default:
			continue
		}
		if err := f.step(sb, observed); err != nil {
			return err
		}
	}
	return nil
}

// note commits a change of what is beside the record.
func note(f *Fake, sb store.Sandbox, actor, detail string) {
	at := sb.Record.Situation()
	f.commit(sb, []lifecycle.Entry{{
		Type: lifecycle.EntryUpdated, At: f.Now, Generation: sb.Record.Generation, From: at, To: at, Actor: actor, Detail: detail,
	}})
}

func unknown(id string) error {
	return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", id)
}

func (f *Fake) find(id string) (store.Sandbox, error) {
	sb, ok := f.Sandboxes[id]
	if !ok {
		return sb, unknown(id)
	}
	f.expire(&sb)
	if _, ok = f.Sandboxes[id]; !ok {
		return store.Sandbox{}, unknown(id)
	}
	return sb, nil
}

// change applies an event to a sandbox by id, after what has become due.
func (f *Fake) change(id string, ev lifecycle.Event) (store.Sandbox, error) {
	sb, err := f.find(id)
	if err != nil {
		return sb, err
	}
	err = f.step(&sb, ev)
	return sb, err
}

// activity is what goes on in a sandbox: what a test says, leases, and requests, each
// of which ended when it came.
func (f *Fake) activity(id string) lifecycle.Activity {
	act := lifecycle.Activity{Busy: f.Blind[id].Defers, Last: f.reached[id], Requests: lifecycle.Work{Busy: f.Blind[id].Defers, Last: f.reached[id]}}
	r := f.Sandboxes[id].Record
	for _, h := range holdsOf(f, id) {
		switch {
		case h.Counts && r.Settings.MeasuresWork():
			act.Busy, act.Recheck = true, earlier(act.Recheck, h.Until)
			act.Requests.Busy = act.Requests.Busy || h.Kind != awake.HoldProcess
		case !h.Counts && h.Until.After(act.Last):
			act.Last = h.Until
			if h.Kind != awake.HoldProcess {
				act.Requests.Last = h.Until
			}
		}
	}
	act.Since = act.Last
	return act
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// holdsOf returns what a test says, and the leases.
func holdsOf(f *Fake, id string) []awake.Hold {
	all := slices.Clone(f.Held[id])
	for i := range all {
		if all[i].Kind == awake.HoldProcess && !f.Sandboxes[id].Record.Settings.CountsProcesses() {
			all[i].Counts, all[i].Until = false, time.Time{}
		}
	}
	for _, l := range f.Sandboxes[id].Record.Leases {
		all = append(all, awake.Hold{
			ID: l.ID, Kind: awake.HoldLease, Detail: l.Reason, Since: l.Since, LastProgress: l.Since, Until: l.Until, Counts: l.Until.After(f.Now),
		})
	}
	slices.SortStableFunc(all, func(a, b awake.Hold) int { return cmp.Compare(uncounted(a), uncounted(b)) })
	return all
}

// view returns a sandbox as callers see it: with the end that activity has moved, and
// whether its runtime stands by.
func view(f *Fake, sb store.Sandbox) store.Sandbox {
	sb.Light = f.Light[sb.ID] && sb.Record.State == lifecycle.Paused && sb.Record.Checkpoint.Mode == lifecycle.Memory
	sb.Record.EndAt = awake.SoftEnd(sb.Record, f.activity(sb.ID), f.Now)
	return sb
}

// Reach is a request for a port of a sandbox, which it may wake.
func Reach(f *Fake, id string, port int, path, actor string) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	sb, err := f.find(id)
	if err != nil {
		return err
	}
	m, policy := f.meta(actor), sb.Config.WakePolicy(port, path)
	m.Cause = lifecycle.CauseAccess
	err = f.step(&sb, lifecycle.AccessRequested{Meta: m, Policy: policy, Boots: sb.Config.Boots(port, path)})
	if err == nil && policy != lifecycle.Ignore {
		f.reached[id] = f.Now
	}
	return err
}

// expire lets happen what has become due of a sandbox.
func (f *Fake) expire(sb *store.Sandbox) {
	for a := f.activity(sb.ID); ; {
		told := f.told
		if _, due := sb.Record.Due(a, f.Now); !due || f.step(sb, lifecycle.TimerFired{Op: f.nextID(), Activity: a}) != nil || f.told == told {
			return
		}
	}
}

// Next returns when the next clock runs out; zero for never.
func Next(f *Fake) (next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, sb := range f.Sandboxes {
		if d, ok := sb.Record.NextDeadline(f.activity(id)); ok {
			next = earlier(next, d.At)
		}
	}
	return next
}

// pass lets time pass: what becomes due on the way happens when it does.
func pass(f *Fake, d time.Duration) {
	f.mu.Lock()
	end := f.Now.Add(d)
	f.mu.Unlock()
	for {
		_, _ = f.All(context.Background()) // what is due happens
		next := Next(f)
		f.mu.Lock()
		if !next.After(f.Now) || next.After(end) {
			next = end
		}
		over := f.Now.Equal(end)
		f.Now = next
		f.mu.Unlock()
		if over {
			return
		}
	}
}

// Create makes a sandbox that serves.
func (f *Fake) Create(_ context.Context, req supervisor.CreateRequest) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, err
	}
	if sb, again, err := madeBefore(f, req.Config); again || err != nil {
		return sb, err
	}
	asked, begun := req, lifecycle.CreateRequested{}
	if ref := req.SnapshotRef(); ref != "" && f.snapshots != nil {
		_, snap, err := f.snapshots.find(ref)
		if err == nil {
			req.Config, err = snapshots.Configure(snap, req.Config)
		}
		if err != nil {
			return store.Sandbox{}, err
		}
		begun.Checkpoint, begun.Detail = &snap.Checkpoint, "from snapshot "+snapshots.Describe(snap)+" of "+snap.Sandbox
	} else if ref == "" && req.Template != "base" && req.Template != "tmplbase" {
		return store.Sandbox{}, errdef.New(errdef.NotFound, "template_not_found", "template '%s' not found", req.Template)
	}
	if err := checkConfig(req.Config); err != nil {
		return store.Sandbox{}, err
	}
	if err := f.granted(defaults.OrUnlimited(req.Settings.Timeout)); err != nil {
		return store.Sandbox{}, err
	}
	begun.Settings, req.Config.FromServer = f.Defaults.Fill(req.Settings, req.Said...)
	if err := begun.Settings.Validate(); err != nil {
		return store.Sandbox{}, err
	}
	return begin(f, asked, req.Config, func(m lifecycle.Meta) lifecycle.Event {
		m.Detail = begun.Detail
		begun.Meta = m
		return begun
	})
}

// limits are those of a sandbox that asks for none.
var limits = quota.Limits{Default: store.Limits{CPUs: 2, MemoryMiB: 512, DiskMiB: 1024, PIDs: 512}}

// begin makes a sandbox of what was asked, with its first event.
func begin(f *Fake, asked supervisor.CreateRequest, c store.Config, first func(lifecycle.Meta) lifecycle.Event) (store.Sandbox, error) {
	sb := store.Sandbox{ID: fmt.Sprintf("i%020d", f.seq+1), Config: c, Record: lifecycle.Record{State: lifecycle.Pending}}
	var err error
	if sb.Config.Volumes, err = mounted(f, c.Volumes); err != nil {
		return store.Sandbox{}, err
	}
	if sb.Config.Limits, err = limits.Grant(c.Limits); err != nil {
		return store.Sandbox{}, err
	}
	if err := names.Check(c.Name); c.Name != "" && err != nil {
		return store.Sandbox{}, err
	}
	if err := freeName(f, c); err != nil {
		return store.Sandbox{}, err
	}
	f.seq++
	f.Created = append(f.Created, asked)
	sb.Config.Template, sb.Config.Alias = "tmplbase", "base"
	err = f.step(&sb, first(f.meta(asked.Actor)))
	return sb, err
}

// freeName refuses a name that a sandbox of the same key has, which has not ended.
func freeName(f *Fake, c store.Config) error {
	for id, sb := range f.Sandboxes {
		if c.Name != "" && sb.Config.Name == c.Name && sb.Config.Key == c.Key && sb.Record.State != lifecycle.Terminated {
			return store.ErrNameTaken(id, c.Name)
		}
	}
	return nil
}

// madeBefore returns the sandbox that the idempotency key of a create has made.
func madeBefore(f *Fake, c store.Config) (sb store.Sandbox, again bool, err error) {
	if c.Idempotency == nil {
		return sb, false, nil
	}
	for _, sb := range f.Sandboxes {
		had := sb.Config.Idempotency
		if had == nil || had.Key != c.Idempotency.Key || sb.Config.Key != c.Key || f.Now.Sub(sb.Record.CreatedAt) >= store.IdempotencyLife {
			continue
		}
		if *sb.Config.Idempotency != *c.Idempotency {
			return sb, false, errdef.New(errdef.Conflict, "idempotency_key_reused", "idempotency key %q has been used for something else", c.Idempotency.Key)
		}
		if t := sb.Record.Tombstone; t != nil {
			return sb, false, outcome.CreatedBefore(sb.ID, *t)
		}
		return sb, true, nil
	}
	return sb, false, nil
}

// Made returns the sandbox that an idempotency key has made.
func (f *Fake) Made(_ context.Context, as store.Config) (store.Sandbox, bool, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, false, err
	}
	return madeBefore(f, as)
}

// granted refuses a timeout above the ceiling.
func (f *Fake) granted(d time.Duration) error { return defaults.Ceiling(f.Limit).Check(d) }

// checkConfig refuses what no sandbox may be.
func checkConfig(c store.Config) error {
	if err := fields.Check(c); err != nil {
		return err
	}
	_, err := egress.NewPolicy(c.AllowInternet == nil || *c.AllowInternet, c.AllowOut, c.DenyOut)
	return err
}

// checkPatch refuses a patch after which a sandbox would be what none may be.
func checkPatch(f *Fake, id string, p supervisor.Patch) error {
	if err := fields.Check(store.Config{Metadata: p.Metadata, Ports: p.Ports}); err != nil {
		return err
	}
	sb, err := f.find(id)
	if err != nil {
		return err
	}
	return checkConfig(p.On(sb.Config))
}

// Get returns a sandbox that has not ended.
func (f *Fake) Get(_ context.Context, id string) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, err
	}
	sb, err := f.find(id)
	if err == nil && sb.Record.State == lifecycle.Terminated {
		err = f.step(&sb, lifecycle.PauseRequested{}) // refused: it says why
	}
	return view(f, sb), err
}

// Find returns a sandbox, ended or not.
func (f *Fake) Find(_ context.Context, id string) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, err
	}
	sb, err := f.find(id)
	return view(f, sb), err
}

// List returns the sandboxes that have run and have not ended, in any order.
func (f *Fake) List(ctx context.Context) ([]store.Sandbox, error) {
	all, err := f.All(ctx)
	return slices.DeleteFunc(all, func(sb store.Sandbox) bool {
		return sb.Record.State == lifecycle.Terminated || sb.Record.Generation == 0
	}), err
}

// Page returns a page of a list of all sandboxes.
func (f *Fake) Page(ctx context.Context, q store.Selection) (store.Page, error) {
	all, err := f.All(ctx)
	return q.From(all), err
}

// All returns every sandbox, in any order.
func (f *Fake) All(context.Context) ([]store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var all []store.Sandbox
	for id := range f.Sandboxes {
		if sb, err := f.find(id); err == nil {
			all = append(all, view(f, sb))
		}
	}
	return all, nil
}

// Pause pauses a sandbox. Nothing takes time here, and every agent answers.
func (f *Fake) Pause(_ context.Context, id string, q supervisor.PauseRequest) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	q.Mode = cmp.Or(q.Mode, lifecycle.Memory)
	f.Pauses = append(f.Pauses, q)
	_, err = f.change(id, lifecycle.PauseRequested{Meta: f.meta(q.Actor), Mode: q.Mode})
	return err
}

// Connect extends a running sandbox or resumes a paused one.
func (f *Fake) Connect(_ context.Context, id string, q supervisor.WakeRequest) (supervisor.Connected, error) {
	return rouse(f, id, q, func(change *lifecycle.Patch) lifecycle.Event {
		return lifecycle.ConnectRequested{Meta: f.meta(q.Actor), Timeout: q.Timeout, Boot: q.Boot, Change: change}
	})
}

// Resume resumes a paused sandbox.
func (f *Fake) Resume(_ context.Context, id string, q supervisor.WakeRequest) (store.Sandbox, error) {
	c, err := rouse(f, id, q, func(change *lifecycle.Patch) lifecycle.Event {
		return lifecycle.ResumeRequested{Meta: f.meta(q.Actor), Timeout: q.Timeout, Boot: q.Boot, Change: change}
	})
	return c.Sandbox, err
}

// rouse applies an event that wakes a sandbox, and what it changes besides.
func rouse(f *Fake, id string, q supervisor.WakeRequest, event func(*lifecycle.Patch) lifecycle.Event) (supervisor.Connected, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err == nil {
		err = f.granted(q.Timeout)
	}
	if err == nil {
		err = checkPatch(f, id, q.Change)
	}
	if err != nil {
		return supervisor.Connected{}, err
	}
	var change *lifecycle.Patch
	if !q.Change.Empty() {
		change = &q.Change.Settings
	}
	before := f.Sandboxes[id].Record.Generation
	sb, err := f.change(id, event(change))
	if err == nil {
		sb.Config = q.Change.On(sb.Config)
		f.commit(sb, nil)
	}
	return supervisor.Connected{Sandbox: sb, Resumed: sb.Record.Generation > before}, err
}

// SetTimeout makes endAt d from now.
func (f *Fake) SetTimeout(_ context.Context, id string, d time.Duration, actor string) (store.Sandbox, error) {
	return f.adjust(id, d, func() lifecycle.Event {
		return lifecycle.TimeoutSet{Meta: f.meta(actor), Timeout: d}
	})
}

// Refresh makes endAt d from now at least.
func (f *Fake) Refresh(_ context.Context, id string, d time.Duration, actor string) (store.Sandbox, error) {
	return f.adjust(id, d, func() lifecycle.Event {
		return lifecycle.ExtendRequested{Meta: f.meta(actor), Timeout: d}
	})
}

func (f *Fake) adjust(id string, d time.Duration, event func() lifecycle.Event) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err == nil {
		err = f.granted(d)
	}
	if err != nil {
		return store.Sandbox{}, err
	}
	return f.change(id, event())
}

// Patch changes settings.
func (f *Fake) Patch(_ context.Context, id string, p supervisor.Patch, actor string) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, err
	}
	if p.Timeout != nil {
		err = f.granted(*p.Timeout)
	}
	if err == nil {
		err = checkPatch(f, id, p)
	}
	if err != nil {
		return store.Sandbox{}, err
	}
	before := len(f.log)
	sb, err := f.change(id, lifecycle.SettingsPatched{Meta: f.meta(actor), Patch: p.Settings, Timeout: p.Timeout})
	if err != nil {
		return sb, err
	}
	sb.Config = p.On(sb.Config)
	if len(f.log) > before {
		f.commit(sb, nil)
	} else { // only what is beside the record has changed
		note(f, sb, actor, "")
	}
	return sb, nil
}

// Hold opens or prolongs a lease.
func (f *Fake) Hold(_ context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return l, err
	}
	if l.ID == "" {
		l.ID = "hold-" + f.nextID()
	}
	if err := fields.CheckHold(l); err != nil {
		return l, err
	}
	sb, err := f.change(id, lifecycle.LeaseRequested{Meta: f.meta(actor), Lease: l})
	if err != nil {
		return l, err
	}
	i := slices.IndexFunc(sb.Record.Leases, func(has lifecycle.Lease) bool { return has.ID == l.ID })
	return sb.Record.Leases[i], nil
}

// ReleaseHold ends a lease.
func (f *Fake) ReleaseHold(_ context.Context, id, holdID, actor string) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = f.change(id, lifecycle.LeaseReleased{Meta: f.meta(actor), ID: holdID})
	return err
}

// CreatePreview makes a preview link.
func (f *Fake) CreatePreview(_ context.Context, id string, req preview.Request) (store.Preview, string, error) {
	err := f.enter()
	defer f.mu.Unlock()
	p := store.Preview{ID: "pv-" + f.nextID(), Port: req.Port, CreatedAt: f.Now, ExpiresAt: f.Now.Add(req.For + time.Second - 1).Truncate(time.Second), Actor: req.Actor}
	if err == nil {
		_, err = f.find(id)
	}
	if err == nil {
		err = req.Check()
	}
	if err == nil {
		err = f.configure(id, req.Actor, "preview link "+p.ID+" made", func(c *store.Config) error { return c.AddPreview(p, f.Now) })
	}
	return p, "preview" + Tokens() + id + "-" + p.ID, err
}

// KeyCosts returns what keys with sandboxes cost: a byte of the database for each.
func (f *Fake) KeyCosts() map[string]cost.Cost {
	f.mu.Lock()
	defer f.mu.Unlock()
	costs := map[string]cost.Cost{}
	for _, sb := range f.Sandboxes {
		c := costs[sb.Config.Key]
		c.DatabaseBytes++
		costs[sb.Config.Key] = c
	}
	return costs
}

// KeyUse returns what the sandboxes of a key take together.
func (f *Fake) KeyUse(key string) (use store.Use) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, sb := range f.Sandboxes {
		if sb.Config.Key != key || sb.Record.State == lifecycle.Terminated {
			continue
		}
		use.Sandboxes++
		use.DiskMiB += sb.Config.Limits.DiskMiB
		if sb.Record.State == lifecycle.Running {
			use.Running++
			use.MemoryMiB += sb.Config.Limits.MemoryMiB
		}
	}
	return use
}

// Previews returns the preview links that are good.
func (f *Fake) Previews(_ context.Context, id string) ([]store.Preview, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	sb, err := f.find(id)
	if err != nil || sb.Record.State == lifecycle.Terminated {
		return nil, err
	}
	return sb.Config.LivePreviews(f.Now), nil
}

// RevokePreview makes a preview link worthless.
func (f *Fake) RevokePreview(_ context.Context, id, link, actor string) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err == nil {
		err = f.configure(id, actor, "preview link "+link+" revoked", func(c *store.Config) error { return c.RemovePreview(link, f.Now) })
	}
	return err
}

// configure changes what a sandbox is apart from its lifecycle, and logs it.
func (f *Fake) configure(id, actor, detail string, change func(*store.Config) error) error {
	sb, err := f.find(id)
	if err == nil && sb.Record.State == lifecycle.Terminated {
		err = f.step(&sb, lifecycle.PauseRequested{}) // refused: it says why
	}
	if err == nil {
		err = change(&sb.Config)
	}
	if err == nil {
		note(f, sb, actor, detail)
	}
	return err
}

// Explain says what holds and what is due.
func (f *Fake) Explain(_ context.Context, id string) (supervisor.Explanation, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return supervisor.Explanation{}, err
	}
	return f.explain(id)
}

// Outlooks explains sandboxes without their transitions.
func (f *Fake) Outlooks(_ context.Context, ids []string) map[string]supervisor.Explanation {
	outlooks := map[string]supervisor.Explanation{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if x, err := f.explain(id); err == nil {
			x.Transitions = nil
			outlooks[id] = x
		}
	}
	return outlooks
}

func (f *Fake) explain(id string) (supervisor.Explanation, error) {
	sb, err := f.find(id)
	if err != nil {
		return supervisor.Explanation{}, err
	}
	x := supervisor.Explanation{
		Sandbox: view(f, sb), Holds: holdsOf(f, id), Deadlines: sb.Record.Deadlines(f.activity(id)), Blindness: f.Blind[id],
	}
	slices.SortStableFunc(x.Deadlines, func(a, b lifecycle.Deadline) int { return a.At.Compare(b.At) })
	for _, e := range slices.Backward(f.log) {
		if e.Sandbox == id && len(x.Transitions) < 10 {
			x.Transitions = append(x.Transitions, e)
		}
	}
	return x, nil
}

func uncounted(h awake.Hold) int {
	if h.Counts {
		return 0
	}
	return 1
}

// Kill ends a sandbox.
func (f *Fake) Kill(_ context.Context, id, actor string) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = f.change(id, lifecycle.KillRequested{Meta: f.meta(actor)})
	return err
}

// Log returns a copy of the event log.
func (f *Fake) Log() []store.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Tokens returns a text that every token made here contains.
func Tokens() string { return "-token-of-" }

// EnvdToken returns the token that the agent of a sandbox asks for.
func (f *Fake) EnvdToken(id string) string { return "envd" + Tokens() + id }

// TrafficToken returns the token that private ports ask for.
func (f *Fake) TrafficToken(id string) string { return "traffic" + Tokens() + id }

// IDs returns the ids of all sandboxes, sorted.
func (f *Fake) IDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.Sandboxes))
}

// Export returns what writes the manifest of a paused sandbox, and no files: the
// sandboxes of a fake have none.
func (f *Fake) Export(_ context.Context, id string) (*supervisor.Export, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	sb, err := f.find(id)
	if err != nil {
		return nil, err
	}
	switch sb.Record.State {
	case lifecycle.Terminated:
		_, err := lifecycle.Step(sb.Record, lifecycle.AccessRequested{}, f.Now)
		return nil, err
	case lifecycle.Paused:
	default:
		return nil, errdef.New(errdef.WrongState, "not_paused", "the sandbox is %s; only a paused one can be exported", sb.Record.State).WithRemedy("pause it first")
	}
	m := bundle.Manifest{
		Kind: bundle.KindSandbox, ExportedAt: f.Now, ID: id, Generation: sb.Record.Generation, CreatedAt: sb.Record.CreatedAt,
		Settings: sb.Record.Settings, Config: sb.Config, Mode: lifecycle.Filesystem, Layers: []bundle.Layer{},
	}
	return &supervisor.Export{
		Manifest: m, Cut: make(chan struct{}), Release: func() {},
		Write: func(w io.Writer) error { return bundle.Write(w, m, nothing{}) },
	}, nil
}

// nothing is the files of a fake's sandbox.
type nothing struct{}

// Layer implements bundle.Source.
func (nothing) Layer(int, func(layer.Entry, io.Reader) error) error { return nil }

// ImageFile implements bundle.Source.
func (nothing) ImageFile(name string) (io.ReadCloser, error) {
	return nil, fmt.Errorf("no file %q", name)
}

// Import makes a sandbox of what Export wrote.
func (f *Fake) Import(_ context.Context, r io.Reader, req supervisor.ImportRequest) (store.Sandbox, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Sandbox{}, err
	}
	from, err := bundle.NewReader(r)
	if err != nil {
		return store.Sandbox{}, err
	}
	if err := from.Extract(nil); err != nil {
		return store.Sandbox{}, err
	}
	m := from.Manifest
	req.Tell(m)
	m.Config.Key = req.Key
	if !req.Secrets {
		m.Config.Secrets = store.Withhold(m.Config.Secrets)
	}
	if as := req.Idempotency; as != nil {
		m.Config.Idempotency = &store.Idempotency{Key: as.Key, Request: as.Request + from.Digest}
	}
	if sb, again, err := madeBefore(f, m.Config); again || err != nil {
		return sb, err
	}
	id := m.ID
	if req.NewID {
		id = "i" + f.nextID()
	}
	if _, taken := f.Sandboxes[id]; taken {
		return store.Sandbox{}, store.ErrSandboxExists(id)
	}
	if freeName(f, m.Config) != nil {
		m.Config.Name = ""
	}
	sb := store.Sandbox{ID: id, Config: m.Config, Record: lifecycle.Record{State: lifecycle.Pending}}
	err = f.step(&sb, lifecycle.ImportRequested{
		Meta: f.meta(req.Actor), Settings: m.Settings, Checkpoint: lifecycle.Checkpoint{ID: f.nextID(), Mode: m.Mode, Bytes: 4096},
		Generation: m.Generation, CreatedAt: m.CreatedAt,
	})
	return sb, err
}

// Hasty is a Keyring whose keys all call too often.
type Hasty struct{ Keyring }

// Take refuses the call.
func (Hasty) Take(id string) error {
	return errdef.New(errdef.Exhausted, auth.CodeRate, "API key %s makes more than 1 calls per second", id)
}
