package gvisor

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// serveReadOnly writes to a page of a file that this process may not write, beside one
// that it has written before, and answers with what came of it.
func serveReadOnly() http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		said, err := writeBeside()
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

// TestReadOnlyBesideWritten: the copy that a process gets of what it writes is of nothing
// that it may not write. That stays so, and is not in memory a second time.
func TestReadOnlyBesideWritten(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and lets read-only data be written: run make test-plain")
	}
	_, _, _, inst := startOne(t, 0)
	resp, err := guestClient(inst).Get("http://guest/readonly")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if string(said) != "refused" {
		t.Errorf("a write to a read-only page: %s", said)
	}
}
