// Package lease keeps a server's lease in the store, so that at most one process writes
// for the server.
//
// A [Keeper] renews the lease in the background, and knows whether this process
// certainly still has it. It counts from before the renewal was asked for, by a clock
// that goes on while the machine is suspended, and stops a third of the lease before its
// end: the database, whose clock it does not need to know, cannot have ended the lease by
// then. That keeps a process from serving what another has taken over; writes are
// refused by the store itself.
package lease

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/store"
)

// Life is how long a lease lasts that is not renewed, unless Options say otherwise.
const Life = 15 * time.Second

// Pauses between a renewal that failed and the next: the first, and the longest.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = time.Second
)

// claimEvery is how long to wait before another claim, at most: the other process may
// release its lease before that ends.
const claimEvery = time.Second

// Options say how a lease is kept. The zero value of each is its default.
type Options struct {
	Life time.Duration
	// Now is a clock that goes on while the machine is suspended.
	Now func() time.Duration
	Log *slog.Logger
	// StandBy is called once if another process has the lease, before the wait; nil for nothing.
	StandBy func()
	// Lapsed is called each time this process has stopped to have the lease certainly, while
	// Run runs: within a second or so from when Check fails, whatever the database does, and
	// when another process has claimed the server. It must not wait. Nil for nothing.
	Lapsed func()
	// Back is called after Lapsed, when the lease was renewed all the same and before Check
	// succeeds again. Its context ends when that renewal has lasted for too long. After an
	// error the renewal does not count, and the next one comes soon. Nil for nothing.
	Back func(context.Context) error
}

// watchEvery is how long a lapse may go unnoticed after the machine was suspended, for which
// timers stand still.
const watchEvery = time.Second

// Keeper keeps the lease of one server. Its methods are safe for concurrent use.
type Keeper struct {
	o      Options
	leases store.Leases
	server store.Server
	urge   chan struct{} // has room for one: somebody needs the lease
	fenced chan struct{} // closed when another process has claimed the server

	lapsing sync.Mutex // held while Lapsed is called

	mu      sync.Mutex
	asked   time.Duration // when the last renewal was asked for that succeeded
	lapsed  bool          // Lapsed was called, and no renewal has counted since
	ended   bool          // by Release
	renewal chan struct{} // closed with the next renewal
}

// bootTime returns the time since the machine started.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("internal error: read the clock since boot: %v", err)) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Claim claims the server, and waits for that while another process has its lease. Run
// then keeps it.
func Claim(ctx context.Context, leases store.Leases, srv store.Server, o Options) (*Keeper, error) {
	o.Life = cmp.Or(o.Life, Life)
	if o.Now == nil {
		o.Now = bootTime
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var lives error // the other process had the lease when last asked
	for {
		asked := o.Now()
		got, err := bounded(ctx, o.Life, func(ctx context.Context) (store.Server, error) { return leases.Claim(ctx, srv, o.Life) })
		if err == nil {
			o.Log.Info("server claimed", "server", got.ID, "epoch", got.Epoch)
			return &Keeper{
				o: o, leases: leases, server: got, asked: asked,
				urge: make(chan struct{}, 1), fenced: make(chan struct{}), renewal: make(chan struct{}),
			}, nil
		}
		if errdef.CodeOf(err) != "server_lives" {
			if ctx.Err() != nil {
				err = cmp.Or(lives, err)
			}
			return nil, fmt.Errorf("claim server %s: %w", srv.ID, err)
		}
		if lives == nil {
			o.Log.Info("standing by: another process has the lease of this server", "server", srv.ID, "err", err)
			if o.StandBy != nil {
				o.StandBy()
			}
		}
		lives = err
		left, _ := errdef.Fact(err, "retry_after_ms").(int64)
		wait := min(max(time.Duration(left)*time.Millisecond, firstPause), claimEvery)
		if !sleep(ctx, wait, nil) {
			return nil, fmt.Errorf("claim server %s: %w", srv.ID, err)
		}
	}
}

// bounded calls the database, which may hang, for no longer than most.
func bounded[T any](ctx context.Context, most time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return call(ctx)
}

// sleep returns true after d, or when urged, and false when ctx ends.
func sleep(ctx context.Context, d time.Duration, urged <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-urged:
		return true
	case <-ctx.Done():
		return false
	}
}

// Age returns how long ago the renewal was asked for that the lease has from: a third of its life at
// most, while the database answers at once.
func (k *Keeper) Age() time.Duration { return k.since(k.o.Now()) }

// Server returns the server as it was claimed.
func (k *Keeper) Server() store.Server { return k.server }

// Run renews the lease until ctx ends, or until another process has claimed the server;
// then it returns store.ErrFenced.
func (k *Keeper) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { k.watch(watching) })
	defer watch.Wait()
	defer stop()
	third := k.o.Life / 3
	for wait, pause, failed, urged := third, firstPause, false, k.urge; sleep(ctx, wait, urged); {
		asked := k.o.Now()
		_, err := bounded(ctx, third/2, func(ctx context.Context) (struct{}, error) { return struct{}{}, k.leases.Renew(ctx, k.o.Life) })
		after := k.since(asked)
		if err == nil {
			err = k.count(ctx, asked)
		}
		switch {
		case err == nil:
			if failed {
				k.o.Log.Info("lease renewed again", "server", k.server.ID, "after", after)
			}
			wait, pause, failed, urged = max(0, third-(k.o.Now()-asked)), firstPause, false, k.urge
		case errdef.Is(err, errdef.Fenced):
			k.o.Log.Error("another process has claimed this server", "server", k.server.ID, "epoch", k.server.Epoch, "err", err)
			close(k.fenced)
			k.lapse(true)
			return k.Check()
		case ctx.Err() != nil:
			return nil
		default:
			if !failed {
				k.o.Log.Warn("lease could not be renewed", "server", k.server.ID, "err", err)
			}
			wait, pause, failed, urged = pause, min(2*pause, mostPause), true, nil
		}
	}
	return nil
}

// count counts a renewal, after Back if the lease has lapsed meanwhile.
func (k *Keeper) count(ctx context.Context, asked time.Duration) error {
	if k.renewed(asked, false) {
		return nil
	}
	k.lapse(true) // what watches may have slept as the machine did
	if k.o.Back != nil && !planted.In(planted.DeafReturn) {
		_, err := bounded(ctx, k.certain()-(k.o.Now()-asked), func(ctx context.Context) (struct{}, error) { return struct{}{}, k.o.Back(ctx) })
		if err != nil {
			return fmt.Errorf("go on with the lease: %w", err)
		}
	}
	k.renewed(asked, true)
	return nil
}

// renewed counts a renewal, and reports whether it has: one after a lapse counts only when
// that is dealt with.
func (k *Keeper) renewed(asked time.Duration, dealtWith bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !dealtWith && k.left() <= 0 {
		return false
	}
	k.asked = asked
	k.lapsed = k.lapsed && k.left() <= 0 // if it took longer than the lease
	close(k.renewal)
	k.renewal = make(chan struct{})
	return true
}

// certain is for how long after it was asked for a renewal certainly lasts.
func (k *Keeper) certain() time.Duration { return k.o.Life - k.o.Life/3 }

// left is for how long this process certainly has the lease still. It is called with mu
// locked.
func (k *Keeper) left() time.Duration { return k.certain() - (k.o.Now() - k.asked) }

// watch sees the lease lapse, also while a renewal hangs.
func (k *Keeper) watch(ctx context.Context) {
	for wait := time.Duration(0); sleep(ctx, wait, nil); {
		left := k.lapse(false)
		if wait = watchEvery; left > 0 {
			wait = min(wait, max(left, time.Millisecond))
		}
	}
}

// lapse calls Lapsed if the lease has lapsed, or is known to have, unless that was called
// since a renewal counted. It returns for how long the lease is left.
func (k *Keeper) lapse(known bool) (left time.Duration) {
	k.lapsing.Lock()
	defer k.lapsing.Unlock()
	k.mu.Lock()
	left = k.left()
	call := !k.lapsed && (known || left <= 0)
	k.lapsed = k.lapsed || call
	k.mu.Unlock()
	if call && k.o.Lapsed != nil {
		k.o.Lapsed()
	}
	return left
}

// since returns how long ago the last renewal was asked for that succeeded.
func (k *Keeper) since(now time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return now - k.asked
}

// Fenced is closed when another process has claimed the server, which is final.
func (k *Keeper) Fenced() <-chan struct{} { return k.fenced }

// Check returns nil while this process certainly has the lease. It returns
// store.ErrFenced if another has claimed the server, and else an errdef.Unavailable.
func (k *Keeper) Check() error {
	_, err := k.check()
	return err
}

// check is Check. It returns what is closed with the next renewal; nil if there will be
// none.
func (k *Keeper) check() (renewed <-chan struct{}, err error) {
	select {
	case <-k.fenced:
		return nil, store.ErrFenced(k.server.ID)
	default:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return nil, errdef.New(errdef.Unavailable, "lease_lapsed", "this process has given up the lease of server %s", k.server.ID).
			WithRemedy("try again: another process may serve it")
	}
	left := k.left()
	if left > 0 {
		return k.renewal, nil
	}
	ago := k.certain() - left
	select { // the timer of the next renewal stood still if the machine was suspended
	case k.urge <- struct{}{}:
	default:
	}
	return k.renewal, errdef.New(errdef.Unavailable, "lease_lapsed", "the database has not renewed this server's lease for %d s; requests wait until it does", int(ago.Seconds())).
		WithRemedy("try again in a moment; if it goes on, see whether the server reaches its database").With("retry_after_ms", mostPause.Milliseconds())
}

// Wait returns nil as soon as this process certainly has the lease. It returns the error
// of Check when ctx ends, and when this process will not have the lease again.
func (k *Keeper) Wait(ctx context.Context) error {
	for {
		renewed, err := k.check()
		if err == nil || renewed == nil {
			return err
		}
		select {
		case <-renewed:
		case <-k.fenced:
		case <-ctx.Done():
			return err
		}
	}
}

// Release ends the lease, so that another process can claim the server at once. Run must
// have returned.
func (k *Keeper) Release(ctx context.Context) error {
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	if err := k.leases.Release(ctx); err != nil {
		return fmt.Errorf("release the lease of server %s: %w", k.server.ID, err)
	}
	return nil
}
