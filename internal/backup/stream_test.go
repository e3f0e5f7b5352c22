package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	restoring := false
	refused := func(data []byte, how string, at int) {
		t.Helper()
		if _, err := VerifyStream(t.Context(), bytes.NewReader(data)); err == nil {
			t.Errorf("%s at %d: it is verified: %q", how, at, data[max(0, at-10):min(len(data), at+10)])
		} else if strings.Contains(err.Error(), "restore") {
			t.Errorf("%s at %d: nothing is being restored, and the error is %v", how, at, err)
		}
		_, err := RestoreStream(t.Context(), bytes.NewReader(data), src)
		if err == nil {
			t.Fatalf("%s at %d: it is restored", how, at)
		}
		restoring = restoring || strings.HasPrefix(err.Error(), "restore entry ")
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
	if !restoring {
		t.Error("no error says which entry was being restored")
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

// TestNeeds: several backups can be made at once, and it is known until the last ends.
// What is made after the database was copied is not needed.
func TestNeeds(t *testing.T) {
	dir := t.TempDir()
	made := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	begin := func() *Mark {
		t.Helper()
		m, err := Begin(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	before := made("before")
	if Needs(dir, "") || Needs(dir, before) {
		t.Error("a backup is made before the first")
	}
	first := begin()
	during := made("during")
	if !first.Alone() {
		t.Error("the first is not alone")
	}
	if !Needs(dir, "") || !Needs(dir, before) || !Needs(dir, during) {
		t.Error("while the database is copied, something is not needed")
	}
	if err := first.Settle(); err != nil {
		t.Fatal(err)
	}
	var after string
	testmode.Eventually(t, "the file system's clock goes on", func() bool {
		after = filepath.Join(dir, "after")
		_ = os.Remove(after) // the first time there is none
		_ = made("after")
		return !Needs(dir, after)
	})
	if !Needs(dir, before) || !Needs(dir, during) {
		t.Error("what was there when the database was copied is not needed")
	}
	second := begin()
	if second.Alone() {
		t.Error("the second is alone")
	}
	if !Needs(dir, after) {
		t.Error("the second does not need what is there")
	}
	first.End()
	if !second.Alone() || !Needs(dir, before) {
		t.Error("the second is not known")
	}
	second.End()
	if Needs(dir, "") || Needs(dir, before) {
		t.Error("a backup is made after the last")
	}
}

// TestNumbersOfFilesAreUsedAgain removes files with two names once they were copied, and
// makes others, some of which get their inodes: none is taken for another.
func TestNumbersOfFilesAreUsedAgain(t *testing.T) {
	const files = 500
	for _, apart := range []string{"", "volumes"} {
		src := filepath.Join(t.TempDir(), "source")
		fill := func(in, text string) {
			t.Helper()
			for n := range files {
				path := filepath.Join(src, "volumes", in, fmt.Sprint(n))
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Link(path, path+"-again")); err != nil {
					t.Fatal(err)
				}
			}
		}
		fill("a", "a")
		if err := os.Mkdir(filepath.Join(src, "volumes/b"), 0o755); err != nil { // its name is read at the beginning
			t.Fatal(err)
		}
		inodes := map[uint64]bool{}
		to := filepath.Join(t.TempDir(), "copy")
		c := newCopier(Source{Dir: src, Apart: apart}, to)
		c.live = true
		left := 2*files + 3 // with the directories
		if _, err := c.copy(t.Context(), func(any) error {
			if left--; left != 0 {
				return nil
			}
			for n := range files {
				var st unix.Stat_t
				if err := unix.Stat(filepath.Join(src, "volumes/a", fmt.Sprint(n)), &st); err != nil {
					return err
				}
				inodes[st.Ino] = true
			}
			if err := os.RemoveAll(filepath.Join(src, "volumes/a")); err != nil {
				return err
			}
			fill("b", "b")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		again := 0
		for n := range files {
			path := filepath.Join(to, "volumes/b", fmt.Sprint(n))
			text, err := os.ReadFile(path)
			if err != nil || string(text) != "b" {
				t.Errorf("%s has %q, %v", path, text, err)
				break
			}
			one, err := os.Stat(path)
			other, err2 := os.Stat(path + "-again")
			if err != nil || err2 != nil || !os.SameFile(one, other) {
				t.Errorf("%s has lost its other name: %v, %v", path, err, err2)
				break
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(src, "volumes/b", fmt.Sprint(n)), &st); err != nil {
				t.Fatal(err)
			}
			if inodes[st.Ino] {
				again++
			}
		}
		t.Logf("%d of %d inodes were used again", again, files)
	}
}
