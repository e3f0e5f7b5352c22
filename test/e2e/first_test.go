package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// everySignal sends each signal to the first process, and to each of its threads, in
// every way that there is, and tries whatever else could end or stop it.
const everySignal = `
import ctypes, fcntl, os, resource, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
TGKILL, SIGQUEUE, TGSIGQUEUE = (234, 129, 297) if os.uname().machine == "x86_64" else (131, 138, 240)
threads = [int(t) for t in os.listdir("/proc/1/task")]
pidfd = os.pidfd_open(1)
for number in range(1, 65):
    info = struct.pack("iii", number, 0, -1).ljust(128, b"\0")
    os.kill(1, number)
    libc.syscall(SIGQUEUE, 1, number, info)
    libc.syscall(424, pidfd, number, None, 0)
    libc.syscall(424, pidfd, number, info, 0)
    for t in threads:
        libc.syscall(TGKILL, 1, t, number)
        libc.syscall(TGSIGQUEUE, 1, t, number, info)
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, 1)
fcntl.fcntl(r, 10, signal.SIGKILL) # F_SETSIG
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b"x")
for what in 16, 0x4206: # PTRACE_ATTACH, PTRACE_SEIZE
    if libc.ptrace(what, 1, None, None) == 0:
        print("traced with", what)
for limit in resource.RLIMIT_CPU, resource.RLIMIT_NOFILE:
    try:
        resource.prlimit(1, limit, (1, 1))
        print("limit", limit, "was set")
    except PermissionError:
        pass
try:
    open("/proc/1/mem", "r+b")
    print("its memory was opened")
except PermissionError:
    pass
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    pass
print("done")
`

// TestFirstProcessIsShielded: root inside sends every signal to the first process,
// by its number, its name and its user. The sandbox runs on, sleeps and wakes.
func TestFirstProcessIsShielded(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	for _, c := range []struct {
		name, script string
		want         string // what it prints; nothing is waited for without
	}{
		{"every signal", "python3 -c '" + everySignal + "'", "done\n"},
		{"by name", `cat /proc/1/comm; tr -d '\0' </proc/1/cmdline; pkill agent; pkill -9 -f "$(cat /proc/1/comm)"; pkill -9 init`, "drowse-init\ndrowse-init"},
		{"by user", "pkill -9 -u root", ""},
		{"all", "kill -9 -1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			sb := s.create(ctx, sleeper)
			s.survives(ctx, t, sb, c.script, c.want)
		})
	}
}

// survives runs a script as root and sees that the sandbox is no worse for it.
func (s *server) survives(ctx context.Context, t *testing.T, sb *client.Sandbox, script, want string) {
	t.Helper()
	run(ctx, t, sb, "sh", "-c", "echo precious >~/work")
	var out strings.Builder
	command := client.Command{Args: []string{"sudo", "sh", "-c", script}, Stdout: &out, Stderr: &out}
	if _, err := sb.Run(ctx, command); want != "" && (err != nil || out.String() != want) {
		t.Fatalf("the script printed %q, %v; want %q", out.String(), err, want)
	}
	if _, got := run(ctx, t, sb, "sh", "-c", "cat ~/work"); got != "precious\n" {
		t.Fatalf("the file has %q", got)
	}
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	if _, got := run(ctx, t, sb, "sh", "-c", "cat ~/work"); got != "precious\n" {
		t.Fatalf("after a sleep the file has %q", got)
	}
	if _, got := run(ctx, t, sb, "cat", "/run/drowse/generation"); got != "2\n" {
		t.Errorf("it is of generation %q, and was not woken just once", got)
	}
}

// TestEndIsExplained: the error of a sandbox that has ended says of what.
func TestEndIsExplained(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{})
	s.killFirst(t, sb.ID)
	eventually(t, endWithin, "the end", func() error {
		return gone(ctx, s, sb.ID, "RuntimeExited (its first process was ended by signal 9 (killed))")
	})
}

// killFirst ends the first process of a sandbox from outside, by gVisor's own tool.
func (s *server) killFirst(t *testing.T, id string) {
	t.Helper()
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.process(id, "runsc-sandbox")))
	if err != nil {
		t.Fatal(err)
	}
	_, root, _ := strings.Cut(string(cmdline), "--root=")
	root, _, _ = strings.Cut(root, "\x00")
	kill := exec.Command(drowseBinary, "--root", root, "kill", s.containerID(id), "KILL")
	kill.Args[0] = "runsc"
	if out, err := kill.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
