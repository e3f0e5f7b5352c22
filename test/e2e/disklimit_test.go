package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	for _, c := range []struct{ name, command, says, room string }{
		{"files", "dd if=/dev/zero of=big bs=1M count=80", "MiB, and its limit is 64 MiB", "rm big"},
		{"empty files", "mkdir many; cd many; seq 5000 | xargs touch", "names, one for each 16 KiB",
			"pkill -x xargs; pkill -x touch; while pgrep -x 'xargs|touch' >&2; do sleep 0.1; done; rm -r many"},
		{"a file without a name", "exec 3>gone; rm gone; dd if=/dev/zero bs=1M count=80 >&3; sleep 1000", "MiB, and its limit is 64 MiB",
			"pkill -f '[r]m gone'; pkill -x 'dd|sleep'; true"}, // the shell first, so that nothing follows dd
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

// TestDiskLimitAfterRemoval has a guest remove what it had when it slept, and write
// as much as its limit then has room for. It runs on, and what is shown of its disk is
// what it has.
func TestDiskLimitAfterRemoval(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, small(64))
	shell := func(command string) {
		t.Helper()
		if exit, out := run(ctx, t, sb, "sh", "-c", command); exit.Code != 0 {
			t.Fatalf("%s: %s", command, out)
		}
	}
	shell("head -c 55M /dev/urandom >big")
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	shell("rm big; head -c 40M /dev/urandom >other")
	eventually(t, 45*time.Second, "what it takes is measured", func() error {
		shell("df /")
		samples, err := client.NewDiary(s.client, sb.ID).Samples(ctx)
		if err != nil || len(samples) == 0 {
			return errors.Join(err, errors.New("no samples"))
		}
		if taken := samples[len(samples)-1].DiskBytes >> 20; taken < 40 || taken > 50 {
			return fmt.Errorf("it takes %d MiB", taken)
		}
		return nil
	})
	if e := s.entries(ctx, sb.ID, "pausing"); len(e) != 1 {
		t.Errorf("it was paused for its limit: %+v", e)
	}
}

// TestDiskSeenInside holds what df says inside to the limit: its size and what counts,
// as soon as something was written or removed, after a wake, of a fork, and with another
// server.
func TestDiskSeenInside(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, small(256))
	holds := func(what string, sb *client.Sandbox, command string, mib int) {
		t.Helper()
		if exit, out := run(ctx, t, sb, "sh", "-c", command); exit.Code != 0 {
			t.Fatalf("%s: %s", command, out)
		}
		eventually(t, 10*time.Second, what, func() error {
			exit, out := run(ctx, t, sb, "sh", "-c", "df -P -k / | tail -n 1")
			var name string
			var size, used, free int
			if _, err := fmt.Sscan(out, &name, &size, &used, &free); exit.Code != 0 || err != nil {
				return fmt.Errorf("df: %s: %w", out, err)
			}
			if size != 256<<10 || used < mib<<10 || used > (mib+2)<<10 || free != size-used {
				return fmt.Errorf("df says %s, want %d MiB of 256", out, mib)
			}
			return nil
		})
	}
	holds("new", sb, "true", 0)
	holds("written", sb, "head -c 20M /dev/urandom >some; truncate -s 1T holes", 20)
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	holds("woken", sb, "true", 20)
	holds("removed", sb, "rm some", 0)
	holds("written again", sb, "head -c 10M /dev/urandom >other", 10)
	children, err := client.NewSnapshots(s.client).Fork(ctx, sb.ID, client.ForkOptions{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	holds("forked", children[0].Sandbox, "true", 10)
	s.restartWith()
	holds("with another server", sb, "head -c 10M /dev/urandom >more", 20)
}

// TestDiskLimitOnFullDisk lets a guest fill a disk that has no room for its
// pause. It is ended, or falls back to where it last slept, and its neighbour
// sleeps and wakes.
func TestDiskLimitOnFullDisk(t *testing.T) {
	t.Parallel()
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
	awaitSpace(t, dir, 60<<20) // what it wrote before it fell back
	s.pause(ctx, neighbour.sb.ID)
	neighbour.same(before, neighbour.ask(ctx))
}

// volumeOf makes a volume that may hold so much.
func (s *server) volumeOf(ctx context.Context, name string, mib int) client.Volume {
	s.t.Helper()
	v, err := s.client.CreateVolumeWith(ctx, client.VolumeOptions{Name: name, DiskMiB: mib})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// TestVolumeLimit lets one of two sandboxes fill the volume that they share. Both
// are paused and say why, and go on where they were; the API takes no file that
// has no room, and keeps the old one. From inside, room can be made.
func TestVolumeLimit(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServerIn(t, smallDisk(t, 600))
	v := s.volumeOf(ctx, "data", 64)
	stranger := s.startGuest(ctx, sleeper)
	first, second := s.startGuest(ctx, withVolume("data")), s.startGuest(ctx, withVolume("data"))
	before, was := stranger.ask(ctx), []report{first.ask(ctx), second.ask(ctx)}
	s.wantContent(ctx, v, "PUT", "file", "/file", "old", http.StatusCreated, "")

	p, err := first.sb.Start(ctx, client.Command{Args: []string{"dd", "if=/dev/zero", "of=/mnt/data/big", "bs=1M", "count=80"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	for _, g := range []*guest{first, second} {
		eventually(t, time.Minute, "the pause", func() error { return s.is(ctx, g.sb.ID, client.Paused) })
		if e := s.entries(ctx, g.sb.ID, "pausing"); len(e) != 1 || e[0].Cause != "disk" || !strings.Contains(e[0].Detail, `its volume "data" takes`) || !strings.Contains(e[0].Detail, "limit is 64 MiB") {
			t.Errorf("it was paused as %+v", e)
		}
		if out := s.why(ctx, g.sb.ID); !strings.Contains(out, `its volume "data" takes`) {
			t.Errorf("drowse why: %s", out)
		}
	}
	if got := s.content(ctx, v, "PUT", "file", "/file", "new"); got.status != http.StatusInsufficientStorage || !strings.Contains(string(got.body), `"volume_full"`) {
		t.Errorf("a write to a full volume: %d %s", got.status, got.body)
	}
	s.wantContent(ctx, v, "GET", "file", "/file", "", http.StatusOK, "old")

	second.same(was[1], second.ask(ctx)) // awake, it makes room for all
	// Not removed: the other may have it open.
	s.shell(ctx, second.sb, "truncate -s 0 big && echo made >room", "")
	first.same(was[0], first.ask(ctx))
	s.shell(ctx, first.sb, "cat room", "made\n")

	// A file is cut off where it passes the limit.
	big := strings.Repeat("big ", 80<<20/4)
	if got := s.content(ctx, v, "PUT", "file", "/file", big); got.status != http.StatusInsufficientStorage {
		t.Errorf("a file that is too big: %d %.200s", got.status, got.body)
	}
	s.wantContent(ctx, v, "GET", "file", "/file", "", http.StatusOK, "old")
	s.wantContent(ctx, v, "PUT", "file", "/file", big[:40<<20], http.StatusCreated, "")
	for _, g := range []*guest{first, second} {
		if err := s.is(ctx, g.sb.ID, client.Running); err != nil {
			t.Errorf("within the limit: %v", err)
		}
	}
	stranger.same(before, stranger.ask(ctx))
	if e := s.entries(ctx, stranger.sb.ID, "pausing"); len(e) > 0 {
		t.Errorf("who has no volume was paused: %+v", e)
	}
}

// TestVolumeLimitOnFullDisk lets a guest fill a volume on a disk that has no room
// for its pause. It is ended, the volume stays, and a neighbour sleeps and wakes.
func TestVolumeLimitOnFullDisk(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	dir := smallDisk(t, 300)
	s := startServerIn(t, dir)
	v := s.volumeOf(ctx, "data", 64)
	neighbour := s.startGuest(ctx, sleeper)
	before := neighbour.ask(ctx)
	defer fill(t, dir, 120<<20)()
	sb := s.create(ctx, withVolume("data"))
	p, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "cat /dev/zero >/mnt/data/fill; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	eventually(t, time.Minute, "the end", func() error { return gone(ctx, s, sb.ID, "OutOfDisk") })
	s.waitGone(sb.ID)
	if out := s.why(ctx, sb.ID); !strings.Contains(out, "OutOfDisk") || !strings.Contains(out, `volume "data" takes`) {
		t.Errorf("drowse why: %s", out)
	}
	s.wantContent(ctx, v, "DELETE", "path", "/fill", "", http.StatusNoContent, "")
	awaitSpace(t, dir, 100<<20)
	s.pause(ctx, neighbour.sb.ID)
	neighbour.same(before, neighbour.ask(ctx))
}
