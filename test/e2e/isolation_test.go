package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/drowse-dev/drowse/client"
)

// TestHostFilesAreHidden looks from inside, as root, for what only the host
// may see, and writes where the host must not notice.
func TestHostFilesAreHidden(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	canaries := []string{filepath.Join(s.dir(), "canary")}
	for _, dir := range []string{"/root", "/home", "/var/lib", "/var/tmp", "/tmp", "/srv", "/etc"} {
		canaries = append(canaries, filepath.Join(dir, fmt.Sprintf("drowse-e2e-canary-%d", os.Getpid())))
	}
	for _, c := range canaries {
		if err := os.WriteFile(c, []byte("host only"), 0o644); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(c)
	}
	sb := s.create(ctx, client.CreateOptions{}).As("root")
	// What a package has in /etc/ssh is there, and nothing that the host has made.
	canaries = append(canaries, "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/sshd_config")
	for _, path := range append(canaries, s.dir(), "/var/lib/drowse", "/etc/gshadow", "/etc/sudoers", "/proc/1/root"+s.dir()) {
		if exit, out := run(ctx, t, sb, "ls", "-d", path); exit.Code == 0 {
			t.Errorf("the guest sees %s: %s", path, out)
		}
	}
	for dir, want := range map[string]string{"/root": "", "/home": "user\n"} {
		if _, out := run(ctx, t, sb, "ls", "-A", dir); out != want {
			t.Errorf("the guest's %s holds %q, want %q", dir, out, want)
		}
	}
	shadow, err := os.ReadFile("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	if _, out := run(ctx, t, sb, "cat", "/etc/shadow"); out == string(shadow) || strings.Contains(out, "$") {
		t.Errorf("the guest's /etc/shadow is the host's, or has hashes")
	}
	if _, out := run(ctx, t, sb, "cat", "/proc/1/cmdline", "/proc/mounts"); strings.Contains(out, s.dir()) {
		t.Errorf("the guest learns the host's paths: %s", out)
	}

	mark := fmt.Sprintf("drowse-e2e-%d", os.Getpid())
	script := fmt.Sprintf("cd / && for d in usr/bin usr/lib opt etc root tmp var/lib; do echo changed >$d/%s || exit 1; done; echo x >>/usr/bin/env; rm -rf /usr/share/doc", mark)
	env, err := os.ReadFile("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	if exit, out := run(ctx, t, sb, "sh", "-c", script); exit.Code != 0 {
		t.Fatalf("root inside cannot write: %s %s", exit.Status, out)
	}
	found, err := filepath.Glob("/*/" + mark)
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("/*/*/" + mark)
	if err != nil {
		t.Fatal(err)
	}
	if all := append(found, more...); len(all) > 0 {
		t.Errorf("the guest's writes are on the host: %q", all)
	}
	if now, err := os.ReadFile("/usr/bin/env"); err != nil || string(now) != string(env) {
		t.Errorf("the guest changed the host's /usr/bin/env: %v", err)
	}
	other := s.create(ctx, client.CreateOptions{}).As("root")
	if exit, out := run(ctx, t, other, "sh", "-c", "ls -d /*/"+mark+" /usr/*/"+mark); exit.Code == 0 {
		t.Errorf("one sandbox sees the files of another: %s", out)
	}
}

// TestClosedFilesOfTheHost looks from inside, as root, for what not everybody may
// read below the host's /usr, and for its /opt.
func TestClosedFilesOfTheHost(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper).As("root")
	looks := func(when string) {
		t.Helper()
		closed := 0
		if err := filepath.WalkDir("/usr", func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			perm := info.Mode().Perm()
			isClosed := d.IsDir() && perm&0o005 != 0o005 || d.Type().IsRegular() && perm&0o004 == 0
			if !isClosed || closed == 20 {
				return nil
			}
			closed++
			if exit, out := run(ctx, t, sb, "ls", "-ld", path); exit.Code == 0 {
				t.Errorf("%s, the guest sees %s: %s", when, path, out)
			}
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %d closed files and directories were looked for", when, closed)
		if _, out := run(ctx, t, sb, "ls", "-A", "/opt"); out != "" {
			t.Errorf("%s, the guest's /opt has %q", when, out)
		}
		// What is open is there, and can be changed inside.
		if exit, out := run(ctx, t, sb, "sh", "-c", "python3 -c 'print(6*7)' && cp /usr/bin/env /tmp/env && mv /usr/share/doc /usr/share/docs && mv /usr/share/docs /usr/share/doc && touch /usr/bin/env"); exit.Code != 0 {
			t.Errorf("%s: %s", when, out)
		}
	}
	looks("at first")
	s.pause(ctx, sb.ID)
	looks("after a wake")
}

// TestNoWayOut tries to connect from inside to everything that must not be
// reached.
func TestNoWayOut(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	// Someone on all the host's addresses.
	everywhere, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	_, open, err := net.SplitHostPort(everywhere.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	neighbour := s.startGuest(ctx, client.CreateOptions{})
	sb := s.create(ctx, client.CreateOptions{})
	upload(ctx, t, sb)

	args := []string{"/home/user/guest", "dial"}
	for _, host := range []string{"127.0.0.1", "::1", "169.254.77.1", "169.254.77.2", "169.254.77.3", "10.0.0.1", "172.17.0.1", "192.168.0.1", "localhost"} {
		for _, p := range []string{port, open, "8000", "22", "53"} {
			args = append(args, "tcp!"+net.JoinHostPort(host, p))
		}
	}
	args = append(args, "tcp!169.254.169.254:80", "tcp![2606:4700:4700::1111]:443", "tcp!example.com:80")
	_, out := run(ctx, t, sb.As("root"), args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(args)-2 {
		t.Fatalf("%d results for %d addresses: %s", len(lines), len(args)-2, out)
	}
	for _, line := range lines {
		if strings.HasSuffix(line, "\topen") {
			t.Errorf("the guest reaches %s", line)
		}
	}
	// The question is put right: what listens inside is reached.
	if _, out := run(ctx, t, neighbour.sb, "./guest", "dial", "tcp!127.0.0.1:8000", "tcp!169.254.77.2:8000"); strings.Count(out, "\topen") != 2 {
		t.Errorf("a guest does not reach itself: %s", out)
	}
}

// TestOwnPreviewIsOutOfReach gives a guest the link that lets anybody to it, on
// a server that listens everywhere: from inside it leads nowhere.
func TestOwnPreviewIsOutOfReach(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	address := addAddress(t, "192.0.2.77/32")
	s := newServer(t, stateDir(t))
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.args = []string{"--listen", net.JoinHostPort("0.0.0.0", port)}
	t.Cleanup(s.cleanUp)
	s.start()
	g := s.startGuest(ctx, client.CreateOptions{})
	link, err := s.client.CreatePreview(ctx, g.sb.ID, client.PreviewOptions{Port: guestPort, Path: "/hits"})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{address, "127.0.0.1", "[::1]", "169.254.77.1", "169.254.77.2", "169.254.77.3", "0.0.0.0"} {
		u := strings.Replace(link.URL, "127.0.0.1", host, 1)
		if exit, out := run(ctx, t, g.sb, "curl", "--silent", "--show-error", "--max-time", "3", "--noproxy", "*", u); exit.Code == 0 {
			t.Errorf("the guest reaches the server at %s: %s", host, out)
		}
	}
	// Both ends of the question work.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.Replace(link.URL, "127.0.0.1", address, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := expect(httpClient, req, http.StatusOK, ""); err != nil {
		t.Errorf("the host, by its address: %v", err)
	}
	if exit, out := run(ctx, t, g.sb, "curl", "--silent", "--show-error", "--max-time", "3", fmt.Sprintf("http://127.0.0.1:%d/hits", guestPort)); exit.Code != 0 {
		t.Errorf("curl inside: %s %s", exit.Status, out)
	}
}

// addAddress gives this network namespace one more address.
func addAddress(t *testing.T, prefix string) (address string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.AddrDel(lo, addr); err != nil {
			t.Error(err)
		}
	})
	return addr.IP.String()
}

// TestGreedyProcess lets one process of a sandbox take all memory, as fast as it
// can and again and again. Each time that process alone is ended, and its command,
// the event log and "drowse why" say so. All else in the sandbox goes on.
func TestGreedyProcess(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	before := g.ask(ctx)
	for i := range 3 {
		exit, out := run(ctx, t, g.sb, "./guest", "alloc", "4096")
		if exit.Signal != syscall.SIGKILL || !strings.HasPrefix(exit.Reason, "out of memory: process ") || !strings.Contains(exit.Reason, "(./guest alloc 4096) was ended; it held ") {
			t.Fatalf("time %d: it ended with %+v and said %s", i, exit, out)
		}
		t.Log(exit.Reason)
	}
	// The command is a shell here, which lives on and says what it likes.
	exit, out := run(ctx, t, g.sb, "bash", "-c", "./guest alloc 4096; echo ended with $?; exit 7")
	if exit.Code != 7 || !strings.Contains(out, "ended with 137") || !strings.Contains(exit.Reason, "(./guest alloc 4096) was ended") {
		t.Errorf("the shell ended with %+v and said %s", exit, out)
	}
	ended := s.entries(ctx, g.sb.ID, "process.ended")
	if len(ended) == 0 || !strings.HasPrefix(ended[0].Detail, "out of memory: process ") || !strings.Contains(ended[0].Detail, "./guest alloc 4096 held ") {
		t.Errorf("the event log has %+v", ended)
	}
	if line := lineWith(s.why(ctx, g.sb.ID), "process.ended"); !strings.Contains(line, "out of memory") {
		t.Errorf("drowse why says of it: %q", line)
	}
	g.same(before, g.ask(ctx))
	t.Logf("paused in %s", s.pause(ctx, g.sb.ID))
	g.same(before, g.ask(ctx))
}

// TestMemoryLimit lets guests take more memory than they may, where ending their
// processes does not help. Each sandbox is ended and says so; one that has slept
// falls back to that. Nobody else notices.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)

	small := sleeper
	small.MemoryMiB = 512
	first := s.create(ctx, small)
	s.exhaust(ctx, t, first, neighbour)
	eventually(t, endWithin, "the end", func() error { return gone(ctx, s, first.ID, "OutOfMemory") })
	s.waitGone(first.ID)
	x, err := s.client.Explain(ctx, first.ID)
	if err != nil {
		t.Fatal(err)
	}
	if stone := x.Tombstone; stone == nil || stone.Reason != "OutOfMemory" || !strings.Contains(stone.Detail, "limit of 512 MiB") || stone.Remediation == "" {
		t.Errorf("its tombstone is %+v", stone)
	}
	if ended := s.entries(ctx, first.ID, "terminated"); len(ended) != 1 || !strings.HasPrefix(ended[0].Detail, "OutOfMemory: its processes") {
		t.Errorf("the event log has %+v", ended)
	}
	if out := s.why(ctx, first.ID); !strings.Contains(out, "OutOfMemory") || !strings.Contains(out, "limit of 512 MiB") {
		t.Errorf("drowse why: %s", out)
	}

	second := s.startGuest(ctx, sleeper)
	asleep := second.ask(ctx)
	s.pause(ctx, second.sb.ID)
	s.connect(ctx, second.sb.ID)
	s.exhaust(ctx, t, second.sb, neighbour)
	eventually(t, endWithin, "the fall back", func() error { return s.is(ctx, second.sb.ID, client.Paused) })
	info, err := s.client.Get(ctx, second.sb.ID)
	if err != nil || !strings.HasPrefix(info.LastError, "OutOfMemory in generation 2: fell back") {
		t.Errorf("it fell back with %q, %v", info.LastError, err)
	}
	second.same(asleep, second.ask(ctx))

	neighbour.same(before, neighbour.ask(ctx))
}

// exhaust lets a sandbox take memory until it is no more, asking a neighbour
// meanwhile.
func (s *server) exhaust(ctx context.Context, t *testing.T, sb *client.Sandbox, neighbour *guest) {
	t.Helper()
	upload(ctx, t, sb)
	begin := time.Now()
	// Files in memory are no process's: they stay when those are ended. Together these
	// file systems hold 1.2 times the memory, which is well past the limit, and the last
	// is half of it. One call fills it, whether its process is ended meanwhile or not: one
	// that wrote bit by bit would be ended at the limit, leave just less than that, and
	// the sandbox would rightly live on.
	p, err := sb.As("root").Start(ctx, client.Command{Args: []string{"bash", "-c", `
set -e
for dir in /run /dev/shm /tmp; do fallocate --length $(($(stat --file-system --format=%a*%S $dir))) $dir/hog; done
exec /home/user/guest alloc 4096`}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 1)
	go func() {
		exit, err := p.Wait()
		ended <- fmt.Sprintf("%s %v", exit.Status, err)
	}()
	var how string
	slowest := neighbour.slowest(ctx, func() bool {
		select {
		case how = <-ended:
			return false
		case <-ctx.Done():
			t.Fatal("the guest has 4 GiB")
		default:
		}
		return true
	})
	t.Logf("taking all there is ended after %s: %s; slowest answer of a neighbour meanwhile %s", since(begin), how, slowest)
}

// TestForkBomb lets a guest start as many processes as it can for five seconds.
func TestForkBomb(t *testing.T) {
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	sb := s.create(ctx, sleeper)
	counter := s.tasksFile(sb.ID)
	p, err := sb.Start(ctx, client.Command{Args: []string{"bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	most, begun := 0, time.Now()
	slowest := neighbour.slowest(ctx, func() bool {
		most = max(most, tasks(t, counter))
		return time.Since(begun) < 5*time.Second
	})
	if most < 100 {
		t.Errorf("the sandbox had %d tasks on the host: that is no bomb", most)
	}
	if most > 2048 {
		t.Errorf("the sandbox had %d tasks on the host, want at most 2048", most)
	}
	_, err = s.client.Get(ctx, sb.ID)
	t.Logf("the sandbox after it: %v", err)
	begin := time.Now()
	if err := s.client.Kill(ctx, sb.ID); err != nil && !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
	killed := time.Since(begin)
	eventually(t, 15*time.Second, "nothing is left of it", func() error { return s.left(sb.ID, true) })
	neighbour.same(before, neighbour.ask(ctx))
	t.Logf("%d tasks at most; slowest answer of a neighbour %s; killed in %s", most, slowest, killed.Round(time.Millisecond))
}

// TestProcessLimit lets a guest start more processes than it may. Its runtime,
// which then gets no thread either, ends, and says of what.
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	o := sleeper
	o.PIDs = 256
	sb := s.create(ctx, o)
	p, err := sb.Start(ctx, client.Command{Args: []string{"bash", "-c", "while :; do sleep 1000 & done"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	took := eventually(t, 30*time.Second, "the end", func() error { return gone(ctx, s, sb.ID, "OutOfProcesses") })
	t.Logf("it ended after %s", took)
	if out := s.why(ctx, sb.ID); !strings.Contains(out, "OutOfProcesses") || !strings.Contains(out, "limit of 256 tasks") {
		t.Errorf("drowse why: %s", out)
	}
	if ended := s.entries(ctx, sb.ID, "terminated"); len(ended) != 1 || !strings.HasPrefix(ended[0].Detail, "OutOfProcesses: its processes") {
		t.Errorf("the event log has %+v", ended)
	}
	s.waitGone(sb.ID)
}

// tasksFile is what counts the tasks of the host that belong to a sandbox.
func (s *server) tasksFile(id string) string {
	s.t.Helper()
	cid := s.containerID(id)
	for _, parent := range cgroupParents {
		if files := glob(filepath.Join(parent, cid, "pids.current")); len(files) > 0 {
			return files[0]
		}
	}
	s.t.Fatalf("no cgroup of %s counts its tasks", id)
	return ""
}

// tasks returns how many there are; 0 if the sandbox has ended.
func tasks(t *testing.T, file string) (n int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		n, err = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
		t.Fatal(err)
	}
	return n
}

// TestTokens checks that one sandbox's token opens no other, awake or asleep.
func TestTokens(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	a, b := s.create(ctx, sleeper), s.create(ctx, sleeper)
	if err := a.WriteFile(ctx, "secret", strings.NewReader("of a")); err != nil {
		t.Fatal(err)
	}
	s.pause(ctx, b.ID)
	try := func(ctx context.Context, id string, token []string) int {
		req, err := a.Request(ctx, "GET", 49983, "/files?path=secret", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("E2b-Sandbox-Id", id)
		if token != nil || id == a.ID {
			req.Header["X-Access-Token"] = token
		}
		resp, err := httpClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := try(ctx, a.ID, []string{"wrong"}); got != 401 {
		t.Errorf("wrong token: status %d, want 401", got)
	}
	if got := try(ctx, a.ID, nil); got != 401 {
		t.Errorf("no token: status %d, want 401", got)
	}
	if got := try(ctx, b.ID, nil); !slices.Contains([]int{401, 403}, got) { // with a's token
		t.Errorf("another sandbox's token: status %d, want refused", got)
	}
	if err := s.is(ctx, b.ID, client.Paused); err != nil {
		t.Errorf("a wrong token woke it: %v", err)
	}
}
