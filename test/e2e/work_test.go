package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// shortIdle puts a sandbox to sleep that does nothing for a moment.
const shortIdle = 2 * time.Second

// setIdle gives a sandbox that works the short idle timeout. Before it works it
// might fall asleep.
func (s *server) setIdle(ctx context.Context, id string) {
	s.t.Helper()
	if _, err := s.client.Patch(ctx, id, client.PatchOptions{IdleTimeout: new(shortIdle)}); err != nil {
		s.t.Fatal(err)
	}
}

// leave starts a shell command and leaves it alone.
func (s *server) leave(ctx context.Context, sb *client.Sandbox, script string) (pid int) {
	s.t.Helper()
	p, err := sb.Start(ctx, client.Command{Args: []string{"bash", "-c", script}})
	if err != nil {
		s.t.Fatal(err)
	}
	p.Detach()
	return p.PID()
}

func (s *server) explain(ctx context.Context, id string) *client.Explanation {
	s.t.Helper()
	x, err := s.client.Explain(ctx, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return x
}

// entries returns the events of a type of one sandbox, oldest first.
func (s *server) entries(ctx context.Context, id, kind string) []client.Event {
	s.t.Helper()
	page, err := s.client.Events(ctx, client.EventOptions{Sandbox: id, Limit: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(page.Events, func(e client.Event) bool { return e.Type != kind })
}

// idled waits until a sandbox has been paused for idleness so many times, and
// returns the event with which the last began.
func (s *server) idled(ctx context.Context, id string, times int) client.Event {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "the sandbox sleeps", func() error { return s.is(ctx, id, client.Paused) })
	pauses := s.entries(ctx, id, "pausing")
	if len(pauses) != times {
		s.t.Fatalf("%d pauses, want %d: %+v", len(pauses), times, pauses)
	}
	last := pauses[times-1]
	if last.Cause != "idle" {
		s.t.Errorf("it was paused by %s, want idle", last.Cause)
	}
	return last
}

// hold returns the hold of a process, and whether there is one.
func hold(x *client.Explanation, pid int) (client.Hold, bool) {
	i := slices.IndexFunc(x.Holds, func(h client.Hold) bool { return h.ID == fmt.Sprintf("process-%d", pid) })
	if i < 0 {
		return client.Hold{}, false
	}
	return x.Holds[i], true
}

// TestWorkWithoutClient leaves a command alone that works on for several times
// the idle timeout. The sandbox stays awake as long as the work goes on, and
// sleeps one timeout after.
func TestWorkWithoutClient(t *testing.T) {
	t.Parallel()
	const (
		computes = "SECONDS=0; while ((SECONDS < 8)); do :; done; date +%s.%N >ended"
		writes   = `
import time
out = open("out", "a", buffering=1)
end = time.time() + 8
while time.time() < end:
	out.write("a line\n")
	time.sleep(0.2)
open("ended", "w").write("%.9f" % time.time())`
	)
	for _, c := range []struct{ name, script string }{
		{"computes", computes},
		{"writes", "exec python3 -c '" + writes + "'"},
		// The work is done by a grandchild that has left the session, and whose
		// parents are gone.
		{"grandchild computes", "(setsid bash -c '(" + computes + ") & exit' & exit)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, time.Minute)
			s := startServer(t)
			sb := s.create(ctx, sleeper)
			s.leave(ctx, sb, c.script)
			s.setIdle(ctx, sb.ID)
			eventually(t, 10*time.Second, "the work is seen", func() error {
				if x := s.explain(ctx, sb.ID); !slices.ContainsFunc(x.Holds, func(h client.Hold) bool { return h.Kind == client.HoldProcess && h.Counts }) {
					return fmt.Errorf("holds %+v", x.Holds)
				}
				return nil
			})
			pausing := s.idled(ctx, sb.ID, 1)
			_, out := run(ctx, t, sb, "cat", "ended") // wakes it
			checkAfter(t, "idle after the end of the work", unixTime(t, out).Add(shortIdle-maxClockError), pausing.Time)
		})
	}
}

// TestWorkOfCells has cells work for several times the idle timeout, one while its
// client waits and one in a thread that it leaves behind. Neither has output, so
// that the client's stream counts for nothing after a while. They write to a file,
// because how much they compute depends on what else the machine does.
func TestWorkOfCells(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, start string }{
		{"cell", "work()"},
		{"thread", "import threading; threading.Thread(target=work).start()"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, 2*time.Minute)
			s := startServer(t)
			sb := s.create(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true), StallAfter: 3 * time.Second})
			idle := make(chan error, 1)
			go func() {
				idle <- poll(time.Minute, func() error {
					x, err := s.client.Explain(ctx, sb.ID)
					if err == nil && len(x.Holds) == 0 {
						err = errors.New("no hold")
					}
					if err == nil {
						_, err = s.client.Patch(ctx, sb.ID, client.PatchOptions{IdleTimeout: new(shortIdle)})
					}
					return err
				})
			}()
			const work = `
import time
def work():
	out = open("out", "a", buffering=1)
	end = time.time() + 10
	while time.time() < end:
		out.write("a line\n")
		sum(range(100_000))
	open("ended", "w").write("%.9f" % time.time())
`
			if c := s.runCode(ctx, sb, "python", work+c.start); len(c.errors) > 0 {
				t.Fatalf("cell: %q", c.errors)
			}
			if err := <-idle; err != nil {
				t.Fatal(err)
			}
			pausing := s.idled(ctx, sb.ID, 1)
			_, out := run(ctx, t, sb, "cat", "ended") // wakes it
			checkAfter(t, "idle after the end of the work", unixTime(t, out).Add(shortIdle-maxClockError), pausing.Time)
		})
	}
}

// TestRefreshRespectsWork runs commands for longer than the timeout of a sandbox
// that refreshes it on activity. They end well, and it sleeps one timeout after.
// Where only requests count, it does so too beside a process that runs on.
func TestRefreshRespectsWork(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	for _, c := range []struct {
		name, script, want string
		onRequests         bool
	}{
		{"prints", "for i in {1..16}; do echo $i; sleep 0.5; done", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n", false},
		{"silent", "sleep 8", "", false},
		{"beside a process", "sleep 600 >/dev/null 2>&1 & sleep 8", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, time.Minute)
			s := startServer(t)
			sb := s.create(ctx, client.CreateOptions{Timeout: timeout, OnTimeout: client.Pause, AutoResume: new(true), RefreshOnActivity: new(true), RefreshOnRequests: c.onRequests})
			exit, out := run(ctx, t, sb, "bash", "-c", c.script+"; date +%s.%N")
			at, ok := strings.CutPrefix(out, c.want)
			if !ok || exit.Code != 0 {
				t.Fatalf("it ended with %+v and printed %q", exit, out)
			}
			eventually(t, 30*time.Second, "the sandbox sleeps", func() error { return s.is(ctx, sb.ID, client.Paused) })
			pauses := s.entries(ctx, sb.ID, "pausing")
			if len(pauses) != 1 || pauses[0].Cause != "timeout" {
				t.Fatalf("pauses %+v, want one by the timeout", pauses)
			}
			checkAfter(t, "asleep after the end of the command", unixTime(t, at).Add(timeout-maxClockError), pauses[0].Time)
		})
	}
}

// TestWedgedWork leaves commands alone that are alive and do nothing. They
// count for stallAfter, are reported, and keep nobody awake any more. One that
// goes on after the wake counts again.
func TestWedgedWork(t *testing.T) {
	t.Parallel()
	const stallAfter = 3 * time.Second
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true), StallAfter: stallAfter})
	run(ctx, t, sb, "mkfifo", "gate")
	started := time.Now()
	wedged := s.leave(ctx, sb, "exec sleep 600")
	waits := s.leave(ctx, sb, "read <gate; SECONDS=0; while ((SECONDS < 8)); do :; done; date +%s.%N >ended")
	s.setIdle(ctx, sb.ID)

	pausing := s.idled(ctx, sb.ID, 1)
	stalls := s.entries(ctx, sb.ID, "hold.stalled")
	for _, pid := range []int{wedged, waits} {
		of := slices.DeleteFunc(slices.Clone(stalls), func(e client.Event) bool {
			return !strings.HasPrefix(e.Detail, fmt.Sprintf("process %d: ", pid))
		})
		if len(of) != 1 {
			t.Fatalf("process %d was reported as stalled %d times, want once: %+v", pid, len(of), stalls)
		}
		checkAfter(t, "stall", started.Add(stallAfter-maxClockError), of[0].Time)
		// It is told when it stops counting, not when the sandbox sleeps for it.
		checkAfter(t, "idle after the stall", of[0].Time.Add(shortIdle/2), pausing.Time)
	}

	// The gate opens: this wakes the sandbox, and lets one of them go on.
	run(ctx, t, sb, "sh", "-c", "echo go >gate")
	eventually(t, 10*time.Second, "the one that goes on counts", func() error {
		x := s.explain(ctx, sb.ID)
		h, ok := hold(x, waits)
		if !ok || !h.Counts {
			return fmt.Errorf("%s, holds %+v", x.State, x.Holds)
		}
		if h, ok = hold(x, wedged); !ok || h.Counts {
			return fmt.Errorf("sleep 600 is not shown as stalled: %+v", x.Holds)
		}
		_, text, _ := strings.Cut(s.why(ctx, sb.ID), "sleep 600\n")
		if line, _, _ := strings.Cut(text, "\n"); !strings.Contains(line, "STALLED") {
			t.Errorf("drowse why says of it: %q, want STALLED", line)
		}
		return nil
	})
	pausing = s.idled(ctx, sb.ID, 2)
	_, out := run(ctx, t, sb, "cat", "ended")
	checkAfter(t, "idle after the end of the work", unixTime(t, out).Add(shortIdle-maxClockError), pausing.Time)
}

// why returns what the command-line client says of a sandbox.
func (s *server) why(ctx context.Context, id string) string {
	s.t.Helper()
	cmd := exec.CommandContext(ctx, drowseBinary, "why", id)
	cmd.Env = []string{"DROWSE_URL=http://" + s.addr, "DROWSE_API_KEY=" + apiKey}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("drowse why: %v: %s", err, out)
	}
	return string(out)
}

// lineWith returns the first line that has part in it.
func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
