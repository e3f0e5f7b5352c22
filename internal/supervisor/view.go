package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
)

// Find returns a sandbox, also one that has ended.
func (s *Supervisor) Find(_ context.Context, id string) (store.Sandbox, error) {
	b, err := s.box(id)
	if err != nil {
		return store.Sandbox{}, err
	}
	return b.view(), nil
}

// Get returns a sandbox that has not ended.
func (s *Supervisor) Get(ctx context.Context, id string) (store.Sandbox, error) {
	sb, err := s.Find(ctx, id)
	if err != nil {
		return store.Sandbox{}, err
	}
	if err := alive(sb); err != nil {
		return store.Sandbox{}, err
	}
	return sb, nil
}

// alive returns an error unless the sandbox has run and has not ended.
func alive(sb store.Sandbox) error {
	switch sb.Record.State {
	case lifecycle.Terminated:
		_, err := lifecycle.Step(sb.Record, lifecycle.AccessRequested{}, now())
		return err
	case lifecycle.Pending:
		return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q is being created", sb.ID)
	}
	return nil
}

// view is the sandbox as callers see it: with the end that activity has moved.
func (b *box) view() store.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.viewLocked()
}

func (b *box) viewLocked() store.Sandbox {
	sb := b.sb
	if sb.Record.Settings.RefreshOnActivity {
		t := now()
		sb.Record.EndAt = softEnd(sb.Record, b.activityLocked(t), t)
	}
	return sb
}

// softEnd returns the end of the soft timeout if the activity ended now.
func softEnd(r lifecycle.Record, act lifecycle.Activity, now time.Time) time.Time {
	if act.Busy {
		act.Last = now
	}
	return r.SoftEnd(act.Last)
}

// List returns all sandboxes that run or are paused, in no order.
func (s *Supervisor) List(context.Context) ([]store.Sandbox, error) {
	return s.collect(func(r lifecycle.Record) bool { return r.State == lifecycle.Running || r.State == lifecycle.Paused }), nil
}

// All returns every sandbox, those that have ended included, in no order.
func (s *Supervisor) All(context.Context) ([]store.Sandbox, error) {
	return s.collect(func(lifecycle.Record) bool { return true }), nil
}

func (s *Supervisor) collect(want func(lifecycle.Record) bool) []store.Sandbox {
	var list []store.Sandbox
	s.each(func(b *box) {
		if sb := b.view(); want(sb.Record) {
			list = append(list, sb)
		}
	})
	return list
}

// Patch changes settings, metadata, wake policies or the like of a live or paused
// sandbox.
func (s *Supervisor) Patch(ctx context.Context, id string, p Patch, actor string) (store.Sandbox, error) {
	if err := checkFields(store.Config{Metadata: p.Metadata, Ports: p.Ports}); err != nil {
		return store.Sandbox{}, err
	}
	b, err := s.box(id)
	if err != nil {
		return store.Sandbox{}, err
	}
	for {
		sb, ended, err := b.patch(p, actor)
		if err == nil && ended == nil && p.changesNetwork() {
			b.openNetwork(b.serving())
		}
		if err != nil || ended == nil {
			return sb, err
		}
		if _, err := b.wait(ctx, ended); err != nil {
			return store.Sandbox{}, err
		}
	}
}

func (p Patch) changesNetwork() bool {
	return p.AllowInternet != nil || p.AllowOut != nil || p.DenyOut != nil
}

// patch applies a patch as a whole, or returns what tells the end of the
// operation in flight.
func (b *box) patch(p Patch, actor string) (store.Sandbox, <-chan ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	config := b.sb.Config
	changed := b.sb.Config
	if p.Metadata != nil {
		changed.Metadata = p.Metadata
	}
	if p.Ports != nil {
		changed.Ports = p.Ports
	}
	if p.AllowInternet != nil {
		changed.AllowInternet = p.AllowInternet
	}
	if p.AllowOut != nil {
		changed.AllowOut = p.AllowOut
	}
	if p.DenyOut != nil {
		changed.DenyOut = p.DenyOut
	}
	changed.FromServer = p.without(changed.FromServer)
	if _, err := policyOf(changed); err != nil {
		return store.Sandbox{}, nil, err
	}
	b.sb.Config = changed
	res, err := b.applyLocked(lifecycle.SettingsPatched{Meta: call("", actor), Patch: p.Settings})
	if err == nil && res.Verdict == lifecycle.Applies && !res.Changed { // only what is beside the record
		err = b.logEntry(lifecycle.Entry{Type: lifecycle.EntryUpdated, At: now(), Actor: actor})
	}
	if err != nil || res.Verdict != lifecycle.Applies {
		b.sb.Config = config
	}
	if err != nil {
		return store.Sandbox{}, nil, err
	}
	if res.Verdict != lifecycle.Applies {
		return store.Sandbox{}, b.awaitLocked(), nil
	}
	b.setGate()
	return b.viewLocked(), nil, nil
}

// serving returns the runtime that serves; nil if none does.
func (b *box) serving() runtime.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inst
}

// Hold counts the sandbox as busy until l.Until at the latest. A lease with a
// known id is replaced.
func (s *Supervisor) Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error) {
	if l.ID == "" {
		l.ID = "hold" + newOp()
	}
	if err := checkHold(l); err != nil {
		return lifecycle.Lease{}, err
	}
	sb, err := s.adjust(ctx, id, lifecycle.LeaseRequested{Meta: call("", actor), Lease: l})
	if err != nil {
		return lifecycle.Lease{}, err
	}
	i := slices.IndexFunc(sb.Record.Leases, func(x lifecycle.Lease) bool { return x.ID == l.ID })
	return sb.Record.Leases[i], nil
}

// ReleaseHold ends a lease before its time.
func (s *Supervisor) ReleaseHold(ctx context.Context, id, hold, actor string) error {
	_, err := s.adjust(ctx, id, lifecycle.LeaseReleased{Meta: call("", actor), ID: hold})
	return err
}

// lastTransitions is how many entries of the log an explanation has.
const lastTransitions = 10

// Explain says what keeps a sandbox awake and what happens next. It looks
// inside a running one, which is no activity, and at the checkpoint of one that
// sleeps.
func (s *Supervisor) Explain(ctx context.Context, id string) (Explanation, error) {
	b, err := s.box(id)
	if err != nil {
		return Explanation{}, err
	}
	b.mu.Lock()
	inst := b.lookableLocked()
	b.mu.Unlock()
	if inst != nil {
		b.look(context.WithoutCancel(ctx), inst) // who asks and goes away says nothing of the sandbox
	}
	b.inspect(ctx)
	e := b.explain()
	e.Transitions, err = s.transitions(ctx, id)
	return e, err
}

// lookers is how many sandboxes Outlooks looks inside at once.
const lookers = 8

// Outlooks explains sandboxes without their transitions; those that are not
// there are left out. It looks inside those with a clock that depends on that
// and into which nobody has looked lately, until ctx ends: of the others it
// tells what is known.
func (s *Supervisor) Outlooks(ctx context.Context, ids []string) map[string]Explanation {
	found := make(map[string]*box, len(ids))
	for _, id := range ids {
		if b, err := s.box(id); err == nil {
			found[id] = b
		}
	}
	var looks sync.WaitGroup
	turns := make(chan struct{}, lookers)
	for _, b := range found {
		inst := b.unseen()
		if inst == nil {
			continue
		}
		turns <- struct{}{}
		looks.Go(func() {
			defer func() { <-turns }()
			if ctx.Err() == nil {
				b.look(context.WithoutCancel(ctx), inst)
			}
		})
	}
	looks.Wait()
	outlooks := make(map[string]Explanation, len(found))
	for id, b := range found {
		outlooks[id] = b.explain()
	}
	return outlooks
}

// unseen returns the runtime to ask before the sandbox is called idle; nil if
// nothing depends on that or it was asked lately.
func (b *box) unseen() runtime.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sb.Record.Settings.MeasuresWork() || now().Sub(b.work.seenAt) < b.pollInterval() {
		return nil
	}
	return b.lookableLocked()
}

func (b *box) explain() Explanation {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := now()
	act := b.activityLocked(t)
	e := Explanation{Sandbox: b.sb, Refusals: b.gate.Refusals()}
	e.Sandbox.Record.EndAt = softEnd(b.sb.Record, act, t)
	e.Fault, e.LastActive = b.faultLocked(), b.sb.ActiveAt
	if b.sb.Record.State == lifecycle.Running {
		e.Holds, e.LastActive = b.holdsLocked(t), b.lastActiveLocked(t)
		e.Blindness = b.blindnessLocked(t)
	}
	e.Deadlines = b.sb.Record.Deadlines(act)
	slices.SortStableFunc(e.Deadlines, func(x, y lifecycle.Deadline) int { return x.At.Compare(y.At) })
	return e
}

func (s *Supervisor) transitions(ctx context.Context, id string) ([]store.Event, error) {
	events, err := s.o.Store.LastEvents(ctx, id, lastTransitions)
	if errdef.Is(err, errdef.NotFound) {
		return nil, nil // it has not been committed yet
	}
	return events, err
}

// Events returns up to limit entries of the event log with Seq > after, oldest
// first, of one sandbox or, with an empty id, of all.
func (s *Supervisor) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	return s.o.Store.Events(ctx, sandbox, after, limit)
}

// EventsBefore returns up to limit entries of the event log with Seq < before,
// newest first, of one sandbox or, with an empty id, of all.
func (s *Supervisor) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	return s.o.Store.EventsBefore(ctx, sandbox, before, limit)
}

// LastEvent returns the Seq of the last entry of the event log; 0 if there is
// none.
func (s *Supervisor) LastEvent(ctx context.Context) (int64, error) {
	last, err := s.o.Store.LastEvents(ctx, "", 1)
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[0].Seq, nil
}

// Changed returns a channel that is closed at the next commit of any sandbox.
func (s *Supervisor) Changed() <-chan struct{} {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	return s.changed
}

func (s *Supervisor) announce() {
	s.changeMu.Lock()
	defer s.changeMu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// forgetRecord carries out Forget.
func (b *box) forgetRecord(ctx context.Context) {
	if err := b.s.o.Store.Forget(ctx, b.id); err != nil && !errdef.Is(err, errdef.NotFound) {
		b.s.log.Error("tombstone could not be removed", "sandbox", b.id, "err", err)
		b.s.timers.set(b, now().Add(time.Hour), false)
		return
	}
	b.s.forget(b.id)
}
