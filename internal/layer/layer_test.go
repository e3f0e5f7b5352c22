package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// rig is a store with a template of two trees.
type rig struct {
	*Store
	t     *testing.T
	dir   string
	trees []Tree
}

func newRig(t *testing.T) *rig { return rigIn(t, t.TempDir()) }

func rigIn(t *testing.T, dir string) *rig {
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Store: s, t: t, dir: dir}
	root, usr := filepath.Join(dir, "root"), filepath.Join(dir, "usr")
	r.write(filepath.Join(root, "etc/name"), "template")
	r.write(filepath.Join(usr, "bin/tool"), "tool")
	r.must(os.Mkdir(filepath.Join(root, "usr"), 0o755))
	r.trees = []Tree{{Name: "root", Path: "/", Lowers: []string{root}}, {Name: "usr", Path: "/usr", Lowers: []string{usr}}}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	r.must(os.MkdirAll(filepath.Dir(path), 0o755))
	r.must(os.WriteFile(path, []byte(text), 0o644))
}

// mount mounts a stack with a new top and unmounts it at the test's end. The layers
// of the stack are no tops any more.
func (r *rig) mount(stack []string, top string) string {
	r.t.Helper()
	for _, id := range stack {
		r.must(Unmount(filepath.Join(r.dir, "mnt-"+id)))
	}
	at := filepath.Join(r.dir, "mnt-"+top)
	r.must(r.Mount(at, r.trees, stack, top))
	r.t.Cleanup(func() { r.must(Unmount(at)) })
	return at
}

func (r *rig) read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}

func TestStack(t *testing.T) {
	r := newRig(t)
	a := r.mount(nil, "a")
	r.write(filepath.Join(a, "etc/name"), "from a")
	r.write(filepath.Join(a, "usr/bin/extra"), "extra")
	r.must(os.Remove(filepath.Join(a, "usr/bin/tool")))
	if f, err := r.Freeze(t.Context(), "a"); err != nil || !f.Changed {
		t.Fatalf("freeze: %+v, %v", f, err)
	}
	b := r.mount([]string{"a"}, "b")
	for path, want := range map[string]string{"etc/name": "from a", "usr/bin/extra": "extra"} {
		if got := r.read(filepath.Join(b, path)); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(b, "usr/bin/tool")); !os.IsNotExist(err) {
		t.Errorf("a file removed in a lower layer is back: %v", err)
	}
	// A later generation changes neither its layers nor the template.
	r.write(filepath.Join(b, "etc/name"), "from b")
	if got := r.read(filepath.Join(r.LayerDir("a"), "root/etc/name")); got != "from a" {
		t.Errorf("the frozen layer now says %q", got)
	}
	if got := r.read(filepath.Join(r.dir, "root/etc/name")); got != "template" {
		t.Errorf("the template now says %q", got)
	}
}

func TestUnchangedTop(t *testing.T) {
	r := newRig(t)
	r.mount(nil, "a")
	if f, err := r.Freeze(t.Context(), "a"); err != nil || f != (Frozen{}) {
		t.Errorf("freeze of an untouched top: %+v, %v", f, err)
	}
}

func TestDeepStack(t *testing.T) {
	r := newRig(t)
	var stack []string
	for i := range 120 { // together longer than a page, which mount(2) is limited to
		top := fmt.Sprintf("layer%035d", i)
		at := filepath.Join(r.dir, "m")
		r.must(r.Mount(at, r.trees, stack, top))
		r.write(filepath.Join(at, fmt.Sprintf("file%d", i)), top)
		r.must(Unmount(at))
		stack = append(stack, top)
	}
	at := r.mount(stack, "last")
	for i, id := range stack {
		if got := r.read(filepath.Join(at, fmt.Sprintf("file%d", i))); got != id {
			t.Fatalf("file%d = %q", i, got)
		}
	}
}

func TestUnmountIsIdempotentAndConcurrent(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		at := filepath.Join(r.dir, fmt.Sprintf("mnt%d", i))
		r.must(r.Mount(at, r.trees, nil, fmt.Sprintf("top%d", i)))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := Unmount(at); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if points, err := mountPoints(at); err != nil || len(points) > 0 {
			t.Fatalf("still mounted: %v, %v", points, err)
		}
		r.must(Unmount(at))
	}
}

func TestMountFailureLeavesNothing(t *testing.T) {
	r := newRig(t)
	bad := append(slices.Clone(r.trees), Tree{Name: "opt", Path: "/no/such/place", Lowers: []string{r.dir}})
	at := filepath.Join(r.dir, "mnt")
	if err := r.Mount(at, bad, nil, "top"); err == nil {
		t.Fatal("mounted at a place that does not exist")
	}
	if points, err := mountPoints(at); err != nil || len(points) > 0 {
		t.Errorf("left mounted: %v, %v", points, err)
	}
}

func (r *rig) seal(id string, files map[string][]byte) string {
	r.t.Helper()
	dir, err := r.NewImage(id)
	r.must(err)
	for name, data := range files {
		r.must(os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	digest, size, err := r.Seal(Manifest{ID: id, Runtime: "test"}, nil)
	r.must(err)
	var want int64
	for _, data := range files {
		want += int64(len(data))
	}
	if size != want {
		r.t.Errorf("sealed %d bytes, want %d", size, want)
	}
	return digest
}

func TestVerifyAcceptsWhatWasSealed(t *testing.T) {
	r := newRig(t)
	pages := make([]byte, 3*ChunkSize+17)
	digest := r.seal("one", map[string][]byte{"pages": pages, "state": []byte("x"), "empty": nil})
	m, err := r.Verify("one", digest)
	if err != nil || len(m.Files) != 3 {
		t.Fatalf("verify: %+v, %v", m, err)
	}
	info, err := os.Stat(filepath.Join(r.ImageDir("one"), "pages"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; a memory image holds secrets", info.Mode(), err)
	}
}

// TestVerifyFindsDamage changes one thing at a time.
func TestVerifyFindsDamage(t *testing.T) {
	pages, rng := make([]byte, 2*ChunkSize+100), testmode.Rand(0)
	for i := range pages {
		pages[i] = byte(rng.Uint32())
	}
	damage := map[string]func(r *rig, dir string){
		"truncated":    func(r *rig, dir string) { r.must(os.Truncate(filepath.Join(dir, "pages"), ChunkSize)) },
		"cut to zero":  func(r *rig, dir string) { r.must(os.Truncate(filepath.Join(dir, "pages"), 0)) },
		"longer":       func(r *rig, dir string) { r.must(os.Truncate(filepath.Join(dir, "pages"), int64(len(pages)+1))) },
		"missing":      func(r *rig, dir string) { r.must(os.Remove(filepath.Join(dir, "state"))) },
		"no manifest":  func(r *rig, dir string) { r.must(os.Remove(filepath.Join(dir, manifestName))) },
		"no directory": func(r *rig, dir string) { r.must(os.RemoveAll(dir)) },
		"abandoned": func(r *rig, dir string) {
			r.AbandonImage("one")
			r.AbandonImage("none")
		},
		"another's manifest": func(r *rig, dir string) {
			r.seal("two", map[string][]byte{"pages": []byte("other")})
			r.must(os.Rename(filepath.Join(r.ImageDir("two"), manifestName), filepath.Join(dir, manifestName)))
		},
		"another's image": func(r *rig, dir string) {
			r.seal("two", map[string][]byte{"pages": []byte("other")})
			r.must(os.RemoveAll(dir))
			r.must(os.Rename(r.ImageDir("two"), dir))
		},
	}
	for range testmode.Choose(10, 40) {
		at, bit := rng.IntN(len(pages)), rng.IntN(8)
		damage[fmt.Sprintf("bit flipped at %d", at)] = func(r *rig, dir string) {
			path := filepath.Join(dir, "pages")
			data, err := os.ReadFile(path)
			r.must(err)
			data[at] ^= 1 << bit
			r.must(os.WriteFile(path, data, 0o600))
		}
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			digest := r.seal("one", map[string][]byte{"pages": pages, "state": []byte("kernel")})
			f(r, r.ImageDir("one"))
			_, err := r.Verify("one", digest)
			if err == nil || !strings.Contains(err.Error(), "damaged") || errdef.ClassOf(err) != errdef.Unavailable {
				t.Errorf("verify: %v", err)
			}
			// Look leaves the contents to whoever reads them, and only these.
			_, err = r.Look("one", digest)
			if contents := strings.HasPrefix(name, "bit flipped"); (err == nil) != contents || !contents && !strings.Contains(err.Error(), "damaged") {
				t.Errorf("look: %v", err)
			}
		})
	}
}

func TestRemoveIsIdempotent(t *testing.T) {
	r := newRig(t)
	r.seal("one", map[string][]byte{"pages": []byte("x")})
	r.must(r.Mount(filepath.Join(r.dir, "m"), r.trees, nil, "top"))
	r.must(Unmount(filepath.Join(r.dir, "m")))
	for range 2 {
		r.must(r.RemoveImage("one"))
		r.must(r.RemoveLayer("top"))
	}
	for name, list := range map[string]func() ([]string, error){"images": r.Images, "layers": r.Layers} {
		if ids, err := list(); err != nil || len(ids) > 0 {
			t.Errorf("%s left: %v, %v", name, ids, err)
		}
	}
}

// TestOpenFinishesRemoval opens a store whose last user was killed between
// giving a thing up and having removed all of it.
func TestOpenFinishesRemoval(t *testing.T) {
	r := newRig(t)
	for _, dir := range []string{r.layers, r.images} {
		r.write(filepath.Join(dir, "given-up"+doomedSuffix, "file"), "x")
		r.write(filepath.Join(dir, "kept", "file"), "x")
	}
	_, err := Open(r.dir)
	r.must(err)
	for _, dir := range []string{r.layers, r.images} {
		entries, err := os.ReadDir(dir)
		r.must(err)
		if len(entries) != 1 || entries[0].Name() != "kept" {
			t.Errorf("%s holds %v, want only what was not given up", dir, entries)
		}
	}
}

// TestFrozenBytes: what a pause has written is told in blocks of the disk, those of each
// file once.
func TestFrozenBytes(t *testing.T) {
	const mib = 1 << 20
	r := newRig(t)
	at := filepath.Join(r.LayerDir("a"), "0")
	r.must(os.MkdirAll(at, 0o755))
	r.must(os.WriteFile(filepath.Join(at, "file"), make([]byte, mib), 0o644))
	r.must(os.Link(filepath.Join(at, "file"), filepath.Join(at, "again")))
	r.must(os.WriteFile(filepath.Join(at, "holes"), []byte("x"), 0o644))
	r.must(os.Truncate(filepath.Join(at, "holes"), 1<<40))
	f, _, err := survey(t.Context(), r.LayerDir("a"), bounds{MaxNames, MaxNameBytes})
	r.must(err)
	if f.Bytes < mib || f.Bytes > mib+mib/2 {
		t.Errorf("%d bytes were written, want 1 MiB and a block", f.Bytes)
	}
}
