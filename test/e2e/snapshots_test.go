package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
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
	snap, err := snaps.Create(ctx, g.sb.ID, "moment")
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
			left = append(left, glob(filepath.Join(s.dir, dir, "*"))...)
		}
		if len(left) > 0 {
			return errors.New(strings.Join(left, " "))
		}
		return nil
	})
}

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
