package layer

import (
	"encoding/json"
	"flag"
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
		Version: manifestVersion, ID: "image", Runtime: "gvisor release-1", Stack: []string{"a-1", "a-2"}, System: &System{Digest: "names", Exact: "times"},
		HostFiles: []HostFile{{Path: "/usr/bin/sh", Size: 7, Modified: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}},
	}
	if _, _, err := s.Seal(want); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "image-1.json")
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
	text := strings.TrimSpace(string(kept))
	if got, err := s.Verify("image", store("image", text)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v; read as %+v, want %+v", err, got, want)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	fields["version"] = manifestVersion + 1
	newer, _ := json.Marshal(fields)
	if _, err := s.Verify("image", store("image", string(newer))); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer version: %v", err)
	}
}
