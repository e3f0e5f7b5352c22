package diff

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// rig is a store with a template of two trees.
type rig struct {
	*layer.Store
	t     *testing.T
	dir   string
	trees []layer.Tree
	stack []string
}

func newRig(t *testing.T) *rig {
	dir := t.TempDir()
	s, err := layer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Store: s, t: t, dir: dir}
	for name, files := range map[string]string{
		"root": "etc/name etc/old dir/a dir/sub/b moved/x moved/y/z gone/1 gone/2 again/1 file swap/in",
		"usr":  "bin/tool bin/other share/doc",
	} {
		for file := range strings.FieldsSeq(files) {
			r.write(filepath.Join(dir, name, file), file)
		}
		r.trees = append(r.trees, layer.Tree{Name: name, Path: "/" + strings.TrimPrefix(name, "root"), Lowers: []string{filepath.Join(dir, name)}})
	}
	if r.trees[0].Name != "root" {
		r.trees[0], r.trees[1] = r.trees[1], r.trees[0]
	}
	r.must(os.Mkdir(filepath.Join(dir, "root/usr"), 0o755))
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

// change has a sandbox change its files, and freezes what it has changed.
func (r *rig) change(top string, f func(at string)) {
	r.t.Helper()
	at := filepath.Join(r.dir, "mnt")
	r.must(r.Mount(at, r.trees, r.stack, top))
	f(at)
	r.must(layer.Unmount(at))
	r.stack = append(r.stack, top)
}

var bounds = Options{MostBytes: 1 << 30, MostEntries: 10_000, MostLinked: 1 << 20}

// archive writes all, or what the stack has changed.
func (r *rig) archive(o Options, changes bool) ([]byte, Stats, error) {
	r.t.Helper()
	below, err := r.OpenTrees(r.trees, nil)
	r.must(err)
	defer func() { r.must(below.Close()) }()
	trees := below
	if changes {
		trees, err = r.OpenTrees(r.trees, r.stack)
		r.must(err)
		defer func() { r.must(trees.Close()) }()
		o.Below = below.Trees
	}
	var out bytes.Buffer
	stats, err := Write(r.t.Context(), &out, trees.Trees, o)
	return out.Bytes(), stats, err
}

// apply does to a directory what an archive says, as the specification of images
// has it.
func (r *rig) apply(dir string, archive []byte) {
	r.t.Helper()
	in := tar.NewReader(bytes.NewReader(archive))
	made := map[string]bool{}
	for {
		h, err := in.Next()
		if err == io.EOF {
			return
		}
		r.must(err)
		at := filepath.Join(dir, h.Name)
		base := filepath.Base(at)
		if base == opaqueMark {
			entries, err := os.ReadDir(filepath.Dir(at))
			r.must(err)
			for _, e := range entries {
				if p := filepath.Join(filepath.Dir(at), e.Name()); !made[p] {
					r.must(os.RemoveAll(p))
				}
			}
			continue
		}
		if removed, is := strings.CutPrefix(base, whiteoutPrefix); is {
			p := filepath.Join(filepath.Dir(at), removed)
			if _, err := os.Lstat(p); err != nil {
				r.t.Errorf("%s removes what there is not", h.Name)
			}
			r.must(os.RemoveAll(p))
			continue
		}
		made[at] = true
		info, err := os.Lstat(at)
		if err == nil && (!info.IsDir() || h.Typeflag != tar.TypeDir) {
			r.must(os.RemoveAll(at))
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err != nil || !info.IsDir() {
				r.must(os.Mkdir(at, 0o700))
			}
			r.must(os.Chmod(at, os.FileMode(h.Mode)))
		case tar.TypeReg:
			data, err := io.ReadAll(in)
			r.must(err)
			r.must(os.WriteFile(at, data, os.FileMode(h.Mode)))
		case tar.TypeLink:
			r.must(os.Link(filepath.Join(dir, h.Linkname), at))
		case tar.TypeSymlink:
			r.must(os.Symlink(h.Linkname, at))
		case tar.TypeFifo:
			r.must(unix.Mkfifo(at, uint32(h.Mode)))
		default:
			r.t.Errorf("%s is of type %c", h.Name, h.Typeflag)
		}
	}
}

// listing is what a directory has.
func (r *rig) listing(dir string) string {
	r.t.Helper()
	var out strings.Builder
	r.must(filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := e.Info()
		r.must(err)
		out.WriteString(name + " " + info.Mode().String())
		switch info.Mode().Type() {
		case 0:
			data, err := os.ReadFile(path)
			r.must(err)
			out.WriteString(" " + string(data))
		case os.ModeSymlink:
			to, err := os.Readlink(path)
			r.must(err)
			out.WriteString(" to " + to)
		}
		out.WriteString("\n")
		return nil
	}))
	return out.String()
}

// TestChanges makes changes of each kind in one layer and then in a second over it,
// and has what is written applied to what was below.
func TestChanges(t *testing.T) {
	r := newRig(t)
	whole, _, err := r.archive(bounds, false)
	r.must(err)
	changes := []func(at string){
		func(at string) {
			r.write(at+"/etc/name", "changed")
			r.must(os.Remove(at + "/etc/old"))
			r.must(os.RemoveAll(at + "/gone"))
			r.must(os.Rename(at+"/moved", at+"/there"))
			r.must(os.RemoveAll(at + "/again"))
			r.write(at+"/again/2", "again")
			r.must(os.Remove(at + "/file"))
			r.write(at+"/file/in", "in")
			r.must(os.RemoveAll(at + "/swap"))
			r.write(at+"/swap", "file now")
			r.write(at+"/new/deep/er", "new")
			r.must(os.Link(at+"/new/deep/er", at+"/new/link"))
			r.must(os.Symlink("/etc/passwd", at+"/new/sym"))
			r.must(unix.Mkfifo(at+"/new/pipe", 0o600))
			r.must(os.Chmod(at+"/dir", 0o700))
			r.write(at+"/usr/bin/tool", "tool 2")
			r.must(os.RemoveAll(at + "/usr/share"))
		},
		func(at string) {
			r.must(os.Rename(at+"/there", at+"/moved"))
			r.must(os.RemoveAll(at + "/moved/y"))
			r.must(os.Rename(at+"/dir/sub", at+"/dir/sub2"))
			r.must(os.Rename(at+"/dir", at+"/gone"))
			r.must(os.Mkdir(at+"/dir", 0o755))
			r.must(os.Remove(at + "/new/link"))
			r.must(os.RemoveAll(at + "/file"))
			r.write(at+"/file", "file again")
			r.must(os.RemoveAll(at + "/swap"))
			r.write(at+"/swap/in", "swapped back")
			r.must(os.Rename(at+"/usr/bin", at+"/usr/sbin"))
			r.write(at+"/usr/share/doc", "back")
		},
		func(string) {},
		func(at string) {
			r.write(at+"/gone/sub2/c", "in what was moved")
			r.must(os.Rename(at+"/gone", at+"/moved/gone"))
			r.must(os.Rename(at+"/moved", at+"/dir/moved"))
		},
	}
	for i, change := range changes {
		r.change(string(rune('a'+i)), change)
		dir := t.TempDir()
		r.apply(dir, whole)
		archive, stats, err := r.archive(bounds, true)
		r.must(err)
		again, _, err := r.archive(bounds, true)
		r.must(err)
		if !bytes.Equal(archive, again) {
			t.Errorf("change %d: the same files make other bytes", i)
		}
		r.apply(dir, archive)
		at := filepath.Join(r.dir, "mnt")
		r.must(r.Mount(at, r.trees, r.stack, "look"))
		want := r.listing(at)
		r.must(layer.Unmount(at))
		r.must(r.RemoveLayer("look"))
		if got := r.listing(dir); got != want {
			t.Errorf("change %d: got\n%s\nwant\n%s", i, got, want)
		}
		if stats.Entries > 45 {
			t.Errorf("change %d has %d entries", i, stats.Entries)
		}
	}
	if left, err := os.ReadDir(filepath.Join(r.dir, "imports")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestNothingChanged(t *testing.T) {
	r := newRig(t)
	archive, stats, err := r.archive(bounds, true)
	if err != nil || stats.Entries != 0 || len(archive) == 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestHostile has a sandbox make what an archive cannot say, and what should lead a
// reader astray.
func TestHostile(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(r *rig, at string)
		o    Options
		code string
	}{
		"a mark of its own":       {func(r *rig, at string) { r.write(at+"/etc/.wh.passwd", "") }, bounds, "snapshot_unfit"},
		"a directory like a mark": {func(r *rig, at string) { r.write(at+"/x/.wh..wh..opq/y", "") }, bounds, "snapshot_unfit"},
		"an attribute with =": {func(r *rig, at string) {
			r.write(at+"/f", "")
			r.must(unix.Setxattr(at+"/f", "user.a=b", []byte("x"), 0))
		}, bounds, "snapshot_unfit"},
		"too many":  {func(r *rig, at string) { r.write(at+"/f", "") }, Options{MostBytes: 1 << 30, MostEntries: 1}, "image_too_large"},
		"too large": {func(r *rig, at string) { r.write(at+"/f", "12345") }, Options{MostBytes: 4, MostEntries: 100}, "image_too_large"},
		"long paths of files with several names": {func(r *rig, at string) {
			dir := filepath.Join(at, strings.Repeat(strings.Repeat("n", 250)+"/", 14))
			for i := range 4 {
				r.write(filepath.Join(dir, fmt.Sprint(i)), "")
				r.must(os.Link(filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i, "again"))))
			}
		}, Options{MostBytes: 1 << 30, MostEntries: 100, MostLinked: 12_000}, "image_too_large"},
		"a hole without end": {func(r *rig, at string) { r.write(at+"/f", ""); r.must(os.Truncate(at+"/f", 1<<42)) }, bounds, "image_too_large"},
		"links out": {func(r *rig, at string) {
			r.must(os.Symlink("../../../../etc", at+"/out"))
			r.must(os.RemoveAll(at + "/dir"))
			r.must(os.Symlink("/etc", at+"/dir"))
		}, bounds, ""},
		"a socket and a name \xff": {func(r *rig, at string) {
			r.must(unix.Mknod(at+"/s", unix.S_IFSOCK|0o600, 0))
			r.write(at+"/\xff\n", "")
		}, bounds, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.change("a", func(at string) { c.do(r, at) })
			archive, _, err := r.archive(c.o, true)
			e, _ := errors.AsType[*errdef.Error](err)
			if c.code == "" && err != nil || c.code != "" && (e == nil || e.Code != c.code) {
				t.Errorf("%v, want %q", err, c.code)
			}
			if strings.Contains(string(archive), "root:") {
				t.Error("it has a file of the host")
			}
		})
	}
}

// TestDeep has a tree so deep that its path is longer than the kernel takes.
func TestDeep(t *testing.T) {
	r := newRig(t)
	r.change("a", func(at string) {
		fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		r.must(err)
		name := strings.Repeat("d", 200)
		for range 30 {
			r.must(unix.Mkdirat(fd, name, 0o755))
			next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			r.must(err)
			unix.Close(fd)
			fd = next
		}
		unix.Close(fd)
	})
	_, _, err := r.archive(bounds, true)
	if e, _ := errors.AsType[*errdef.Error](err); e == nil || e.Code != "snapshot_unfit" {
		t.Error(err)
	}
}

// TestOmitted leaves out what it is told to.
func TestOmitted(t *testing.T) {
	r := newRig(t)
	o := bounds
	o.Omit = func(p string) bool { return p == "usr/bin" || p == "etc/name" }
	archive, _, err := r.archive(o, false)
	r.must(err)
	for _, name := range []string{"usr/bin", "etc/name"} {
		if bytes.Contains(archive, []byte(name)) {
			t.Errorf("%s is there", name)
		}
	}
	if !bytes.Contains(archive, []byte("usr/share/doc")) {
		t.Error("a file is not there")
	}
}

// TestKilled has what a killed process leaves removed when the store is opened.
func TestKilled(t *testing.T) {
	r := newRig(t)
	at := filepath.Join(r.dir, "imports/view-x/1/at")
	r.must(os.MkdirAll(at, 0o700))
	r.must(unix.Mount(filepath.Join(r.dir, "usr"), at, "", unix.MS_BIND, ""))
	_, err := layer.Open(r.dir)
	r.must(err)
	if _, err := os.Stat(filepath.Join(r.dir, "usr/bin/tool")); err != nil {
		t.Error("what was mounted is removed")
	}
	if left, err := os.ReadDir(filepath.Join(r.dir, "imports")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
