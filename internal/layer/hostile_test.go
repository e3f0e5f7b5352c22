package layer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// hostile freezes a layer with a hostile tree below a directory of its root, and
// returns the layer's digest.
func (r *rig) hostile(id string, s treetest.Shape) string {
	r.t.Helper()
	dir := filepath.Join(r.LayerDir(id), "root", "home")
	r.must(os.MkdirAll(dir, 0o755))
	treetest.Make(r.t, dir, s)
	r.t.Cleanup(func() { r.must(r.RemoveLayer(id)) }) // testing cannot
	f, err := r.Freeze(r.t.Context(), id)
	r.must(err)
	return f.Digest
}

// TestHostileTree has a tree that no path leads through frozen, verified, counted,
// merged, mounted, copied to another place and removed.
func TestHostileTree(t *testing.T) {
	r := newRig(t)
	s := treetest.Hostile
	s.Portable = true
	digest := r.hostile("a", s)
	r.must(r.VerifyLayer(t.Context(), "a", digest))
	digests := map[string]string{"a": digest}

	u, _, err := r.Usage(t.Context(), "a", Unbounded)
	r.must(err)
	if least := int64(s.Deep + s.Long + s.Links + s.Wide); u.Files < least {
		t.Errorf("%d files were counted of %d", u.Files, least)
	}

	b := r.mount([]string{"a"}, "b")
	r.must(os.WriteFile(filepath.Join(b, "home/deep/new"), []byte("new"), 0o600))
	r.must(os.Rename(filepath.Join(b, "home/long"), filepath.Join(b, "home/moved")))
	f, err := r.Freeze(t.Context(), "b")
	r.must(err)
	digests["b"] = f.Digest
	digests["merged"], err = r.Merge(t.Context(), []string{"a", "b"}, digests, "merged", plenty)
	r.must(err)
	t.Cleanup(func() { r.must(r.RemoveLayer("merged")) })
	r.must(r.VerifyStack(t.Context(), []string{"a", "b", "merged"}, digests))
	if _, err := r.Hidden([]string{"a", "b"}, digests); err != nil {
		t.Error(err)
	}

	c := r.mount([]string{"merged"}, "c")
	root, err := os.Open(c)
	r.must(err)
	defer root.Close()
	for path, want := range map[string]string{
		"home/deep/" + strings.Repeat("d/", s.Deep) + "bottom":                              "bottom",
		"home/moved/" + strings.Repeat(strings.Repeat("n", 250)+"/", s.Long) + "link000001": "one file",
		"home/deep/new": "new",
	} {
		file, err := tree.OpenBelow(root, path, unix.O_RDONLY)
		if err != nil {
			t.Errorf("%.30s…: %v", path, err)
			continue
		}
		if text, err := io.ReadAll(file); err != nil || string(text) != want {
			t.Errorf("%.30s… is %q, %v", path, text, err)
		}
		_ = file.Close()
	}
	r.copied("merged", digests["merged"])
	r.must(r.RemoveLayer("a"))
	if r.LayerRemains("a") {
		t.Error("it is still there")
	}
}

// copied copies a layer to an import and back.
func (r *rig) copied(id, digest string) {
	r.t.Helper()
	st, err := r.Stage("op")
	r.must(err)
	w, err := st.NewLayer(0)
	r.must(err)
	defer w.Abort()
	r.must(r.Read(r.t.Context(), id, w.Add))
	got, err := w.Close(r.t.Context())
	r.must(err)
	if got.Digest != digest {
		r.t.Errorf("the copy has digest %s, want %s", got.Digest, digest)
	}
	r.must(st.Remove())
}

// TestUnportableTreesAreFrozenToo: what cannot be exported can be paused.
func TestUnportableTreesAreFrozenToo(t *testing.T) {
	r := newRig(t)
	digest := r.hostile("a", treetest.Shape{Deep: 10, Long: 1, Links: 1, Wide: 1})
	r.must(r.VerifyLayer(t.Context(), "a", digest))
	err := r.Read(t.Context(), "a", func(Entry, io.Reader) error { return nil })
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "not_portable" {
		t.Errorf("%v, want it refused", err)
	}
}

// TestListingStaysSmall freezes and verifies many names at the end of a path of
// 7,500 bytes: neither memory nor the listing may grow with the length of the path.
func TestListingStaysSmall(t *testing.T) {
	r := newRig(t)
	const links = 20_000
	var before, after goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	digest := r.hostile("a", treetest.Shape{Long: 30, Links: links})
	r.must(r.VerifyLayer(t.Context(), "a", digest))
	goruntime.ReadMemStats(&after)
	listing, err := os.Stat(filepath.Join(r.LayerDir("a"), listingName))
	r.must(err)
	if most := int64(links * 100); listing.Size() > most {
		t.Errorf("the listing has %d bytes, want %d at most", listing.Size(), most)
	}
	// One path has 7,500 bytes. The race detector alone adds 1,000 to the 2,500
	// that a name takes.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > links*5000 {
		t.Errorf("%d bytes were allocated for each name", grown/links)
	}
}

// TestHardLinksAreReadOnce: a file was read once for each of its names, so that one
// of 1 GiB with 60,000 names cost 60 TiB at each pause and each wake.
func TestHardLinksAreReadOnce(t *testing.T) {
	r := newRig(t)
	const links, size = 10_000, 1 << 20
	home := filepath.Join(r.LayerDir("a"), "root", "home")
	first := filepath.Join(home, "m") // some names come before it, some after
	r.write(first, strings.Repeat("x", size))
	for i := range links {
		r.must(os.Link(first, filepath.Join(home, fmt.Sprintf("%c%06d", "lmn"[i%3], i))))
	}
	before := bytesRead(t)
	f, err := r.Freeze(t.Context(), "a")
	r.must(err)
	r.must(r.VerifyLayer(t.Context(), "a", f.Digest))
	if read := bytesRead(t) - before; read > 100*size {
		t.Errorf("%d MiB were read of a file of 1 MiB", read>>20)
	}

	// What is wrong is found all the same.
	r.must(os.WriteFile(first, []byte(strings.Repeat("x", size-1)+"y"), 0o644))
	if err := r.VerifyLayer(t.Context(), "a", f.Digest); err == nil {
		t.Error("a file with other contents is found to be sound")
	}
}

// TestHolesAreNotRead: of a file with a block of data in each chunk all chunks were
// read whole, 256 times what is in it. Its checksum is that of a copy without holes.
func TestHolesAreNotRead(t *testing.T) {
	r := newRig(t)
	const chunks = 64
	dir := t.TempDir()
	sum := func(name string, write func(*os.File)) (uint32, int64) {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, name))
		r.must(err)
		defer f.Close()
		write(f)
		before := bytesRead(t)
		sum, err := contents(t.Context(), f, chunks*ChunkSize-1)
		r.must(err)
		return sum, bytesRead(t) - before
	}
	block := bytes.Repeat([]byte{1}, 4096)
	holes, read := sum("holes", func(f *os.File) {
		r.must(f.Truncate(chunks*ChunkSize - 1))
		for i := range int64(chunks) {
			if i%8 != 7 { // and some chunks have none
				_, err := f.WriteAt(block, i*ChunkSize+i*4096)
				r.must(err)
			}
		}
	})
	if read > chunks*8192 {
		t.Errorf("%d KiB were read of %d blocks of 4 KiB", read>>10, chunks)
	}
	whole, _ := sum("whole", func(f *os.File) {
		data := make([]byte, chunks*ChunkSize-1)
		for i := range chunks {
			if i%8 != 7 {
				copy(data[i*ChunkSize+i*4096:], block)
			}
		}
		_, err := f.Write(data)
		r.must(err)
	})
	if holes != whole {
		t.Errorf("with holes it has the checksum %08x, without %08x", holes, whole)
	}
}

// bytesRead returns how many bytes this process has read from files.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTooManyFiles: a layer may have so many names, and so many bytes of them, and not
// one more.
func TestTooManyFiles(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.LayerDir("a"), "root", "home")
	first := filepath.Join(dir, "linked")
	r.write(first, "x")
	for i := range 20 {
		r.must(os.Link(first, filepath.Join(dir, fmt.Sprintf("link%04d", i))))
	}
	// The layer itself, root, home and linked are names as well, but the first has
	// none of its own that is counted by its length.
	names, nameBytes := 4+20, len("root")+len("home")+len("linked")+20*len("link0000")
	for _, c := range []struct {
		most bounds
		want string
	}{
		{bounds{names, nameBytes + 10}, ""},
		{bounds{names - 1, nameBytes + 10}, "too_many_files"},
		{bounds{names, nameBytes - 1}, "too_many_files"},
	} {
		code := ""
		_, _, err := survey(t.Context(), r.LayerDir("a"), c.most)
		if e, ok := errors.AsType[*errdef.Error](err); ok {
			code = e.Code
		}
		if code != c.want || (err != nil) != (c.want != "") {
			t.Errorf("with bounds %+v: %v, want code %q", c.most, err, c.want)
		}
	}
}
