// Package tenure says whether this process may act for its sandboxes: while it has its
// server's lease, and until another process has claimed the server, which is final. What
// is in the store is guarded by the store itself; this keeps a process from serving, and
// from beginning, what it could not commit.
package tenure

import (
	"context"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
)

// Lease is the server's lease, as its keeper knows it.
type Lease interface {
	// Check returns nil while this process certainly has the lease. It is called for
	// each access.
	Check() error
	// Wait returns nil as soon as it has, and otherwise the error of Check when ctx ends.
	Wait(ctx context.Context) error
	// Fenced is closed when another process has claimed the server.
	Fenced() <-chan struct{}
}

// Tenure is safe for concurrent use.
type Tenure struct {
	lease  Lease
	fenced func()
	once   sync.Once
	over   chan struct{} // closed when another process has claimed the server
	why    error         // set before that
}

// New returns the tenure of a process with a lease, or nil for one that needs none.
// [Tenure.Follow] calls fenced, if that is not nil.
func New(lease Lease, fenced func()) *Tenure {
	return &Tenure{lease: lease, fenced: fenced, over: make(chan struct{})}
}

// Over returns an errdef.Fenced if another process has claimed the server, and nil
// otherwise.
func (t *Tenure) Over() error {
	select {
	case <-t.over:
		return t.why
	default:
		return nil
	}
}

// Heard notes what the store has answered, and returns it: a write that was fenced ends
// the tenure.
func (t *Tenure) Heard(err error) error {
	if errdef.Is(err, errdef.Fenced) {
		t.once.Do(func() {
			t.why = err
			close(t.over)
		})
	}
	return err
}

// Check returns an error unless this process may grant accesses.
func (t *Tenure) Check() error {
	if err := t.Over(); err != nil || t.lease == nil {
		return err
	}
	if planted.In(planted.OpenLapse) {
		return nil
	}
	return t.Heard(t.lease.Check())
}

// Wait is Check, and waits until ctx ends for a lease that has lapsed.
func (t *Tenure) Wait(ctx context.Context) error {
	err := t.Check()
	if err == nil || t.Over() != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err = t.Heard(t.lease.Wait(ctx)); err != nil && t.Over() != nil {
		return t.Over()
	}
	return err
}

// Allows returns an error if a change must not be committed: none may be once the tenure
// is over, and while the lease has lapsed only one of an operation under way, which may
// end: the store refuses that, if somebody else has it in hand.
func (t *Tenure) Allows(was, will *lifecycle.Operation) error {
	if was == nil || will != nil && was.ID != will.ID {
		return t.Check()
	}
	return t.Over()
}

// Follow calls fenced and then end, once the tenure is over, unless ctx ends first.
func (t *Tenure) Follow(ctx context.Context, end func(why error)) {
	var fenced <-chan struct{}
	if t.lease != nil {
		fenced = t.lease.Fenced()
	}
	select {
	case <-fenced:
		_ = t.Heard(t.lease.Check())
	case <-t.over:
	case <-ctx.Done():
		return
	}
	why := t.Over()
	if why == nil {
		return
	}
	if t.fenced != nil {
		t.fenced()
	}
	end(why)
}

// ErrUnsure says that this process has ended what was open because it may have lost its lease.
func ErrUnsure() error {
	return errdef.New(errdef.Unavailable, "lease_lapsed", "the server has lost its database, and does not know whether another goes on with the sandbox").
		WithRemedy("send the request again; see what was carried out")
}
