package insist

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestInsist holds when something that cannot be removed is tried again, and that
// nothing is when the server has stopped.
func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		r := New(ctx, slog.New(slog.DiscardHandler))
		start := time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		r.Insist(func() error {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Since(start))
			if len(tries) <= 9 {
				return errors.New("busy")
			}
			return nil
		}, "could not be removed")
		mu.Lock()
		if len(tries) != 1 {
			t.Errorf("it was tried %d times when Insist returned", len(tries))
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		const s = time.Second
		if want := []time.Duration{0, 1 * s, 3 * s, 7 * s, 15 * s, 31 * s, 63 * s, 123 * s, 183 * s, 243 * s}; !slices.Equal(tries, want) {
			t.Errorf("tried after %v, want %v", tries, want)
		}

		more := 0
		r.Insist(func() error { more++; return errors.New("busy") }, "could not be removed")
		stop()
		r.Wait()
		if more != 1 {
			t.Errorf("it was tried %d times, and the server had stopped", more)
		}
	})
}
