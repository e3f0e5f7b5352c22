package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// footprint returns everything on the host that shows a runtime: processes,
// mounts, cgroups and files of the state directory dir that name text, which is
// a sandbox's id, or dir itself for all of them. Files count only where
// runtimes keep theirs: a paused sandbox has layers and an image.
func footprint(dir, text string) []string {
	found := slices.Concat(processes(dir, text), mounts(text), cgroups(dir, text))
	if text == dir {
		return found
	}
	return append(found, named(dir, text, "run", "run/rootfs", "run/gv", "run/gv/bundles", "run/gv/runsc")...)
}

// filesOf returns what a sandbox keeps in the state directory, asleep or not.
func filesOf(dir, id string) []string { return named(dir, id, "", "layers", "images", "templates") }

// warmID is how gVisor knows a runtime that was made before it was known whose
// it would be.
var warmID = regexp.MustCompile(`warm-[a-z0-9]{26}`)

// waiting is the owner of a runtime that has none yet.
const waiting = "nobody yet"

// owners returns, by the ids that gVisor knows, whose the runtimes of a state
// directory are.
func owners(dir string) map[string]string {
	owner := map[string]string{}
	// In this order: one that is taken meanwhile moves from there to here.
	for _, path := range glob(filepath.Join(dir, "run/gv/waiting/*")) {
		owner[filepath.Base(path)] = waiting
	}
	for _, path := range glob(filepath.Join(dir, "run/gv/bundles/*")) {
		id := filepath.Base(path)
		owner[id] = id
		if other, err := os.ReadFile(filepath.Join(path, "container-id")); err == nil {
			owner[string(other)] = id
		}
	}
	return owner
}

// containerID returns the id by which gVisor knows the one runtime of a sandbox.
func (s *server) containerID(id string) string {
	s.t.Helper()
	var name string
	// One that was captured goes after the pause has been answered.
	eventually(s.t, endWithin, "one runtime of "+id, func() error {
		var found []string
		for _, m := range s.each() {
			for cid, owner := range owners(m.home) {
				if strings.HasPrefix(owner, id) && cid != owner {
					found = append(found, cid)
				}
			}
		}
		runtimes := s.glob("run/gv/bundles", id+"*")
		if len(runtimes) != 1 || len(found) > 1 {
			return fmt.Errorf("runtimes: %q, known as %q; want one", runtimes, found)
		}
		name = filepath.Base(append(found, runtimes...)[0])
		return nil
	})
	return name
}

// waits reports whether text names a runtime that waits to be used.
func waits(dir, text string) bool { return owners(dir)[warmID.FindString(text)] == waiting }

// waitWarm waits until n runtimes wait to be used, ready.
func (s *server) waitWarm(n int) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprintf("%d runtimes wait on each server", n), func() error {
		all := s.glob("run/gv/waiting/*")
		if len(all) != n*len(s.each()) {
			return fmt.Errorf("%q", all)
		}
		for _, dir := range all {
			// The socket goes when the runtime waits for its root.
			if _, err := os.Lstat(filepath.Join(dir, "root/root.sock")); err == nil {
				return fmt.Errorf("%s is being made", dir)
			}
			// That it is made, runsc writes down last.
			if made := glob(filepath.Join(dir, "../../runsc", filepath.Base(dir)+"*.state")); len(made) == 0 {
				return fmt.Errorf("%s is not made yet", dir)
			}
		}
		return nil
	})
}

// processes returns the processes of a state directory, this one and the server
// apart, whose command line or cgroup names text, also those of runtimes that
// gVisor knows by another id, and those that are nobody's.
func processes(dir, text string) []string {
	owner := owners(dir)
	concerns := func(line string) bool {
		if strings.Contains(line, text) {
			return true
		}
		id := warmID.FindString(line)
		name, known := owner[id]
		return id != "" && strings.Contains(line, dir) && (!known || strings.Contains(name, text))
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Both fail together with the process.
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		args := strings.ReplaceAll(strings.TrimRight(string(cmdline), "\x00"), "\x00", " ")
		if concerns(args + " " + string(cgroup)) {
			where, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stack"))
			at, _, _ := strings.Cut(string(where), "\n")
			found = append(found, fmt.Sprintf("process %d (%s): %.300s", pid, at, args))
		}
	}
	return found
}

// mounts returns the mounts that name text. Pins of namespaces are among them.
func mounts(text string) []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[4], text) {
			found = append(found, "mount "+f[4])
		}
	}
	return found
}

// cgroupParents are where runtimes' cgroups can be: in a place of cgroup v2 or in
// each hierarchy of v1.
var cgroupParents = []string{
	"/sys/fs/cgroup/system.slice/drowse-sandboxes.scope", "/sys/fs/cgroup/drowse", "/sys/fs/cgroup/*/drowse",
}

// cgroups returns the cgroups that name text or, if that is the state
// directory, one of the sandboxes in it.
func cgroups(dir, text string) []string {
	var found []string
	owner := owners(dir)
	for _, parent := range cgroupParents {
		for _, g := range glob(parent + "/*") {
			info, err := os.Stat(g)
			if err != nil || !info.IsDir() {
				continue
			}
			whose, known := owner[filepath.Base(g)]
			if known && text == dir || strings.Contains(g, text) || strings.Contains(whose, text) {
				found = append(found, "cgroup "+g)
			}
		}
	}
	return found
}

func glob(pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		panic(err)
	}
	return paths
}

// named returns the entries of the directories below dir whose name has text
// in it. It looks no deeper: there, whole systems may be mounted.
func named(dir, text string, directories ...string) []string {
	var found []string
	for _, d := range directories {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			found = append(found, err.Error())
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), text) {
				found = append(found, "file "+filepath.Join(dir, d, e.Name()))
			}
		}
	}
	return found
}

// waitGone waits until the host shows nothing of a sandbox's runtime, and
// returns how long that took.
func (s *server) waitGone(id string) time.Duration {
	s.t.Helper()
	return eventually(s.t, goneWithin, "runtime of "+id+" is gone", func() error { return s.left(id, false) })
}

// left returns an error that names what the host shows of a sandbox's runtime
// and, if it was killed, of its files.
func (s *server) left(id string, killed bool) error {
	var left []string
	for _, m := range s.each() {
		left = append(left, footprint(m.home, id)...)
		if killed {
			left = append(left, filesOf(m.home, id)...)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	return nil
}

// hostState is everything of the host that sandboxes could leave something in.
// Other programs work here, so it is limited to what belongs to a state
// directory where it can be told.
func hostState(t testing.TB, s *server) []string {
	t.Helper()
	state := slices.Concat(links(t), temporaries(t))
	for _, m := range s.each() {
		state = append(state, ownState(t, m)...)
	}
	slices.Sort(state)
	return state
}

// ownState is that of one server.
func ownState(t testing.TB, s *server) []string {
	t.Helper()
	dir := s.dir()
	state := slices.Concat(processes(dir, dir), mounts(dir), cgroups(dir, dir), descriptors(t, s))
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it was removed just now
		}
		// The server keeps its own program with the first memory image.
		if !databaseFile(path) && !strings.HasPrefix(path, filepath.Join(dir, "builds")) {
			state = append(state, fmt.Sprintf("file %s %s", d.Type(), path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Which runtime waits is not the same; that only one does is.
	state = slices.DeleteFunc(state, func(line string) bool { return waits(dir, line) })
	return append(state, fmt.Sprintf("%d wait in %s", len(glob(filepath.Join(dir, "run/gv/waiting/*"))), dir))
}

// settledState is hostState once it stays the same: what has just ended does so in the
// background.
func settledState(t testing.TB, s *server) []string {
	t.Helper()
	const looks = 10 // on end
	var state []string
	same := 0
	eventually(t, time.Minute, "the host's state stays the same", func() error {
		before := state
		state = hostState(t, s)
		if lost, added := difference(before, state); len(lost)+len(added) > 0 || len(state) != len(before) {
			same = 0
			return fmt.Errorf("added %q, lost %q", added, lost)
		}
		if same++; same < looks {
			return fmt.Errorf("it was the same for %d looks", same)
		}
		return nil
	})
	return state
}

// links returns the network interfaces of this namespace, which is ours alone.
func links(t testing.TB) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range all {
		names = append(names, "interface "+l.Name)
	}
	return names
}

// temporaries returns what gVisor is known to leave where it has no directory
// of its own.
func temporaries(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/tmp/runsc*", "/tmp/*gvisor*", "/dev/shm/runsc*", "/var/run/runsc*", "/run/runsc*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			found = append(found, "file "+p)
		}
	}
	return found
}

// descriptors returns the server's open files of the kinds that watch or pin a
// runtime.
func descriptors(t testing.TB, s *server) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.pid())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed just now
		}
		if strings.Contains(to, "pidfd") || strings.HasPrefix(to, "net:") || strings.HasPrefix(to, s.dir()) && !databaseFile(to) {
			found = append(found, "server's descriptor of "+to)
		}
	}
	return found
}

// difference returns what is only in a and only in b.
func difference(a, b []string) (onlyA, onlyB []string) {
	for _, x := range a {
		if !slices.Contains(b, x) {
			onlyA = append(onlyA, x)
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			onlyB = append(onlyB, x)
		}
	}
	return onlyA, onlyB
}

// discard ends the processes that name text and removes the cgroups.
func discard(dir, text string) {
	groups := cgroups(dir, text)
	for _, line := range processes(dir, text) {
		var pid int
		if _, err := fmt.Sscanf(line, "process %d (", &pid); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, line := range groups {
		g := strings.TrimPrefix(line, "cgroup ")
		_ = poll(time.Second, func() error { return os.Remove(g) })
	}
}

// destroy removes a state directory whatever is left in it.
func destroy(dir string) error {
	discard(dir, dir)
	for range 1000 {
		left := mounts(dir + "/")
		if len(left) == 0 {
			return os.RemoveAll(dir)
		}
		at := strings.TrimPrefix(left[len(left)-1], "mount ")
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	// Removing it would reach into what is mounted there.
	return fmt.Errorf("%s cannot be emptied of mounts", dir)
}
