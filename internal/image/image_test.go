package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
)

// item is an entry of an archive.
type item struct {
	name string
	kind byte // of the tar package; 0 for a regular file
	data string
	link string
	mode int64
	uid  int
	gid  int
	pax  map[string]string
}

var someTime = time.Unix(1_700_000_000, 123_456_789)

// archiveOf returns a tar.
func archiveOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Typeflag: i.kind, Linkname: i.link, Mode: i.mode, Uid: i.uid, Gid: i.gid, Size: int64(len(i.data)), ModTime: someTime, PAXRecords: i.pax, Format: tar.FormatPAX}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpackItems unpacks an archive and returns where.
func unpackItems(t *testing.T, limits Limits, archive []byte) (string, contents, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "outer", "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c, err := unpack(fd, bytes.NewReader(archive), limits)
	return dir, c, err
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return st
}

func xattr(path, name string) string {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, name, buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}

// TestUnpackIsExact: owners, modes, times, links, attributes and capabilities are
// those of the archive.
func TestUnpackIsExact(t *testing.T) {
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	long := strings.Repeat("d", 200) + "/" + strings.Repeat("f", 200)
	dir, c, err := unpackItems(t, DefaultLimits, archiveOf(t,
		item{name: "./", kind: tar.TypeDir, mode: 0o751, uid: 3, gid: 4},
		item{name: "etc/", kind: tar.TypeDir, mode: 0o2755, uid: 5, gid: 6},
		item{name: "etc/file", data: "hello", mode: 0o4711, uid: 7, gid: 8, pax: map[string]string{
			paxXattr + "user.note": "a\x00b", paxXattr + "security.capability": capability,
			paxXattr + "trusted.overlay.redirect": "/etc", paxXattr + "trusted.overlay.opaque": "y", paxXattr + "security.selinux": "x",
		}},
		item{name: "etc/hard", kind: tar.TypeLink, link: "./etc/file"},
		item{name: "/etc/abs", kind: tar.TypeSymlink, link: "/etc/passwd", mode: 0o777, uid: 9, gid: 10},
		item{name: "etc/up", kind: tar.TypeSymlink, link: "../../../x"},
		item{name: "etc/fifo", kind: tar.TypeFifo, mode: 0o620, uid: 11, gid: 12},
		item{name: "etc/null", kind: tar.TypeChar},
		item{name: "etc/disk", kind: tar.TypeBlock},
		item{name: "a/b/c", data: "implicit"},
		item{name: long, data: "long"},
		item{name: "etc/", kind: tar.TypeDir, mode: 0o2755, uid: 5, gid: 6},
	))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if c.devices != 2 || c.bytes != int64(len("hello")+len("implicit")+len("long")) {
		t.Errorf("contents %+v", c)
	}
	slices.Sort(c.implicit)
	if want := []string{"a", "a/b", strings.Repeat("d", 200)}; !slices.Equal(c.implicit, want) {
		t.Errorf("implicit %q", c.implicit)
	}
	for name, want := range map[string]struct{ mode, uid, gid, links uint32 }{
		".":        {unix.S_IFDIR | 0o751, 3, 4, 0},
		"etc":      {unix.S_IFDIR | 0o2755, 5, 6, 0},
		"etc/file": {unix.S_IFREG | 0o4711, 7, 8, 2},
		"etc/hard": {unix.S_IFREG | 0o4711, 7, 8, 2},
		"etc/abs":  {unix.S_IFLNK | 0o777, 9, 10, 1},
		"etc/fifo": {unix.S_IFIFO | 0o620, 11, 12, 1},
		"a":        {unix.S_IFDIR | 0o755, 0, 0, 0},
		"a/b/c":    {unix.S_IFREG | 0o644, 0, 0, 1},
	} {
		st := stat(t, at(name))
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid || want.links != 0 && uint32(st.Nlink) != want.links {
			t.Errorf("%s is %o of %d:%d with %d links, want %+v", name, st.Mode, st.Uid, st.Gid, st.Nlink, want)
		}
		if got := time.Unix(st.Mtim.Unix()); !got.Equal(someTime) {
			t.Errorf("%s was changed at %s, want %s", name, got, someTime)
		}
	}
	if a, b := stat(t, at("etc/file")), stat(t, at("etc/hard")); a.Ino != b.Ino {
		t.Error("the hard link is a file of its own")
	}
	for _, gone := range []string{"etc/null", "etc/disk"} {
		if _, err := os.Lstat(at(gone)); !os.IsNotExist(err) {
			t.Errorf("%s was made: %v", gone, err)
		}
	}
	if got, _ := os.Readlink(at("etc/up")); got != "../../../x" {
		t.Errorf("link %q", got)
	}
	if got := xattr(at("etc/file"), "user.note"); got != "a\x00b" {
		t.Errorf("user.note %q", got)
	}
	if got := xattr(at("etc/file"), "security.capability"); got != capability {
		t.Errorf("capabilities %q", got)
	}
	for _, name := range []string{"trusted.overlay.redirect", "trusted.overlay.opaque"} {
		if got := xattr(at("etc/file"), name); got != unix.ENODATA.Error() {
			t.Errorf("%s is %q", name, got)
		}
	}
}

// TestWhiteouts: what a layer removes is marked as overlayfs wants it, in
// whatever order the entries come.
func TestWhiteouts(t *testing.T) {
	dir, _, err := unpackItems(t, DefaultLimits, archiveOf(t,
		item{name: "d/", kind: tar.TypeDir, mode: 0o755},
		item{name: "d/.wh.gone"},
		item{name: "opaque/.wh..wh..opq"},
		item{name: "opaque/new", data: "x"},
		item{name: ".wh.again"},
		item{name: "again", data: "x"},
		item{name: ".wh.tree"},
		item{name: "tree/sub/file", data: "x"},
		item{name: "kept/file", data: "x"},
		item{name: ".wh.kept"},
		item{name: "d/.wh..wh.plnk/x", data: "aufs"},
		item{name: ".wh..wh.aufs"},
		item{name: ".wh.dir"},
		item{name: "dir/", kind: tar.TypeDir, mode: 0o700},
	))
	if err != nil {
		t.Fatal(err)
	}
	if st := stat(t, filepath.Join(dir, "d/gone")); !tree.IsWhiteout(&st) {
		t.Errorf("d/gone is %o", st.Mode)
	}
	if st := stat(t, filepath.Join(dir, "again")); st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("again is %o", st.Mode)
	}
	for _, name := range []string{"opaque", "tree", "kept", "dir"} {
		if got := xattr(filepath.Join(dir, name), opaqueXattr); got != "y" {
			t.Errorf("%s is not opaque: %s", name, got)
		}
	}
	for _, name := range []string{"tree/sub/file", "kept/file", "opaque/new"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "x" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "d/.wh.*")); len(left) > 0 {
		t.Errorf("marks were made as files: %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".wh.*")); len(left) > 0 {
		t.Errorf("marks were made as files: %q", left)
	}
}

// hostileArchive is one that nobody honest makes.
type hostileArchive struct {
	archive []byte
	code    string // empty: it is unpacked, and harmless
}

func hostileArchives(t testing.TB) map[string]hostileArchive {
	many := make([]item, 101)
	for i := range many {
		many[i] = item{name: fmt.Sprintf("f%d", i)}
	}
	link := item{name: "l", kind: tar.TypeSymlink, link: "../.."}
	return map[string]hostileArchive{
		"up":                         {archiveOf(t, item{name: "../escaped", data: "x"}), "image_invalid"},
		"up inside":                  {archiveOf(t, item{name: "a/../../escaped", data: "x"}), "image_invalid"},
		"up only":                    {archiveOf(t, item{name: "..", kind: tar.TypeDir}), "image_invalid"},
		"absolute":                   {archiveOf(t, item{name: "/escaped", data: "x"}), ""},
		"through a link":             {archiveOf(t, link, item{name: "l/escaped", data: "x"}), "image_invalid"},
		"through an absolute link":   {archiveOf(t, item{name: "l", kind: tar.TypeSymlink, link: "/tmp"}, item{name: "l/escaped", data: "x"}), "image_invalid"},
		"through a deep link":        {archiveOf(t, link, item{name: "l/a/b/escaped", data: "x"}), "image_invalid"},
		"directory through a link":   {archiveOf(t, link, item{name: "l/escaped/", kind: tar.TypeDir}), "image_invalid"},
		"whiteout through a link":    {archiveOf(t, link, item{name: "l/.wh.escaped"}), "image_invalid"},
		"opaque through a link":      {archiveOf(t, link, item{name: "l/.wh..wh..opq"}), "image_invalid"},
		"directory replaced by link": {archiveOf(t, item{name: "d/", kind: tar.TypeDir}, item{name: "d", kind: tar.TypeSymlink, link: "../.."}, item{name: "d/escaped", data: "x"}), "image_invalid"},
		"full directory replaced":    {archiveOf(t, item{name: "d/x", data: "x"}, item{name: "d", kind: tar.TypeSymlink, link: "../.."}), "image_invalid"},
		"file over a link":           {archiveOf(t, item{name: "escaped", kind: tar.TypeSymlink, link: "../../escaped"}, item{name: "escaped", data: "x"}), ""},
		"directory over a link":      {archiveOf(t, link, item{name: "l/", kind: tar.TypeDir}, item{name: "l/escaped", data: "x"}), ""},
		"hard link out":              {archiveOf(t, item{name: "h", kind: tar.TypeLink, link: "../../secret"}), "image_invalid"},
		"hard link absolute":         {archiveOf(t, item{name: "h", kind: tar.TypeLink, link: "/etc/passwd"}), "image_invalid"},
		"hard link through a link":   {archiveOf(t, link, item{name: "h", kind: tar.TypeLink, link: "l/secret"}), "image_invalid"},
		"hard link to a directory":   {archiveOf(t, item{name: "d/", kind: tar.TypeDir}, item{name: "h", kind: tar.TypeLink, link: "d"}), "image_invalid"},
		"hard link to a whiteout":    {archiveOf(t, item{name: ".wh.w"}, item{name: "h", kind: tar.TypeLink, link: "w"}), "image_invalid"},
		"write through a hard link":  {archiveOf(t, link, item{name: "h", kind: tar.TypeLink, link: "l"}, item{name: "h/escaped", data: "x"}), "image_invalid"},
		"whiteout of nothing":        {archiveOf(t, item{name: ".wh."}), "image_invalid"},
		"whiteout of the parent":     {archiveOf(t, item{name: ".wh..."}), "image_invalid"},
		"below a mark":               {archiveOf(t, item{name: ".wh.d/x", data: "x"}), "image_invalid"},
		"below a file":               {archiveOf(t, item{name: "f", data: "x"}, item{name: "f/x", data: "x"}), "image_invalid"},
		"many entries":               {archiveOf(t, many...), "image_too_large"},
		"long name":                  {archiveOf(t, item{name: strings.Repeat("x", 300), data: "x"}), "image_invalid"},
		"very long name":             {archiveOf(t, item{name: strings.Repeat("x/", 3000) + "x", data: "x"}), "image_invalid"},
		"empty link":                 {archiveOf(t, item{name: "l", kind: tar.TypeSymlink}), "image_invalid"},
		"root as a file":             {archiveOf(t, item{name: ".", data: "x"}), "image_invalid"},
		"root as a link":             {archiveOf(t, item{name: "./", kind: tar.TypeSymlink, link: "/"}), "image_invalid"},
		"unknown type":               {archiveOf(t, item{name: "x", kind: 'V'}), "image_invalid"},
		"no archive":                 {bytes.Repeat([]byte("no tar "), 1000), "image_damaged"},
		"truncated":                  {archiveOf(t, item{name: "f", data: strings.Repeat("x", 4096)})[:3000], "image_damaged"},
		"device that is a whiteout":  {archiveOf(t, item{name: "f", kind: tar.TypeChar}), ""},
	}
}

// smallLimits are those under which hostile archives are unpacked.
var smallLimits = Limits{Bytes: 1 << 20, Entries: 100, Ratio: 10}

// TestHostileArchives: nothing is made outside, whatever an archive has.
func TestHostileArchives(t *testing.T) {
	for name, c := range hostileArchives(t) {
		t.Run(name, func(t *testing.T) {
			dir, _, err := unpackItems(t, smallLimits, c.archive)
			err = explain(err)
			if e, _ := errors.AsType[*errdef.Error](err); c.code == "" && err != nil || c.code != "" && (e == nil || e.Code != c.code) {
				t.Errorf("error %v, want %q", err, c.code)
			}
			for _, above := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
				entries, err := os.ReadDir(above)
				if err != nil || len(entries) != 1 {
					t.Errorf("%s has %v, %v", above, entries, err)
				}
			}
			if _, err := os.Lstat("/tmp/escaped"); !os.IsNotExist(err) {
				t.Errorf("/tmp/escaped: %v", err)
			}
			if name == "device that is a whiteout" {
				if _, err := os.Lstat(filepath.Join(dir, "f")); !os.IsNotExist(err) {
					t.Errorf("a device was made: %v", err)
				}
			}
		})
	}
}

// FuzzUnpack: whatever is unpacked, nothing is made outside.
func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, item{name: "a/b", data: "x"}, item{name: "l", kind: tar.TypeSymlink, link: "../.."}, item{name: "l/x", data: "x"}))
	f.Add(archiveOf(f, item{name: "a/.wh.b"}, item{name: "a/.wh..wh..opq"}, item{name: "h", kind: tar.TypeLink, link: "a"}))
	for _, c := range hostileArchives(f) {
		f.Add(c.archive)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		dir, _, _ := unpackItems(t, smallLimits, archive)
		for _, above := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
			if entries, err := os.ReadDir(above); err != nil || len(entries) != 1 {
				t.Errorf("%s has %v, %v", above, entries, err)
			}
		}
	})
}

// layerOf returns a layer, compressed as registries have it.
func layerOf(t *testing.T, items ...item) v1.Layer {
	t.Helper()
	return layerFrom(t, archiveOf(t, items...))
}

func layerFrom(t *testing.T, data []byte, o ...tarball.LayerOption) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, o...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageWith returns an image for this machine.
func imageWith(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.Architecture, conf.OS = goruntime.GOARCH, "linux"
	conf.Config = v1.Config{Env: []string{"A=b"}, WorkingDir: "/w", User: "u", Entrypoint: []string{"e"}, Cmd: []string{"c"}, ExposedPorts: map[string]struct{}{"80/tcp": {}}}
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		t.Fatal(err)
	}
	return img
}

// registryAt serves a registry, through a handler around it, and returns its
// address.
func registryAt(t *testing.T, around func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if around != nil {
		h = around(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t *testing.T, ref string, img remote.Taggable) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Push(r, img); err != nil {
		t.Fatal(err)
	}
}

func newStore(t *testing.T) *Store {
	t.Helper()
	return At(filepath.Join(t.TempDir(), "oci"), DefaultLimits)
}

// pulled pulls an image and returns it with what was told of its layers.
func pulled(t *testing.T, s *Store, ref string, login ...*Login) (img Image, states map[State]int, err error) {
	t.Helper()
	states = map[State]int{}
	told := make(chan State, 10_000)
	err = s.Pull(t.Context(), ref, cmp.Or(append(login, nil)...), func(p Progress) { told <- p.State }, func(i Image) error { img = i; return nil })
	close(told)
	for s := range told {
		states[s]++
	}
	return img, states, err
}

// TestPull: layers are unpacked once, shared by images, and the image is pinned.
func TestPull(t *testing.T) {
	at := registryAt(t, nil)
	shared := layerOf(t, item{name: "bin/x", data: "shared"})
	first := imageWith(t, shared, layerOf(t, item{name: "one", data: "1"}))
	push(t, at+"/first:1", first)
	push(t, at+"/second:1", imageWith(t, shared, layerOf(t, item{name: "two", data: "2"})))
	s := newStore(t)
	img, states, err := pulled(t, s, at+"/first:1")
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := first.Digest()
	if img.Ref != at+"/first:1" || img.Digest != digest.String() || img.Source != at+"/first@"+digest.String() || len(img.Layers) != 2 || states[Unpacked] != 2 {
		t.Errorf("image %+v, layers %v", img, states)
	}
	if c := img.Config; !slices.Equal(c.Env, []string{"A=b"}) || c.WorkingDir != "/w" || c.User != "u" || !slices.Equal(c.Entrypoint, []string{"e"}) || !slices.Equal(c.Cmd, []string{"c"}) || !slices.Equal(c.ExposedPorts, []string{"80/tcp"}) {
		t.Errorf("configuration %+v", c)
	}
	if data, err := os.ReadFile(filepath.Join(s.Files(img.Layers[0].ID), "bin/x")); err != nil || string(data) != "shared" {
		t.Errorf("bin/x: %q, %v", data, err)
	}
	if _, states, err = pulled(t, s, at+"/second:1"); err != nil || states[Present] != 1 || states[Unpacked] != 1 {
		t.Errorf("second: %v, %v", states, err)
	}
	if again, states, err := pulled(t, s, img.Source); err != nil || again.Digest != img.Digest || states[Present] != 2 {
		t.Errorf("by digest: %v, %v", states, err)
	}
	if ids, err := s.Layers(); err != nil || len(ids) != 3 {
		t.Errorf("layers %v, %v", ids, err)
	}
	if left, err := s.Unfinished(); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

// TestPullRefuses: what does not fit is refused by name.
func TestPullRefuses(t *testing.T) {
	at := registryAt(t, nil)
	other := imageWith(t, layerOf(t, item{name: "x"}))
	conf, _ := other.ConfigFile()
	conf = conf.DeepCopy()
	conf.Architecture = "riscv64"
	other, err := mutate.ConfigFile(other, conf)
	if err != nil {
		t.Fatal(err)
	}
	push(t, at+"/other:1", other)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "riscv64"}}})
	push(t, at+"/list:1", index)
	fit := imageWith(t, layerOf(t, item{name: "fit"}))
	both := mutate.AppendManifests(index, mutate.IndexAddendum{Add: fit, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}}})
	push(t, at+"/both:1", both)
	s := newStore(t)
	for ref, code := range map[string]string{
		at + "/other:1": "image_wrong_platform", at + "/list:1": "image_wrong_platform", at + "/none:1": "image_not_found",
		"UPPER/case": "image_reference_invalid", "127.0.0.1:1/x": "image_unavailable",
	} {
		_, _, err := pulled(t, s, ref)
		if codeOf(err) != code {
			t.Errorf("%s: %v, want %s", ref, err, code)
		}
		if code == "image_wrong_platform" && !strings.Contains(err.Error(), "linux/riscv64") {
			t.Errorf("the platform is not named: %v", err)
		}
	}
	want, _ := fit.Digest()
	if img, _, err := pulled(t, s, at+"/both:1"); err != nil || img.Digest != want.String() {
		t.Errorf("of a list: %+v, %v; want %s", img, err, want)
	}
	if ids, _ := s.Layers(); len(ids) != 1 {
		t.Errorf("layers %v", ids)
	}
}

// TestPullWithCredentials: they are given, or those of Docker's configuration.
func TestPullWithCredentials(t *testing.T) {
	var open atomic.Bool
	at := registryAt(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			if !open.Load() && (user != "me" || password != "secret") {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	open.Store(true)
	push(t, at+"/private:1", imageWith(t, layerOf(t, item{name: "x"})))
	open.Store(false)
	s := newStore(t)
	if _, _, err := pulled(t, s, at+"/private:1"); codeOf(err) != "image_denied" {
		t.Errorf("without credentials: %v", err)
	}
	wrong := &Login{"me", "another secret"}
	if _, _, err := pulled(t, s, at+"/private:1", wrong); codeOf(err) != "image_denied" || strings.Contains(err.Error(), wrong.Password) {
		t.Errorf("with a wrong login: %v", err)
	}
	if _, _, err := pulled(t, newStore(t), at+"/private:1", &Login{"me", "secret"}); err != nil {
		t.Errorf("with a login: %v", err)
	}
	config := fmt.Sprintf(`{"auths":{%q:{"auth":"bWU6c2VjcmV0"}}}`, at) // me:secret
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pulled(t, s, at+"/private:1"); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pulled(t, s, at+"/private:1"); codeOf(err) != "image_credentials" || strings.Contains(err.Error(), "secret") {
		t.Errorf("with a broken configuration: %v", err)
	}
}

// cutter breaks off the answer of a blob after so many bytes, each time that one
// is asked for until it has done so for each of the marks.
type cutter struct {
	next   http.Handler
	ranges bool // it knows ranges; otherwise the blob is sent from its start
	marks  []int64
	cuts   atomic.Int64
	served atomic.Int64 // bytes of blobs
}

func (c *cutter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		c.next.ServeHTTP(w, r)
		return
	}
	plain := r.Clone(r.Context())
	plain.Header.Del("Range")
	rec := httptest.NewRecorder()
	c.next.ServeHTTP(rec, plain)
	data := rec.Body.Bytes()
	if len(data) < 100_000 { // the configuration
		w.Write(data)
		return
	}
	from := int64(0)
	if c.ranges {
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
	}
	to := int64(len(data))
	n := int(c.cuts.Load())
	if n < len(c.marks) {
		c.cuts.Add(1)
		to = int64(len(data)) * c.marks[n] / 100
	}
	w.Header().Set("Content-Length", fmt.Sprint(int64(len(data))-from))
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.WriteHeader(http.StatusPartialContent)
	}
	w.Write(data[from:max(from, to)])
	c.served.Add(max(from, to) - from)
	if to < int64(len(data)) {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// noise does not compress.
func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// TestPullGoesOnWhereItWasCut: a layer that is cut at every tenth goes on from
// there, and from its start where the registry knows no ranges.
func TestPullGoesOnWhereItWasCut(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges=%v", ranges), func(t *testing.T) {
			c := &cutter{ranges: ranges, marks: []int64{10, 20, 30, 40, 50, 60, 70, 80, 90}}
			at := registryAt(t, func(next http.Handler) http.Handler { c.next = next; return c })
			data := noise(400_000)
			img := imageWith(t, layerOf(t, item{name: "f", data: data}))
			push(t, at+"/cut:1", img)
			layers, _ := img.Layers()
			size, _ := layers[0].Size()
			s := newStore(t)
			made, _, err := pulled(t, s, at+"/cut:1")
			if err != nil {
				t.Fatal(err)
			}
			if n := c.cuts.Load(); n != 9 {
				t.Errorf("cut %d times", n)
			}
			if got, err := os.ReadFile(filepath.Join(s.Files(made.Layers[0].ID), "f")); err != nil || string(got) != data {
				t.Errorf("the file differs: %v", err)
			}
			if n := c.served.Load(); ranges && n != size {
				t.Errorf("%d bytes were served of a layer of %d", n, size)
			}
		})
	}
}

// TestPullThatFailsKeepsWhatIsWhole: a finished layer is not fetched again, and
// nothing else stays.
func TestPullThatFailsKeepsWhatIsWhole(t *testing.T) {
	var refuse atomic.Value
	refuse.Store("")
	at := registryAt(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if bad := refuse.Load().(string); bad != "" && strings.HasSuffix(r.URL.Path, bad) {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	img := imageWith(t, layerOf(t, item{name: "good", data: "1"}), layerOf(t, item{name: "bad", data: "2"}))
	push(t, at+"/img:1", img)
	layers, _ := img.Layers()
	bad, _ := layers[1].Digest()
	refuse.Store(bad.String())
	s := newStore(t)
	if _, _, err := pulled(t, s, at+"/img:1"); codeOf(err) != "image_not_found" {
		t.Fatalf("a layer that is missing: %v", err)
	}
	ids, _ := s.Layers()
	left, _ := s.Unfinished()
	if len(ids) > 1 || len(left) != 0 {
		t.Errorf("layers %v, left %v", ids, left)
	}
	refuse.Store("")
	if _, states, err := pulled(t, s, at+"/img:1"); err != nil || states[Present] != len(ids) {
		t.Errorf("again: %v, %v", states, err)
	}
}

// sourceFor returns a layer that is not what its digests say, or is.
func sourceFor(data []byte, diffID, digest v1.Hash) source {
	return source{diffID: diffID, digest: digest, size: int64(len(data)), open: func(_ context.Context, offset int64) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data[offset:])), nil
	}}
}

func sha(data []byte) v1.Hash {
	h, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		panic(err)
	}
	return h
}

func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	w.Close()
	return b.Bytes()
}

// TestDigestsAreChecked: both of them, and nothing stays of a layer that has
// another.
func TestDigestsAreChecked(t *testing.T) {
	plain := archiveOf(t, item{name: "f", data: strings.Repeat("x", 5000)})
	packed := gzipped(plain)
	other := sha([]byte("other"))
	flipped := bytes.Clone(packed)
	flipped[len(flipped)/2] ^= 1
	bomb := gzipped(archiveOf(t, item{name: "f", data: strings.Repeat("\x00", 100<<20)}))
	for name, c := range map[string]struct {
		l    source
		code string
	}{
		"right":              {sourceFor(packed, sha(plain), sha(packed)), ""},
		"not compressed":     {sourceFor(plain, sha(plain), v1.Hash{}), ""},
		"another diff id":    {sourceFor(packed, other, sha(packed)), "image_damaged"},
		"another digest":     {sourceFor(packed, sha(plain), other), "image_damaged"},
		"one bit":            {sourceFor(flipped, sha(plain), sha(packed)), "image_damaged"},
		"truncated":          {sourceFor(packed[:len(packed)-10], sha(plain), sha(packed)), "image_damaged"},
		"truncated and more": {sourceFor(packed[:20], sha(plain), sha(packed)), "image_damaged"},
		"followed by more":   {sourceFor(append(bytes.Clone(packed), 0), sha(plain), sha(packed)), "image_damaged"},
		"bomb":               {sourceFor(bomb, other, sha(bomb)), "image_too_large"},
		"no archive":         {sourceFor([]byte("nothing of the kind"), other, other), "image_damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.place(t.Context(), c.l, func(Progress) {})
			if c.code == "" && err != nil || c.code != "" && codeOf(err) != c.code {
				t.Errorf("error %v, want %q", err, c.code)
			}
			ids, _ := s.Layers()
			left, _ := s.Unfinished()
			staged, _ := os.ReadDir(filepath.Join(s.dir, stagingDir))
			if len(ids) > 0 != (c.code == "") || len(left)+len(staged) != 0 {
				t.Errorf("layers %v, left %v, staged %v", ids, left, staged)
			}
		})
	}
}

// TestLimitsAndRoom: bytes are bounded, and a full disk ends it.
func TestLimitsAndRoom(t *testing.T) {
	plain := archiveOf(t, item{name: "f", data: noise(40 << 20)})
	s := At(t.TempDir(), Limits{Bytes: 1 << 20, Entries: 10, Ratio: 10})
	if _, err := s.place(t.Context(), sourceFor(plain, sha(plain), v1.Hash{}), func(Progress) {}); codeOf(err) != "image_too_large" {
		t.Errorf("too many bytes: %v", err)
	}
	s = newStore(t)
	s.Check = func() error { return errdef.New(errdef.Unavailable, "disk_full", "full") }
	if _, err := s.place(t.Context(), sourceFor(plain, sha(plain), v1.Hash{}), func(Progress) {}); codeOf(err) != "disk_full" {
		t.Errorf("no room: %v", err)
	}
}

// loaded loads an archive.
func loaded(t *testing.T, s *Store, archive []byte) (img Image, err error) {
	t.Helper()
	err = s.Load(t.Context(), bytes.NewReader(archive), nil, func(i Image) error { img = i; return nil })
	return img, err
}

// TestLoad: docker save of both forms, and layouts.
func TestLoad(t *testing.T) {
	img := imageWith(t, layerOf(t, item{name: "f", data: "1"}), layerOf(t, item{name: "g", data: "2"}))
	tag, _ := name.NewTag("example.com/some/tool:7")
	var saved bytes.Buffer
	if err := tarball.Write(tag, img, &saved); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{refAnnotation: "example.com/some/tool:7"})); err != nil {
		t.Fatal(err)
	}
	var laid bytes.Buffer
	w := tar.NewWriter(&laid)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	digest, _ := img.Digest()
	id, _ := img.ConfigName()
	for name, c := range map[string]struct {
		archive []byte
		digest  v1.Hash
	}{
		"docker save": {saved.Bytes(), id}, "layout": {laid.Bytes(), digest}, "compressed": {gzipped(laid.Bytes()), digest},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			got, err := loaded(t, s, c.archive)
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != c.digest.String() || got.Ref != "example.com/some/tool:7" || len(got.Layers) != 2 || got.Config.WorkingDir != "/w" {
				t.Errorf("image %+v, want %s", got, c.digest)
			}
			if data, err := os.ReadFile(filepath.Join(s.Files(got.Layers[1].ID), "g")); err != nil || string(data) != "2" {
				t.Errorf("g: %q, %v", data, err)
			}
			if staged, _ := os.ReadDir(filepath.Join(s.dir, stagingDir)); len(staged) != 0 {
				t.Errorf("staged %v", staged)
			}
		})
	}
	// Layouts that do not name their image, or have a tag for a name.
	for _, says := range []map[string]string{nil, {refAnnotation: "latest"}, {refAnnotation: "1.2"}} {
		dir := t.TempDir()
		l, err := layout.Write(dir, empty.Index)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.AppendImage(img, layout.WithAnnotations(says)); err != nil {
			t.Fatal(err)
		}
		var laid bytes.Buffer
		w := tar.NewWriter(&laid)
		if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
			t.Fatal(err)
		}
		if got, err := loaded(t, newStore(t), laid.Bytes()); err != nil || got.Ref != "" {
			t.Errorf("a layout that says %v: called %q, %v", says, got.Ref, err)
		}
	}
	// A layout whose manifest was changed.
	var changed bytes.Buffer
	w = tar.NewWriter(&changed)
	manifest := filepath.Join(dir, blobsDir, digest.Hex)
	data, _ := os.ReadFile(manifest)
	if err := os.WriteFile(manifest, append(data, ' '), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		archive []byte
		code    string
	}{
		"changed manifest": {changed.Bytes(), "image_damaged"},
		"cut":              {laid.Bytes()[:laid.Len()/2], "image_damaged"},
		"nothing":          {archiveOf(t, item{name: "x"}), "image_invalid"},
		"no tar":           {[]byte(strings.Repeat("x", 2000)), "image_damaged"},
		"twice":            {archiveOf(t, item{name: "x"}, item{name: "./x"}), "image_invalid"},
		"up":               {archiveOf(t, item{name: "../x"}), "image_invalid"},
		"link up":          {archiveOf(t, item{name: "x", kind: tar.TypeSymlink, link: "../../etc/passwd"}), "image_invalid"},
		"link to nothing":  {archiveOf(t, item{name: "x", kind: tar.TypeLink, link: "y"}), "image_invalid"},
		"lacks its layer":  {archiveOf(t, item{name: manifestName, data: `[{"Config":"c","Layers":["l"]}]`}, item{name: "c", data: `{"rootfs":{"type":"layers","diff_ids":["` + sha(nil).String() + `"]}}`}), "image_damaged"},
		"lacks its config": {archiveOf(t, item{name: manifestName, data: `[{"Config":"c","Layers":["l"]}]`}), "image_damaged"},
		"several":          {archiveOf(t, item{name: manifestName, data: `[{},{}]`}), "image_invalid"},
	} {
		s := newStore(t)
		if _, err := loaded(t, s, c.archive); codeOf(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		if staged, _ := os.ReadDir(filepath.Join(s.dir, stagingDir)); len(staged) != 0 {
			t.Errorf("%s: staged %v", name, staged)
		}
	}
}

// TestRemove: a layer that is needed, or on its way, stays.
func TestRemove(t *testing.T) {
	s := newStore(t)
	plain := archiveOf(t, item{name: "d/f", data: "x"})
	l, err := s.place(t.Context(), sourceFor(plain, sha(plain), v1.Hash{}), func(Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	no, yes := func() (bool, error) { return false, nil }, func() (bool, error) { return true, nil }
	unpin := s.pin(l.ID)
	if err := s.Remove(l.ID, no); err != nil {
		t.Fatal(err)
	}
	unpin()
	if err := s.Remove(l.ID, yes); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Layer(l.ID); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	for range 2 {
		if err := s.Remove(l.ID, no); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Layer(l.ID); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("it is there: %v", err)
	}
	if staged, _ := os.ReadDir(filepath.Join(s.dir, stagingDir)); len(staged) != 0 {
		t.Errorf("staged %v", staged)
	}
}

// sparseArchive is an archive of one sparse file that is size bytes long and has
// nothing but zeros.
func sparseArchive(t testing.TB, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Format: tar.FormatGNU}), w.Close()); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	head := data[:512]
	head[156] = tar.TypeGNUSparse
	copy(head[257:], "ustar  \x00")
	copy(head[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0)) // nothing at its end
	copy(head[483:], fmt.Sprintf("%011o\x00", size))
	copy(head[148:], "        ")
	sum := 0
	for _, b := range head {
		sum += int(b)
	}
	copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
	return data
}

// TestSparseFiles: what a sparse file has in zeros costs an archive nothing, and was
// written to the disk for minutes.
func TestSparseFiles(t *testing.T) {
	dir, c, err := unpackItems(t, smallLimits, sparseArchive(t, 1<<20))
	if info, statErr := os.Stat(filepath.Join(dir, "zeros")); err != nil || statErr != nil || info.Size() != 1<<20 || c.bytes != 1<<20 {
		t.Errorf("a small one: %+v, %v, %v", c, err, statErr)
	}
	_, _, err = unpackItems(t, smallLimits, sparseArchive(t, 8<<30-1))
	if e, ok := errors.AsType[*errdef.Error](explain(err)); !ok || e.Code != "image_too_large" {
		t.Errorf("a large one: %v", err)
	}
	err = At(t.TempDir(), DefaultLimits).Load(t.Context(), bytes.NewReader(sparseArchive(t, 8<<30-1)), func(Progress) {}, nil)
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "image_invalid" {
		t.Errorf("in the archive of an image: %v", err)
	}
}

// TestLoadEndsWithItsClient: an archive of few bytes was expanded to its end although
// nobody waited any more.
func TestLoadEndsWithItsClient(t *testing.T) {
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "large", Size: 32 << 30}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read := 0
	rest := readFunc(func(p []byte) (int, error) {
		if read += len(p); read > 1<<20 {
			cancel()
		}
		if read > 64<<20 {
			return 0, errors.New("it is still read")
		}
		return len(p), nil
	})
	err := At(t.TempDir(), DefaultLimits).Load(ctx, io.MultiReader(&head, rest), func(Progress) {}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the load ended with %v", err)
	}
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// TestArchiveThatExpands: an archive of an image is bounded as its layers are.
func TestArchiveThatExpands(t *testing.T) {
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	if err := tar.NewWriter(z).WriteHeader(&tar.Header{Name: "large", Size: 32 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(make([]byte, 2*RatioFrom)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	err := At(t.TempDir(), DefaultLimits).Load(t.Context(), &archive, func(Progress) {}, nil)
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "image_too_large" {
		t.Errorf("the load ended with %v", err)
	}
}

// TestWaitForALayerEnds: who waits for a layer that another unpacks can give up. Its
// registry may have no end of it.
func TestWaitForALayerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		done, err := s.turn(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := s.turn(ctx, "x"); err == nil {
			t.Error("two unpack one layer")
		}
		done()
		if done, err = s.turn(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		done()
	})
}
