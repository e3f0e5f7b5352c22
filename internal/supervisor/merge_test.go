package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/merging"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// writer is a sandbox that writes a file in each generation.
type writer struct {
	stop func()
	*bench
	s     *Supervisor
	id    string
	files int
}

func (w *writer) root() string {
	return w.s.rootfs(sweep.RuntimeID(w.id, record(w.t, w.s, w.id).Launch))
}

// cycle writes a file, sleeps and, if it is to, wakes.
func (w *writer) cycle(wake bool) {
	w.t.Helper()
	w.files++
	path := filepath.Join(w.root(), fmt.Sprint("file", w.files))
	if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := w.s.Pause(w.t.Context(), w.id, PauseRequest{}); err != nil {
		w.t.Fatal(err)
	}
	if wake {
		w.wake()
	}
}

func (w *writer) wake() {
	w.t.Helper()
	if _, err := w.s.Connect(w.t.Context(), w.id, WakeRequest{Timeout: time.Hour}); err != nil {
		w.t.Fatal(err)
	}
	for n := range w.files {
		if _, err := os.Stat(filepath.Join(w.root(), fmt.Sprint("file", n+1))); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *writer) stack() []string { return record(w.t, w.s, w.id).Checkpoint.Stack }

// wantStack waits until there are these layers of the sandbox, and no other.
func (w *writer) wantStack(what string, ok func(stack []string) bool) {
	w.t.Helper()
	testmode.Eventually(w.t, what, func() bool {
		stack := slices.Sorted(slices.Values(w.stack()))
		if !ok(stack) {
			return false
		}
		if rec := record(w.t, w.s, w.id); rec.State == lifecycle.Running {
			stack = append(stack, sweep.RuntimeID(w.id, rec.Launch))
			slices.Sort(stack)
		}
		layers, err := w.s.o.Layers.Layers()
		return err == nil && slices.Equal(layers, stack)
	})
	cp := record(w.t, w.s, w.id).Checkpoint
	if _, err := w.s.checkpoints.Verify(w.t.Context(), *cp); err != nil {
		w.t.Error(err)
	}
}

func isMerged(id string) bool { return strings.Contains(id[len(id)-8:], "m") }

// TestDeepStackIsMerged pauses a sandbox often enough for its stack to be merged
// while it sleeps.
func TestDeepStackIsMerged(t *testing.T) {
	w := &writer{bench: newBench(t)}
	s, _ := w.open()
	w.s, w.id = s, create(t, s, CreateRequest{})
	for range 3 * merging.MaxDepth {
		w.cycle(true)
	}
	// One that is under way at the last pause may be dropped, and the next begins with
	// the next pause.
	testmode.Eventually(t, "no merge is under way", func() bool {
		b, err := s.box(w.id)
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.merging
	})
	w.cycle(false)
	w.wantStack("a short stack", func(stack []string) bool {
		return len(stack) <= merging.MaxDepth && slices.ContainsFunc(stack, isMerged)
	})
	w.wake()
	wantCount(t, s, w.id, 1, 3*merging.MaxDepth+2)
	if err := s.Kill(t.Context(), w.id, ""); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "nothing left", func() bool {
		layers, err := s.o.Layers.Layers()
		return err == nil && len(layers) == 0
	})
	w.wantNothingLeft()
}

// TestHiddenBytesAreGivenBack writes the same file anew in each generation.
func TestHiddenBytesAreGivenBack(t *testing.T) {
	w := &writer{bench: newBench(t)}
	s, _ := w.open()
	w.s, w.id = s, create(t, s, CreateRequest{})
	for range 3 {
		if err := os.WriteFile(filepath.Join(w.root(), "big"), make([]byte, 2*merging.LeastHidden), 0o600); err != nil {
			t.Fatal(err)
		}
		w.cycle(true)
	}
	w.cycle(false)
	w.wantStack("a stack with the file once", func(stack []string) bool {
		sizes, err := s.o.Layers.Hidden(w.stack(), record(t, s, w.id).Checkpoint.Layers)
		return err == nil && !slices.ContainsFunc(sizes, func(l layer.Size) bool { return l.Hidden >= merging.LeastHidden })
	})
	w.wake()
}

// parked returns a sandbox that runs over a deep stack, while the layer that is
// to take its place is ready.
func (b *bench) parked() *writer {
	t := b.t
	t.Helper()
	s, _ := b.open()
	w := &writer{bench: b, s: s, id: create(t, s, CreateRequest{})}
	s.merger.Turn <- struct{}{} // nobody merges
	for range merging.MaxDepth + 1 {
		w.cycle(true)
	}
	<-s.merger.Turn
	box, err := s.box(w.id)
	if err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "a merged layer", func() bool {
		box.mu.Lock()
		defer box.mu.Unlock()
		return box.merged != nil
	})
	if stack := w.stack(); len(stack) != merging.MaxDepth+1 {
		t.Fatalf("the stack of a sandbox that runs became %v", stack)
	}
	return w
}

// TestCheckpointsOnTheWayAreMerged: the stack of a sandbox that is checkpointed
// as it runs, and never sleeps, stays short all the same.
func TestCheckpointsOnTheWayAreMerged(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		const every = lifecycle.MinCheckpointEvery
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill, CheckpointEvery: every}})
		const rounds = 4 * merging.MaxDepth
		merges := 0
		for n := range rounds {
			rec := record(t, srv.s, id)
			path := filepath.Join(srv.s.rootfs(sweep.RuntimeID(id, rec.Launch)), fmt.Sprint("file", n))
			if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(every)
			synctest.Wait()
			rec = record(t, srv.s, id)
			if rec.State != lifecycle.Running || rec.Op != nil || int(rec.Generation) != n+2 {
				t.Fatalf("after checkpoint %d: %s, generation %d", n+1, rec.Situation(), rec.Generation)
			}
			stack := rec.Checkpoint.Stack
			if len(stack) > merging.MaxDepth+2 {
				t.Fatalf("the stack became %v", stack)
			}
			if merged := slices.IndexFunc(stack, isMerged); merged >= 0 && len(stack) <= 2 {
				merges++
			}
			if _, err := srv.s.checkpoints.Verify(t.Context(), *rec.Checkpoint); err != nil {
				t.Fatal(err)
			}
		}
		if merges < 2 {
			t.Errorf("%d merges in %d checkpoints", merges, rounds)
		}
		rec := record(t, srv.s, id)
		checkServes(t, srv, id, rounds+1, 1)
		want := slices.Sorted(slices.Values(append(slices.Clone(rec.Checkpoint.Stack), sweep.RuntimeID(id, rec.Launch))))
		if got, err := srv.s.o.Layers.Layers(); err != nil || !slices.Equal(got, want) {
			t.Errorf("there are the layers %v, %v; want %v", got, err, want)
		}
		w.end(t, srv)
	})
}

// TestMergeWaitsForSleep has a merge end while its sandbox runs: the stack stays
// what is mounted until it sleeps.
func TestMergeWaitsForSleep(t *testing.T) {
	w := newBench(t).parked()
	w.cycle(false)
	w.wantStack("a stack of two", func(stack []string) bool { return len(stack) == 2 && slices.ContainsFunc(stack, isMerged) })
	w.wake()
}

// TestKillRemovesMergedLayer kills a sandbox whose merged layer is in no stack.
func TestKillRemovesMergedLayer(t *testing.T) {
	w := newBench(t).parked()
	if err := w.s.Kill(t.Context(), w.id, ""); err != nil {
		t.Fatal(err)
	}
	w.wantNothingLeft()
}

// TestRestartForgetsMergedLayer stops the server with a layer that is in no stack.
// The next one removes it, and merges again.
func TestRestartForgetsMergedLayer(t *testing.T) {
	b := newBench(t)
	w := b.parked()
	ctx, id, files := t.Context(), w.id, w.files
	if err := w.s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	s, _ := b.open()
	w = &writer{bench: b, s: s, id: id, files: files}
	w.wantStack("the old stack", func(stack []string) bool {
		return len(stack) == merging.MaxDepth+1 && !slices.ContainsFunc(stack, isMerged)
	})
	w.cycle(false)
	w.wantStack("one layer", func(stack []string) bool { return len(stack) == 1 })
	w.wake()
}

// TestDamagedLayerIsNotMerged damages a layer of a deep stack. The layers stay,
// and the sandbox says what is wrong when it is woken.
func TestDamagedLayerIsNotMerged(t *testing.T) {
	w := &writer{bench: newBench(t)}
	s, _ := w.open()
	w.s, w.id = s, create(t, s, CreateRequest{})
	s.merger.Turn <- struct{}{}
	for range merging.MaxDepth {
		w.cycle(true)
	}
	w.cycle(false)
	stack := w.stack()
	if err := os.Remove(filepath.Join(s.o.Layers.LayerDir(stack[2]), "root", "file3")); err != nil {
		t.Fatal(err)
	}
	<-s.merger.Turn
	box, err := s.box(w.id)
	if err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the end of the merge", func() bool {
		box.mu.Lock()
		defer box.mu.Unlock()
		return !box.merging
	})
	w.wantLayers(stack)
	if _, err := s.Connect(t.Context(), w.id, WakeRequest{Timeout: time.Hour}); err == nil || !strings.Contains(err.Error(), "file3") {
		t.Errorf("connect: %v, want what is damaged", err)
	}
}

// TestMergeOfTakenLayersIsDropped takes the layers of a sandbox away while they are
// merged: nothing has failed.
func TestMergeOfTakenLayersIsDropped(t *testing.T) {
	w := &writer{bench: newBench(t)}
	s, _ := w.open()
	w.s, w.id = s, create(t, s, CreateRequest{})
	snap := take(t, s, w.id, SnapshotRequest{})
	s.merger.Room = sync.OnceValue(func() error {
		last, err := os.Open(filepath.Join(s.o.Layers.LayerDir(w.stack()[0]), "root"))
		if err != nil {
			return err
		}
		defer last.Close()
		restore(t, s, w.id, RestoreRequest{Snapshot: snap.ID, Discard: true})
		testmode.Eventually(t, "the end of the layers", func() bool {
			_, _ = last.Seek(0, io.SeekStart)
			names, _ := last.Readdirnames(-1)
			return len(names) == 0
		})
		return nil
	})
	s.merger.Turn <- struct{}{}
	for range merging.MaxDepth {
		w.cycle(true)
	}
	w.cycle(false)
	<-s.merger.Turn
	testmode.Eventually(t, "the end of the merge", func() bool {
		return merges(t, s, "dropped")+merges(t, s, "failed") > 0
	})
	if n := merges(t, s, "failed"); n > 0 {
		t.Errorf("%v merges failed", n)
	}
}

// merges returns how many merges had an outcome.
func merges(t *testing.T, s *Supervisor, outcome string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Metrics())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "drowse_layer_merges_total" && m.GetLabel()[0].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// wantLayers holds that these layers are there and in the stack, and no other.
func (w *writer) wantLayers(stack []string) {
	w.t.Helper()
	testmode.Eventually(w.t, "the layers as they were", func() bool {
		layers, err := w.s.o.Layers.Layers()
		return err == nil && slices.Equal(layers, stack) && slices.Equal(w.stack(), stack)
	})
}
