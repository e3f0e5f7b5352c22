package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

// TestCycles pauses and resumes one sandbox again and again, by call and by
// timeout, and wakes it by call and by traffic, in all combinations. Everything
// inside must carry on each time, and nothing may be left of it while it
// sleeps.
func TestCycles(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.cycle(t, testmode.Choose(8, 20), func(g *guest) string {
		return fmt.Sprintf("runtime gone %3d ms later", s.waitGone(g.sb.ID).Milliseconds())
	})
}

// TestLightCycles is TestCycles with wakes from light sleep.
func TestLightCycles(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--light-sleep", "1h")
	s.cycle(t, testmode.Choose(12, 100), func(g *guest) string {
		if info, err := s.client.Get(t.Context(), g.sb.ID); err != nil || info.Sleep != client.LightSleep {
			t.Errorf("it sleeps %s, %v", info.Sleep, err)
		}
		return "runtime stays"
	})
	if n, err := s.metric(t.Context(), "drowse_light_wakes_total"); err != nil || n != float64(testmode.Choose(12, 100)) {
		t.Errorf("%v wakes from light sleep, %v", n, err)
	}
}

// cycle is what these tests do. asleep is called while the sandbox sleeps, and says how.
func (s *server) cycle(t *testing.T, cycles int, asleep func(*guest) string) {
	ctx := deadline(t, 3*time.Minute)
	g := s.startGuest(ctx, sleeper)
	random := rand.New(rand.NewPCG(1, 2))
	model := filetree.NewModel()
	g.grow(ctx, model, plantTree(random))

	before, lines := g.ask(ctx), int64(0)
	for cycle := range cycles {
		g.grow(ctx, model, changeTree(random, model, cycle))
		before = g.ask(ctx)
		byCall, byConnect := cycle%2 == 0, cycle/2%2 == 0

		pause := g.fallAsleep(ctx, byCall)
		sleeps := asleep(g)

		begin := time.Now()
		if byConnect {
			s.connect(ctx, g.sb.ID)
		}
		now := g.ask(ctx)
		wake := time.Since(begin)

		when := fmt.Sprintf("cycle %d", cycle+1)
		g.same(before, now)
		if got, want := now.generation(t), before.generation(t)+1; got != want {
			t.Errorf("%s: generation %d, want %d", when, got, want)
		}
		off := checkClock(t, now)
		g.checkTree(ctx, when, model)
		if n := g.checkAppended(ctx); n < lines || n < before.Counter {
			t.Errorf("%s: appended file has %d lines, had %d, and the counter was %d", when, n, lines, before.Counter)
		} else {
			lines = n
		}
		if later := g.ask(ctx); later.Counter == now.Counter {
			eventually(t, 10*time.Second, "counter goes on", func() error {
				if g.ask(ctx).Counter == now.Counter {
					return errors.New("it stands still")
				}
				return nil
			})
		}
		t.Logf("%s: pause %-7s %4d ms, %s; wake to answer by %-7s %4d ms; clock off %s; counter %d",
			when, choose(byCall, "call", "timeout"), pause.Milliseconds(), sleeps,
			choose(byConnect, "connect", "request"), wake.Milliseconds(), off, now.Counter)
		if t.Failed() {
			return
		}
	}
}

func choose(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

// grow changes the guest's tree and the model alike, and compares.
func (g *guest) grow(ctx context.Context, model *filetree.Model, steps []filetree.Step) {
	g.s.t.Helper()
	model.Apply(steps)
	for _, line := range filetree.Diff(g.tree(ctx, steps...), model.List()) {
		g.s.t.Errorf("after a change: %s", line)
	}
}

// fallAsleep pauses the guest's sandbox and returns how long that took; by
// timeout, from the deadline on.
func (g *guest) fallAsleep(ctx context.Context, byCall bool) time.Duration {
	t := g.s.t
	t.Helper()
	if byCall {
		return g.s.pause(ctx, g.sb.ID)
	}
	if err := g.s.client.SetTimeout(ctx, g.sb.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(time.Second)
	eventually(t, 20*time.Second, "pause at the timeout", func() error {
		if got := g.s.log.count(g.sb.ID, `msg="sandbox paused"`); got == 0 {
			return errors.New("not yet")
		}
		return g.s.is(ctx, g.sb.ID, client.Paused)
	})
	return time.Since(due)
}

// is returns an error unless the sandbox is in the state.
func (s *server) is(ctx context.Context, id string, want client.State) error {
	info, err := s.client.Get(ctx, id)
	if err == nil && info.State != want {
		err = fmt.Errorf("it is %s", info.State)
	}
	return err
}

// plantTree makes some 200 files of many sizes, with links of both kinds.
func plantTree(random *rand.Rand) []filetree.Step {
	var steps []filetree.Step
	dirs := []string{""}
	for i := range 20 {
		dir := fmt.Sprintf("%sd%02d", dirs[random.IntN(len(dirs))], i)
		steps = append(steps, filetree.Step{Do: filetree.Mkdir, Path: dir, Mode: []fs.FileMode{0o755, 0o700, 0o750}[i%3]})
		dirs = append(dirs, dir+"/")
	}
	for i := range 170 {
		steps = append(steps, newFile(random, fmt.Sprintf("%sf%03d", dirs[random.IntN(len(dirs))], i)))
	}
	for i := range 15 {
		steps = append(steps,
			filetree.Step{Do: filetree.Symlink, Path: fmt.Sprintf("%ss%02d", dirs[random.IntN(len(dirs))], i), To: fmt.Sprintf("somewhere/%d", i)},
			filetree.Step{Do: filetree.Link, Path: fmt.Sprintf("%sh%02d", dirs[random.IntN(len(dirs))], i), To: lastFile(steps, random)})
	}
	return steps
}

func newFile(random *rand.Rand, path string) filetree.Step {
	size := 0
	switch random.IntN(4) {
	case 1:
		size = random.IntN(100)
	case 2:
		size = random.IntN(20_000)
	case 3:
		size = random.IntN(300_000)
	}
	mode := []fs.FileMode{0o644, 0o600, 0o755, 0o400, 0o664}[random.IntN(5)]
	return filetree.Step{Do: filetree.Write, Path: path, Mode: mode, Seed: random.Uint64(), Size: size}
}

func lastFile(steps []filetree.Step, random *rand.Rand) string {
	var files []string
	for _, s := range steps {
		if s.Do == filetree.Write {
			files = append(files, s.Path)
		}
	}
	return files[random.IntN(len(files))]
}

// changeTree adds, changes and deletes a few files. Those with several names
// are left to TestLinksAcrossPauses.
func changeTree(random *rand.Rand, model *filetree.Model, cycle int) []filetree.Step {
	files := slices.DeleteFunc(model.Files(), func(p string) bool { return model.Names(p) > 1 })
	random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	steps := []filetree.Step{
		newFile(random, fmt.Sprintf("new%02d-a", cycle)),
		newFile(random, fmt.Sprintf("new%02d-b", cycle)),
		{Do: filetree.Remove, Path: files[0]},
		newFile(random, files[0]), // made anew where one was just deleted
		{Do: filetree.Remove, Path: files[1]},
		{Do: filetree.Remove, Path: files[2]},
		{Do: filetree.Rename, Path: files[3], To: files[3] + "-moved"},
		{Do: filetree.Chmod, Path: files[4], Mode: 0o600},
		{Do: filetree.Append, Path: files[4], Seed: random.Uint64(), Size: 1000},
		{Do: filetree.Mkdir, Path: fmt.Sprintf("newdir%02d", cycle), Mode: 0o711},
		newFile(random, fmt.Sprintf("newdir%02d/inside", cycle)),
	}
	if cycle > 2 {
		// A directory that lower layers know, deleted and made anew: what was
		// in it must not come back.
		old := fmt.Sprintf("newdir%02d", cycle-2)
		steps = append(steps, filetree.Step{Do: filetree.Remove, Path: old}, filetree.Step{Do: filetree.Mkdir, Path: old, Mode: 0o755})
	}
	return steps
}

// TestLinksAcrossPauses changes, after a wake, what a file system made of
// layers finds hard: the names of files that have several, and of directories.
// Writing to a file with several names is not among it: overlayfs then parts
// them (docs/design/files.md).
func TestLinksAcrossPauses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		after filetree.Step
	}{
		{"remove one of two names", filetree.Step{Do: filetree.Remove, Path: "one"}},
		{"rename directory", filetree.Step{Do: filetree.Rename, Path: "dir", To: "renamed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t, 2*time.Minute)
			s := startServer(t)
			g := s.startGuest(ctx, sleeper)
			model := filetree.NewModel()
			g.grow(ctx, model, []filetree.Step{
				{Do: filetree.Write, Path: "one", Mode: 0o644, Seed: 1, Size: 100},
				{Do: filetree.Link, Path: "two", To: "one"},
				{Do: filetree.Mkdir, Path: "dir", Mode: 0o755},
				{Do: filetree.Write, Path: "dir/file", Mode: 0o644, Seed: 2, Size: 100},
			})
			s.pause(ctx, g.sb.ID)
			s.connect(ctx, g.sb.ID)
			g.grow(ctx, model, []filetree.Step{c.after})
			s.pause(ctx, g.sb.ID)
			s.connect(ctx, g.sb.ID)
			g.checkTree(ctx, "after the second wake", model)
		})
	}
}

// TestDeadlineOfWake checks the deadline that each way of waking sets.
func TestDeadlineOfWake(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true), Timeout: 100 * time.Second})
	check := func(how string, want time.Duration) {
		t.Helper()
		info, err := s.client.Get(ctx, g.sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(info.EndAt); left > want || left < want-2*time.Minute {
			t.Errorf("%s left %s until the deadline, want %s", how, left.Round(time.Millisecond), want)
		}
	}
	s.pause(ctx, g.sb.ID)
	g.ask(ctx)
	check("traffic", 300*time.Second)
	s.pause(ctx, g.sb.ID)
	if _, err := s.client.Connect(ctx, g.sb.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	check("connect", time.Hour)
	if n := strings.Count(s.log.String(), `msg="sandbox resumed"`); n != 2 {
		t.Errorf("%d resumes, want 2", n)
	}
}
