package supervisor

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// DefaultDrain is how long an automatic pause waits for requests in flight
// unless the operator says otherwise.
const DefaultDrain = 5 * time.Second

// What other pauses wait. A sandbox over its disk limit goes on writing.
const (
	explicitDrain = time.Second
	diskDrain     = 50 * time.Millisecond
	// cutGrace is how long holders of leases have to follow a cut.
	cutGrace = 2 * time.Second
)

// held counts the leases on the serving generation. It is guarded by box.mu.
type held struct {
	all      int
	requests int // of them, those that a pause waits for: no streams
	// changed is closed when one of the two falls to 0; nil while nobody waits.
	changed chan struct{}
}

// drain is the first part of a pause, while accesses may still be served. It is
// guarded by box.mu.
type drain struct {
	on  bool      // the barrier is not up
	end time.Time // when it goes up at the latest
}

// cut ends leases, and says why.
type cut struct {
	done chan struct{}
	why  error // set before done is closed
	over bool  // done is closed; guarded by box.mu
}

func newCut() *cut { return &cut{done: make(chan struct{})} }

func (b *box) lease(access Access) *Lease {
	b.held.all++
	a := b.work.Open(awake.Opening{
		Port: access.Port, Policy: b.sb.Config.WakePolicy(access.Port, access.Path), Stream: access.Stream, Probe: access.Probe, Ignore: &b.ignored,
	}, now())
	if a.Counts() && access.Stream {
		b.arm() // to tell when it stalls; few requests last so long
	}
	if a.IsRequest() {
		b.held.requests++
	}
	inst, cut := b.inst, b.cut
	var once sync.Once
	return &Lease{
		Generation: b.sb.Record.Generation,
		Dial:       func(ctx context.Context, port int) (net.Conn, error) { return agentclient.Dial(ctx, inst, port) },
		Cut:        cut.done,
		Why:        func() error { return cut.why },
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
		b.held.requests--
		b.stirLocked()
	}
}

func (b *box) release(a *awake.Access) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work.Close(a, b.sb.Record, now()) {
		b.arm()
	}
	b.held.all--
	if a.IsRequest() {
		b.held.requests--
	}
	b.stirLocked()
}

// stirLocked wakes who waits for leases to end.
func (b *box) stirLocked() {
	if b.held.changed != nil {
		close(b.held.changed)
		b.held.changed = nil
	}
}

// changesLocked returns what is closed when the leases, or how long to wait for
// them, have changed.
func (b *box) changesLocked() <-chan struct{} {
	if b.held.changed == nil {
		b.held.changed = make(chan struct{})
	}
	return b.held.changed
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
	b.drain = drain{on: true, end: time.Now().Add(most)}
}

// shortenDrainLocked carries out ShortenDrain.
func (b *box) shortenDrainLocked() {
	if end := time.Now().Add(explicitDrain); b.drain.end.IsZero() || end.Before(b.drain.end) {
		b.drain.end = end
	}
	b.stirLocked()
}

// drainLeases lets requests in flight end by themselves, for a time. Then it
// raises the barrier: no new leases are given, and what is open is cut, streams
// included. An error, which is that of ctx, means that nothing was cut.
func (b *box) drainLeases(ctx context.Context) error {
	for {
		changed, left, err := b.tryBarrier(ctx)
		switch {
		case err != nil:
			return err
		case changed == nil:
			b.awaitCut(ctx)
			return nil
		}
		waitFor(ctx, changed, left)
	}
}

// tryBarrier raises the barrier if it is time. Else it returns what to wait for,
// and for how long.
func (b *box) tryBarrier(ctx context.Context) (changed <-chan struct{}, left time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil { // cancelled: with mu held, also by an access that waits for it
		return nil, 0, err
	}
	if left = time.Until(b.drain.end); b.held.requests > 0 && left > 0 {
		return b.changesLocked(), left, nil
	}
	b.drain.on = false
	b.cutLocked(pausedBy(b.sb.Record.Op))
	return nil, 0, nil
}

// awaitCut waits until the holders of leases have followed the cut.
func (b *box) awaitCut(ctx context.Context) {
	end := time.Now().Add(cutGrace)
	for {
		b.mu.Lock()
		changed, left := b.changesLocked(), time.Until(end)
		if b.held.all == 0 || left <= 0 || ctx.Err() != nil {
			if b.held.all > 0 && ctx.Err() == nil {
				b.s.log.Warn("leases were not released after the cut", "sandbox", b.id)
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		waitFor(ctx, changed, left)
	}
}

func waitFor(ctx context.Context, changed <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (b *box) cutLocked(why error) {
	if !b.cut.over {
		b.cut.why, b.cut.over = why, true
		close(b.cut.done)
	}
}

func (b *box) uncutLocked() {
	b.drain.on = false
	if b.cut.over {
		b.cut = newCut()
	}
}

// pausedBy is why a pause cuts leases.
func pausedBy(op *lifecycle.Operation) error {
	if op != nil && op.Cause == lifecycle.CauseCheckpoint {
		return errdef.New(errdef.Unavailable, "checkpointed", "the sandbox was checkpointed, which ends its connections").
			WithRemedy("connect again: it runs on")
	}
	e := errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep").
		WithRemedy("resume it with connect; where autoResume is on, the next request wakes it")
	if op != nil {
		e = e.With("reason", op.Cause)
	}
	return e
}

// endOf is why the leases of a sandbox end whose runtime goes.
func endOf(sb store.Sandbox) error {
	if err := alive(sb); err != nil {
		return err
	}
	if sb.Record.State == lifecycle.Paused && sb.Record.LastError != "" {
		return errdef.New(errdef.Unavailable, "runtime_gone", "the sandbox lost its runtime: %s", sb.Record.LastError).
			WithRemedy("resume it with connect")
	}
	return pausedBy(sb.Record.Op)
}
