package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// TestExaminer: answers are kept for a while, what lasts is looked at once, and a check
// that hangs keeps nobody and is not begun twice.
func TestExaminer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked, lasting, hung atomic.Int64
		release := make(chan struct{})
		x := examines(
			check{"disk", func(context.Context) Finding { looked.Add(1); return Finding{Name: "disk", OK: true} }, false},
			check{"overlayfs", func(context.Context) Finding {
				return Finding{Name: "overlayfs", OK: lasting.Add(1) > 1, Required: true} // good from the second look on
			}, true},
			check{"builds", func(context.Context) Finding {
				hung.Add(1)
				<-release
				return Finding{Name: "builds", OK: true}
			}, false},
		)
		look := func(wantFor time.Duration, builds, overlay bool) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // whoever asked first may be gone: the answer is also for others
			began := time.Now()
			all := x.Findings(ctx)
			if took := time.Since(began); took != wantFor || len(all) != 3 {
				t.Fatalf("%d findings after %s, want %s", len(all), took, wantFor)
			}
			if all[0].Name != "disk" || !all[0].OK || all[1].OK != overlay || all[2].Name != "builds" || all[2].OK != builds {
				t.Errorf("found %+v", all)
			}
			if !builds && (all[2].Required || all[2].Remedy == "" || !strings.Contains(all[2].Detail, "not known")) {
				t.Errorf("what hangs is %+v", all[2])
			}
		}
		counts := func(wantLooked, wantLasting, wantHung int64) {
			t.Helper()
			if looked.Load() != wantLooked || lasting.Load() != wantLasting || hung.Load() != wantHung {
				t.Errorf("looked %d, %d and %d times, want %d, %d and %d", looked.Load(), lasting.Load(), hung.Load(), wantLooked, wantLasting, wantHung)
			}
		}
		look(examinePatience, false, false)
		look(0, false, false)
		counts(1, 1, 1)
		time.Sleep(examineEvery)
		look(examinePatience, false, true)
		counts(2, 2, 1)
		close(release)
		synctest.Wait()
		time.Sleep(examineEvery)
		look(0, true, true)
		counts(3, 2, 2)
	})
}

// TestExaminerOfSlowChecks: what takes longer than an answer waits is in the next one.
func TestExaminerOfSlowChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := check{"disk", func(context.Context) Finding {
			time.Sleep(examinePatience + 2*time.Second)
			return Finding{Name: "disk", OK: true, Detail: "slow"}
		}, false}
		lasting := disk
		lasting.lasts = true
		x := examines(disk, lasting)
		for n := range 5 {
			began := time.Now()
			for i, f := range x.Findings(t.Context()) {
				if known := f.Detail == "slow"; known != (n > 0) {
					t.Errorf("answer %d of check %d is %+v", n, i, f)
				}
			}
			if took := time.Since(began); took != examinePatience {
				t.Errorf("answer %d took %s", n, took)
			}
			time.Sleep(examineEvery)
		}
		time.Sleep(2 * examineMost)
		if all := x.Findings(t.Context()); all[0].OK || !all[1].OK {
			t.Errorf("after a long time without a question: %+v", all)
		}
		time.Sleep(examineMost) // for what goes on to end
	})
}

// fit is a server whose host is as it says.
type fit struct{ unfit error }

func (f fit) Ready() error { return f.unfit }
func (fit) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "gvisor", Version: "1"}
}

// TestRuntimeOf: what the server knows without another sandbox.
func TestRuntimeOf(t *testing.T) {
	lacks := errdef.New(errdef.Unfit, "no_cgroups", "the kernel has\nno controller").WithRemedy("boot another")
	for name, c := range map[string]struct {
		err            error
		tried, ok      bool
		detail, remedy string
	}{
		"ready":         {nil, true, true, "usable: a trial sandbox has started (1; ", ""},
		"not tried":     {nil, false, true, "--trial=false", ""},
		"not ready":     {lacks, true, false, "no sandbox starts on this host: the kernel has no controller", "boot another"},
		"without words": {errors.New("it broke"), true, false, "it broke", "the server's log"},
	} {
		f := runtimeOf(fit{c.err}, c.tried)
		if f.Name != "runtime gvisor" || !f.Required || f.OK != c.ok || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Remedy, c.remedy) || (f.Remedy == "") != c.ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestDoctorOfServer: the route answers an admin with the server's own checks, in the
// order of the command, and says so when no sandbox starts.
func TestDoctorOfServer(t *testing.T) {
	w := newWorld(t)
	var got struct {
		OK       bool      `json:"ok"`
		Findings []Finding `json:"findings"`
	}
	w.sup.NoteFitness(errdef.New(errdef.Unfit, "no_cgroups", "the kernel has no controller").WithRemedy("boot another"))
	text := w.wants(w.ask(testKey, http.MethodGet, "/v1/doctor", ""), http.StatusOK, "").body
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	names := map[string]Finding{}
	for _, f := range got.Findings {
		names[f.Name] = f
		if f.Detail == "" || !f.OK && f.Remedy == "" {
			t.Errorf("it says too little: %+v", f)
		}
	}
	for _, name := range []string{"root", "kernel", "disk", "builds", "system calls", "overlayfs", "cgroups", "file limit", "namespaces", "memory", "security", "template base", "runtime none"} {
		if _, has := names[name]; !has {
			t.Errorf("no finding of %s in %s", name, text)
		}
	}
	if f := names["runtime none"]; got.OK || f.OK || !strings.Contains(f.Detail, "the kernel has no controller") || f.Remedy != "boot another" {
		t.Errorf("it is ok (%v) with %+v", got.OK, f)
	}
}
