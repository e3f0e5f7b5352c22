package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// world is a database that can be out of reach, and a machine that can be suspended.
type world struct {
	t     *testing.T
	data  *memstore.Data
	began time.Time
	log   bytes.Buffer

	mu        sync.Mutex
	suspended time.Duration
	fails     error // what renewals return
	hangs     bool  // they return only when their context ends
	slow      time.Duration
	renewals  int
	longest   time.Duration // that one has taken

	hooks  []string                    // that were called
	lapsed time.Time                   // when Lapsed was, last
	back   func(context.Context) error // what Back does; nil for nothing
}

// note notes a call of a hook.
func (w *world) note(hook string) {
	w.set(func() { w.hooks = append(w.hooks, hook) })
}

// wantHooks checks which hooks were called since the last time, in that order.
func (w *world) wantHooks(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.set(func() {
		w.t.Helper()
		if !slices.Equal(w.hooks, want) {
			w.t.Errorf("%s: called are %q, want %q", when, w.hooks, want)
		}
		w.hooks = nil
	})
}

// leases is the way of one process to the database.
type leases struct {
	store.Leases
	w *world
}

func (l leases) Renew(ctx context.Context, life time.Duration) error {
	began := time.Now()
	l.w.mu.Lock()
	l.w.renewals++
	fails, hangs, slow := l.w.fails, l.w.hangs, l.w.slow
	l.w.mu.Unlock()
	defer func() {
		l.w.mu.Lock()
		defer l.w.mu.Unlock()
		l.w.longest = max(l.w.longest, time.Since(began))
	}()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if fails != nil {
		return fails
	}
	err := l.Leases.Renew(ctx, life)
	time.Sleep(slow) // the answer's way
	return err
}

func (w *world) now() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.began) + w.suspended
}

// set changes how the world is.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// run tests on virtual time, with a new world.
func run(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, &world{t: t, data: memstore.NewData(), began: time.Now()})
	})
}

// claim claims a server, without Run.
func (w *world) claim(place string) *Keeper {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	k, err := Claim(w.t.Context(), leases{memstore.Open(w.data, memstore.Hooks{}), w}, store.Server{ID: "one", Name: "machine", Place: place}, Options{
		Now: w.now, Log: log,
		Lapsed: func() {
			w.note("lapsed")
			w.set(func() { w.lapsed = time.Now() })
		},
		Back: func(ctx context.Context) error {
			w.note("back")
			back := func(context.Context) error { return nil }
			w.set(func() {
				if w.back != nil {
					back = w.back
				}
			})
			return back(ctx)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// keep claims a server and keeps its lease.
func (w *world) keep() *Keeper {
	w.t.Helper()
	k := w.claim("here")
	go func() { _ = k.Run(w.t.Context()) }()
	return k
}

// left returns how long the database lets the lease last.
func (w *world) left() time.Duration {
	w.t.Helper()
	all, err := memstore.Open(w.data, memstore.Hooks{}).Servers(w.t.Context())
	if err != nil || len(all) != 1 {
		w.t.Fatalf("servers %v, %v", all, err)
	}
	return time.Until(all[0].LeaseEndsAt)
}

var errAway = errdef.New(errdef.Unavailable, "store_unavailable", "the database does not answer")

func wantLapsed(t *testing.T, err error) {
	t.Helper()
	if !errdef.Is(err, errdef.Unavailable) || errdef.CodeOf(err) != "lease_lapsed" {
		t.Errorf("got error %v, want lease_lapsed", err)
	}
}

// TestHolds: a keeper holds for as long as the database can be reached, and a while
// longer, and always less long than the lease lasts.
func TestHolds(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		for range 100 {
			time.Sleep(700 * time.Millisecond)
			if err := k.Check(); err != nil || w.left() < 2*Life/3-time.Second {
				t.Fatalf("%v; the lease lasts for %s", err, w.left())
			}
		}
		synctest.Wait()
		if w.renewals > 15 {
			t.Errorf("%d renewals in 70 s", w.renewals)
		}
	})
}

func TestShortFailures(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		for range 20 {
			w.set(func() { w.fails = errAway })
			for range 9 {
				time.Sleep(time.Second / 2)
				if err := k.Check(); err != nil {
					t.Fatal(err)
				}
			}
			w.set(func() { w.fails = nil })
			time.Sleep(6 * time.Second)
		}
		w.wantHooks("failures that nobody noticed")
		synctest.Wait()
		if got := strings.Count(w.log.String(), "could not be renewed"); got > 20 {
			t.Errorf("%d lines of failures, want one of each at most:\n%s", got, w.log.String())
		}
	})
}

// TestLapse: the keeper stops holding before the lease ends, whoever waits goes on with
// the first renewal, and that comes soon after the database can be reached.
func TestLapse(t *testing.T) {
	for name, away := range map[string]func(w *world, away bool){
		"fails": func(w *world, away bool) {
			w.fails = nil
			if away {
				w.fails = errAway
			}
		},
		"hangs": func(w *world, away bool) { w.hangs = away },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				k := w.keep()
				w.set(func() { away(w, true) })
				for k.Check() == nil {
					time.Sleep(100 * time.Millisecond)
				}
				wantLapsed(t, k.Check())
				if left := w.left(); left < Life/3-time.Second || left > Life/3 {
					t.Errorf("it stops to hold %s before the lease ends, want %s", left, Life/3)
				}
				time.Sleep(time.Minute)
				err := k.Check()
				wantLapsed(t, err)
				if !strings.Contains(err.Error(), " 70 s") {
					t.Errorf("%v; want for how long", err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantLapsed(t, k.Wait(ctx))

				waited := make(chan error)
				go func() { waited <- k.Wait(t.Context()) }()
				synctest.Wait()
				w.set(func() { away(w, false) })
				began := time.Now()
				if err := <-waited; err != nil || time.Since(began) > Life/6+mostPause {
					t.Errorf("who waits gets %v after %s", err, time.Since(began))
				}
				if err := k.Check(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if w.longest > Life/6 {
					t.Errorf("a renewal took %s", w.longest)
				}
			})
		})
	}
}

// TestSlowAnswer counts from when a renewal was asked for: the lease does not last longer
// because its answer comes late.
func TestSlowAnswer(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		w.set(func() { w.slow = 2 * time.Second })
		time.Sleep(Life/3 + 2*time.Second) // one has been answered
		synctest.Wait()
		w.set(func() { w.fails = errAway })
		for k.Check() == nil {
			time.Sleep(100 * time.Millisecond)
		}
		if left := w.left(); left < Life/3-time.Second {
			t.Errorf("it holds until %s before the lease ends, want %s", left, Life/3)
		}
	})
}

// TestSuspended: a machine that was suspended does not hold until it has renewed, and
// does so as soon as somebody asks.
func TestSuspended(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		time.Sleep(Life/3 + time.Second)
		w.set(func() { w.suspended, w.fails = time.Hour, errAway })
		wantLapsed(t, k.Check())
		time.Sleep(time.Second)
		wantLapsed(t, k.Check())
		w.set(func() { w.fails = nil })
		if err := k.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.set(func() { w.suspended *= 2 })
		began := time.Now()
		if err := k.Wait(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %s; want a renewal at once", err, time.Since(began))
		}
	})
}

// TestSuspendedTooLong: another process has claimed the server meanwhile.
func TestSuspendedTooLong(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.claim("here")
		time.Sleep(Life)
		other := w.claim("there")
		wantLapsed(t, k.Check()) // it has not heard of it
		ended := make(chan error, 1)
		go func() { ended <- k.Run(t.Context()) }()
		waited := k.Wait(t.Context())
		for _, err := range []error{waited, k.Check(), k.Wait(t.Context()), <-ended} {
			if !errdef.Is(err, errdef.Fenced) {
				t.Errorf("got %v, want class %q", err, errdef.Fenced)
			}
		}
		<-k.Fenced()
		if err := other.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := k.Check(); !errdef.Is(err, errdef.Fenced) {
			t.Errorf("got %v, want class %q for ever", err, errdef.Fenced)
		}
		if other.Server().Epoch != k.Server().Epoch+1 {
			t.Errorf("epochs %d and %d", k.Server().Epoch, other.Server().Epoch)
		}
	})
}

// TestStandBy: a claim waits for the lease of another process to end, or to be released.
func TestStandBy(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		first := w.claim("here")
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- first.Run(ctx) }()
		claimed := make(chan *Keeper)
		go func() { claimed <- w.claim("there") }()
		time.Sleep(time.Hour)
		select {
		case <-claimed:
			t.Fatal("the server was claimed while its lease lasts")
		default:
		}
		synctest.Wait()
		if got := strings.Count(w.log.String(), "standing by"); got != 1 {
			t.Errorf("%d lines, want one:\n%s", got, w.log.String())
		}
		stop()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantLapsed(t, first.Check())
		wantLapsed(t, first.Wait(t.Context())) // it is final
		began := time.Now()
		second := <-claimed
		if time.Since(began) > claimEvery {
			t.Errorf("claimed %s after the release", time.Since(began))
		}

		// One that is killed says nothing.
		began = time.Now()
		third := w.claim("here")
		if waited := time.Since(began); waited < Life-claimEvery || waited > Life+claimEvery || third.Check() != nil {
			t.Errorf("claimed after %s, want the lease's %s; then %v", waited, Life, third.Check())
		}
		wantLapsed(t, second.Check())
	})
}

func TestClaimFails(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.keep()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := memstore.Open(w.data, memstore.Hooks{})
		if _, err := Claim(ctx, s, store.Server{ID: "one", Place: "there"}, Options{}); errdef.CodeOf(err) != "server_lives" {
			t.Errorf("a claim that waits for longer than it may: %v, want that the server lives", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, err := Claim(ctx, s, store.Server{ID: "two"}, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a claim that is cancelled: %v", err)
		}
	})
}

// TestHooks: Lapsed is called when the lease has lapsed, whatever the database does, and
// Back before the process has it again.
func TestHooks(t *testing.T) {
	for name, away := range map[string]func(w *world, away bool){
		"fails": func(w *world, away bool) {
			w.fails = nil
			if away {
				w.fails = errAway
			}
		},
		"hangs": func(w *world, away bool) { w.hangs = away },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				k := w.keep()
				w.set(func() {
					w.back = func(context.Context) error {
						wantLapsed(t, k.Check())
						time.Sleep(time.Second)
						wantLapsed(t, k.Check())
						return nil
					}
				})
				for range 2 {
					w.set(func() { away(w, true) })
					for k.Check() == nil {
						time.Sleep(time.Millisecond)
					}
					began := time.Now()
					time.Sleep(time.Second)
					w.wantHooks("lapsed", "lapsed")
					if late := w.lapsed.Sub(began); late.Abs() > 2*time.Millisecond {
						t.Errorf("Lapsed was called %s after the lapse", late)
					}
					time.Sleep(time.Minute)
					w.wantHooks("a minute later")
					w.set(func() { away(w, false) })
					if err := k.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
					w.wantHooks("renewed", "back")
					time.Sleep(time.Minute)
					w.wantHooks("later")
				}
			})
		})
	}
}

// TestBackFails: the lease is not there before Back has done what it does, in time.
func TestBackFails(t *testing.T) {
	for name, back := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errAway },
		"hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"is late": func(context.Context) error {
			time.Sleep(time.Minute)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				k := w.keep()
				w.set(func() { w.fails, w.back = errAway, back })
				for k.Check() == nil {
					time.Sleep(time.Second)
				}
				w.set(func() { w.fails = nil })
				for range 120 {
					time.Sleep(time.Second)
					wantLapsed(t, k.Check())
				}
				synctest.Wait()
				w.set(func() {
					calls := slices.DeleteFunc(slices.Clone(w.hooks), func(hook string) bool { return hook == "lapsed" })
					if most := int(2*time.Minute/mostPause) + 10; w.hooks[0] != "lapsed" || len(calls) != len(w.hooks)-1 || len(calls) < 2 || len(calls) > most {
						t.Errorf("called are %q, want Lapsed once, and then Back at times", w.hooks)
					}
					w.hooks, w.back = nil, nil
				})
				began := time.Now()
				if err := k.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(began); waited > time.Minute {
					t.Errorf("the lease is there %s after Back can do what it does", waited)
				}
				time.Sleep(time.Minute)
				w.wantHooks("once it has succeeded", "back")
				if err := k.Check(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHooksOfSuspended: timers have stood still.
func TestHooksOfSuspended(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		time.Sleep(Life/3 + time.Second)
		w.set(func() { w.suspended, w.fails = time.Hour, errAway })
		time.Sleep(time.Second) // nobody asks
		w.wantHooks("nobody asks", "lapsed")
		w.set(func() { w.fails = nil })
		if err := k.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantHooks("renewed", "back")

		time.Sleep(time.Second / 2) // none of its timers is due
		synctest.Wait()
		w.set(func() { w.suspended *= 2 })
		began := time.Now()
		if err := k.Wait(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %s; want a renewal at once", err, time.Since(began))
		}
		w.wantHooks("renewed before it was noticed", "lapsed", "back")

		// A renewal that was asked for before is not one for now.
		before, now := 0, 0
		w.set(func() { w.slow, before, now = time.Second, w.renewals, w.renewals })
		for now == before {
			time.Sleep(100 * time.Millisecond)
			w.set(func() { now = w.renewals })
		}
		w.set(func() { w.suspended, w.slow = 2*w.suspended, 0 })
		wantLapsed(t, k.Check())
		time.Sleep(2 * time.Second)
		if err := k.Check(); err != nil {
			t.Error(err)
		}
		w.set(func() {
			if len(w.hooks) < 2 || w.hooks[0] != "lapsed" || slices.Contains(w.hooks[1:], "lapsed") {
				t.Errorf("called are %q, want Lapsed once, and then Back", w.hooks)
			}
		})
	})
}

// TestHooksOfFenced: who has lost the server hears of it.
func TestHooksOfFenced(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		k := w.keep()
		w.claim("here") // in the same place
		<-k.Fenced()
		w.wantHooks("fenced", "lapsed")
		time.Sleep(time.Minute)
		w.wantHooks("later")
	})
}

// TestBootTime: the real clock runs.
func TestBootTime(t *testing.T) {
	began := bootTime()
	if now := bootTime(); began <= 0 || now < began {
		t.Errorf("read %s, then %s", began, now)
	}
}
