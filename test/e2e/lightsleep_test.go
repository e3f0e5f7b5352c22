package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
)

// sleepsAs returns an error unless a sandbox is paused and sleeps so.
func (s *server) sleepsAs(ctx context.Context, id string, want client.Sleep) error {
	info, err := s.client.Get(ctx, id)
	if err == nil && (info.State != client.Paused || info.Sleep != want) {
		err = fmt.Errorf("%s is %s, %s sleep", id, info.State, info.Sleep)
	}
	return err
}

// TestLightSleepEnds ends the light sleep of a sandbox in each way in which it can come
// to an end behind the sandbox's back: it has lost nothing, and nothing is left of its
// runtime.
func TestLightSleepEnds(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t, "--light-sleep", "1h")
	var g *guest
	for _, c := range []struct {
		how string
		end func()
	}{
		{"the server is killed", func() { s.crash(); s.start() }},
		{"the server is killed just after a wake and a pause", func() {
			g.ask(ctx)
			s.pause(ctx, g.sb.ID)
			s.crash()
			s.start()
		}},
		{"the server stops", func() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			if left := s.processes(g.sb.ID); len(left) > 0 {
				t.Errorf("the server has left %v", left)
			}
			s.start()
		}},
		{"the runtime is killed", func() {
			if err := unix.Kill(s.process(g.sb.ID, "runsc-sandbox"), unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
	} {
		g = s.startGuest(ctx, sleeper)
		before := g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		if err := s.sleepsAs(ctx, g.sb.ID, client.LightSleep); err != nil {
			t.Errorf("%s: %v", c.how, err)
		}
		c.end()
		eventually(t, 20*time.Second, "deep sleep", func() error { return s.sleepsAs(ctx, g.sb.ID, client.DeepSleep) })
		s.waitGone(g.sb.ID)
		now := g.ask(ctx)
		g.same(before, now)
		g.checkAppended(ctx)
		checkClock(t, now)
		if now.generation(t) <= before.generation(t) {
			t.Errorf("%s: generation %s follows %s", c.how, now.Generation, before.Generation)
		}
	}
}

// TestLightSleeperIsNotItsImage damages the image of a sandbox in light sleep, which wakes
// all the same. After a deep sleep it would not have.
func TestLightSleeperIsNotItsImage(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t, "--light-sleep", "1h")
	g := s.startGuest(ctx, sleeper)
	before := g.ask(ctx)
	s.pause(ctx, g.sb.ID)
	image := s.checkpointOf(ctx, g.sb.ID)
	flipByte(t, filepath.Join(image, "checkpoint.img"), 100)
	g.same(before, g.ask(ctx))
	s.pause(ctx, g.sb.ID) // its image is a new one
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	g.same(before, g.ask(ctx))
}

// TestLightSleepersGiveWay has a hog beside twenty sandboxes that sleep lightly take the
// memory that is to stay available. They go to deep sleep, as many as must, nobody is
// ended, and each wakes with what it had.
func TestLightSleepersGiveWay(t *testing.T) {
	ctx := deadline(t, 3*time.Minute)
	const hog = 1536 << 20
	available := memAvailable(t)
	if available < 4*hog {
		t.Fatalf("%d MiB of memory are available, this needs %d", available>>20, 4*hog>>20)
	}
	s := startServer(t, "--light-sleep", "1h", "--light-sleep-memory", "4g", "--light-sleep-floor", strconv.FormatInt((available-hog/2)>>20, 10))
	guests := s.startGuests(ctx, 20, sleeper)
	var before []report
	for _, g := range guests {
		before = append(before, g.ask(ctx))
		s.pause(ctx, g.sb.ID)
	}
	light := func() (n float64) {
		n, err := s.metric(ctx, "drowse_light_sleepers")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Logf("%v of 20 sleep lightly", light())
	if light() == 0 {
		t.Fatal("nobody sleeps lightly")
	}
	taken, err := unix.Mmap(-1, 0, hog, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(taken) }()
	for at := 0; at < len(taken); at += 4096 {
		taken[at] = 1
	}
	eventually(t, 30*time.Second, "deep sleep for all", func() error {
		if n := light(); n > 0 {
			return fmt.Errorf("%v sleep lightly", n)
		}
		return nil
	})
	for i, g := range guests {
		if err := s.sleepsAs(ctx, g.sb.ID, client.DeepSleep); err != nil {
			t.Error(err)
		}
		g.same(before[i], g.ask(ctx))
		g.checkAppended(ctx)
	}
	if s.log.count(`reason=OutOfMemory`) > 0 {
		t.Error("somebody was ended for want of memory")
	}
}

// memAvailable returns how many bytes of memory this machine has to spare.
func memAvailable(t *testing.T) int64 {
	t.Helper()
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal(errors.New("the kernel does not tell"))
	return 0
}
