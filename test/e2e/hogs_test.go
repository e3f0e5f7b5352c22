package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestHogs lets sandboxes take as much as they can get of one thing each. Each
// meets an error that it can read and goes on; its neighbour answers all the
// while; and it sleeps and wakes, and is killed, as any other.
func TestHogs(t *testing.T) {
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	for _, c := range []struct {
		name    string
		command string // run by root; what it takes, it keeps
		says    string
	}{
		{"files in /tmp", "dd if=/dev/zero of=/tmp/hog bs=1M count=2000; true", "No space left on device"},
		{"files in /dev/shm", "dd if=/dev/zero of=/dev/shm/hog bs=1M count=2000; true", "No space left on device"},
		{"files in /run", "dd if=/dev/zero of=/run/hog bs=1M count=2000; true", "No space left on device"},
		{"descriptors", "ulimit -n 10000; cd /home/user && (./guest open & sleep 0) | head -n 1", "too many open files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := s.startGuest(ctx, sleeper)
			was := g.ask(ctx)
			out := s.hog(ctx, t, g.sb.As("root"), c.command, neighbour)
			if !strings.Contains(out, c.says) {
				t.Errorf("it was told %.300q, want %q", out, c.says)
			}
			g.same(was, g.ask(ctx))
			t.Logf("paused in %s", s.pause(ctx, g.sb.ID))
			g.same(was, g.ask(ctx))
			t.Logf("killed in %s", s.kill(ctx, t, g.sb.ID))
			s.waitGone(g.sb.ID)
		})
	}
	neighbour.same(before, neighbour.ask(ctx))
}

// hog runs a command to its end, asking a neighbour meanwhile.
func (s *server) hog(ctx context.Context, t *testing.T, sb *client.Sandbox, command string, neighbour *guest) (output string) {
	t.Helper()
	begin := time.Now()
	done := make(chan string, 1)
	go func() {
		_, out := run(ctx, t, sb, "bash", "-c", command)
		done <- out
	}()
	slowest := neighbour.slowest(ctx, func() bool {
		select {
		case output = <-done:
			return false
		default:
			return true
		}
	})
	t.Logf("took what it got in %s; slowest answer of the neighbour %s", since(begin), slowest)
	return output
}

// TestLogFlood starts a command that prints without end and does not read what
// it says. What is not read is not kept: neither the sandbox nor the server
// grows with it.
func TestLogFlood(t *testing.T) {
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	g := s.startGuest(ctx, sleeper)
	was := g.ask(ctx)
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"yes", "a line of the flood"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach() // without having waited, which is what reads
	begin := time.Now()
	slowest := neighbour.slowest(ctx, func() bool { return time.Since(begin) < 3*time.Second })
	t.Logf("slowest answer of the neighbour %s", slowest)
	g.same(was, g.ask(ctx))
	s.pause(ctx, g.sb.ID)
	g.same(was, g.ask(ctx))
	t.Logf("killed in %s", s.kill(ctx, t, g.sb.ID))
	s.waitGone(g.sb.ID)
	neighbour.same(before, neighbour.ask(ctx))
}
