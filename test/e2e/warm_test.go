package e2e

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// warmOnes returns the ids of the runtimes that wait.
func warmOnes(s *server) []string {
	var ids []string
	for _, m := range s.each() {
		for cid, owner := range owners(m.home) {
			if owner == waiting {
				ids = append(ids, cid)
			}
		}
	}
	return ids
}

// TestWarmRuntimes starts and wakes sandboxes in runtimes that wait, and ends
// the server and the runtimes while they do.
func TestWarmRuntimes(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	take := func(what, sandbox string, before []string) {
		t.Helper()
		if cid := s.containerID(sandbox); !slices.Contains(before, cid) {
			t.Errorf("%s in %s, want one of %q", what, cid, before)
		}
	}
	s.waitWarm(1)
	warm := warmOnes(s)
	g := s.startGuest(ctx, sleeper)
	take("started", g.sb.ID, warm)

	// What the runtime could not know before is as it should be.
	var out bytes.Buffer
	exit, err := g.sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "hostname; grep -h Cap /proc/1/status; sudo grep -h Cap /proc/self/status"}, Stdout: &out})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	lines := strings.Fields(out.String())
	if lines[0] != g.sb.ID {
		t.Errorf("host name %q, want %q", lines[0], g.sb.ID)
	}
	for i := 1; i+1 < len(lines); i += 2 {
		var set uint64
		if _, err := fmt.Sscanf(lines[i+1], "%x", &set); err != nil || set&(1<<capSysAdmin) != 0 {
			t.Errorf("%s %s, %v: the capability to name the sandbox was not given up", lines[i], lines[i+1], err)
		}
	}

	s.tryFiles(ctx, g.sb)

	s.waitWarm(1)
	warm = warmOnes(s)
	g.first = g.ask(ctx)
	s.pause(ctx, g.sb.ID)
	g.same(g.first, g.ask(ctx))
	take("woken", g.sb.ID, warm)
	s.tryFiles(ctx, g.sb)

	s.waitWarm(1)
	warm = warmOnes(s)
	s.crash()
	if found, code := s.fsck(t); code != 0 {
		t.Errorf("fsck with a runtime that waits ends with %d: %+v", code, found)
	}
	s.start()
	s.waitWarm(1)
	if now := warmOnes(s); slices.Equal(now, warm) {
		t.Errorf("%q still waits after a crash, whose connection to the server is gone", now)
	}
	left := processes(s.dir(), warm[0])
	if left = append(left, cgroups(s.dir(), warm[0])...); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	g.same(g.first, g.ask(ctx))

	// One that dies is no obstacle, whether that is noticed before it is taken
	// or not.
	for _, line := range processes(s.dir(), warmOnes(s)[0]) {
		var pid int
		if _, err := fmt.Sscanf(line, "process %d (", &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	s.startGuest(ctx, sleeper)
	s.pause(ctx, g.sb.ID)
	g.same(g.first, g.ask(ctx))

	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if left := warmOnes(s); len(left) > 0 {
		t.Errorf("%q wait for a server that has stopped", left)
	}
	s.args = []string{"--warm-runtimes", "0"}
	s.start()
	s.pause(ctx, g.sb.ID)
	g.same(g.first, g.ask(ctx))
	if ids := warmOnes(s); len(ids) > 0 {
		t.Errorf("%q wait, want none", ids)
	}
}

// TestWarmRuntimesOfOnlyKey: a key that is alone has every runtime that waits, also right
// after the start of the server, which has launched something to try whether it can.
func TestWarmRuntimesOfOnlyKey(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t, "--trial")
	s.waitWarm(1)
	g := s.startGuest(ctx, sleeper)
	first := g.ask(ctx)
	for i := range 5 {
		s.waitWarm(1)
		warm := warmOnes(s)
		s.pause(ctx, g.sb.ID)
		g.same(first, g.ask(ctx))
		if cid := s.containerID(g.sb.ID); !slices.Contains(warm, cid) {
			t.Errorf("woken for the %d. time in %s, want one of %q", i+1, cid, warm)
		}
	}
}

// tryFiles opens what the file server of a sandbox opens in ways of its own.
func (s *server) tryFiles(ctx context.Context, sb *client.Sandbox) {
	s.t.Helper()
	const script = `set -e
ls / >/dev/null
rm -f fifo socket
mkfifo fifo
echo through >fifo &
cat fifo
python3 -c '
import socket
s, c = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
s.bind("socket"); s.listen(); c.connect("socket")
'`
	if exit, out := run(ctx, s.t, sb, "bash", "-c", script); exit.Code != 0 || out != "through\n" {
		s.t.Errorf("files in %s: %s: %s", sb.ID, exit.Status, out)
	}
}

const capSysAdmin = 21
