package layer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/tree"
)

// A file with several names (hard links) that lies in a frozen layer is copied to
// the top when it is written through one of them. As long as the overlay is
// mounted, the kernel's index joins the other names with the copy; but it gives
// them a place in the top only when they are used. So before a top is frozen or
// copied, they get one: the overlay is asked to change the file through each of
// them, to what it is.

// mounted says where a tree of a top is mounted, and over what. It is noted in the
// top, so that a server that did not mount it knows as well.
type mounted struct {
	At     string   `json:"at"`
	Tree   string   `json:"tree"` // its name
	Lowers []string `json:"lowers"`
}

// mountedName is the file of these notes, below workDir.
const mountedName = "mounted"

func noteMounted(dir string, all []mounted) error {
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, workDir, mountedName), data, 0o600)
}

func whereMounted(dir string) (all []mounted, err error) {
	data, err := os.ReadFile(filepath.Join(dir, workDir, mountedName))
	if errors.Is(err, fs.ErrNotExist) { // an older program mounted it, without an index
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	return all, err
}

// joinNames gives all names of the files in a top a place in it. The top is mounted,
// and nobody changes it.
func joinNames(ctx context.Context, dir string) error {
	all, err := whereMounted(dir)
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := m.join(ctx, filepath.Join(dir, workDir, m.Tree, "index")); err != nil {
			return fmt.Errorf("join the names of files in %s: %w", m.At, err)
		}
	}
	return nil
}

func (m mounted) join(ctx context.Context, index string) error {
	apart, err := partedFiles(index)
	if err != nil || len(apart) == 0 || planted.In(planted.PartedNames) {
		return err
	}
	root, err := os.Open(m.At)
	if err != nil {
		return err
	}
	defer root.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return err
	}
	if st.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return errors.New("it is not mounted")
	}
	inodes := map[uint64]bool{}      // of the files in the layers
	for _, lower := range m.Lowers { // the last are the host's own
		err := tree.WalkLive(ctx, lower, func(e *tree.Entry) error {
			if !hasNames(e) {
				return nil
			}
			origin, err := handleOf(e)
			if err != nil || !apart[origin] {
				return err
			}
			inodes[e.Stat.Ino&inodeBits] = true
			return touch(root, e.Path().String(), e.Stat.Ino)
		})
		if err != nil {
			return err
		}
		if apart, err = partedFiles(index); err != nil || len(apart) == 0 {
			return err
		}
	}
	// Directories that were renamed have the names elsewhere now.
	var device uint64 // of the overlay's directories
	return tree.WalkLive(ctx, m.At, func(e *tree.Entry) error {
		switch {
		case e.Depth == 0:
			device = e.Stat.Dev
		case e.Kind() == unix.S_IFDIR && e.Stat.Dev != device:
			return tree.SkipDir // another tree, or a volume
		case e.Kind() != unix.S_IFDIR && inodes[e.Stat.Ino&inodeBits]:
			return touchAt(e.At, e.Name, &e.Stat)
		}
		return nil
	})
}

// hasNames reports whether an entry of a layer is a file with several names.
func hasNames(e *tree.Entry) bool {
	return e.Kind() != unix.S_IFDIR && e.Stat.Nlink > 1 && !tree.IsWhiteout(&e.Stat)
}

// inodeBits are those of an inode number that are no mark of overlayfs (xino).
const inodeBits = 1<<48 - 1

// touch sets the modification time of a file to what it is, if the overlay has the
// file with that inode at the path.
func touch(root *os.File, p string, ino uint64) error {
	in, name := root, path.Base(p)
	if dir := path.Dir(p); dir != "." {
		var err error
		in, err = tree.OpenBelow(root, dir, unix.O_PATH|unix.O_DIRECTORY)
		if elsewhere(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer in.Close()
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(in.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if elsewhere(err) || err == nil && st.Ino&inodeBits != ino&inodeBits {
		return nil
	}
	if err != nil {
		return err
	}
	return touchAt(int(in.Fd()), name, &st)
}

// elsewhere reports whether an error says that there is no file at a path.
func elsewhere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}

func touchAt(at int, name string, st *unix.Stat_t) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	if err := unix.UtimesNanoAt(at, name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "copy up", Path: name, Err: err}
	}
	return nil
}

// origin is the file of a layer that was copied to a top, by its handle.
type origin struct {
	kind   int32
	handle string
}

// partedFiles returns the files in an index of which the overlay has more names than
// the top.
func partedFiles(index string) (map[origin]bool, error) {
	entries, err := readDir(index)
	if err != nil {
		return nil, err
	}
	apart := map[origin]bool{}
	for _, e := range entries {
		o, ok := originOf(e.Name())
		if !ok || e.Type() != 0 && e.Type()&(fs.ModeDir|fs.ModeCharDevice) != 0 { // a mark of what was removed
			continue
		}
		more, err := hasMoreNames(filepath.Join(index, e.Name()))
		if err != nil {
			return nil, err
		}
		if more {
			apart[o] = true
		}
	}
	return apart, nil
}

// attrLinks is how many names a file has that was copied up, relative to its links
// in the top ("U-1", one of which is in the index) or in its layer ("L+0").
const attrLinks = "trusted.overlay.nlink"

func hasMoreNames(path string) (bool, error) {
	value, err := attribute(path, attrLinks)
	if errors.Is(err, unix.ENODATA) || len(value) == 0 {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "getxattr " + attrLinks, Path: path, Err: err}
	}
	text, relative := strings.CutPrefix(string(value), "U")
	n, err := strconv.Atoi(text)
	return !relative || err != nil || n >= 0, nil
}

// originOf reads the name of an entry of the index, which is the handle of a file in
// hexadecimal, as overlayfs encodes it: a version, a magic number, a length, flags, a
// type, the file system's UUID, and the handle itself.
func originOf(name string) (o origin, ok bool) {
	data, err := hex.DecodeString(name)
	if err != nil {
		return o, false
	}
	const (
		magic  = 0xfb
		header = 5 + 16
		nested = 0xf8 // the handle of a file that an overlay below shows
	)
	for len(data) > header && data[1] == magic {
		kind, handle := data[4], data[header:min(int(data[2]), len(data))]
		if kind != nested {
			return origin{int32(kind), string(handle)}, true
		}
		data = handle[min(3, len(handle)):] // padding
	}
	return o, false
}

// handleOf returns the handle by which an index knows a file.
func handleOf(e *tree.Entry) (o origin, err error) {
	h, _, err := unix.NameToHandleAt(e.At, e.Name, 0)
	if err != nil {
		return o, &fs.PathError{Op: "name_to_handle_at", Path: e.Path().Short(), Err: err}
	}
	return origin{h.Type(), string(h.Bytes())}, nil
}
