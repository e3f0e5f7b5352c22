package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// away is the database's leases, which may be out of reach.
type away struct {
	store.Leases
	is atomic.Bool
}

var errAway = errdef.New(errdef.Unavailable, "store_unavailable", "the database does not answer")

func (a *away) Renew(ctx context.Context, life time.Duration) error {
	if a.is.Load() {
		return errAway
	}
	return a.Leases.Renew(ctx, life)
}

// leaseholder is a server that has claimed itself in the database before it opens.
type leaseholder struct {
	*server
	away   *away
	fenced atomic.Int32 // how often it was told
}

// openLeased starts a server with a lease, which it renews.
func (w *world) openLeased(t *testing.T) *leaseholder {
	t.Helper()
	x := &leaseholder{}
	w.tune = func(o *Options) {
		x.away = &away{Leases: o.Store.(store.Leases)}
		k, err := lease.Claim(t.Context(), x.away, store.Server{ID: "one", Place: "here"}, lease.Options{Now: func() time.Duration { return time.Duration(time.Now().UnixNano()) }})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = k.Run(t.Context()) }()
		o.Lease, o.OnFenced = k, func() { x.fenced.Add(1) }
	}
	x.server = w.mustOpen(t)
	return x
}

// TestLapse: while the lease has lapsed, requests wait, whether the sandbox runs or
// sleeps, and nothing begins. What waits goes on with the first renewal.
func TestLapse(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.openLeased(t)
		runs := create(t, srv.s, CreateRequest{Settings: sleepy})
		sleeps := create(t, srv.s, CreateRequest{Settings: sleepy})
		if err := srv.s.Pause(t.Context(), sleeps, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		srv.away.is.Store(true)
		time.Sleep(lease.Life)

		began := time.Now()
		var all sync.WaitGroup
		for _, id := range []string{runs, sleeps} {
			all.Go(func() {
				lease, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort})
				if err != nil {
					t.Error(err)
					return
				}
				lease.Release()
				if waited := time.Since(began); waited < 20*time.Second {
					t.Errorf("access granted after %s", waited)
				}
			})
		}
		wantLapsed := func(what string, err error) {
			t.Helper()
			if !errdef.Is(err, errdef.Unavailable) || errdef.CodeOf(err) != "lease_lapsed" {
				t.Errorf("%s: %v, want lease_lapsed", what, err)
			}
		}
		wantLapsed("pause", srv.s.Pause(t.Context(), runs, PauseRequest{}))
		err := srv.s.Kill(t.Context(), sleeps, "")
		wantLapsed("kill", err)
		_, err = srv.s.Create(t.Context(), CreateRequest{Template: "test", Settings: sleepy})
		wantLapsed("create", err)
		time.Sleep(20 * time.Second)
		srv.away.is.Store(false)
		all.Wait()
		if waited := time.Since(began); waited > 25*time.Second {
			t.Errorf("accesses waited for %s", waited)
		}

		srv.away.is.Store(true)
		time.Sleep(lease.Life)
		began = time.Now()
		_, err = srv.s.Acquire(t.Context(), runs, Access{Port: counterPort})
		wantLapsed("access", err)
		if waited := time.Since(began); waited != srv.s.o.WakeTimeout {
			t.Errorf("refused after %s, want %s", waited, srv.s.o.WakeTimeout)
		}
		srv.away.is.Store(false)
		time.Sleep(time.Second)
		srv.ask(t, runs)
		if n := srv.fenced.Load(); n != 0 {
			t.Errorf("told %d times that it was fenced", n)
		}
		w.end(t, srv.server)
	})
}

// lapsing is a lease that is lapsed from the second time on that somebody asks for it.
type lapsing struct {
	asked  atomic.Int32
	renews atomic.Bool
}

func (l *lapsing) Check() error {
	if l.renews.Load() || l.asked.Add(1) == 1 {
		return nil
	}
	return errdef.New(errdef.Unavailable, "lease_lapsed", "the lease has lapsed")
}

func (l *lapsing) Wait(ctx context.Context) error {
	for l.Check() != nil {
		select {
		case <-ctx.Done():
			return l.Check()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (l *lapsing) Fenced() <-chan struct{} { return nil }

// TestLapseDuringAccess: an access that began before the lease has lapsed, and waited for its turn, is
// not granted what nobody would end; be it that the record alone does not refuse it.
func TestLapseDuringAccess(t *testing.T) {
	w := newWorld(t)
	l := &lapsing{}
	l.renews.Store(true)
	w.tune = func(o *Options) { o.Lease, o.WakeTimeout = l, 20*time.Millisecond }
	taking, taken := make(chan struct{}), make(chan struct{})
	snaps := true
	w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
		if at == atCheckpoint && snaps {
			snaps = false
			close(taking)
			<-taken
		}
		return nil
	}
	srv := w.mustOpen(t)
	t.Cleanup(func() { w.end(t, srv) })
	id := create(t, srv.s, CreateRequest{Settings: sleepy})
	snapped := make(chan error, 1)
	go func() {
		_, err := srv.s.TakeSnapshot(t.Context(), id, SnapshotRequest{})
		snapped <- err
	}()
	<-taking
	l.renews.Store(false)
	if lease, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort}); errdef.CodeOf(err) != "lease_lapsed" {
		t.Errorf("granted %+v, %v", lease, err)
	}
	if l.asked.Load() < 2 {
		t.Error("the lease had not lapsed meanwhile")
	}
	l.renews.Store(true)
	close(taken)
	if err := <-snapped; err != nil {
		t.Fatal(err)
	}
	if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil { // for which nothing is left to wait
		t.Error(err)
	}
}

// TestLapseDuringWake: a lease on a sandbox that wakes is granted only when the server's
// own has been renewed.
func TestLapseDuringWake(t *testing.T) {
	w := newWorld(t)
	w.meddle = func(ctx context.Context, _ *server, at point, _ string) error {
		if at == atRestore {
			time.Sleep(20 * time.Second)
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		srv := w.openLeased(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			srv.away.is.Store(true)
			time.Sleep(24 * time.Second)
			srv.away.is.Store(false)
		}()
		began := time.Now()
		srv.ask(t, id)
		if waited := time.Since(began); waited < 25*time.Second {
			t.Errorf("access granted after %s, while the lease had lapsed", waited)
		}
		w.end(t, srv.server)
	})
}

// handOver lets the next server find the files of one that lives on.
func (srv *server) handOver(t *testing.T) {
	t.Helper()
	grave := filepath.Join(srv.w.dir, "left")
	if err := os.MkdirAll(grave, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range subdirs {
		if err := os.Rename(filepath.Join(srv.dir, d), filepath.Join(grave, d)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFenced claims the server of a supervisor that serves. It grants nothing more, ends
// what is under way, and changes nothing; the next one has all that was acknowledged.
// The old one hears of it by a commit that is refused, or by its next renewal.
func TestFenced(t *testing.T) {
	for _, byCommit := range []bool{true, false} {
		t.Run(fmt.Sprintf("by commit %v", byCommit), func(t *testing.T) {
			w := newWorld(t)
			var hold atomic.Bool     // captures and restores
			var stopped atomic.Int32 // of them, how many were told to
			w.meddle = func(ctx context.Context, srv *server, at point, _ string) error {
				if hold.Load() && srv.number == 1 && (at == atCheckpoint || at == atRestore) {
					<-ctx.Done()
					stopped.Add(1)
					return ctx.Err()
				}
				return nil
			}
			synctest.Test(t, func(t *testing.T) {
				old := w.openLeased(t)
				var runs, sleeps, falls, wakes string
				for _, id := range []*string{&runs, &sleeps, &falls, &wakes} {
					*id = create(t, old.s, CreateRequest{Settings: sleepy})
					old.ask(t, *id)
				}
				for _, id := range []string{sleeps, wakes} {
					if err := old.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
				}
				open, err := old.s.Acquire(t.Context(), runs, Access{Port: counterPort, Stream: true})
				if err != nil {
					t.Fatal(err)
				}
				hold.Store(true)
				waiting := make(chan error, 2) // for operations under way
				go func() { waiting <- old.s.Pause(t.Context(), falls, PauseRequest{}) }()
				go func() {
					_, err := old.s.Acquire(t.Context(), wakes, Access{Port: counterPort})
					waiting <- err
				}()
				time.Sleep(time.Second)
				if _, err := old.s.SetTimeout(t.Context(), runs, 7*time.Hour, ""); err != nil {
					t.Fatal(err)
				}

				claimed := memstore.Open(w.data, memstore.Hooks{})
				if _, err := claimed.Claim(t.Context(), store.Server{ID: "one", Place: "here"}, 0); err != nil {
					t.Fatal(err)
				}
				before := records(t, claimed)
				wantFenced := func(what string, err error) {
					t.Helper()
					if !errdef.Is(err, errdef.Fenced) {
						t.Errorf("%s: %v, want class %q", what, err, errdef.Fenced)
					}
				}
				if byCommit {
					_, err := old.s.SetTimeout(t.Context(), runs, time.Hour, "")
					wantFenced("timeout", err)
				} else {
					time.Sleep(lease.Life / 3)
				}
				synctest.Wait()
				if n := old.fenced.Load(); n != 1 {
					t.Errorf("told %d times that it was fenced, want once", n)
				}
				if n := stopped.Load(); n != 2 {
					t.Errorf("%d operations under way have ended, want 2", n)
				}
				if !isCut(open) {
					t.Error("a connection goes on")
				} else {
					wantFenced("connection", open.Why())
				}
				for range 2 {
					select {
					case err := <-waiting:
						wantFenced("operation under way", err)
					default:
						t.Error("a caller still waits for an operation")
					}
				}
				for _, id := range []string{runs, sleeps, falls, wakes} {
					_, err := old.s.Acquire(t.Context(), id, Access{Port: counterPort})
					wantFenced("access", err)
					wantFenced("pause", old.s.Pause(t.Context(), id, PauseRequest{}))
				}
				_, err = old.s.Create(t.Context(), CreateRequest{Template: "test", Settings: sleepy})
				wantFenced("create", err)
				time.Sleep(10 * time.Minute) // its timers are off
				wantSame(t, before, records(t, claimed))

				old.handOver(t)
				next := w.openLeased(t)
				for _, id := range []string{runs, sleeps, falls, wakes} {
					if n := next.ask(t, id); n != 2 {
						t.Errorf("sandbox %s counts to %d, want 2", id, n)
					}
				}
				sb, err := next.s.Get(t.Context(), runs)
				if err != nil || !sb.Record.EndAt.Equal(before[runs].Record.EndAt) || time.Until(sb.Record.EndAt) < 6*time.Hour {
					t.Errorf("%v; a change that was acknowledged is not there: %+v", err, sb.Record)
				}
				time.Sleep(time.Minute)
				if next.fenced.Load() != 0 || old.fenced.Load() != 1 {
					t.Errorf("told %d and %d times that they were fenced", old.fenced.Load(), next.fenced.Load())
				}
				_ = old.s.Stop(t.Context()) // what it could not store it says
				w.end(t, next.server)
			})
		})
	}
}

// records returns those of all sandboxes, by id.
func records(t *testing.T, st store.Store) map[string]store.Sandbox {
	t.Helper()
	list, err := st.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]store.Sandbox{}
	for _, sb := range list {
		all[sb.ID] = sb
	}
	return all
}

// wantSame checks that no record has changed.
func wantSame(t *testing.T, before, now map[string]store.Sandbox) {
	t.Helper()
	for id, sb := range now {
		if was := before[id]; sb.Rev != was.Rev {
			t.Errorf("sandbox %s was %s at revision %d, and is %s at %d", id, was.Record.Situation(), was.Rev, sb.Record.Situation(), sb.Rev)
		}
	}
	if len(now) != len(before) {
		t.Errorf("%d sandboxes, want %d", len(now), len(before))
	}
}

// TestFencedWhileStarting: a server that was overtaken while it recovers does not start.
func TestFencedWhileStarting(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		first := w.openLeased(t)
		create(t, first.s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}})
		first.crash()
		_ = first.s.Stop(t.Context())
		w.powerOff() // so that there is something to commit
		tune := w.tune
		w.tune = func(o *Options) {
			tune(o)
			_, err := memstore.Open(w.data, memstore.Hooks{}).Claim(t.Context(), store.Server{ID: "one", Place: "here"}, 0)
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.open(); !errdef.Is(err, errdef.Fenced) || errors.Is(err, errDead) {
			t.Errorf("a supervisor that was overtaken starts with %v, want class %q", err, errdef.Fenced)
		}
	})
}
