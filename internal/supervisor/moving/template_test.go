package moving

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
)

// server returns the templates of a server with an agent of its own.
func server(t *testing.T, agent string) *template.Store {
	t.Helper()
	s, err := template.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.BuildBase(template.Agent{Sum: fmt.Sprintf("%x", sha256.Sum256([]byte(agent))), Program: func() ([]byte, error) { return []byte(agent), nil }}); err != nil {
		t.Fatal(err)
	}
	return s
}

// load makes a template of an image with one file.
func load(t *testing.T, s *template.Store, called, content string) template.Template {
	t.Helper()
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("example.com/" + called)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, img, &archive); err != nil {
		t.Fatal(err)
	}
	made, err := s.Add(t.Context(), template.Request{Archive: &archive, Name: called})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestTemplateFor: the files of a sandbox come to lie on the image that they were
// made on, whatever its name means here.
func TestTemplateFor(t *testing.T) {
	from, to := server(t, "agent 1"), server(t, "agent 2")
	host, err := from.Resolve(template.Host)
	if err != nil {
		t.Fatal(err)
	}
	first, second := load(t, from, "tool:1", "1"), load(t, from, "tool:2", "2")
	here := load(t, to, "mine", "1")
	load(t, to, "tool:1", "3") // the name has another meaning here
	if here.ID == first.ID || here.Digest() != first.Digest() || first.Digest() == second.Digest() {
		t.Fatalf("here it is %s of %s, there %s of %s; another image is %s", here.ID, here.Digest(), first.ID, first.Digest(), second.Digest())
	}
	if _, err := to.Set("base", "tool:1"); err != nil {
		t.Fatal(err)
	}

	manifest := func(of template.Template, alias string, format int) bundle.Manifest {
		m := bundle.Manifest{Format: format, ID: "i1", Config: store.Config{Template: of.ID, Alias: alias, Image: of.Digest()}}
		if !m.KnowsImage() {
			m.Config.Image = ""
		}
		return m
	}
	for about, c := range map[string]struct {
		m      bundle.Manifest
		alias  string
		digest string
	}{
		"the same name and image":            {manifest(here, "mine", 3), "mine", here.Digest()},
		"a name with another meaning":        {manifest(first, "tool:1", 3), "mine", first.Digest()},
		"no name":                            {manifest(first, "", 3), "mine", first.Digest()},
		"the host's system by its own name":  {manifest(host, template.Host, 3), template.Host, ""},
		"the host's system by base":          {manifest(host, "base", 3), template.Host, ""},
		"an old export, which has the name":  {manifest(here, "mine", 2), "mine", here.Digest()},
		"an old export of the host's system": {manifest(host, template.Host, 1), template.Host, ""},
	} {
		if got, err := TemplateFor(to, c.m); err != nil || got.Alias != c.alias || got.Digest() != c.digest {
			t.Errorf("%s: %s, %q, %v; want %s, %q", about, got.Alias, got.Digest(), err, c.alias, c.digest)
		}
	}

	for about, m := range map[string]bundle.Manifest{
		"its name has another meaning": manifest(second, "tool:1", 3),
		"its name means nothing":       manifest(second, "tool:2", 3),
	} {
		_, err := TemplateFor(to, m)
		if !errdef.Is(err, errdef.Unsupported) || !strings.Contains(err.Error(), second.Digest()) {
			t.Errorf("without the image, where %s: %v", about, err)
		}
	}
	if got, err := TemplateFor(to, manifest(second, "tool:2", 2)); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("an old export of an unknown name: %+v, %v", got, err)
	}

	// A name that looks like a digest gets no sandbox of another image.
	if _, err := to.Set(second.Digest(), "mine"); err != nil {
		t.Fatal(err)
	}
	if got, err := TemplateFor(to, manifest(second, "tool:2", 3)); !errdef.Is(err, errdef.Unsupported) {
		t.Errorf("by a name like its digest: %+v, %v", got, err)
	}
}
