package backup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// seen is what a tree has of one name, found without the code that copies. What a
// file system decides for itself is left out.
type seen struct {
	Name           string
	Depth          int
	Mode, UID, GID uint32
	Rdev           uint64
	Links          uint64 // of all but directories
	Size           int64  // of all but directories
	Mtime          unix.Timespec
	Target, Attrs  string
	Begins         string // the first bytes of a file
	First          int    // among the names of a file, the entry of the tree that has it first
}

// look returns all that is in a tree, in the order of a walk, and what it takes of
// the disk.
func look(t *testing.T, dir string) (all []seen, blocks int64) {
	t.Helper()
	first := map[uint64]int{}
	err := tree.Walk(t.Context(), dir, func(e *tree.Entry) error {
		st := &e.Stat
		s := seen{Name: e.Name, Depth: e.Depth, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Rdev: st.Rdev, Mtime: st.Mtim, First: len(all)}
		if e.Kind() != unix.S_IFDIR {
			s.Links, s.Size = uint64(st.Nlink), st.Size
			if n, ok := first[st.Ino]; ok {
				s.First = n
			}
			first[st.Ino] = s.First
		}
		blocks += st.Blocks
		err := s.lookInto(e)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, blocks
}

func (s *seen) lookInto(e *tree.Entry) (err error) {
	at := tree.ProcPath(e.At, e.Name)
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(at, list)
	if err != nil {
		return err
	}
	names := strings.Split(string(list[:n]), "\x00")
	slices.Sort(names)
	for _, name := range names[1:] { // the first is what is after the last
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(at, name, value)
		if err != nil {
			return err
		}
		s.Attrs += fmt.Sprintf("%s=%x ", name, value[:n])
	}
	switch e.Kind() {
	case unix.S_IFLNK:
		s.Target, err = os.Readlink(at)
	case unix.S_IFREG:
		f, err := e.Open()
		if err != nil {
			return err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, 64))
		s.Begins = string(data)
		return err
	}
	return err
}

// hostile makes a source with a hostile tree, deeper and with longer paths than the
// kernel takes, and with all that a file can have at the bottom of it.
func hostile(t *testing.T, s treetest.Shape) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "source")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, dir, s)
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	bottom, err := tree.OpenBelow(top, "long"+strings.Repeat("/"+strings.Repeat("n", 250), s.Long), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer bottom.Close()
	if err := dressUp(int(bottom.Fd())); err != nil {
		t.Fatal(err)
	}
	return dir
}

// dressUp makes what has owners, times, attributes and capabilities of its own.
func dressUp(at int) error {
	in := func(name string) string { return tree.ProcPath(at, name) }
	for _, err := range []error{
		unix.Mkdirat(at, "dir", 0o755),
		os.WriteFile(in("dir/program"), []byte("#!"), 0o600),
		os.WriteFile(in("dir/listed"), []byte("x"), 0o640),
		os.Symlink("program", in("dir/link")),
		unix.Mkfifo(in("dir/pipe"), 0o622),
		os.Link(in("dir/link"), in("dir/link2")),
		os.Link(in("dir/pipe"), in("dir/pipe2")),
		os.Link(in("dir/program"), in("program")),
		os.Lchown(in("dir/link"), 7, 8),
		os.Chown(in("dir/program"), 1234, 4321),
		os.Chmod(in("dir/program"), 0o755|fs.ModeSetuid|fs.ModeSetgid),
		unix.Lsetxattr(in("dir/program"), "security.capability", capNetRaw(), 0),
		unix.Lsetxattr(in("dir/program"), "user.empty", nil, 0),
		unix.Lsetxattr(in("dir/link"), "trusted.of-a-link", []byte{0, 0xff}, 0),
		unix.Lsetxattr(in("dir"), "trusted.overlay.opaque", []byte("y"), 0),
		unix.Lsetxattr(in("dir"), "system.posix_acl_default", defaultACL(), 0),
		unix.Chown(in("dir"), 5, 6),
		unix.Chmod(in("dir"), 0o3771),
	} {
		if err != nil {
			return err
		}
	}
	for i, name := range []string{"dir/program", "dir/link", "dir/pipe", "dir", "."} {
		then := unix.Timespec{Sec: int64(1e9 + i), Nsec: 123456789}
		if err := unix.UtimesNanoAt(at, name, []unix.Timespec{then, then}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}

// capNetRaw is a file's CAP_NET_RAW, as the kernel stores it.
func capNetRaw() []byte {
	data := make([]byte, 20)
	binary.LittleEndian.PutUint32(data, 0x02000001) // version 2, effective
	binary.LittleEndian.PutUint32(data[4:], 1<<unix.CAP_NET_RAW)
	return data
}

// defaultACL lets user 99 write to whatever is made in a directory.
func defaultACL() []byte {
	data := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, ^uint32(0)}, {2, 6, 99}, {4, 5, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		data = binary.LittleEndian.AppendUint16(data, e.tag)
		data = binary.LittleEndian.AppendUint16(data, e.perm)
		data = binary.LittleEndian.AppendUint32(data, e.id)
	}
	return data
}

// TestHostileTree backs up, verifies and restores a tree that no path leads through:
// 2,200 directories deep, and 2,000 deep with names of 250 bytes. What comes back is
// what was there, and the manifest does not grow with the lengths of paths.
func TestHostileTree(t *testing.T) {
	shape := treetest.Hostile
	shape.Long = 2000
	src, dir := hostile(t, shape), filepath.Join(t.TempDir(), "backup")
	want, blocks := look(t, src)
	made, err := create(t.Context(), src, dir)
	if err != nil {
		t.Fatal(err)
	}
	if made.Files != int64(len(want)) {
		t.Errorf("%d files were backed up of %d", made.Files, len(want))
	}
	if info, err := os.Stat(filepath.Join(dir, manifest)); err != nil || info.Size() > 1024*made.Files {
		t.Errorf("the manifest of %d files has %d bytes, %v", made.Files, info.Size(), err)
	}
	if verified, err := Verify(t.Context(), dir); err != nil || verified != made {
		t.Errorf("verified %+v, %v; want %+v", verified, err, made)
	}
	kept := src + "-kept"
	if err := os.Rename(src, kept); err != nil {
		t.Fatal(err)
	}
	if restored, err := Restore(t.Context(), dir, src); err != nil || restored != made {
		t.Fatalf("restored %+v, %v; want %+v", restored, err, made)
	}
	got, restoredBlocks := look(t, src)
	if len(got) != len(want) {
		t.Fatalf("%d entries came back of %d", len(got), len(want))
	}
	differ := 0
	for i := range want {
		if got[i] != want[i] && differ < 10 {
			differ++
			t.Errorf("entry %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
	if most := blocks + 2048; restoredBlocks > most {
		t.Errorf("it takes %d blocks instead of %d", restoredBlocks, blocks)
	}
}

// TestHostileTreeIsCutOff: what is left of a restore that fails is removed, however
// deep it is.
func TestHostileTreeIsCutOff(t *testing.T) {
	src, dir := hostile(t, treetest.Shape{Deep: 1500, Long: 20, Links: 1, Wide: 1}), filepath.Join(t.TempDir(), "backup")
	if _, err := create(t.Context(), src, dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, stateName, "wide"), 0o700), tree.Remove(src)); err != nil { // the last directory
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), dir, src)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err == nil || !strings.Contains(err.Error(), "differs from its manifest") {
		t.Errorf("%v, want it found damaged", err)
	}
	for _, path := range []string{src, src + ".restoring"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
}

// TestNothingIsFollowed swaps a directory that is being copied, and one that is
// next, for links to a directory outside: what is there is not copied.
func TestNothingIsFollowed(t *testing.T) {
	for _, when := range []string{"a", "a/b", "a/b/c"} {
		dir := t.TempDir()
		src, outside := filepath.Join(dir, "source"), filepath.Join(dir, "outside")
		for _, err := range []error{
			os.MkdirAll(filepath.Join(src, "a/b"), 0o755), os.MkdirAll(filepath.Join(outside, "b"), 0o755),
			os.WriteFile(filepath.Join(src, "a/b/c"), nil, 0o600), os.WriteFile(filepath.Join(src, "a/b/d"), []byte("public"), 0o600),
			os.WriteFile(filepath.Join(outside, "b/c"), []byte("secret"), 0o600), os.WriteFile(filepath.Join(outside, "b/d"), []byte("secret"), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		n, told := strings.Count(when, "/")+1, 0
		c := newCopier(Source{Dir: src}, filepath.Join(dir, "copy"))
		_, err := c.copy(t.Context(), func(any) error {
			if told++; told != n+1 { // the top is told first
				return nil
			}
			return errors.Join(os.Rename(filepath.Join(src, "a"), filepath.Join(dir, "moved")), os.Symlink(outside, filepath.Join(src, "a")))
		})
		if when == "a" && err == nil {
			t.Errorf("swapped at %s: it is not noticed", when)
		}
		if told < n+1 {
			t.Errorf("swapped at %s: never", when)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "copy/a/b/d")); string(text) == "secret" {
			t.Errorf("swapped at %s: the copy has what is outside, %v", when, err)
		}
	}
}

// TestAllTheNamesOfAFile: a file has as many names as the file system takes, or very
// many. None of them is lost, and no other stays.
func TestAllTheNamesOfAFile(t *testing.T) {
	src, dir := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "backup")
	if err := errors.Join(os.Mkdir(src, 0o755), os.WriteFile(filepath.Join(src, "first"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	names := 1
	for ; names < 70_000; names++ {
		err := os.Link(filepath.Join(src, "first"), filepath.Join(src, fmt.Sprintf("link%05d", names)))
		if errors.Is(err, unix.EMLINK) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := create(t.Context(), src, dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, stateName))
	if err != nil || len(entries) != names {
		t.Errorf("the copy has %d names, %v; want %d", len(entries), err, names)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, stateName, "first"), &st); err != nil || int(st.Nlink) != names {
		t.Errorf("a file has %d names, %v; want %d", st.Nlink, err, names)
	}
}

// TestPagesAmongHoles: a file with a page of data in each block takes as much in the
// backup, and not a block for each.
func TestPagesAmongHoles(t *testing.T) {
	src, dir := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "backup")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(src, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const blocks = 64
	data := []byte(strings.Repeat("data", page/4))
	for i := range int64(blocks) {
		at := i*block + i%16*page // at each place of a block
		if _, err := f.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(blocks*block + 1); err != nil { // and a last one that is no whole page
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("!"), blocks*block); err != nil {
		t.Fatal(err)
	}
	if _, err := create(t.Context(), src, dir); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, stateName, "pages")
	if n, most := diskUse(t, copied), diskUse(t, f.Name())+4*page; n > most {
		t.Errorf("the copy takes %d bytes of the disk, want %d at most", n, most)
	}
	want, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs, %v", err)
	}
}

// TestOtherFormats: a manifest that this program does not read is refused.
func TestOtherFormats(t *testing.T) {
	dir := t.TempDir()
	manifests := `{"kind":"drowse backup","format":1,"source":"/x"}` + "\n" + `{"end":true}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, manifest), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(t.Context(), dir); !errdef.Is(err, errdef.Unsupported) {
		t.Errorf("%v, want it refused", err)
	}
}
