package leases

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestClose holds how long a pause waits for whom, and what it cuts.
func TestClose(t *testing.T) {
	errPaused := errors.New("paused")
	for _, c := range []struct {
		name    string
		request bool
		ends    time.Duration // when the holder returns the lease by itself; 0 for never
		follows time.Duration // or so long after the cut
		shorten time.Duration // what the wait is shortened to after a second; 0 for not
		cancel  time.Duration // when the pause is cancelled; 0 for not

		want   error
		cut    bool
		lasted time.Duration
	}{
		{name: "request ends in time", request: true, ends: 3 * time.Second, lasted: 3 * time.Second},
		{name: "request is cut", request: true, follows: time.Second, cut: true, lasted: 6 * time.Second},
		{name: "stream is cut at once", follows: time.Second, cut: true, lasted: time.Second},
		{name: "holder does not follow", follows: time.Hour, cut: true, want: ErrHeld, lasted: cutGrace},
		{name: "wait is shortened", request: true, shorten: time.Second, follows: time.Second, cut: true, lasted: 3 * time.Second},
		{name: "wait is not prolonged", request: true, shorten: time.Hour, follows: time.Second, cut: true, lasted: 6 * time.Second},
		{name: "cancelled", request: true, cancel: 2 * time.Second, want: context.Canceled, lasted: 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				d := New(&mu)
				locked := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
				var ends <-chan struct{}
				var why func() error
				locked(func() { ends, why = d.Give(c.request); d.Drain(5 * time.Second) })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan struct{})
				defer close(over)
				go func() {
					var own <-chan time.Time
					if c.ends > 0 {
						own = time.After(c.ends)
					}
					select {
					case <-own:
					case <-over:
						return
					case <-ends:
						select {
						case <-time.After(c.follows):
						case <-over:
							return
						}
					}
					locked(func() { d.Return(c.request) })
				}()
				if c.shorten > 0 {
					time.AfterFunc(time.Second, func() { locked(func() { d.Shorten(c.shorten) }) })
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				began := time.Now()
				err := d.Close(ctx, func() error { return errPaused })
				if lasted := time.Since(began); !errors.Is(err, c.want) || lasted != c.lasted {
					t.Errorf("it ended after %s with %v, want %s and %v", lasted, err, c.lasted, c.want)
				}
				select {
				case <-ends:
					if c.want == context.Canceled || why() != errPaused {
						t.Errorf("cut because %v", why())
					}
				default:
					if c.cut {
						t.Error("nothing was cut")
					}
				}
				locked(func() {
					if d.Draining != (c.want == context.Canceled) {
						t.Errorf("draining: %t", d.Draining)
					}
					d.Reopen()
					again, _ := d.Give(false)
					select {
					case <-again:
						if c.want != context.Canceled {
							t.Error("a lease that is given now has ended")
						}
					default:
					}
				})
			})
		})
	}
}
