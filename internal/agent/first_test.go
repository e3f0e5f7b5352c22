package agent

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func init() {
	if filepath.Base(os.Args[0]) == "pid1" {
		BeFirst()
	}
}

// TestFirstHandlesSignals sends PID 1 all signals that end or stop a program, from
// outside, whence none is dropped.
func TestFirstHandlesSignals(t *testing.T) {
	s := newSandbox(t)
	const ignored = "grep SigIgn /proc/self/status"
	before := s.run(t, ignored).stdout // of whoever runs the tests
	for number := syscall.Signal(1); number <= 31; number++ {
		if number == syscall.SIGKILL || number == syscall.SIGSTOP {
			continue
		}
		if err := syscall.Kill(s.pid, number); err != nil {
			t.Fatal(err)
		}
		if r := s.run(t, ignored); r.err != nil || r.stdout != before {
			t.Fatalf("after %s a command prints %q, %v; want %q", number, r.stdout, r.err, before)
		}
	}
	if r := s.run(t, `cat /proc/1/comm; tr -d '\0' </proc/1/cmdline`); r.stdout != firstName+"\n"+firstName[:len("pid1")] {
		t.Errorf("it is called %q", r.stdout)
	}
}
