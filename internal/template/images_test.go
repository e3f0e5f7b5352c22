package template

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// file is an entry of a layer.
type file struct {
	name, data, link string
	kind             byte
	mode             int64
	uid              int
}

func tarOf(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: f.mode, Uid: f.uid, Size: int64(len(f.data))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// saved is an image as docker save writes it.
func saved(t *testing.T, tag string, config map[string]any, layers ...[]byte) []byte {
	t.Helper()
	var ids, names []string
	files := []file{}
	for i, l := range layers {
		ids = append(ids, fmt.Sprintf("sha256:%x", sha256.Sum256(l)))
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		files = append(files, file{name: names[i], data: string(l)})
	}
	conf, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": goruntime.GOARCH, "config": config, "rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{tag}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, append(files, file{name: "config.json", data: string(conf)}, file{name: "manifest.json", data: string(manifest)})...)
}

// imageStore is a store with a base and the template "tool:1".
func imageStore(t *testing.T, config map[string]any, layers ...[]byte) (*Store, Template) {
	t.Helper()
	s, _ := buildBase(t, t.TempDir(), "agent 1")
	made, err := s.Add(t.Context(), Request{Archive: bytes.NewReader(saved(t, "tool:1", config, layers...))})
	if err != nil {
		t.Fatal(err)
	}
	return s, made
}

// TestFinish: the uppermost layer of a template has the agent and what every
// sandbox needs, and leaves alone what the image has of it.
func TestFinish(t *testing.T) {
	s, made := imageStore(t, map[string]any{"Env": []string{"PATH=/opt/tool/bin:/bin", "HOME=/x", "A=b"}, "WorkingDir": "/srv/app", "User": "77:88"},
		tarOf(t,
			file{name: "usr/", kind: tar.TypeDir, mode: 0o750, uid: 3},
			file{name: "usr/bin/", kind: tar.TypeDir, mode: 0o711, uid: 4},
			file{name: "etc/", kind: tar.TypeDir},
			file{name: "etc/passwd", data: "root:x:0:0::/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/ash", mode: 0o640, uid: 9},
			file{name: "etc/resolv.conf", kind: tar.TypeSymlink, link: "../run/resolv.conf"},
			file{name: "run", kind: tar.TypeSymlink, link: "var/run"},
			file{name: "var/run/", kind: tar.TypeDir},
			file{name: "lib/", kind: tar.TypeDir},
			file{name: "usr/lib", kind: tar.TypeSymlink, link: "/lib"},
			file{name: "tmp/", kind: tar.TypeDir, mode: 0o1777},
		),
		tarOf(t, file{name: "usr/bin/tool", data: "x"}, file{name: "etc/machine-id", data: "of the image"}, file{name: "escape", kind: tar.TypeSymlink, link: "../../../../../../.."}),
	)
	top := made.Trees[0].Lowers[0]
	if len(made.Trees) != 1 || made.Trees[0].Path != "/" || len(made.Trees[0].Lowers) != 3 || made.Alias != "tool:1" {
		t.Fatalf("template %+v", made)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	if got, want := read("etc/passwd"), "root:x:0:0::/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/ash\nuser:x:1000:1000:user:/home/user:/bin/sh\nuid77:x:77:88::/:/bin/sh\n"; got != want {
		t.Errorf("passwd %q", got)
	}
	for name, want := range map[string]string{
		"lib/drowse/agent": "agent 1", "usr/bin/sudo": "agent 1", "etc/resolv.conf": etcFiles["resolv.conf"], "etc/hosts": etcFiles["hosts"],
		"etc/profile.d/00-image-path.sh": "export PATH='/opt/tool/bin:/bin'\n",
	} {
		if got := read(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range etcLinks {
		if got, err := os.Readlink(filepath.Join(top, "etc", name)); got != want {
			t.Errorf("etc/%s leads to %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]struct{ mode, uid uint32 }{
		"usr":              {unix.S_IFDIR | 0o750, 3},
		"usr/bin":          {unix.S_IFDIR | 0o711, 4}, // the second layer has it without describing it
		"etc/passwd":       {unix.S_IFREG | 0o640, 9},
		"usr/bin/sudo":     {unix.S_IFREG | 0o4755, 0},
		"lib/drowse/agent": {unix.S_IFREG | 0o755, 0},
		"home/user":        {unix.S_IFDIR | 0o755, UserID},
		"srv/app":          {unix.S_IFDIR | 0o755, 0},
		"proc":             {unix.S_IFDIR | 0o555, 0},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(top, name), &st); err != nil || st.Mode != want.mode || st.Uid != want.uid {
			t.Errorf("%s is %o of %d, %v; want %+v", name, st.Mode, st.Uid, err, want)
		}
	}
	for _, name := range []string{"tmp", "run", "usr/lib", "var/run"} {
		if _, err := os.Lstat(filepath.Join(top, name)); !os.IsNotExist(err) {
			t.Errorf("%s, which the image has, was made: %v", name, err)
		}
	}
	if made.DefaultUser() != "uid77" || made.Workdir() != "/srv/app" {
		t.Errorf("user %q, workdir %q", made.DefaultUser(), made.Workdir())
	}
	fixed := []layer.Fixed{{Path: "lib/drowse", Source: filepath.Join(top, "lib/drowse")}}
	if t2, err := s.Resolve(made.ID); err != nil || t2.AgentAt() != "/lib/drowse/agent" || !slices.Equal(t2.Trees[0].Fixed, fixed) {
		t.Errorf("the agent is %s, and fixed is %+v, %v; want %+v", t2.AgentAt(), t2.Trees[0].Fixed, err, fixed)
	}
	env := made.Env(map[string]string{"A": "c"})
	if len(env) != 2 || env["A"] != "c" || env["PATH"] != "/opt/tool/bin:/bin" {
		t.Errorf("env %v", env)
	}
	if err := s.CheckImage(made); err != nil {
		t.Error(err)
	}
	if again, err := s.Add(t.Context(), Request{Name: "again", Archive: bytes.NewReader(saved(t, "tool:2", map[string]any{"User": "nobody-there"}, tarOf(t, file{name: "x"})))}); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("a user that there is not: %+v, %v", again, err)
	}
}

// TestArchiveWithoutName: an image that nothing names makes no template.
func TestArchiveWithoutName(t *testing.T) {
	s, _ := buildBase(t, t.TempDir(), "agent 1")
	made, err := s.Add(t.Context(), Request{Archive: bytes.NewReader(saved(t, "", nil, tarOf(t, file{name: "x"})))})
	if !errdef.Is(err, errdef.Invalid) || !strings.Contains(err.Error(), "does not say what its image is called") {
		t.Errorf("got %+v, %v", made, err)
	}
}

// TestImageRunsAs: an image's user has its group and a home, as in Docker.
func TestImageRunsAs(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\napp:x:5:6:App:/srv/app:/bin/ash\nlost:x:7:7::/nonexistent:/bin/sh\n"
	s, _ := buildBase(t, t.TempDir(), "agent 1")
	for config, want := range map[string]struct{ user, line, group, home string }{
		"app":         {"app", "app:x:5:6:App:/srv/app:/bin/ash", "", "srv/app"},
		"5":           {"app", "app:x:5:6:App:/srv/app:/bin/ash", "", "srv/app"},
		"app:staff":   {"app-gid50", "app-gid50:x:5:50:App:/srv/app:/bin/ash", "", "srv/app"},
		"app:6":       {"app", "app:x:5:6:App:/srv/app:/bin/ash", "", "srv/app"},
		"05:0088":     {"app-gid88", "app-gid88:x:5:88:App:/srv/app:/bin/ash", "gid88:x:88:", "srv/app"},
		"1001":        {"uid1001", "uid1001:x:1001:0::/:/bin/sh", "", ""},
		"1001:staff":  {"uid1001", "uid1001:x:1001:50::/:/bin/sh", "", ""},
		"lost":        {"lost", "lost:x:7:7::/nonexistent:/bin/sh", "", ""},
		"app:nowhere": {},
	} {
		made, err := s.Add(t.Context(), Request{Archive: bytes.NewReader(saved(t, "tool:1", map[string]any{"User": config}, tarOf(t,
			file{name: "etc/passwd", data: passwd}, file{name: "etc/group", data: "root:x:0:\nstaff:x:50:\n"})))})
		if want.user == "" {
			if !errdef.Is(err, errdef.Invalid) {
				t.Errorf("%s: %v", config, err)
			}
			continue
		}
		if err != nil || made.DefaultUser() != want.user {
			t.Errorf("%s runs as %q, %v", config, made.DefaultUser(), err)
			continue
		}
		top := made.Trees[0].Lowers[0]
		users, err1 := os.ReadFile(filepath.Join(top, "etc/passwd"))
		groups, err2 := os.ReadFile(filepath.Join(top, "etc/group"))
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains("\n"+string(users), "\n"+want.line+"\n") || !strings.Contains("\n"+string(groups), "\n"+want.group) {
			t.Errorf("%s: users %q, groups %q", config, users, groups)
		}
		if _, err := os.Lstat(filepath.Join(top, "nonexistent")); !os.IsNotExist(err) {
			t.Errorf("%s has a home that it must not have: %v", config, err)
		}
		if want.home == "" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(top, want.home), &st); err != nil || st.Mode != unix.S_IFDIR|0o755 || st.Uid != 5 {
			t.Errorf("%s has a home %o of %d, %v", config, st.Mode, st.Uid, err)
		}
	}
}

// TestCertificates: an image without authorities gets those of the host; one with
// some, wherever they are, keeps to them.
func TestCertificates(t *testing.T) {
	host := filepath.Join(t.TempDir(), "host.pem")
	if err := os.WriteFile(host, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := buildBase(t, t.TempDir(), "agent 1")
	for _, has := range append([]string{""}, bundles...) {
		files := []file{{name: "bin/x", data: "x"}}
		if has != "" {
			files = append(files, file{name: has[1:], data: "of the image"})
		}
		made, err := s.Add(t.Context(), Request{Archive: bytes.NewReader(saved(t, "tool:1", nil, tarOf(t, files...)))})
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range [][]string{{host + ".missing", host}, {host + ".missing"}} {
			root := t.TempDir()
			merged, err := s.images.Merge(root, made.Image.Layers)
			if err != nil {
				t.Fatal(err)
			}
			f := finisher{Merged: merged}
			err = f.addCertificates(from)
			merged.Close()
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(root, bundles[0]))
			want := ""
			if has == "" && len(from) > 1 {
				want = "of the host"
			}
			if string(data) != want || (want == "") != os.IsNotExist(err) {
				t.Errorf("with %q of the image and %q of the host: %q, %v", has, from, data, err)
			}
		}
	}
}

// TestFinishStaysInside: links of an image lead nowhere outside of its tree.
func TestFinishStaysInside(t *testing.T) {
	outside := t.TempDir()
	for _, dir := range []string{"bin", "ssl/certs"} {
		if err := os.MkdirAll(filepath.Join(outside, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	up := strings.Repeat("../", 40) + outside[1:]
	s, made := imageStore(t, nil, tarOf(t,
		file{name: "etc", kind: tar.TypeSymlink, link: outside},
		file{name: "usr", kind: tar.TypeSymlink, link: up},
		file{name: "home", kind: tar.TypeSymlink, link: "loop"},
		file{name: "loop", kind: tar.TypeSymlink, link: "elsewhere/home"},
		file{name: "var", data: "a file"},
	))
	if read, err := s.Resolve(made.ID); err != nil || len(read.Trees[0].Fixed) != 1 || !strings.HasPrefix(read.Trees[0].Fixed[0].Source, made.Trees[0].Lowers[0]+"/") {
		t.Errorf("fixed is %+v, %v", read.Trees[0].Fixed, err)
	}
	entries, err := filepath.Glob(filepath.Join(outside, "*/*"))
	if err != nil || len(entries) != 1 { // ssl/certs
		t.Errorf("outside there is %q, %v", entries, err)
	}
	top := made.Trees[0].Lowers[0]
	for _, name := range []string{outside[1:] + "/passwd", outside[1:] + "/bin/sudo", "elsewhere/home/user", "var/tmp"} {
		if _, err := os.Lstat(filepath.Join(top, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestNames: what names stand for is kept, and base is the host's system until it
// is told otherwise.
func TestNames(t *testing.T) {
	s, tool := imageStore(t, nil, tarOf(t, file{name: "bin/x", data: "x"}))
	base, err := s.Resolve("base")
	if err != nil || base.Image != nil || base.Alias != "base" {
		t.Fatalf("base is %+v, %v", base, err)
	}
	for _, name := range []string{"tool:1", " TOOL:1 ", tool.ID, tool.Digest(), "index.docker.io/library/tool:1", "docker.io/library/tool:1"} {
		if got, err := s.Resolve(name); err != nil || got.ID != tool.ID || got.Alias != "tool:1" || got.Digest() != tool.Digest() {
			t.Errorf("%s is %+v, %v", name, got, err)
		}
	}
	if set, err := s.Set("base", "tool:1"); err != nil || set.ID != tool.ID || set.Alias != "base" {
		t.Errorf("set: %+v, %v", set, err)
	}
	again, _ := buildBase(t, s.dir, "agent 2") // another agent
	if err := again.Refresh(); err != nil {
		t.Fatal(err)
	}
	moved, err := again.Resolve("base")
	if err != nil || moved.ID == tool.ID || moved.Digest() != tool.Digest() {
		t.Errorf("base is %+v, %v", moved, err)
	}
	if old, err := again.Resolve(tool.ID); err != nil || old.ID != tool.ID {
		t.Errorf("with the agent before it is %+v, %v", old, err)
	}
	for _, name := range []string{"host", "code-interpreter-v1"} {
		if got, err := again.Resolve(name); err != nil || got.Image != nil {
			t.Errorf("%s is %+v, %v", name, got, err)
		}
	}
	if back, err := again.Set("base", "host"); err != nil || back.Image != nil {
		t.Errorf("set back: %+v, %v", back, err)
	}
	for _, bad := range []string{"host", "a.b", "a b", "../x", "", tool.ID, "x/y/z", strings.Repeat("x", 65)} {
		if _, err := s.Set(bad, "tool:1"); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("called %q: %v", bad, err)
		}
	}
	if _, err := s.Set("mine", "host"); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("another name of the host's system: %v", err)
	}
	if _, err := s.Set("mine", "nothing"); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("a name for nothing: %v", err)
	}
}

func TestNameFor(t *testing.T) {
	for ref, want := range map[string]string{
		"index.docker.io/library/python:3.12": "python:3.12", "ghcr.io/Owner/My.Tool:latest": "my-tool", "localhost:5000/x": "x",
		"ghcr.io/owner/tool:V1@sha256:" + strings.Repeat("0", 64): "tool:v1", "ghcr.io/owner/latest-thing:2": "latest-thing:2",
	} {
		if got := NameFor(ref); got != want {
			t.Errorf("%s is called %q, want %q", ref, got, want)
		}
	}
}

// TestRemoveTemplate: names go one by one, the files with the last one, and layers
// when nothing has them any more. What sandboxes started from stays.
func TestRemoveTemplate(t *testing.T) {
	shared, own := tarOf(t, file{name: "shared", data: "x"}), tarOf(t, file{name: "own", data: "x"})
	s, tool := imageStore(t, nil, shared, own)
	other, err := s.Add(t.Context(), Request{Name: "other", Archive: bytes.NewReader(saved(t, "other:1", nil, shared))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set("base", "tool:1"); err != nil {
		t.Fatal(err)
	}
	users := []string{"i1"}
	usersOf := func(id string) []string {
		if id == tool.ID {
			return users
		}
		return nil
	}
	layers := func() int {
		t.Helper()
		ids, err := s.images.Layers()
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	remove := func(ref string, want errdef.Class) {
		t.Helper()
		if err := s.Remove(ref, usersOf); errdef.ClassOf(err) != want {
			t.Errorf("remove %s: %v, want %q", ref, err, want)
		}
	}
	remove("host", errdef.Conflict)
	remove("nothing", errdef.NotFound)
	remove("base", "") // a name
	remove("tool:1", errdef.Conflict)
	if got, err := s.Resolve("tool:1"); err != nil || got.ID != tool.ID {
		t.Fatalf("it is %+v, %v", got, err)
	}
	if got, err := s.Resolve("base"); err != nil || got.Image != nil {
		t.Errorf("base is %+v, %v", got, err)
	}
	users = nil
	remove("tool:1", "")
	if _, err := s.Resolve(tool.ID); !errdef.Is(err, errdef.NotFound) || layers() != 1 {
		t.Errorf("it is there: %v, %d layers", err, layers())
	}
	if err := s.CheckImage(other); err != nil {
		t.Error(err)
	}
	remove(other.ID, "")
	if layers() != 0 {
		t.Errorf("%d layers are left", layers())
	}
}

// TestGarbage: what a killed server leaves of an image is found, told of, and
// removed. What has a name or a sandbox is not.
func TestGarbage(t *testing.T) {
	s, tool := imageStore(t, nil, tarOf(t, file{name: "f", data: "x"}))
	unnamed, err := s.Add(t.Context(), Request{Name: "moves", Archive: bytes.NewReader(saved(t, "moves:1", nil, tarOf(t, file{name: "old", data: "x"})))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(t.Context(), Request{Name: "moves", Archive: bytes.NewReader(saved(t, "moves:1", nil, tarOf(t, file{name: "new", data: "x"})))}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{unfinishedImage + "1/root/etc", "oci/staging/new-1/fs/x"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	later := At(s.dir) // of a process that knows no agent, as gc is
	find := func(used bool) (found []string) {
		t.Helper()
		list, err := later.Garbage(func(id string) bool { return used && id == unnamed.ID })
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range list {
			if g.Why == "" {
				t.Errorf("%s: nobody knows why", g.Path)
			}
			found = append(found, g.ID)
		}
		slices.Sort(found)
		return found
	}
	old := unnamed.Image.Layers[0].ID
	if got, want := find(true), []string{unfinishedImage + "1", "new-1"}; !slices.Equal(got, want) {
		t.Errorf("with a sandbox: %q, want %q", got, want)
	}
	want := []string{unfinishedImage + "1", "new-1", unnamed.ID, old}
	slices.Sort(want)
	if got := find(false); !slices.Equal(got, want) {
		t.Errorf("without: %q, want %q", got, want)
	}
	list, err := later.Garbage(func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list {
		if err := later.RemoveGarbage(g); err != nil {
			t.Error(err)
		}
	}
	if got := find(false); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	if err := s.CheckImage(tool); err != nil {
		t.Error(err)
	}
	// A layer that is garbage no more stays.
	if err := later.RemoveGarbage(Garbage{ID: tool.Image.Layers[0].ID, Path: s.images.LayerDir(tool.Image.Layers[0].ID)}); err != nil {
		t.Error(err)
	}
	if err := s.CheckImage(tool); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(s.images.LayerDir(tool.Image.Layers[0].ID)); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckImage(tool); err == nil {
		t.Error("a layer that is gone is not missed")
	}

	// With the agent of another server, it cannot be made, and the others can.
	next, _ := buildBase(t, s.dir, "agent 2")
	if err := next.Refresh(); err == nil || !strings.Contains(err.Error(), "tool:1") {
		t.Errorf("refreshed without a layer: %v", err)
	}
	if _, err := next.Resolve("moves"); err != nil {
		t.Error(err)
	}
	if _, err := next.Resolve("tool:1"); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("without its layer it is there: %v", err)
	}
}
