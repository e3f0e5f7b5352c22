package layer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/golden"
)

// imageFile is the one file of the images in testdata.
const imageFile = "what a runtime wrote\n"

// TestImageForm: the manifest of a memory image is what servers of its version
// read, and each version that was ever written is read, or refused by its number.
func TestImageForm(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// store puts an image there whose manifest is this.
	store := func(id, manifest string) string {
		dir := s.ImageDir(id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"memory": imageFile, manifestName: manifest} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return digestOf([]byte(manifest))
	}
	dir, err := s.NewImage("image")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "memory"), []byte(imageFile), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := Manifest{
		Version: wholeVersion, ID: "image", Runtime: "gvisor release-1", Build: strings.Repeat("0f", 32), Stack: []string{"a-1", "a-2"}, System: &System{Digest: "names", Exact: "times"},
		HostFiles: []HostFile{{Path: "/usr/bin/sh", Size: 7, Modified: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}},
	}
	if _, _, err := s.Seal(want, nil); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		t.Fatal(err)
	}
	path := imageForm(wholeVersion)
	golden.Hold(t, path, written)
	want.Files = []File{{Name: "memory", Size: int64(len(imageFile)), CRC32C: []uint32{3974880312}}}
	for version := 1; version <= wholeVersion; version++ {
		kept := string(golden.Read(t, imageForm(version)))
		want := want
		want.Version = version
		if version < 2 {
			want.Build = ""
		}
		if got, err := s.Verify("image", store("image", kept)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("version %d: %v; read as %+v, want %+v", version, err, got, want)
		}
		if build, err := s.BuildOf("image"); err != nil || build != want.Build {
			t.Errorf("version %d: it is of build %q, %v; want %q", version, build, err, want.Build)
		}
	}
	text := string(golden.Read(t, path))
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	for _, version := range []int{0, manifestVersion + 1} {
		fields["version"] = version
		other, _ := json.Marshal(fields)
		if _, err := s.Verify("image", store("image", string(other))); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("version %d", version)) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// imageForm holds the manifest of a version.
func imageForm(version int) string {
	return filepath.Join("testdata", fmt.Sprintf("image-%d.json", version))
}

// listed is a layer's directory with every kind of entry that a listing has. Its
// owners are fixed, so that its listing is the same everywhere.
func listed(t *testing.T, dir string) {
	t.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "d", "deep"), 0o755),
		os.WriteFile(filepath.Join(dir, "d", "file with \n in its name"), []byte("contents"), 0o640),
		os.WriteFile(filepath.Join(dir, "d", "deep", "empty"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "d.z"), []byte("sorts between d and what is in it"), 0o644),
		os.Truncate(filepath.Join(dir, "d.z"), 3<<20), // ends in a hole
		os.Symlink("d/deep", filepath.Join(dir, "link")),
		unix.Mknod(filepath.Join(dir, "removed"), unix.S_IFCHR, 0),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		unix.Setxattr(filepath.Join(dir, "d"), "trusted.overlay.opaque", []byte("y"), 0),
		os.Lchown(filepath.Join(dir, "link"), 1000, 1001),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{".": 0o755, "d": 0o755, "d/deep": 0o755, "d/file with \n in its name": 0o640, "d.z": 0o644, "pipe": 0o600} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
}

// TestListingForm: the listing of a layer is what servers of its form read, and
// each form that was ever written is read, or refused by its name.
func TestListingForm(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := s.LayerDir("layer")
	listed(t, dir)
	digest, err := writeListing(dir, func(add func(line) error) error { return list(t.Context(), dir, add) })
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, listingName)
	written, err := os.ReadFile(path)
	if err != nil || digestOf(written) != digest {
		t.Fatalf("%v; the digest %s is not that of the listing", err, digest)
	}
	golden.Hold(t, filepath.Join("testdata", "listing-2.txt"), []byte(strings.TrimSuffix(string(written), "\n")))

	var flat []string
	if err := list(t.Context(), dir, func(l line) error { flat = append(flat, l.flat()); return nil }); err != nil {
		t.Fatal(err)
	}
	golden.Hold(t, filepath.Join("testdata", "listing-1.txt"), []byte(strings.Join(flat, "\n")))

	for name, text := range map[string]string{
		"form 1": string(golden.Read(t, filepath.Join("testdata", "listing-1.txt"))),
		"form 2": string(golden.Read(t, filepath.Join("testdata", "listing-2.txt"))) + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.VerifyLayer(t.Context(), "layer", digestOf([]byte(text))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		worse := strings.Replace(text, "1000:1001", "1000:1002", 1)
		if err := os.WriteFile(path, []byte(worse), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.VerifyLayer(t.Context(), "layer", digestOf([]byte(worse))); err == nil || !strings.Contains(err.Error(), `"link" differs`) {
			t.Errorf("%s with another owner: %v", name, err)
		}
	}
	newer := "drowse listing 3\nwhatever comes\n"
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.VerifyLayer(t.Context(), "layer", digestOf([]byte(newer))); err == nil || !strings.Contains(err.Error(), `"drowse listing 3"`) {
		t.Errorf("a newer form: %v", err)
	}
}
