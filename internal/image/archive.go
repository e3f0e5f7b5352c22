package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// The files by which an archive is known.
const (
	layoutName   = "oci-layout"    // of an OCI image layout
	indexName    = "index.json"    // of it
	manifestName = "manifest.json" // of docker save
	blobsDir     = "blobs/sha256"
)

// Annotations that name an image in a layout.
const (
	refAnnotation        = "org.opencontainers.image.ref.name"
	containerdAnnotation = "io.containerd.image.name"
)

// bareTag is what builders write where a layout names its image, and have only a tag to
// write. That is no name.
var bareTag = lazyregexp.New(`^(latest|v?[0-9][0-9A-Za-z_.-]*)$`)

// Bounds of an archive.
const (
	maxDocument = 4 << 20 // of a manifest, a configuration or an index: it takes a hundred times as much memory as it has bytes
	maxFiles    = 10_000
)

// Load takes an image out of an archive: a tar of docker save or podman save, or
// of an OCI image layout, also compressed by gzip or zstd. There must be one
// image in it that is for this machine. keep is as with Pull.
//
// The archive names its layers only at its end, so it is kept on disk for as long
// as Load takes.
func (s *Store) Load(ctx context.Context, archive io.Reader, progress func(Progress), keep func(Image) error) error {
	err := s.load(ctx, archive, progress, keep)
	if err != nil {
		return fmt.Errorf("load image: %w", explain(err))
	}
	return nil
}

func (s *Store) load(ctx context.Context, archive io.Reader, progress func(Progress), keep func(Image) error) error {
	dir, err := s.stage()
	if err != nil {
		return err
	}
	defer func() { _ = s.unstage(dir) }() // what is left of it, gc removes
	a := archived{dir: dir}
	in, err := s.expand(ctx, "the archive of an image", &metered{in: io.NopCloser(archive), sum: sha256.New()})
	if err != nil {
		return err
	}
	defer in.Close()
	if err := a.receive(in); err != nil {
		return err
	}
	img, layers, err := a.image()
	if err != nil {
		return err
	}
	return s.placeAll(ctx, img, layers, progress, keep)
}

// archived is an archive that has been taken apart.
type archived struct{ dir string }

// receive writes the files of an archive into the directory. A file is named after
// the digest of its path, so that the archive chooses no name. Symbolic links are
// not made.
func (a archived) receive(archive *expanding) error {
	in := tar.NewReader(archive)
	for n := 0; ; n++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, io.LimitReader(archive, 1<<20)) // its padding
			return err
		}
		if err != nil {
			if errors.Is(err, tar.ErrHeader) {
				return damaged("this is no tar archive: %v", err)
			}
			return err
		}
		if n == maxFiles {
			return tooLarge("an archive of an image has more than %d files", maxFiles)
		}
		if isSparse(h) { // no program saves an image so
			return Invalid("the archive has %.200q as a sparse file", h.Name)
		}
		if err := a.take(h, in); err != nil {
			return err
		}
	}
}

func (a archived) take(h *tar.Header, data io.Reader) error {
	name, err := localName(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink: // docker save has them for a layer that is there twice
		target := h.Linkname
		if h.Typeflag == tar.TypeSymlink {
			target = path.Join(path.Dir(name), target)
		}
		if target, err = localName(path.Clean(target)); err != nil {
			return err
		}
		err := os.Link(a.file(target), a.file(name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			return Invalid("the archive has a link %.200q to %.200q, which is not before it", h.Name, h.Linkname)
		}
		return err
	default:
		return nil
	}
	f, err := os.OpenFile(a.file(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return Invalid("the archive has %.200q twice", h.Name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, data)
	return err
}

// file returns where a file of the archive is kept.
func (a archived) file(name string) string {
	return filepath.Join(a.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(name))))
}

// read returns a document.
func (a archived) read(name string) ([]byte, error) {
	f, err := os.Open(a.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged("the archive lacks %.200q", name)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err == nil && len(data) > maxDocument {
		err = tooLarge("%.200q of the archive has more than %d MiB", name, maxDocument>>20)
	}
	return data, err
}

func (a archived) has(name string) bool {
	_, err := os.Stat(a.file(name))
	return err == nil
}

// blob returns a document of a layout, checked against its digest.
func (a archived) blob(h v1.Hash) ([]byte, error) {
	data, err := a.read(blobName(h))
	if err == nil && fmt.Sprintf("%x", sha256.Sum256(data)) != h.Hex {
		err = damaged("%s of the archive has another digest", h)
	}
	return data, err
}

func blobName(h v1.Hash) string { return path.Join(blobsDir, h.Hex) }

// image finds the image. What docker save writes today is a layout as well, in
// which the manifest pins the image.
func (a archived) image() (Image, []source, error) {
	switch {
	case a.has(layoutName) && a.has(indexName):
		return a.layoutImage()
	case a.has(manifestName):
		return a.savedImage()
	}
	return Image{}, nil, Invalid("the archive has neither %s and %s, as an OCI image layout, nor %s, as docker save writes it", layoutName, indexName, manifestName)
}

func (a archived) layoutImage() (Image, []source, error) {
	data, err := a.read(indexName)
	if err != nil {
		return Image{}, nil, err
	}
	desc, ref, err := a.only(data, 0)
	if err != nil {
		return Image{}, nil, err
	}
	data, err = a.blob(desc.Digest)
	if err != nil {
		return Image{}, nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return Image{}, nil, damaged("the manifest of the image cannot be read: %v", err)
	}
	if data, err = a.blob(m.Config.Digest); err != nil {
		return Image{}, nil, err
	}
	conf, err := v1.ParseConfigFile(bytes.NewReader(data))
	if err != nil {
		return Image{}, nil, damaged("the configuration of the image cannot be read: %v", err)
	}
	layers, err := sourcesOf(m, conf, func(d v1.Descriptor) func(context.Context, int64) (io.ReadCloser, error) {
		return a.opener(blobName(d.Digest))
	})
	return Image{Ref: ref, Digest: desc.Digest.String(), Platform: platformOf(conf), Config: configurationOf(conf)}, layers, err
}

// only returns the one image of an index that is for this machine, and what the
// index calls it.
func (a archived) only(index []byte, depth int) (v1.Descriptor, string, error) {
	list, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return v1.Descriptor{}, "", damaged("the index of the archive cannot be read: %v", err)
	}
	if len(list.Manifests) > 1 && list.Manifests[0].Platform == nil {
		return v1.Descriptor{}, "", Invalid("there are %d images in the archive", len(list.Manifests)).
			WithRemedy("save one image only")
	}
	desc, err := choose(list, "the image")
	if err != nil {
		return desc, "", err
	}
	ref := desc.Annotations[containerdAnnotation]
	if ref == "" {
		ref = desc.Annotations[refAnnotation]
	}
	if full, err := Reference(ref); err == nil && !bareTag.MatchString(ref) {
		ref = full
	} else {
		ref = ""
	}
	if !desc.MediaType.IsIndex() {
		return desc, ref, nil
	}
	if depth > 2 {
		return desc, "", Invalid("the indexes of the archive are nested too deeply")
	}
	data, err := a.blob(desc.Digest)
	if err != nil {
		return desc, "", err
	}
	below, inner, err := a.only(data, depth+1)
	if inner != "" {
		ref = inner
	}
	return below, ref, err
}

// opener opens a file of the archive from an offset on.
func (a archived) opener(name string) func(context.Context, int64) (io.ReadCloser, error) {
	return func(_ context.Context, offset int64) (io.ReadCloser, error) {
		f, err := os.Open(a.file(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, damaged("the archive lacks %.200q", name)
		}
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// savedImage is an image in the old form of docker save, without a manifest of
// its own.
func (a archived) savedImage() (Image, []source, error) {
	data, err := a.read(manifestName)
	if err != nil {
		return Image{}, nil, err
	}
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return Image{}, nil, damaged("%s of the archive cannot be read: %v", manifestName, err)
	}
	if len(list) != 1 {
		return Image{}, nil, Invalid("there are %d images in the archive", len(list)).WithRemedy("save one image only")
	}
	saved := list[0]
	if data, err = a.read(path.Clean("./" + saved.Config)); err != nil {
		return Image{}, nil, err
	}
	conf, err := v1.ParseConfigFile(bytes.NewReader(data))
	if err != nil {
		return Image{}, nil, damaged("the configuration of the image cannot be read: %v", err)
	}
	if err := checkConfig(conf, len(saved.Layers)); err != nil {
		return Image{}, nil, err
	}
	layers := make([]source, len(saved.Layers))
	for i, name := range saved.Layers {
		name = path.Clean("./" + name)
		info, err := os.Stat(a.file(name))
		if err != nil {
			return Image{}, nil, damaged("the archive lacks %.200q", name)
		}
		layers[i] = source{diffID: conf.RootFS.DiffIDs[i], size: info.Size(), open: a.opener(name)}
	}
	img := Image{Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Platform: platformOf(conf), Config: configurationOf(conf)}
	if len(saved.RepoTags) > 0 {
		if full, err := Reference(saved.RepoTags[0]); err == nil {
			img.Ref = full
		}
	}
	return img, layers, nil
}
