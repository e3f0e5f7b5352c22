package gvisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// TestImageServerConfined has this program, as another process, confine itself, and try what an
// image server never does.
func TestImageServerConfined(t *testing.T) {
	needStatic(t)
	out, err := exec.CommandContext(t.Context(), os.Args[0], "confined").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// beConfined is the other process. It returns the exit code.
func beConfined() int {
	if err := imageserver.Confine(); err != nil {
		fmt.Println("confine:", err)
		return 1
	}
	code := 0
	for name, try := range map[string]func() error{
		"open a file":       func() error { _, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0); return err },
		"make a file":       func() error { _, err := unix.Open("/dev/null/x", unix.O_WRONLY|unix.O_CREAT, 0o600); return err },
		"make a socket":     func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"signal its parent": func() error { return unix.Kill(os.Getppid(), 0) },
		"fork":              func() error { return forked() },
		"start a program":   func() error { return unix.Exec("/dev/null/x", []string{"x"}, nil) },
		"map code": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		},
		"leave the root": func() error { return unix.Chroot("/") },
	} {
		if err := try(); !errors.Is(err, unix.EPERM) {
			fmt.Printf("%s: %v, want it not permitted\n", name, err)
			code = 1
		}
	}
	// Threads, and the memory of many, are there as ever.
	done := make(chan int)
	for range 20 {
		go func() {
			goruntime.LockOSThread()
			done <- len(make([]byte, 1<<20))
		}()
	}
	for range 20 {
		<-done
	}
	goruntime.GC()
	return code
}

// forked forks, and ends the child.
func forked() error {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	for pid == 0 {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

// TestTakerIsPowerless: what takes an image may do no more than what serves one.
func TestTakerIsPowerless(t *testing.T) {
	r := newRig(t)
	i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
	taker, err := i.c.(local).startTaker(i.group, t.TempDir(), runtime.Changes{Pack: pagemap.PackOf("x")}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer taker.end()
	fd, err := unix.Dup(int(taker.sentrys.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	sock, err := unet.NewSocket(fd)
	if err != nil {
		t.Fatal(err)
	}
	sentry, err := stateipc.NewAsyncFileClient(urpc.NewClient(sock))
	if err != nil {
		t.Fatal(err)
	}
	defer sentry.DecRef()
	if _, err := sentry.OpenWrite(checkpointfiles.StateFileName); err != nil {
		t.Fatal(err)
	}
	checkPowerless(t, taker.process.Pid)
}
