package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// sharing is a rig whose tree /usr is the host's own, with secrets in it.
func sharing(t *testing.T) (r *rig, host string) {
	t.Helper()
	r = newRig(t)
	host = r.trees[1].Lowers[0]
	r.trees[1].Shared = 1
	if !ViewsWork([]string{host}) {
		t.Fatalf("%s lies on an overlay, over which the kernel stacks only one more: set TMPDIR to a directory elsewhere", host)
	}
	r.write(filepath.Join(host, "lib/public"), "public")
	r.secret(filepath.Join(host, "lib/secret"), 0o600)
	r.secret(filepath.Join(host, "lib/group"), 0o640)
	r.write(filepath.Join(host, "private/file"), "secret")
	r.must(os.Chmod(filepath.Join(host, "private"), 0o700))
	return r, host
}

func (r *rig) secret(path string, mode os.FileMode) {
	r.t.Helper()
	r.write(path, "secret")
	r.must(os.Chmod(path, mode))
}

// TestRootOnlyFilesAreNotReadable: root in a sandbox reads what everybody may read
// on the host and nothing else, by whatever way, and whenever it was made.
func TestRootOnlyFilesAreNotReadable(t *testing.T) {
	r, host := sharing(t)
	at := r.mount(nil, "top")
	in := func(path string) string { return filepath.Join(at, "usr", path) }
	r.secret(filepath.Join(host, "lib/late"), 0o600)
	r.write(filepath.Join(host, "lib/new"), "public")
	for path, want := range map[string]string{"bin/tool": "tool", "lib/public": "public", "lib/new": "public"} {
		if got := r.read(in(path)); got != want {
			t.Errorf("%s is %q", path, got)
		}
	}
	for _, path := range []string{"lib/secret", "lib/group", "lib/late", "private/file"} {
		if _, err := os.ReadFile(in(path)); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v, want it refused", path, err)
		}
	}
	for name, try := range map[string]func() error{
		"chmod":  func() error { return os.Chmod(in("lib/secret"), 0o644) },
		"rename": func() error { return os.Rename(in("lib/secret"), in("lib/open")) },
		"link":   func() error { return os.Link(in("lib/group"), in("lib/open")) },
		"append": func() error { return put(in("lib/secret"), "x", os.O_APPEND) },
		"list":   func() error { _, err := os.ReadDir(in("private")); return err },
	} {
		if err := try(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	r.must(os.Rename(in("private"), in("moved")))
	r.must(os.Chmod(in("moved"), 0o777))
	if text, err := os.ReadFile(in("moved/file")); err == nil {
		t.Errorf("what was moved is %q", text)
	}
	r.must(put(in("lib/public"), " and more", os.O_APPEND))
	r.must(os.Remove(in("bin/tool")))
	r.secret(in("lib/own"), 0o600)
	if got := r.read(in("lib/own")); got != "secret" {
		t.Errorf("its own file is %q", got)
	}
	if got := r.read(filepath.Join(host, "lib/public")) + r.read(filepath.Join(host, "bin/tool")); got != "publictool" {
		t.Errorf("the host has %q", got)
	}
}

// TestViewsGoWithTheirMounts: a view is part of the mounts of a sandbox, and a
// layer that was made over one is as any other.
func TestViewsGoWithTheirMounts(t *testing.T) {
	r, _ := sharing(t)
	at := r.mount(nil, "a")
	r.write(filepath.Join(at, "usr/lib/more"), "more")
	points, err := mountPoints(at)
	r.must(err)
	if len(points) != 3 { // the root, the view, and /usr over it
		t.Errorf("mounted: %q", points)
	}
	f, err := r.Freeze(t.Context(), "a")
	r.must(err)
	r.must(Unmount(at))
	if points, err := mountPoints(at); err != nil || len(points) > 0 {
		t.Errorf("left: %q, %v", points, err)
	}
	r.must(r.VerifyLayer(t.Context(), "a", f.Digest))
	b := r.mount([]string{"a"}, "b")
	if got := r.read(filepath.Join(b, "usr/lib/more")) + r.read(filepath.Join(b, "usr/lib/public")); got != "morepublic" {
		t.Errorf("after a wake: %q", got)
	}
}

// TestMountsGiveTheHostNothing: the host takes neither set-uid programs nor devices
// from what a sandbox has written, in either way of mounting.
func TestMountsGiveTheHostNothing(t *testing.T) {
	eachWay(t, func(t *testing.T, m mounter) {
		r, _ := sharing(t)
		r.mounter = &m
		at := r.mount(nil, "top")
		r.must(unix.Mknod(filepath.Join(at, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		if err := put(filepath.Join(at, "null"), "x", 0); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a device of a sandbox opens: %v", err)
		}
		for _, dir := range []string{at, filepath.Join(at, "usr")} {
			var st unix.Statfs_t
			r.must(unix.Statfs(dir, &st))
			if both := int64(unix.ST_NOSUID | unix.ST_NODEV); st.Flags&both != both {
				t.Errorf("%s is mounted with flags %x", dir, st.Flags)
			}
		}
	})
}

// TestViewsLeaveTheServerItsRights: only the thread that mounts is nobody.
func TestViewsLeaveTheServerItsRights(t *testing.T) {
	r, host := sharing(t)
	r.mount(nil, "top")
	if text, err := os.ReadFile(filepath.Join(host, "lib/secret")); err != nil || string(text) != "secret" {
		t.Errorf("%q, %v", text, err)
	}
	// The thread that mounted ends with its goroutine, which takes the kernel a moment.
	others := otherRights(t)
	for end := time.Now().Add(testmode.Patience()); others != "" && time.Now().Before(end); others = otherRights(t) {
		time.Sleep(10 * time.Millisecond)
	}
	if others != "" {
		t.Error(others)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("dumpable %d, %v", dumpable, err)
	}
}

// otherRights names the threads of this process that are somebody else than root.
func otherRights(t *testing.T) string {
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(threads) == 0 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	var others []string
	for _, path := range threads {
		if text, err := os.ReadFile(path); err == nil && !strings.Contains(string(text), "Uid:\t0\t0\t0\t0\n") {
			others = append(others, fmt.Sprintf("%s has other rights:\n%s", path, text))
		}
	}
	return strings.Join(others, "\n")
}
