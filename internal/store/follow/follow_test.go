package follow

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// numbers are what has changed in a database.
type numbers struct {
	store.Owners
	mu  sync.Mutex
	is  map[store.Kind]int64
	err error

	called  []string // of what is called for changes
	failing error    // what that returns
}

func (n *numbers) Changes(context.Context) (map[store.Kind]int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.is), n.err
}

func (n *numbers) set(kind store.Kind, to int64, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.is[kind], n.err = to, err
}

// TestRun: what has changed is taken over, in order, once, and again if that failed.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		n := &numbers{is: map[store.Kind]int64{store.KindEvents: 7}}
		on := func(kind store.Kind) func(context.Context) error {
			return func(context.Context) error {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.called = append(n.called, string(kind))
				return n.failing
			}
		}
		var alone atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		f := New(Options{
			Owners: n, Alone: func(context.Context) bool { return alone.Load() }, Log: slog.New(slog.NewTextHandler(&out, nil)),
			On: map[store.Kind]func(context.Context) error{store.KindEvents: on(store.KindEvents), store.KindKeys: on(store.KindKeys)},
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(ctx)
		}()
		after := func(about string, looks int, want string) {
			t.Helper()
			time.Sleep(time.Duration(looks) * Every)
			synctest.Wait()
			n.mu.Lock()
			defer n.mu.Unlock()
			if got := strings.Join(n.called, " "); got != want {
				t.Errorf("%s: %q, want %q", about, got, want)
			}
			n.called = nil
		}
		fails := func(err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.failing = err
		}
		time.Sleep(Every / 2)
		after("at first", 0, "keys events")
		after("without a change", 3, "")
		n.set(store.KindEvents, 8, nil)
		n.set(store.KindSnapshots, 1, nil)
		after("after an event", 3, "events")
		n.set(store.KindKeys, 1, nil)
		fails(errors.New("injected"))
		after("while that fails", 3, "keys keys keys")
		fails(nil)
		after("when it does not any more", 3, "keys")
		n.set(store.KindKeys, 2, errors.New("no database"))
		after("without a database", 3, "")
		n.set(store.KindKeys, 2, nil)
		after("with one again", 3, "keys")
		n.set(store.KindEvents, 5, nil)
		after("when the last event was forgotten", 3, "events")
		alone.Store(true)
		n.set(store.KindKeys, 3, nil)
		after("while nobody else is there", 3, "")
		alone.Store(false)
		after("when somebody is", 3, "keys events")
		n.set(store.KindKeys, 4, nil)
		f.Now(ctx)
		after("at once for who asks", 0, "keys")
		cancel()
		<-done
		if got := strings.Count(out.String(), "level=WARN"); got != 2 {
			t.Errorf("%d warnings, want one of each failure:\n%s", got, &out)
		}
	})
}

// TestNow: what others have changed is there when Now returns, and many share a look.
func TestNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &numbers{is: map[store.Kind]int64{}}
		var has, looks atomic.Int64
		f := New(Options{Owners: n, Log: slog.New(slog.DiscardHandler), On: map[store.Kind]func(context.Context) error{
			store.KindKeys: func(context.Context) error {
				now, _ := n.Changes(t.Context())
				time.Sleep(10 * time.Millisecond)
				has.Store(now[store.KindKeys])
				looks.Add(1)
				return nil
			},
		}})
		var all sync.WaitGroup
		for i := range int64(100) {
			n.set(store.KindKeys, i+1, nil)
			all.Go(func() {
				if f.Now(t.Context()); has.Load() < i+1 {
					t.Errorf("change %d is not there, but %d", i+1, has.Load())
				}
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		if got := looks.Load(); got > 20 {
			t.Errorf("%d looks for 100 within 100 ms, of 10 ms each", got)
		}
		n.set(store.KindKeys, 101, errors.New("no database"))
		begin := time.Now()
		f.Now(t.Context())
		if took := time.Since(begin); took > nowWithin {
			t.Errorf("without a database it took %s", took)
		}
	})
}

// TestAgain: many who miss something share readings, each of which began after they asked.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made, read, reads atomic.Int64
		a := &Again{Read: func(context.Context) error {
			saw := made.Load()
			time.Sleep(10 * time.Millisecond)
			read.Store(saw)
			reads.Add(1)
			return nil
		}}
		begin := time.Now()
		if err := a.Now(t.Context()); err != nil || time.Since(begin) != 10*time.Millisecond {
			t.Errorf("the first one took %v, %v; want no wait", time.Since(begin), err)
		}
		var all sync.WaitGroup
		for i := range 100 {
			time.Sleep(5 * time.Millisecond)
			all.Go(func() {
				n := made.Add(1)
				if err := a.Now(t.Context()); err != nil || read.Load() < n {
					t.Errorf("caller %d: read up to %d, %v; want %d at least", i, read.Load(), err, n)
				}
			})
		}
		all.Wait()
		if n := reads.Load(); n > 5 {
			t.Errorf("%d readings in %v, want one in %v", n, time.Since(begin), againAfter)
		}
	})
}

// TestAgainFails: all who wait for a reading learn that it failed.
func TestAgainFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("injected")
		a := &Again{Read: func(context.Context) error { return bad }}
		_ = a.Now(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := a.Now(t.Context()); !errors.Is(err, bad) {
					t.Errorf("%v, want that", err)
				}
			})
		}
		all.Wait()
	})
}
