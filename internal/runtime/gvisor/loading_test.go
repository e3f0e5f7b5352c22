package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkAndWrite forks, and writes to each page of a piece of memory that both processes
// then have: the kernel copies it before. The child must go on seeing what was there.
func forkAndWrite(piece []byte) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	invert := func() {
		for at := 0; at < len(piece); at += 4096 {
			piece[at] ^= 0xff
		}
	}
	pid, errno := forkReader(piece, p[0], firstBytes(piece))
	if errno != 0 {
		return errno
	}
	invert()
	defer invert()
	if _, err := unix.Write(p[1], []byte{1}); err != nil {
		return err
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil && status.ExitStatus() != 0 {
			err = fmt.Errorf("the child does not see what it should: it ended with %d", status)
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// firstBytes is the sum of the first bytes of the pages of a piece of memory. It
// allocates nothing: it runs in a child that has none of the threads of a Go program.
//
//go:noinline
func firstBytes(piece []byte) (sum byte) {
	for at := 0; at < len(piece); at += 4096 {
		sum += piece[at]
	}
	return sum
}

// forkReader forks. The child waits for a byte from a pipe, and exits with 0 if the
// piece still has the first bytes that it is told.
//
//go:noinline
func forkReader(piece []byte, pipe int, want byte) (pid int, errno syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if r != 0 || errno != 0 {
		return int(r), errno
	}
	var b byte
	code := uintptr(1)
	n, _, _ := syscall.RawSyscall(syscall.SYS_READ, uintptr(pipe), uintptr(unsafe.Pointer(&b)), 1)
	if n == 1 && firstBytes(piece) == want {
		code = 0
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// throttle has a process work a tenth of the time until something is done. Then it is
// stopped.
func throttle(pid int, done <-chan error) error {
	for {
		_ = unix.Kill(pid, unix.SIGSTOP)
		select {
		case err := <-done:
			return err
		case <-time.After(9 * time.Millisecond):
		}
		_ = unix.Kill(pid, unix.SIGCONT)
		time.Sleep(time.Millisecond)
	}
}

// TestWhileLoading: as long as most of a guest's memory is not there, system calls whose
// buffers are in it wait for the parts that they need alone, and so do the copies of
// pages that were shared by a fork. The image server is slowed down so that there is
// such a time, and stopped while the guest is asked. That not all had been read by then
// shows when the rest of the image is damaged.
func TestWhileLoading(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and its system calls wait for all of a large mapping: run make test-plain")
	}
	e := newEarly(t)
	files := unread(t, e.image)
	name := filepath.Join(e.image, "pages.img")
	pages, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const query = "piece=65536&fork=65536"
	for range 15 { // a busy machine lets it read all, or too little
		i, err := e.restore(t, files)
		if err != nil {
			t.Fatal(err)
		}
		pid := imageServerOf(t, i)
		if pid == 0 {
			e.remove(t)
			continue
		}
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := heap(t, i, query); first <- err }()
		if err := throttle(pid, first); err != nil { // what the query needs is there now
			t.Fatal(err)
		}
		go func() { _, err := heap(t, i, query); second <- err }()
		answered := false
		select {
		case err := <-second:
			answered = true
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second): // it may need more than it did before
		}
		if err := os.WriteFile(name, make([]byte, len(pages)), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(pid, unix.SIGCONT)
		<-i.loaded
		early := i.damage.Load() != nil
		if !answered {
			<-second
		}
		if err := os.WriteFile(name, pages, 0o600); err != nil {
			t.Fatal(err)
		}
		e.remove(t)
		if answered && early {
			return
		}
		t.Logf("answered: %t; not all had been read: %t", answered, early)
	}
	t.Error("no guest answered before all of its memory was there")
}
