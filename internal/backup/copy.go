package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// entry is all that a copy has of something with a name. It stands in the manifest
// in the order of a walk, so that its depth says which directory it is in: with whole
// paths, a manifest of deep directories would be larger than what is in them.
type entry struct {
	Depth  int               `json:"depth"` // how many names its path has; 0 for the top
	Name   text              `json:"name"`  // "." for the top
	Mode   uint32            `json:"mode"`  // with the type, as stat has it
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Mtime  [2]int64          `json:"mtime"` // seconds and nanoseconds
	Rdev   uint64            `json:"rdev,omitempty"`
	Size   int64             `json:"size,omitempty"`   // of a file
	SHA256 string            `json:"sha256,omitempty"` // of a file: of its blocks that are not zero, each after its place
	Link   text              `json:"link,omitempty"`   // of a symbolic link
	Same   int64             `json:"same,omitempty"`   // which entry is the first name of the same file; the top is 0
	Attrs  map[string][]byte `json:"attrs,omitempty"`
}

func (e entry) kind() uint32 { return e.Mode & unix.S_IFMT }

// text is a name or a link. If it is not UTF-8, JSON has its bytes.
type text string

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([][]byte{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(data []byte) error {
	var raw [][]byte
	if json.Unmarshal(data, &raw) == nil && len(raw) == 1 {
		*t = text(raw[0])
		return nil
	}
	return json.Unmarshal(data, (*string)(t))
}

// block is the unit in which contents are read and summed, and page the one in which
// they are written.
const (
	block = 64 << 10
	page  = 4 << 10
)

// inode is a file. Where files are removed meanwhile, another one can get its number,
// but not its time of birth.
type inode struct {
	dev, ino uint64
	born     unix.StatxTimestamp // zero where nothing is removed
}

// copier copies a tree, or looks at it if there is nowhere to copy to.
type copier struct {
	from   Source
	live   bool       // others may change the tree
	to     *maker     // nil if there is nowhere
	out    *streaming // likewise
	dev    uint64
	seen   map[inode]int64 // of files with several names, the entry that came first
	sum    Summary
	buffer []byte
}

func newCopier(from Source, to string) *copier {
	c := &copier{from: from, seen: map[inode]int64{}, buffer: make([]byte, block)}
	if to != "" {
		c.to = &maker{at: to}
	}
	return c
}

// judged is how many names there are in a path that Source.Skip judges, at most.
const judged = 3

// errVanished says that something is not there any more that was when its name was read.
var errVanished = errors.New("it was removed meanwhile")

// copy tells of each entry once it is copied, in the order of their names.
func (c *copier) copy(ctx context.Context, tell func(any) error) (_ Summary, err error) {
	if c.to != nil {
		defer c.to.abort()
	}
	walk := tree.Walk
	if c.live {
		walk = tree.WalkLive
	}
	err = walk(ctx, c.from.Dir, func(t *tree.Entry) error {
		var names []string // of the first levels
		if t.Depth == 0 {
			c.dev = t.Stat.Dev
		} else if t.Depth <= judged {
			names = strings.Split(t.Path().String(), "/")
		}
		if len(names) == 2 && c.live && names[0] == c.from.Apart {
			clear(c.seen)
		}
		leave := len(names) > 0 && c.from.Skip != nil && c.from.Skip(names...)
		var e entry
		var err error
		if !leave {
			e, err = c.one(ctx, t)
			leave = errors.Is(err, errVanished)
		}
		switch {
		case leave && t.Kind() == unix.S_IFDIR:
			return tree.SkipDir
		case leave:
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", t.Path().Short(), err)
		}
		c.sum.Files++
		return tell(e)
	})
	if err == nil && c.to != nil {
		err = c.to.leaveUntil(0)
	}
	return c.sum, err
}

// one copies what has a name, without what is below it.
func (c *copier) one(ctx context.Context, t *tree.Entry) (e entry, err error) {
	in, err := c.open(t)
	if err != nil {
		return e, err
	}
	if in != nil {
		defer in.Close()
	}
	st := &t.Stat
	if st.Dev != c.dev && !c.instead(t) {
		return e, errors.New("another file system is mounted here, which is no part of the backup: unmount it first")
	}
	e = entry{Depth: t.Depth, Name: text(t.Name), Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: [2]int64{st.Mtim.Sec, st.Mtim.Nsec}}
	if c.to != nil {
		if err := c.to.leaveUntil(t.Depth); err != nil {
			return e, err
		}
	}
	linked := t.Kind() != unix.S_IFDIR && st.Nlink > 1
	if linked {
		id := inode{dev: st.Dev, ino: st.Ino}
		if c.live {
			if id.born, err = c.born(t, in); err != nil {
				return e, c.vanished(err)
			}
		}
		if first, linked := c.seen[id]; linked {
			if e = (entry{Depth: t.Depth, Name: e.Name, Mode: st.Mode, Same: first}); c.to == nil {
				return e, nil
			}
			return e, c.to.link(e)
		}
		defer func() {
			if err == nil {
				c.seen[id] = c.sum.Files
			}
		}()
	}
	switch t.Kind() {
	case unix.S_IFREG:
		e.Size = st.Size
	case unix.S_IFLNK:
		link, err := os.Readlink(tree.ProcPath(t.At, t.Name))
		if err != nil {
			return e, c.vanished(err)
		}
		e.Link = text(link)
	case unix.S_IFDIR:
	default: // a device, as the mark of a file that a layer removes; a pipe; a socket's name
		e.Rdev = st.Rdev
	}
	if e.Attrs, err = attrs(tree.ProcPath(t.At, t.Name)); err != nil {
		return e, c.vanished(err)
	}
	return c.make(ctx, e, in, linked)
}

// born returns when a file was made, or what no other has where the file system does not
// know: each of its names is then copied as a file of its own. The file is the one that
// in has open, if that is there.
func (c *copier) born(t *tree.Entry, in *os.File) (unix.StatxTimestamp, error) {
	var st unix.Statx_t
	at, name, flags := t.At, t.Name, unix.AT_SYMLINK_NOFOLLOW
	if in != nil {
		at, name, flags = int(in.Fd()), "", unix.AT_EMPTY_PATH
	}
	switch err := unix.Statx(at, name, flags, unix.STATX_BTIME|unix.STATX_INO, &st); {
	case err != nil:
		return st.Btime, err
	case st.Ino != t.Stat.Ino:
		return st.Btime, errVanished
	case st.Mask&unix.STATX_BTIME == 0:
		return unix.StatxTimestamp{Sec: -1 - c.sum.Files}, nil
	}
	return st.Btime, nil
}

// instead reports whether the contents of an entry are taken from elsewhere.
func (c *copier) instead(t *tree.Entry) bool { return t.Depth == 1 && c.from.Instead[t.Name] != nil }

// open opens a regular file, and nothing else. What is open may be another file than
// the one whose name was read: it is the one that the entry is of from then on.
func (c *copier) open(t *tree.Entry) (*os.File, error) {
	if c.instead(t) {
		f := c.from.Instead[t.Name]
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), t.Name), unix.Fstat(fd, &t.Stat)
	}
	if t.Kind() != unix.S_IFREG {
		return nil, nil
	}
	f, err := t.Open()
	if err != nil {
		return nil, c.vanished(err)
	}
	if err := unix.Fstat(int(f.Fd()), &t.Stat); err != nil || t.Kind() != unix.S_IFREG {
		return nil, errors.Join(cmp.Or(err, errVanished), f.Close())
	}
	return f, nil
}

// vanished returns errVanished for an error by which something that others change shows
// that it has gone, or become a link or a socket.
func (c *copier) vanished(err error) error {
	for _, gone := range []error{fs.ErrNotExist, unix.ELOOP, unix.ENXIO, unix.EINVAL} {
		if c.live && errors.Is(err, gone) {
			return errVanished
		}
	}
	return err
}

// make makes the copy of an entry, if there is somewhere to copy to.
func (c *copier) make(ctx context.Context, e entry, in *os.File, linked bool) (_ entry, err error) {
	var out *os.File
	switch {
	case c.to != nil:
		if out, err = c.to.make(e); err != nil {
			return e, err
		}
	case c.out != nil:
		if err := c.out.begin(e, linked); err != nil {
			return e, err
		}
	}
	if in != nil {
		e.SHA256, err = c.contents(ctx, in, out, e.Size)
		if out != nil {
			err = errors.Join(err, out.Close())
		}
		if err != nil {
			return e, err
		}
	}
	if c.to != nil {
		err = c.to.finish(e, c.sum.Files, linked)
	}
	return e, err
}

// contents copies a file without its holes, and without blocks that are zero. It
// returns the checksum of what is left. There may be nowhere to copy to.
func (c *copier) contents(ctx context.Context, in, out *os.File, size int64) (sum string, err error) {
	if out != nil {
		if err := out.Truncate(size); err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for at := int64(0); at < size; at += block {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // all the rest is a hole
		}
		if err != nil {
			return "", err
		}
		at = data / block * block
		part := c.buffer[:min(block, size-at)]
		n, err := in.ReadAt(part, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if n < len(part) && !c.live {
			return "", errors.New("it became shorter while it was read")
		}
		clear(part[n:]) // what is missing is a hole
		if isZero(part) {
			continue
		}
		_ = binary.Write(h, binary.BigEndian, at) // into a hash
		h.Write(part)
		c.sum.Bytes += int64(len(part))
		if c.out != nil {
			if err := c.out.data(at, part); err != nil {
				return "", err
			}
		}
		if out == nil {
			continue
		}
		if err := writeData(out, part, at); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeData writes what is not zero of a block. A file with a page of data in each
// block would else take many times as much in its copy.
func writeData(out *os.File, data []byte, at int64) error {
	for len(data) > 0 {
		zero := 0
		for zero < len(data) && isZero(data[zero:min(zero+page, len(data))]) {
			zero += page
		}
		data, at = data[min(zero, len(data)):], at+int64(zero)
		n := 0
		for n < len(data) && !isZero(data[n:min(n+page, len(data))]) {
			n += page
		}
		n = min(n, len(data))
		if _, err := out.WriteAt(data[:n], at); err != nil {
			return err
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

func isZero(data []byte) bool { return len(bytes.TrimLeft(data, "\x00")) == 0 }

// attrs returns the extended attributes of what is at path, but for the labels of
// SELinux, which are the machine's.
func attrs(path string) (map[string][]byte, error) {
	if n, err := unix.Llistxattr(path, nil); errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return nil, err
	}
	var found map[string][]byte
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" || name == "security.selinux" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("the attribute %s: %w", name, err)
		}
		if found == nil {
			found = map[string][]byte{}
		}
		found[name] = append([]byte{}, value[:n]...)
	}
	return found, nil
}
