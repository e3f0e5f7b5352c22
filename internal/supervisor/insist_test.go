package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestRemovalIsTriedAgain holds that a runtime which cannot be removed at first
// goes all the same, without a restart and without another request, and that
// its server comes up and serves meanwhile. Time is virtual.
func TestRemovalIsTriedAgain(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, w *world, srv *server, id string) *server{
		"after a pause": func(t *testing.T, _ *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
				t.Fatal(err)
			}
			return srv
		},
		"after a failed start": func(t *testing.T, w *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
				t.Fatal(err)
			}
			if _, err := srv.s.Connect(t.Context(), id, time.Hour, ""); err == nil {
				t.Fatal("the resume did not fail")
			}
			return srv
		},
		"after a crash": func(t *testing.T, w *world, srv *server, id string) *server {
			if err := srv.s.Pause(t.Context(), id, lifecycle.Memory, ""); err != nil {
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
				time.Sleep(maxRemovalRetry)
				synctest.Wait()
				if left, _ := w.machine.Driver().List(t.Context()); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
				// What the checkpoint builds on is still there, and no more.
				if layers, _ := os.ReadDir(filepath.Join(srv.dir, "layers")); len(layers) != 1 {
					t.Errorf("layers left: %v, want the checkpoint's", layers)
				}
				if c, err := srv.s.Connect(t.Context(), id, time.Hour, ""); err != nil || !c.Resumed {
					t.Errorf("connect: %+v, %v", c, err)
				}
				if err := srv.s.Stop(context.Background()); err != nil {
					t.Error(err)
				}
				w.powerOff()
			})
		})
	}
}
