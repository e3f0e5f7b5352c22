package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

const wanderer = "iwander00000000000000"

// openTaking returns a server that takes over what srv_gone has, by takeOver.
func openTaking(t *testing.T, r *records, takeOver func() error) *Cluster {
	t.Helper()
	c, err := Open(t.Context(), Options{
		Store: r, Has: func(string) bool { return false }, Patience: time.Minute, Log: slog.New(slog.DiscardHandler),
		TakeOver: func(context.Context, string) error { return takeOver() },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUnreachableRemedy: what is to be done depends on whether another server can go on.
func TestUnreachableRemedy(t *testing.T) {
	gone := []store.Server{{ID: "srv_gone", Left: time.Second}}
	for want, c := range map[string]*Cluster{
		"another server goes on":           openTaking(t, &records{self: "srv_a", servers: gone}, func() error { return nil }),
		"what it has asleep is there then": open(t, &records{self: "srv_a", servers: gone}),
	} {
		if _, err := c.Dial(t.Context(), "srv_gone", "h2"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

// TestTakenMeanwhile: whoever finds that another was faster goes on to that one, however it
// was found.
func TestTakenMeanwhile(t *testing.T) {
	for name, tt := range map[string]struct {
		owner string // when it has failed
		back  bool   // it has its lease again then
		fails error
		want  string
		code  string
	}{
		"it is taken over":                         {owner: "srv_a"},
		"another has its record":                   {"srv_b", false, store.ErrElsewhere("sandbox "+wanderer, "srv_b"), "srv_b", ""},
		"another has changed its record":           {"srv_b", false, store.ErrChanged(wanderer), "srv_b", ""},
		"another has replaced its copy":            {"srv_b", false, store.ErrNotReplicated(wanderer), "srv_b", ""},
		"another has removed its copy":             {"srv_b", false, errdef.New(errdef.Unavailable, "blobs_damaged", "no such blob"), "srv_b", ""},
		"it is here":                               {"srv_a", false, errdef.New(errdef.Exists, "sandbox_exists", "it is here"), "", ""},
		"nobody has it, and it has no copy":        {"srv_gone", false, store.ErrNotReplicated(wanderer), "", codeUnreachable},
		"its server is back":                       {"srv_gone", true, store.ErrElsewhere("sandbox "+wanderer, "srv_gone"), "srv_gone", ""},
		"its server is not gone for long enough":   {"srv_gone", false, store.ErrElsewhere("sandbox "+wanderer, "srv_gone"), "", codeUnreachable},
		"nobody has it, and the disk here is full": {"srv_gone", false, errdef.New(errdef.Exhausted, "disk_full", "full"), "", "disk_full"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_gone"}, servers: []store.Server{{ID: "srv_a", Left: time.Second}, {ID: "srv_b", Left: time.Second}, {ID: "srv_gone"}}}
			c := openTaking(t, r, func() error {
				r.owners[wanderer] = tt.owner
				if tt.back {
					r.servers[2].Left = time.Second
				}
				return tt.fails
			})
			got, err := c.Holder(t.Context(), wanderer)
			if got != tt.want || errdef.CodeOf(err) != tt.code {
				t.Errorf("Holder is %q, %v; want %q, code %q", got, err, tt.want, tt.code)
			}
		})
	}
}

// TestHolderWaits: a request for what a server has that leaves waits until that has left.
func TestHolderWaits(t *testing.T) {
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_gone"}, servers: []store.Server{{ID: "srv_gone", Left: time.Minute, Leaving: true}}}
	taken := 0
	c := openTaking(t, r, func() error { taken++; r.owners[wanderer] = "srv_a"; return nil })
	short, cancel := context.WithTimeout(t.Context(), 3*leavingEvery)
	defer cancel()
	if got, err := c.Holder(short, wanderer); !errors.Is(err, context.DeadlineExceeded) || taken != 0 {
		t.Errorf("while it leaves, Holder is %q, %v", got, err)
	}
	r.servers[0].Left = 0
	if got, err := c.Holder(t.Context(), wanderer); got != "" || err != nil || taken != 1 {
		t.Errorf("Holder is %q, %v, after %d takes", got, err, taken)
	}
}

// TestStops: whether a server stops is known as well as for who waits for it, and asked only where another
// can go on.
func TestStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &records{self: "srv_a", servers: []store.Server{{ID: "srv_b", Left: time.Minute}}}
		c, single := openTaking(t, r, func() error { return nil }), open(t, r)
		is := func(want bool) {
			t.Helper()
			if got := c.Stops(t.Context(), "srv_b"); got != want || single.Stops(t.Context(), "srv_b") {
				t.Errorf("%+v stops: %t, want %t", r.servers, got, want)
			}
		}
		is(false)
		r.servers[0].Leaving = true
		is(false) // it was read just now
		time.Sleep(leavingEvery)
		is(true)
		r.servers[0] = store.Server{ID: "srv_b"} // it is gone
		time.Sleep(leavingEvery)
		is(true)
		r.servers = nil
		time.Sleep(leavingEvery)
		is(false)
	})
}

// TestForgetWhileReading: what was read before something moved does not count after that.
func TestForgetWhileReading(t *testing.T) {
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_b"}, servers: []store.Server{{ID: "srv_b", Left: time.Minute}, {ID: "srv_c", Left: time.Minute}}}
	c := openTaking(t, r, func() error { return errors.New("nothing is to be taken over") })
	r.reading = func() {
		r.owners[wanderer] = "srv_c"
		_ = c.Forget(t.Context())
	}
	for _, want := range []string{"srv_b", "srv_c"} {
		if got, err := c.Holder(t.Context(), wanderer); got != want || err != nil {
			t.Errorf("Holder is %q, %v, want %q", got, err, want)
		}
	}
	_ = c.Forget(t.Context())
	r.reading = func() {
		r.servers[0].Leaving = true
		_ = c.Forget(t.Context())
	}
	for _, want := range []bool{false, true} {
		if got, err := c.server(t.Context(), "srv_b"); got.Leaving != want || err != nil {
			t.Errorf("the server leaves: %t, %v, want %t", got.Leaving, err, want)
		}
	}
}

// TestTakeOver: what a server has that is gone is taken over, once for all who ask; what one
// has that leaves is waited for.
func TestTakeOver(t *testing.T) {
	const id = "i00000000000000000001"
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		srv := store.Server{ID: "srv_b", Left: time.Second}
		r := &records{self: "srv_a", owners: map[string]string{id: "srv_b"}}
		r.now = func() []store.Server {
			mu.Lock()
			defer mu.Unlock()
			return []store.Server{srv}
		}
		set := func(to store.Server) {
			mu.Lock()
			defer mu.Unlock()
			srv = to
		}
		taken := 0
		var here atomic.Bool
		c, err := Open(t.Context(), Options{
			Store: r, Has: func(string) bool { return here.Load() }, Patience: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
			TakeOver: func(context.Context, string) error {
				time.Sleep(time.Second)
				taken++
				here.Store(true)
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		holder := func(want, code string) {
			t.Helper()
			if got, err := c.Holder(t.Context(), id); got != want || errdef.CodeOf(err) != code {
				t.Errorf("Holder is %q, %v; want %q, %q", got, err, want, code)
			}
		}
		again := func(to store.Server) {
			t.Helper()
			set(to)
			if err := c.Forget(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		holder("srv_b", "")

		begin := time.Now() // one that leaves, and does not come to its end
		again(store.Server{ID: "srv_b", Left: time.Hour, Leaving: true})
		holder("", codeUnreachable)
		if waited := time.Since(begin); waited < 30*time.Second || waited > 31*time.Second {
			t.Errorf("it was waited for %s", waited)
		}
		begin = time.Now()
		time.AfterFunc(5*time.Second, func() { again(store.Server{ID: "srv_b", Left: time.Hour}) }) // it is back
		holder("srv_b", "")
		if waited := time.Since(begin); waited > 6*time.Second || taken != 0 {
			t.Errorf("it was waited for %s, and %d were taken over", waited, taken)
		}

		again(store.Server{ID: "srv_b", Left: -time.Second})
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.Holder(short, id); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who goes away: %v", err)
		}
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() { holder("", "") })
		}
		work.Wait()
		if taken != 1 {
			t.Errorf("it was taken over %d times", taken)
		}
	})
}

// TestTakeOverOfTemplate: whoever asks for a built template or for results of it has it taken over
// whole, once.
func TestTakeOverOfTemplate(t *testing.T) {
	const template, result, second, snapshot = "t0000000000000000000a", "s0000000000000000000a", "s0000000000000000000b", "s0000000000000000000c"
	whole := map[string]string{template: template, result: template, second: template, snapshot: snapshot}
	for name, tt := range map[string]struct {
		owner, want, code string
		fails             error
	}{
		"it is taken over":              {owner: "srv_a"},
		"another was faster":            {"srv_b", "srv_b", "", errdef.New(errdef.Conflict, "record_changed", "changed")},
		"a result has no copy":          {"srv_gone", "", codeUnreachable, store.ErrSnapshotNotReplicated(second)},
		"an image is not on the server": {"srv_gone", "", "cannot_run_here", errdef.New(errdef.Conflict, "cannot_run_here", "no image")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &records{self: "srv_a", servers: []store.Server{{ID: "srv_a", Left: time.Second}, {ID: "srv_b", Left: time.Second}, {ID: "srv_gone"}}}
				taken := map[string]int{}
				var mu sync.Mutex // guards taken and owner
				owner := "srv_gone"
				c := openTaking(t, r, nil)
				c.o.TakeOver = func(_ context.Context, id string) error {
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					taken[id]++
					if id == template {
						owner = tt.owner
					}
					return tt.fails
				}
				c.o.OwnerOf = func(_ context.Context, id string) (string, string, error) {
					mu.Lock()
					defer mu.Unlock()
					return whole[id], owner, nil
				}
				var all sync.WaitGroup
				for _, what := range []string{"template " + template, "snapshot " + result, "snapshot " + second} {
					all.Go(func() {
						if got, err := c.HolderNow(t.Context(), store.ErrElsewhere(what, "srv_gone")); got != tt.want || errdef.CodeOf(err) != tt.code {
							t.Errorf("%s: %q, %v; want %q, %q", what, got, err, tt.want, tt.code)
						}
					})
				}
				all.Wait()
				if taken[template] != 1 || len(taken) != 1 {
					t.Errorf("taken over are %v", taken)
				}
				_, _ = c.HolderNow(t.Context(), store.ErrElsewhere("snapshot "+snapshot, "srv_gone"))
				if taken[snapshot] != 1 {
					t.Errorf("taken over are %v", taken)
				}
				time.Sleep(failAgain + time.Second)
			})
		})
	}
}

// TestEndedOnAGoneServer: whoever asks for what has ended on a server that is gone is told so, and
// nothing has failed.
func TestEndedOnAGoneServer(t *testing.T) {
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_gone"}, servers: []store.Server{{ID: "srv_gone"}}}
	ended := lifecycle.Record{State: lifecycle.Terminated, Tombstone: &lifecycle.Tombstone{Reason: lifecycle.Killed, At: time.Unix(1, 0)}}
	c := openTaking(t, r, ended.Over)
	var log strings.Builder
	c.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	if got, err := c.Holder(t.Context(), wanderer); got != "" || !lifecycle.Ended(err) {
		t.Errorf("Holder is %q, %v", got, err)
	}
	if log.Len() > 0 {
		t.Errorf("it logs %s", &log)
	}
}

// TestTakeAgain: a take that fails is not tried for each who asks.
func TestTakeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_gone"}, servers: []store.Server{{ID: "srv_gone"}}}
		tries := 0
		c := openTaking(t, r, func() error { tries++; return errdef.New(errdef.Exhausted, "disk_full", "full") })
		for range 3 {
			for range 10 {
				if got, err := c.Holder(t.Context(), wanderer); errdef.CodeOf(err) != "disk_full" {
					t.Fatalf("Holder is %q, %v", got, err)
				}
			}
			if got, err := c.owner(t.Context(), wanderer); got != "srv_gone" || err != nil {
				t.Errorf("its owner is %q, %v", got, err)
			}
			time.Sleep(failAgain + time.Millisecond)
		}
		if tries != 3 {
			t.Errorf("it was tried %d times", tries)
		}
	})
}
