package disklimit

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// sleepless is a running sandbox whose pauses fail.
type sleepless struct {
	calls.Sandbox // panics: nothing else is asked of it
	sb            store.Sandbox
	pauses        []lifecycle.PauseRequested
}

func (s *sleepless) Request(ev lifecycle.Event) (lifecycle.Result, <-chan calls.Ending, error) {
	s.pauses = append(s.pauses, ev.(lifecycle.PauseRequested))
	ended := make(chan calls.Ending, 1)
	ended <- calls.Ending{Entry: lifecycle.Entry{Type: lifecycle.EntryPauseFailed, Detail: "the guest prevents it"}}
	return lifecycle.Result{Verdict: lifecycle.Applies, Changed: true}, ended, nil
}

func (s *sleepless) Snapshot() store.Sandbox { return s.sb }

func (s *sleepless) Serving() (store.Sandbox, runtime.Instance) {
	return s.sb, struct{ runtime.Instance }{}
}

// TestStop holds that a sandbox past its limit is paused once at a time, that its
// runtime is ended after the second failure and not before, that Past says so of
// that generation alone, and that failures of another generation do not count.
func TestStop(t *testing.T) {
	var begun []func(context.Context)
	var removed []string
	g := NewGuard(Options{
		Space: space.New(t.TempDir(), ""), Log: slog.New(slog.DiscardHandler),
		Go:     func(f func(context.Context)) { begun = append(begun, f) },
		Remove: func(_ context.Context, id string) error { removed = append(removed, id); return nil },
	})
	s := &sleepless{sb: store.Sandbox{ID: "i1", Record: lifecycle.Record{State: lifecycle.Running, Generation: 3, Launch: 5}}}
	tenant := g.Tenant(s)
	fails := func(want int) {
		t.Helper()
		tenant.stop(t.Context(), s.sb, "its files take too much")
		tenant.stop(t.Context(), s.sb, "its files take too much") // while a pause is being tried
		if len(begun) != 1 {
			t.Fatalf("%d pauses were begun at once", len(begun))
		}
		begun[0](t.Context())
		begun = nil
		if len(removed) != want {
			t.Fatalf("after %d pauses that failed %q were removed", len(s.pauses), removed)
		}
	}
	fails(0)
	s.sb.Record.Generation, s.sb.Record.Launch = 4, 6 // it slept and woke by itself
	fails(0)
	if past := tenant.Past(4); past != "" {
		t.Errorf("it runs, and was ended because %s", past)
	}
	fails(1)
	if removed[0] != sweep.RuntimeID("i1", 6) {
		t.Errorf("removed %q", removed)
	}
	if past := tenant.Past(4); !strings.Contains(past, "its files take too much; it could not be paused") || !strings.Contains(past, "the guest prevents it") {
		t.Errorf("it was ended because %q", past)
	}
	if past := tenant.Past(5); past != "" {
		t.Errorf("another generation was ended because %s", past)
	}
	for _, p := range s.pauses {
		if p.Cause != lifecycle.CauseDisk || p.Mode != lifecycle.Memory || p.Detail != "its files take too much" {
			t.Errorf("a pause was asked for with %+v", p)
		}
	}
}

// TestSandboxesAreMeasuredSideBySide: one with very many files kept all that came after
// it from being measured, while they filled the disk.
func TestSandboxesAreMeasuredSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tenants []*Tenant
		g := NewGuard(Options{Log: slog.New(slog.DiscardHandler), EachRunning: func(f func(*Tenant)) {
			for _, tenant := range tenants {
				f(tenant)
			}
		}})
		looked, most := atomic.Int64{}, make(chan struct{})
		for n := range 3 * sideBySide {
			tenants = append(tenants, g.Tenant(&lookedAt{look: func() {
				looked.Add(1)
				if n == 0 {
					<-most // until the others have been looked at
				}
			}}))
		}
		done := make(chan struct{})
		go func() {
			g.LimitAll(t.Context())
			close(done)
		}()
		synctest.Wait()
		if n := looked.Load(); n != 3*sideBySide {
			t.Errorf("%d of %d were looked at while one takes long", n, 3*sideBySide)
		}
		close(most)
		<-done
	})
}

// lookedAt is a sandbox that calls something when it is looked at, and does not run.
type lookedAt struct {
	calls.Sandbox // panics: nothing else is asked of it
	look          func()
}

func (l *lookedAt) Serving() (store.Sandbox, runtime.Instance) {
	l.look()
	return store.Sandbox{}, nil
}

// teller is a runtime in which programs ask for their disk.
type teller struct {
	runtime.Instance
	asked chan func(context.Context) runtime.Disk
}

func (r *teller) TellDisk(_ context.Context, _ runtime.Disk, asked func(context.Context) runtime.Disk) error {
	r.asked <- asked
	return nil
}

// asking is a running sandbox with such a runtime.
type asking struct {
	*sleepless
	inst *teller
}

func (a *asking) Serving() (store.Sandbox, runtime.Instance) { return a.sb, a.inst }

// TestTell: who asks is told what there is now. Without a limit there is nothing to tell.
func TestTell(t *testing.T) {
	layers, err := layer.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := NewGuard(Options{Layers: layers, Log: slog.New(slog.DiscardHandler), Go: func(f func(context.Context)) { f(t.Context()) }})
	a := &asking{
		&sleepless{sb: store.Sandbox{ID: "i1", Record: lifecycle.Record{State: lifecycle.Running, Generation: 1, Launch: 1}}},
		&teller{asked: make(chan func(context.Context) runtime.Disk)},
	}
	tenant := g.Tenant(a)
	if d := tenant.Disk(); d != (runtime.Disk{}) {
		t.Errorf("without a limit there is %+v", d)
	}
	a.sb.Config.Limits.DiskMiB = 64
	tenant.Tell(t.Context(), a.inst)
	asked := <-a.inst.asked
	for names := range int64(3) {
		at := filepath.Join(layers.LayerDir(sweep.RuntimeID("i1", 1)), "fs", strconv.FormatInt(names, 10))
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "what there is", func() bool {
			d := asked(t.Context())
			return d.Limit == quota.OfSandbox(64) && d.Taken.Files == 2+names
		})
	}
	if used, total, err := tenant.Use(); err != nil || used != tenant.Taken().Bytes || total != 64<<20 {
		t.Errorf("%d of %d are shown as used, %v", used, total, err)
	}
}
