package cli

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStaysInside(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, target string
		want         bool
	}{
		{"a", "b", true},
		{"a", "./b//c", true},
		{"d/a", "../b", true},
		{"d/e/a", "../../b/c", true},
		{"a", "..", false},
		{"a", "../b", false},
		{"d/a", "../../b", false},
		{"d/a", "b/../../..", false},
		{"a", "b/..", false},
		{"a", "/etc/passwd", false},
		{"a", "", false},
	} {
		if got := staysInside(c.name, c.target); got != c.want {
			t.Errorf("%s -> %s: got %t", c.name, c.target, got)
		}
	}
}

// TestHostileArchive unpacks what a sandbox could send to write or to lead outside of
// the directory. Whatever comes of it, nothing outside changes, and no link leads
// there.
func TestHostileArchive(t *testing.T) {
	t.Parallel()
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4777, Size: 4}
	}
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o777} }
	for name, entries := range map[string][]tar.Header{
		"up":                   {file("../secret")},
		"up in the middle":     {file("a/../../secret")},
		"absolute":             {file("/secret")},
		"absolute link":        {link("a", "/"), file("a/secret")},
		"link up":              {link("a", ".."), file("a/secret")},
		"link to the file":     {link("a", "../secret"), file("a")},
		"link and its chain":   {dir("x/y"), link("x/y/z", "../../b"), dir("b"), link("x/y/z/c", "../../../secret"), file("x/y/z/c")},
		"link through a link":  {link("d", "."), link("d/l", "../secret"), file("d/l")},
		"link, then file":      {file("a"), link("a", "../secret"), file("a")},
		"another name":         {{Name: "a", Linkname: "../secret", Typeflag: tar.TypeLink}},
		"another name, link":   {link("l", ".."), {Name: "a", Linkname: "l/secret", Typeflag: tar.TypeLink}},
		"device":               {{Name: "a", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "b", Typeflag: tar.TypeFifo}},
		"link over a file":     {file("a/b"), link("a", "x")},
		"root is a link":       {link(".", ".."), file("secret")},
		"what was there leads": {file("old/secret"), link("old/l", "../../secret")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside := t.TempDir()
			inside := filepath.Join(outside, "inside")
			if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("kept"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(inside, 0o700); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "what was there") { // of the user's own making
				if err := os.Symlink(outside, filepath.Join(inside, "old")); err != nil {
					t.Fatal(err)
				}
			}
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range entries {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				if h.Size > 0 {
					_, _ = w.Write([]byte("evil"))
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(inside)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			var said bytes.Buffer
			t.Log((&tree{app: &app{Options: Options{Stderr: &said}}}).unpack(root, tar.NewReader(&archive)), said.String())

			if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "kept" {
				t.Errorf("outside is %q, %v", text, err)
			}
			if list, err := os.ReadDir(outside); err != nil || len(list) != 2 {
				t.Errorf("outside are %v, %v", list, err)
			}
			err = filepath.WalkDir(inside, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.Name() == "old" {
					return err
				}
				if info, err := d.Info(); err != nil || info.Mode()&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink) != 0 {
					t.Errorf("%s is %v, %v", path, info.Mode(), err)
				}
				if to, err := filepath.EvalSymlinks(path); err == nil && to != inside && !strings.HasPrefix(to, inside+"/") {
					t.Errorf("%s leads to %s", path, to)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFirstLine(t *testing.T) {
	for said, want := range map[string]string{
		"":                         "",
		"tar: a: gone\n":           "tar: a: gone",
		"tar: a: no\ntar: b: no\n": "tar: a: no, and more like it",
	} {
		if got := firstLine(said); got != want {
			t.Errorf("of %q: %q, want %q", said, got, want)
		}
	}
}
