package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

var mergeCycles = flag.Int("merge.cycles", testmode.Choose(8, 14), "how often TestMergedLayers lets its sandbox sleep")

// TestMergedLayers lets a sandbox sleep again and again, with a MiB written anew
// each time. Its layers are merged meanwhile, whether it sleeps or runs: of that
// neither its files, nor those that its processes hold open, nor a directory
// under one that was renamed may show anything. How many layers there are and
// what they take on disk is bounded.
func TestMergedLayers(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute+time.Duration(*mergeCycles)*10*time.Second)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	random := rand.New(rand.NewPCG(3, 4))
	model := filetree.NewModel()
	g.grow(ctx, model, plantTree(random))
	walker := g.startWalker(ctx)
	var wakes []time.Duration
	for cycle := range *mergeCycles {
		g.grow(ctx, model, append(changeTree(random, model, cycle),
			filetree.Step{Do: filetree.Write, Path: "anew", Mode: 0o644, Seed: random.Uint64(), Size: 1 << 20}))
		if cycle == 3 {
			if exit, out := run(ctx, t, g.sb, "mv", "walk/in", "walk/moved"); exit.Code != 0 {
				t.Fatal(out)
			}
		}
		before := g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		if cycle%4 == 0 { // else it may be woken in the middle of a merge
			s.waitMerged(g.sb.ID)
		}
		begin := time.Now()
		now := g.ask(ctx)
		wakes = append(wakes, since(begin))
		g.same(before, now)
		g.checkTree(ctx, fmt.Sprintf("cycle %d", cycle+1), model)
		g.checkAppended(ctx)
		if t.Failed() {
			t.Fatalf("in cycle %d", cycle+1)
		}
	}
	live := g.takes(ctx)
	s.pause(ctx, g.sb.ID)
	s.wantLayers(g.sb.ID, live)
	walker.check(ctx, *mergeCycles)
	if n := s.log.count(g.sb.ID, `msg="layers merged"`); n == 0 {
		t.Error("no layers were merged")
	} else {
		t.Logf("%d merges", n)
	}
	few := max(1, len(wakes)/5)
	t.Logf("wakes: at first %s, in the end %s", median(wakes[1:1+few]), median(wakes[len(wakes)-few:]))
}

// TestMergedCheckpoints has a sandbox that never sleeps checkpointed as it runs,
// with a file written anew between. The layers below are merged all the same, and
// it goes on over what they became, also when its runtime is lost.
func TestMergedCheckpoints(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, CheckpointEvery: lifecycle.MinCheckpointEvery})
	random := rand.New(rand.NewPCG(5, 6))
	model := filetree.NewModel()
	g.grow(ctx, model, plantTree(random))
	before := g.ask(ctx)
	for generation := int64(1); s.log.count(g.sb.ID, `msg="layers merged"`) == 0; generation++ {
		g.grow(ctx, model, []filetree.Step{{Do: filetree.Write, Path: "anew", Mode: 0o644, Seed: random.Uint64(), Size: 4 << 20}})
		eventually(t, time.Minute, "a checkpoint", func() error { return s.checkpointed(ctx, g.sb.ID, generation) })
		g.same(before, g.ask(ctx)) // traffic may not wake it, and it runs
		g.checkTree(ctx, fmt.Sprintf("generation %d", generation+1), model)
	}
	g.losesRuntime(ctx, before)
	g.checkTree(ctx, "after the fall back", model)
	live := g.takes(ctx)
	s.pause(ctx, g.sb.ID)
	s.wantLayers(g.sb.ID, live)
}

// checkpointed returns an error unless a sandbox runs in a later generation.
func (s *server) checkpointed(ctx context.Context, id string, than int64) error {
	info, err := s.client.Get(ctx, id)
	if err == nil && (info.State != client.Running || info.Phase != "" || info.Generation <= than) {
		err = fmt.Errorf("it is %s (%s) in generation %d", info.State, info.Phase, info.Generation)
	}
	return err
}

func median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// maxLayers is how many a stack may have before it is merged, with the top.
const maxLayers = 9

// waitMerged waits until a sandbox that sleeps has few layers.
func (s *server) waitMerged(id string) {
	s.t.Helper()
	eventually(s.t, 20*time.Second, "merge", func() error {
		if n := len(s.layersOf(id)); n >= maxLayers {
			return fmt.Errorf("%d layers", n)
		}
		return nil
	})
}

func (s *server) layersOf(id string) []string { return s.glob("layers", id+"*") }

// takes returns what the files of a guest take.
func (g *guest) takes(ctx context.Context) (bytes int64) {
	t := g.s.t
	t.Helper()
	exit, out := run(ctx, t, g.sb, "du", "-sk", "/home/user")
	if _, err := fmt.Sscan(out, &bytes); err != nil || exit.Code != 0 {
		t.Fatalf("du: %s: %v", out, err)
	}
	return bytes << 10
}

// wantLayers waits until the layers of a sandbox that sleeps are few and take
// little more than what can be seen of them.
func (s *server) wantLayers(id string, live int64) {
	t := s.t
	t.Helper()
	const slack = 2 << 20 // up to 1 MiB is not worth a merge, and directories take blocks
	s.waitMerged(id)
	eventually(t, 20*time.Second, "space is given back", func() error {
		disk, err := diskUsage(s.layersOf(id))
		if err == nil && disk > live+live/2+slack {
			err = fmt.Errorf("the layers take %d KiB for %d KiB of files", disk>>10, live>>10)
		}
		return err
	})
}

// diskUsage returns the bytes of the blocks of all below the directories.
func diskUsage(dirs []string) (bytes int64, err error) {
	seen := map[uint64]bool{} // files have names in several layers while these are merged
	for _, dir := range dirs {
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(path, &st)
			}
			if err == nil && !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
			return err
		}))
	}
	return bytes, err
}

// walker is a process in a directory that is renamed under it, with a file open
// that it reads and one that it writes.
type walker struct {
	g *guest
}

func (g *guest) startWalker(ctx context.Context) walker {
	t := g.s.t
	t.Helper()
	const script = `mkdir -p walk/in/side && cd walk/in && seq 100000 >lines && echo started >../log &&
exec 3<lines 4>>side/log && while sleep 0.1; do read -r line <&3 && echo "$line" >&4; echo "$line $(cat side/log | wc -l)" >../now; done`
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"bash", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	w := walker{g}
	eventually(t, 20*time.Second, "walker walks", func() error { _, err := w.line(ctx); return err })
	return w
}

// line returns what the walker has read last.
func (w walker) line(ctx context.Context) (n int, err error) {
	_, out := run(ctx, w.g.s.t, w.g.sb, "cat", "walk/now")
	_, err = fmt.Sscan(out, &n)
	return n, err
}

// check holds that the walker goes on, and has left out no line of either file.
func (w walker) check(ctx context.Context, least int) {
	t := w.g.s.t
	t.Helper()
	begin, err := w.line(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "walker goes on", func() error {
		if n, _ := w.line(ctx); n <= begin || n < least {
			return fmt.Errorf("it was at line %d and is at %d", begin, n)
		}
		return nil
	})
	_, out := run(ctx, t, w.g.sb, "cat", "walk/moved/side/log")
	for i, line := range strings.Fields(out) {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d of what the walker wrote is %q", i+1, line)
		}
	}
}
