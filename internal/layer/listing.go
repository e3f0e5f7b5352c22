package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/planted"
)

// listingName is the file of a frozen layer that says what is in it: a line for
// each entry, with all of it that a sandbox could see, and a checksum of its
// contents.
const listingName = ".listing"

// list returns the lines of a listing of what a layer's directory holds now.
func list(ctx context.Context, dir string) ([]string, error) {
	var lines []*string // filled in by several goroutines
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(goruntime.NumCPU())
	err := walk(dir, func(path, rel string, d fs.DirEntry) error {
		line := new(string)
		lines = append(lines, line)
		g.Go(func() (err error) {
			*line, err = describe(ctx, path, rel)
			return err
		})
		return ctx.Err()
	})
	if err := errors.Join(g.Wait(), err); err != nil {
		return nil, err
	}
	all := make([]string, len(lines))
	for i, line := range lines {
		all[i] = *line
	}
	return all, nil
}

// describe returns the line for one entry. Times and inode numbers are no part
// of it: a copy of the layer is as good.
func describe(ctx context.Context, path, rel string) (string, error) {
	line, st, err := header(path, rel)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return line, err
	}
	sum, err := contents(ctx, path, st.Size)
	return fmt.Sprintf("%s %08x", line, sum), err
}

// header returns the line for one entry as far as it takes no reading of a file:
// all but the checksum at the end of a regular file's.
func header(path, rel string) (line string, st unix.Stat_t, err error) {
	if err := unix.Lstat(path, &st); err != nil {
		return "", st, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	attributes, err := attributes(path)
	if err != nil {
		return "", st, err
	}
	line = fmt.Sprintf("%q %o %d:%d %08x", rel, st.Mode, st.Uid, st.Gid, attributes)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		line = fmt.Sprintf("%s %d", line, st.Size)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		return fmt.Sprintf("%s %q", line, target), st, err
	case unix.S_IFCHR, unix.S_IFBLK: // 0 is overlayfs' mark of what was removed
		line = fmt.Sprintf("%s %d", line, st.Rdev)
	}
	return line, st, nil
}

// typeAndSize returns the mode in a line, and of a regular file its size.
func typeAndSize(line string) (mode uint32, size int64) {
	var uid, gid, attributes uint32
	_, _ = fmt.Sscanf(line[len(pathOf(line)):], " %o %d:%d %x %d", &mode, &uid, &gid, &attributes, &size)
	return mode & unix.S_IFMT, size
}

// withoutSum returns the header of a line.
func withoutSum(line string) string {
	if kind, _ := typeAndSize(line); kind != unix.S_IFREG {
		return line
	}
	return line[:strings.LastIndexByte(line, ' ')]
}

// ownAttributes are extended attributes that overlayfs keeps for itself and
// changes when it likes.
var ownAttributes = []string{"trusted.overlay.impure", "trusted.overlay.origin", "trusted.overlay.uuid"}

// attributes returns a checksum of an entry's extended attributes.
func attributes(path string) (uint32, error) {
	names, err := attributeNames(path)
	if len(names) == 0 || err != nil {
		return 0, err
	}
	sum := crc32.New(castagnoli)
	for _, name := range names {
		if slices.Contains(ownAttributes, name) {
			continue
		}
		value, err := attribute(path, name)
		if err != nil {
			return 0, &fs.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		fmt.Fprintf(sum, "%q %q\n", name, value)
	}
	return sum.Sum32(), nil
}

// attributeNames returns the names of an entry's extended attributes, sorted.
func attributeNames(path string) ([]string, error) {
	n, err := unix.Llistxattr(path, nil)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil
	}
	names := make([]byte, n)
	if err == nil {
		n, err = unix.Llistxattr(path, names) // overlayfs asks for more than it gives
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	list := strings.FieldsFunc(string(names[:n]), func(c rune) bool { return c == 0 })
	slices.Sort(list)
	return list, nil
}

func attribute(path, name string) ([]byte, error) {
	n, err := unix.Lgetxattr(path, name, nil)
	if n == 0 || err != nil {
		return nil, err
	}
	value := make([]byte, n)
	n, err = unix.Lgetxattr(path, name, value)
	return value[:max(n, 0)], err
}

// contents returns a checksum of a file: that of the numbers and checksums of
// its chunks, those of zeros left out. So a huge file with holes takes no longer
// than what is in it, and is the same file when a copy has filled the holes.
func contents(ctx context.Context, path string, size int64) (uint32, error) {
	if size == 0 {
		return 0, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum := crc32.New(castagnoli)
	buf := make([]byte, min(chunkSize, size))
	for at := int64(0); at < size; at += chunkSize {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err == nil {
			at = max(at, data/chunkSize*chunkSize)
		} // else this file system does not tell
		n, err := f.ReadAt(buf[:min(chunkSize, size-at)], at)
		if err != nil && err != io.EOF {
			return 0, err
		}
		addChunk(sum, at/chunkSize, buf[:n])
	}
	return sum.Sum32(), nil
}

func addChunk(sum hash.Hash32, number int64, data []byte) {
	if !bytes.Equal(data, zeros[:len(data)]) {
		fmt.Fprintf(sum, "%d %08x\n", number, crc32.Checksum(data, castagnoli))
	}
}

var zeros [chunkSize]byte

// writeListing makes the listing of a layer, durable, and returns its SHA-256 in
// hex.
func writeListing(ctx context.Context, dir string) (digest string, err error) {
	lines, err := list(ctx, dir)
	if err != nil {
		return "", err
	}
	return saveListing(dir, lines)
}

func saveListing(dir string, lines []string) (digest string, err error) {
	data := []byte(strings.Join(lines, "\n"))
	path := filepath.Join(dir, listingName)
	if err := durable.WriteFile(path+".new", data); err != nil {
		return "", err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", err
	}
	return digestOf(data), durable.Sync(dir)
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// VerifyLayer checks that a layer is the one that was frozen as digest and
// undamaged. The error is an errdef.Unavailable with code "checkpoint_damaged"
// and says what differs. Of a layer without a digest, which an older program
// froze, it is only known whether it is there.
func (s *Store) VerifyLayer(ctx context.Context, id, digest string) error {
	dir := s.LayerDir(id)
	if digest == "" {
		if !s.HasLayer(id) {
			return damaged("layer", id, fmt.Errorf("%s does not exist", dir))
		}
		return nil
	}
	was, err := readListing(dir, digest)
	if err != nil {
		return damaged("layer", id, err)
	}
	now, err := list(ctx, dir)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && !planted.In(planted.UncheckedLayer) {
		err = compare(was, now)
	}
	if err != nil {
		return damaged("layer", id, err)
	}
	return nil
}

// readListing returns the lines of the listing that was committed as digest.
func readListing(dir, digest string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, listingName))
	if err != nil {
		return nil, err
	}
	if digestOf(data) != digest {
		return nil, fmt.Errorf("%s is not the one that was committed", listingName)
	}
	return strings.Split(string(data), "\n"), nil
}

// VerifyStack verifies the layers of a stack by the digests that there are of
// them.
func (s *Store) VerifyStack(ctx context.Context, stack []string, digests map[string]string) error {
	for _, id := range stack {
		if err := s.VerifyLayer(ctx, id, digests[id]); err != nil {
			return err
		}
	}
	return nil
}

// compare says what of a listing is no longer so.
func compare(was, now []string) error {
	left := byPath(was)
	for _, line := range now {
		path := pathOf(line)
		switch before, known := left[path]; {
		case !known:
			return fmt.Errorf("%s was added", path)
		case before != line:
			return fmt.Errorf("%s differs from what was written", path)
		}
		delete(left, path)
	}
	for path := range left {
		return fmt.Errorf("%s is missing", path)
	}
	return nil
}

// byPath returns the lines of a listing by their paths, quoted.
func byPath(lines []string) map[string]string {
	m := make(map[string]string, len(lines))
	for _, line := range lines {
		m[pathOf(line)] = line
	}
	return m
}

// pathOf returns the path, quoted, that a line of a listing is about.
func pathOf(line string) string {
	path, err := strconv.QuotedPrefix(line)
	if err != nil {
		panic(fmt.Sprintf("internal error: layer: %q is no line of a listing", line))
	}
	return path
}

// damaged is the error of a checkpoint of which a part is not what was written.
// What only could not be looked at now is not called so.
func damaged(kind, id string, err error) error {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR} {
		if errors.Is(err, passing) {
			return fmt.Errorf("verify %s %s: %w", kind, id, err)
		}
	}
	return errdef.New(errdef.Unavailable, "checkpoint_damaged", "%s %s is damaged: %w", kind, id, err).
		WithRemedy("the files are left as they are: put them back from a backup, or kill the sandbox; drowse fsck says what else is damaged")
}
