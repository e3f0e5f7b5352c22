package template

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestClosedFilesDoNotExist mounts a template over a directory of the host in
// which not everybody may read everything.
func TestClosedFilesDoNotExist(t *testing.T) {
	dir := t.TempDir()
	host := filepath.Join(dir, "host")
	var errs []error
	put := func(path string, mode os.FileMode) {
		path = filepath.Join(host, path)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(path), 0o600), os.Chmod(path, mode))
	}
	put("app/run", 0o755)
	put("app/.env", 0o600)
	put("app/group", 0o640)
	put("etc/private/key", 0o644)
	put("etc/private/deep/key", 0o600)
	put("etc/list/file", 0o644)
	errs = append(errs, os.Chmod(filepath.Join(host, "etc/private"), 0o700), os.Chmod(filepath.Join(host, "etc/list"), 0o754),
		os.Chown(filepath.Join(host, "app"), 7, 8), unix.Chmod(filepath.Join(host, "app"), 0o2775), unix.Mkfifo(filepath.Join(host, "app/fifo"), 0o666))
	s := At(filepath.Join(dir, "templates"))
	errs = append(errs, os.MkdirAll(filepath.Join(s.dir, "t"), 0o700), os.WriteFile(filepath.Join(s.dir, "t", manifestName),
		[]byte(`{"id":"t","trees":[{"name":"usr","path":"/","lowers":["`+host+`"]}]}`), 0o600))
	layers, err := layer.Open(filepath.Join(dir, "state"))
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	show := func(top string) string {
		t.Helper()
		shown, err := s.Resolve("t")
		if err == nil && shown.Trees[0].Shared != 1 {
			t.Errorf("%d directories are the host's own", shown.Trees[0].Shared)
		}
		if err == nil {
			shown, err = s.Closed(t.Context(), shown)
		}
		at := filepath.Join(dir, "mnt-"+top)
		if err == nil {
			err = layers.Mount(at, shown.Trees, nil, top)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := layer.Unmount(at); err != nil {
				t.Error(err)
			}
		})
		return at
	}
	names := func(at string) string {
		var all []string
		if err := filepath.WalkDir(at, func(path string, _ os.DirEntry, err error) error {
			all = append(all, strings.TrimPrefix(path, at))
			return err
		}); err != nil {
			t.Error(err)
		}
		return strings.Join(all, " ")
	}
	at := show("first")
	if got := names(at); got != " /app /app/run /etc" {
		t.Errorf("there is %q", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(at, "app"), &st); err != nil || st.Mode&0o7777 != 0o2775 || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("the mode is %o, the owner %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
	}
	// What comes later is closed at once, and hidden when somebody has looked, which
	// a start makes somebody do.
	put("app/later", 0o600)
	put("app/open", 0o644)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	shown, err := s.Resolve("t")
	if err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "a mask of what came later", func() bool {
		next, err := s.Closed(t.Context(), shown)
		return err == nil && exists(filepath.Join(next.Trees[0].Lowers[0], "app/later"))
	})
	if text, err := os.ReadFile(filepath.Join(at, "app/later")); err == nil {
		t.Errorf("what came later is %q", text)
	}
	if got := names(show("second")); got != " /app /app/open /app/run /etc" {
		t.Errorf("later there is %q", got)
	}
	if masks, err := os.ReadDir(filepath.Join(s.Dir("t"), masksName)); err != nil || len(masks) != 2 {
		t.Errorf("masks: %v, %v", masks, err)
	}
}

// TestStateBelowWhatIsShared: sandboxes must not see the server's own files.
func TestStateBelowWhatIsShared(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/usr/local", link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{
		"/usr/drowse": true, "/usr": true, "/lib/drowse/state": true, link + "/state": true, "/opt/drowse": true, "/usr/../usr/x": true,
		"/var/lib/drowse": false, "/usrlocal": false, t.TempDir(): false,
	} {
		err := CheckOutside(dir, Opt)
		if refused := errdef.Is(err, errdef.Invalid); refused != want || err != nil && !refused {
			t.Errorf("%s: %v, want it refused: %v", dir, err, want)
		}
	}
	if err := CheckOutside("/opt/drowse"); err != nil {
		t.Errorf("/opt is not shared: %v", err)
	}
}
