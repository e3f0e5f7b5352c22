package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Mounting says how overlays are mounted on this host, for its administrator.
type Mounting struct {
	Way     string   // "one by one" or "by descriptor"
	Options []string // of overlayfs, as they are set
	Missing []string // options that the kernel does not know

	mounter mounter
	dir     string // for trials
}

// Probe finds out how overlays can be mounted over layers in this store, by
// mounting some. The error says what keeps the store's directory from holding
// layers. What was found counts for every later Mount.
func (s *Store) Probe() (Mounting, error) {
	m, err := s.mounting()
	if err != nil {
		return Mounting{}, err
	}
	found := Mounting{Way: m.way.name, mounter: m, dir: filepath.Dir(s.trial)}
	known := map[option]bool{}
	for _, o := range m.options {
		known[o] = true
		found.Options = append(found.Options, o.String())
	}
	for _, o := range overlayOptions {
		if !known[o] {
			found.Missing = append(found.Missing, o.String())
		}
	}
	return found, nil
}

// mounting returns what mounts overlays, which it looks for once.
func (s *Store) mounting() (mounter, error) {
	s.probing.Lock()
	defer s.probing.Unlock()
	if s.mounter == nil {
		m, err := findMounter(s.trial, ways)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			// What sleeps must wake on a full disk: every kernel has this way.
			return mounter{way: ways[len(ways)-1], options: overlayOptions}, nil
		}
		if err != nil {
			return mounter{}, err
		}
		s.mounter = &m
	}
	return *s.mounter, nil
}

// findMounter returns the first of the ways that works for layers in dir. That
// is for this function only: nobody else may use it.
func findMounter(dir string, ways []way) (m mounter, err error) {
	clear := func() error {
		return errors.Join(endTrial(filepath.Join(dir, trialMount)), os.RemoveAll(dir))
	}
	if err := clear(); err != nil { // what a probe left that was killed
		return m, fmt.Errorf("try overlayfs: %w", err)
	}
	defer func() { err = errors.Join(err, clear()) }()
	var failed []error
	for _, w := range ways {
		var err error
		if w.name == ways[0].name {
			err = checksOptions()
		}
		if err == nil {
			m, err = tryWay(filepath.Join(dir, fmt.Sprint(len(failed))), filepath.Join(dir, trialMount), w)
		}
		if err == nil {
			return m, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", w.name, err))
	}
	return m, refusal(filepath.Dir(dir), failed)
}

// checksOptions asks whether a file system context of overlayfs knows its
// options, without trying to mount: before 6.5 it takes any, and what it does not
// know fails only then, with an error in the kernel's log.
func checksOptions() error {
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen overlay: %w", err)
	}
	defer unix.Close(fsfd)
	if unix.FsconfigSetString(fsfd, "drowse-no-such-option", "on") == nil {
		return fmt.Errorf("the kernel takes any option of overlayfs: %w", unix.EINVAL)
	}
	return nil
}

// trialMount is where, below the directory of a trial, its overlays are mounted.
const trialMount = "mnt"

// tryWay tries a way with all options that the kernel knows.
func tryWay(dir, at string, w way) (mounter, error) {
	m := mounter{way: w, options: overlayOptions}
	err := tryLayers(filepath.Join(dir, "all"), at, m)
	if !errors.Is(err, unix.EINVAL) {
		return m, err
	}
	// An option that the kernel does not know is one cause of EINVAL.
	m.options = nil
	for _, o := range overlayOptions {
		if o.needed {
			m.options = append(m.options, o)
		}
	}
	if tryOne(filepath.Join(dir, "needed"), at, m) != nil {
		return m, err
	}
	for _, o := range overlayOptions {
		if !o.needed && tryOne(filepath.Join(dir, o.key), at, mounter{way: w, options: []option{o}}) == nil {
			m.options = append(m.options, o)
		}
	}
	return m, tryLayers(filepath.Join(dir, "known"), at, m)
}

// JoinsNames reports whether names of one file in a frozen layer stay names of one
// file when it is written, in a tree with directories of the host below. It tries: the
// kernel joins them by handles of files, for which each file system must be known by a
// UUID of its own.
func (m Mounting) JoinsNames(shared ...string) (joined bool, err error) {
	dir, err := os.MkdirTemp(m.dir, ".names")
	if err != nil {
		return false, err
	}
	at, first, second := filepath.Join(dir, "at"), filepath.Join(dir, "lower", "first"), filepath.Join(dir, "lower", "second")
	o := overlay{at: at, lowers: []string{filepath.Dir(first)}, upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work")}
	defer func() { err = errors.Join(err, Unmount(at), os.RemoveAll(dir)) }()
	if err := errors.Join(makeDirs(at, o.lowers[0], o.upper, o.work), os.WriteFile(first, nil, 0o600), os.Link(first, second)); err != nil {
		return false, err
	}
	if len(shared) > 0 {
		if ViewsWork(shared) {
			if err := mountView(at, shared, filepath.Join(dir, nothingName)); err != nil {
				return false, err
			}
			shared = []string{at}
		}
		o.lowers = append(o.lowers, shared...)
	}
	if err := m.mounter.mount(o); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(at, "first"), []byte("written"), 0o600); err != nil {
		return false, err
	}
	data, err := os.ReadFile(filepath.Join(at, "second"))
	return string(data) == "written", err
}

// tryOne mounts one overlay in a new directory.
func tryOne(dir, at string, m mounter) error {
	o := overlay{at: at, lowers: []string{filepath.Join(dir, "lower")}, upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work")}
	if err := makeDirs(o.at, o.lowers[0], o.upper, o.work); err != nil {
		return err
	}
	return errors.Join(m.mount(o), endTrial(at))
}

// tryLayers makes a layer with each kind of mark that overlayfs leaves in one,
// and looks whether a mount over that layer obeys it. File systems that cannot
// keep a mark are mounted all the same, and then behave differently.
func tryLayers(dir, at string, m mounter) (err error) {
	in := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	defer func() { err = errors.Join(err, endTrial(at)) }()
	first := overlay{at: at, lowers: []string{in("lower")}, upper: in("first"), work: in("first.work")}
	second := overlay{at: at, lowers: []string{in("first"), in("lower")}, upper: in("second"), work: in("second.work")}
	if err := makeDirs(in("lower", "moved", "here"), in("lower", "gone"), in("lower", "again", "hidden"), first.upper, first.work, second.upper, second.work, at); err != nil {
		return err
	}
	if err := m.mount(first); err != nil {
		return err
	}
	err = errors.Join(
		os.Rename(filepath.Join(at, "moved"), filepath.Join(at, "there")),
		os.Remove(filepath.Join(at, "gone")),
		os.RemoveAll(filepath.Join(at, "again")),
		os.Mkdir(filepath.Join(at, "again"), 0o755),
	)
	if err != nil {
		return err
	}
	if err := endTrial(at); err != nil {
		return err
	}
	if err := m.mount(second); err != nil {
		return err
	}
	for name, want := range map[string]bool{"there/here": true, "moved": false, "gone": false, "again": true, "again/hidden": false} {
		_, err := os.Lstat(filepath.Join(at, name))
		if errors.Is(err, fs.ErrNotExist) == want {
			return fmt.Errorf("a layer does not keep what was changed in it: %s", name)
		}
	}
	return nil
}

// endTrial unmounts what is mounted at a directory, if anything is.
func endTrial(at string) error {
	err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func makeDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// refusal says why layers cannot be kept in a directory.
func refusal(dir string, failed []error) error {
	cause := errors.Join(failed...)
	switch {
	case errors.Is(cause, unix.ENODEV):
		return errdef.New(errdef.Unsupported, "no_overlayfs", "this kernel has no overlayfs").
			WithRemedy("load the module (modprobe overlay) or use a kernel that has it")
	case errors.Is(cause, unix.EPERM), errors.Is(cause, unix.EACCES):
		return errdef.New(errdef.Forbidden, "mount_forbidden", "the kernel does not let this process mount an overlayfs (%w)", failed[len(failed)-1]).
			WithRemedy("run it as root with CAP_SYS_ADMIN; a container needs --privileged")
	case errors.Is(cause, unix.ENOSPC), errors.Is(cause, unix.EDQUOT):
		return errdef.New(errdef.Unavailable, "disk_full", "there is no room in %s to try overlayfs (%w)", dir, failed[len(failed)-1]).
			WithRemedy("make room there, or choose another place with --state-dir")
	case errors.Is(cause, unix.EROFS):
		return errdef.New(errdef.Invalid, "state_dir", "%s is on a read-only file system", dir).
			WithRemedy("mount it writable, or choose another place with --state-dir")
	}
	what, remedy := whyUnusable(dir)
	if what == "" {
		what = fmt.Sprintf("overlayfs does not work there (%v)", strings.ReplaceAll(cause.Error(), "\n", "; "))
	}
	return errdef.New(errdef.Unsupported, "state_dir_unusable", "%s cannot be the state directory: %s", dir, what).
		WithRemedy("%s", remedy)
}

// whyUnusable tells what is known of the file system of a directory in which an
// overlayfs cannot keep layers, and what to do.
func whyUnusable(dir string) (what, remedy string) {
	remedy = "choose a directory on ext4, xfs or btrfs with --state-dir"
	if ignoresCase(dir) {
		return "it ignores the case of names, which overlayfs does not support", "choose a directory without that (chattr -F) on a file system made without ext4's feature casefold, with --state-dir"
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", remedy
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		remedy = "choose a directory on a volume (docker run -v drowse:/var/lib/drowse) or a disk of the host with --state-dir"
	}
	if name := foreign[int64(st.Type)]; name != "" {
		what = "it lies on " + name + ", on which overlayfs cannot keep layers"
	}
	return what, remedy
}

// foreign names file systems that are often met where layers cannot be kept.
var foreign = map[int64]string{
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.NFS_SUPER_MAGIC:       "NFS",
	unix.SMB2_SUPER_MAGIC:      "SMB",
	unix.CIFS_SUPER_MAGIC:      "SMB",
	unix.V9FS_MAGIC:            "9p",
	unix.FUSE_SUPER_MAGIC:      "FUSE",
	unix.MSDOS_SUPER_MAGIC:     "FAT",
	0x2fc12fc1:                 "ZFS",
}

// ignoresCase reports whether two names that differ in case alone are one in dir.
func ignoresCase(dir string) bool {
	f, err := os.CreateTemp(dir, ".case-a*")
	if err != nil {
		return false
	}
	f.Close()
	defer os.Remove(f.Name())
	other := filepath.Join(dir, ".case-A"+filepath.Base(f.Name())[len(".case-a"):])
	_, err = os.Lstat(other)
	return err == nil
}
