package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
)

// What watching may take, in all of the sandbox.
const (
	maxWatches     = 64
	maxWatchedDirs = 32 << 10
)

// watch tells of the changes in a directory or, if it is recursive, in the
// whole tree below it. It uses the kernel's inotify directly, because that
// knows a directory by a number and not by a name: so a watched one can be
// moved within the tree and nothing that happens in it is lost.
//
// Of a new directory it tells also what was made in it before it was watched,
// once: as created, and as written if there is content.
type watch struct {
	root      string
	recursive bool
	file      *os.File // inotify
	emit      func(name string, kind fspb.EventType)
	inUse     *atomic.Int64 // directories, by all watches

	// These belong to whoever reads the events.
	dirs  map[int32]string // paths relative to root, "." for it, by inotify's number
	told  map[string]bool  // files found in new directories, whose creation may still be reported
	moved halfMove
	whole halfMove      // a staged file that comes to its place
	done  chan struct{} // closed when run has returned
	err   error         // of run, when it has
}

// halfMove is the first half of a move: where it was. The second, with
// the same cookie, is the next event unless it has left the tree.
type halfMove struct {
	cookie uint32
	from   string
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// newWatch returns a watch that is armed: what happens from now on will be
// told, once run is called.
func newWatch(root string, recursive bool, inUse *atomic.Int64) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, faultf(exhausted, "watch '%s': %w", root, err)
	}
	w := &watch{
		root: root, recursive: recursive, file: os.NewFile(uintptr(fd), "inotify"), inUse: inUse,
		dirs: map[int32]string{}, told: map[string]bool{}, done: make(chan struct{}),
	}
	if err := w.arm(); err != nil {
		w.release()
		return nil, err
	}
	return w, nil
}

func (w *watch) arm() error {
	if err := w.add(".", 0); err != nil {
		return pathFault(w.root, err)
	}
	if !w.recursive {
		return nil
	}
	return w.descend(".", func(string, fs.DirEntry) {})
}

// run tells of changes until the watch is stopped, or fails.
func (w *watch) run(emit func(name string, kind fspb.EventType)) {
	defer close(w.done)
	defer w.release()
	w.emit = emit
	w.err = w.read()
}

func (w *watch) read() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return faultf(internal, "watch '%s': %w", w.root, err)
		}
		if err := w.take(buf[:n]); err != nil {
			return err
		}
	}
}

// stop ends run. It does not wait for it.
func (w *watch) stop() { _ = w.file.Close() }

func (w *watch) release() {
	_ = w.file.Close()
	w.inUse.Add(-int64(len(w.dirs)))
	w.dirs = nil
}

// take handles what one read returned.
func (w *watch) take(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		var e unix.InotifyEvent
		n, err := binary.Decode(buf, binary.NativeEndian, &e)
		if err != nil {
			return err
		}
		name := buf[n:][:e.Len]
		buf = buf[n+int(e.Len):]
		if err := w.handle(e, string(bytes.TrimRight(name, "\x00"))); err != nil {
			return err
		}
	}
	// With nothing left to read, nothing is left that was found already.
	if left, err := w.control(func(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCINQ) }); err == nil && left == 0 {
		clear(w.told)
	}
	return nil
}

func (w *watch) handle(e unix.InotifyEvent, name string) error {
	if e.Mask&unix.IN_Q_OVERFLOW != 0 {
		return errEventsLost
	}
	if w.moved.from != "" && (e.Mask&unix.IN_MOVED_TO == 0 || e.Cookie != w.moved.cookie) {
		w.forget(w.moved.from)
		w.moved = halfMove{}
	}
	dir, known := w.dirs[e.Wd]
	if !known {
		return nil
	}
	if e.Mask&unix.IN_IGNORED != 0 {
		w.drop(e.Wd)
		return nil
	}
	if name == "" {
		if dir == "." { // another directory's own changes are told by its parent
			w.report(".", e.Mask)
		}
		return nil
	}
	return w.changed(path.Join(dir, name), e)
}

// changed handles a change of what is in a watched directory.
func (w *watch) changed(name string, e unix.InotifyEvent) error {
	if base := path.Base(name); strings.HasPrefix(base, stagedPrefix) {
		if e.Mask&unix.IN_MOVED_FROM != 0 {
			w.whole = halfMove{e.Cookie, base}
		}
		return nil
	}
	found := w.told[name]
	if e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
		delete(w.told, name)
	}
	if found && e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		return nil // if it is a directory, it is watched
	}
	if e.Mask&unix.IN_MOVED_TO != 0 && w.whole.from != "" && e.Cookie == w.whole.cookie {
		w.reportWhole(name)
		return nil
	}
	w.report(name, e.Mask)
	if !w.recursive || e.Mask&unix.IN_ISDIR == 0 {
		return nil
	}
	switch {
	case e.Mask&unix.IN_MOVED_FROM != 0:
		w.moved = halfMove{e.Cookie, name}
	case e.Mask&unix.IN_MOVED_TO != 0 && w.moved.from != "":
		w.rename(w.moved.from, name)
		w.moved = halfMove{}
	case e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return w.adopt(name)
	}
	return nil
}

// reportWhole tells of a file that was written beside its place.
func (w *watch) reportWhole(name string) {
	if !strings.HasPrefix(w.whole.from, stagedOver) {
		w.emit(name, fspb.EventType_EVENT_TYPE_CREATE)
	}
	w.emit(name, fspb.EventType_EVENT_TYPE_WRITE)
	w.whole = halfMove{}
}

// report tells of each of the changes in a mask.
func (w *watch) report(name string, mask uint32) {
	for _, m := range []struct {
		mask uint32
		kind fspb.EventType
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, fspb.EventType_EVENT_TYPE_CREATE},
		{unix.IN_MODIFY, fspb.EventType_EVENT_TYPE_WRITE},
		{unix.IN_DELETE | unix.IN_DELETE_SELF, fspb.EventType_EVENT_TYPE_REMOVE},
		{unix.IN_MOVED_FROM | unix.IN_MOVE_SELF, fspb.EventType_EVENT_TYPE_RENAME},
		{unix.IN_ATTRIB, fspb.EventType_EVENT_TYPE_CHMOD},
	} {
		if mask&m.mask != 0 {
			w.emit(name, m.kind)
		}
	}
}

// adopt watches a new directory and all below it, and tells of what is there
// already. What is made after the directory is watched may be found as well:
// its creation is told once.
func (w *watch) adopt(dir string) error {
	if err := w.addBelow(dir); err != nil {
		return err
	}
	return w.descend(dir, func(name string, entry fs.DirEntry) {
		w.told[name] = true
		w.emit(name, fspb.EventType_EVENT_TYPE_CREATE)
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			w.emit(name, fspb.EventType_EVENT_TYPE_WRITE)
		}
	})
}

// descend watches all directories below a watched one, each before it looks
// into it. It visits what it finds.
func (w *watch) descend(dir string, visit func(name string, entry fs.DirEntry)) error {
	// What cannot be read is gone, or no directory any more.
	entries, _ := os.ReadDir(filepath.Join(w.root, dir))
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), stagedPrefix) {
			continue
		}
		name := path.Join(dir, entry.Name())
		visit(name, entry)
		if !entry.IsDir() {
			continue
		}
		if err := w.addBelow(name); err != nil {
			return err
		}
		if err := w.descend(name, visit); err != nil {
			return err
		}
	}
	return nil
}

// addBelow watches a directory of the tree, unless it is none any more.
func (w *watch) addBelow(dir string) error {
	err := w.add(dir, unix.IN_DONT_FOLLOW)
	for _, gone := range []error{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

func (w *watch) add(dir string, flags uint32) error {
	if w.inUse.Add(1) > maxWatchedDirs {
		w.inUse.Add(-1)
		return faultf(exhausted, "watch '%s': more than %d directories are watched", w.root, maxWatchedDirs)
	}
	wd, err := w.control(func(fd int) (int, error) {
		return unix.InotifyAddWatch(fd, filepath.Join(w.root, dir), watchMask|flags)
	})
	if err != nil {
		w.inUse.Add(-1)
		if errors.Is(err, syscall.ENOSPC) {
			return faultf(exhausted, "watch '%s': the kernel watches no more directories", w.root)
		}
		return err
	}
	if _, again := w.dirs[int32(wd)]; again {
		w.inUse.Add(-1)
	}
	w.dirs[int32(wd)] = dir
	return nil
}

// control calls f with the descriptor, unless the watch has been stopped.
func (w *watch) control(f func(fd int) (int, error)) (n int, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	stopped := raw.Control(func(fd uintptr) { n, err = f(int(fd)) })
	return n, errors.Join(stopped, err)
}

// forget stops watching a directory that has left the tree, and all below it.
func (w *watch) forget(dir string) {
	for wd, name := range w.dirs {
		if isBelow(name, dir) {
			_, _ = w.control(func(fd int) (int, error) { return unix.InotifyRmWatch(fd, uint32(wd)) })
			w.drop(wd)
		}
	}
}

func (w *watch) drop(wd int32) {
	dir := w.dirs[wd]
	delete(w.dirs, wd)
	w.inUse.Add(-1)
	maps.DeleteFunc(w.told, func(name string, _ bool) bool { return path.Dir(name) == dir })
}

// rename follows the move of a directory within the tree.
func (w *watch) rename(from, to string) {
	for wd, name := range w.dirs {
		if isBelow(name, from) {
			w.dirs[wd] = to + name[len(from):]
		}
	}
	for name := range w.told {
		if isBelow(name, from) && name != from {
			delete(w.told, name)
			w.told[to+name[len(from):]] = true
		}
	}
}

// isBelow reports whether name is dir or in it, at any depth.
func isBelow(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir) && name[len(dir)] == '/'
}

var errEventsLost = faultf(exhausted, "there were more changes at once than could be kept: some events are lost")

// isNetworkMount reports whether a directory lies on a file system whose files
// others can change, of which the kernel does not learn.
func isNetworkMount(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, err
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return true, nil
	}
	return false, nil
}
