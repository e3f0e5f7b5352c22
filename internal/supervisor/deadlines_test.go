package supervisor

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// appointment is a sandbox with one deadline.
type appointment struct {
	sb     store.Sandbox
	at     time.Time
	pauses bool
}

// clocks are the ways in which a sandbox comes by its deadline. All of them
// began long ago.
var clocks = []struct {
	share  int // of a thousand
	make   func(r *lifecycle.Record, at time.Time)
	pauses bool
}{
	{share: 940, make: func(r *lifecycle.Record, at time.Time) {
		r.State, r.Settings.MaxLifetime = lifecycle.Paused, at.Sub(r.CreatedAt)
	}},
	{share: 50, make: func(r *lifecycle.Record, at time.Time) {
		r.State, r.Settings.PausedRetention = lifecycle.Paused, at.Sub(r.PausedAt)
	}},
	{share: 9, make: func(r *lifecycle.Record, at time.Time) { r.State, r.EndAt = lifecycle.Running, at }},
	{share: 1, pauses: true, make: func(r *lifecycle.Record, at time.Time) {
		r.State, r.EndAt, r.Settings.OnTimeout = lifecycle.Running, at, lifecycle.Pause
	}},
}

// makeAppointments returns n sandboxes whose deadlines lie between from and to
// at random.
func makeAppointments(n int, from, to time.Time) []appointment {
	list, rng := make([]appointment, n), testmode.Rand(0)
	// Each has an instant of its own, so that they have one order.
	each, order := to.Sub(from)/time.Duration(n), rng.Perm(n)
	for i := range list {
		c, roll := 0, rng.IntN(1000)
		for roll >= clocks[c].share {
			roll -= clocks[c].share
			c++
		}
		a := &list[i]
		a.at = from.Add(time.Duration(order[i])*each + testmode.N(rng, each/2)).UTC().Truncate(time.Microsecond)
		a.pauses = clocks[c].pauses
		began := from.Add(-24 * time.Hour).UTC().Truncate(time.Microsecond)
		a.sb = store.Sandbox{ID: ids.New(), Config: store.Config{Template: "test"}, Record: lifecycle.Record{
			Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill}, Generation: 1, Launch: 1, Launches: 1,
			CreatedAt: began, StartedAt: began, EndSetAt: began, PausedAt: began,
		}}
		clocks[c].make(&a.sb.Record, a.at)
		if a.sb.Record.State == lifecycle.Paused {
			a.sb.Record.Checkpoint = &lifecycle.Checkpoint{ID: ids.NewOp(), Mode: lifecycle.Memory, Stack: []string{sweep.RuntimeID(a.sb.ID, 1)}}
		}
	}
	return list
}

// populate puts the sandboxes into a store and their runtimes onto the machine,
// as a server that is gone would have left them.
func (w *world) populate(t testing.TB, st store.Store, list []appointment) {
	t.Helper()
	for _, a := range list {
		if err := st.Commit(t.Context(), a.sb, nil); err != nil {
			t.Fatal(err)
		}
		if a.sb.Record.State != lifecycle.Running {
			continue
		}
		id := sweep.RuntimeID(a.sb.ID, 1)
		if _, err := w.machine.Driver().Start(t.Context(), runtime.Spec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
}

// leaveFiles puts the sandboxes' files where the first server finds them.
func (w *world) leaveFiles(t testing.TB, list []appointment) {
	t.Helper()
	for _, a := range list {
		dirs := []string{filepath.Join("layers", sweep.RuntimeID(a.sb.ID, 1), "root")}
		if cp := a.sb.Record.Checkpoint; cp != nil {
			dirs = append(dirs, filepath.Join("images", cp.ID))
		}
		for _, d := range dirs {
			if err := os.MkdirAll(filepath.Join(w.dir, "left", d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "drowse-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newWorldIn(t, dir)
}

// fewer returns n, or less of it where everything is slow.
func fewer(n int) int {
	switch {
	case testmode.All() && !testing.Short() && !raceEnabled:
		return n
	case raceEnabled:
		return n / 100
	}
	return n / 20
}

// TestDeadlinesOverRestarts lets 100,000 deadlines run out while the server
// crashes ten times, at any moment, and stays away for a while. Each takes
// effect once and never early. Time is virtual.
func TestDeadlinesOverRestarts(t *testing.T) {
	const restarts, span = 10, 10 * time.Hour
	n, rng := fewer(100_000), testmode.Rand(1)
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		list := makeAppointments(n, began, began.Add(span))
		due := map[string]appointment{}
		for _, a := range list {
			due[a.sb.ID] = a
		}
		w.populate(t, memstore.Open(w.data, memstore.Hooks{}), list)

		effects, early, whileDown := map[string]int{}, 0, 0
		w.hooks = func(srv *server) memstore.Hooks {
			up := time.Now()
			return memstore.Hooks{After: func(c memstore.Commit) error { // one at a time
				for _, e := range c.Entries {
					if e.Type != lifecycle.EntryTerminated && e.Type != lifecycle.EntryPaused {
						continue
					}
					a := due[c.After.ID]
					effects[c.After.ID]++
					if a.pauses != (e.Type == lifecycle.EntryPaused) || e.At.Before(a.at) {
						early++
					}
					if a.at.Before(up) {
						whileDown++
					}
				}
				return nil
			}}
		}
		for range restarts {
			srv := w.mustOpen(t)
			time.Sleep(testmode.N(rng, 2*span/restarts))
			srv.crash()
			srv.s.stop()
			time.Sleep(testmode.N(rng, 20*time.Minute))
		}
		srv := w.mustOpen(t)
		time.Sleep(span)
		w.end(t, srv)

		never, again := 0, 0
		for id := range due {
			switch n := effects[id]; {
			case n == 0:
				never++
			case n > 1:
				again++
			}
		}
		if never > 0 || again > 0 || early > 0 {
			t.Errorf("of %d deadlines %d never took effect, %d more than once, %d early or wrongly", n, never, again, early)
		}
		t.Logf("%d deadlines over %d crashes: each took effect once, %d of them late, because the server was down", n, restarts, whileDown)
	})
}

func (w *world) mustOpen(t testing.TB) *server {
	t.Helper()
	srv, err := w.open()
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// openSQLite gives the world's servers the real store.
func (w *world) openSQLite(t testing.TB) *store.SQL {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	w.tune = func(o *Options) { o.Store = st }
	return st
}

// TestOverdueAtStart starts a server 10,000 of whose deadlines passed while it
// was down. Each fires once, the oldest first, and all that end a sandbox
// before those that pause one.
func TestOverdueAtStart(t *testing.T) {
	n := fewer(10_000)
	w := newWorld(t)
	st := w.openSQLite(t)
	list := makeAppointments(n, time.Now().Add(-time.Hour), time.Now())
	w.populate(t, st, list)
	w.leaveFiles(t, list)
	var lines lineCounter
	w.log = func(*server) slog.Handler { return slog.NewTextHandler(&lines, nil) }
	slices.SortFunc(list, func(x, y appointment) int {
		switch {
		case x.pauses == y.pauses:
			return x.at.Compare(y.at)
		case y.pauses:
			return -1
		}
		return 1
	})

	began := time.Now()
	srv := w.mustOpen(t)
	ready := time.Since(began)
	t.Cleanup(func() {
		if err := srv.s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// Those that slept look settled before their deadline has been seen to.
	for end := began.Add(5 * time.Minute); len(decisions(allEvents(t, st))) < n && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	awaitSettled(t, srv.s)
	t.Logf("start with %d deadlines passed: ready after %s, all settled after %s", n, ready, time.Since(began))

	all := allEvents(t, st)
	if got, want := int(lines.Load()), len(all); got != want {
		t.Errorf("%d lines logged for %d entries of the event log", got, want)
	}
	fired := decisions(all)
	if len(fired) != n {
		t.Fatalf("%d decisions of %d deadlines", len(fired), n)
	}
	for i, e := range fired {
		if e.Sandbox != list[i].sb.ID {
			t.Fatalf("%d fired as %s of %s; want %s, which was due at %s", i, e.Type, e.Sandbox, list[i].sb.ID, list[i].at)
		}
	}
}

// TestLateness measures, with 100,000 deadlines armed, how late those fire that
// come in the next seconds: each once, and none early. How late is for the
// benchmarks to judge (row B15).
func TestLateness(t *testing.T) {
	const soon, every = 1000, 2 * time.Millisecond
	n := fewer(100_000)
	w := newWorld(t)
	list := makeAppointments(n, time.Now().Add(time.Hour), time.Now().Add(24*time.Hour))
	w.populate(t, memstore.Open(w.data, memstore.Hooks{}), list)
	ended := make(chan store.Sandbox, n)
	w.hooks = func(*server) memstore.Hooks {
		return memstore.Hooks{After: func(c memstore.Commit) error {
			if c.Before.Record.Tombstone == nil && c.After.Record.Tombstone != nil {
				ended <- c.After
			}
			return nil
		}}
	}
	srv := w.mustOpen(t)
	t.Cleanup(func() {
		if err := srv.s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})

	due := map[string]time.Time{}
	first := ids.Now().Add(3 * time.Second)
	for i := range soon {
		sb, at := list[i].sb, first.Add(time.Duration(i)*every)
		life := at.Sub(sb.Record.CreatedAt)
		if _, err := srv.s.Patch(t.Context(), sb.ID, Patch{Settings: lifecycle.Patch{MaxLifetime: &life}}, ""); err != nil {
			t.Fatal(err)
		}
		due[sb.ID] = at
	}
	var late []time.Duration
	for range soon {
		sb := <-ended
		late = append(late, sb.Record.Tombstone.At.Sub(due[sb.ID]))
	}
	slices.Sort(late)
	t.Logf("%d of %d armed deadlines fired late by %s (p50), %s (p99), %s (most)", soon, n, late[soon/2], late[soon*99/100], late[soon-1])
	if late[0] < 0 {
		t.Errorf("a deadline fired %s early", -late[0])
	}
}

func allEvents(t *testing.T, st store.Store) []store.Event {
	t.Helper()
	all, err := st.Events(t.Context(), "", 0, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// decisions are the log entries that say that a deadline has fired.
func decisions(all []store.Event) []store.Event {
	return slices.DeleteFunc(all, func(e store.Event) bool {
		return e.Type != lifecycle.EntryTerminated && e.Type != lifecycle.EntryPausing
	})
}

// lineCounter counts what is written to it; a log handler writes whole lines.
type lineCounter struct{ atomic.Int64 }

func (c *lineCounter) Write(p []byte) (int, error) {
	c.Add(1)
	return len(p), nil
}

// awaitSettled waits until nothing runs and no operation is in flight.
func awaitSettled(t testing.TB, s *Supervisor) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	s.each(func(b *box) {
		for {
			r := b.snapshot().Record
			if r.Op == nil && r.State != lifecycle.Running {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("sandbox %s is still %s", b.id, r.Situation())
			}
			time.Sleep(time.Millisecond)
		}
	})
}
