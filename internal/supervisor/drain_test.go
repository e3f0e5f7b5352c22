package supervisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// onVirtualTime runs a test with a server and one sandbox of the settings.
func onVirtualTime(t *testing.T, settings lifecycle.Settings, test func(t *testing.T, s *Supervisor, id string)) {
	t.Helper()
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		test(t, srv.s, create(t, srv.s, CreateRequest{Settings: settings}))
		w.end(t, srv)
	})
}

// use takes a lease and counts after a while; it tells how that ended.
func use(t *testing.T, s *Supervisor, id string, long time.Duration) <-chan error {
	t.Helper()
	lease := mustAcquire(t, s, id, Access{Port: counterPort})
	ended := make(chan error, 1)
	go func() {
		defer lease.Release()
		time.Sleep(long)
		_, err := askThrough(t.Context(), lease)
		ended <- err
	}()
	return ended
}

// hasPhase waits for everything else to stand still.
func hasPhase(t *testing.T, s *Supervisor, id string, want lifecycle.Situation) {
	t.Helper()
	synctest.Wait()
	if got := record(t, s, id).Situation(); got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
}

const pausing, running, asleep = lifecycle.Situation(lifecycle.Pausing), lifecycle.Situation(lifecycle.Running), lifecycle.Situation(lifecycle.Paused)

func TestAutomaticPauseWaitsForRequests(t *testing.T) {
	onVirtualTime(t, lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause}, func(t *testing.T, s *Supervisor, id string) {
		time.Sleep(9900 * time.Millisecond)
		first := use(t, s, id, 2*time.Second)
		stream := mustAcquire(t, s, id, Access{Port: counterPort, Stream: true})
		go func() { <-stream.Cut; stream.Release() }()
		time.Sleep(time.Second)
		hasPhase(t, s, id, pausing)
		if isCut(stream) {
			t.Error("the stream was cut before the barrier")
		}
		second := use(t, s, id, 1500*time.Millisecond) // new, and autoResume is off
		if probe, err := s.Acquire(t.Context(), id, Access{Port: agentapi.Port, Probe: true}); err != nil {
			t.Errorf("a probe while it drains: %v", err)
		} else {
			probe.Release()
		}
		if err := errors.Join(<-first, <-second); err != nil {
			t.Errorf("a request that ended during the drain: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		hasPhase(t, s, id, asleep)
		if !isCut(stream) || code(stream.Why()) != "put_to_sleep" {
			t.Errorf("the stream: cut %v, because %v", isCut(stream), stream.Why())
		}
	})
}

func TestDrainIsBounded(t *testing.T) {
	onVirtualTime(t, lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause}, func(t *testing.T, s *Supervisor, id string) {
		lease := mustAcquire(t, s, id, Access{Port: counterPort})
		<-lease.Cut
		if got := time.Since(record(t, s, id).Op.StartedAt); got < DefaultDrain || got > DefaultDrain+time.Second {
			t.Errorf("cut %s after the pause began, want %s", got, DefaultDrain)
		}
		lease.Release()
		time.Sleep(time.Second)
		hasPhase(t, s, id, asleep)
	})
}

// TestAStreamIsNotWaitedFor, be it known as one from the beginning or only by
// its answer.
func TestAStreamIsNotWaitedFor(t *testing.T) {
	onVirtualTime(t, lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause}, func(t *testing.T, s *Supervisor, id string) {
		for _, a := range []Access{{Port: counterPort, Stream: true}, {Port: counterPort}} {
			lease := mustAcquire(t, s, id, a)
			lease.Streams()
			go func() { <-lease.Cut; lease.Release() }()
		}
		time.Sleep(10*time.Second + 100*time.Millisecond)
		hasPhase(t, s, id, asleep)
	})
}

func TestACancelledPauseHasCutNothing(t *testing.T) {
	settings := lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause, AutoResume: true}
	onVirtualTime(t, settings, func(t *testing.T, s *Supervisor, id string) {
		stream := mustAcquire(t, s, id, Access{Port: counterPort, Stream: true})
		time.Sleep(9 * time.Second)
		long := use(t, s, id, 4*time.Second)
		time.Sleep(2 * time.Second)
		hasPhase(t, s, id, pausing)
		if _, err := s.Acquire(t.Context(), id, Access{Port: agentapi.Port, Probe: true}); err != nil {
			t.Error(err)
		}
		hasPhase(t, s, id, pausing) // a probe cancels nothing
		asked := time.Now()
		if err := <-use(t, s, id, 0); err != nil {
			t.Error(err)
		}
		if took := time.Since(asked); took > 10*time.Millisecond {
			t.Errorf("the access that cancels waited %s", took)
		}
		hasPhase(t, s, id, running)
		if err := <-long; err != nil || isCut(stream) {
			t.Errorf("the request in flight: %v; the stream cut: %v", err, isCut(stream))
		}
		stream.Release()
		if g := record(t, s, id).Generation; g != 1 {
			t.Errorf("generation %d, want 1", g)
		}
	})
}

func TestExplicitPauseDrainsForASecond(t *testing.T) {
	settings := lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}
	onVirtualTime(t, settings, func(t *testing.T, s *Supervisor, id string) {
		short, long := use(t, s, id, 900*time.Millisecond), use(t, s, id, 1500*time.Millisecond)
		paused := make(chan error, 1)
		go func() { paused <- s.Pause(t.Context(), id, PauseRequest{}) }()
		synctest.Wait()
		late := make(chan int64, 1)
		go func() { // waits, although the pause drains
			lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort})
			if err != nil {
				t.Error(err)
				return
			}
			defer lease.Release()
			late <- lease.Generation
		}()
		if err := <-short; err != nil {
			t.Errorf("900 ms: %v", err)
		}
		if err := <-long; !errors.Is(err, errCut) {
			t.Errorf("1500 ms: %v, want cut", err)
		}
		if err := <-paused; err != nil {
			t.Error(err)
		}
		if g := <-late; g != 2 {
			t.Errorf("the access during the pause got generation %d, want 2", g)
		}
	})
}

func TestAnExplicitPauseShortensTheDrain(t *testing.T) {
	onVirtualTime(t, lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause}, func(t *testing.T, s *Supervisor, id string) {
		lease := mustAcquire(t, s, id, Access{Port: counterPort})
		go func() { <-lease.Cut; lease.Release() }()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		hasPhase(t, s, id, pausing)
		asked := time.Now()
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(asked); took < explicitDrain || took > explicitDrain+500*time.Millisecond {
			t.Errorf("took %s, want %s", took, explicitDrain)
		}
	})
}

// TestAProbeWakesNothing: whoever asks for the agent's health of a sandbox that
// sleeps, or whose streams a pause has cut, is refused.
func TestAProbeWakesNothing(t *testing.T) {
	settings := lifecycle.Settings{Timeout: 10 * time.Second, OnTimeout: lifecycle.Pause, AutoResume: true}
	onVirtualTime(t, settings, func(t *testing.T, s *Supervisor, id string) {
		probe := Access{Port: agentapi.Port, Probe: true}
		stream := mustAcquire(t, s, id, Access{Port: agentapi.Port, Stream: true})
		asked := make(chan error, 1)
		go func() { // as an SDK does whose stream breaks
			<-stream.Cut
			_, err := s.Acquire(t.Context(), id, probe)
			asked <- err
			stream.Release()
		}()
		if err := <-asked; !errdef.Is(err, errdef.WrongState) {
			t.Errorf("a probe right after the cut: %v, want wrong_state", err)
		}
		for range 5 {
			time.Sleep(time.Second)
			if _, err := s.Acquire(t.Context(), id, probe); !errdef.Is(err, errdef.WrongState) {
				t.Errorf("a probe of a sleeper: %v, want wrong_state", err)
			}
		}
		hasPhase(t, s, id, asleep)
		if r := record(t, s, id); r.Generation != 1 {
			t.Errorf("generation %d, want 1", r.Generation)
		}
	})
}

// TestRequestsOverPauses has clients ask all the time, for longer and shorter
// than any pause takes, while the sandbox is paused by its timeout and on
// request: none of their requests is cut, and each counts once.
func TestRequestsOverPauses(t *testing.T) {
	const clients, pauses = 8, 40
	settings := lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}
	onVirtualTime(t, settings, func(t *testing.T, s *Supervisor, id string) {
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		seen := map[int64]bool{}
		var asking sync.WaitGroup
		for n := range uint64(clients) {
			asking.Go(func() {
				rng := testmode.Rand(n)
				for ctx.Err() == nil {
					lease, err := s.Acquire(t.Context(), id, Access{Port: counterPort})
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond + testmode.N(rng, 899*time.Millisecond))
					n, err := askThrough(t.Context(), lease)
					lease.Release()
					mu.Lock()
					if err != nil || seen[n] {
						t.Errorf("count %d, %v, seen before: %v", n, err, seen[n])
					}
					seen[n] = true
					mu.Unlock()
					time.Sleep(testmode.N(rng, 300*time.Millisecond))
				}
			})
		}
		for range pauses {
			before := record(t, s, id).Generation
			if _, err := s.SetTimeout(t.Context(), id, 500*time.Millisecond, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if r := record(t, s, id); r.State != lifecycle.Running || r.Generation > before+1 {
				t.Errorf("after a pause at the timeout: %s, generation %d, was %d", r.Situation(), r.Generation, before)
			}
			before = record(t, s, id).Generation
			if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if r := record(t, s, id); r.Situation() != running || r.Generation != before+1 {
				t.Errorf("after a pause on request: %s, generation %d, was %d", r.Situation(), r.Generation, before)
			}
		}
		stop()
		asking.Wait()
		for n := range int64(len(seen)) {
			if !seen[n+1] {
				t.Errorf("count %d is missing", n+1)
			}
		}
		t.Logf("%d requests", len(seen))
	})
}
