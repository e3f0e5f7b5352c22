package supervisor

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// DefaultDrain is how long an automatic pause waits for requests in flight
// unless the operator says otherwise.
const DefaultDrain = 5 * time.Second

// What other pauses wait. A sandbox over its disk limit goes on writing.
const (
	explicitDrain = time.Second
	diskDrain     = 50 * time.Millisecond
)

func (b *box) lease(access Access) *Lease {
	a := b.work.Open(awake.Opening{
		Port: access.Port, Policy: b.sb.Config.WakePolicy(access.Port, access.Path), Stream: access.Stream, Probe: access.Probe, Ignore: &b.ignored,
	}, ids.Now())
	if a.Counts() && access.Stream {
		b.arm() // to tell when it stalls; few requests last so long
	}
	inst := b.inst
	cut, why := b.desk.Give(a.IsRequest())
	var once sync.Once
	return &Lease{
		Generation: b.sb.Record.Generation,
		Ready:      b.s.Board.Gate(b.id, inst, b.sb.Config.Services, access.Port, access.Path),
		Dial:       func(ctx context.Context, port int) (net.Conn, error) { return b.s.Board.Dial(ctx, b.id, inst, port) },
		Cut:        cut,
		Why:        why,
		Progress:   a.Passed,
		Streams:    func() { b.becomeStream(a) },
		Release:    func() { once.Do(func() { b.release(a) }) },
	}
}

// becomeStream notes that an access proved to have no natural end.
func (b *box) becomeStream(a *awake.Access) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work.BecomeStream(a) {
		_, _ = b.desk.Give(false)
		b.desk.Return(true)
	}
}

func (b *box) release(a *awake.Access) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work.Close(a, b.sb.Record, ids.Now()) {
		b.arm()
	}
	b.desk.Return(a.IsRequest())
}

// beginDrainLocked begins the pause that is in flight: accesses go on.
func (b *box) beginDrainLocked() {
	op := b.sb.Record.Op
	most := explicitDrain
	switch {
	case op.Cause == lifecycle.CauseDisk:
		most = diskDrain
	case op.Cancelable:
		most = b.s.o.Drain
	}
	b.desk.Drain(most)
}

// drainLeases lets requests in flight end by themselves, for a time. Then it raises
// the barrier: no new leases are given, and what is open is cut, streams included.
// An error, which is that of ctx, means that nothing was cut.
func (b *box) drainLeases(ctx context.Context) error {
	err := b.desk.Close(ctx, func() error { return outcome.PausedBy(b.sb.Record.Op) })
	if errors.Is(err, leases.ErrHeld) {
		b.s.log.Warn(err.Error(), "sandbox", b.id)
		return nil
	}
	return err
}
