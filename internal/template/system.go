package template

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
)

// System returns what the host's own directories that a template shows are like
// now. It is the zero System for a template that shows none.
//
// To look takes a few hundred milliseconds for a usual /usr. What was seen last
// is returned again for as long as the kernel has told of no change there
// (inotify), which takes microseconds. Where the kernel does not watch that many
// directories, each call looks.
func (s *Store) System(ctx context.Context, t Template) (layer.System, error) {
	v := s.view(t)
	if v == nil {
		return layer.System{}, nil
	}
	return v.system(ctx)
}

// view returns the host's directories that a template shows; nil if it shows none.
func (s *Store) view(t Template) *view {
	var roots []string
	for _, tree := range t.Trees {
		roots = append(roots, tree.Lowers[len(tree.Lowers)-s.shared(tree):]...)
	}
	if len(roots) == 0 {
		return nil
	}
	key := strings.Join(roots, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.system[key]
	if v == nil {
		v = &view{roots: roots}
		s.system[key] = v
	}
	return v
}

// shared returns how many of the last directories of a tree are the host's own.
// The others were generated, and are part of the template's id.
func (s *Store) shared(tree layer.Tree) (n int) {
	for _, lower := range slices.Backward(tree.Lowers) {
		if strings.HasPrefix(lower, s.dir+"/") {
			break
		}
		n++
	}
	return n
}

// view is directories of the host, and what is known of them.
type view struct {
	roots []string

	mu    sync.Mutex // over a look
	known layer.System
	watch *watch // tells whether known still holds; nil: nothing is known
	looks int    // for tests

	notBefore time.Time // when to look for nobody in particular

	closed atomic.Pointer[[]string] // what not everybody may read, as it was seen last, sorted
}

// closed collects what not everybody may read: directories, not what is in them,
// and files.
type closed struct {
	mu    sync.Mutex
	paths []string
}

func (c *closed) add(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths = append(c.paths, path)
}

func (v *view) system(ctx context.Context) (layer.System, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.watch != nil && !v.watch.changed() {
		return v.known, nil
	}
	if v.watch != nil {
		v.watch.close()
		v.watch = nil
	}
	v.looks++
	begin := time.Now()
	defer func() { v.notBefore = time.Now().Add(lookShare * time.Since(begin)) }()
	l := look{watch: newWatch(), closed: &closed{}, roots: v.roots}
	system, err := l.at(ctx, v.roots)
	if err == nil {
		slices.Sort(l.closed.paths)
		v.closed.Store(&l.closed.paths)
	}
	// What has changed meanwhile may be in it or not: whoever asks next looks
	// again.
	if err != nil || l.watch.changed() {
		l.watch.close()
		return system, err
	}
	v.known, v.watch = system, l.watch
	return system, nil
}

// lookShare is how many times as long as a look it takes until somebody looks again
// for nobody in particular: the host may change all the time.
const lookShare = 10

// lookLater looks again in the background, if anything has changed.
func (v *view) lookLater(ctx context.Context) {
	if !v.mu.TryLock() { // somebody is looking
		return
	}
	defer v.mu.Unlock()
	if time.Now().After(v.notBefore) {
		go func() { _, _ = v.system(context.WithoutCancel(ctx)) }() // who needs it looks again, and is told
	}
}

// look is one walk through directories, by several goroutines at once.
type look struct {
	watch  *watch
	group  *errgroup.Group
	closed *closed
	roots  []string
}

// seen is a directory: of what is in it, in the order of its names.
type seen struct {
	parts []part
}

// part is a directory, or files and links before, between and after directories.
type part struct {
	dir   *seen
	lines []byte // the same on machines on which the same is installed
	times []byte
}

func (l look) at(ctx context.Context, roots []string) (layer.System, error) {
	l.group, ctx = errgroup.WithContext(ctx)
	l.group.SetLimit(2 * goruntime.GOMAXPROCS(0))
	all := make([]seen, len(roots))
	for i, root := range roots {
		l.group.Go(func() error {
			if err := l.dir(ctx, root, &all[i]); err != nil {
				return fmt.Errorf("look at %s: %w", root, err)
			}
			return nil
		})
	}
	if err := l.group.Wait(); err != nil {
		return layer.System{}, err
	}
	digest, exact := sha256.New(), sha256.New()
	for _, root := range all {
		root.hash(digest, exact)
	}
	system := layer.System{Digest: hex.EncodeToString(digest.Sum(nil))}
	exact.Write(digest.Sum(nil))
	system.Exact = hex.EncodeToString(exact.Sum(nil))
	return system, nil
}

// dir looks at a directory and all below it.
func (l look) dir(ctx context.Context, path string, s *seen) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.watch.add(path) // before it is read
	open, err := os.Open(path)
	if err != nil {
		return unlessGone(err)
	}
	defer open.Close()
	var info unix.Stat_t
	if err := unix.Fstat(int(open.Fd()), &info); err != nil {
		return err
	}
	if info.Mode&0o005 != 0o005 && !slices.Contains(l.roots, path) {
		l.closed.add(path)
	}
	entries, err := open.ReadDir(-1)
	if err != nil {
		return unlessGone(err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	fd := int(open.Fd())
	s.parts = append(s.parts, part{})
	for _, e := range entries {
		name := path + "/" + e.Name()
		if !e.IsDir() {
			readable, err := s.parts[len(s.parts)-1].add(fd, name, e)
			if err != nil {
				return err
			}
			if !readable {
				l.closed.add(name)
			}
			continue
		}
		if e.Name() == PythonCache {
			continue
		}
		below := &seen{}
		s.parts = append(s.parts, part{dir: below}, part{})
		if !l.group.TryGo(func() error { return l.dir(ctx, name, below) }) {
			if err := l.dir(ctx, name, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// PythonCache is the name of directories that Python makes anew whenever it likes.
const PythonCache = "__pycache__"

// add notes a file or a link in an open directory, and reports whether everybody
// may read it.
func (p *part) add(dir int, path string, e fs.DirEntry) (readable bool, err error) {
	switch {
	case e.Type().IsRegular():
		var info unix.Stat_t
		if err := unix.Fstatat(dir, e.Name(), &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return true, unlessGone(err)
		}
		p.lines = append(append(strconv.AppendQuote(p.lines, path), ' '), modeOf(info.Mode)...)
		p.lines = append(strconv.AppendInt(append(p.lines, ' '), info.Size, 10), '\n')
		p.times = binary.BigEndian.AppendUint64(p.times, uint64(info.Mtim.Nano()))
		return info.Mode&0o004 != 0, nil
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return true, unlessGone(err)
		}
		p.lines = append(strconv.AppendQuote(append(strconv.AppendQuote(p.lines, path), ' '), target), '\n')
		return true, nil
	}
	return false, nil // a device, a socket or a FIFO is for the host's processes
}

// modeOf is the mode of a regular file as fs.FileMode writes it.
func modeOf(mode uint32) string {
	switch mode {
	case unix.S_IFREG | 0o644:
		return "-rw-r--r--"
	case unix.S_IFREG | 0o755:
		return "-rwxr-xr-x"
	}
	m := fs.FileMode(mode & 0o777)
	for bit, set := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= set
		}
	}
	return m.String()
}

// unlessGone forgives that something is removed while it is looked at, and that
// it is not for us to see.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

func (s *seen) hash(digest, exact hash.Hash) {
	for _, p := range s.parts {
		if p.dir != nil {
			p.dir.hash(digest, exact)
		}
		digest.Write(p.lines)
		exact.Write(p.times)
	}
}

// watch is told by the kernel of what changes in directories. It is safe for
// concurrent use. One that has failed takes everything for changed.
type watch struct {
	file *os.File

	mu     sync.Mutex
	failed bool
}

const watched = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK

func newWatch() *watch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &watch{failed: true}
	}
	return &watch{file: os.NewFile(uintptr(fd), "inotify")}
}

func (w *watch) add(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed {
		return
	}
	w.control(func(fd int) error {
		_, err := unix.InotifyAddWatch(fd, dir, watched)
		if err == unix.ENOENT { // its own directory tells of that
			return nil
		}
		return err
	})
}

// changed reports whether anything has changed since the directories were
// added, or nobody knows.
func (w *watch) changed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	buf := make([]byte, 4<<10)
	for !w.failed {
		n := 0
		w.control(func(fd int) (err error) {
			n, err = unix.Read(fd, buf)
			return err
		})
		if n <= 0 {
			break
		}
		w.failed = w.failed || matters(buf[:n])
	}
	return w.failed
}

// control calls f with the descriptor; mu is held.
func (w *watch) control(f func(fd int) error) {
	conn, err := w.file.SyscallConn()
	if err == nil {
		failed := conn.Control(func(fd uintptr) {
			for err = unix.EINTR; err == unix.EINTR; {
				err = f(int(fd))
			}
		})
		err = errors.Join(err, failed)
	}
	w.failed = w.failed || err != nil && !errors.Is(err, unix.EAGAIN)
}

func (w *watch) close() {
	if w.file != nil {
		w.file.Close()
	}
}

// matters reports whether one of the kernel's events is about more than Python's
// cache.
func matters(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[unix.SizeofInotifyEvent-4:]))
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		if name != PythonCache {
			return true
		}
		events = events[end:]
	}
	return false
}
