package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// outgoing is an image of files whose contents a function gives.
func outgoing(files ...func() []byte) Outgoing {
	o := Outgoing{Config: Configuration{Env: []string{"A=b"}, User: "user"}, MadeAt: time.Unix(1_700_000_000, 0)}
	for i, data := range files {
		o.History = append(o.History, fmt.Sprint("part ", i))
		o.Parts = append(o.Parts, func(_ context.Context, out io.Writer) error {
			w := tar.NewWriter(out)
			text := data()
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("file%d", i), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
				return err
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
			return w.Close()
		})
	}
	return o
}

func always(text string) func() []byte { return func() []byte { return []byte(text) } }

// random does not compress.
func random(n int) []byte {
	out := make([]byte, n)
	x := uint32(1)
	for i := range out {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out[i] = byte(x)
	}
	return out
}

// front is a registry behind a handler that may do as it likes.
func front(t *testing.T, before func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || before(w, r) {
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func mustPack(t *testing.T, o Outgoing) *Packed {
	t.Helper()
	p, err := Pack(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func codeIn(err error) string {
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

// taken returns the image that a store takes in.
func taken(t *testing.T, s *Store, fetch func(keep func(Image) error) error) (img Image) {
	t.Helper()
	if err := fetch(func(got Image) error { img = got; return nil }); err != nil {
		t.Fatal(err)
	}
	return img
}

// TestPushAndPull sends an image out and takes it in again: from a registry, and
// from an archive.
func TestPushAndPull(t *testing.T) {
	addr := front(t, nil)
	// The last part is what a reader would take for an attack if it came compressed.
	p := mustPack(t, outgoing(always("one"), func() []byte { return random(3 << 20) }, always(""), func() []byte { return make([]byte, 80<<20) }))
	made, err := p.Push(t.Context(), addr+"/a/b:1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last := made.Layers[3]; last.Size != last.Bytes {
		t.Errorf("a layer that expands 1000 times is sent as %d bytes of %d", last.Size, last.Bytes)
	}
	s := At(t.TempDir(), DefaultLimits)
	fromRegistry := taken(t, s, func(keep func(Image) error) error { return s.Pull(t.Context(), addr+"/a/b:1", nil, nil, keep) })
	if fromRegistry.Digest != made.Digest || fromRegistry.Source != made.Ref || len(fromRegistry.Layers) != 4 || fromRegistry.Config.User != "user" {
		t.Errorf("pulled %+v, pushed %+v", fromRegistry, made)
	}
	var archive bytes.Buffer
	if err := p.Save(t.Context(), &archive, "a/b:1"); err != nil {
		t.Fatal(err)
	}
	other := At(t.TempDir(), DefaultLimits)
	fromFile := taken(t, other, func(keep func(Image) error) error { return other.Load(t.Context(), &archive, nil, keep) })
	if fromFile.Digest != made.Digest || fromFile.Ref != "index.docker.io/a/b:1" {
		t.Errorf("loaded %+v", fromFile)
	}
}

// TestPushCut has the registry break off each upload some times, and then work.
func TestPushCut(t *testing.T) {
	var cuts atomic.Int64
	addr := front(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || cuts.Add(1) > 2 {
			return true
		}
		_, _ = io.CopyN(io.Discard, r.Body, 100_000)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return false
		}
		conn.Close()
		return false
	})
	p := mustPack(t, outgoing(func() []byte { return random(4 << 20) }))
	made, err := p.Push(t.Context(), addr+"/a:1", nil, nil)
	if err != nil || cuts.Load() < 3 {
		t.Fatalf("after %d uploads: %v", cuts.Load(), err)
	}
	s := At(t.TempDir(), DefaultLimits)
	if img := taken(t, s, func(keep func(Image) error) error { return s.Pull(t.Context(), addr+"/a:1", nil, nil, keep) }); img.Digest != made.Digest {
		t.Errorf("pulled %s, pushed %s", img.Digest, made.Digest)
	}
}

// TestPushRefused has a push fail in many ways. No tag is set.
func TestPushRefused(t *testing.T) {
	fail := func(method, path string, status int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || !strings.Contains(r.URL.Path, path) {
				return true
			}
			w.WriteHeader(status)
			return false
		}
	}
	var calls atomic.Int64
	changing := func() []byte { return fmt.Appendf(random(300_000), "%09d", calls.Add(1)) }
	growing := func() []byte { return random(300_000 + int(calls.Add(1))<<16) }
	for name, c := range map[string]struct {
		o      Outgoing
		before func(http.ResponseWriter, *http.Request) bool
		code   string
	}{
		"denied":           {outgoing(always("a")), fail(http.MethodPost, "/blobs/", http.StatusForbidden), "image_denied"},
		"who are you":      {outgoing(always("a")), fail(http.MethodPost, "/blobs/", http.StatusUnauthorized), "image_denied"},
		"no space there":   {outgoing(always("a")), fail(http.MethodPatch, "/blobs/", http.StatusInsufficientStorage), "image_unavailable"},
		"no such place":    {outgoing(always("a")), fail(http.MethodPost, "/blobs/", http.StatusNotFound), "image_not_found"},
		"manifest refused": {outgoing(always("a")), fail(http.MethodPut, "/manifests/", http.StatusBadRequest), "image_invalid"},
		"changed":          {outgoing(changing), nil, "files_changed"},
		"grown":            {outgoing(growing), nil, "files_changed"},
		"says it has another": {outgoing(always("a")), func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return true
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			_, _ = io.WriteString(w, `{"schemaVersion":2}`)
			return false
		}, "image_unavailable"},
		"takes it and has nothing": {outgoing(always("a")), func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut {
				return true
			}
			w.WriteHeader(http.StatusCreated)
			return false
		}, "image_not_found"},
		"removed meanwhile": {func() Outgoing {
			o := outgoing(always("a"))
			checks := 0
			o.Check = func() error {
				if checks++; checks > 1 {
					return errdef.New(errdef.Conflict, "snapshot_removed", "it is gone")
				}
				return nil
			}
			return o
		}(), nil, "snapshot_removed"},
	} {
		t.Run(name, func(t *testing.T) {
			var tagged atomic.Bool
			addr := front(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
					tagged.Store(true)
				}
				return c.before == nil || c.before(w, r)
			})
			_, err := mustPack(t, c.o).Push(t.Context(), addr+"/a:1", nil, nil)
			if codeIn(err) != c.code {
				t.Errorf("%v, want %s", err, c.code)
			}
			if (c.code == "files_changed" || c.code == "snapshot_removed") && tagged.Load() {
				t.Error("a tag was set")
			}
		})
	}
	if err := CheckTag("name@sha256:" + strings.Repeat("0", 64)); codeIn(err) != "image_reference_invalid" {
		t.Error(err)
	}
}

// TestPushStopped ends a push whose registry takes nothing more.
func TestPushStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	addr := front(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch {
			return true
		}
		cancel()
		<-release
		return false
	})
	defer close(release)
	_, err := mustPack(t, outgoing(func() []byte { return random(32 << 20) })).Push(ctx, addr+"/a:1", nil, nil)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSaveChanged breaks an archive off whose files are not what they were.
func TestSaveChanged(t *testing.T) {
	var calls atomic.Int64
	p := mustPack(t, outgoing(func() []byte { return fmt.Appendf(random(300_000), "%09d", calls.Add(1)) }))
	var out bytes.Buffer
	if err := p.Save(t.Context(), &out, ""); codeIn(err) != "files_changed" {
		t.Error(err)
	}
	s := At(t.TempDir(), DefaultLimits)
	if err := s.Load(t.Context(), &out, nil, func(Image) error { return nil }); err == nil {
		t.Error("what was broken off was loaded")
	}
}
