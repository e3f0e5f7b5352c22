package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/drowse-dev/drowse/client"
)

// imageRegistry is a registry that asks for a password.
type imageRegistry struct {
	t      testing.TB
	addr   string
	config string // the directory with Docker's configuration
	blobs  atomic.Int64
	open   atomic.Bool // pushes need no password
}

func startRegistry(t testing.TB) *imageRegistry {
	t.Helper()
	r := &imageRegistry{t: t, config: t.TempDir()}
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); !r.open.Load() && (user != "me" || password != "secret") {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.blobs.Add(1)
		}
		next.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	r.addr = strings.TrimPrefix(s.URL, "http://")
	login := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.addr, base64.StdEncoding.EncodeToString([]byte("me:secret")))
	if err := os.WriteFile(filepath.Join(r.config, "config.json"), []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// push puts an image of layers into the registry and returns its digest.
func (r *imageRegistry) push(ref string, config v1.Config, layers ...v1.Layer) string {
	r.t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		r.t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		r.t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture, conf.Config = "linux", runtime.GOARCH, config
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		r.t.Fatal(err)
	}
	at, err := name.ParseReference(r.addr + "/" + ref)
	if err != nil {
		r.t.Fatal(err)
	}
	r.open.Store(true)
	defer r.open.Store(false)
	if err := remote.Write(at, img); err != nil {
		r.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	return digest.String()
}

// imageFile is a file of a layer.
type imageFile struct {
	name, data, link string
	kind             byte // of the tar package; 0 for a regular file
	mode             int64
	uid              int
}

func imageLayer(t testing.TB, files ...imageFile) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.data)), ModTime: time.Unix(1_700_000_000, 0)}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
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
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// guestLayer is a program and nothing else: no shell, no C library, no /etc.
func guestLayer(t testing.TB) v1.Layer {
	t.Helper()
	program, err := os.ReadFile(guestBinary)
	if err != nil {
		t.Fatal(err)
	}
	return imageLayer(t, imageFile{name: "app/", kind: tar.TypeDir, mode: 0o755}, imageFile{name: "app/guest", data: string(program), mode: 0o755},
		imageFile{name: "app/old", data: "old", mode: 0o644},
		imageFile{name: "data/", kind: tar.TypeDir, mode: 0o700, uid: 1000}, imageFile{name: "data/kept", data: "kept", mode: 0o600, uid: 1000},
		imageFile{name: "data/hidden", data: "hidden", mode: 0o600, uid: 1000})
}

func count(ctx context.Context, t *testing.T, sb *client.Sandbox) string {
	t.Helper()
	var out string
	eventually(t, 30*time.Second, "an answer of the counter", func() error {
		var text bytes.Buffer
		exit, err := sb.Run(ctx, client.Command{Args: []string{"/app/guest", "count"}, Stdout: &text, Stderr: &text})
		if out = text.String(); err == nil && exit.Code != 0 {
			err = errors.New(out)
		}
		return err
	})
	n, _, _ := strings.Cut(out, ",")
	return n
}

// TestImages pulls an image without a shell from a registry that asks for a
// password, and has a sandbox of it count in memory over a sleep, a crash of the
// server and a change of the image's tag.
func TestImages(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	reg := startRegistry(t)
	base := guestLayer(t)
	digest := reg.push("tools/guest:1", v1.Config{Env: []string{"COLOR=blue", "PATH=/app"}, WorkingDir: "/data"}, base,
		imageLayer(t, imageFile{name: "app/.wh.old"}, imageFile{name: "data/", kind: tar.TypeDir, mode: 0o700, uid: 1000},
			imageFile{name: "data/.wh..wh..opq"}, imageFile{name: "data/new", data: "new", mode: 0o600, uid: 1000}))
	s := newServer(t, stateDir(t))
	s.env = append(s.env, "DOCKER_CONFIG="+reg.config)
	s.start()
	all := client.NewTemplates(s.client)
	unpacked := 0
	made, err := all.Pull(ctx, client.PullOptions{Image: reg.addr + "/tools/guest:1", Progress: func(p client.LayerProgress) {
		if p.State == "unpacked" {
			unpacked++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if made.Image == nil || made.Image.Digest != digest || !slices.Equal(made.Names, []string{"guest:1"}) || unpacked != 2 {
		t.Errorf("template %+v, %d layers unpacked", made, unpacked)
	}

	o := sleeper
	o.Template = "guest:1"
	sb := s.create(ctx, o)
	if info, err := s.client.Get(ctx, sb.ID); err != nil || info.Template != made.ID {
		t.Errorf("sandbox %+v, %v", info, err)
	}
	for path, want := range map[string]string{"/data/new": "new", "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"} {
		if got := readAll(ctx, t, sb, path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"/app/old", "/data/kept", "/data/hidden"} {
		if _, err := sb.ReadFile(ctx, path); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s, which a layer removes: %v", path, err)
		}
	}
	if exit, err := sb.Run(ctx, client.Command{Args: []string{"/bin/bash", "-l", "-c", "true"}}); err == nil || !strings.Contains(err.Error(), "no shell") {
		t.Errorf("a shell that there is not ran: %+v, %v", exit, err)
	}
	if _, err := sb.Start(ctx, client.Command{Args: []string{"guest", "counter"}}); err != nil {
		t.Fatal(err)
	}
	if n := count(ctx, t, sb); n != `{"Count":1` {
		t.Errorf("counted %s", n)
	}

	// The tag moves, and the layers that both have are not fetched again.
	before := reg.blobs.Load()
	moved := reg.push("tools/guest:1", v1.Config{}, base, imageLayer(t, imageFile{name: "data/other", data: "other", mode: 0o644}))
	again, err := all.Pull(ctx, client.PullOptions{Image: reg.addr + "/tools/guest:1"})
	if err != nil || again.ID == made.ID || again.Image.Digest != moved {
		t.Errorf("again %+v, %v", again, err)
	}
	if n := reg.blobs.Load() - before; n != 2 { // a configuration and a layer
		t.Errorf("%d blobs were fetched", n)
	}
	s.pause(ctx, sb.ID)
	s.crash()
	s.start()
	s.connect(ctx, sb.ID)
	if n := count(ctx, t, sb); n != `{"Count":2` {
		t.Errorf("counted %s after the sleep", n)
	}
	if got := readAll(ctx, t, sb, "/data/new"); got != "new" {
		t.Errorf("after the sleep /data/new is %q", got)
	}
	other := s.create(ctx, o)
	if got := readAll(ctx, t, other, "/data/other"); got != "other" {
		t.Errorf("of the new image /data/other is %q", got)
	}

	// What a sandbox needs is not removed.
	if err := all.Remove(ctx, "guest:1"); !errors.Is(err, client.ErrConflict) || !strings.Contains(err.Error(), other.ID) {
		t.Errorf("removed beside a sandbox: %v", err)
	}
	s.kill(ctx, t, other.ID)
	eventually(t, time.Minute, "the removal of the template", func() error { return all.Remove(ctx, "guest:1") })
	s.pause(ctx, sb.ID)
	s.waitGone(sb.ID)
	s.crash()
	if found, code := s.fsck(t, "--repair"); code != 0 {
		t.Errorf("fsck ends with %d and %+v", code, found)
	}
	s.start()
	s.connect(ctx, sb.ID)
	if n := count(ctx, t, sb); n != `{"Count":3` {
		t.Errorf("counted %s at last", n)
	}
	s.kill(ctx, t, sb.ID)
	s.waitGone(sb.ID)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	layers := func() int { return len(layerDirs(t, s)) }
	if n := layers(); n != 2 {
		t.Errorf("%d layers are there before gc", n)
	}
	if things, code := s.gc(t); code != 0 || !slices.ContainsFunc(things, func(g garbage) bool { return g.Kind == "oci" && g.ID == made.ID && g.Removed && g.Why != "" }) {
		t.Errorf("gc ends with %d and %+v", code, things)
	}
	// Layers have their time, for who pulls the image again.
	old := time.Now().Add(-time.Hour)
	for _, g := range layerDirs(t, s) {
		if err := os.Chtimes(g, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if things, code := s.gc(t); code != 0 || layers() != 0 {
		t.Errorf("gc ends with %d and %+v, %d layers are left", code, things, layers())
	}
}

func layerDirs(t *testing.T, s *server) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.dir(), "templates/oci/layers/*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// savedImage returns an image of these files as docker save would write it.
func savedImage(t *testing.T, ref string, config v1.Config, files ...imageFile) io.Reader {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, imageLayer(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture, conf.Config = "linux", runtime.GOARCH, config
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tarball.Write(tag, img, &saved); err != nil {
		t.Fatal(err)
	}
	return &saved
}

// TestImageWithPlainShell loads an image of busybox alone, sets base to it, and
// runs what SDKs send: a login shell by the name of bash.
func TestImageWithPlainShell(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	program, err := os.ReadFile("/usr/bin/busybox") // static; of the package busybox-static
	if err != nil {
		t.Fatal(err)
	}
	files := []imageFile{{name: "bin/busybox", data: string(program), mode: 0o755}}
	for _, applet := range []string{"sh", "id", "cat", "stat", "ls"} {
		files = append(files, imageFile{name: "bin/" + applet, kind: tar.TypeSymlink, link: "busybox", mode: 0o777})
	}
	files = append(files, imageFile{name: "lib/", kind: tar.TypeDir, mode: 0o755}, imageFile{name: "usr/lib", kind: tar.TypeSymlink, link: "../lib", mode: 0o777})
	files = append(files, imageFile{name: "secret", data: "root's", mode: 0o600}, imageFile{name: "linked", kind: tar.TypeLink, link: "secret"})
	saved := savedImage(t, "tools/busy:1", v1.Config{Env: []string{"PATH=/bin:/usr/bin:/opt/tool"}}, files...)
	s := startServer(t)
	all := client.NewTemplates(s.client)
	if made, err := all.Load(ctx, saved, "", nil); err != nil || !slices.Equal(made.Names, []string{"busy:1"}) {
		t.Fatalf("loaded %+v, %v", made, err)
	}
	if _, err := all.Set(ctx, "base", "busy:1"); err != nil {
		t.Fatal(err)
	}
	sb := s.create(ctx, sleeper) // of base
	shell := func(script, want string) {
		t.Helper()
		if exit, out := run(ctx, t, sb, "/bin/bash", "-l", "-c", script); exit.Code != 0 || out != want {
			t.Errorf("%s: %s: %q, want %q", script, exit.Status, out, want)
		}
	}
	shell(`echo $PATH; id -u; cat /secret 2>/dev/null || echo closed`, "/bin:/usr/bin:/opt/tool\n1000\nclosed\n")
	shell(`sudo cat /linked; sudo stat -c %h /secret`, "root's2\n")
	shell(`echo kept > ~/file; cd /tmp && pwd`, "/tmp\n")
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	shell(`cat ~/file`, "kept\n")

	// The agent is where the image's link leads, and cannot be replaced there.
	agent := shellOut(ctx, t, sb, `/bin/busybox sha256sum </usr/lib/drowse/agent`)
	if want := shellOut(ctx, t, sb, `sudo /bin/sh -c "/bin/busybox sha256sum </proc/1/exe"`); agent != want {
		t.Errorf("the agent there is %q, and %q runs", agent, want)
	}
	for _, attempt := range []string{"/bin/busybox cp /bin/busybox", "/bin/busybox rm -f", "/bin/busybox truncate -s 0"} {
		shell(`sudo `+attempt+` /usr/lib/drowse/agent 2>/dev/null && echo "it was changed" || echo kept`, "kept\n")
	}
	shell(`sudo /bin/busybox sh -ec '
		cd /bin
		./busybox mv /lib/drowse /lib/moved
		for dir in /lib/drowse /false/drowse; do
			./busybox mkdir -p $dir
			echo "#!/bin/sh" >$dir/agent
			./busybox chmod 755 $dir/agent
		done
		./busybox rm /usr/lib
		./busybox ln -s /false /usr/lib
	'`, "")
	pauseFiles(ctx, s, sb.ID)
	s.waitGone(sb.ID)
	s.connect(ctx, sb.ID)
	if now := shellOut(ctx, t, sb, `/bin/busybox sha256sum </lib/drowse/agent`); now != agent {
		t.Errorf("the agent was %q and is %q", agent, now)
	}

	if _, err := all.Set(ctx, "base", "host"); err != nil {
		t.Fatal(err)
	}
	if exit, out := run(ctx, t, s.create(ctx, sleeper), "/bin/bash", "-c", "test -e /bin/busybox.static || echo host"); exit.Code != 0 || out != "host\n" {
		t.Errorf("the host's system: %s: %q", exit.Status, out)
	}
}

// shellOut returns what a script prints.
func shellOut(ctx context.Context, t *testing.T, sb *client.Sandbox, script string) string {
	t.Helper()
	exit, out := run(ctx, t, sb, "/bin/bash", "-l", "-c", script)
	if exit.Code != 0 || out == "" {
		t.Fatalf("%s: %s: %q", script, exit.Status, out)
	}
	return out
}

func readAll(ctx context.Context, t *testing.T, sb *client.Sandbox, path string) string {
	t.Helper()
	in, err := sb.ReadFile(ctx, path)
	if err != nil {
		t.Errorf("read %s: %v", path, err)
		return ""
	}
	defer in.Close()
	data, err := io.ReadAll(in)
	if err != nil {
		t.Errorf("read %s: %v", path, err)
	}
	return string(data)
}
