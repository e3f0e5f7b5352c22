// Package leases counts who talks to a sandbox, and ends that. A lease is the right
// to talk to one committed generation; a pause first lets requests in flight end by
// themselves for a time, and then cuts what is left.
package leases

import (
	"context"
	"errors"
	"sync"
	"time"
)

// cutGrace is how long holders of leases have to follow a cut.
const cutGrace = 2 * time.Second

// ErrHeld is that leases were not released after a cut.
var ErrHeld = errors.New("leases were not released after the cut")

// Desk is the leases on the generation of one sandbox that serves. Its methods are
// called with the lock of its owner held, but for Close, which takes it.
type Desk struct {
	mu sync.Locker

	all      int
	requests int // of them, those that a pause waits for: no streams
	// changed is closed when the leases, or how long to wait for them, have changed;
	// nil while nobody waits.
	changed chan struct{}
	cutting sync.Mutex // guards cut, which Sever takes without mu
	cut     *cut

	// Draining says that a pause waits for requests to end, and accesses may still
	// be served.
	Draining bool
	end      time.Time // when that ends at the latest
}

// cut ends leases, and says why.
type cut struct {
	done chan struct{}
	why  error // set before done is closed
	over bool  // done is closed
}

// New returns a desk that gives leases, of an owner with a lock.
func New(mu sync.Locker) *Desk { return &Desk{mu: mu, cut: newCut()} }

func (c *cut) end(why error) {
	if !c.over {
		c.why, c.over = why, true
		close(c.done)
	}
}

func newCut() *cut { return &cut{done: make(chan struct{})} }

// Give counts a lease. A request is one that a pause waits for. The channel is
// closed when the lease must end, and why says then what happened.
func (d *Desk) Give(request bool) (ends <-chan struct{}, why func() error) {
	d.all++
	if request {
		d.requests++
	}
	d.cutting.Lock()
	defer d.cutting.Unlock()
	c := d.cut
	return c.done, func() error { return c.why }
}

// Return counts a lease that has ended.
func (d *Desk) Return(request bool) {
	d.all--
	if request {
		d.requests--
	}
	d.stir()
}

// stir wakes who waits for leases to end.
func (d *Desk) stir() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// changes returns what is closed when something has changed.
func (d *Desk) changes() <-chan struct{} {
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.changed
}

// Drain begins a pause that waits for requests no longer than most.
func (d *Desk) Drain(most time.Duration) { d.Draining, d.end = true, time.Now().Add(most) }

// Shorten makes it wait no longer than most from now.
func (d *Desk) Shorten(most time.Duration) {
	if end := time.Now().Add(most); d.end.IsZero() || end.Before(d.end) {
		d.end = end
	}
	d.stir()
}

// Cut ends all leases, streams included.
func (d *Desk) Cut(why error) {
	d.Draining = false
	d.cutting.Lock()
	defer d.cutting.Unlock()
	d.cut.end(why)
}

// Sever ends all leases that there are, and goes on giving leases, if there was no cut
// before. The lock of the owner need not be held, who may be waiting for something.
func (d *Desk) Sever(why error) {
	d.cutting.Lock()
	defer d.cutting.Unlock()
	if !d.cut.over {
		d.cut.end(why)
		d.cut = newCut()
	}
}

// Reopen gives leases again after a cut.
func (d *Desk) Reopen() {
	d.Draining = false
	d.cutting.Lock()
	defer d.cutting.Unlock()
	if d.cut.over {
		d.cut = newCut()
	}
}

// Close lets requests in flight end by themselves, for as long as Drain said. Then
// it cuts what is open, and waits until the holders have followed: ErrHeld says that
// some have not. An error that is that of ctx means that nothing was cut.
func (d *Desk) Close(ctx context.Context, why func() error) error {
	for {
		changed, left, err := d.tryCut(ctx, why)
		switch {
		case err != nil:
			return err
		case changed == nil:
			return d.awaitCut(ctx)
		}
		waitFor(ctx, changed, left)
	}
}

// tryCut cuts if it is time. Else it returns what to wait for, and for how long.
func (d *Desk) tryCut(ctx context.Context, why func() error) (changed <-chan struct{}, left time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil { // cancelled: with mu held, also by an access that waits for it
		return nil, 0, err
	}
	if left = time.Until(d.end); d.requests > 0 && left > 0 {
		return d.changes(), left, nil
	}
	d.Cut(why())
	return nil, 0, nil
}

// awaitCut waits until the holders of leases have followed the cut.
func (d *Desk) awaitCut(ctx context.Context) error {
	end := time.Now().Add(cutGrace)
	for {
		d.mu.Lock()
		changed, left, held := d.changes(), time.Until(end), d.all > 0
		d.mu.Unlock()
		switch {
		case !held || ctx.Err() != nil:
			return nil
		case left <= 0:
			return ErrHeld
		}
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
