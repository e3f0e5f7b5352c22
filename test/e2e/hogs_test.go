package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestHogs lets sandboxes take as much as they can get of one thing each. Each
// meets an error that it can read and goes on; its neighbour answers all the
// while; and it sleeps and wakes, and is killed, as any other.
func TestHogs(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	if n := s.log.count(`msg="file limit"`, "a program in a sandbox may have"); n != len(s.each()) {
		t.Errorf("the log says %d times how many files can be open, want once for each server", n)
	}
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	hogs := []struct {
		name    string
		command string // run by root; what it takes, it keeps
		says    string
	}{
		{"files in /tmp", "dd if=/dev/zero of=/tmp/hog bs=1M count=2000; true", "No space left on device"},
		{"files in /dev/shm", "dd if=/dev/zero of=/dev/shm/hog bs=1M count=2000; true", "No space left on device"},
		{"files in /run", "dd if=/dev/zero of=/run/hog bs=1M count=2000; true", "No space left on device"},
		{"descriptors", "ulimit -n 10000; cd /home/user && (./guest open & sleep 0) | head -n 1", "too many open files"},
	}
	if !testmode.All() {
		hogs = append(hogs[:1], hogs[3]) // the others are in memory as well
	}
	for _, c := range hogs {
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
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
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

// TestGreedyKey has a key take all processors. It yields them to others. While a sandbox
// of another key runs, it is kept off one of them, also once it was woken; and gets it
// back when the other sleeps.
func TestGreedyKey(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Fatal("this needs a machine with two processors: with one, nothing is kept free for others")
	}
	ctx := deadline(t, 3*time.Minute)
	w := newWorld(t)
	w.ctx = ctx
	hog := w.tenant(ctx, t, "greedy", "127.0.0.1", client.KeyLimits{})
	other := w.tenant(ctx, t, "modest", "127.0.0.2", client.KeyLimits{})
	o := sleeper
	o.Timeout = 10 * time.Minute
	sb, err := hog.c.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	all := w.processors(sb.ID)
	has := func(what string, want bool) {
		t.Helper()
		eventually(t, time.Minute, what, func() error {
			if got := w.processors(sb.ID); got == "" || (got == all) != want {
				return fmt.Errorf("it may use %q of %q", got, all)
			}
			return nil
		})
	}
	eventually(t, time.Minute, "it yields to others", func() error {
		got := w.cgroupFile(sb.ID, "cpu.idle")
		if got == "" && w.cgroupFile(sb.ID, "cpu.shares")+w.cgroupFile(sb.ID, "cpu.weight") != "" {
			return nil // a kernel before 5.15 has nothing of the kind
		}
		if got != "1" {
			return fmt.Errorf("cpu.idle has %q", got)
		}
		return nil
	})
	has("alone, it may use all", true)
	modest, err := other.c.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	has("beside another, it may not", false)
	for range 2 {
		if err := hog.c.Pause(ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Run(ctx, client.Command{Args: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
		has("woken, it may not", false)
	}
	if err := other.c.Pause(ctx, modest.ID); err != nil {
		t.Fatal(err)
	}
	has("alone again, it may", true)
}

// processors returns on which the kernel lets a sandbox run; empty if it does not
// say.
func (s *server) processors(id string) string {
	// Of v2 and v1.
	return cmp.Or(s.cgroupFile(id, "cpuset.cpus.effective"), s.cgroupFile(id, "cpuset.cpus"))
}

// cgroupFile returns what a file of a sandbox's cgroups has; empty if there is none.
func (s *server) cgroupFile(id, file string) string {
	for _, g := range s.cgroups(id) {
		if text, err := os.ReadFile(filepath.Join(strings.TrimPrefix(g, "cgroup "), file)); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}
