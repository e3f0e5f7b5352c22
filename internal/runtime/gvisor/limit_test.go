package gvisor

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/cgroup"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// serveHold takes as many MiB of the guest's memory as it is asked to, for good.
func serveHold() http.HandlerFunc {
	var held [][]byte
	return func(w http.ResponseWriter, r *http.Request) {
		mib, err := strconv.Atoi(r.URL.Query().Get("mib"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		more := make([]byte, mib<<20)
		for i := range more {
			more[i] = byte(i >> 12 * i)
		}
		held = append(held, more)
	}
}

// hold lets the guest take memory.
func hold(t *testing.T, i *instance, mib int) error {
	t.Helper()
	askFresh(t, i) // until it listens
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // else nothing would tell that there is no answer
		select {
		case <-i.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://guest/hold?mib=%d", mib), nil)
	if err != nil {
		return err
	}
	resp, err := guestClient(i).Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestLimitOfACapture captures a guest that holds most of what it may. The image
// takes as much again, for which there is room while the guest is frozen, and
// none after that.
func TestLimitOfACapture(t *testing.T) {
	limit := int64(guestSpec.Limits.MemoryMiB+memoryOverhead) << 20
	for name, given := range map[string]func(t *testing.T, image string){
		"given up": func(t *testing.T, image string) { eachFile(t, image, func(f *os.File) error { return f.Truncate(0) }) },
		"kept":     func(t *testing.T, image string) { eachFile(t, image, (*os.File).Sync) },
		"unsynced": func(*testing.T, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			i := start(t, r.reopen(t).(*Driver), r.newSpec(t))
			if err := hold(t, i, 220); err != nil {
				t.Fatal(err)
			}
			g, ok := memoryGroupOf(i.group)
			if !ok {
				t.Fatal("nothing bounds the guest's memory")
			}
			wantLimit(t, g, limit)
			image := r.capture(t, i)
			wantLimit(t, g, 2*limit)
			if used, err := g.read(g.usage); err != nil || used <= limit {
				t.Errorf("%d bytes are used, %v; want more than %d, or this shows nothing", used, err, limit)
			}
			given(t, image)
			if err := i.Thaw(t.Context()); err != nil {
				t.Fatal(err)
			}
			if name == "unsynced" {
				eachFile(t, image, (*os.File).Sync)
				for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					if now, err := g.read(g.limit); err != nil || now == limit {
						break
					}
				}
			}
			wantLimit(t, g, limit)
			askFresh(t, i)
			err := hold(t, i, 200)
			select {
			case <-i.Exited():
			case <-time.After(testmode.Patience()):
				t.Fatalf("it took more memory than it may, and goes on: %v", err)
			}
			if by, err := i.EndedBy(); err != nil || by.Limit != runtime.MemoryLimit {
				t.Errorf("it ended of %q, %v; want memory", by, err)
			}
		})
	}
}

func wantLimit(t *testing.T, g memoryGroup, want int64) {
	t.Helper()
	if got, err := g.read(g.limit); err != nil || got != want {
		t.Errorf("the limit is %d, %v; want %d", got, err, want)
	}
}

func eachFile(t *testing.T, dir string, do func(*os.File) error) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d files in the image, %v", len(entries), err)
	}
	for _, e := range entries {
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDWR, 0)
		if err == nil {
			err = do(f)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLowerLimit(t *testing.T) {
	const limit, mib = 100 << 20, 1 << 20
	for name, tt := range map[string]struct {
		was, used, active, inactive, dirty, writeback int64
		want                                          int64
		done                                          bool
	}{
		"never lifted":          {limit, 99 * mib, 0, 0, 0, 0, limit, true},
		"there is room":         {2 * limit, 90 * mib, 0, 0, 0, 0, limit, true},
		"it can be given up":    {2 * limit, 170 * mib, 30 * mib, 50 * mib, 0, 0, limit, true},
		"it is on its way":      {2 * limit, 170 * mib, 30 * mib, 50 * mib, 40 * mib, 20 * mib, 150*mib + limitMargin, false},
		"it is its own":         {2 * limit, 110 * mib, 0, 0, 0, 0, 110*mib + limitMargin, false},
		"it takes all there is": {120 * mib, 120 * mib, 0, 0, 0, 0, 120 * mib, false},
	} {
		for version, files := range map[string]map[string]string{
			"v1": {
				"memory/memory.limit_in_bytes": fmt.Sprintln(tt.was),
				"memory/memory.usage_in_bytes": fmt.Sprintln(tt.used),
				"memory/memory.stat": fmt.Sprintf("cache 1\nactive_file 7\ninactive_file 7\ndirty 7\nwriteback 7\ntotal_cache 9\n"+
					"total_dirty %d\ntotal_writeback %d\ntotal_inactive_file %d\ntotal_active_file %d\n", tt.dirty, tt.writeback, tt.inactive, tt.active),
			},
			"v2": {
				"memory.max":     fmt.Sprintln(tt.was),
				"memory.current": fmt.Sprintln(tt.used),
				"memory.stat":    fmt.Sprintf("anon 5\nfile_dirty %d\nfile_writeback %d\ninactive_file %d\nactive_file %d\n", tt.dirty, tt.writeback, tt.inactive, tt.active),
			},
		} {
			t.Run(version+": "+name, func(t *testing.T) {
				root := t.TempDir()
				writeGroup(t, root, files)
				g, ok := memoryGroupOf(group{root: root, id: "i0r1"})
				if !ok {
					t.Fatal("it has no cgroup")
				}
				done, err := g.lower(limit)
				if err != nil || done != tt.done {
					t.Errorf("done: %t, %v; want %t", done, err, tt.done)
				}
				wantLimit(t, g, tt.want)
			})
		}
	}
	if _, ok := memoryGroupOf(group{root: t.TempDir(), id: "i0r1"}); ok {
		t.Error("there is a cgroup where there is none")
	}
}

// described is a control of a runtime that is only described.
type described struct {
	control
	is about
}

func (d described) about() about { return d.is }

// TestRoomForImages: in cgroup v2 what reads and writes images has tasks and memory of
// its own in the runtime's group, as long as it is there.
func TestRoomForImages(t *testing.T) {
	const limit, tasks = 320 << 20, 512
	g := fakeGroup(t, limit, tasks)
	i := &instance{group: g, c: described{is: about{memoryLimit: limit, tasks: tasks}}, loaded: make(chan struct{}), exited: make(chan struct{})}
	want := func(when string, memory, pids int64) {
		t.Helper()
		for name, want := range map[string]int64{"memory.max": memory, "pids.max": pids} {
			if got, err := (memoryGroup{dir: g.tree.Dir(g.path)}).read(name); err != nil || got != want {
				t.Errorf("%s: %s is %d, %v; want %d", when, name, got, err, want)
			}
		}
	}
	g.makeRoom(i.c.about(), true)
	want("nobody runs", 2*limit, tasks+imageTasks)
	g.makeRoom(i.c.about(), false)
	i.settleLimit()
	want("it runs and is loaded", limit+imageMemory, tasks+imageTasks)
	close(i.loaded)
	i.settleLimit()
	want("all is loaded", limit, tasks)
	i.liftLimit()
	want("it is captured", 2*limit, tasks+imageTasks)
	i.lowerLimit()
	want("it is thawed", limit, tasks)
}

// fakeGroup is a cgroup of v2 with these limits.
func fakeGroup(t *testing.T, limit, tasks int64) group {
	t.Helper()
	root := t.TempDir()
	g := group{tree: cgroup.At(root), path: "/scope/i1"}
	if err := os.MkdirAll(filepath.Join(root, g.path), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"memory.max": fmt.Sprint(limit), "pids.max": fmt.Sprint(tasks), "memory.current": "4096", "memory.stat": "anon 4096\n",
	} {
		if err := os.WriteFile(filepath.Join(root, g.path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// TestRoomForImagesV1: in cgroup v1 they are in no group that counts tasks.
func TestRoomForImagesV1(t *testing.T) {
	root := t.TempDir()
	g := group{root: root, id: "i0r1"}
	file := filepath.Join(root, "pids", cgroupParent, g.id, "pids.max")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("512"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.makeRoom(about{memoryLimit: 1 << 20, tasks: 512}, false)
	if got, err := os.ReadFile(file); err != nil || string(got) != "512" {
		t.Errorf("the guest may have %q tasks, %v", got, err)
	}
}
