package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// idleShare is the part of a core that a server with nothing to do may use, and
// lookShare what it may use for each sandbox that it looks at every second. A
// loop that polls uses more.
const idleShare, lookShare = 0.02, 0.01

// TestIdleServer measures the server's CPU time while ten sandboxes sleep and
// a few run, all of them idle, and again while processes hold those awake beyond
// their idle timeout, which the server must then look at every second.
func TestIdleServer(t *testing.T) {
	const asleep, awake, window = 10, 4, 12 * time.Second
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	for range asleep {
		s.pause(ctx, s.create(ctx, sleeper).ID)
	}
	var running []*client.Sandbox
	for i := range awake {
		o := sleeper
		if i%2 == 0 {
			o.IdleTimeout = 10 * time.Minute
		}
		running = append(running, s.create(ctx, o))
	}
	idle := 4 * time.Second
	s.wantIdle(ctx, window, idleShare, fmt.Sprintf("%d sandboxes asleep and %d idle ones", asleep, awake))

	for _, sb := range running {
		p, err := sb.Start(ctx, client.Command{Args: []string{"sleep", "infinity"}})
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
		if _, err := s.client.Patch(ctx, sb.ID, client.PatchOptions{IdleTimeout: &idle}); err != nil {
			t.Fatal(err)
		}
	}
	rest(ctx, t, idle)
	s.wantIdle(ctx, window, idleShare+awake*lookShare, fmt.Sprintf("%d sandboxes asleep and %d with a process", asleep, awake))
	for _, sb := range running {
		if err := s.is(ctx, sb.ID, client.Running); err != nil {
			t.Errorf("sandbox with a process: %v", err)
		}
	}
}

// wantIdle measures the server's CPU time over a window in which nobody asks
// anything of it. On a machine that is busy with something else the same work
// takes more of it, so the server has three windows to show that it can be idle:
// one that polls is idle in none.
func (s *server) wantIdle(ctx context.Context, window time.Duration, most float64, when string) {
	s.t.Helper()
	httpClient.CloseIdleConnections()
	share := 1.0
	for range 3 {
		rest(ctx, s.t, 2*time.Second) // what came before ends
		before, began := cpuTime(s.t, s.pid()), time.Now()
		rest(ctx, s.t, window)
		used, took := cpuTime(s.t, s.pid())-before, time.Since(began)
		share = used.Seconds() / took.Seconds()
		s.t.Logf("server with %s: %s of CPU time in %s, %.2f %% of a core", when, used, took.Round(time.Millisecond), 100*share)
		if share <= most {
			return
		}
	}
	s.t.Errorf("server with %s uses %.1f %% of a core, want at most %.0f %%", when, 100*share, 100*most)
}

func rest(ctx context.Context, t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
}

// cpuTime returns the CPU time that the threads of a process have used, as the
// scheduler counts it: to the nanosecond, not in ticks that short work slips
// through. Threads of a Go program do not end as long as it is idle.
func cpuTime(t testing.TB, pid int) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("threads of process %d: %d found, %v", pid, len(files), err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		var used time.Duration
		if err == nil {
			_, err = fmt.Sscan(string(data), &used)
		}
		if err != nil {
			t.Fatal(err)
		}
		sum += used
	}
	return sum
}
