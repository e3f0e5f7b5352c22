package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

const skipped = "run"

// source makes a directory with all that a state directory may have in it.
func source(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "source")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	must(os.MkdirAll(in("layers/a/deep"), 0o755))
	must(os.MkdirAll(in(skipped), 0o755))
	must(os.WriteFile(in(skipped+"/socket"), []byte("x"), 0o600))
	must(os.WriteFile(in("layers/run"), []byte("not at the top"), 0o4711))
	must(os.Chmod(in("layers/run"), 0o4711))
	must(os.Chown(in("layers/run"), 1234, 4321))
	must(os.WriteFile(in("layers/a/"+"name\nwith a line\xff"), nil, 0o600))
	must(os.Symlink("../../nowhere", in("layers/a/link")))
	must(unix.Mknod(in("layers/a/removed"), unix.S_IFCHR, 0))
	must(unix.Mkfifo(in("layers/a/pipe"), 0o600))
	must(os.WriteFile(in("images"), bytes.Repeat([]byte("page"), 100_000), 0o600))
	must(os.Link(in("images"), in("layers/z-the-same")))
	must(unix.Lsetxattr(in("layers/a"), "trusted.overlay.opaque", []byte("y"), 0))
	must(unix.Lsetxattr(in("layers/run"), "user.empty", nil, 0))
	f, err := os.Create(in("sparse"))
	must(err)
	for _, at := range []int64{block + 10, 5 << 30} {
		_, err = f.WriteAt([]byte("data"), at)
		must(err)
	}
	must(errors.Join(f.Truncate(6<<30), f.Close()))
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	must(os.Chtimes(in("layers/a/deep"), old, old))
	must(os.Chtimes(in("layers"), old, old))
	return dir
}

func skip(names ...string) bool { return len(names) == 1 && names[0] == skipped }

// create makes a backup of a directory of which nothing is required.
func create(ctx context.Context, src, dir string) (Summary, error) {
	return Create(ctx, Source{Dir: src, Skip: skip}, dir, func() error { return nil })
}

// write does so into a stream.
func write(ctx context.Context, src string, to io.Writer) (Summary, error) {
	return Write(ctx, Source{Dir: src, Skip: skip}, to, func() error { return nil })
}

// listing is all that is in a tree.
func listing(t *testing.T, dir string) (all []any) {
	t.Helper()
	if _, err := newCopier(Source{Dir: dir, Skip: skip}, "").copy(t.Context(), func(e any) error { all = append(all, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func diskUse(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestThereAndBack(t *testing.T) {
	src, dir := source(t), filepath.Join(t.TempDir(), "backup")
	target := src
	want := listing(t, src)
	made, err := create(t.Context(), src, dir)
	if err != nil {
		t.Fatal(err)
	}
	if made.Files != int64(len(want)) || made.Bytes < 400_000 || made.Bytes > 1<<20 {
		t.Errorf("made %+v of %d entries", made, len(want))
	}
	if verified, err := Verify(t.Context(), dir); err != nil || verified != made {
		t.Errorf("verified %+v, %v; want %+v", verified, err, made)
	}
	if _, err := Restore(t.Context(), dir, target+"x"); !errdef.Is(err, errdef.Invalid) || !strings.Contains(err.Error(), src) {
		t.Errorf("a restore to another path: %v", err)
	}
	kept := src + "-kept"
	if err := os.Rename(src, kept); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(target, 0o755); err != nil { // an empty one is as good as none
		t.Fatal(err)
	}
	if restored, err := Restore(t.Context(), dir, target); err != nil || restored != made {
		t.Fatalf("restored %+v, %v; want %+v", restored, err, made)
	}
	if got := listing(t, target); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, path := range []string{filepath.Join(dir, stateName, "sparse"), filepath.Join(target, "sparse")} {
		if n := diskUse(t, path); n > 1<<20 {
			t.Errorf("%s takes %d bytes", path, n)
		}
	}
	// Nothing is put beside what is there.
	for _, err := range []error{
		func() error { _, err := create(t.Context(), kept, dir); return err }(),
		func() error { _, err := Restore(t.Context(), dir, target); return err }(),
	} {
		if !errdef.Is(err, errdef.Conflict) || !strings.Contains(err.Error(), "not empty") {
			t.Errorf("a directory with something in it: %v", err)
		}
	}
	if got := listing(t, target); !reflect.DeepEqual(got, want) {
		t.Errorf("a refused restore has changed the target")
	}
}

// TestDamage: whatever is changed of a backup is found, and nothing is restored.
func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"a byte": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, stateName, "images"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("!"), 300_000)
			return errors.Join(err, f.Close())
		},
		"a byte in a hole": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, stateName, "sparse"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("!"), 1<<30)
			return errors.Join(err, f.Close())
		},
		"the length":   func(dir string) error { return os.Truncate(filepath.Join(dir, stateName, "sparse"), 5<<30+1<<20) },
		"a file less":  func(dir string) error { return os.Remove(filepath.Join(dir, stateName, "layers/a/link")) },
		"the last one": func(dir string) error { return os.Remove(filepath.Join(dir, stateName, "sparse")) },
		"a file more":  func(dir string) error { return os.WriteFile(filepath.Join(dir, stateName, "zzz"), nil, 0o600) },
		"a mode":       func(dir string) error { return os.Chmod(filepath.Join(dir, stateName, "layers/run"), 0o777) },
		"an owner":     func(dir string) error { return os.Chown(filepath.Join(dir, stateName, "layers/run"), 0, 0) },
		"an attribute": func(dir string) error {
			return unix.Lremovexattr(filepath.Join(dir, stateName, "layers/a"), "trusted.overlay.opaque")
		},
		"the manifest's end": func(dir string) error { return os.Truncate(filepath.Join(dir, manifest), 700) },
		"a line of the manifest": func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, manifest))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, manifest), bytes.Replace(data, []byte(`"uid":1234`), []byte(`"uid":1235`), 1), 0o600)
		},
		"no manifest": func(dir string) error { return os.Remove(filepath.Join(dir, manifest)) },
	} {
		t.Run(name, func(t *testing.T) {
			src, dir := source(t), filepath.Join(t.TempDir(), "backup")
			if _, err := create(t.Context(), src, dir); err != nil {
				t.Fatal(err)
			}
			target := src
			if err := errors.Join(damage(dir), os.RemoveAll(src)); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(t.Context(), dir); err == nil {
				t.Error("it is verified")
			}
			if _, err := Restore(t.Context(), dir, target); err == nil {
				t.Error("it is restored")
			}
			for _, path := range []string{target, target + ".restoring"} {
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is there: %v", path, err)
				}
			}
		})
	}
}

// TestCutOff: a backup that does not end is none, and a restore that does not end
// leaves no target.
func TestCutOff(t *testing.T) {
	src := source(t)
	whole := filepath.Join(t.TempDir(), "whole")
	sum, err := create(t.Context(), src, whole)
	if err != nil {
		t.Fatal(err)
	}
	kept, target := src+"-kept", src
	if err := os.Rename(src, kept); err != nil {
		t.Fatal(err)
	}
	for n := range sum.Files {
		dir := filepath.Join(t.TempDir(), "backup")
		if _, err := create(after(t, n), kept, dir); !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d: %v", n, err)
		}
		if _, err := Restore(t.Context(), dir, target); !errdef.Is(err, errdef.Invalid) || !strings.Contains(err.Error(), "is no backup") {
			t.Errorf("after %d: %v", n, err)
		}
		if _, err := Restore(after(t, n), whole, target); !errors.Is(err, context.Canceled) {
			t.Errorf("a restore ends after %d: %v", n, err)
		}
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %d there is a target", n)
		}
	}
	// As SIGKILL leaves it.
	if err := os.Mkdir(target+".restoring", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), whole, target); !errdef.Is(err, errdef.Conflict) || !strings.Contains(fmt.Sprint(err), ".restoring") {
		t.Errorf("over the remains of another: %v", err)
	}
}

// counted is a context that ends once it was looked at so often.
type counted struct {
	context.Context
	left int64
}

func (c *counted) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func after(t *testing.T, n int64) context.Context { return &counted{t.Context(), n} }
