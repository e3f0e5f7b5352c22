package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestKilledFromOutside ends a sandbox behind the server's back, in each way
// that a process of it can end. What has slept falls back to that; what has not
// is ended, and says why.
func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	for _, c := range []struct {
		name   string
		victim string // of the command lines in the sandbox's cgroup
	}{
		{"the sentry", "runsc-sandbox"},
		{"the file server", "runsc-gofer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fresh, slept := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
			asleep := slept.ask(ctx)
			s.pause(ctx, slept.sb.ID)
			s.connect(ctx, slept.sb.ID)
			for _, g := range []*guest{fresh, slept} {
				if err := unix.Kill(s.process(g.sb.ID, c.victim), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			took := eventually(t, endWithin, "the end", func() error { return gone(ctx, s, fresh.sb.ID, "RuntimeExited") })
			s.waitGone(fresh.sb.ID)
			took = max(took, eventually(t, endWithin, "the fall back", func() error { return s.is(ctx, slept.sb.ID, client.Paused) }))
			s.waitGone(slept.sb.ID)
			t.Logf("noticed within %s", took.Round(time.Millisecond))
			slept.same(asleep, slept.ask(ctx))
		})
	}
	neighbour.same(before, neighbour.ask(ctx))
}

// TestCheckpointEvery loses a runtime that never slept, but was checkpointed as
// it ran: it goes on from there, and not by itself.
func TestCheckpointEvery(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, CheckpointEvery: lifecycle.MinCheckpointEvery})
	before := g.ask(ctx)
	endAt := func() time.Time {
		info, err := s.client.Get(ctx, g.sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		return info.EndAt
	}
	end := endAt()
	eventually(t, time.Minute, "the checkpoint", func() error { return s.checkpointed(ctx, g.sb.ID, 1) })
	if got := endAt(); !got.Equal(end) {
		t.Errorf("the checkpoint moved its end from %s to %s", end, got)
	}
	g.same(before, g.ask(ctx)) // traffic may not wake it, and it runs
	g.losesRuntime(ctx, before)
}

// losesRuntime ends the runtime of a guest that was checkpointed as it ran, and has
// it go on from the last checkpoint.
func (g *guest) losesRuntime(ctx context.Context, before report) {
	s, t := g.s, g.s.t
	t.Helper()
	if _, err := s.client.Patch(ctx, g.sb.ID, client.PatchOptions{CheckpointEvery: new(time.Duration(0))}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.process(g.sb.ID, "runsc-sandbox"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, endWithin, "the fall back", func() error { return s.is(ctx, g.sb.ID, client.Paused) })
	s.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
}

// process returns the process in a sandbox's cgroup whose command line begins
// with name.
func (s *server) process(id, name string) int {
	s.t.Helper()
	cid := s.containerID(id)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatal(err)
	}
	var seen []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if !bytes.Contains(cmdline, []byte(cid)) {
			continue
		}
		if strings.HasPrefix(string(cmdline), name) {
			return pid
		}
		seen = append(seen, fmt.Sprintf("%.40q", cmdline))
	}
	s.t.Fatalf("no %s among the processes of %s: %s", name, id, seen)
	return 0
}

// stop returns once every thread of the process stands still, which a signal
// that was sent does not say.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "all its threads stand still", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			_, state, _ := strings.Cut(string(stat), ") ")
			if err == nil && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "t") {
				return fmt.Errorf("%s: %s", thread, stat)
			}
		}
		return err
	})
}

// TestStopped stops the sentry of sandboxes, and with it everything inside.
// Whatever is asked of them meanwhile, each can be killed; and one that is let
// go on is as it was.
func TestStopped(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	for _, c := range []struct {
		name string
		ask  func(context.Context, *guest) error
	}{
		{"an answer", func(ctx context.Context, g *guest) error {
			_, err := g.report(ctx)
			return err
		}},
		{"a command", func(ctx context.Context, g *guest) error {
			_, err := g.sb.Run(ctx, client.Command{Args: []string{"true"}})
			return err
		}},
		{"a pause", func(ctx context.Context, g *guest) error { return s.client.Pause(ctx, g.sb.ID) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := s.startGuest(ctx, sleeper)
			stop(t, s.process(g.sb.ID, "runsc-sandbox"))
			asked := make(chan error, 1)
			go func() { asked <- c.ask(ctx, g) }()
			time.Sleep(300 * time.Millisecond) // for the question to be under way
			begin := time.Now()
			took := s.kill(ctx, t, g.sb.ID)
			if err := gone(ctx, s, g.sb.ID, "Killed"); err != nil {
				t.Error(err)
			}
			eventually(t, 20*time.Second, "nothing is left of it", func() error { return s.left(g.sb.ID, true) })
			select {
			case err := <-asked:
				if err == nil {
					t.Errorf("a stopped sandbox gave what was asked of it")
				}
				t.Logf("killed in %s, released after %s; asked: %v", took, since(begin), err)
			case <-ctx.Done():
				t.Error("the question is still open")
			}
		})
	}
	t.Run("goes on", func(t *testing.T) {
		g := s.startGuest(ctx, sleeper)
		was := g.ask(ctx)
		pid := s.process(g.sb.ID, "runsc-sandbox")
		stop(t, pid)
		paused := make(chan error, 1)
		go func() { paused <- s.client.Pause(ctx, g.sb.ID) }()
		time.Sleep(300 * time.Millisecond) // for the pause to be under way
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-paused; err != nil {
			t.Errorf("pause: %v", err)
		}
		g.same(was, g.ask(ctx))
	})
	neighbour.same(before, neighbour.ask(ctx))
}
