package agent

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// usualRunDirs are those that Linux programs expect in /run, in the form of
// tmpfiles.d(5). Not every package says what it needs.
const usualRunDirs = "d /run/lock 1777\nd /run/screen 1777\n"

// maxTmpfiles bounds what is read of one file.
const maxTmpfiles = 64 << 10

// makeInstalledRunDirs makes the directories in /run that installed packages ask
// for, as the boot of a machine does: /run is in memory, and empty at every start.
func makeInstalledRunDirs(root string) {
	as := readAccounts(filepath.Join(root, "etc/passwd"), filepath.Join(root, "etc/group"))
	files, _ := filepath.Glob(filepath.Join(root, "usr/lib/tmpfiles.d/*.conf")) // the pattern is a good one
	for _, file := range files {
		in, _, err := openRegular(file)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(in, maxTmpfiles))
		in.Close()
		makeRunDirs(root, string(text), as)
	}
}

// makeRunDirs makes those of a file that are not there. What cannot be made is
// left out.
func makeRunDirs(root, text string, as *accounts) {
	for line := range strings.Lines(text) {
		f := append(strings.Fields(line), "-", "-", "-")
		if kind := strings.TrimRight(f[0], "!+-=~^$"); len(f) < 5 || kind != "d" && kind != "D" {
			continue
		}
		path := strings.TrimPrefix(filepath.Clean(f[1]), "/var")
		// systemd's own would make programs believe that it runs.
		if !strings.HasPrefix(path, "/run/") || strings.HasPrefix(path, "/run/systemd") || strings.HasPrefix(path, "/run/drowse") || strings.Contains(path, "%") {
			continue
		}
		mode, err := strconv.ParseUint(strings.TrimLeft(f[2], "~:"), 8, 12)
		if err != nil {
			mode = 0o755
		}
		path = filepath.Join(root, path)
		if os.MkdirAll(filepath.Dir(path), 0o755) != nil || os.Mkdir(path, 0o700) != nil {
			continue
		}
		if as != nil {
			_ = os.Lchown(path, as.idOf(f[3]), int(as.groupIDs[f[4]]))
		}
		_ = unix.Chmod(path, uint32(mode))
	}
}

// idOf returns the number of a user; root's for one that is not there.
func (as *accounts) idOf(user string) int {
	if a := as.byName[user]; a != nil {
		return int(a.uid)
	}
	return 0
}
