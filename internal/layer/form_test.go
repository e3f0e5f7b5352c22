package layer

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var golden = flag.Bool("golden", false, "write the manifest of the present version into testdata")

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
		Version: manifestVersion, ID: "image", Runtime: "gvisor release-1", Build: strings.Repeat("0f", 32), Stack: []string{"a-1", "a-2"}, System: &System{Digest: "names", Exact: "times"},
		HostFiles: []HostFile{{Path: "/usr/bin/sh", Size: 7, Modified: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}},
	}
	if _, _, err := s.Seal(want); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		t.Fatal(err)
	}
	path := imageForm(manifestVersion)
	if *golden {
		if err := os.WriteFile(path, append(written, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil || string(kept) != string(written)+"\n" {
		t.Errorf("what is written has changed, and its version has not: give it another number, and keep %s (%v):\n%s", path, err, written)
	}
	want.Files = []File{{Name: "memory", Size: int64(len(imageFile)), CRC32C: []uint32{3974880312}}}
	for version := 1; version <= manifestVersion; version++ {
		kept, err := os.ReadFile(imageForm(version))
		if err != nil {
			t.Errorf("nothing holds what version %d is: %v", version, err)
			continue
		}
		want := want
		want.Version = version
		if version < 2 {
			want.Build = ""
		}
		if got, err := s.Verify("image", store("image", strings.TrimSpace(string(kept)))); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("version %d: %v; read as %+v, want %+v", version, err, got, want)
		}
		if build, err := s.BuildOf("image"); err != nil || build != want.Build {
			t.Errorf("version %d: it is of build %q, %v; want %q", version, build, err, want.Build)
		}
	}
	text := strings.TrimSpace(string(kept))
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
