package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
)

// TestSystemIsWatched: each change below is seen at once, by the times of files
// too, and without one nobody looks again.
func TestSystemIsWatched(t *testing.T) {
	host := t.TempDir()
	at := func(name string) string { return filepath.Join(host, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) { check(os.WriteFile(at(name), []byte(text), 0o644)) }
	check(os.MkdirAll(at("lib/deep"), 0o755))
	write("lib/deep/libc.so", "old")
	write("lib/tool", "tool")

	s := At(t.TempDir())
	shown := Template{Trees: []layer.Tree{{Name: "usr", Lowers: []string{host}}}}
	system := func() layer.System {
		t.Helper()
		now, err := s.System(t.Context(), shown)
		check(err)
		return now
	}
	before := system()
	for _, c := range []struct {
		name   string
		change func()
		digest bool // whether what is the same on all machines changes
		exact  bool
	}{
		{"nothing", func() {}, false, false},
		{"a file that is read", func() { _, err := os.ReadFile(at("lib/tool")); check(err) }, false, false},
		{"a file replaced by one of its size", func() {
			write("new", "new")
			check(os.Chtimes(at("new"), time.Time{}, time.Unix(1, 0)))
			check(os.Rename(at("new"), at("lib/deep/libc.so")))
		}, false, true},
		{"a file written over in its place", func() { write("lib/tool", "lost") }, false, true},
		{"a longer file", func() { write("lib/tool", "longer") }, true, true},
		{"another mode", func() { check(os.Chmod(at("lib/tool"), 0o755)) }, true, true},
		{"a new directory", func() { check(os.Mkdir(at("share"), 0o755)) }, false, false},
		{"a file in it", func() { write("share/file", "") }, true, true},
		{"a link", func() { check(os.Symlink("tool", at("lib/link"))) }, true, true},
		{"another directory in the place of one", func() {
			check(os.Rename(at("lib"), at("lib.old")))
			check(os.MkdirAll(at("lib/deep"), 0o755))
		}, true, true},
		{"a file in the directory that was moved", func() { write("lib.old/tool", "moved!") }, false, true},
		{"what Python keeps", func() { check(os.Mkdir(at("lib/__pycache__"), 0o755)); write("lib/__pycache__/x.pyc", "") }, false, false},
		{"a file that is removed", func() { check(os.Remove(at("share/file"))) }, true, true},
	} {
		c.change()
		now := system()
		if changed := now.Digest != before.Digest; changed != c.digest {
			t.Errorf("%s: the digest has changed: %v, want %v", c.name, changed, c.digest)
		}
		if changed := now.Exact != before.Exact; changed != c.exact {
			t.Errorf("%s: the exact digest has changed: %v, want %v", c.name, changed, c.exact)
		}
		if fresh, err := At(t.TempDir()).System(t.Context(), shown); err != nil || fresh != now {
			t.Errorf("%s: who looks for the first time sees %+v, %v; want %+v", c.name, fresh, err, now)
		}
		before = now
	}
	looks := func() int {
		for _, v := range s.system {
			return v.looks
		}
		return 0
	}
	n := looks()
	for range 10 {
		system()
	}
	if looks() != n {
		t.Errorf("it was looked at %d times more, and nothing had changed", looks()-n)
	}
}

// TestSystemDigest: exports of other servers have the digest, so that its form
// stays what it is.
func TestSystemDigest(t *testing.T) {
	host := t.TempDir()
	for _, dir := range []string{"a", "a/b", "a-b", "z", "z/__pycache__"} {
		if err := os.Mkdir(filepath.Join(host, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		for mode, name := range map[fs.FileMode]string{0o644: "plain", 0o755: "b program", 0o755 | fs.ModeSetuid | fs.ModeSticky: "c-\xff"} {
			path := filepath.Join(host, dir, name)
			if err := errors.Join(os.WriteFile(path, []byte(dir), 0o600), os.Chmod(path, mode), os.Symlink(name, path+"-link")); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := sha256.New()
	err := filepath.WalkDir(host, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		switch {
		case d.IsDir() && d.Name() == "__pycache__":
			return fs.SkipDir
		case d.Type().IsRegular():
			fmt.Fprintf(h, "%q %s %d\n", path, info.Mode(), info.Size())
		case d.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			fmt.Fprintf(h, "%q %q\n", path, target)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := At(t.TempDir())
	system, err := s.System(t.Context(), Template{Trees: []layer.Tree{{Name: "usr", Lowers: []string{host}}}})
	if want := hex.EncodeToString(h.Sum(nil)); err != nil || system.Digest != want {
		t.Errorf("digest %s, %v; want %s", system.Digest, err, want)
	}
}

// TestSystemWithoutWatches: where the kernel does not watch, each call looks.
func TestSystemWithoutWatches(t *testing.T) {
	host := t.TempDir()
	v := &view{roots: []string{host}}
	if _, err := v.system(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.watch.failed = true
	if _, err := v.system(t.Context()); err != nil || v.looks != 2 {
		t.Errorf("%v after %d looks, want 2", err, v.looks)
	}
}

// BenchmarkSystem is what a wake pays: for the host's own directories when
// nothing has changed, and for the first look.
func BenchmarkSystem(b *testing.B) {
	host := Template{Trees: []layer.Tree{{Name: "usr", Lowers: []string{"/usr", "/opt"}}}}
	b.Run("unchanged", func(b *testing.B) {
		s := At(b.TempDir())
		if _, err := s.System(b.Context(), host); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := s.System(b.Context(), host); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if _, err := At(b.TempDir()).System(b.Context(), host); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestLookAhead: who has looked ahead keeps the first sandbox from waiting.
func TestLookAhead(t *testing.T) {
	s, _ := imageStore(t, nil, tarOf(t, file{name: "bin/x", data: "x"}))
	looks := func() (n int) {
		for _, v := range s.system {
			n += v.looks
		}
		return n
	}
	if err := LookAhead(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	n := looks()
	base, err := s.Resolve("base")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Closed(t.Context(), base); err != nil || n == 0 || looks() != n {
		t.Errorf("%v; looked %d times ahead, and %d times in all", err, n, looks())
	}
}
