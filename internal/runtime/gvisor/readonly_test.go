package gvisor

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// serveReadOnly writes to pages that this process may not write, beside ones that it has
// written before, and answers with what came of it.
func serveReadOnly() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		do := writeBeside
		if r.URL.Query().Has("fork") {
			do = writeBesideForked
		}
		said, err := do()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, said)
	}
}

// writeBeside maps a file privately. Its second half may be written. Both halves are read,
// then the second is written, and then the first.
func writeBeside() (said string, err error) {
	f, err := os.CreateTemp("/", "halves-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	half := 2 * os.Getpagesize()
	if err := f.Truncate(int64(2 * half)); err != nil {
		return "", err
	}
	both, err := unix.Mmap(int(f.Fd()), 0, 2*half, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Munmap(both) }()
	if err := unix.Mprotect(both[half:], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return "", err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	both[half] = both[0] + both[half] + 1
	defer func() {
		if recover() != nil {
			said = "refused"
		}
	}()
	both[0] = 1
	return "written", nil
}

// writeBesideForked has memory of which the second half may be written, and forks. When the
// child is the only one that has it, the child writes to the second half, and then to the
// first.
func writeBesideForked() (string, error) {
	half := 2 * os.Getpagesize()
	both, err := unix.Mmap(-1, 0, 2*half, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "", err
	}
	both[0], both[half] = 1, 1
	if err := unix.Mprotect(both[:half], unix.PROT_READ); err != nil {
		return "", errors.Join(err, unix.Munmap(both))
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return "", errors.Join(err, unix.Munmap(both))
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	pid, errno := forkWriter(&both[half], &both[0], p[0])
	if err := unix.Munmap(both); err != nil {
		return "", err
	}
	if errno != 0 {
		return "", errno
	}
	if _, err := unix.Write(p[1], make([]byte, 2)); err != nil {
		return "", err
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return "", err
		}
		switch status.ExitStatus() {
		case 0:
			return "refused", nil
		case 1:
			return "written", nil
		}
		return "", fmt.Errorf("the child ended with %d", status)
	}
}

// forkWriter forks. The child reads a byte from a pipe to where it may write, and another
// to where it may not. It exits with 0 if that is refused, with 1 if it is not. It has none
// of the threads of a Go program, so it allocates nothing.
//
//go:noinline
func forkWriter(may, mayNot *byte, pipe int) (pid int, errno syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if r != 0 || errno != 0 {
		return int(r), errno
	}
	code := uintptr(2)
	n, _, _ := syscall.RawSyscall(syscall.SYS_READ, uintptr(pipe), uintptr(unsafe.Pointer(may)), 1)
	_, _, refused := syscall.RawSyscall(syscall.SYS_READ, uintptr(pipe), uintptr(unsafe.Pointer(mayNot)), 1)
	if n == 1 && refused == syscall.EFAULT {
		code = 0
	} else if n == 1 && refused == 0 {
		code = 1
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// TestReadOnlyBesideWritten: the copy that a process gets of what it writes is of nothing
// that it may not write. That stays so, and is not in memory a second time. Nor does it
// become writable where there is nobody left to share it with, and so nothing to copy.
func TestReadOnlyBesideWritten(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and lets read-only data be written: run make test-plain")
	}
	_, _, _, inst := startOne(t, 0)
	for _, query := range []string{"", "?fork"} {
		resp, err := guestClient(inst).Get("http://guest/readonly" + query)
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if string(said) != "refused" {
			t.Errorf("a write to a read-only page, %q: %s", query, said)
		}
	}
}
