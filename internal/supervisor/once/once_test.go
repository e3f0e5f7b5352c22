package once

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

func under(key, request string) store.Config {
	return store.Config{Key: "k1", Idempotency: &store.Idempotency{Key: key, Request: request}}
}

// commit makes n.
func commit(n int) func() (int, <-chan struct{}, error) {
	return func() (int, <-chan struct{}, error) { return n, nil, nil }
}

func want(t *testing.T, k *Keys[int], as store.Config, n, made int, fresh bool) {
	t.Helper()
	if got, is, err := k.Do(t.Context(), as, commit(n)); got != made || is != fresh || err != nil {
		t.Errorf("got %d, fresh %v, %v; want %d, fresh %v", got, is, err, made, fresh)
	}
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := map[int]bool{}
		k := New(func(n int) bool { return failed[n] })
		want(t, k, under("a", "r"), 1, 1, true)
		want(t, k, under("a", "r"), 2, 1, false)
		want(t, k, under("b", "r"), 2, 2, true)
		failed[1] = true
		want(t, k, under("a", "r"), 3, 3, true)
		broken := errors.New("broken")
		if _, fresh, err := k.Do(t.Context(), under("c", "r"), func() (int, <-chan struct{}, error) { return 0, nil, broken }); !fresh || err != broken {
			t.Errorf("got fresh %v, %v", fresh, err)
		}
		want(t, k, under("c", "r"), 4, 4, true)
		k.Forget(under("c", "r"), 3) // another's
		want(t, k, under("c", "r"), 5, 4, false)
		k.Forget(under("c", "r"), 4)
		want(t, k, under("c", "r"), 5, 5, true)
		time.Sleep(store.IdempotencyLife - time.Second)
		want(t, k, under("c", "r"), 6, 5, false)
		time.Sleep(time.Second)
		want(t, k, under("c", "r"), 6, 6, true)
	})
}

// TestMade tells what a key has made, and makes nothing.
func TestMade(t *testing.T) {
	k := New(func(n int) bool { return n == 2 })
	made := func(as store.Config, want int) {
		t.Helper()
		if got, err := k.Made(t.Context(), as); got != want || err != nil {
			t.Errorf("it has made %d, %v; want %d", got, err, want)
		}
	}
	made(under("a", "r"), 0)
	want(t, k, under("a", "r"), 1, 1, true)
	made(under("a", "r"), 1)
	want(t, k, under("b", "r"), 2, 2, true)
	made(under("b", "r"), 0) // it failed
	if _, err := k.Made(t.Context(), under("a", "other")); !errdef.Is(err, errdef.Conflict) {
		t.Errorf("for another call: %v", err)
	}
}

// TestWaitsForTheCommit: a second call waits while the first is about to commit,
// as long as its own caller does.
func TestWaitsForTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(func(int) bool { return false })
		go func() {
			_, _, _ = k.Do(t.Context(), under("a", "r"), func() (int, <-chan struct{}, error) {
				time.Sleep(time.Minute)
				return 1, nil, nil
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := k.Do(ctx, under("a", "r"), commit(2)); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		want(t, k, under("a", "r"), 2, 1, false)
	})
}

// TestRestoreMeanwhile: what another server has made under a key counts from when it is here, though a call
// under the same key was under way, and failed for it. A call that succeeds was right that it was free.
func TestRestoreMeanwhile(t *testing.T) {
	for _, makes := range []int{0, 2} {
		k := New(func(int) bool { return false })
		before := under("a", "r")
		before.Idempotency.At = time.Now().Add(-time.Hour)
		_, _, _ = k.Do(t.Context(), under("a", "r"), func() (int, <-chan struct{}, error) {
			k.Restore(store.Sandbox{Config: before}, 1)
			return makes, nil, errors.New("another server has made it")
		})
		want(t, k, under("a", "r"), 3, max(makes, 1), false)
	}
}

// TestWaitsUntilKnown: who has made a call that failed is told at once, and the next one waits until it
// is known what has become of it.
func TestWaitsUntilKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, known, lost := New(func(int) bool { return false }), make(chan struct{}), errors.New("lost")
		if _, _, err := k.Do(t.Context(), under("a", "r"), func() (int, <-chan struct{}, error) { return 0, known, lost }); err != lost {
			t.Errorf("got %v", err)
		}
		time.AfterFunc(time.Minute, func() { close(known) })
		began := time.Now()
		want(t, k, under("a", "r"), 2, 2, true)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}

// TestRestore binds keys again after a restart. An import counts from itself, not
// from when the sandbox was created elsewhere.
func TestRestore(t *testing.T) {
	k := New(func(int) bool { return false })
	restore := func(as store.Config, created, asked time.Time, n int) {
		as.Idempotency.At = asked
		sb := store.Sandbox{Config: as}
		sb.Record.CreatedAt = created
		k.Restore(sb, n)
	}
	now := time.Now()
	restore(under("imported", "r"), now.Add(-2*store.IdempotencyLife), now, 1)
	restore(under("old", "r"), now.Add(-store.IdempotencyLife), time.Time{}, 2)
	restore(under("twice", "r"), now, time.Time{}, 4)
	restore(under("twice", "r"), now.Add(-time.Hour), time.Time{}, 3)
	k.Restore(store.Sandbox{}, 5) // has no key
	want(t, k, under("imported", "r"), 9, 1, false)
	want(t, k, under("old", "r"), 9, 9, true)
	want(t, k, under("twice", "r"), 9, 4, false)
}
