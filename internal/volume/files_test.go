package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// newFiles returns an empty volume and its directory, beside which there is a
// file "secret" that nothing may reach.
func newFiles(t *testing.T) (*Files, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "volumes"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Make("v"), os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	f, err := s.Files("v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, s.Dir("v")
}

func put(t *testing.T, f *Files, p, text string) Entry {
	t.Helper()
	e, err := f.Write(p, strings.NewReader(text), Attributes{}, MakeParents)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func contents(f *Files, p string) (string, error) {
	file, _, err := f.Open(p)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	return string(data), err
}

func wantContents(t *testing.T, f *Files, p, want string) {
	t.Helper()
	if got, err := contents(f, p); err != nil || got != want {
		t.Errorf("%s has %q, %v; want %q", p, got, err, want)
	}
}

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestWriteAndRead(t *testing.T) {
	f, dir := newFiles(t)
	e := put(t, f, "/a/b/file", "text")
	if e.Path != "/a/b/file" || e.Kind != File || e.Size != 4 || e.Mode != 0o644 || e.UID != os.Getuid() || time.Since(e.Mtime) > time.Hour {
		t.Errorf("made %+v", e)
	}
	wantContents(t, f, "a/b/file", "text")
	if d, err := f.Stat("a/b/"); err != nil || d.Kind != Directory || d.Mode != 0o755 || d.Path != "/a/b" {
		t.Errorf("its directory is %+v, %v", d, err)
	}
	if _, err := f.Write("/x/file", strings.NewReader(""), Attributes{}, NeedParents); err == nil {
		t.Error("parents were made that nobody asked for")
	} else {
		wantCode(t, err, "volume_path_not_found")
	}

	// What is written in its place has its owner and mode; who has the old one
	// keeps that.
	if err := os.Link(filepath.Join(dir, "a/b/file"), filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o4750)
	if e, err := f.Change("/a/b/file", Attributes{Mode: &mode}); err != nil || e.Mode != mode {
		t.Errorf("changed to %+v, %v", e, err)
	}
	if e := put(t, f, "/a/b/file", "new"); e.Mode != mode || e.Size != 3 {
		t.Errorf("written to %+v", e)
	}
	wantContents(t, f, "/a/b/file", "new")
	wantContents(t, f, "/other", "text")

	broken := iotest.ErrReader(errors.New("gone"))
	_, err := f.Write("/a/b/file", broken, Attributes{}, NeedParents)
	if _, ok := errors.AsType[*ReadError](err); !ok {
		t.Errorf("a body that breaks off: %v", err)
	}
	wantContents(t, f, "/a/b/file", "new")
	if _, err := f.Write("/none/file", broken, Attributes{}, MakeParents); err == nil {
		t.Error("a body that breaks off was written")
	}
	if names, err := os.ReadDir(f.staging); err != nil || len(names) > 0 {
		t.Errorf("left of what was not written: %v, %v", names, err)
	}
	if list, err := f.List("/", 1); err != nil || len(list) != 2 {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestMkdir(t *testing.T) {
	f, _ := newFiles(t)
	mode := uint32(0o1777)
	if e, err := f.Mkdir("/d", Attributes{Mode: &mode}, NeedParents); err != nil || e.Mode != mode || e.Kind != Directory {
		t.Errorf("made %+v, %v", e, err)
	}
	_, err := f.Mkdir("/d", Attributes{}, NeedParents)
	wantCode(t, err, "volume_path_conflict")
	if e, err := f.Mkdir("/d", Attributes{}, MakeParents); err != nil || e.Mode != mode {
		t.Errorf("a directory that is there became %+v, %v", e, err)
	}
	_, err = f.Mkdir("/x/y", Attributes{}, NeedParents)
	wantCode(t, err, "volume_path_not_found")
	if e, err := f.Mkdir("/x/y/z", Attributes{}, MakeParents); err != nil || e.Path != "/x/y/z" {
		t.Errorf("made %+v, %v", e, err)
	}
	put(t, f, "/file", "")
	for _, p := range []string{"/file", "/file/x"} {
		_, err = f.Mkdir(p, Attributes{}, MakeParents)
		wantCode(t, err, "volume_path_invalid")
	}
	if e, err := f.Mkdir("/", Attributes{}, MakeParents); err != nil || e.Path != "/" {
		t.Errorf("the volume itself: %+v, %v", e, err)
	}
}

func TestList(t *testing.T) {
	f, dir := newFiles(t)
	for _, p := range []string{"/b/c/d", "/a", "/b/a"} {
		put(t, f, p, "")
	}
	for name, target := range map[string]string{"in": "b", "out": "/", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	paths := func(p string, depth int) string {
		t.Helper()
		list, err := f.List(p, depth)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range list {
			all = append(all, e.Path+strings.Repeat("->", min(1, len(e.Target)))+e.Target)
		}
		return strings.Join(all, " ")
	}
	const top = "/a /b "
	const links = "/in->b /loop->loop /out->/"
	for _, c := range []struct {
		path  string
		depth int
		want  string
	}{
		{"/", 1, top + links},
		{"/", 2, top + "/b/a /b/c " + links},
		{"/", 9, top + "/b/a /b/c /b/c/d " + links},
		{"b", 1, "/b/a /b/c"},
		{"/in", 2, "/in/a /in/c /in/c/d"},
	} {
		if got := paths(c.path, c.depth); got != c.want {
			t.Errorf("%s, %d levels: %s; want %s", c.path, c.depth, got, c.want)
		}
	}
	_, err := f.List("/a", 1)
	wantCode(t, err, "volume_path_invalid")
	_, err = f.List("/none", 1)
	wantCode(t, err, "volume_path_not_found")
}

func TestRemove(t *testing.T) {
	f, dir := newFiles(t)
	put(t, f, "/a/b", "")
	put(t, f, "/keep", "kept")
	if err := os.Symlink("../keep", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove("/a"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, f.Remove("/a"), "volume_path_not_found")
	wantContents(t, f, "/keep", "kept")
	for _, p := range []string{"/", ".", "/x/.."} {
		wantCode(t, f.Remove(p), "volume_path_invalid")
	}
}

// TestRemoveDeep removes a directory that is deeper than there are descriptors, and
// that no path leads through: os.Root would take a descriptor for each level, from all
// tenants of the server.
func TestRemoveDeep(t *testing.T) {
	f, dir := newFiles(t)
	put(t, f, "/kept", "kept")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o755), os.Symlink("../kept", filepath.Join(dir, "d", "link"))); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, filepath.Join(dir, "d"), treetest.Hostile)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	err := f.Remove("/d")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Errorf("%.300v", err)
	}
	wantCode(t, f.Remove("/d"), "volume_path_not_found")
	wantContents(t, f, "/kept", "kept")
}

// TestListIsBounded: neither long paths nor long links make a list larger than it may
// be.
func TestListIsBounded(t *testing.T) {
	f, dir := newFiles(t)
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 14)
	if _, err := f.Mkdir("/long/"+long, Attributes{}, MakeParents); err != nil {
		t.Fatal(err)
	}
	const n = maxPathBytes/3500 + 1
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, "long", long, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "links"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := os.Symlink(long, filepath.Join(dir, "links", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"/long/" + long, "/links"} {
		list, err := f.List(p, 1)
		wantCode(t, err, "volume_path_invalid")
		if len(list) > 0 {
			t.Errorf("%d entries come with the error", len(list))
		}
	}
	if list, err := f.List("/", 1); err != nil || len(list) != 2 {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// operations are all that is done with a path.
func operations(f *Files) map[string]func(p string) error {
	mode := uint32(0o777)
	return map[string]func(p string) error{
		"stat": func(p string) error { _, err := f.Stat(p); return err },
		"open": func(p string) error { _, err := contents(f, p); return err },
		"list": func(p string) error { _, err := f.List(p, 3); return err },
		"write": func(p string) error {
			_, err := f.Write(p, strings.NewReader("overwritten"), Attributes{}, MakeParents)
			return err
		},
		"mkdir":  func(p string) error { _, err := f.Mkdir(p+"/made", Attributes{}, MakeParents); return err },
		"change": func(p string) error { _, err := f.Change(p, Attributes{Mode: &mode}); return err },
		"remove": func(p string) error { return f.Remove(p) },
	}
}

// untouched fails if something beside the volume is not as it was.
func untouched(t *testing.T, dir string) {
	t.Helper()
	outside := filepath.Dir(filepath.Dir(dir))
	names, err := os.ReadDir(outside)
	if err != nil || len(names) != 2 {
		t.Errorf("beside the volumes there are %v, %v", names, err)
	}
	secret := filepath.Join(outside, "secret")
	info, err := os.Stat(secret)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the secret is %v, %v", info, err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "secret" {
		t.Errorf("the secret is %q, %v", data, err)
	}
}

// TestNothingLeadsOut tries every operation on paths and links that would.
func TestNothingLeadsOut(t *testing.T) {
	f, dir := newFiles(t)
	secret := filepath.Join(filepath.Dir(filepath.Dir(dir)), "secret")
	for name, target := range map[string]string{
		"absolute": secret, "relative": "../../secret", "up": "../..", "root": "/", "self": dir, "magic": "/proc/self/root",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for op, do := range operations(f) {
		for _, p := range []string{"up/secret", "root" + secret, "self/x", "magic" + secret, "up/new/x"} {
			wantCode(t, do(p), "volume_path_invalid")
		}
		if op == "stat" || op == "remove" || op == "change" {
			continue // of the links themselves
		}
		for _, p := range []string{"absolute", "relative"} {
			wantCode(t, do(p), "volume_path_invalid")
		}
	}
	// Dots lead no further up than the volume.
	wantCode(t, operations(f)["open"]("../../secret"), "volume_path_not_found")
	put(t, f, "/../../x", "in")
	wantContents(t, f, "x", "in")
	untouched(t, dir)
}

// TestLinksInside follows those that stay in the volume.
func TestLinksInside(t *testing.T) {
	f, dir := newFiles(t)
	put(t, f, "/d/file", "old")
	for name, target := range map[string]string{"file": "d/file", "dir": "d", "dangling": "none", "d/up": "../link", "link": "dir/../d/file", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, f, "/file", "new")
	wantContents(t, f, "/dir/../d/file", "new")
	wantContents(t, f, "/dir/file", "new")
	put(t, f, "/dir/up", "newer") // by three links
	wantContents(t, f, "/d/file", "newer")
	put(t, f, "/d/file", "new")
	_, err := f.Write("/loop", strings.NewReader(""), Attributes{}, NeedParents)
	wantCode(t, err, "volume_path_invalid")
	_, err = f.Write("/dir", strings.NewReader(""), Attributes{}, NeedParents)
	wantCode(t, err, "volume_path_invalid")
	if e, err := f.Stat("/file"); err != nil || e.Kind != Symlink || e.Target != "d/file" {
		t.Errorf("the link is %+v, %v", e, err)
	}
	mode := uint32(0o600)
	_, err = f.Change("/file", Attributes{Mode: &mode})
	wantCode(t, err, "volume_path_invalid")
	_, err = f.Write("/dangling", strings.NewReader(""), Attributes{}, NeedParents)
	wantCode(t, err, "volume_path_conflict")
	if err := f.Remove("/file"); err != nil {
		t.Fatal(err)
	}
	wantContents(t, f, "/d/file", "new")
}

// TestOthersAreNeverOpened meets what would make an open wait.
func TestOthersAreNeverOpened(t *testing.T) {
	f, dir := newFiles(t)
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// By a short name: the volume's is too long for a socket.
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: inFD(f.dir) + "/socket"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/fifo", "/socket"} {
		if e, err := f.Stat(p); err != nil || e.Kind != Unknown {
			t.Errorf("%s is %+v, %v", p, e, err)
		}
		for _, op := range []string{"open", "write", "list"} {
			wantCode(t, operations(f)[op](p), "volume_path_invalid")
		}
		if err := operations(f)["change"](p); err != nil {
			t.Error(err)
		}
	}
	if list, err := f.List("/", 2); err != nil || len(list) != 2 {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// TestHostileSandbox has something swap a directory for a link that leads out, as
// fast as it can, below every operation.
func TestHostileSandbox(t *testing.T) {
	f, dir := newFiles(t)
	outside := filepath.Dir(filepath.Dir(dir))
	d, link := filepath.Join(dir, "d"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(d, 0o755), os.Symlink(outside, link)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swaps := 0
	swapping.Go(func() {
		for ; ; swaps++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("swap: %v", err)
				return
			}
		}
	})
	// "remove" of the directory itself would end the game.
	ops := operations(f)
	seen := map[string]bool{}
	for n := 0; n < 2000 || !seen["volume_path_invalid"] && n < 200_000; n++ {
		for op, do := range ops {
			err := do("d/secret")
			e, ok := errors.AsType[*errdef.Error](err)
			if err != nil && !ok {
				t.Fatalf("%s: %v", op, err)
			}
			if ok {
				seen[e.Code] = true
			}
		}
		if text, err := contents(f, "d/secret"); err == nil && text == "secret" {
			t.Fatal("the secret was read")
		}
	}
	close(stop)
	swapping.Wait()
	if swaps == 0 || !seen["volume_path_invalid"] {
		t.Errorf("%d swaps, met %v: the race was not run", swaps, seen)
	}
	untouched(t, dir)
	if list, err := os.ReadDir(outside); err != nil || slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == "made" }) {
		t.Errorf("outside there are %v, %v", list, err)
	}
}

func TestStore(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "volumes"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	names := func(want ...string) {
		t.Helper()
		if got, err := s.Names(); err != nil || !slices.Equal(got, want) {
			t.Errorf("Names = %q, %v; want %q", got, err, want)
		}
	}
	names()
	if err := errors.Join(s.Make("a"), s.Make("b")); err != nil {
		t.Fatal(err)
	}
	if err := s.Make("a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	names("a", "b")
	if err := os.WriteFile(filepath.Join(s.Dir("a"), "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s.Empty("a") || !s.Empty("b") || s.Empty("none") {
		t.Error("a has a file, b has none, and there is no other")
	}
	aside, err := s.Discard("a")
	if err != nil {
		t.Fatal(err)
	}
	names(aside, "b")
	for range 2 {
		if err := s.Recall("a"); err != nil {
			t.Error(err)
		}
	}
	names("a", "b")
	for range 2 {
		if err := s.Remove("a"); err != nil {
			t.Error(err)
		}
	}
	names("b")
	if _, err := s.Files("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open one that is gone: %v", err)
	}
}
