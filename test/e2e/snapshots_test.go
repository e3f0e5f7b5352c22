package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// goneOn returns the guest program of another sandbox as it goes on in this one.
func (g *guest) goneOn(sb *client.Sandbox) *guest {
	g.s.mu.Lock()
	g.s.ids = append(g.s.ids, sb.ID)
	g.s.mu.Unlock()
	return &guest{s: g.s, sb: sb, first: g.first}
}

// TestSnapshot takes a snapshot of a sandbox while a command is open in it, which
// goes on. Sandboxes that start from it go on with the program and the files of
// that moment, also when the source has ended and the server was killed; they have
// tokens of their own, and nothing is left of any.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{})
	snaps := client.NewSnapshots(s.client)
	if exit, out := run(ctx, t, g.sb, "sh", "-c", "echo before >kept; mkfifo pipe; echo x >doomed"); exit.Code != 0 {
		t.Fatal(out)
	}
	type outcome struct {
		exit client.Exit
		out  string
	}
	open := make(chan outcome, 1)
	go func() {
		var out strings.Builder
		exit, err := g.sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "for i in $(seq 30); do echo $i; sleep 0.1; done; test -e done"}, Stdout: &out, Stderr: &out})
		if err != nil {
			exit.Code = -1
			out.WriteString(err.Error())
		}
		open <- outcome{exit, out.String()}
	}()
	time.Sleep(300 * time.Millisecond) // any moment will do
	info, err := s.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	before := g.ask(ctx)
	snap, err := snaps.Create(ctx, g.sb.ID, client.SnapshotOptions{Name: "moment"})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("frozen for %.1f ms, %d KiB written", snap.FrozenMs, snap.Bytes>>10)
	if now, err := s.client.Get(ctx, g.sb.ID); err != nil || now.Generation != info.Generation || !now.EndAt.Equal(info.EndAt) || snap.FrozenMs <= 0 {
		t.Errorf("the sandbox is %+v, %v; was %+v, and the snapshot is %+v", now, err, info, snap)
	}
	g.same(before, g.ask(ctx))
	if exit, out := run(ctx, t, g.sb, "sh", "-c", "rm doomed; echo after >kept; touch done"); exit.Code != 0 {
		t.Fatal(out)
	}
	if got := <-open; got.exit.Code != 0 || strings.Count(got.out, "\n") != 30 {
		t.Errorf("the command that was open: %s, %q", got.exit.Status, got.out)
	}

	check := func(ref string) *guest {
		t.Helper()
		sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: ref, Env: map[string]string{"OF": "its own"}})
		if err != nil {
			t.Fatal(err)
		}
		child := g.goneOn(sb)
		now := child.ask(ctx)
		child.same(before, now)
		child.checkAppended(ctx)
		checkClock(t, now)
		if x, err := s.client.Explain(ctx, sb.ID); err != nil || len(x.Lineage) != 1 || x.Lineage[0].Snapshot != snap.ID || x.Lineage[0].Sandbox != g.sb.ID {
			t.Errorf("it comes from %+v, %v", x.Lineage, err)
		}
		if exit, out := run(ctx, t, sb, "sh", "-c", "cat kept; test -p pipe && cat doomed; test ! -e done && echo $OF $E2B_SANDBOX_ID"); exit.Code != 0 || out != "before\nx\nits own "+sb.ID+"\n" {
			t.Errorf("%s: %s %q", sb.ID, exit.Status, out)
		}
		return child
	}
	first := check("moment")
	if a, b := envdToken(ctx, s, g.sb.ID), envdToken(ctx, s, first.sb.ID); a == b || a == "" {
		t.Errorf("tokens %q and %q", a, b)
	}
	s.kill(ctx, t, g.sb.ID)
	check(snap.ID)
	s.crash()
	s.start()
	third := check("moment")
	was := first.ask(ctx)
	if err := snaps.Delete(ctx, "moment"); err != nil {
		t.Fatal(err)
	}
	if _, err := snaps.Get(ctx, snap.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a deleted snapshot: %v", err)
	}
	s.pause(ctx, first.sb.ID)
	s.connect(ctx, first.sb.ID)
	first.same(was, first.ask(ctx))
	third.checkAppended(ctx)
	s.nothingLeft(ctx)
}

// TestRestore takes a sandbox back to a snapshot while it runs, with the program and
// the files of that moment, and back again to what it was before. It keeps its id,
// its token and its timeout, also when the server was killed in between, and when it
// sleeps. Without memory, it boots from the files.
func TestRestore(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{})
	snaps := client.NewSnapshots(s.client)
	info, err := s.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	token := envdToken(ctx, s, g.sb.ID)
	sh := func(script, want string) {
		t.Helper()
		if exit, out := run(ctx, t, g.sb, "sh", "-c", script); exit.Code != 0 || out != want {
			t.Errorf("%s: %s %q, want %q", script, exit.Status, out, want)
		}
	}
	back := func(o client.RestoreOptions) client.Restored {
		t.Helper()
		done, err := snaps.Restore(ctx, g.sb.ID, o)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	sh("echo before >kept; echo x >doomed", "")
	before := g.ask(ctx)
	if _, err := snaps.Create(ctx, g.sb.ID, client.SnapshotOptions{Name: "clean"}); err != nil {
		t.Fatal(err)
	}
	sh("echo after >kept; rm doomed; touch made", "")
	after := g.ask(ctx)

	stream := make(chan error, 1)
	said, says := io.Pipe()
	go func() {
		_, err := g.sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "echo open; sleep 1000"}, Stdout: says})
		stream <- err
	}()
	if _, err := io.ReadFull(said, make([]byte, len("open\n"))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	done := back(client.RestoreOptions{Snapshot: "clean"})
	select {
	case err := <-stream:
		if err == nil || !strings.Contains(err.Error(), "goes back to a snapshot") {
			t.Errorf("the command that was open: %v", err)
		}
	case <-time.After(testmode.Patience()):
		t.Error("the command that was open is open still")
	}
	t.Logf("restored in %v", time.Since(began).Round(time.Millisecond))
	now := g.ask(ctx)
	g.same(before, now)
	checkClock(t, now)
	const asleep = "pgrep -x sleep >/dev/null && echo runs || echo none"
	sh(asleep, "none\n") // the command that was open came later
	sh("cat kept doomed; test ! -e made", "before\nx\n")
	is, err := s.client.Get(ctx, g.sb.ID)
	if err != nil || is.State != client.Running || !is.EndAt.Equal(info.EndAt) || is.Generation != 2 || done.Undo == "" || envdToken(ctx, s, g.sb.ID) != token {
		t.Errorf("it is %+v, %v, with %+v; was %+v", is, err, done, info)
	}
	s.crash()
	s.start()
	g.same(now, g.ask(ctx))

	second := back(client.RestoreOptions{}) // undone
	g.same(after, g.ask(ctx))
	sh(asleep, "runs\n")
	sh("cat kept; test ! -e doomed && test -e made", "after\n")
	if _, err := snaps.Get(ctx, done.Undo); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the undo that was used: %v", err)
	}

	s.pause(ctx, g.sb.ID)
	if err := snaps.Delete(ctx, "clean"); err != nil {
		t.Fatal(err)
	}
	if done = back(client.RestoreOptions{Snapshot: second.Undo}); done.Info.State != client.Paused {
		t.Errorf("a paused one became %s", done.Info.State)
	}
	s.crash()
	s.start()
	s.connect(ctx, g.sb.ID)
	g.same(now, g.ask(ctx))
	sh("cat kept doomed", "before\nx\n")

	if x, err := s.client.Explain(ctx, g.sb.ID); err != nil || x.Restored == nil || x.Restored.Snapshot != second.Undo || len(x.Lineage) != 0 {
		t.Errorf("it went back to %+v, and comes from %+v, %v", x.Restored, x.Lineage, err)
	}
	if done = back(client.RestoreOptions{Mode: client.Filesystem, Discard: true}); done.Undo != "" {
		t.Errorf("what was to be discarded is kept: %+v", done)
	}
	sh("cat kept; test -e made", "after\n")
	if _, err := g.report(ctx); err == nil {
		t.Error("its program runs on without its memory")
	}
	s.nothingLeft(ctx)
	eventually(t, 30*time.Second, "no snapshot is left", func() error {
		if all, err := snaps.List(ctx, ""); err != nil || len(all) > 0 {
			return fmt.Errorf("%+v, %w", all, err)
		}
		return nil
	})
}

// nothingLeft kills every sandbox, and waits until no file of one is left.
func (s *server) nothingLeft(ctx context.Context) {
	s.t.Helper()
	for _, id := range slices.Clone(s.ids) {
		if err := s.client.Kill(ctx, id); err != nil && !errors.Is(err, client.ErrNotFound) {
			s.t.Error(err)
		}
	}
	eventually(s.t, 30*time.Second, "no file is left", func() error {
		var left []string
		for _, dir := range []string{"layers", "images", "imports"} {
			left = append(left, s.glob(dir, "*")...)
		}
		if len(left) > 0 {
			return errors.New(strings.Join(left, " "))
		}
		return nil
	})
}

// TestSnapshotsInARow takes many snapshots of a sandbox that writes something else each
// time, and keeps the last few. The disk that they take does not grow, and the sandbox
// and its last snapshot have what they should.
func TestSnapshotsInARow(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{})
	snaps := client.NewSnapshots(s.client)
	const keep, each = 3, 1 << 20
	count := testmode.Choose(30, 100)
	sizes := make([]int64, count)
	var was report
	for i := range count {
		if exit, out := run(ctx, t, g.sb, "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom >file; echo %d >>log", each, i)); exit.Code != 0 {
			t.Fatal(out)
		}
		if i == count-1 {
			was = g.ask(ctx)
		}
		if _, err := snaps.Create(ctx, g.sb.ID, client.SnapshotOptions{KeepLast: keep}); err != nil {
			t.Fatalf("snapshot %d: %v", i, err)
		}
		sizes[i] = s.kept()
	}
	t.Logf("MiB on disk: %d after 10, %d after %d; %d layers", sizes[9]>>20, sizes[count-1]>>20, count, len(s.glob("layers", "*")))
	all, err := snaps.List(ctx, g.sb.ID)
	if err != nil || len(all) != keep {
		t.Fatalf("%d snapshots, %v", len(all), err)
	}
	eventually(t, time.Minute, "the disk is flat", func() error {
		if now := s.kept(); now > sizes[9]+10*each {
			return fmt.Errorf("%d MiB; there were %d after 10 snapshots", now>>20, sizes[9]>>20)
		}
		return nil
	})
	sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: all[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	child := g.goneOn(sb)
	child.same(was, child.ask(ctx))
	for _, sb := range []*client.Sandbox{g.sb, sb} {
		if exit, out := run(ctx, t, sb, "sh", "-c", "wc -l <log; wc -c <file"); exit.Code != 0 || out != fmt.Sprintf("%d\n%d\n", count, each) {
			t.Errorf("%s: %s %q", sb.ID, exit.Status, out)
		}
	}
	for _, snap := range all {
		if err := snaps.Delete(ctx, snap.ID); err != nil {
			t.Error(err)
		}
	}
	s.nothingLeft(ctx)
}

// kept is how many bytes of the disk the files and the memory of sandboxes and
// snapshots take.
func (s *server) kept() (total int64) {
	for _, dir := range slices.Concat(s.glob("layers"), s.glob("images")) {
		_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err != nil { // it was removed meanwhile
				return nil
			}
			if info, err := e.Info(); err == nil {
				total += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return nil
		})
	}
	return total
}

var (
	forkChildren = flag.Int("fork.children", 8, "how many children TestForkOfHeap has")
	forkMiB      = flag.Int("fork.mib", 200, "how much memory the program holds that TestForkOfHeap forks")
)

// TestFork has a sandbox go on as several at once, by a running and by a paused
// one.
func TestFork(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{Metadata: map[string]string{"team": "red"}})
	for _, state := range []client.State{client.Running, client.Paused} {
		before := g.ask(ctx)
		if state == client.Paused {
			s.pause(ctx, g.sb.ID)
		}
		children, err := client.NewSnapshots(s.client).Fork(ctx, g.sb.ID, client.ForkOptions{Count: 4})
		if err != nil {
			t.Fatal(err)
		}
		random := map[string]bool{}
		for i, c := range children {
			if c.Err != nil {
				t.Fatalf("child %d of a %s one: %v", i, state, c.Err)
			}
			child := g.goneOn(c.Sandbox)
			child.same(before, child.ask(ctx))
			if c.Info.Metadata["team"] != "red" {
				t.Errorf("its metadata are %v", c.Info.Metadata)
			}
			exit, out := run(ctx, t, c.Sandbox, "sh", "-c", "echo mine >own; ls own*; head -c 16 /dev/urandom | od -An -tx1")
			if exit.Code != 0 || random[out] || !strings.HasPrefix(out, "own\n") {
				t.Errorf("child %d: %s %q", i, exit.Status, out)
			}
			random[out] = true
		}
		if info, err := s.client.Get(ctx, g.sb.ID); err != nil || info.State != state {
			t.Errorf("the source is %s, %v, and was %s", info.State, err, state)
		}
	}
	s.kill(ctx, t, g.sb.ID)
	if all, err := client.NewSnapshots(s.client).List(ctx, ""); err != nil || len(all) != 0 {
		t.Errorf("snapshots left: %+v, %v", all, err)
	}
	s.nothingLeft(ctx)
}

// drawer draws a random number when it is asked for one, and reseeds its generator
// when it is told that it was woken.
const drawer = `
import os, random, signal
random.seed(7)
def draw(*_):
    with open("/var/tmp/draw.next", "w") as f:
        f.write(repr(random.random()))
    os.rename("/var/tmp/draw.next", "/var/tmp/draw")
signal.signal(signal.SIGUSR1, lambda *_: random.seed())
signal.signal(signal.SIGUSR2, draw)
with open("/var/tmp/pid", "w") as f:
    f.write(str(os.getpid()))
while True:
    signal.pause()
`

// TestForkIdentity has children know themselves by names, tokens and random numbers
// of their own. What a program's own generator gives next is what it would have been
// in the source, unless a hook reseeds it.
func TestForkIdentity(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	const ask = "hostname; cat /etc/hostname /etc/machine-id; cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; echo $E2B_SANDBOX_ID; cat /run/drowse/generation /run/drowse/instance; " +
		"rm -f /var/tmp/draw; kill -USR2 $(cat /var/tmp/pid); until [ -s /var/tmp/draw ]; do sleep 0.05; done; cat /var/tmp/draw; echo; " +
		"grep -h CapEff /proc/1/status; sudo grep -h CapEff /proc/self/status; getent hosts $(hostname); cat /etc/hosts"
	const names, numbers, generation, instance, drawn, caps, hosts = 3, 5, 6, 7, 8, 9, 11
	for hook, reseeds := range map[string]bool{"": false, "kill -USR1 $(cat /var/tmp/pid)": true} {
		source := s.create(ctx, client.CreateOptions{Hooks: client.Hooks{PostResume: client.Hook{Command: hook}}})
		if exit, out := run(ctx, t, source, "sh", "-c", "python3 -c '"+drawer+"' >/dev/null 2>&1 & until [ -s /var/tmp/pid ]; do sleep 0.05; done"); exit.Code != 0 {
			t.Fatal(out)
		}
		children, err := client.NewSnapshots(s.client).Fork(ctx, source.ID, client.ForkOptions{Count: 3})
		if err != nil {
			t.Fatal(err)
		}
		boxes := []*client.Sandbox{source}
		for i, c := range children {
			if c.Err != nil {
				t.Fatalf("child %d: %v", i, c.Err)
			}
			boxes = append(boxes, c.Sandbox)
		}
		seen, draws := map[string]string{}, map[string]int{}
		for _, sb := range boxes {
			if sb != source {
				s.mu.Lock()
				s.ids = append(s.ids, sb.ID)
				s.mu.Unlock()
			}
			exit, out := run(ctx, t, sb, "sh", "-c", ask)
			lines := strings.Split(out, "\n")
			if exit.Code != 0 || len(lines) < hosts+1 {
				t.Fatalf("%s: %s %q", sb.ID, exit.Status, out)
			}
			if lines[0] != sb.ID || lines[1] != sb.ID || len(lines[2]) != 32 || lines[numbers] != sb.ID || lines[generation] != "1" {
				t.Errorf("%s says it is %q", sb.ID, lines)
			}
			for _, line := range append(lines[names-1:numbers], lines[instance], envdToken(ctx, s, sb.ID)) {
				if other, twice := seen[line]; twice || line == "" {
					t.Errorf("%s and %s both have %q", other, sb.ID, line)
				}
				seen[line] = sb.ID
			}
			for _, line := range lines[caps:hosts] {
				var set uint64
				if _, err := fmt.Sscanf(line, "CapEff: %x", &set); err != nil || set&(1<<capSysAdmin) != 0 {
					t.Errorf("%s: %q, %v: the capability that names it was not given up", sb.ID, line, err)
				}
			}
			if address := strings.Fields(lines[hosts]); len(address) != 2 || address[0] != "127.0.0.1" || address[1] != sb.ID {
				t.Errorf("%s finds itself at %q", sb.ID, lines[hosts])
			}
			for _, other := range boxes {
				if other != sb && strings.Contains(strings.Join(lines[hosts:], "\n"), other.ID) {
					t.Errorf("/etc/hosts of %s has the name of %s", sb.ID, other.ID)
				}
			}
			draws[lines[drawn]]++
		}
		if want := map[bool]int{false: 1, true: len(boxes)}[reseeds]; len(draws) != want {
			t.Errorf("with the hook %q the drawn numbers are %v, want %d different ones", hook, draws, want)
		}
	}
}

// heap is a server with much live memory: it says what its memory is, after it has
// changed a part of it as it was asked to.
const heap = `
import hashlib, http.server, os
memory = [bytearray(os.urandom(1 << 20)) for _ in range(MIB)]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        word = self.path[1:].encode()
        for part in memory[::7]:
            part[:len(word)] = word
        whole = hashlib.sha256()
        for part in memory:
            whole.update(part)
        self.send_response(200)
        self.end_headers()
        self.wfile.write((whole.hexdigest() + " " + os.urandom(16).hex()).encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer(("", 8000), Handler).serve_forever()
`

// TestForkOfHeap has a Python process with 200 MiB of live memory go on as many. Each
// has all of the memory, and what one changes, no other and not the source sees.
func TestForkOfHeap(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute+time.Duration(*forkChildren)*5*time.Second)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{})
	p, err := sb.Start(ctx, client.Command{Args: []string{"python3", "-c", strings.ReplaceAll(heap, "MIB", fmt.Sprint(*forkMiB))}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	said := map[string]string{} // what was answered, and by whom
	ask := func(id, word string) (sum string) {
		t.Helper()
		eventually(t, time.Minute, "an answer of "+id, func() error {
			a := s.port(ctx, id, 8000, "/"+word)
			fields := strings.Fields(string(a.body))
			if a.status != http.StatusOK || len(fields) != 2 {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			if other, twice := said[fields[1]]; twice {
				t.Errorf("%s and %s draw the same random numbers", other, id)
			}
			sum, said[fields[1]] = fields[0], id
			return nil
		})
		return sum
	}
	was := ask(sb.ID, "")
	children, err := client.NewSnapshots(s.client).Fork(ctx, sb.ID, client.ForkOptions{Count: *forkChildren})
	if err != nil || len(children) != *forkChildren {
		t.Fatalf("%d children, %v", len(children), err)
	}
	changed := map[string]string{}
	for i, c := range children {
		if c.Err != nil {
			t.Fatalf("child %d: %v", i, c.Err)
		}
		s.mu.Lock()
		s.ids = append(s.ids, c.Sandbox.ID)
		s.mu.Unlock()
		if now := ask(c.Sandbox.ID, ""); now != was {
			t.Errorf("the memory of child %d is %s, and was %s", i, now, was)
		}
		now := ask(c.Sandbox.ID, c.Sandbox.ID)
		if other, twice := changed[now]; twice || now == was {
			t.Errorf("children %q and %d have the same memory", other, i)
		}
		changed[now] = fmt.Sprint(i)
	}
	for i, c := range children {
		if now := ask(c.Sandbox.ID, ""); changed[now] != fmt.Sprint(i) {
			t.Errorf("the memory of child %d is not what it made of it", i)
		}
	}
	if now := ask(sb.ID, ""); now != was {
		t.Error("a child changed the memory of the source")
	}
	s.nothingLeft(ctx)
}
