package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// counted counts how often the log is read from its store.
type counted struct {
	store.Store
	reads atomic.Int64
}

func (c *counted) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	c.reads.Add(1)
	return c.Store.Events(ctx, sandbox, after, limit)
}

func (c *counted) EventsOfKey(ctx context.Context, key string, after int64, limit int) ([]store.Event, error) {
	c.reads.Add(1)
	return c.Store.EventsOfKey(ctx, key, after, limit)
}

func (c *counted) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	c.reads.Add(1)
	return c.Store.EventsBefore(ctx, sandbox, before, limit)
}

type world struct {
	t     *testing.T
	store *counted
	log   *Log
	revs  map[string]int64 // of the records
}

func newWorld(t *testing.T) *world {
	st := &counted{Store: memstore.Open(memstore.NewData(), memstore.Hooks{})}
	return &world{t, st, New(st), map[string]int64{}}
}

// happen makes n events of a sandbox that a key has made.
func (w *world) happen(key, sandbox string, n int) {
	w.t.Helper()
	entries := make([]lifecycle.Entry, n)
	for i := range entries {
		entries[i].Type = lifecycle.EntryUpdated
	}
	sb := store.Sandbox{ID: sandbox, Rev: w.revs[sandbox], Config: store.Config{Key: key}}
	if err := w.store.Commit(w.t.Context(), sb, entries); err != nil {
		w.t.Fatal(err)
	}
	w.revs[sandbox]++
	w.log.Announce()
}

// follow reads all that is in a scope after an event, in pages.
func (w *world) follow(of Scope, after int64, limit int) (found []store.Event, next int64) {
	w.t.Helper()
	for more := true; more; {
		p, err := w.log.EventsAfter(w.t.Context(), of, after, limit)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(p.Events) > limit || p.Next < after || p.More && p.Next == after {
			w.t.Fatalf("after %d there are %d events, at most %d, with next %d, more %v", after, len(p.Events), limit, p.Next, p.More)
		}
		found, after, more = append(found, p.Events...), p.Next, p.More
	}
	return found, after
}

// TestEventsAfter follows the log from everywhere, in every scope and in pages of
// every size, while it grows beyond what is kept in memory.
func TestEventsAfter(t *testing.T) {
	w := newWorld(t)
	all := []store.Event{}
	for _, n := range []int{0, 1, 5, mostTail - 7, 1, 3, mostTail / 2, 3 * mostTail, 2, mostTail, mostTail - 1} {
		if n > 0 {
			who := rand.IntN(4)
			w.happen(fmt.Sprint("key", who%2), fmt.Sprint("box", who), n)
			known := int64(len(all))
			news, err := w.store.Store.Events(t.Context(), "", known, n)
			if err != nil || len(news) != n {
				t.Fatalf("%d events, %v", len(news), err)
			}
			all = append(all, news...)
		}
		last := int64(len(all))
		for _, of := range []Scope{{}, {Sandbox: "box1"}, {Key: "key0"}, {Key: "key1"}, {Key: "nobody"}, {Sandbox: "nobody"}} {
			for _, after := range []int64{0, last / 2, last - mostTail - 1, last - mostTail, last - 3, last, last + 5} {
				after = max(after, 0)
				want := slices.DeleteFunc(slices.Clone(all[min(after, last):]), func(e store.Event) bool { return !of.has(e) })
				got, next := w.follow(of, after, 1+rand.IntN(2*mostTail))
				if !slices.Equal(got, want) {
					t.Fatalf("%+v after %d of %d has %d events, want %d", of, after, last, len(got), len(want))
				}
				if next != max(after, last) {
					t.Errorf("%+v after %d of %d goes on after %d", of, after, last, next)
				}
			}
		}
	}
}

// TestFollowersShareReads has many follow the log: each event was read from the
// store by each of them.
func TestFollowersShareReads(t *testing.T) {
	const followers = 300
	w := newWorld(t)
	w.happen("other", "old", 10*mostTail)
	cursors := make([]int64, followers)
	for i := range cursors {
		_, cursors[i] = w.follow(Scope{Key: "own"}, 0, 100)
	}
	begun := w.store.reads.Load()
	if begun > followers+2 {
		t.Errorf("the store was read %d times for %d that began", begun, followers)
	}
	const rounds = 20
	for range rounds {
		w.happen("own", "box", 3)
		for i := range cursors {
			var found []store.Event
			if found, cursors[i] = w.follow(Scope{Key: "own"}, cursors[i], 100); len(found) != 3 {
				t.Fatalf("follower %d got %d events, want 3", i, len(found))
			}
		}
	}
	if n := w.store.reads.Load() - begun; n > rounds {
		t.Errorf("the store was read %d times for %d commits", n, rounds)
	}
}
