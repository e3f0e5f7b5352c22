package supervisor

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor/fitness"
)

// TestUnfitHost takes from a host what every sandbox needs, and gives it back.
// Meanwhile nobody is told to try again, nothing of a paused sandbox is lost,
// and the server is not ready. Time is virtual.
func TestUnfitHost(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var lacks atomic.Pointer[errdef.Error]
		var trials atomic.Int64
		w.meddle = func(_ context.Context, _ *server, at point, id string) error {
			if at == atStart && strings.HasPrefix(id, "trial-") {
				trials.Add(1)
			}
			if e := lacks.Load(); e != nil && (at == atStart || at == atRestore) {
				return e
			}
			return nil
		}
		w.tune = func(o *Options) { o.TrialTemplate = "test" }
		srv := w.mustOpen(t)
		if err := srv.s.Try(t.Context()); err != nil || srv.s.Ready() != nil || trials.Load() != 1 {
			t.Fatalf("trial: %v, %v, %d trials", err, srv.s.Ready(), trials.Load())
		}
		id := create(t, srv.s, CreateRequest{Settings: sleepy})
		if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}

		lacks.Store(errdef.New(errdef.Unfit, "no_nftables", "no nftables").WithRemedy("load the module"))
		wantUnfit := func(what string, err error) {
			t.Helper()
			e, ok := errors.AsType[*errdef.Error](err)
			if !ok || e.Class != errdef.Unfit || e.Code != "no_nftables" || !strings.Contains(e.Error(), "load the module") {
				t.Errorf("%s: %v; want that the host is unfit, and why", what, err)
			}
		}
		_, err := srv.s.Create(t.Context(), CreateRequest{Settings: sleepy, Template: "test"})
		wantUnfit("create", err)
		_, err = srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour})
		wantUnfit("connect", err)
		wantUnfit("ready", srv.s.Ready())
		time.Sleep(3 * fitness.Every)
		synctest.Wait()
		if n := trials.Load(); n < 3 || n > 5 {
			t.Errorf("%d trials in %s, want one each %s", n, 3*fitness.Every, fitness.Every)
		}

		lacks.Store(nil)
		time.Sleep(fitness.Every)
		synctest.Wait()
		if err := srv.s.Ready(); err != nil {
			t.Errorf("not ready again: %v", err)
		}
		if _, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
			t.Error(err)
		}
		if n := srv.s.CountRunning(); n != 1 {
			t.Errorf("%d run, want 1", n)
		}
		last := trials.Load()
		time.Sleep(5 * fitness.Every)
		if trials.Load() != last {
			t.Error("trials go on though one has succeeded")
		}
		if err := srv.s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if left, _ := w.machine.Driver().List(t.Context()); len(left) != 1 || strings.HasPrefix(left[0], "trial-") {
			t.Errorf("left: %q", left)
		}
		w.powerOff()
	})
}

// TestStartThatSaysNothing holds that a start which fails for the sandbox's own
// reasons does not make the server unready.
func TestStartThatSaysNothing(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			if at == atStart {
				return errors.New("a fault")
			}
			return nil
		}
		srv := w.mustOpen(t)
		_, err := srv.s.Create(t.Context(), CreateRequest{Settings: sleepy, Template: "test"})
		if !errdef.Is(err, errdef.Unavailable) || srv.s.Ready() != nil {
			t.Errorf("create: %v; ready: %v", err, srv.s.Ready())
		}
		w.end(t, srv)
	})
}
