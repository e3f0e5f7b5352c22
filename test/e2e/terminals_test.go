package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
)

// window is a drowse at a terminal of its own.
type window struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	ended  chan struct{}

	mu     sync.Mutex
	screen bytes.Buffer
}

// openWindow runs drowse at a terminal, until the test's end at the latest.
func (s *server) openWindow(t *testing.T, args ...string) *window {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	raw, err := master.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
			if err == nil {
				n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			}
			if err == nil {
				err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: 100, Row: 30})
			}
		}), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &window{t: t, cmd: exec.Command(drowseBinary, args...), master: master, ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), "DROWSE_URL=http://"+s.addr, "DROWSE_API_KEY="+apiKey)
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = slave, slave, slave
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := startCommand(w.cmd); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go func() { _, _ = io.Copy(w, master) }()
	go func() { _ = w.cmd.Wait(); close(w.ended) }()
	t.Cleanup(func() { w.kill(); master.Close() })
	return w
}

// Write implements io.Writer.
func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.screen.Write(p)
}

// shows waits until the screen has a text below what it had when it was last asked.
func (w *window) shows(text string) {
	w.t.Helper()
	eventually(w.t, 30*time.Second, "the terminal shows "+text, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		_, rest, ok := strings.Cut(w.screen.String(), text)
		if !ok {
			return fmt.Errorf("it shows %q", w.screen.String())
		}
		w.screen.Reset()
		w.screen.WriteString(rest)
		return nil
	})
}

// enter types a line. In what it makes appear, \ stands between the parts of a word, so
// that its echo does not have that.
func (w *window) enter(line string) {
	w.t.Helper()
	if _, err := w.master.WriteString(line); err != nil {
		w.t.Fatal(err)
	}
}

// kill kills drowse, and leaves it no time to say anything.
func (w *window) kill() {
	_ = w.cmd.Process.Kill()
	<-w.ended
}

func (w *window) wantEnd(code int) {
	w.t.Helper()
	select {
	case <-w.ended:
		if got := w.cmd.ProcessState.ExitCode(); got != code {
			w.t.Errorf("drowse ended with %d, want %d", got, code)
		}
	case <-time.After(30 * time.Second):
		w.t.Fatal("drowse has not ended")
	}
}

func (s *server) wantTerminals(ctx context.Context, t *testing.T, sb *client.Sandbox, want int) []client.Terminal {
	t.Helper()
	list, err := sb.Terminals(ctx)
	if err != nil || len(list) != want {
		t.Fatalf("terminals %+v, %v; want %d", list, err, want)
	}
	return list
}

// TestShellThatLostItsClient kills clients of shells. The shells are hung up, with what
// runs in them, and the sandboxes sleep as soon as they do without.
func TestShellThatLostItsClient(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, enter, shows string }{
		{name: "prompt", enter: "echo wait\\ing\r", shows: "waiting"},
		{name: "top", enter: "top -d 1\r", shows: "PID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, 2*time.Minute)
			s := startServer(t)
			sb := s.create(ctx, sleeper)
			w := s.openWindow(t, "shell", sb.ID)
			w.enter(c.enter)
			w.shows(c.shows)
			s.wantTerminals(ctx, t, sb, 1)
			s.setIdle(ctx, sb.ID)
			w.kill()
			s.idled(ctx, sb.ID, 1)
			s.wantTerminals(ctx, t, sb, 0) // it wakes
			if _, out := run(ctx, t, sb, "bash", "-c", "cat /proc/[0-9]*/comm"); strings.Contains(out, "top\n") {
				t.Errorf("top runs on: %s", out)
			}
		})
	}
}

// TestDetachableShell leaves a shell and comes back to it, over sleeps: by the key that
// leaves it, by a client that is killed, with the command and as E2B's clients do.
func TestDetachableShell(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	w := s.openWindow(t, "shell", "--detachable", sb.ID)
	w.shows("drowse attach " + sb.ID)
	w.enter("said=kept-$((40+2)); stty size; echo rea\\dy\r")
	w.shows("30 100")
	w.shows("ready")
	w.enter("\x1c")
	w.shows("come back with: drowse attach " + sb.ID)
	w.wantEnd(0)
	s.setIdle(ctx, sb.ID)
	s.idled(ctx, sb.ID, 1) // a prompt is no work

	w = s.openWindow(t, "attach", sb.ID) // it wakes
	w.enter("echo $said\r")
	w.shows("kept-42")
	w.enter("top -d 1\r")
	w.shows("PID")
	w.kill()
	s.idled(ctx, sb.ID, 2) // nor is top, that nobody sees

	pid := s.wantTerminals(ctx, t, sb, 1)[0].PID
	screen, keys := &window{t: t}, make(chan string, 1)
	typed, keyboard := io.Pipe()
	go func() {
		for text := range keys {
			_, _ = io.WriteString(keyboard, text)
		}
	}()
	p, err := sb.Attach(ctx, pid, client.Command{Stdin: typed, Stdout: screen, Terminal: &client.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _, _ = p.Wait() }()
	keys <- "q"
	screen.shows("\x1b[?2004h") // the prompt: top throws away what comes before it has ended
	keys <- "echo again-$said\r"
	screen.shows("again-kept-42")
	keys <- "SECONDS=0; echo wor\\king; while ((SECONDS < 8)); do :; done; date +%s.%N >ended\r"
	screen.shows("working")
	p.Detach()
	<-ended
	close(keys)
	pausing := s.idled(ctx, sb.ID, 3) // what works in it does, without a client
	_, out := run(ctx, t, sb, "cat", "ended")
	if worked := unixTime(t, out); pausing.Time.Before(worked) {
		t.Errorf("it slept at %s, in the middle of work that ended at %s", pausing.Time, worked)
	}
}

// terminalEnds reads from a terminal what was written with ends in it, and looks at one
// whose other side nobody has opened. It is the same on Linux.
const terminalEnds = `
import os, pty, select
master, slave = pty.openpty()
os.write(master, b"one\n\x04two\n\x04")
for _ in range(4):
    assert select.select([slave], [], [], 60)[0]
    print(os.read(slave, 99))
new, poll = os.open("/dev/ptmx", os.O_RDWR | os.O_NONBLOCK), select.poll()
poll.register(new, select.POLLIN)
print(poll.poll(0))
try: os.read(new, 1)
except BlockingIOError: print("nothing yet")
`

// TestShellThatSlept puts a sandbox to sleep under a shell: that is no reason to hang it
// up, nor is a restart of the server.
func TestShellThatSlept(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	if exit, out := run(ctx, t, sb, "python3", "-c", terminalEnds); exit.Code != 0 || out != "b'one\\n'\nb''\nb'two\\n'\nb''\n[]\nnothing yet\n" {
		t.Errorf("a terminal's ends: %s %q", exit.Status, out)
	}
	w := s.openWindow(t, "shell", sb.ID)
	w.enter("said=kept-$((40+2)); echo rea\\dy\r")
	w.shows("ready")
	s.pause(ctx, sb.ID)
	w.shows("drowse attach " + sb.ID)
	w.wantEnd(125)
	for range 2 {
		w = s.openWindow(t, "attach", sb.ID)
		w.enter("echo $said\r")
		w.shows("kept-42")
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		w.wantEnd(125)
		s.start()
	}
	pid := s.wantTerminals(ctx, t, sb, 1)[0].PID
	other := s.openWindow(t, "shell", "--detachable", sb.ID)
	other.shows("drowse attach " + sb.ID)
	w = s.openWindow(t, "attach", sb.ID)
	w.shows("has 2 terminals")
	w.shows(fmt.Sprint(pid))
	w.wantEnd(125)
	w = s.openWindow(t, "attach", sb.ID, fmt.Sprint(pid))
	w.enter("exit 7\r")
	w.wantEnd(7)
	s.wantTerminals(ctx, t, sb, 1)
}
