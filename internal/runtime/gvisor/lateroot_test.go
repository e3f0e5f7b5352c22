package gvisor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyOutlivesItsMounts unmounts what was copied, in each way in which
// kernels copy it. Mounts that share their changes would go from the copy too.
func TestCopyOutlivesItsMounts(t *testing.T) {
	for name, copyOf := range map[string]func(string) (int, error){"since 5.12": detachedCopy, "before": privateCopy} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			mount := func(at string) {
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			}
			mount(root)
			if err := unix.Mount("", root, "", unix.MS_SHARED, ""); err != nil {
				t.Fatal(err)
			}
			usr := filepath.Join(root, "usr")
			if err := os.Mkdir(usr, 0o755); err != nil {
				t.Fatal(err)
			}
			mount(usr)
			if err := os.WriteFile(filepath.Join(usr, "file"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			tree, err := copyOf(root)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(tree)
			for _, at := range []string{usr, root} {
				if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
					t.Fatal(err)
				}
			}
			var st unix.Stat_t
			if err := unix.Fstatat(tree, "usr/file", &st, 0); err != nil {
				t.Errorf("the copy has lost what was mounted: %v", err)
			}
		})
	}
}
