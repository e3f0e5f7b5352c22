package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// holdTun has a process attach a tun device in namespaces of its own, which gVisor
// cannot save.
const holdTun = `
import ctypes, fcntl, struct
assert ctypes.CDLL(None).unshare(0x50000000) == 0
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"tun0", 0x1001))
`

// leave leaves a process of an ordinary user behind that has run a program in Python.
func leave(ctx context.Context, t *testing.T, sb *client.Sandbox, program string) {
	t.Helper()
	program = "import os, time\n" + program + "\nopen('/tmp/ready', 'w').close()\ntime.sleep(3600)"
	script := `python3 -c "$0" >/tmp/said 2>&1 & while ! [ -e /tmp/ready ] && kill -0 $!; do sleep 0.02; done; cat /tmp/said; [ -e /tmp/ready ]`
	if exit, out := run(ctx, t, sb, "sh", "-c", script, program); exit.Code != 0 {
		t.Fatalf("%v: %s", exit, out)
	}
}

// wantNotCapturable is what asks for memory gets that cannot be had.
func wantNotCapturable(t *testing.T, what string, err error, held string) {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "memory_not_capturable" || e.Status != 409 || !strings.Contains(e.Message, "(python3) holds "+held) || !strings.Contains(e.Remediation, "mode filesystem") {
		t.Errorf("%s: %v", what, err)
	}
}

func (s *server) failedPauses(ctx context.Context, id string) (n int) {
	for _, e := range s.events(ctx, id, 0) {
		if e.Type == "pause_failed" {
			n++
		}
	}
	return n
}

// TestWhoCannotBeCapturedSleeps: a guest that nothing saves with its memory does not
// keep itself awake. It is told apart from what passes, and sleeps by its files.
func TestWhoCannotBeCapturedSleeps(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t, "--on-shutdown", "pause")
	sb := s.create(ctx, client.CreateOptions{OnTimeout: client.Pause})
	leave(ctx, t, sb, holdTun+"open('/home/user/kept', 'w').write('kept')")

	wantNotCapturable(t, "a pause with memory", s.client.Pause(ctx, sb.ID), "/dev/net/tun")
	_, err := client.NewSnapshots(s.client).Create(ctx, sb.ID, client.SnapshotOptions{})
	wantNotCapturable(t, "a snapshot", err, "/dev/net/tun")
	for n := range 3 {
		if err := s.client.SetTimeout(ctx, sb.ID, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "the failure", func() bool { return s.failedPauses(ctx, sb.ID) == n+2 })
	}
	s.wantByFiles(ctx, sb.ID)
	for _, e := range s.events(ctx, sb.ID, 0) {
		if strings.Contains(e.Detail, "goroutine") || strings.Contains(e.Detail, "\n") || slices.ContainsFunc(s.glob(""), func(dir string) bool { return strings.Contains(e.Detail, dir) }) {
			t.Errorf("%s says %q", e.Type, e.Detail)
		}
	}

	s.connect(ctx, sb.ID)
	if exit, out := run(ctx, t, sb, "cat", "/home/user/kept"); exit.Code != 0 || out != "kept" {
		t.Errorf("after the boot: %v %q", exit, out)
	}
	leave(ctx, t, sb, holdTun)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.wantByFiles(ctx, sb.ID)
}

// wantByFiles waits until a sandbox sleeps without its memory.
func (s *server) wantByFiles(ctx context.Context, id string) {
	s.t.Helper()
	testmode.Eventually(s.t, "the sleep", func() bool { return s.is(ctx, id, client.Paused) == nil })
	info, err := s.client.Get(ctx, id)
	if err != nil {
		s.t.Fatal(err)
	}
	if c := info.Checkpoint; c == nil || c.Mode != client.Filesystem || c.Reason != "memory_not_capturable" || !strings.Contains(c.Detail, "/dev/net/tun") {
		s.t.Errorf("it sleeps with %+v", info.Checkpoint)
	}
}

// deletedFiles are open and have no name any more.
const deletedFiles = `
os.chdir("/home/user")
os.mkfifo("fifo")
r, w = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK), os.open("fifo", os.O_WRONLY)
os.write(w, b"before")
os.unlink("fifo")
os.symlink("/no/where", "link")
link = os.open("link", 0o10000000 | os.O_NOFOLLOW)
os.unlink("link")
file = os.open("file", os.O_RDWR | os.O_CREAT)
os.unlink("file")
mib = os.urandom(1 << 20)
for _ in range(150):
    os.write(file, mib)
def look():
    os.write(w, b", after")
    os.lseek(file, 0, 0)
    whole = all(os.read(file, 1 << 20) == mib for _ in range(150)) and os.read(file, 1) == b""
    return [os.read(r, 100).decode(), os.readlink("", dir_fd=link), os.fstat(link).st_nlink, whole]
if os.fork() == 0:
    while not os.path.exists("/tmp/look"):
        time.sleep(0.02)
    open("/tmp/.seen", "w").write(repr(look()))
    os.rename("/tmp/.seen", "/tmp/seen")
    os._exit(0)
`

// TestDeletedFilesAreKept: who holds them is paused and goes on, with both ends of a
// FIFO and what is in it, and with the content of a file that takes much memory.
func TestDeletedFilesAreKept(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{})
	leave(ctx, t, sb, deletedFiles)
	for range 2 {
		s.pause(ctx, sb.ID)
		s.connect(ctx, sb.ID)
	}
	exit, out := run(ctx, t, sb, "sh", "-c", "touch /tmp/look; for i in $(seq 500); do [ -e /tmp/seen ] && break; sleep 0.02; done; cat /tmp/seen")
	if want := "['before, after', '/no/where', 0, True]"; exit.Code != 0 || out != want {
		t.Errorf("after two pauses: %v %s, want %s", exit, out, want)
	}
}

// TestDeletedFileThatIsTooLarge: it ends nobody. As a file with a name it is kept.
func TestDeletedFileThatIsTooLarge(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{})
	leave(ctx, t, sb, `
f = os.open("/home/user/large", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 40)
os.unlink("/home/user/large")`)
	wantNotCapturable(t, "a pause", s.client.Pause(ctx, sb.ID), "/home/user/large (deleted)")
	if exit, out := run(ctx, t, sb, "pkill", "-f", "sleep.3600"); exit.Code != 0 {
		t.Fatalf("%v: %s", exit, out)
	}
	s.pause(ctx, sb.ID)
}
