package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
)

// runToEnd runs a server that is to refuse to start, and returns its exit code
// and what it said.
func runToEnd(t *testing.T, cmd *exec.Cmd, log *logBuffer) (code int, said string) {
	t.Helper()
	if err := startCommand(cmd); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), log.String()
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-done
		t.Fatalf("server runs, want refused; it said: %s", log)
		return 0, ""
	}
}

func checkRefusal(t *testing.T, code int, said string, wants ...string) {
	t.Helper()
	if code <= 0 {
		t.Errorf("exit code %d, want a failure", code)
	}
	for _, want := range wants {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want it to name %q", said, want)
		}
	}
	if n := strings.Count(strings.TrimSpace(said), "\n"); n > 3 || strings.Contains(said, "goroutine") {
		t.Errorf("it said %d lines, want a clear message: %s", n+1, said)
	}
	t.Logf("exit code %d: %s", code, strings.TrimSpace(said))
}

// TestRefusedStart starts servers that must refuse to.
func TestRefusedStart(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)

	t.Run("directory in use", func(t *testing.T) {
		second := newServer(t, s.dir())
		code, said := runToEnd(t, second.command(), second.log)
		checkRefusal(t, code, said, "another drowse server", s.dir(), "--state-dir")
	})
	t.Run("port in use", func(t *testing.T) {
		second := newServer(t, t.TempDir())
		second.addr = s.addr
		code, said := runToEnd(t, second.command(), second.log)
		checkRefusal(t, code, said, s.addr, "--listen")
	})
	t.Run("address of another machine", func(t *testing.T) {
		second := newServer(t, t.TempDir())
		second.addr = "192.0.2.77:3000"
		code, said := runToEnd(t, second.command(), second.log)
		checkRefusal(t, code, said, second.addr, "--listen")
	})
	t.Run("not root", func(t *testing.T) {
		dir, err := os.MkdirTemp("", "dw")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		second := newServer(t, dir)
		cmd := second.command()
		cmd.Dir = "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		code, said := runToEnd(t, cmd, second.log)
		checkRefusal(t, code, said, "root", "sudo")
	})
	t.Run("weak key", func(t *testing.T) {
		second := newServer(t, t.TempDir())
		cmd := second.command()
		cmd.Env = append(cmd.Env, "DROWSE_API_KEY=secret")
		code, said := runToEnd(t, cmd, second.log)
		checkRefusal(t, code, said, "API key", "e2b_")
	})
	t.Run("state directory is a file", func(t *testing.T) {
		file := t.TempDir() + "/file"
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		second := newServer(t, file)
		code, said := runToEnd(t, second.command(), second.log)
		checkRefusal(t, code, said, file, "--state-dir")
	})

	t.Run("state directory on overlayfs", func(t *testing.T) {
		dir := t.TempDir()
		for _, d := range []string{"lower", "upper", "work", "merged"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
		if err := unix.Mount("container", filepath.Join(dir, "merged"), "overlay", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "merged"), unix.MNT_DETACH) })
		second := newServer(t, filepath.Join(dir, "merged", "state"))
		code, said := runToEnd(t, second.command(), second.log)
		checkRefusal(t, code, said, "lies on overlayfs", "volume")
	})

	// The first server has noticed nothing.
	if exit, out := run(ctx, t, sb, "echo", "well"); exit.Code != 0 || out != "well\n" {
		t.Errorf("first server's sandbox: %+v %q", exit, out)
	}
}

// TestStateDirByAnotherPath starts a server by a relative path, and the next by
// one through a symbolic link. That finds what the first has left running.
func TestStateDirByAnotherPath(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := newServer(t, stateDir(t))
	t.Cleanup(s.cleanUp)
	link := s.dir() + "-link"
	if err := os.Symlink(filepath.Base(s.dir()), link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	whole := s.dir()
	s.cwd, s.home = filepath.Dir(whole), filepath.Base(whole)
	s.start()
	sb := s.startGuest(ctx, sleeper)
	first := sb.ask(ctx)
	s.crash()
	s.cwd, s.home = "", link
	s.start()
	s.pause(ctx, sb.sb.ID)
	if next := sb.ask(ctx); next.Counter <= first.Counter {
		t.Errorf("the sandbox counts %d after %d", next.Counter, first.Counter)
	}
	s.home = whole // by which the test looks for what is left
}

// TestStop stops the server in order, with open streams. Running sandboxes stay
// and are found again.
func TestStop(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	awake, asleep := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	asleep.first = asleep.ask(ctx)
	s.pause(ctx, asleep.sb.ID)
	before := awake.ask(ctx)
	stream := awake.open(ctx, "/stream")
	defer stream.Close()
	// A connection that says nothing must not keep the server.
	idle, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()

	begin := time.Now()
	if err := s.stop(); err != nil {
		t.Fatalf("server ended with %v after SIGTERM, want exit code 0", err)
	}
	took := time.Since(begin)
	if left := s.processes(awake.sb.ID); len(left) == 0 {
		t.Errorf("the running sandbox ended with the server")
	}
	s.start()
	now := awake.ask(ctx)
	awake.same(before, now)
	if now.Generation != before.Generation {
		t.Errorf("generation went from %s to %s", before.Generation, now.Generation)
	}
	asleep.same(asleep.first, asleep.ask(ctx))
	t.Logf("server stopped in %s with an open stream; counter went from %d to %d", took.Round(time.Millisecond), before.Counter, now.Counter)
}

// TestStopPausesAll stops a server that is to put its sandboxes to sleep: one
// at work, one that pauses already, one that sleeps.
func TestStopPausesAll(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t, "--on-shutdown", "pause")
	guests := []*guest{s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)}
	for _, g := range guests {
		g.first = g.ask(ctx)
	}
	stream := guests[0].open(ctx, "/stream")
	defer stream.Close()
	pausing := make(chan error, 1)
	go func() { pausing <- s.client.Pause(ctx, guests[1].sb.ID) }()
	s.pause(ctx, guests[2].sb.ID)

	if err := s.stop(); err != nil {
		t.Fatalf("server ended with %v after SIGTERM, want exit code 0", err)
	}
	<-pausing // its answer may not have come through any more
	for _, g := range guests {
		if left := s.processes(g.sb.ID); len(left) > 0 {
			t.Errorf("sandbox %s has processes: %v", g.sb.ID, left)
		}
	}
	s.start()
	for i, g := range guests {
		if err := s.is(ctx, g.sb.ID, client.Paused); err != nil {
			t.Errorf("sandbox %d: %v", i, err)
		}
		now := g.ask(ctx)
		g.same(g.first, now)
		if got, want := now.generation(t), g.first.generation(t)+1; got != want {
			t.Errorf("sandbox %d: generation %d, want %d", i, got, want)
		}
	}
	if entries := s.entries(ctx, guests[0].sb.ID, "pausing"); len(entries) != 1 || entries[0].Cause != "shutdown" {
		t.Errorf("pauses %+v, want one for the shutdown", entries)
	}
}

// TestServiceManager plays systemd: it is told when the server is ready, that
// it is well, again and again, and when it stops.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	told := func() string {
		t.Helper()
		buf := make([]byte, 256)
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	s := newServer(t, stateDir(t))
	s.env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"}
	t.Cleanup(s.cleanUp)
	s.start()
	for _, want := range []string{"READY=1\nSTATUS=ready", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := told(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	for got := told(); got != "STOPPING=1"; got = told() {
		if got != "WATCHDOG=1" {
			t.Errorf("told %q", got)
		}
	}
}

// wrapped returns a program that runs script with drowse's arguments, which ends
// with starting the program "$DROWSE".
func wrapped(t *testing.T, script string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "drowse")
	text := "#!/bin/sh\nDROWSE='" + drowseBinary + "'\n" + script + "\n"
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestHiddenCgroups starts a server where the cgroups cannot be seen, as in
// "ip netns exec". With cgroup v2 it finds them all the same; with v1 it says
// what hides them.
func TestHiddenCgroups(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := newServer(t, stateDir(t))
	s.args = []string{"--trial"}
	s.binary = wrapped(t, `exec unshare --mount sh -c 'umount -l /sys/fs/cgroup && exec "$@"' sh "$DROWSE" "$@"`)
	if len(glob("/sys/fs/cgroup/memory/cgroup.procs")) > 0 {
		code, said := runToEnd(t, s.command(), s.log)
		checkRefusal(t, code, said, "cgroup v1", "memory controller is not at /sys/fs/cgroup/memory", "nsenter --net")
		return
	}
	t.Cleanup(s.cleanUp)
	s.start()
	sb := s.create(ctx, sleeper)
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
}
