package layer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
)

// variety makes a layer with everything that one can have.
func variety(t *testing.T, s *Store, id string) {
	t.Helper()
	dir := s.LayerDir(id)
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(at("root/etc/deep"), 0o755), os.MkdirAll(at("usr"), 0o755), os.MkdirAll(at(".work/root/work"), 0o700))
	must(os.WriteFile(at("root/etc/plain"), []byte("plain"), 0o640), os.Chown(at("root/etc/plain"), 1000, 4_000_000_000))
	must(os.WriteFile(at("root/etc/empty"), nil, 0), os.WriteFile(at("root/etc/zz\nname \xff\xfe"), []byte("odd"), 0o600))
	must(os.WriteFile(at("root/etc/setuid"), []byte("s"), 0o755), os.Chown(at("root/etc/setuid"), 7, 8), unix.Chmod(at("root/etc/setuid"), 0o6755))
	must(unix.Setxattr(at("root/etc/plain"), "user.note", []byte("a\x00b=\xff"), 0))
	must(unix.Setxattr(at("root/etc/deep"), opaque, []byte("y"), 0), unix.Setxattr(at("root/etc"), redirect, []byte("/old/.name"), 0))
	must(unix.Setxattr(at("root/etc"), "trusted.overlay.impure", []byte("y"), 0))
	must(os.Link(at("root/etc/plain"), at("root/second")), os.Symlink("../../../../outside", at("root/link")))
	must(unix.Lchown(at("root/link"), 3, 4), unix.Mknod(at("usr/gone"), unix.S_IFCHR, 0))
	sparse, err := os.Create(at("root/sparse"))
	must(err)
	_, err = sparse.WriteAt([]byte("in the middle"), 64<<20)
	must(err, sparse.Truncate(1<<40), sparse.Close())
	old := time.Unix(1_000_000_000, 123_456_789)
	for _, name := range []string{"root/etc/plain", "root/sparse", "root/etc/deep", "root/etc", "root"} {
		must(os.Chtimes(at(name), old, old))
	}
}

// TestCopyOfALayer copies a layer with everything in it: the copy is known by
// the same digest, and in what that does not cover it is the same too.
func TestCopyOfALayer(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	variety(t, s, "from")
	before := seen(t, s.LayerDir("from"))
	frozen, err := s.Freeze(t.Context(), "from")
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage("op")
	if err != nil {
		t.Fatal(err)
	}
	w, err := st.NewLayer(0)
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	if err := s.Read(t.Context(), "from", func(e Entry, data io.Reader) error {
		bytes += e.Bytes()
		return w.Add(e, data)
	}); err != nil {
		t.Fatal(err)
	}
	if bytes > 1<<20 {
		t.Errorf("holes were read: %d bytes", bytes)
	}
	got, err := w.Close(t.Context())
	if err != nil || got.Digest != frozen.Digest || got.Bytes != frozen.Bytes {
		t.Fatalf("the copy is %+v, %v; want %+v", got, err, frozen)
	}
	if err := st.Place([]string{"to", "from"}, ""); !errors.Is(err, fs.ErrExist) || s.HasLayer("to") {
		t.Errorf("where a name is taken: %v, and the first has its place: %v", err, s.HasLayer("to"))
	}
	if err := st.Place([]string{"to"}, ""); err != nil {
		t.Fatal(err)
	}
	if err := st.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := s.VerifyLayer(t.Context(), "to", frozen.Digest); err != nil {
		t.Error(err)
	}
	if after := seen(t, s.LayerDir("to")); !slices.Equal(before, after) {
		t.Errorf("the copy differs:\n%s\nfrom\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	if left, _ := os.ReadDir(filepath.Join(filepath.Dir(s.layers), "imports")); len(left) > 0 {
		t.Errorf("left in imports: %v", left)
	}
}

// seen lists what a layer's digest does not cover: times and names of the same
// file.
func seen(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	if err := walk(t.Context(), dir, func(e *tree.Entry) error {
		rel, st := e.Path().String(), e.Stat
		if rel == "." || rel == "usr" || st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 1<<30 && st.Blocks > 1<<10 {
			return nil // the layer's own files change its directory's time
		}
		lines = append(lines, fmt.Sprintf("%q %d.%09d %d", rel, st.Mtim.Sec, st.Mtim.Nsec, st.Nlink))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestLayerWriterRefuses gives a writer what no layer has. Nothing of it may be
// made, neither in the layer nor outside.
func TestLayerWriterRefuses(t *testing.T) {
	dir := func(path string) Entry { return Entry{Path: path, Mode: unix.S_IFDIR | 0o755} }
	file := func(path string) Entry { return Entry{Path: path, Mode: unix.S_IFREG | 0o644} }
	link := func(path, target string) Entry { return Entry{Path: path, Mode: unix.S_IFLNK | 0o777, Target: target} }
	with := func(e Entry, f func(*Entry)) Entry { f(&e); return e }
	attribute := func(e Entry, name, value string) Entry {
		return with(e, func(e *Entry) { e.Attributes = map[string]string{name: value} })
	}
	deep := strings.TrimSuffix(strings.Repeat("a/", maxPath/2+1), "/")
	base := []Entry{dir("."), dir("root"), link("root/link", "/tmp"), file("root/file"), dir("root/dir")}
	for name, bad := range map[string][]Entry{
		"up":                    {file("../x")},
		"up and down":           {file("root/../../x")},
		"up inside":             {file("root/dir/../x")},
		"absolute":              {file("/etc/x")},
		"empty":                 {file("")},
		"double slash":          {file("root//x")},
		"dot":                   {file("root/./x")},
		"itself again":          {dir(".")},
		"NUL":                   {file("root/a\x00b")},
		"long name":             {file("root/" + strings.Repeat("a", 256))},
		"deep":                  {file(deep)},
		"the store's own":       {file(".listing")},
		"the store's own dir":   {dir(".work")},
		"file beside the trees": {file("x")},
		"link beside the trees": {link("tmp", "/tmp")},
		"through a link":        {file("root/link/x")},
		"dir through a link":    {dir("root/link/x")},
		"through a file":        {file("root/file/x")},
		"without its directory": {file("root/nowhere/x")},
		"after its directory":   {dir("root/e"), file("root/e/x"), file("root/dir/x")},
		"twice":                 {file("root/file")},
		"directory over a file": {dir("root/file")},
		"file over a directory": {file("root/dir")},
		"directory twice":       {dir("root/dir")},
		"link over a file":      {link("root/file", "x")},
		"fifo":                  {{Path: "root/x", Mode: unix.S_IFIFO | 0o600}},
		"socket":                {{Path: "root/x", Mode: unix.S_IFSOCK | 0o600}},
		"block device":          {{Path: "root/x", Mode: unix.S_IFBLK | 0o600}},
		"no type":               {{Path: "root/x", Mode: 0o600}},
		"link to nothing":       {link("root/x", "")},
		"long link":             {link("root/x", strings.Repeat("a", unix.PathMax))},
		"target of a file":      {with(file("root/x"), func(e *Entry) { e.Target = "y" })},
		"name outside":          {with(file("root/x"), func(e *Entry) { e.Link = "../../../etc/passwd" })},
		"name absolute":         {with(file("root/x"), func(e *Entry) { e.Link = "/etc/passwd" })},
		"name through a link":   {with(file("root/x"), func(e *Entry) { e.Link = "root/link/x" })},
		"name of a link":        {with(file("root/x"), func(e *Entry) { e.Link = "root/link" })},
		"name of a directory":   {with(file("root/x"), func(e *Entry) { e.Link = "root/dir" })},
		"name of nothing":       {with(file("root/x"), func(e *Entry) { e.Link = "root/nothing" })},
		"name and contents":     {with(file("root/x"), func(e *Entry) { e.Link, e.Size = "root/file", 1 })},
		"negative size":         {with(file("root/x"), func(e *Entry) { e.Size = -1; e.Data = []Extent{{0, 1}} })},
		"data past the end":     {with(file("root/x"), func(e *Entry) { e.Size = 1; e.Data = []Extent{{0, 2}} })},
		"data before the begin": {with(file("root/x"), func(e *Entry) { e.Size = 9; e.Data = []Extent{{-1, 2}} })},
		"data over data":        {with(file("root/x"), func(e *Entry) { e.Size = 9; e.Data = []Extent{{0, 2}, {1, 2}} })},
		"data that overflows":   {with(file("root/x"), func(e *Entry) { e.Size = 9; e.Data = []Extent{{1, 1<<63 - 1}} })},
		"contents of a dir":     {with(dir("root/x"), func(e *Entry) { e.Size = 1; e.Data = []Extent{{0, 1}} })},
		"owner out of range":    {with(file("root/x"), func(e *Entry) { e.UID = 1 << 32 })},
		"negative owner":        {with(file("root/x"), func(e *Entry) { e.GID = -1 })},
		"foreign attribute":     {attribute(file("root/x"), "security.selinux", "x")},
		"trusted attribute":     {attribute(file("root/x"), "trusted.x", "x")},
		"overlay's origin":      {attribute(dir("root/x"), "trusted.overlay.origin", "x")},
		"overlay's metacopy":    {attribute(file("root/x"), "trusted.overlay.metacopy", "")},
		"opaque file":           {attribute(file("root/x"), opaque, "y")},
		"odd opaque":            {attribute(dir("root/x"), opaque, "x")},
		"redirect up":           {attribute(dir("root/x"), redirect, "/../../etc")},
		"redirect of a file":    {attribute(file("root/x"), redirect, "/etc")},
		"acl":                   {attribute(file("root/x"), "system.posix_acl_access", "x")},
		"capability of a dir":   {attribute(dir("root/x"), "security.capability", "x")},
		"attribute of a link":   {attribute(link("root/x", "y"), "user.x", "x")},
		"attribute with equals": {attribute(file("root/x"), "user.a=b", "x")},
		"too many attributes":   {attribute(file("root/x"), "user.x", strings.Repeat("x", maxAttributes))},
		"too many pieces":       {with(file("root/x"), func(e *Entry) { e.Size = 1 << 40; e.Data = make([]Extent, maxExtents+1) })},
		"directory as first":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			s, err := Open(home)
			if err != nil {
				t.Fatal(err)
			}
			st, err := s.Stage("op")
			if err != nil {
				t.Fatal(err)
			}
			w, err := st.NewLayer(0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abort()
			entries := slices.Concat(base, bad)
			if bad == nil {
				entries = []Entry{dir("root")}
			}
			for i, e := range entries {
				err = w.Add(e, strings.NewReader(""))
				if last := i == len(entries)-1; !last && err != nil {
					t.Fatalf("%q: %v", e.Path, err)
				}
			}
			if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "import_damaged" || e.Class != errdef.Invalid {
				t.Errorf("%v, want it refused", err)
			}
			w.Abort()
			if err := st.Remove(); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{"layers", "images", "imports"} {
				if left, err := os.ReadDir(filepath.Join(home, d)); err != nil || len(left) > 0 {
					t.Errorf("left in %s: %v, %v", d, left, err)
				}
			}
			if left, err := os.ReadDir(home); err != nil || len(left) != 3 {
				t.Errorf("made outside: %v, %v", left, err)
			}
		})
	}
}

// TestReadRefuses: what could not be made again elsewhere is not given out.
func TestReadRefuses(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"device": func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
		"fifo":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"attribute": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), unix.Setxattr(path, "trusted.mine", []byte("x"), 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(s.LayerDir("a"), "root"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(s.LayerDir("a"), "root", "thing")); err != nil {
				t.Fatal(err)
			}
			err = s.Read(t.Context(), "a", func(Entry, io.Reader) error { return nil })
			if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "not_portable" || !strings.Contains(e.Message, "root/thing") {
				t.Errorf("%v, want it refused by name", err)
			}
		})
	}
}

// TestImageIsChecked: an image with another byte, size or file is refused.
func TestImageIsChecked(t *testing.T) {
	good := []byte("memory")
	sum, size, err := checksum(strings.NewReader(string(good)))
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest{ID: "img", Runtime: "r", Files: []File{{Name: "pages.img", Size: size, CRC32C: sum}}}
	add := func(name, data string) func(*Staging) error {
		return func(st *Staging) error { return st.AddImageFile(name, int64(len(data)), strings.NewReader(data)) }
	}
	for name, c := range map[string]struct {
		fill []func(*Staging) error
		ok   bool
	}{
		"whole":        {[]func(*Staging) error{add("pages.img", "memory")}, true},
		"other bytes":  {[]func(*Staging) error{add("pages.img", "memorY")}, false},
		"short":        {[]func(*Staging) error{add("pages.img", "memo")}, false},
		"nothing":      {nil, false},
		"one more":     {[]func(*Staging) error{add("pages.img", "memory"), add("x", "")}, false},
		"twice":        {[]func(*Staging) error{add("pages.img", "memory"), add("pages.img", "memory")}, false},
		"outside":      {[]func(*Staging) error{add("../pages.img", "memory")}, false},
		"the manifest": {[]func(*Staging) error{add("manifest.json", "{}")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			st, err := s.Stage("op")
			if err != nil {
				t.Fatal(err)
			}
			digest := ""
			for _, f := range c.fill {
				if err == nil {
					err = f(st)
				}
			}
			if err == nil {
				digest, err = st.SealImage(m)
			}
			if !c.ok {
				if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "import_damaged" {
					t.Errorf("%v, want it refused", err)
				}
				return
			}
			if err == nil {
				err = st.Place(nil, "img")
			}
			if err == nil {
				_, err = s.Verify("img", digest)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestUnfinishedImportsGo: what a killed server was importing is removed by the
// next, what is being imported is not.
func TestUnfinishedImportsGo(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage("op")
	if err != nil {
		t.Fatal(err)
	}
	if paths, err := s.Unremoved(); err != nil || len(paths) > 0 {
		t.Errorf("unremoved while it is at work: %v, %v", paths, err)
	}
	if err := s.FinishRemovals(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.NewLayer(0); err != nil {
		t.Error(err)
	}
	if err := st.Place([]string{"placed"}, ""); err != nil { // and no record named it
		t.Fatal(err)
	}
	if paths, err := At(dir).Unremoved(); err != nil || !slices.Equal(paths, []string{st.dir}) {
		t.Errorf("unremoved of another server: %v, %v", paths, err)
	}
	next, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !next.Abandoned("placed") || next.Abandoned("other") || s.Abandoned("placed") {
		t.Error("it is not known what the import had placed")
	}
	if _, err := os.Stat(st.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
