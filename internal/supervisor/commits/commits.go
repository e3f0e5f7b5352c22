// Package commits makes changes of sandboxes durable, and has them happen then.
//
// The answer to a commit can be lost, and nobody knows then whether it has happened. What is
// decided meanwhile, by how the sandbox was before, would contradict what may be stored. So
// nothing else happens to the sandbox until that is known. It is learned by trying the same
// again: then it has happened, unless something forbids it by now.
package commits

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Change is what is to become durable of a sandbox.
type Change struct {
	Sandbox  store.Sandbox        // as it becomes, with the revision that it had
	Was      *lifecycle.Operation // in flight until then; nil for none
	Entries  []lifecycle.Entry
	Snapshot *store.Snapshot     // nil for none
	Stored   func(store.Sandbox) // lets it have happened, with the sandbox as it is stored
	Refused  func()              // lets it never have happened; nil for nothing
}

// Store is what is needed of the store.
type Store interface {
	Self() string
	Sandbox(ctx context.Context, id string) (store.Sandbox, error)
	CommitEnd(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) (forgotten []string, err error)
}

// Tenure tells what the lease of the server allows, and hears what becomes of it.
type Tenure interface {
	Allows(before, after *lifecycle.Operation) error
	Heard(err error) error
}

// Options is what a Committer works with.
type Options struct {
	Store Store
	// Commit makes the change of a sandbox durable that has not ended, with a snapshot unless
	// that is nil.
	Commit func(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry, snap *store.Snapshot) error
	Tenure Tenure
	// Relieve makes room on the disk that the store is on, and reports whether it has; nil for
	// a store elsewhere.
	Relieve func() bool
	// Forgotten is told of the sandboxes whose tombstones have gone for that of another.
	Forgotten func(id string)
	// Later waits until something is worth another try; false when the server stops. Go runs
	// what the server waits for when it does.
	Later func() bool
	Go    func(func())
	Log   *slog.Logger
}

// Committer makes changes of sandboxes durable.
type Committer struct {
	ctx context.Context // outlives callers: a commit is not left half way because one went away
	o   Options
}

// New returns a Committer.
func New(ctx context.Context, o Options) *Committer {
	return &Committer{context.WithoutCancel(ctx), o}
}

// Last is the last change of a sandbox. All calls but Learn are made with Mu held.
type Last struct {
	Mu      sync.Locker
	Left    func(server string) // told that another server has the sandbox
	Learned func()              // told that a change has happened of which that was not known
	unknown *Change             // whether it has happened; nil if that is known
}

// Known reports whether it is known of the last change whether it has happened.
func (l *Last) Known() bool { return l.unknown == nil }

// Drop returns the change of which that is not known, and forgets it; nil for none.
func (l *Last) Drop() *Change {
	c := l.unknown
	l.unknown = nil
	return c
}

// errUnsettled is of a change that was decided while the one before was in doubt.
var errUnsettled = errors.New("it is not known whether the last change of the sandbox has happened")

// Commit makes a change durable, and then has it happen. It may be a store.ErrUnlearned. The
// change before must be settled.
func (x *Committer) Commit(l *Last, c *Change) error {
	again := l.unknown == c
	if !again && !l.Known() {
		if c.Refused != nil {
			c.Refused()
		}
		return errUnsettled
	}
	err := x.write(c)
	is, known := err == nil, !store.IsUnlearned(err)
	if again && !is {
		// Else it says nothing of the time before. What is stored may be a successor's where this
		// process is fenced.
		if known = store.Refused(err) && !errdef.Is(err, errdef.Fenced); known {
			is, known = x.isStored(c)
		}
	}
	l.unknown = nil
	switch {
	case !known:
		l.unknown = c
		if !again && c.Sandbox.Rev > 0 { // else whoever creates it sees to it
			x.o.Go(func() { x.settleSoon(l) })
		}
	case is:
		c.Sandbox.Rev++
		c.Stored(c.Sandbox)
		if again {
			l.Learned()
		}
		return nil
	case c.Refused != nil:
		c.Refused()
	}
	if owner, is := store.SandboxElsewhere(err, c.Sandbox.ID); is && c.Sandbox.Rev > 0 {
		l.Left(owner)
	}
	return x.o.Tenure.Heard(err)
}

func (x *Committer) write(c *Change) error {
	var forgotten []string
	write := func() (err error) {
		if !c.Sandbox.Ended() {
			return x.o.Commit(x.ctx, c.Sandbox, c.Entries, c.Snapshot)
		}
		forgotten, err = x.o.Store.CommitEnd(x.ctx, c.Sandbox, c.Entries)
		return err
	}
	err := x.o.Tenure.Allows(c.Was, c.Sandbox.Record.Op)
	if err == nil {
		err = write()
	}
	if err != nil && !store.Refused(err) && x.o.Relieve != nil && x.o.Relieve() {
		x.o.Log.Warn("the disk is full: reserve given up", "sandbox", c.Sandbox.ID, "err", err)
		err = write()
	}
	for _, id := range forgotten {
		x.o.Forgotten(id)
	}
	return err
}

// isStored reports whether a change has happened that was refused when it was tried again, and
// whether that is known. What was under way of it is over by then.
func (x *Committer) isStored(c *Change) (is, known bool) {
	has, err := x.o.Store.Sandbox(x.ctx, c.Sandbox.ID)
	return has.Owner == x.o.Store.Self() && has.Rev > c.Sandbox.Rev, err == nil || errdef.Is(err, errdef.NotFound)
}

// Settle returns when it is known of the last change whether it has happened, or else an error.
func (x *Committer) Settle(l *Last) error {
	for !l.Known() {
		c := l.unknown
		if err := x.Commit(l, c); l.unknown == c { // else another one may be, which what this has led to has begun
			return err
		}
	}
	return nil
}

// settleSoon settles the last change as soon as the store answers.
func (x *Committer) settleSoon(l *Last) {
	for known := false; !known && x.o.Later(); {
		l.Mu.Lock()
		known = x.Settle(l) == nil
		l.Mu.Unlock()
	}
}

// Learn has apply commit what has come about, and returns when it is known whether that has
// happened, or with a store.ErrUnlearned when the server stops: the next one finds what is
// stored. Apply calls done in Stored. Failed is told of each error, and reports whether to try
// again where the store has refused it.
func (x *Committer) Learn(l *Last, apply func(done func(lifecycle.Result)) (lifecycle.Result, error), failed func(error) bool) (lifecycle.Result, error) {
	var happened *lifecycle.Result // guarded by Mu
	try := func() (res lifecycle.Result, known bool, err error) {
		l.Mu.Lock()
		defer l.Mu.Unlock()
		err = x.Settle(l)
		if err == nil && happened == nil {
			res, err = apply(func(r lifecycle.Result) { happened = &r })
		}
		if happened != nil {
			return *happened, true, nil
		}
		return res, l.Known(), err
	}
	for {
		res, known, err := try()
		if err == nil {
			return res, nil
		}
		again := failed(err)
		switch {
		case known && (!again || !x.o.Later()):
			return res, err
		case !known && !x.o.Later():
			return res, store.ErrUnlearned(err)
		}
	}
}
