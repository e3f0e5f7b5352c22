package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRunDirs: packages find their directories in /run, and nobody else's are
// touched.
func TestRunDirs(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(root+"/etc", 0o755), os.MkdirAll(root+"/usr/lib/tmpfiles.d", 0o755), os.MkdirAll(root+"/run", 0o755), os.Mkdir(root+"/run/there", 0o711)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, root+"/etc/passwd", "root:x:0:0::/root:/bin/bash\npostgres:x:101:104::/:/bin/bash\n")
	writeFile(t, root+"/etc/group", "root:x:0:\npostgres:x:104:\n")
	writeFile(t, root+"/usr/lib/tmpfiles.d/a.conf", `# d /run/comment 0755 root root
d /run/postgresql 2775 postgres postgres - -
D! /var/run/old/deep 0700 nobody-here nobody-here -
d /run/plain
d /run/there 0700 root root
d /run/%u/x 0755 root root
d /run/systemd/system 0755 root root
d /run/../etc/x 0755 root root
f /run/file 0644 root root
d
`)
	makeRunDirs(root, usualRunDirs, nil)
	makeInstalledRunDirs(root)
	var got []string
	err := filepath.WalkDir(root+"/run", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		st := info.Sys().(*syscall.Stat_t)
		got = append(got, fmt.Sprintf("%s %s %d %d", strings.TrimPrefix(path, root), info.Mode(), st.Uid, st.Gid))
		return err
	})
	want := `/run drwxr-xr-x 0 0
/run/lock dtrwxrwxrwx 0 0
/run/old drwxr-xr-x 0 0
/run/old/deep drwx------ 0 0
/run/plain drwxr-xr-x 0 0
/run/postgresql dgrwxrwxr-x 101 104
/run/screen dtrwxrwxrwx 0 0
/run/there drwx--x--x 0 0`
	if err != nil || strings.Join(got, "\n") != want {
		t.Errorf("made, %v:\n%s\nwant:\n%s", err, strings.Join(got, "\n"), want)
	}
}
