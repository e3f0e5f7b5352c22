// Package takeover moves sandboxes, snapshots and built templates from a server that is gone, and sandboxes from
// one that offers them, to one that is asked for them. Servers that have one database copy
// what sleeps on them, and snapshots, to one object storage; what a server had is made again
// from there. Whether it may be taken is decided by the store, in the commit. The one that
// was gone gives up what others have when it is back.
package takeover

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/fetch"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/replication"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/supervisor/tenure"
)

// Options is what a Taker works with.
type Options struct {
	Store    store.Store
	Replicas *replication.Replicator
	Shelf    func() *snapshots.Shelf
	Carrier  moving.Carrier
	Layers   *layer.Store
	Fetches  *fetch.Fetcher
	Space    *space.Disk
	Tenure   *tenure.Tenure
	Removals *insist.Remover
	Calls    *calls.Reception
	Log      *slog.Logger
	// Knows reports whether this server has a sandbox.
	Knows func(id string) bool
	// Arrived makes a sandbox known that this server has from now on, whose gate is shut if it was
	// paused to be moved. It was committed with these entries.
	Arrived func(sb store.Sandbox, before lifecycle.Record, res lifecycle.Result)
	// Left gives up a sandbox that another server has by this record of it, unless it has come
	// back since.
	Left func(store.Sandbox)
	// Gate returns what has requests for a sandbox wait.
	Gate func(id string) (Gate, error)
}

// Taker takes sandboxes over, and gives them up. It is safe for concurrent use; of one
// sandbox there is one call of TakeOver at a time.
type Taker struct {
	o      Options
	ctx    context.Context // of the supervisor
	leaves sync.Map        // ids of sandboxes of which something is still to be removed

	stopping atomic.Bool // see StopMoves
	*Ends
}

// Leaving notes that something is to be removed of a sandbox that another server has. Until
// Leave has done that, it is not taken back.
func (t *Taker) Leaving(id string) { t.leaves.Store(id, nil) }

func (t *Taker) leaving(id string) bool {
	_, leaves := t.leaves.Load(id)
	return leaves
}

// Leave removes what a server has of a sandbox that another has, however often it takes. The undo
// goes with it: no other server can use that.
func (t *Taker) Leave(id string, remove func() error) {
	t.o.Removals.Insist(func() error {
		err := cmp.Or(snapshots.RemoveUndo(t.ctx, t.o.Shelf(), id), remove())
		if err == nil {
			t.leaves.Delete(id)
		}
		return err
	}, "what another server has could not be removed", "of", id)
}

// New returns the Taker of a supervisor that works until ctx ends.
func New(ctx context.Context, o Options) *Taker {
	t := &Taker{o: o, ctx: ctx}
	t.Ends = &Ends{t: t}
	return t
}

// TakeOver makes a sandbox, a snapshot or a built template of another server, which is gone, this
// server's, and returns when that is committed. A sandbox sleeps then. Until the commit, which
// [store.Replicas] says what forbids, nothing has changed.
func (t *Taker) TakeOver(ctx context.Context, id string) error {
	t.o.Calls.Waiting.Add(1)
	defer t.o.Calls.Waiting.Add(-1)
	switch {
	case snapshots.IsID(id):
		return t.takeOverSnapshot(ctx, id)
	case !ids.Valid(id):
		return t.takeOverTemplate(ctx, id)
	}
	return t.takeOver(ctx, id, "") // its server may have ended while it was moved
}

// takeOver takes a sandbox over, and has it run on if it was paused to be moved.
func (t *Taker) takeOver(ctx context.Context, id, actor string) error {
	if err := t.takeAsleep(ctx, id); err != nil {
		return err
	}
	t.wake(id, actor)
	if gate, err := t.o.Gate(id); err == nil {
		gate.open()
	}
	return nil
}

func (t *Taker) takeAsleep(ctx context.Context, id string) error {
	sb, err := t.o.Store.Sandbox(ctx, id)
	if err == nil {
		err = t.Overdue(ctx, sb)
	}
	if err == nil {
		err = t.may(ctx, sb) // it is not fetched in vain
	}
	if err != nil {
		return err
	}
	var late latePages
	return t.fetch(ctx, of{
		late: &late,
		open: func(ctx context.Context) (*replica.Reader, store.Replica, error) { return t.o.Replicas.Open(ctx, sb) },
		expect: func(ctx context.Context, m bundle.Manifest) (*moving.Arrival, error) {
			return t.o.Carrier.ExpectTaken(ctx, m, sb)
		},
		commit: func(a *moving.Arrival, replica store.Replica) error { return t.commit(a, sb, replica, late) },
	})
}

// of is how what is taken over is read, judged and committed.
type of struct {
	late   *latePages // where pages of the memory may come when it is committed; nil if they may not
	open   func(ctx context.Context) (*replica.Reader, store.Replica, error)
	expect func(ctx context.Context, m bundle.Manifest) (*moving.Arrival, error)
	commit func(a *moving.Arrival, replica store.Replica) error
}

// fetch makes a checkpoint of a copy, and has it committed.
func (t *Taker) fetch(ctx context.Context, x of) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	from, replica, err := x.open(ctx)
	if err != nil {
		return err
	}
	defer from.Close()
	r, err := bundle.NewReader(t.o.Space.Within(ctx, from))
	if err != nil {
		return err
	}
	a, err := x.expect(ctx, r.Manifest)
	if err != nil {
		return err
	}
	if x.late != nil {
		r.Skip = x.late.of(t.o.Carrier, a, from)
	}
	return t.o.Carrier.Bring(ctx, a, r, t.o.Removals, func() error {
		if x.late != nil {
			if err := x.late.check(ctx); err != nil {
				return err
			}
		}
		err := a.Place()
		if errdef.Is(err, errdef.Exists) { // what has such a name is not what was received
			return err
		}
		if err == nil {
			err = x.commit(a, replica)
			if err == nil || errdef.Is(err, errdef.Fenced) || !store.Refused(err) && t.ctx.Err() != nil { // the next start sees it in the record
				return err
			}
		}
		t.remove(a)
		return err
	})
}

// may returns why the store would refuse now that a sandbox is taken over.
func (t *Taker) may(ctx context.Context, sb store.Sandbox) error {
	servers, err := t.o.Store.Servers(ctx)
	if err != nil {
		return err
	}
	replica, err := t.o.Store.Replica(ctx, sb.ID)
	if err != nil && !errdef.Is(err, errdef.NotFound) {
		return err
	}
	if t.leaving(sb.ID) || t.o.Knows(sb.ID) { // it is being given up
		return store.ErrChanged(sb.ID)
	}
	return replica.Takes(sb, sb, t.o.Store.Self(), store.Gone(servers, t.o.Store.Self(), sb.Owner))
}

// remove removes what was received and is nobody's: another server may have layers of the
// same names, which are there. If it is received once more, that has the same names here.
func (t *Taker) remove(a *moving.Arrival) {
	t.Leaving(a.ID)
	t.Leave(a.ID, func() error {
		errs := []error{t.o.Layers.RemoveImage(a.Checkpoint.ID)}
		for _, id := range a.Stack {
			errs = append(errs, t.o.Layers.RemoveLayer(id))
		}
		return errors.Join(errs...)
	})
}

// again is how long to wait before a commit is tried again of which nobody knows what has become.
const again = time.Second

// commit commits that this server has a sandbox, whose checkpoint is in its place.
func (t *Taker) commit(a *moving.Arrival, sb store.Sandbox, replica store.Replica, late latePages) error {
	res, err := lifecycle.Step(sb.Record, a.Taken(sb, replica.Offered == t.o.Store.Self()), ids.Now())
	if err != nil || !res.Changed {
		return store.ErrChanged(sb.ID)
	}
	next := sb
	next.Record, next.Config = res.Record, a.Config.Settled(res.Record)
	err = t.take(next, res.Entries, func(is store.Sandbox) bool {
		return is.Record.Checkpoint != nil && is.Record.Checkpoint.ID == a.Checkpoint.ID
	})
	if err != nil {
		return err
	}
	replica.Checkpoint, replica.Offered = store.CopyOf(a.Checkpoint), ""
	t.o.Replicas.Taken(replica) // before anybody can wake it
	if late.is {
		begin(t, a.Checkpoint.ID, late.from)
	}
	t.arrive(next, sb.Record, res)
	return nil
}

// arrive makes a sandbox known that was taken.
func (t *Taker) arrive(sb store.Sandbox, before lifecycle.Record, res lifecycle.Result) {
	sb.Owner, sb.Rev = t.o.Store.Self(), sb.Rev+1
	t.o.Arrived(sb, before, res)
}

// take commits that this server has a sandbox. The stored record is done if that has happened.
func (t *Taker) take(next store.Sandbox, entries []lifecycle.Entry, done func(store.Sandbox) bool) error {
	return t.decide(next.ID, func(ctx context.Context) (bool, error) {
		is, err := t.o.Store.Sandbox(ctx, next.ID)
		return err == nil && is.Owner == t.o.Store.Self() && done(is), err
	}, func(ctx context.Context) error { return t.o.Store.Take(ctx, next, entries) })
}

// decide commits that something is this server's. It returns when that has happened, or is
// refused; or when the supervisor stops: then the next start sees it in the record. has
// reports whether it has happened.
func (t *Taker) decide(id string, has func(ctx context.Context) (bool, error), take func(ctx context.Context) error) error {
	ctx := context.WithoutCancel(t.ctx)
	for unsure := false; ; unsure = true {
		err := t.o.Tenure.Check()
		if err == nil {
			err = t.o.Tenure.Heard(take(ctx))
		}
		refused := store.Refused(err)
		if refused && unsure && !errdef.Is(err, errdef.Fenced) {
			// By what had no answer before, it may be this server's. The store decides one commit after the
			// other, so what has asks for can be seen now, and could not while that was under way.
			done, failed := has(ctx)
			if done {
				return nil
			}
			if failed != nil && !errdef.Is(failed, errdef.NotFound) {
				err, refused = failed, false
			}
		}
		if err == nil || refused {
			return err
		}
		t.o.Log.Warn("it is not known yet whether what another server had was taken over", "of", id, "err", err)
		if !insist.Sleep(t.ctx, again) {
			return err
		}
	}
}

// Disown gives up the sandboxes and snapshots that other servers have taken over while this
// one could not renew its lease.
func (t *Taker) Disown(ctx context.Context) error {
	return errors.Join(t.disown(ctx), t.o.Shelf().RefreshSnapshots(ctx))
}

func (t *Taker) disown(ctx context.Context) error {
	all, err := t.o.Store.Others(ctx)
	for id := range all {
		if !t.o.Knows(id) {
			continue
		}
		switch sb, err := t.o.Store.Sandbox(ctx, id); {
		case errdef.Is(err, errdef.NotFound):
		case err != nil:
			return err
		case sb.Owner != t.o.Store.Self():
			t.o.Left(sb)
		}
	}
	return err
}

// AwaitCopies returns when all that sleep here are in object storage as they sleep, and all
// snapshots, if there is any; and when the memory is here of all that run.
func (t *Taker) AwaitCopies(ctx context.Context) error {
	return cmp.Or(t.o.Fetches.Drain(ctx), t.o.Replicas.Drain(ctx))
}

// SweepCopies removes from object storage what nothing of any server needs.
func (t *Taker) SweepCopies(ctx context.Context) error { return t.o.Replicas.Sweep(ctx) }
