package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// lightBench returns a bench whose sandboxes sleep lightly, and one that writes a file in
// each generation.
func lightBench(t *testing.T) *writer {
	w := &writer{bench: newBench(t)}
	w.light = lightly
	w.reopen()
	w.id = create(t, w.s, CreateRequest{Settings: sleepy})
	return w
}

func (w *writer) reopen() (stop func()) {
	w.s, stop = w.open()
	return stop
}

// wantSleep waits until the sandbox sleeps lightly, or deeply with nothing left of its
// runtime.
func (w *writer) wantSleep(light bool) {
	w.t.Helper()
	what := map[bool]string{true: "light sleep", false: "deep sleep, and no runtime"}[light]
	testmode.Eventually(w.t, what, func() bool {
		sb, err := w.s.Get(w.t.Context(), w.id)
		ids, _ := w.machine.Driver().List(w.t.Context())
		return err == nil && sb.Record.Situation() == lifecycle.Situation(lifecycle.Paused) && sb.Light == light && (len(ids) == 1) == light
	})
}

// TestLightSleep: a wake from light sleep starts nothing, and is a generation as any
// other. Asleep, the sandbox has a copy of what its runtime writes to, and no layer more
// with each sleep.
func TestLightSleep(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	for n := range int64(5) {
		w.cycle(false)
		w.wantSleep(true)
		if stack := w.stack(); len(stack) != 1 || stack[0] == sweep.RuntimeID(w.id, 1) {
			t.Errorf("asleep it has the layers %v", stack)
		}
		if _, err := w.s.checkpoints.Verify(t.Context(), *record(t, w.s, w.id).Checkpoint); err != nil {
			t.Error(err)
		}
		wantCount(t, w.s, w.id, n+2, n+2)
		if got := w.last.Generation; got != n+2 {
			t.Errorf("the agent was told of generation %d, not %d", got, n+2)
		}
		w.wake() // and its files are there
	}
	if n := w.started(); n != 1 {
		t.Errorf("%d runtimes were started", n)
	}
	w.wantStack("the last copy and the runtime's own", func(stack []string) bool { return len(stack) == 1 })
	w.wantLightKill()
}

// wantLightKill kills the sandbox, which leaves nothing.
func (w *writer) wantLightKill() {
	w.t.Helper()
	if err := w.s.Kill(w.t.Context(), w.id, ""); err != nil {
		w.t.Fatal(err)
	}
	testmode.Eventually(w.t, "nothing left", func() bool {
		layers, err := w.s.o.Layers.Layers()
		images, ierr := w.s.o.Layers.Images()
		going, gerr := w.s.o.Layers.Unremoved() // what is being removed has no such name any more
		return errors.Join(err, ierr, gerr) == nil && len(layers)+len(images)+len(going) == 0
	})
	w.wantNothingLeft()
	if n, bytes := w.s.light.Total(); n != 0 || bytes != 0 {
		w.t.Errorf("%d runtimes stay with %d bytes", n, bytes)
	}
}

// TestLightSleepIsNeverTheOnlyCopy: whatever a runtime does after a light sleep, the
// sandbox that loses it is what it was when it fell asleep: memory and files.
func TestLightSleepIsNeverTheOnlyCopy(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	w.cycle(false) // file1
	wantCount(t, w.s, w.id, 2, 2)
	wantCount(t, w.s, w.id, 3, 2)
	root := w.root()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "file1"), []byte("changed"), 0o600), os.WriteFile(filepath.Join(root, "new"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.crash(record(t, w.s, w.id), w.id)
	w.wantSleep(false)
	wantCount(t, w.s, w.id, 2, 3)
	root = w.root()
	data, err := os.ReadFile(filepath.Join(root, "file1"))
	if err != nil || string(data) == "changed" {
		t.Errorf("a file of the checkpoint is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(root, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file from after the checkpoint: %v", err)
	}
	// What was removed after a thaw is gone in what is captured next.
	w.cycle(false)
	w.wantSleep(true)
	wantCount(t, w.s, w.id, 3, 4)
	if err := os.Remove(filepath.Join(w.root(), "file2")); err != nil {
		t.Fatal(err)
	}
	if err := w.s.Pause(t.Context(), w.id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	w.deepen()
	wantCount(t, w.s, w.id, 4, 5)
	if _, err := os.Stat(filepath.Join(w.root(), "file2")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was removed after a light sleep: %v", err)
	}
	w.wantLightKill()
}

// deepen has the runtime of the sandbox end while it sleeps lightly.
func (w *writer) deepen() {
	w.t.Helper()
	w.wantSleep(true)
	w.crash(record(w.t, w.s, w.id), w.id)
	w.wantSleep(false)
}

// TestLightSleepEnds: whatever ends a light sleep, the sandbox sleeps on, and wakes from
// its checkpoint.
func TestLightSleepEnds(t *testing.T) {
	for what, end := range map[string]func(w *writer){
		"the runtime ends": func(w *writer) { w.deepen() },
		"the server stops": func(w *writer) {
			w.wantSleep(true)
			w.stop()
			if ids, _ := w.machine.Driver().List(w.t.Context()); len(ids) > 0 {
				w.t.Errorf("the server has left %v", ids)
			}
			w.reopen()
			w.wantSleep(false)
		},
		"a snapshot takes its place": func(w *writer) {
			snap, err := w.s.TakeSnapshot(w.t.Context(), w.id, SnapshotRequest{})
			if err != nil {
				w.t.Fatal(err)
			}
			w.wake()
			w.cycle(false)
			w.wantSleep(true)
			if _, _, err := w.s.Restore(w.t.Context(), w.id, RestoreRequest{Snapshot: snap.ID, Discard: true}); err != nil {
				w.t.Fatal(err)
			}
			w.files--
			w.wantSleep(false)
			if err := w.s.RemoveSnapshot(w.t.Context(), snap.ID, ""); err != nil {
				w.t.Fatal(err)
			}
		},
		"there is no room any more": func(w *writer) {
			w.wantSleep(true)
			w.s.light.Fit("", 0, nil)
			w.wantSleep(false)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := &writer{bench: newBench(t)}
			w.light = lightly
			w.stop = w.reopen()
			w.id = create(t, w.s, CreateRequest{Settings: sleepy})
			wantCount(t, w.s, w.id, 1, 1)
			w.cycle(false)
			end(w)
			w.wake()
			sb := record(t, w.s, w.id)
			wantCount(t, w.s, w.id, 2, sb.Generation)
			if w.started() < 2 {
				t.Error("it did not start from its checkpoint")
			}
			if sb.Thawed {
				t.Error("its record says that it went on")
			}
			w.wantLightKill()
		})
	}
}

// TestLightSleepEndsWithTime uses virtual time.
func TestLightSleepEndsWithTime(t *testing.T) {
	w := newWorld(t)
	w.light = true
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{Timeout: 24 * time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
		checkServes(t, srv, id, 1, 1)
		for generation := int64(2); generation < 4; generation++ {
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lightly.Most - time.Second)
			if sb, _ := srv.s.Get(t.Context(), id); !sb.Light {
				t.Error("it sleeps deeply before its time")
			}
			checkServes(t, srv, id, generation, generation)
		}
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lightly.Most + time.Second)
		if sb, _ := srv.s.Get(t.Context(), id); sb.Light {
			t.Error("it sleeps lightly after its time")
		}
		ids, _ := w.machine.Driver().List(t.Context())
		if len(ids) > 0 {
			t.Errorf("in deep sleep it has %v", ids)
		}
		checkServes(t, srv, id, 4, 4)
		if got := srv.s.light.Released()[lightsleep.ByAge]; got != 1 {
			t.Errorf("%d were released for their age", got)
		}
		w.end(t, srv)
	})
}

// TestLightSleepAfterACrash: the server that comes after one that was killed releases what
// stayed, and the sandbox sleeps on.
func TestLightSleepAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.light = true
	srv := w.mustOpen(t)
	id := create(t, srv.s, CreateRequest{Settings: sleepy})
	checkServes(t, srv, id, 1, 1)
	if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	checkServes(t, srv, id, 2, 2) // it goes on, and is then killed with its server as it sleeps
	if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if sb, _ := srv.s.Get(t.Context(), id); !sb.Light {
		t.Error("it does not sleep lightly")
	}
	srv.crash()
	_ = srv.s.Stop(context.Background())
	srv = w.mustOpen(t)
	if ids, _ := w.machine.Driver().List(t.Context()); len(ids) > 0 {
		t.Errorf("after the start there is %v", ids)
	}
	checkServes(t, srv, id, 3, 3)
	w.end(t, srv)
}

// TestThawFails: a runtime that does not go on is no reason for a wake to fail.
func TestThawFails(t *testing.T) {
	w := newWorld(t)
	w.light = true
	srv := w.mustOpen(t)
	id := create(t, srv.s, CreateRequest{Settings: sleepy})
	checkServes(t, srv, id, 1, 1)
	if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
		if at == atThaw {
			return errors.New("no")
		}
		return nil
	}
	checkServes(t, srv, id, 2, 2)
	if rec := record(t, srv.s, id); rec.Launch != 2 || rec.Thawed {
		t.Errorf("launch %d serves, and went on: %v", rec.Launch, rec.Thawed)
	}
	if ids, _ := w.machine.Driver().List(t.Context()); len(ids) != 1 {
		t.Errorf("there are %v", ids)
	}
	w.end(t, srv)
}

// TestWakeThatIsNotBegun: the agent of a sandbox that sleeps lightly is connected to while
// the begin of its wake is committed. If that fails, or the server dies of it, the runtime
// is still frozen, and its agent was told nothing.
func TestWakeThatIsNotBegun(t *testing.T) {
	for name, crashes := range map[string]bool{"the commit fails": false, "the server crashes": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.light = true
			var fails, thawed atomic.Bool
			w.hooks = func(srv *server) memstore.Hooks {
				return memstore.Hooks{Before: func(c memstore.Commit) error {
					if c.After.Record.Phase() != lifecycle.Resuming || !fails.CompareAndSwap(true, false) {
						return nil
					}
					if crashes {
						srv.crash()
					}
					return errors.New("no")
				}}
			}
			w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
				if at == atThaw {
					thawed.Store(true)
				}
				return nil
			}
			srv := w.mustOpen(t)
			id := create(t, srv.s, CreateRequest{Settings: sleepy})
			checkServes(t, srv, id, 1, 1)
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			fails.Store(true)
			if _, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort}); err == nil || fails.Load() {
				t.Fatalf("the wake was begun: %v", err)
			}
			if thawed.Load() {
				t.Error("the runtime was thawed")
			}
			launch := int64(1)
			if crashes {
				srv, launch = w.mustOpen(t), 2
			}
			if rec := record(t, srv.s, id); rec.Situation() != lifecycle.Situation(lifecycle.Paused) || rec.Generation != 1 {
				t.Errorf("it is %s, in generation %d", rec.Situation(), rec.Generation)
			}
			checkServes(t, srv, id, 2, 2)
			if rec := record(t, srv.s, id); rec.Launch != launch || rec.Thawed == crashes {
				t.Errorf("launch %d serves, and went on: %v", rec.Launch, rec.Thawed)
			}
			w.end(t, srv)
		})
	}
}

// TestLightSleepMakesRoom: what sleeps lightly is no reason to refuse its key memory.
func TestLightSleepMakesRoom(t *testing.T) {
	w := &writer{bench: newBench(t)}
	w.light = lightly
	w.reopen()
	limited(t, w.s, store.KeyLimits{MemoryMiB: 1024})
	big := of("k", 1023)
	big.Settings.OnTimeout, big.Settings.AutoResume = lifecycle.Pause, true
	w.id = create(t, w.s, big)
	wantCount(t, w.s, w.id, 1, 1)
	w.cycle(false)
	w.wantSleep(true) // 1 MiB
	wantCount(t, w.s, w.id, 2, 2)
	if w.started() != 1 {
		t.Error("its own wake did not leave its runtime alone")
	}
	w.cycle(false)
	w.wantSleep(true)
	other := create(t, w.s, of("k", 1024))
	testmode.Eventually(t, "deep sleep", func() bool {
		sb, err := w.s.Get(t.Context(), w.id)
		return err == nil && !sb.Light
	})
	if got := w.s.light.Released()[lightsleep.ByKey]; got != 1 {
		t.Errorf("%d gave room", got)
	}
	if err := w.s.Kill(t.Context(), other, ""); err != nil {
		t.Fatal(err)
	}
	wantCount(t, w.s, w.id, 3, 3)
	// Beside one that runs there is no room for it to stay.
	if err := w.s.Pause(t.Context(), w.id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	create(t, w.s, of("k", 1024))
}

// TestTooManyFilesForLightSleep: what a runtime has written is not copied, and does not
// stay, if that is much. The next time it is little.
func TestTooManyFilesForLightSleep(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	for n := range 4001 {
		if err := os.WriteFile(filepath.Join(w.root(), fmt.Sprint("many", n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.cycle(false)
	w.wantSleep(false)
	if stack := w.stack(); !slices.Equal(stack, []string{sweep.RuntimeID(w.id, 1)}) {
		t.Errorf("its layers are %v", stack)
	}
	wantCount(t, w.s, w.id, 2, 2)
	w.cycle(false)
	w.wantSleep(true)
	w.wantLightKill()
}

// TestCheckpointsThaw: a sandbox that is only checkpointed goes on as it is.
func TestCheckpointsThaw(t *testing.T) {
	w := newWorld(t)
	w.light = true
	synctest.Test(t, func(t *testing.T) {
		restored := 0
		w.did = func(at point, _ string) {
			if at == atBooted {
				restored++
			}
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill, CheckpointEvery: lifecycle.MinCheckpointEvery}})
		checkServes(t, srv, id, 1, 1)
		time.Sleep(lifecycle.MinCheckpointEvery + time.Second)
		checkServes(t, srv, id, 2, 2)
		if restored != 1 {
			t.Errorf("%d runtimes were started", restored)
		}
		if n, _ := srv.s.light.Total(); n != 0 {
			t.Errorf("%d sleep lightly", n)
		}
		w.end(t, srv)
	})
}

// TestCheckpointsStayShallow: neither a runtime that goes on, nor one that has once been
// too large for that, makes the stack grow with each checkpoint.
func TestCheckpointsStayShallow(t *testing.T) {
	w := newWorld(t)
	w.light = true
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill, CheckpointEvery: lifecycle.MinCheckpointEvery}})
		write := func(mib int) {
			t.Helper()
			dir := filepath.Join(srv.dir, "layers", sweep.RuntimeID(id, record(t, srv.s, id).Launch), "root")
			if err := os.WriteFile(filepath.Join(dir, "data"), make([]byte, mib<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 30 {
			write(map[bool]int{false: 2, true: 65}[n%15 == 1]) // and what is written anew is worth a merge
			rec := record(t, srv.s, id)
			for before := rec.Generation; rec.Generation == before || rec.Op != nil; rec = record(t, srv.s, id) {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Second) // what a guest writes it does not write while it is frozen
			if rec = record(t, srv.s, id); rec.Situation() != lifecycle.Situation(lifecycle.Running) {
				t.Fatalf("after %d checkpoints it is %s, generation %d: %s", n+1, rec.Situation(), rec.Generation, rec.LastError)
			}
			lowers, _ := rec.Lowers()
			for _, layer := range lowers {
				if !srv.s.o.Layers.HasLayer(layer) {
					t.Fatalf("after %d checkpoints %s is gone, which the runtime writes over", n+1, layer)
				}
			}
			if len(lowers) > 8 {
				t.Fatalf("after %d checkpoints it writes over %v", n+1, lowers)
			}
		}
		w.end(t, srv)
	})
}

// TestThawHangs: a runtime that goes on and does not answer leaves time for another.
func TestThawHangs(t *testing.T) {
	w := newWorld(t)
	w.light = true
	synctest.Test(t, func(t *testing.T) {
		var hangs, asleep atomic.Bool
		w.agent = func() func(net.Conn) {
			if !asleep.Load() || !hangs.CompareAndSwap(false, true) {
				return nil
			}
			return func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		checkServes(t, srv, id, 1, 1)
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		asleep.Store(true)
		checkServes(t, srv, id, 2, 2)
		if rec := record(t, srv.s, id); !hangs.Load() || rec.Launch != 2 {
			t.Errorf("launch %d serves; its agent hung: %v", rec.Launch, hangs.Load())
		}
		w.end(t, srv)
	})
}

// TestNothingGoesOutInLightSleep: what a frozen runtime had begun to connect to is not
// connected on.
func TestNothingGoesOutInLightSleep(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	b, err := w.s.box(w.id)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.gate.Open()) == 0 {
		t.Fatal("nothing is open to a sandbox that runs")
	}
	w.cycle(false)
	w.wantSleep(true)
	if open := b.gate.Open(); len(open) > 0 {
		t.Errorf("in light sleep %v is open", open)
	}
	wantCount(t, w.s, w.id, 2, 2)
	if len(b.gate.Open()) == 0 {
		t.Error("nothing is open after a light sleep")
	}
	w.cycle(false)
	w.deepen()
	wantCount(t, w.s, w.id, 3, 3)
	if len(b.gate.Open()) == 0 {
		t.Error("nothing is open after a light sleep that ended")
	}
}

// TestLightSleepWithoutMemory: a sandbox that is paused by its files alone, or whose runtime
// does not tell what it holds, sleeps deeply.
func TestLightSleepWithoutMemory(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	if err := w.s.Pause(t.Context(), w.id, PauseRequest{Mode: lifecycle.Filesystem}); err != nil {
		t.Fatal(err)
	}
	w.wantSleep(false)
	w.wantLightKill()
}

// TestBootOfALightSleeper: a boot that is asked for is one.
func TestBootOfALightSleeper(t *testing.T) {
	w := lightBench(t)
	wantCount(t, w.s, w.id, 1, 1)
	w.cycle(false)
	w.wantSleep(true)
	if _, err := w.s.Connect(t.Context(), w.id, WakeRequest{Timeout: time.Hour, Boot: true}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, w.s, w.id, 1, 2)
	testmode.Eventually(t, "one runtime", func() bool {
		ids, _ := w.machine.Driver().List(t.Context())
		return len(ids) == 1 && ids[0] == sweep.RuntimeID(w.id, 2)
	})
	w.wantLightKill()
}
