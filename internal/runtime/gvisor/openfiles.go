package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// OpenFiles implements runtime.FileHolder. gVisor's kernel opens on the host
// what is opened or mapped inside, so the host's kernel has the names.
func (i *instance) OpenFiles() ([]runtime.OpenFile, error) {
	i.mu.Lock()
	is, root := i.c.about(), rootSeen
	if is.lateRoot {
		root = "" // the file server has made it its own root
	}
	i.mu.Unlock()
	dir := fmt.Sprintf("/proc/%d/fd", is.sentry)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open files of runtime %s: %w", i.id, err)
	}
	files := []runtime.OpenFile{}
	seen := map[string]bool{}
	for _, fd := range fds {
		link := filepath.Join(dir, fd.Name())
		name, err := os.Readlink(link)
		path, inside := strings.CutPrefix(name, root+"/")
		if err != nil || !inside || seen[path] {
			continue
		}
		if st, ok := regularInRoot(link); ok {
			seen[path] = true
			files = append(files, runtime.OpenFile{Path: "/" + path, Size: st.Size, Modified: time.Unix(st.Mtim.Unix())})
		}
	}
	return files, nil
}

// rootSeen is where gVisor's file server mounts a sandbox's root.
const rootSeen = "/root"

// regularInRoot returns what a link in /proc/PID/fd leads to, if that is a
// regular file of a sandbox's root.
func regularInRoot(link string) (st unix.Stat_t, ok bool) {
	if unix.Stat(link, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return st, false
	}
	var fs unix.Statfs_t
	return st, unix.Statfs(link, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}
