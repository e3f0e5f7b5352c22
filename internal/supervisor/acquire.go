package supervisor

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// Acquire gives a lease on the running generation, waking the sandbox where that is allowed. It
// returns lifecycle's refusals as they are, and an errdef.Unavailable if the sandbox did not wake,
// or the service is not ready that the access is for.
func (s *Supervisor) Acquire(ctx context.Context, id string, access Access) (*Lease, error) {
	s.Waiting.Add(1)
	defer s.Waiting.Add(-1)
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	var lease *Lease
	var w *waiter
	if s.tenure.Check() == nil {
		if lease, w, err = b.tryAcquire(access); err != nil {
			return nil, err
		}
		if lease != nil && s.tenure.Check() != nil { // it has lapsed meanwhile: perhaps nobody ends this one
			lease.Release()
			lease = nil
		}
		if lease != nil && lease.Ready == nil {
			return lease, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.WakeTimeout)
	defer cancel()
	if lease == nil && w == nil {
		if err := s.tenure.Wait(ctx); err != nil {
			return nil, err
		}
		if lease, w, err = b.tryAcquire(access); err != nil {
			return nil, err
		}
	}
	if w != nil {
		if lease, err = awaitLease(ctx, b, w); err != nil {
			return nil, err
		}
	}
	if err := s.tenure.Wait(ctx); err != nil { // it may have lapsed meanwhile
		lease.Release()
		return nil, err
	}
	return lease.WhenReady(ctx)
}

// awaitLease waits until the sandbox serves.
func awaitLease(ctx context.Context, b *box, w *waiter) (*Lease, error) {
	defer b.leave(w)
	for {
		end, err := calls.Wait(ctx, w.ended)
		if err != nil {
			return nil, err
		}
		if end.Type == lifecycle.EntryResumeFailed {
			return nil, outcome.NotResumed(b.id, end.Entry, b.unfitNow())
		}
		if lease, err := b.retry(w); lease != nil || err != nil {
			return lease, err
		}
	}
}

// waiter is an access that waits for the sandbox to serve. Those that wait get
// their leases in the same instant in which it does: a pause that is asked for
// then comes after them, not before.
type waiter struct {
	access Access
	// Guarded by box.mu.
	ended <-chan calls.Ending // of the operation that it waits for
	lease *Lease              // granted and not taken yet
}

// tryAcquire returns a lease, or what waits for one.
func (b *box) tryAcquire(access Access) (*Lease, *waiter, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lease, ended, err := b.acquireLocked(access)
	if lease != nil || err != nil {
		return lease, nil, err
	}
	if n := len(b.waiters); n >= b.s.o.WakeQueue {
		return nil, nil, errdef.New(errdef.Unavailable, "wake_queue_full", "%d requests wait for sandbox %s to wake already", n, b.id).
			WithRemedy("try again in a moment")
	}
	w := &waiter{access: access, ended: ended}
	b.waiters = append(b.waiters, w)
	return nil, w, nil
}

// retry returns the lease that was granted, or asks again. With neither a lease
// nor an error, w has something new to wait for.
func (b *box) retry(w *waiter) (lease *Lease, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if lease, w.lease = w.lease, nil; lease == nil {
		lease, w.ended, err = b.acquireLocked(w.access)
	}
	return lease, err
}

// leave ends the wait of w. A lease that it was granted and did not take is given back.
func (b *box) leave(w *waiter) {
	b.mu.Lock()
	b.waiters = slices.DeleteFunc(b.waiters, func(x *waiter) bool { return x == w })
	lease := w.lease
	b.mu.Unlock()
	if lease != nil {
		lease.Release()
	}
}

// grantLocked gives leases to all that wait, if the sandbox serves.
func (b *box) grantLocked() {
	if b.inst == nil || b.sb.Record.Situation() != lifecycle.Situation(lifecycle.Running) {
		return
	}
	for _, w := range b.waiters {
		w.lease = b.lease(w.access)
	}
	b.waiters = nil
}

// acquireLocked returns a lease, or what to wait for before asking again.
func (b *box) acquireLocked(access Access) (*Lease, <-chan calls.Ending, error) {
	m := lifecycle.Meta{Actor: access.Actor, Cause: lifecycle.CauseAccess}
	if !b.last.Known() || b.sb.Record.Situation() != lifecycle.Situation(lifecycle.Running) { // of each request to one that serves, none is used
		m.Op = ids.NewOp()
	}
	res, err := b.applyLocked(lifecycle.AccessRequested{
		Meta: m, Policy: b.sb.Config.WakePolicy(access.Port, access.Path), Probe: access.Probe, Draining: b.desk.Draining,
		Boots: b.sb.Config.Boots(access.Port, access.Path),
	})
	if err != nil {
		return nil, nil, err
	}
	if b.inst != nil && (res.Verdict == lifecycle.Applies || planted.In(planted.DroppedBarrier)) {
		return b.lease(access), nil, nil
	}
	if b.sb.Record.Op == nil && !b.moves {
		return nil, nil, outcome.RuntimeGone(b.id)
	}
	return nil, b.awaitLocked(), nil
}
