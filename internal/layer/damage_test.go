package layer

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// checkpoint is an image and two layers, as a pause leaves them.
type checkpoint struct {
	*rig
	image   string // digest
	stack   []string
	digests map[string]string
}

func newCheckpoint(t *testing.T) *checkpoint {
	c := &checkpoint{rig: newRig(t), digests: map[string]string{}}
	rng := rand.NewChaCha8([32]byte{1})
	noise := func(n int) string {
		b := make([]byte, n)
		rng.Read(b)
		return string(b)
	}
	c.frozen("a", func(at string) {
		c.write(filepath.Join(at, "etc/name"), "from a")
		c.write(filepath.Join(at, "home/data"), noise(2*ChunkSize+77))
		c.must(os.Remove(filepath.Join(at, "usr/bin/tool")))
		c.must(os.Symlink("data", filepath.Join(at, "home/link")))
		c.must(unix.Mkfifo(filepath.Join(at, "home/fifo"), 0o600))
	})
	c.frozen("b", func(at string) {
		c.must(os.Rename(filepath.Join(at, "etc"), filepath.Join(at, "etc2")))
		c.must(os.Chmod(filepath.Join(at, "home/data"), 0o640))
		c.write(filepath.Join(at, "home/name with\nnewline and \xff"), "odd")
		sparse := filepath.Join(at, "home/sparse")
		c.write(sparse, "begins")
		c.must(os.Truncate(sparse, 1<<40)) // must not be read from end to end
		c.must(unix.Setxattr(filepath.Join(at, "home/sparse"), "trusted.note", []byte("kept"), 0))
	})
	c.image = c.seal("image", map[string][]byte{"pages": []byte(noise(ChunkSize + 5)), "state": []byte(noise(300))})
	c.must(c.check())
	return c
}

// frozen adds a layer with the changes that f makes.
func (c *checkpoint) frozen(id string, f func(at string)) {
	c.t.Helper()
	at := filepath.Join(c.dir, "mnt-"+id)
	c.must(c.Mount(at, c.trees, c.stack, id))
	f(at)
	frozen, err := c.Freeze(c.t.Context(), id)
	c.must(err)
	c.must(Unmount(at))
	c.stack = append(c.stack, id)
	c.digests[id] = frozen.Digest
}

// check is what a resume asks for.
func (c *checkpoint) check() error {
	_, err := c.Verify("image", c.image)
	return errors.Join(err, c.VerifyStack(c.t.Context(), c.stack, c.digests))
}

// wantDamaged says how the damage that was done should have been found.
func (c *checkpoint) wantDamaged(what string) {
	c.t.Helper()
	e, ok := errors.AsType[*errdef.Error](c.check())
	if !ok || e.Code != "checkpoint_damaged" || e.Class != errdef.Unavailable || e.Remedy == "" {
		c.t.Errorf("%s: %v, want it found and explained", what, c.check())
	}
}

// files returns the regular files with something in them.
func (c *checkpoint) files() (paths []string) {
	for _, top := range []string{c.images, c.layers} {
		c.must(filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.Name() == workDir {
				return fs.SkipDir
			}
			if err == nil && d.Type().IsRegular() {
				paths = append(paths, path)
			}
			return err
		}))
	}
	return paths
}

// TestEveryFlippedByteIsFound flips one bit at many places, in every file of a
// checkpoint.
func TestEveryFlippedByteIsFound(t *testing.T) {
	flips := testmode.Choose(100, 1000)
	c := newCheckpoint(t)
	rng := testmode.Rand(12)
	paths := c.files()
	for i := range flips {
		path := paths[i%len(paths)]
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		c.must(err)
		info, err := f.Stat()
		c.must(err)
		at, bit := rng.Int64N(info.Size()), byte(1)<<rng.IntN(8)
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		c.must(err)
		_, err = f.WriteAt([]byte{b[0] ^ bit}, at)
		c.must(err)
		c.wantDamaged(strings.TrimPrefix(path, c.dir))
		_, err = f.WriteAt(b[:], at)
		c.must(errors.Join(err, f.Close()))
		if t.Failed() {
			t.Fatalf("bit %08b at %d of %d", bit, at, info.Size())
		}
	}
	c.must(c.check())
	t.Logf("%d flips in %d files", flips, len(paths))
}

// TestEveryTruncationIsFound cuts every file at a few places, and removes it.
func TestEveryTruncationIsFound(t *testing.T) {
	c := newCheckpoint(t)
	rng := testmode.Rand(13)
	for _, path := range c.files() {
		info, err := os.Stat(path)
		c.must(err)
		if info.Size() > 1<<30 {
			continue // the sparse one, below
		}
		data, err := os.ReadFile(path)
		c.must(err)
		for _, size := range []int64{0, info.Size() - 1, rng.Int64N(info.Size())} {
			c.must(os.Truncate(path, size))
			c.wantDamaged("truncated " + strings.TrimPrefix(path, c.dir))
		}
		c.must(os.WriteFile(path, append(data, 0), 0o600))
		c.wantDamaged("longer " + strings.TrimPrefix(path, c.dir))
		c.must(os.Remove(path))
		c.wantDamaged("removed " + strings.TrimPrefix(path, c.dir))
		c.must(os.WriteFile(path, data, info.Mode()))
		c.must(unix.Chmod(path, uint32(info.Mode().Perm())))
		c.must(c.check())
	}
}

// TestOtherDamageToLayersIsFound changes what is no content of a file.
func TestOtherDamageToLayersIsFound(t *testing.T) {
	home := func(c *checkpoint, name string) string { return filepath.Join(c.LayerDir("b"), "root/home", name) }
	for name, damage := range map[string]func(c *checkpoint) error{
		"mode":          func(c *checkpoint) error { return os.Chmod(home(c, "data"), 0o777) },
		"owner":         func(c *checkpoint) error { return os.Lchown(home(c, "data"), 7, 7) },
		"attribute":     func(c *checkpoint) error { return unix.Setxattr(home(c, "sparse"), "trusted.note", []byte("Kept"), 0) },
		"size":          func(c *checkpoint) error { return os.Truncate(home(c, "sparse"), 1<<39) },
		"a file added":  func(c *checkpoint) error { return os.WriteFile(home(c, "new"), nil, 0o600) },
		"end of a hole": func(c *checkpoint) error { return writeAt(home(c, "sparse"), 1<<40-1, "x") },
		"link": func(c *checkpoint) error {
			path := filepath.Join(c.LayerDir("a"), "root/home/link")
			return errors.Join(os.Remove(path), os.Symlink("/etc/shadow", path))
		},
		"a removal forgotten": func(c *checkpoint) error { return os.Remove(filepath.Join(c.LayerDir("a"), "usr/bin/tool")) },
		"a directory":         func(c *checkpoint) error { return os.RemoveAll(filepath.Join(c.LayerDir("a"), "root")) },
		"a whole layer":       func(c *checkpoint) error { return os.RemoveAll(c.LayerDir("a")) },
		"layers swapped": func(c *checkpoint) error {
			a, b, x := c.LayerDir("a"), c.LayerDir("b"), c.LayerDir("x")
			return errors.Join(os.Rename(a, x), os.Rename(b, a), os.Rename(x, b))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCheckpoint(t)
			c.must(damage(c))
			c.wantDamaged(name)
		})
	}
}

func writeAt(path string, at int64, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), at)
	return errors.Join(err, f.Close())
}

// TestCopiedLayerIsTheSame copies a layer as a backup does: with other times
// and inodes, and without its holes.
func TestCopiedLayerIsTheSame(t *testing.T) {
	r := newRig(t)
	at := r.mount(nil, "a")
	path := filepath.Join(at, "etc/holes")
	r.write(path, "x")
	r.must(os.Truncate(path, 3*ChunkSize))
	f, err := r.Freeze(t.Context(), "a")
	r.must(err)
	behind := filepath.Join(r.LayerDir("a"), "root/etc/holes")
	data, err := os.ReadFile(behind)
	r.must(err)
	r.must(os.Remove(behind))
	r.must(os.WriteFile(behind, data, 0o644))
	r.must(r.VerifyLayer(t.Context(), "a", f.Digest))
}

// TestLayerOfOlderVersion has no digest: then it must at least be there.
func TestLayerOfOlderVersion(t *testing.T) {
	c := newCheckpoint(t)
	c.must(os.Remove(filepath.Join(c.LayerDir("a"), listingName)))
	c.must(c.VerifyLayer(t.Context(), "a", ""))
	c.must(c.RemoveLayer("a"))
	if err := c.VerifyLayer(t.Context(), "a", ""); err == nil {
		t.Error("a layer that is missing is good")
	}
}
