package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Capabilities of a process, as bits.
const (
	chown, dacOverride, dacReadSearch, fowner, fsetid = 1 << unix.CAP_CHOWN, 1 << unix.CAP_DAC_OVERRIDE, 1 << unix.CAP_DAC_READ_SEARCH, 1 << unix.CAP_FOWNER, 1 << unix.CAP_FSETID

	// sandboxRights are those of the processes of a sandbox, which have them in a
	// user namespace of their own: over files, to have a root, and to trace each
	// other.
	sandboxRights = chown | dacOverride | dacReadSearch | fowner | fsetid | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE

	// serverLacks are some of those that the server gives up when it starts.
	serverLacks = 1<<unix.CAP_SYS_MODULE | 1<<unix.CAP_SYS_RAWIO | 1<<unix.CAP_SYS_BOOT | 1<<unix.CAP_SYS_TIME | 1<<unix.CAP_SYSLOG | 1<<unix.CAP_MAC_ADMIN | 1<<unix.CAP_BPF
)

// TestRightsOfProcesses looks at the processes that parse what guests and clients
// send. SECURITY.md says the same.
func TestRightsOfProcesses(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)

	server := s.pid()
	threads := glob(fmt.Sprintf("/proc/%d/task/*/status", server))
	if len(threads) < 2 {
		t.Fatalf("the server has the threads %q", threads)
	}
	for _, thread := range threads {
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
			if has := rights(t, thread, set); has&serverLacks != 0 {
				t.Errorf("%s: %s is %#x, and has what it never needs: %#x", thread, set, has, has&serverLacks)
			}
		}
	}

	looked := 0
	for _, pid := range s.processesOf(g.sb.ID) {
		dir := fmt.Sprintf("/proc/%d", pid)
		name, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(name) == 0 {
			continue // one of the stubs in which gVisor runs the guest's code, which come and go
		}
		looked++
		what := strings.SplitN(string(name), "\x00", 2)[0]
		if has := rights(t, dir+"/status", "CapEff"); has&^uint64(sandboxRights) != 0 {
			t.Errorf("%s has the capabilities %#x, more than %#x", what, has, uint64(sandboxRights))
		}
		if mode, locked := fieldOf(t, dir+"/status", "Seccomp"), fieldOf(t, dir+"/status", "NoNewPrivs"); mode != "2" || locked != "1" {
			t.Errorf("%s: seccomp mode %s and no_new_privs %s, want 2 and 1", what, mode, locked)
		}
		for _, kind := range []string{"user", "mnt", "net", "pid", "ipc"} {
			its, err := os.Readlink(dir + "/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			if servers, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", server, kind)); err != nil || its == servers {
				t.Errorf("%s is in the server's %s namespace (%v)", what, kind, err)
			}
		}
		if entries, err := os.ReadDir(dir + "/root"); what == "runsc-sandbox" && (err != nil || len(entries) > 3) {
			t.Errorf("the root of %s has %v, %v; want next to nothing", what, entries, err)
		}
	}
	if looked < 1 {
		t.Errorf("looked at %d processes of the sandbox", looked)
	}
}

// processesOf returns the processes in a sandbox's cgroup.
func (s *server) processesOf(id string) []int {
	s.t.Helper()
	var pids []int
	cid := s.containerID(id)
	for _, parent := range cgroupParents {
		for _, file := range glob(filepath.Join(parent, cid, "cgroup.procs")) {
			data, err := os.ReadFile(file)
			if err != nil {
				s.t.Fatal(err)
			}
			for _, field := range strings.Fields(string(data)) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					s.t.Fatal(err)
				}
				pids = append(pids, pid)
			}
			if len(pids) > 0 {
				return pids
			}
		}
	}
	s.t.Fatalf("no cgroup of %s has processes", id)
	return nil
}

// fieldOf returns a field of a process's or thread's status.
func fieldOf(t *testing.T, file, field string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("%s has no %s", file, field)
	return ""
}

func rights(t *testing.T, file, set string) uint64 {
	t.Helper()
	bits, err := strconv.ParseUint(fieldOf(t, file, set), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return bits
}
