package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const created = 1700000000

// made makes an image of a small system, and returns its file.
func made(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	for _, name := range []string{"./", "./usr/", "./usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"root.tar": root.Bytes(), "drowse": []byte("program"), "LICENSE": []byte("licence")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(dir, "image.tar")
	args := []string{
		"-version", version, "-created", "1700000000", "-arch", "arm64", "-root", filepath.Join(dir, "root.tar"),
		"-binary", filepath.Join(dir, "drowse"), "-license", filepath.Join(dir, "LICENSE"), name,
	}
	if err := run(args); err != nil {
		t.Fatal(err)
	}
	return name
}

// laid unpacks an image's file, and returns the image that its layout has.
func laid(t *testing.T, name string) (v1.Image, v1.Descriptor) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-C", dir, "-xf", name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index.json has %v, %v", manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img, manifest.Manifests[0]
}

func TestImage(t *testing.T) {
	name := made(t, "1.2.3")
	img, d := laid(t, name)
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	if d.Platform.String() != "linux/arm64" || d.Annotations["org.opencontainers.image.ref.name"] != "localhost/drowse:1.2.3" {
		t.Errorf("index.json has %+v", d)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || config.Created.Unix() != created || len(config.History) != 2 {
		t.Errorf("the configuration is %+v", config)
	}
	c := config.Config
	if got := strings.Join(append(c.Entrypoint, c.Cmd...), " "); got != "/usr/bin/tini -- /usr/bin/drowse serve" {
		t.Errorf("the image runs %q", got)
	}
	if !slices.Contains(c.Env, "DROWSE_ON_SHUTDOWN=pause") || c.StopSignal != "SIGTERM" || c.Labels["org.opencontainers.image.version"] != "1.2.3" {
		t.Errorf("the configuration is %+v", c)
	}
	if want := map[string]struct{}{"/var/lib/drowse": {}}; !reflect.DeepEqual(c.Volumes, want) {
		t.Errorf("the volumes are %v", c.Volumes)
	}

	var got []string
	contents := mutate.Extract(img)
	defer contents.Close()
	for r := tar.NewReader(contents); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(r)
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+string(data))
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
	}
	for _, want := range []string{
		"-rwxr-xr-x usr/bin/drowse program", "-rw-r--r-- usr/share/doc/drowse/copyright licence", "drwx------ var/lib/drowse ", "drwxr-xr-x usr/bin ",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in the image:\n%q", want, got)
		}
	}

	// Engines that know no layouts read manifest.json.
	saved, err := tarball.ImageFromPath(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := saved.ConfigName(); err != nil || digest != want {
		t.Errorf("manifest.json has the image %s, %v; want %s", digest, err, want)
	}
}

func TestSameTwice(t *testing.T) {
	var sums [2][32]byte
	for i := range sums {
		data, err := os.ReadFile(made(t, "1.2.3"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(data)
	}
	if sums[0] != sums[1] {
		t.Error("two images of the same files differ")
	}
}

// TestTag has a version that is none of the names that a tag may have.
func TestTag(t *testing.T) {
	if _, d := laid(t, made(t, "0.0.0~2026.abc+1")); d.Annotations["org.opencontainers.image.ref.name"] != "localhost/drowse:0.0.0-2026.abc-1" {
		t.Errorf("index.json has %+v", d)
	}
}

// TestNothingIsLeft has a system that is not there.
func TestNothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	err := write(filepath.Join(dir, "image.tar"), options{arch: "amd64", created: time.Unix(created, 0), root: filepath.Join(dir, "none"), binary: "main.go", license: "main.go"})
	if left, _ := os.ReadDir(dir); err == nil || len(left) > 0 {
		t.Errorf("the error is %v, and %v is left", err, left)
	}
}
