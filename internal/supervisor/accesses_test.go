package supervisor

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// visit is an access of TestIdlenessOfManyAccesses: it is opened at the first
// of its times, makes progress at the others, and is closed at the last, unless
// it hangs. Times are since the sandbox began to serve.
type visit struct {
	times []time.Duration
	hangs bool
}

// busy are the stretches in which an access keeps a sandbox awake.
func (v visit) busy(stall time.Duration) (stretches [][2]time.Duration) {
	for i, from := range v.times {
		to := from + stall
		switch last := i == len(v.times)-1; {
		case last && !v.hangs:
			to = from
		case !last && (stall == 0 || to > v.times[i+1]):
			to = v.times[i+1]
		}
		stretches = append(stretches, [2]time.Duration{from, to})
	}
	return stretches
}

// firstIdle returns when a sandbox has been idle for long enough. It is not
// sure if a visit began at about that time.
func firstIdle(visits []visit, stall, idle time.Duration) (at time.Duration, sure bool) {
	var stretches [][2]time.Duration
	for _, v := range visits {
		stretches = append(stretches, v.busy(stall)...)
	}
	slices.SortFunc(stretches, func(a, b [2]time.Duration) int { return int(a[0] - b[0]) })
	var end time.Duration
	for _, s := range stretches {
		if d := s[0] - (end + idle); d > -time.Second && d < time.Second {
			return 0, false
		} else if d > 0 {
			break
		}
		end = max(end, s[1])
	}
	return end + idle, true
}

// TestIdlenessOfManyAccesses lets accesses come, make progress, hang and end
// at random, and computes when the sandbox must fall asleep. Time is virtual.
func TestIdlenessOfManyAccesses(t *testing.T) {
	const (
		idle = time.Minute
		late = 20 * time.Millisecond
	)
	rounds, rng := testmode.Choose(100, 1000), testmode.Rand(0)
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		paused := 0
		for range rounds {
			stall := []time.Duration{Unlimited, 20 * time.Second, 100 * time.Second, 4 * time.Minute}[rng.IntN(4)]
			visits := make([]visit, rng.IntN(9))
			for i := range visits {
				v := &visits[i]
				for range 2 + rng.IntN(4) {
					v.times = append(v.times, time.Second+testmode.N(rng, 6*time.Minute).Truncate(time.Millisecond))
				}
				slices.Sort(v.times)
				v.hangs = stall != Unlimited && rng.IntN(3) == 0
			}
			want, sure := firstIdle(visits, max(stall, 0), idle)
			if !sure {
				continue
			}
			id := create(t, srv.s, CreateRequest{
				Settings: lifecycle.Settings{IdleTimeout: idle, OnTimeout: lifecycle.Pause, StallAfter: stall},
				Config:   store.Config{Ports: store.Ports{"8000": lifecycle.Keep}},
			})
			begin := record(t, srv.s, id).StartedAt
			for _, v := range visits {
				go v.pay(t.Context(), srv.s, id, begin)
			}
			time.Sleep(20 * time.Minute)
			events, err := srv.s.Events(t.Context(), id, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryPausing })
			if i < 0 {
				t.Fatalf("it was not paused, want that %s after it began: stalls after %s, %+v", want, stall, visits)
			}
			if got := events[i].At.Sub(begin); got < want || got > want+late {
				t.Fatalf("paused %s after it began, want %s: stalls after %s, %+v", got, want, stall, visits)
			}
			paused++
			if err := srv.s.Kill(t.Context(), id, ""); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d pauses in %d rounds", paused, rounds)
		w.end(t, srv)
	})
}

// pay accesses the sandbox at the visit's times, until that sleeps.
func (v visit) pay(ctx context.Context, s *Supervisor, id string, begin time.Time) {
	var lease *Lease
	for i, at := range v.times {
		wait := time.NewTimer(time.Until(begin.Add(at)))
		var cut <-chan struct{}
		if lease != nil {
			cut = lease.Cut
		}
		select {
		case <-wait.C:
		case <-cut:
			wait.Stop()
			lease.Release()
			return
		}
		switch {
		case i > 0:
			lease.Progress(1)
		default:
			var err error
			if lease, err = s.Acquire(ctx, id, Access{Port: 8000, Stream: true}); err != nil {
				return // it sleeps
			}
		}
	}
	if v.hangs {
		<-lease.Cut
	}
	lease.Release()
}
