package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// TestRecordsInPostgres takes a server's records from SQLite to PostgreSQL, and goes on
// there, also after a crash of the server and one of PostgreSQL. A backup takes them back.
func TestRecordsInPostgres(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	pg := pgtest.Start(t)
	s := startServer(t)
	s.store = ""
	o := client.CreateOptions{Timeout: time.Hour, Metadata: map[string]string{"of": "before"}}
	awake, asleep := s.startGuest(ctx, o), s.startGuest(ctx, o)
	s.pause(ctx, asleep.sb.ID)
	before := eventsOf(ctx, t, s.client, awake.sb.ID)
	same := func() {
		t.Helper()
		s.connect(ctx, asleep.sb.ID)
		for _, g := range []*guest{awake, asleep} {
			g.same(g.first, g.ask(ctx))
		}
		s.pause(ctx, asleep.sb.ID)
	}

	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.store = pg.NewDatabase(t)
	s.start()
	same()
	if after := eventsOf(ctx, t, s.client, awake.sb.ID); len(after) < len(before) || !slices.Equal(after[:len(before)], before) {
		t.Errorf("events are %v, and were %v", after, before)
	}
	if kept, err := os.ReadFile(filepath.Join(s.dir(), "drowse.db.before-postgres")); err != nil || !bytes.HasPrefix(kept, []byte("SQLite")) {
		t.Errorf("the database of before: %.6q, %v", kept, err)
	}

	// The next server of the directory need not wait for the lease of the one that crashed.
	s.crash()
	s.start()
	if strings.Contains(s.log.String(), "standing by") {
		t.Error("a server has waited for the lease of its own directory")
	}
	same()

	// While PostgreSQL is down, changes are refused.
	pg.Crash(t)
	err := s.client.Pause(ctx, awake.sb.ID)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "store_unavailable" && e.Code != "lease_lapsed" {
		t.Errorf("a pause without a database: %v, want store_unavailable", err)
	}
	pg.Up(t)
	eventually(t, 30*time.Second, "changes work again", func() error { return s.client.SetTimeout(ctx, awake.sb.ID, time.Hour) })
	same()

	// No server takes the directory for an empty one, or another's database for its own.
	s.kill(ctx, t, awake.sb.ID)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	right := s.store
	for store, want := range map[string]string{"": "give it --store again", pg.NewDatabase(t): "not the one with the records"} {
		s.store = store
		cmd, log := s.command(), &logBuffer{}
		cmd.Stdout, cmd.Stderr = log, log
		code, said := runToEnd(t, cmd, log)
		checkRefusal(t, code, said, want)
	}
	out, err := exec.Command(drowseBinary, "fsck", "--state-dir", s.dir()).CombinedOutput()
	var exit *exec.ExitError
	if faults := strings.Count(string(out), "FAULT") - strings.Count(string(out), "FAULT  unowned"); faults > 0 || err != nil && !errors.As(err, &exit) {
		t.Errorf("fsck: %v: %s", err, out) // of what a stop has left, unowned, the next server takes care
	}
	out, err = exec.Command(drowseBinary, "gc", "--state-dir", s.dir()).CombinedOutput()
	if err != nil {
		t.Errorf("gc: %v: %s", err, out)
	}
	// The same URL can lead to another database.
	name := right[strings.LastIndex(strings.Split(right, "?")[0], "/")+1:]
	name, _, _ = strings.Cut(name, "?")
	pgtest.SQL(t, pg.Admin(), "alter database "+name+" rename to away")
	pgtest.SQL(t, pg.Admin(), "create database "+name+" owner drowse template template0")
	for _, args := range [][]string{{"fsck", "--repair"}, {"gc"}, {"backup", filepath.Join(stateDir(t), "none")}} {
		out, err := exec.Command(drowseBinary, append(args, "--state-dir", s.dir())...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not the one with the records") {
			t.Errorf("%s with an empty database in the place of the right one: %v: %s", args, err, out)
		}
	}
	pgtest.SQL(t, pg.Admin(), "drop database "+name)
	pgtest.SQL(t, pg.Admin(), "alter database away rename to "+name)
	s.store = right
	s.start()
	s.connect(ctx, asleep.sb.ID)
	asleep.same(asleep.first, asleep.ask(ctx))

	to := filepath.Join(stateDir(t), "backup")
	for _, args := range [][]string{{"backup", to}, {"backup", to, "--verify"}} {
		if out, err := exec.Command(drowseBinary, append(args, "--state-dir", s.dir())...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	if copied, err := os.ReadFile(filepath.Join(to, "state", "drowse.db")); err != nil || !bytes.HasPrefix(copied, []byte("SQLite")) {
		t.Errorf("the database of the backup: %.6q, %v", copied, err)
	}
}

// eventsOf returns what has happened to a sandbox, in words.
func eventsOf(ctx context.Context, t testing.TB, c *client.Client, id string) (all []string) {
	t.Helper()
	page, err := c.Events(ctx, client.EventOptions{Sandbox: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		all = append(all, fmt.Sprintf("%d %s %d", e.ID, e.Type, e.Generation))
	}
	return all
}

// TestPostgresCrashes: whatever was answered while PostgreSQL crashes again and again is
// there afterwards.
func TestPostgresCrashes(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	pg := pgtest.Start(t)
	s := startServer(t)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.store = pg.NewDatabase(t)
	s.start()

	var (
		work  sync.WaitGroup
		stop  = make(chan struct{})
		mu    sync.Mutex
		lives = map[string]string{} // what each sandbox was last told to be, if that was answered
		ended []string
	)
	for n := range 3 {
		work.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: fmt.Sprintf("n%d-%d", n, round)})
				if err != nil {
					continue
				}
				mu.Lock()
				s.ids = append(s.ids, sb.ID)
				lives[sb.ID] = ""
				mu.Unlock()
				told := fmt.Sprint(round)
				_, err = s.client.Patch(ctx, sb.ID, client.PatchOptions{Metadata: map[string]string{"told": told}})
				mu.Lock()
				if err == nil {
					lives[sb.ID] = told
				} else {
					delete(lives, sb.ID) // it may have happened
				}
				mu.Unlock()
				if err == nil && s.client.Kill(ctx, sb.ID) == nil {
					mu.Lock()
					delete(lives, sb.ID)
					ended = append(ended, sb.ID)
					mu.Unlock()
				}
			}
		})
	}
	for range 4 {
		done := func() int { mu.Lock(); defer mu.Unlock(); return len(ended) }
		has := done()
		eventually(t, 30*time.Second, "sandboxes come and go", func() error {
			if done() < has+2 {
				return fmt.Errorf("%d have ended", done())
			}
			return nil
		})
		pg.Crash(t)
		pg.Up(t)
	}
	close(stop)
	work.Wait()

	eventually(t, 30*time.Second, "the server can write", func() error {
		_, err := s.client.Create(ctx, client.CreateOptions{Timeout: time.Hour, Name: "last"})
		return err
	})
	s.crash()
	s.start()
	for id, told := range lives {
		sb, err := s.client.Get(ctx, id)
		if err != nil || told != "" && sb.Metadata["told"] != told {
			t.Errorf("sandbox %s was told to be %q and is %+v, %v", id, told, sb, err)
		}
	}
	for _, id := range ended {
		if sb, err := s.client.Get(ctx, id); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("sandbox %s was killed, and is %+v, %v", id, sb, err)
		}
	}
	t.Logf("%d were killed, %d are left", len(ended), len(lives))
}

// TestTwoOfOneServer: a copy of a state directory stands by until the lease of the first
// has ended. The first, which was only stopped, then serves nothing more and ends with its
// sandboxes.
func TestTwoOfOneServer(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	pg := pgtest.Start(t)
	first := startServer(t)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	first.store = pg.NewDatabase(t)
	first.start()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	dir := stateDir(t)
	if out, err := exec.Command("cp", "-a", first.dir()+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v: %s", err, out)
	}
	first.start()
	g := first.startGuest(ctx, client.CreateOptions{Timeout: time.Hour})

	second := newServer(t, dir)
	second.store = first.store
	t.Cleanup(second.cleanUp)
	started := make(chan struct{})
	go func() {
		defer close(started)
		second.start()
	}()
	eventually(t, 30*time.Second, "the second stands by", func() error {
		if !strings.Contains(second.log.String(), "standing by") {
			return errors.New(second.log.tail(3))
		}
		return nil
	})
	g.same(g.first, g.ask(ctx))

	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-started
	if t.Failed() {
		t.FailNow()
	}
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// It takes no request for a sandbox any more, although that runs.
	if answer, err := g.report(ctx); err == nil {
		t.Errorf("the first still serves: %+v", answer)
	}
	select {
	case err := <-first.exited:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(first.log.String(), "another process has taken the place") {
			t.Errorf("the first has ended with %v", err)
		}
		first.cmd = nil
	case <-time.After(stopWithin * patience):
		t.Fatal("the first server still runs")
	}
	eventually(t, goneWithin, "its sandboxes have ended", func() error { return first.left(g.sb.ID, false) })
	sb := second.create(ctx, client.CreateOptions{Timeout: time.Hour})
	if out, text := run(ctx, t, sb, "echo", "here"); out.Code != 0 || strings.TrimSpace(text) != "here" {
		t.Errorf("a sandbox of the second: %+v %q", out, text)
	}
}

// TestFencedByCommit: a server that learns by a commit that another process has taken its
// place ends, and its sandboxes with it.
func TestFencedByCommit(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	pg := pgtest.Start(t)
	s := newServer(t, stateDir(t))
	s.store = pg.NewDatabase(t)
	t.Cleanup(s.cleanUp)
	// It waits for its database.
	pg.Crash(t)
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.start()
	}()
	eventually(t, 30*time.Second, "the server waits for its database", func() error {
		if !strings.Contains(s.log.String(), "waits for its database") {
			return errors.New(s.log.tail(3))
		}
		return nil
	})
	pg.Up(t)
	<-started
	if t.Failed() {
		t.FailNow()
	}
	sb := s.create(ctx, client.CreateOptions{Timeout: time.Hour})
	pgtest.SQL(t, s.store, "update servers set epoch = epoch + 1, claim = 'of another'")
	err := s.client.SetTimeout(ctx, sb.ID, time.Minute)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code != "fenced" || err == nil {
		t.Errorf("a change by a server that was overtaken: %v, want fenced", err)
	}
	select {
	case err := <-s.exited:
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("the server has ended with %v", err)
		}
		s.cmd = nil
	case <-time.After(stopWithin * patience):
		t.Fatal("the server still runs")
	}
	if err := s.left(sb.ID, false); err != nil {
		t.Error(err)
	}
}
