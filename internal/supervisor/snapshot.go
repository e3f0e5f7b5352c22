package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/replication"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
)

// SnapshotRequest says what a snapshot is to be.
type SnapshotRequest = snapshots.Request

// taking is a snapshot that is being taken of a sandbox.
type taking struct {
	b    *box
	req  SnapshotRequest
	snap store.Snapshot // set when it is committed
	err  error          // why that was refused; set before the operation ends
}

// shelfOptions returns what the snapshots are made of.
func shelfOptions(s *Supervisor) snapshots.Options {
	return snapshots.Options{Store: s.o.Store, Layers: s.o.Layers, Checkpoints: s.checkpoints, Slots: &s.slots, Space: s.space, AgentToken: s.AgentToken, Copies: replication.Snapshots{Replicator: s.replicas}, Insist: s.removals.Insist, Relieve: s.space.GiveUp, PutOff: s.putOff, Log: s.log}
}

// TakeSnapshot takes a snapshot of a sandbox, and returns when it is committed. A
// paused sandbox sleeps on, and its checkpoint is kept. A running one runs on:
// it is frozen for a moment, and keeps its connections and deadlines.
func (s *Supervisor) TakeSnapshot(ctx context.Context, id string, req SnapshotRequest) (store.Snapshot, error) {
	b, err := s.box(id)
	if err != nil {
		return store.Snapshot{}, err
	}
	release, err := s.Reserve(ctx, req, b.snapshot())
	if err != nil {
		return store.Snapshot{}, err
	}
	defer release()
	defer s.Tidy()
	if err := s.space.Check(space.Least); err != nil {
		return store.Snapshot{}, err
	}
	for {
		t := &taking{b: b, req: req}
		res, ended, err := t.request()
		if err != nil {
			return store.Snapshot{}, err
		}
		if ended == nil { // it sleeps: there was nothing to wait for
			return t.snap, nil
		}
		end, err := calls.Wait(ctx, ended)
		switch {
		case err != nil:
			return store.Snapshot{}, err
		case res.Verdict == lifecycle.Waits:
			continue
		case end.Type == lifecycle.EntrySnapshotted:
			return t.snap, nil
		case end.Type == lifecycle.EntrySnapshotFailed:
			return store.Snapshot{}, outcome.NoSnapshot(id, end.Entry, t.err)
		}
		return store.Snapshot{}, outcome.Overtaken(b.snapshot())
	}
}

// request takes the snapshot of a sandbox that sleeps, or begins that of one that
// runs, or returns what to wait for.
func (t *taking) request() (lifecycle.Result, <-chan calls.Ending, error) {
	b := t.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.settleLocked(); err != nil {
		return lifecycle.Result{Record: b.sb.Record}, nil, err
	}
	m := calls.By(ids.NewOp(), t.req.Actor)
	var made *store.Snapshot
	if rec := b.sb.Record; rec.Situation() == lifecycle.Situation(lifecycle.Paused) {
		made = new(b.s.Of(b.sb, *rec.Checkpoint, t.req))
		m.Detail = snapshots.Describe(*made)
	}
	b.takings = map[string]*taking{m.Op: t} // for the effect, if and when the operation begins
	res, err := b.applyWithLocked(lifecycle.SnapshotRequested{Meta: m, Only: t.req.Only}, made, func(lifecycle.Result) {})
	if err == nil && made != nil {
		t.snap = *made
	}
	return res, b.awaitLocked(), err
}

// capture carries out CaptureSnapshot.
func (t *taking) capture(ctx context.Context, op string) {
	b := t.b
	sb, inst := b.serving()
	err := errors.New("the runtime is gone")
	if inst != nil {
		c := &snapshots.Capture{Op: op, Sandbox: sb, Inst: inst, Mode: t.req.Mode, Thaw: func() bool { return b.thaw(inst) }}
		err = t.captureAs(ctx, c)
	}
	if err == nil {
		return
	}
	b.s.log.Warn("no snapshot could be taken", "sandbox", b.id, "err", err)
	detail := outcome.Words(err)
	switch {
	case b.s.ctx.Err() != nil:
		detail = "the server is stopping"
	case errors.Is(err, context.Canceled):
		detail = "it did not finish in time"
	}
	b.tell(lifecycle.SnapshotFailed{Op: op, Detail: detail, NotCapturable: runtime.IsNotCapturable(err)})
}

func (t *taking) captureAs(ctx context.Context, c *snapshots.Capture) error {
	b, begin := t.b, time.Now()
	cp, frozen, err := b.s.Capture(ctx, c)
	b.s.spend(c.Sandbox.Config.Key, begin)
	if err != nil {
		return err
	}
	snap := b.s.Of(c.Sandbox, cp, t.req)
	snap.Frozen = frozen
	t.snap = snap
	res, err := b.learn(lifecycle.SnapshotTaken{Op: c.Op, Bytes: cp.Bytes, Detail: snapshots.Describe(snap)}, &snap, func() {}, false)
	if err == nil && res.Verdict != lifecycle.Applies {
		err = context.Canceled
	}
	if t.err = err; err != nil && !store.IsUnlearned(err) {
		b.s.Discard(c)
	}
	return err
}

// Restore has a sandbox go back to one of its snapshots. A paused one sleeps on; of
// a running one it returns when that runs again. What it was before is kept as a
// snapshot, which undo names, unless the request says otherwise.
func (s *Supervisor) Restore(ctx context.Context, id string, req RestoreRequest) (sb store.Sandbox, undo string, err error) {
	b, err := s.box(id)
	if err != nil {
		return sb, "", err
	}
	to, release, err := s.Aim(ctx, b.snapshot(), req)
	if err != nil {
		return sb, "", err
	}
	for {
		res, ended, err := b.request(lifecycle.RestoreRequested{Meta: calls.By(ids.NewOp(), req.Actor), To: to, Only: req.Only})
		if err == nil && res.Verdict == lifecycle.Waits {
			if _, err = calls.Wait(ctx, ended); err == nil {
				continue
			}
		}
		if err != nil || ended == nil {
			release()
			s.Tidy()
			return calls.As(asked{b}, res.Record), to.Undo, err
		}
		done := make(chan calls.Ending, 1)
		s.work.Go(func() { // also when the caller goes away
			if end, err := calls.Wait(s.ctx, ended); err == nil {
				done <- end
			}
			release()
			b.dropCheckpoint(&to.Checkpoint) // a restore that failed, of a snapshot that is gone
			s.Tidy()
		})
		end, err := calls.Wait(ctx, done)
		if err == nil && end.Type != lifecycle.EntryResumed {
			err = outcome.NotRestored(b.snapshot(), end.Entry, b.unfitNow())
		}
		return calls.As(asked{b}, end.Record), to.Undo, err
	}
}

// ForkRequest says how many children a sandbox is to have, and Forked is one child.
type (
	ForkRequest = snapshots.ForkRequest
	Forked      = snapshots.Forked
)

// Fork starts sandboxes that go on from what a sandbox is now, each with an id and tokens of its
// own, and with its settings. They share one capture. The sandbox itself goes on as with a
// snapshot. It returns when each child serves, or is paused if that is asked for, or has failed.
func (s *Supervisor) Fork(ctx context.Context, id string, req ForkRequest) ([]Forked, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	if err := snapshots.CheckForks(req.Count); err != nil {
		return nil, err
	}
	if req.Timeout != nil {
		if err := s.checkTimeout(defaults.OrUnlimited(*req.Timeout)); err != nil {
			return nil, err
		}
	}
	snap, err := s.TakeSnapshot(ctx, id, SnapshotRequest{Key: req.Key, Only: req.Only, Actor: req.Actor, Passing: true})
	if err != nil {
		return nil, err
	}
	children := req.Start(func() (store.Sandbox, error) {
		child := CreateRequest{Snapshot: snap.ID, inherit: true, asleep: req.Asleep, Settings: req.Settings(snap.Settings), Config: snapshots.Inherit(snap, req.Key), Actor: req.Actor}
		child.Config.Name, child.Config.Idempotency = req.Name, req.Once
		return s.Create(ctx, child)
	})
	if err := s.RemoveSnapshot(context.WithoutCancel(s.ctx), snap.ID, req.Actor); err != nil {
		s.log.Error("snapshot of a fork could not be removed", "sandbox", id, "snapshot", snap.ID, "err", err)
	}
	if err := req.Settle(children, func(child string) {
		if err := s.Kill(context.WithoutCancel(s.ctx), child, req.Actor); err != nil {
			s.log.Error("child of a fork could not be removed", "sandbox", child, "err", err)
		}
	}); err != nil {
		return nil, err
	}
	noteFork(b, children, req.Actor)
	return children, nil
}

// noteFork tells the event log of the children.
func noteFork(b *box, children []Forked, actor string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sb.Record.State == lifecycle.Terminated {
		return
	}
	if err := b.logEntry(snapshots.ForkEntry(ids.Now(), actor, children)); err != nil {
		b.s.log.Error("fork could not be noted", "sandbox", b.id, "err", err)
	}
}
