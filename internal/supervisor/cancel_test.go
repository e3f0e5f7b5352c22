package supervisor

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// pauseRace is one automatic pause with an access at some time around it.
type pauseRace struct {
	asked   time.Time // the access
	ended   time.Time // the pause
	outcome lifecycle.EntryType
}

// TestAccessAroundTheCommitPoint lets an access meet an automatic pause at a
// thousand random times, from just before it begins to just after its runtime
// is gone. Each is answered by one generation, once: by the one that was to
// sleep if the access came before the commit point, by the next otherwise. Time
// is virtual.
func TestAccessAroundTheCommitPoint(t *testing.T) {
	rounds, rng := testmode.Choose(200, 1000), testmode.Rand(0)
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var entries []lifecycle.Entry // of the round
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			// Like the real thing, none of it can be hurried.
			if d := simulatedDelays[at]; d > 0 {
				time.Sleep(rand.N(d))
			}
			return nil
		}
		w.hooks = func(*server) memstore.Hooks {
			return memstore.Hooks{After: func(c memstore.Commit) error {
				mu.Lock()
				defer mu.Unlock()
				entries = append(entries, c.Entries...)
				return nil
			}}
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		generation := int64(1)
		latency := map[string][]time.Duration{}
		for n := range int64(rounds) {
			if _, err := srv.s.SetTimeout(t.Context(), id, time.Second, ""); err != nil {
				t.Fatal(err)
			}
			// From just before the timeout.
			time.Sleep(time.Second - 5*time.Millisecond + testmode.N(rng, 70*time.Millisecond))
			asked := time.Now()
			lease, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort})
			if err != nil {
				t.Fatalf("round %d: %v", n, err)
			}
			count, err := askThrough(t.Context(), lease)
			lease.Release()
			if err != nil || count != n+1 {
				t.Fatalf("round %d: count %d, %v; want %d", n, count, err, n+1)
			}
			took := time.Since(asked)
			time.Sleep(10 * time.Second) // a pause that it did not meet ends now, or is undone

			mu.Lock()
			round := newPauseRace(asked, entries)
			entries = nil
			mu.Unlock()
			name, want := round.judge(generation)
			if lease.Generation != want {
				t.Fatalf("round %d: answered by generation %d, want %d: %+v", n, lease.Generation, want, round)
			}
			latency[name] = append(latency[name], took)
			generation = lease.Generation
			if name == beforePause && round.outcome == lifecycle.EntryPaused {
				if _, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
					t.Fatal(err)
				}
				generation++
			}
			if images, _ := os.ReadDir(srv.dir + "/images"); len(images) > 1 {
				t.Fatalf("round %d: %d images, want those of the last pause at most", n, len(images))
			}
		}
		w.end(t, srv)
		for _, name := range []string{beforePause, cancelledPause, afterCommit} {
			if len(latency[name]) == 0 {
				t.Errorf("%s: none in %d rounds", name, rounds)
				continue
			}
			slices.Sort(latency[name])
			t.Logf("%s: %d timings, answered after %s (p50), %s (most), of simulated time",
				name, len(latency[name]), latency[name][len(latency[name])/2], slices.Max(latency[name]))
		}
	})
}

// How an access can meet a pause.
const (
	beforePause    = "before the pause"
	cancelledPause = "cancelled the pause"
	afterCommit    = "after the commit point"
)

// simulatedDelays is how long things take at most.
var simulatedDelays = map[point]time.Duration{
	atFreeze: 5 * time.Millisecond, atCheckpoint: 40 * time.Millisecond, atCaptured: 10 * time.Millisecond,
	atThaw: 5 * time.Millisecond, atRemove: 20 * time.Millisecond, atRestore: 100 * time.Millisecond,
}

func newPauseRace(asked time.Time, entries []lifecycle.Entry) pauseRace {
	r := pauseRace{asked: asked}
	for _, e := range entries {
		switch e.Type {
		case lifecycle.EntryPaused, lifecycle.EntryPauseCancelled, lifecycle.EntryPauseFailed:
			r.ended, r.outcome = e.At, e.Type
		}
	}
	return r
}

// judge says how the access met the pause, and which generation must have
// answered if the sandbox was in the given one.
func (r pauseRace) judge(generation int64) (name string, want int64) {
	switch {
	case r.outcome == lifecycle.EntryPauseCancelled:
		return cancelledPause, generation
	case r.outcome == lifecycle.EntryPaused && !r.asked.Before(r.ended):
		return afterCommit, generation + 1
	}
	return beforePause, generation
}
