package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// small may have little on disk.
func small(mib int) client.CreateOptions {
	o := sleeper
	o.DiskMiB = mib
	return o
}

// TestDiskLimit lets guests take more of the disk than they may: in files, in
// many empty ones, and in one that has no name any more. Each is paused and says
// why, and goes on where it was when it is woken; from inside it can make room.
func TestDiskLimit(t *testing.T) {
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	for _, c := range []struct{ name, command, says, room string }{
		{"files", "dd if=/dev/zero of=big bs=1M count=80", "MiB, and its limit is 64 MiB", "rm big"},
		{"empty files", "mkdir many; cd many; seq 5000 | xargs touch", "inodes, one for each 16 KiB", "rm -r many"},
		{"a file without a name", "exec 3>gone; rm gone; dd if=/dev/zero bs=1M count=80 >&3; sleep 1000", "MiB, and its limit is 64 MiB", "pkill sleep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := s.startGuest(ctx, small(64))
			was := g.ask(ctx)
			p, err := g.sb.Start(ctx, client.Command{Args: []string{"bash", "-c", c.command}})
			if err != nil {
				t.Fatal(err)
			}
			p.Detach()
			begin := time.Now()
			eventually(t, time.Minute, "the pause", func() error { return s.is(ctx, g.sb.ID, client.Paused) })
			t.Logf("asleep %s after it began", since(begin))
			if e := s.entries(ctx, g.sb.ID, "pausing"); len(e) != 1 || e[0].Cause != "disk" || !strings.Contains(e[0].Detail, c.says) {
				t.Errorf("it was paused as %+v, want %q", e, c.says)
			}
			if out := s.why(ctx, g.sb.ID); !strings.Contains(out, "its files take") {
				t.Errorf("drowse why: %s", out)
			}
			g.same(was, g.ask(ctx))
			if exit, out := run(ctx, t, g.sb, "bash", "-c", c.room); exit.Code != 0 {
				t.Errorf("%s: %s", c.room, out)
			}
			s.pause(ctx, g.sb.ID) // what was removed is given back then
			g.same(was, g.ask(ctx))
			g.checkAppended(ctx)
		})
	}
	neighbour.same(before, neighbour.ask(ctx))
}

// TestDiskLimitOnFullDisk lets a guest fill a disk that has no room for its
// pause. It is ended, or falls back to where it last slept, and its neighbour
// sleeps and wakes.
func TestDiskLimitOnFullDisk(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	dir := smallDisk(t, 300)
	s := startServerIn(t, dir)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	defer fill(t, dir, 120<<20)()
	takeAll := func(sb *client.Sandbox) {
		t.Helper()
		p, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "cat /dev/zero >fill; sleep 1000"}})
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
	}

	first := s.create(ctx, small(64))
	takeAll(first)
	eventually(t, time.Minute, "the end", func() error { return gone(ctx, s, first.ID, "OutOfDisk") })
	s.waitGone(first.ID)
	if out := s.why(ctx, first.ID); !strings.Contains(out, "OutOfDisk") || !strings.Contains(out, "limit is 64 MiB") {
		t.Errorf("drowse why: %s", out)
	}

	awaitSpace(t, dir, 100<<20)
	second := s.startGuest(ctx, small(64))
	asleep := second.ask(ctx)
	s.pause(ctx, second.sb.ID)
	s.connect(ctx, second.sb.ID)
	takeAll(second.sb)
	eventually(t, time.Minute, "the fall back", func() error {
		info, err := s.client.Get(ctx, second.sb.ID)
		if err == nil && !strings.HasPrefix(info.LastError, "OutOfDisk in generation 2: fell back") {
			err = errors.New("it says " + info.LastError)
		}
		return err
	})
	second.same(asleep, second.ask(ctx))
	s.pause(ctx, neighbour.sb.ID)
	neighbour.same(before, neighbour.ask(ctx))
}
