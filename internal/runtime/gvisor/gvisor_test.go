package gvisor

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/runtime/drivertest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestMain(m *testing.M) {
	if os.Args[0] == imageServerName {
		os.Exit(beImageServer(readsOf()))
	}
	Handover()
	if len(os.Args) > 1 && os.Args[1] == "guest" {
		http.Handle("/", drivertest.Guest())
		http.Handle("/fresh", serveFresh())
		http.Handle("/hold", serveHold())
		http.Handle("/hinder", serveHinder())
		http.Handle("/disk", serveDisk())
		http.Handle("/heap", serveHeap())
		http.Handle("/held", serveHeld())
		http.Handle("/linked", serveLinked())
		http.Handle("/hogs", serveHogs())
		http.Handle("/readonly", serveReadOnly())
		panic(http.ListenAndServe(fmt.Sprintf(":%d", drivertest.GuestPort), nil))
	}
	if len(os.Args) > 2 && os.Args[1] == "hog" {
		os.Exit(beHog(os.Args[2]))
	}
	if len(os.Args) > 1 && os.Args[1] == "confined" {
		os.Exit(beConfined())
	}
	os.Exit(m.Run())
}

// rig gives the contract suite real runtimes over overlay stacks, with the
// test's own (static) binary as the guest.
type rig struct {
	dir   string
	store *layer.Store
	trees []layer.Tree
	warm  int // how many runtimes wait
	rates DiskRates
	stack map[string][]string // by runtime id
}

func newRig(t *testing.T) *rig {
	return newRigIn(t, t.TempDir())
}

// needStatic fails a test whose program the sandbox cannot start: there are no
// libraries where it becomes the sandbox's own processes.
func needStatic(t *testing.T) {
	t.Helper()
	if needsLibraries("/proc/self/exe") {
		t.Fatal("this test program is linked dynamically, and gVisor starts it where there are no libraries: run it with CGO_ENABLED=0, or by make test-plain")
	}
}

func newRigIn(t *testing.T, dir string) *rig {
	needStatic(t)
	store, err := layer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	lower := filepath.Join(dir, "lower")
	if err := os.MkdirAll(lower, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lower, "guest"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	return &rig{dir: dir, store: store, stack: map[string][]string{}, trees: []layer.Tree{{Name: "root", Path: "/", Lowers: []string{lower}}}}
}

func (r *rig) reopen(t *testing.T) runtime.Driver {
	d, err := New(t.Context(), filepath.Join(r.dir, "gv"), builds.At(filepath.Join(r.dir, "builds")), Options{
		Warm: Warm{Count: r.warm, Spec: guestSpec}, DiskRates: r.rates, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	r.awaitWarm(t, d)
	return d
}

// awaitWarm waits until as many runtimes wait as should.
func (r *rig) awaitWarm(t *testing.T, d *Driver) {
	t.Helper()
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		d.pool.mu.Lock()
		n := len(d.pool.waiting)
		d.pool.mu.Unlock()
		if n == r.warm {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d runtimes wait, want %d", n, r.warm)
		}
	}
}

// guestSpec is what all guests are like.
var guestSpec = runtime.Spec{
	Hostname: "guest", Args: []string{"/guest", "guest"}, Env: []string{"PATH=/"},
	Limits: runtime.Limits{CPUs: 2, MemoryMiB: 256, PIDs: 512},
}

func (r *rig) spec(t *testing.T, stack []string) runtime.Spec {
	id := "i" + strings.ToLower(rand.Text())[:20] // runtimes of one id on a host share their cgroups
	rootfs := filepath.Join(r.dir, "mnt-"+id)
	if err := r.store.Mount(rootfs, r.trees, stack, id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := layer.Unmount(rootfs); err != nil {
			t.Error(err)
		}
	})
	r.stack[id] = append(append([]string{}, stack...), id)
	spec := guestSpec
	spec.ID, spec.Rootfs = id, rootfs
	return spec
}

func (r *rig) newSpec(t *testing.T) runtime.Spec { return r.spec(t, nil) }

func (r *rig) again(t *testing.T, prev runtime.Spec) runtime.Spec { return r.spec(t, r.stack[prev.ID]) }

// capture freezes a runtime and returns the directory of its image.
func (r *rig) capture(t *testing.T, inst runtime.Instance) string {
	t.Helper()
	image := filepath.Join(r.dir, "image")
	if err := os.Mkdir(image, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := inst.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := inst.Checkpoint(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	return image
}

func TestContract(t *testing.T) {
	for _, warm := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d waiting", warm), func(t *testing.T) {
			r := newRig(t)
			r.warm = warm
			drivertest.Run(t, drivertest.Env{Reopen: r.reopen, NewSpec: r.newSpec, Again: r.again, Hinder: hinder})
		})
	}
}
