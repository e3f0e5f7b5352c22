package ration

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestKeysTakeTurns: starts waited in one queue, and a key with sixteen of them in
// it went ahead of everybody who came later with one.
func TestKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(1, 1)
		leave, err := f.Enter(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		wait := func(ctx context.Context, key string) {
			go func() {
				if leave, err := f.Enter(ctx, key); err == nil {
					order = append(order, key) // one has the place at a time
					leave()
					leave()
				}
			}()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		for range 4 {
			wait(t.Context(), "greedy")
		}
		wait(gone, "gone")
		wait(gone, "greedy")
		wait(t.Context(), "one")
		wait(t.Context(), "two")
		wait(t.Context(), "two")
		cancel()
		synctest.Wait()
		leave()
		synctest.Wait()
		if want := "greedy one two greedy two greedy greedy"; strings.Join(order, " ") != want {
			t.Errorf("got the order %q, want %q", order, want)
		}
		if f.Taken() != 0 || len(f.taken) != 0 || len(f.waiting) != 0 || len(f.next) != 0 {
			t.Errorf("%d places are taken, %v wait", f.Taken(), f.next)
		}
	})
}

// TestNoPlaceIsLost: one that comes and one who gives up may meet.
func TestNoPlaceIsLost(t *testing.T) {
	f := NewFair(2, 1)
	done := make(chan struct{})
	for i := range 8 {
		go func() {
			for range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if leave, err := f.Enter(ctx, string(rune('a'+i%3))); err == nil {
					leave()
				}
				cancel()
			}
			done <- struct{}{}
		}()
	}
	for range 8 {
		<-done
	}
	if f.Taken() != 0 || len(f.waiting) != 0 || !slices.Equal(f.next, []string{}) {
		t.Errorf("%d places are taken, %v wait", f.Taken(), f.next)
	}
}

// TestPass: a place is given back if somebody who waits gets it, and only then.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(1, 1)
		leave, err := f.Enter(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		go func() { _, _ = f.Enter(gone, "two") }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if f.Pass("one") || f.Taken() != 1 {
			t.Errorf("the place went to nobody; %d are taken", f.Taken())
		}
		for _, key := range []string{"one", "two"} {
			var got bool
			go func() {
				if _, err := f.Enter(t.Context(), key); err == nil {
					got = true
				}
			}()
			synctest.Wait()
			if !f.Pass("one") {
				t.Errorf("%s waits in vain", key)
			}
			synctest.Wait()
			if !got || f.taken[key] != 1 || f.Taken() != 1 {
				t.Errorf("%s has %d of %d places", key, f.taken[key], f.Taken())
			}
		}
		_ = leave // it must not be called after Pass
		f.leave("two")
		if f.Taken() != 0 || len(f.taken) != 0 {
			t.Errorf("%v are taken", f.taken)
		}
	})
}

// TestShareOfPlaces: one key that starts and ends sandboxes without pause took all
// turns, again and again: another's one start found the whole machine at work for it.
func TestShareOfPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(4, 2)
		enter := func(key string) (leave func(), free bool) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			leave, err := f.Enter(ctx, key)
			return leave, err == nil
		}
		var leaves []func()
		for n := range 4 {
			leave, free := enter("greedy")
			if !free {
				t.Fatalf("alone, it gets %d places", n)
			}
			leaves = append(leaves, leave)
		}
		if _, free := enter("greedy"); free {
			t.Fatal("there are more places than four")
		}
		// One place comes back, then another: who has more than a share gets none.
		got := make(chan func())
		go func() {
			leave, _ := f.Enter(t.Context(), "one")
			got <- leave
		}()
		synctest.Wait()
		leaves[0]()
		leaveOne := <-got
		leaves[1]()
		if _, free := enter("greedy"); free {
			t.Error("it has its share, and gets more beside another")
		}
		if leave, free := enter("two"); !free {
			t.Error("a third finds no place")
		} else {
			leave()
		}
		leaveOne()
		time.Sleep(lately)
		if _, free := enter("greedy"); free {
			t.Error("it gets more than its share right after another")
		}
		time.Sleep(time.Second)
		leave, free := enter("greedy")
		if !free {
			t.Error("alone again, it gets no more than its share")
		}
		for _, leave := range append(leaves, leave) {
			leave()
		}
		if f.Taken() != 0 || len(f.taken) != 0 || len(f.waiting) != 0 {
			t.Errorf("places are taken: %v", f.taken)
		}
	})
}
