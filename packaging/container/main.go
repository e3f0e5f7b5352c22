// Command container makes the container image of a release: a system that sandboxes of the
// template "base" see, and drowse. It needs no container engine.
//
// The image is a tar of an OCI image layout, with the file of "docker save" besides, so
// that every engine loads it. It is the same, byte by byte, when it is made again of the
// same files.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options are what an image is made of.
type options struct {
	version string
	created time.Time
	arch    string
	root    string // tar of the system
	binary  string
	license string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var o options
	flags := flag.NewFlagSet("container", flag.ContinueOnError)
	flags.StringVar(&o.version, "version", "unknown", "version of drowse")
	created := flags.Int64("created", 0, "time of everything that is added, in seconds since 1970")
	flags.StringVar(&o.arch, "arch", "amd64", "architecture of the binary and the system")
	flags.StringVar(&o.root, "root", "", "tar of the system")
	flags.StringVar(&o.binary, "binary", "", "drowse, static")
	flags.StringVar(&o.license, "license", "LICENSE", "its licence")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.created = time.Unix(*created, 0).UTC()
	if flags.NArg() != 1 || o.root == "" || o.binary == "" {
		return errors.New("usage: container -version VERSION -root ROOT.tar -binary DROWSE IMAGE.tar")
	}
	return write(flags.Arg(0), o)
}

// write makes the image and puts it into a file, which is whole or not there.
func write(name string, o options) (err error) {
	img, err := build(o)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(name), ".image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := lay(filepath.Join(dir, "layout"), img, o); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "tar"))
	if err != nil {
		return err
	}
	if err := errors.Join(pack(file, os.DirFS(filepath.Join(dir, "layout")), o.created), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// build puts the layers and the configuration together.
func build(o options) (v1.Image, error) {
	files, err := layerOf(o)
	if err != nil {
		return nil, err
	}
	root, err := tarball.LayerFromFile(o.root, compression...)
	if err != nil {
		return nil, fmt.Errorf("read the system: %w", err)
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{Layer: root, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "the system of the template base"}},
		mutate.Addendum{Layer: files, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "drowse " + o.version}},
	)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = o.arch, "linux", v1.Time{Time: o.created}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/tini", "--", "/usr/bin/drowse"},
		Cmd:        []string{"serve"},
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			// The container's own loopback is reached by nobody else.
			"DROWSE_LISTEN=0.0.0.0:3000",
			// All processes end with the container.
			"DROWSE_ON_SHUTDOWN=pause",
		},
		ExposedPorts: map[string]struct{}{"3000/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/drowse": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "drowse",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/drowse-dev/drowse",
		},
	}
	return mutate.ConfigFile(img, config)
}

// compression is that of all layers.
var compression = []tarball.LayerOption{tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching}

// layerOf makes the layer with drowse.
func layerOf(o options) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		from string // "" for a directory
		mode int64
	}{
		{"usr/bin/drowse", o.binary, 0o755},
		{"usr/share/doc/drowse/", "", 0o755},
		{"usr/share/doc/drowse/copyright", o.license, 0o644},
		{"var/lib/drowse/", "", 0o700},
	} {
		var data []byte
		h := &tar.Header{Name: f.name, Mode: f.mode, ModTime: o.created, Typeflag: tar.TypeDir, Format: tar.FormatUSTAR}
		if f.from != "" {
			var err error
			if data, err = os.ReadFile(f.from); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }, compression...)
}

// lay writes an OCI image layout, and manifest.json for engines that know no other.
func lay(dir string, img v1.Image, o options) error {
	tag := "localhost/drowse:" + regexp.MustCompile(`[^A-Za-z0-9._-]`).ReplaceAllString(o.version, "-")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: o.arch}),
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": tag}))
	if err != nil {
		return err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return "blobs/sha256/" + d.Digest.Hex }
	saved := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(manifest.Config), RepoTags: []string{tag}}
	for _, l := range manifest.Layers {
		saved.Layers = append(saved.Layers, blob(l))
	}
	data, err := json.Marshal([]any{saved})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), data, 0o644)
}

// pack writes the files of a directory as a tar, sorted by name.
func pack(w io.Writer, dir fs.FS, created time.Time) error {
	t := tar.NewWriter(w)
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		h := &tar.Header{Name: name + "/", Mode: 0o755, ModTime: created, Typeflag: tar.TypeDir, Format: tar.FormatUSTAR}
		if d.IsDir() {
			return t.WriteHeader(h)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h.Name, h.Mode, h.Typeflag, h.Size = name, 0o644, tar.TypeReg, info.Size()
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		f, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
	return errors.Join(err, t.Close())
}
