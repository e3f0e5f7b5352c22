package backup

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// TestThroughAStream sends a backup through a stream, and gets back what was there.
func TestThroughAStream(t *testing.T) {
	for name, src := range map[string]string{"files of all kinds": source(t), "a hostile tree": hostile(t, treetest.Shape{Deep: 500, Long: 300, Links: 10, Wide: 10})} {
		t.Run(name, func(t *testing.T) {
			want := listing(t, src)
			var stream bytes.Buffer
			made, err := write(t.Context(), src, &stream)
			if err != nil {
				t.Fatal(err)
			}
			if made.Files != int64(len(want)) || int64(stream.Len()) > made.Bytes+1024*made.Files {
				t.Errorf("made %+v of %d entries in %d bytes", made, len(want), stream.Len())
			}
			if verified, err := VerifyStream(t.Context(), bytes.NewReader(stream.Bytes())); err != nil || verified != made {
				t.Errorf("verified %+v, %v; want %+v", verified, err, made)
			}
			if _, err := RestoreStream(t.Context(), bytes.NewReader(stream.Bytes()), src); !errdef.Is(err, errdef.Conflict) {
				t.Errorf("a restore over what is there: %v", err)
			}
			if _, err := RestoreStream(t.Context(), bytes.NewReader(stream.Bytes()), src+"x"); !errdef.Is(err, errdef.Invalid) || !strings.Contains(err.Error(), src) {
				t.Errorf("a restore to another path: %v", err)
			}
			if err := os.Rename(src, src+"-kept"); err != nil {
				t.Fatal(err)
			}
			if restored, err := RestoreStream(t.Context(), &stream, src); err != nil || restored != made {
				t.Fatalf("restored %+v, %v; want %+v", restored, err, made)
			}
			if got := listing(t, src); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// TestDamagedStream cuts a stream off at each of its bytes, or changes one: nothing is
// restored, and nothing is made outside.
func TestDamagedStream(t *testing.T) {
	src := filepath.Join(t.TempDir(), "source")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(src, "a/b"), 0o755), os.WriteFile(filepath.Join(src, "a/file"), []byte("contents"), 0o600),
		os.Link(filepath.Join(src, "a/file"), filepath.Join(src, "a/same")), os.Symlink("/nowhere", filepath.Join(src, "a/link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var stream bytes.Buffer
	if _, err := write(t.Context(), src, &stream); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(src); err != nil {
		t.Fatal(err)
	}
	refused := func(data []byte, how string, at int) {
		t.Helper()
		if _, err := VerifyStream(t.Context(), bytes.NewReader(data)); err == nil {
			t.Errorf("%s at %d: it is verified: %q", how, at, data[max(0, at-10):min(len(data), at+10)])
		}
		if _, err := RestoreStream(t.Context(), bytes.NewReader(data), src); err == nil {
			t.Fatalf("%s at %d: it is restored", how, at)
		}
		if left, err := os.ReadDir(filepath.Dir(src)); err != nil || len(left) > 0 {
			t.Fatalf("%s at %d: there is %v, %v", how, at, left, err)
		}
	}
	whole := stream.Bytes()
	for at := range len(whole) {
		refused(whole[:at], "cut off", at)
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1
		if bytes.HasPrefix(damaged[at:], []byte(linkedMark+"{")) && whole[at] == beginMark[0] {
			continue // that a file may get other names, and gets none, is no damage
		}
		refused(damaged, "changed", at)
	}
}

// TestForgedStream: a stream that somebody made makes nothing outside of the directory.
func TestForgedStream(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	first := `{"kind":"drowse backup","format":2,"source":"` + target + `"}` + "\n" + `{"depth":0,"name":".","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}` + "\n"
	for name, then := range map[string]string{
		"up":                  `{"depth":1,"name":"..","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"a path":              `+{"depth":1,"name":"../x","mode":33188,"uid":0,"gid":0,"mtime":[0,0],"size":1}`,
		"bytes":               `{"depth":1,"name":["Li4veA=="],"mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"below nothing":       `{"depth":2,"name":"x","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"the same as nothing": `{"depth":1,"name":"x","mode":33188,"uid":0,"gid":0,"mtime":[0,0],"same":7}`,
		"the links":           `{"depth":1,"name":".links","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"below a link":        `{"depth":1,"name":"x","mode":41471,"uid":0,"gid":0,"mtime":[0,0],"link":"/"}` + "\n" + `{"depth":2,"name":"y","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"a second top":        `{"depth":0,"name":".","mode":16877,"uid":0,"gid":0,"mtime":[0,0]}`,
		"a block after all":   `+{"depth":1,"name":"x","mode":33188,"uid":0,"gid":0,"mtime":[0,0],"size":1}` + "\n=1 1\nx",
		"a block before all":  `+{"depth":1,"name":"x","mode":33188,"uid":0,"gid":0,"mtime":[0,0],"size":1}` + "\n=-1 1\nx",
		"a line without end":  strings.Repeat("x", maxLine+block+1),
	} {
		_, err := RestoreStream(t.Context(), strings.NewReader(first+then+"\n"), target)
		if !errdef.Is(err, errdef.Internal) {
			t.Errorf("%s: %v, want it found damaged", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: there is %v, %v", name, left, err)
		}
	}
}

// TestWhileItChanges backs up a directory whose files grow, shrink, vanish and become
// other things: the backup is one that restores.
func TestWhileItChanges(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "source")
	if err := os.MkdirAll(src, 0o755); err != nil {
		t.Fatal(err)
	}
	steps := []func(path string) error{
		func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 3*block), 0o600) },
		func(path string) error { return os.Truncate(path, 10) },
		os.Remove,
		func(path string) error { return os.Symlink("/etc/passwd", path) },
		os.Remove,
		func(path string) error { return os.MkdirAll(filepath.Join(path, "in/it"), 0o755) },
		os.RemoveAll,
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			for _, name := range []string{"a", "b", "c"} {
				if err := steps[n%len(steps)](filepath.Join(src, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					done <- err
					return
				}
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	var backups []string
	for n := range testmode.Choose(30, 1000) {
		to := filepath.Join(dir, "backup", string(rune('a'+n%26)), strings.Repeat("x", n/26+1))
		if _, err := create(t.Context(), src, to); err != nil {
			t.Errorf("backup %d: %v", n, err)
			break
		}
		backups = append(backups, to)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, b := range backups {
		if _, err := Verify(t.Context(), b); err != nil {
			t.Errorf("%s: %v", b, err)
			break
		}
	}
}

// TestIncomplete: what a backup must have is asked for before it becomes one.
func TestIncomplete(t *testing.T) {
	src, dir := source(t), filepath.Join(t.TempDir(), "backup")
	missing := errors.New("something is missing")
	if _, err := Create(t.Context(), Source{Dir: src}, dir, func() error { return missing }); !errors.Is(err, missing) {
		t.Errorf("%v, want %v", err, missing)
	}
	if _, err := Verify(t.Context(), dir); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("it is a backup: %v", err)
	}
	var stream bytes.Buffer
	if _, err := Write(t.Context(), Source{Dir: src}, &stream, func() error { return missing }); !errors.Is(err, missing) {
		t.Errorf("%v, want %v", err, missing)
	}
	if _, err := VerifyStream(t.Context(), &stream); err == nil {
		t.Error("a stream without its end is a backup")
	}
}

// TestUnderWay: several backups can be made at once, and it is known until the last ends.
func TestUnderWay(t *testing.T) {
	dir := t.TempDir()
	if UnderWay(dir) {
		t.Error("a backup is under way before the first")
	}
	first, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	first()
	if !UnderWay(dir) {
		t.Error("the second is not known")
	}
	second()
	if UnderWay(dir) {
		t.Error("a backup is under way after the last")
	}
}
