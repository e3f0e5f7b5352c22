package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// TestRemovalIsTriedAgain holds that a runtime which cannot be removed at first
// goes all the same, without a restart and without another request, and that
// its server comes up and serves meanwhile. Time is virtual.
func TestRemovalIsTriedAgain(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, w *world, srv *server, id string) *server{
		"after a pause": func(t *testing.T, _ *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			return srv
		},
		"after a failed start": func(t *testing.T, w *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			if _, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err == nil {
				t.Fatal("the resume did not fail")
			}
			return srv
		},
		"after a crash": func(t *testing.T, w *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			srv.crash()
			_ = srv.s.Stop(context.Background())
			return w.mustOpen(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				var stuck atomic.Bool
				w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
					if stuck.Load() && (at == atRemove || at == atBooted) {
						return errors.New("a fault")
					}
					return nil
				}
				srv := w.mustOpen(t)
				id := create(t, srv.s, CreateRequest{Settings: sleepy})
				stuck.Store(true)
				srv = leave(t, w, srv, id)
				synctest.Wait()
				if left, _ := w.machine.Driver().List(t.Context()); len(left) == 0 {
					t.Fatal("nothing was left to remove")
				}
				stuck.Store(false)
				time.Sleep(insist.Most)
				synctest.Wait()
				if left, _ := w.machine.Driver().List(t.Context()); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
				// What the checkpoint builds on is still there, and no more.
				if layers, _ := os.ReadDir(filepath.Join(srv.dir, "layers")); len(layers) != 1 {
					t.Errorf("layers left: %v, want the checkpoint's", layers)
				}
				if c, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil || !c.Resumed {
					t.Errorf("connect: %+v, %v", c, err)
				}
				w.end(t, srv)
			})
		})
	}
}

// TestThawIsTriedAgain holds that a sandbox whose pause fails runs on also where
// thawing it does not work at first, and that nobody is let to it before.
func TestThawIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		thaws := 0
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			if at == atThaw {
				thaws++
			}
			if at == atCheckpoint || at == atThaw && thaws < 3 {
				return errors.New("a fault")
			}
			return nil
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err == nil {
			t.Fatal("the pause did not fail")
		}
		if thaws != 3 {
			t.Errorf("the pause ended after %d thaws, want 3", thaws)
		}
		checkServes(t, srv, id, 1, 1)
		w.end(t, srv)
	})
}

// TestRuntimeIsLookedForAgain restarts a server that cannot find, or not thaw,
// a runtime at first. It is not given up for that.
func TestRuntimeIsLookedForAgain(t *testing.T) {
	for _, blind := range []point{atAdopt, atThaw} {
		t.Run(string(blind), func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				srv := w.mustOpen(t)
				id := create(t, srv.s, CreateRequest{Settings: sleepy})
				checkServes(t, srv, id, 1, 1)
				srv.crash()
				_ = srv.s.Stop(context.Background())
				tries := 0
				w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
					if at != blind {
						return nil
					}
					if tries++; tries < launch.FindTries {
						return errors.New("a fault")
					}
					return nil
				}
				srv = w.mustOpen(t)
				checkServes(t, srv, id, 1, 2)
				w.end(t, srv)
			})
		})
	}
}

// checkServes holds that a sandbox answers in a generation, with its counter.
func checkServes(t *testing.T, srv *server, id string, generation, count int64) {
	t.Helper()
	lease, err := srv.s.Acquire(t.Context(), id, Access{Port: counterPort})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	n, err := askThrough(t.Context(), lease)
	if err != nil || n != count || lease.Generation != generation {
		t.Errorf("generation %d counts %d, %v; want %d in %d", lease.Generation, n, err, count, generation)
	}
}

// TestKillTriesAgain holds that a removal that fails once costs a kill a moment:
// it answers when nothing is left.
func TestKillTriesAgain(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		removals := 0
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			if at == atRemove {
				if removals++; removals == 1 {
					return errors.New("a fault")
				}
			}
			return nil
		}
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		began := time.Now()
		if err := srv.s.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= calls.KillWait { // in virtual time
			t.Errorf("the kill gave up waiting after %s", took)
		}
		if left, _ := w.machine.Driver().List(t.Context()); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		w.end(t, srv)
	})
}

// TestKillFinishesRemovals: a layer whose removal came half way before is
// removed to the end.
func TestKillFinishesRemovals(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		layers := filepath.Join(srv.dir, "layers")
		of := filepath.Join(layers, sweep.RuntimeID(id, 1))
		if err := os.Rename(of, of+".deleted"); err != nil {
			t.Fatal(err)
		}
		if err := srv.s.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(layers); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		w.end(t, srv)
	})
}

// TestMountIsNotForgotten holds that the mounts of a sandbox that was killed go
// also where they could not be taken away at first.
func TestMountIsNotForgotten(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		mount := filepath.Join(srv.dir, "rootfs", sweep.RuntimeID(id, 1))
		// A mount point that is not empty cannot be removed.
		if err := os.WriteFile(filepath.Join(mount, "busy"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := srv.s.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(mount, "busy")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, d := range []string{"rootfs", "layers"} {
			if left, _ := os.ReadDir(filepath.Join(srv.dir, d)); len(left) > 0 {
				t.Errorf("left in %s: %v", d, left)
			}
		}
		w.end(t, srv)
	})
}

// TestLastHookAwaitsTheCapture kills a sandbox whose capture takes its time. The runtime
// is removed under it after a moment; but one that has a last hook is waited for as long
// as that may take, and thawed for it.
func TestLastHookAwaitsTheCapture(t *testing.T) {
	for _, c := range []struct {
		hook store.Hook
		thaw time.Duration // as the hook might
		want []point
	}{
		{store.Hook{}, 0, []point{atRemove}},
		{store.Hook{Command: "true", Budget: 20 * time.Second}, 0, []point{atThaw, atRemove}},
		{store.Hook{Command: "true", Budget: 30 * time.Second}, 25 * time.Second, []point{atThaw, atRemove}},
		{store.Hook{Command: "true", Budget: time.Second}, 0, []point{atRemove, atThaw}}, // in vain
	} {
		w := newWorld(t)
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var seen []point
			w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
				if at == atCheckpoint {
					time.Sleep(10 * time.Second)
				}
				if at == atThaw {
					time.Sleep(c.thaw)
				}
				mu.Lock()
				defer mu.Unlock()
				if at == atThaw || at == atRemove {
					seen = append(seen, at)
				}
				return nil
			}
			srv := w.mustOpen(t)
			id := create(t, srv.s, CreateRequest{Settings: sleepy, Config: store.Config{Hooks: store.Hooks{PreKill: c.hook}}})
			go srv.s.Pause(t.Context(), id, PauseRequest{})
			time.Sleep(time.Second)
			if err := srv.s.Kill(t.Context(), id, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			mu.Lock()
			if seen = slices.Compact(seen); !slices.Equal(seen, c.want) {
				t.Errorf("with the hook %+v: %q, want %q", c.hook, seen, c.want)
			}
			mu.Unlock()
			w.end(t, srv)
		})
	}
}
