package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/ownthread"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/tree"
)

// MaxLowers is the number of lower directories that the kernel takes for one
// overlay (OVL_MAX_STACK), those of the template among them.
const MaxLowers = 500

// overlay is one mount of an overlayfs. It is nosuid and nodev: gVisor reads the
// modes of programs and makes set-uid and devices itself, and no process of the
// host is to gain anything from what a sandbox has written.
type overlay struct {
	at     string   // the mount point
	lowers []string // topmost first
	upper  string
	work   string
}

// option is a mount option of overlayfs.
type option struct {
	key, value string
	needed     bool // a kernel without the option cannot keep layers
}

func (o option) String() string { return o.key + "=" + o.value }

// overlayOptions are set whatever the kernel's defaults are. Distributions
// build kernels with different defaults, and administrators change them.
var overlayOptions = []option{
	// Without it, a directory of a lower layer cannot be renamed.
	{"redirect_dir", "on", true},
	// With metacopy, a file's data could stay behind in a lower layer.
	{"metacopy", "off", false},
	// Without it, writing to a file through one of its names parts it from the
	// others. It ties a top to the inodes of the layers below it: a top is mounted
	// once.
	{"index", "on", false},
	// It would have directories in the index as well.
	{"nfs_export", "off", false},
}

// way is one of the kernel's interfaces by which an overlay is mounted.
type way struct {
	name  string
	mount func(overlay, []option) error
}

// ways are tried in this order.
var ways = []way{
	{"one by one", mountOneByOne},
	{"by descriptor", mountByDescriptor},
}

// mounter mounts overlays as this host can.
type mounter struct {
	way     way
	options []option
}

// mount mounts an overlay. With an index the kernel refuses to have a directory in
// two of them at once, if one may write there. A layer that was frozen just now is the
// top of a mount that is about to end, which takes as long as it takes to write all of
// the disk. That is waited for only if there is something for an index to do.
func (m mounter) mount(o overlay) error {
	if len(o.lowers) > MaxLowers {
		return tooMany(len(o.lowers))
	}
	err := m.try(o)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if joined, err := haveNames(o.lowers); err != nil {
		return err
	} else if !joined {
		return m.without("index").try(o)
	}
	for end := time.Now().Add(maxBusy); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		<-time.After(busyStep)
		err = m.try(o)
	}
	return err
}

const (
	maxBusy  = 30 * time.Second
	busyStep = 2 * time.Millisecond
)

// haveNames reports whether a file below one of the directories has several names.
func haveNames(dirs []string) (bool, error) {
	found := errors.New("found")
	for _, dir := range dirs {
		err := tree.WalkLive(context.Background(), dir, func(e *tree.Entry) error {
			if hasNames(e) {
				return found
			}
			return nil
		})
		if errors.Is(err, found) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// without returns a mounter that switches an option off.
func (m mounter) without(key string) mounter {
	m.options = slices.Clone(m.options)
	for i := range m.options {
		if m.options[i].key == key {
			m.options[i].value = "off"
		}
	}
	return m
}

func (m mounter) try(o overlay) error {
	if planted.In(planted.NoIndex) {
		m = m.without("index")
	}
	if m.way.name == ways[0].name && slices.ContainsFunc(append([]string{o.upper, o.work}, o.lowers...), unfitForContext) {
		return mountByDescriptor(o, m.options)
	}
	return m.way.mount(o, m.options)
}

func tooMany(layers int) error {
	return errdef.New(errdef.Exhausted, "too_many_layers", "%d layers are more than the %d that the kernel mounts over each other", layers, MaxLowers)
}

// unfitForContext reports whether a path cannot be given to a file system
// context: its strings end at 256 bytes, and overlayfs takes a backslash in
// some of them for an escape.
func unfitForContext(path string) bool { return len(path) >= 256 || strings.Contains(path, `\`) }

// mountOneByOne uses a file system context, to which the lower directories are
// given one by one. The kernel has that since 6.7. It shows the directories in
// /proc/self/mountinfo by their names, and explains what it rejects.
func mountOneByOne(o overlay, options []option) error {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen overlay: %w", err)
	}
	defer unix.Close(fsfd)
	settings := [][2]string{{"source", mountSource}, {"upperdir", o.upper}, {"workdir", o.work}}
	for _, l := range o.lowers {
		settings = append(settings, [2]string{"lowerdir+", l})
	}
	for _, p := range options {
		settings = append(settings, [2]string{p.key, p.value})
	}
	for _, kv := range settings {
		if err := unix.FsconfigSetString(fsfd, kv[0], kv[1]); err != nil {
			return fmt.Errorf("overlay option %s=%s: %w", kv[0], kv[1], contextError(fsfd, err))
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fmt.Errorf("create overlay: %w", contextError(fsfd, err))
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("fsmount overlay: %w", contextError(fsfd, err))
	}
	defer unix.Close(mfd)
	if err := unix.MoveMount(mfd, "", unix.AT_FDCWD, o.at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach overlay at %s: %w", o.at, err)
	}
	return nil
}

// contextError adds the kernel's own explanation, which it queues on the file
// system context.
func contextError(fsfd int, err error) error {
	buf := make([]byte, 1024)
	n, readErr := unix.Read(fsfd, buf)
	if readErr != nil || n <= 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.TrimSpace(string(buf[:n])))
}

// mountSource is the first field of our mounts in /proc/mounts.
const mountSource = "drowse"

// mountByDescriptor uses mount(2), which every kernel has. Its options end at
// one page. So the directories are opened, and named by the numbers of their
// descriptors, relative to /proc/thread-self/fd: as many as the kernel takes
// for one overlay fit, whatever their paths are.
func mountByDescriptor(o overlay, options []option) error {
	var opened []int
	defer func() {
		for _, fd := range opened {
			unix.Close(fd)
		}
	}()
	var names []string
	for _, dir := range append([]string{o.at, o.upper, o.work}, o.lowers...) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		opened = append(opened, fd)
		names = append(names, strconv.Itoa(fd))
	}
	data := "upperdir=" + names[1] + ",workdir=" + names[2] + ",lowerdir=" + strings.Join(names[3:], ":")
	for _, p := range options {
		data += "," + p.String()
	}
	if len(data) >= os.Getpagesize() { // the kernel would cut it off
		return errdef.New(errdef.Exhausted, "too_many_layers", "the names of %d layers do not fit into one page", len(o.lowers))
	}
	if err := inDirectory("/proc/thread-self/fd", func() error { return unix.Mount(mountSource, names[0], "overlay", unix.MS_NOSUID|unix.MS_NODEV, data) }); err != nil {
		return fmt.Errorf("mount overlay at %s: %w", o.at, err)
	}
	return nil
}

// inDirectory runs f on a thread of its own whose working directory is dir.
func inDirectory(dir string, f func() error) error {
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare working directory: %w", err)
		}
		if err := unix.Chdir(dir); err != nil {
			return &fs.PathError{Op: "chdir", Path: dir, Err: err}
		}
		return f()
	})
}

// Unmount takes away every mount at or below the directory at, and the
// directory. It is idempotent, also beside another Unmount of the same.
func Unmount(at string) error {
	if err := detach(at); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount layers: %w", err)
	}
	return nil
}

// detach takes away every mount at or below a directory.
func detach(at string) error {
	for {
		points, err := mountPoints(at)
		if len(points) == 0 || err != nil {
			return err
		}
		for i := len(points) - 1; i >= 0; i-- {
			if err := failpoint.Fail(failpoint.Unmount); err != nil {
				return err
			}
			err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			// A sandbox can move a directory with a mount in it to a path that no
			// call takes. It goes with the mount above.
			gone := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENAMETOOLONG)
			if err != nil && !gone {
				return fmt.Errorf("unmount %s: %w", points[i], err)
			}
		}
	}
}

// mountPoints returns the mount points at or below dir in the order they were
// made. The kernel lists them by their real paths.
func mountPoints(dir string) ([]string, error) {
	dir, err := realPath(dir)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		p := unescape.Replace(fields[4])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	return points, nil
}

// unescape undoes what the kernel does to paths in its lists of mounts.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

// realPath returns the absolute path of a directory, without symbolic links.
// Only its parent has to exist, and if not even that does, nothing can be
// mounted below it.
func realPath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	return filepath.Join(parent, filepath.Base(dir)), err
}
