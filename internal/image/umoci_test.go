package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// undescribed are directories that the archive uses and does not describe, and
// the root, whose time umoci changes afterwards. Their times are anybody's.
var undescribed = []string{".", "etc", "usr", "usr/bin", "usr/share"}

// treeOf describes everything below a directory, one line for each name: kind,
// mode, owner, time, link or contents, extended attributes, and which other names
// it has.
func treeOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	first := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if !slices.Contains(undescribed, rel) {
			line += fmt.Sprintf(" at %d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(data))
			if _, known := first[st.Ino]; !known {
				first[st.Ino] = rel
			}
			line += " as " + first[st.Ino]
		case unix.S_IFLNK:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " to " + link
		}
		for _, name := range []string{"user.note", "security.capability"} {
			line += fmt.Sprintf(" %q", xattr(path, name))
		}
		tree[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestAgainstUmoci unpacks a layer with many kinds of files, among them a part of
// this machine's own, and compares it with what umoci makes of it.
func TestAgainstUmoci(t *testing.T) {
	host := exec.Command("tar", "--format=pax", "--xattrs", "-C", "/", "-c", "usr/share/perl5", "etc/alternatives", "usr/bin/perl", "etc/ssl")
	var stderr bytes.Buffer
	host.Stderr = &stderr
	archive, err := host.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	own := archiveOf(t,
		item{name: "./", kind: tar.TypeDir, mode: 0o751, uid: 3, gid: 4},
		item{name: "own/", kind: tar.TypeDir, mode: 0o2755, uid: 5, gid: 6},
		item{name: "own/file", data: "hello", mode: 0o4711, uid: 7, gid: 8, pax: map[string]string{paxXattr + "user.note": "note", paxXattr + "security.capability": capability}},
		item{name: "own/hard", kind: tar.TypeLink, link: "own/file"},
		item{name: "own/abs", kind: tar.TypeSymlink, link: "/etc/passwd", mode: 0o777, uid: 9, gid: 10},
		item{name: "own/fifo", kind: tar.TypeFifo, mode: 0o620, uid: 11, gid: 12},
		item{name: "own/sticky/", kind: tar.TypeDir, mode: 0o1777},
		item{name: strings.Repeat("d", 200) + "/", kind: tar.TypeDir, mode: 0o755},
		item{name: strings.Repeat("d", 200) + "/" + strings.Repeat("f", 200), data: "long"},
		item{name: "own/twice", data: "first"}, item{name: "own/twice", data: "second", mode: 0o600},
	)
	joined := append(bytes.Clone(own[:len(own)-1024]), archive...) // without the end of the first
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(imageWith(t, layerFrom(t, joined, tarball.WithMediaType(types.OCILayer))), types.OCIManifestSchema1), types.OCIConfigJSON)
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{refAnnotation: "latest"})); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle")
	if out, err := exec.Command("umoci", "raw", "unpack", "--image", dir+":latest", bundle).CombinedOutput(); err != nil {
		t.Fatalf("umoci: %v: %s", err, out)
	}
	s := newStore(t)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	made, err := loaded(t, s, packed.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	got, want := treeOf(t, s.Files(made.Layers[0].ID)), treeOf(t, bundle)
	if len(want) < 100 {
		t.Errorf("umoci made %d files only", len(want))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s is\n%s, and umoci makes it\n%s", name, got[name], want[name])
		}
	}
	t.Logf("%d names are the same", len(want))
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is made by this package alone", name)
		}
	}
}
