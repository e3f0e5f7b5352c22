// Package backup copies the directory of a server to another directory, or into a
// stream, and back. The server may run: [Begin] keeps what its database needs.
//
// A backup is a directory with the copy, below "state", and a manifest of all that
// is in it, with checksums. The manifest is written last and in one step: a backup
// that was cut off has none, and is no backup. In a stream the contents of files stand
// between the lines of the manifest, whose last one says that it is whole. A restore
// fills a directory beside the target, compares everything with the manifest, and
// renames that directory: so a target has everything or nothing.
//
// A copy has what the original has: owners, modes, times, extended attributes, devices
// (as overlayfs uses them), hard links among the files, and holes. It stays on one
// file system of the source: a mount below it is an error.
//
// Sandboxes have written much of what is copied. It may be of any depth, with paths of
// any length: both trees are gone through by descriptors, no link is followed, and
// neither memory nor the manifest grows with the lengths of paths.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/tree"
)

const (
	// Format is the version of the manifest.
	Format    = 2
	kind      = "drowse backup"
	manifest  = "manifest.jsonl"
	stateName = "state"
)

// Summary is what a backup has.
type Summary struct {
	Files int64 `json:"files"` // and directories, and all else that has a name
	Bytes int64 `json:"bytes"` // of contents, without holes
}

// header is the first line of a manifest, and trailer the last.
type header struct {
	Kind   string `json:"kind"`
	Format int    `json:"format"`
	Source string `json:"source"` // the path that was copied, and to which alone it is restored
}

// parse reads the first line of the manifest of a backup.
func (h *header) parse(what string, line []byte) error {
	if json.Unmarshal(line, h) != nil || h.Kind != kind {
		return damaged("backup %s: its manifest cannot be read", what)
	}
	if h.Format != Format {
		return errdef.New(errdef.Unsupported, "backup_format", "backup %s has format %d; this drowse reads format %d", what, h.Format, Format).
			WithRemedy("use the drowse that made it")
	}
	return nil
}

type trailer struct {
	End     bool    `json:"end"`
	Summary Summary `json:"summary"`
	SHA256  string  `json:"sha256"` // of all lines before
}

// Source is a directory to be copied.
type Source struct {
	Dir string // absolute
	// Skip reports whether something is left out, by the names of its path, of which
	// there are at most three. Nil leaves out nothing.
	Skip func(names ...string) bool
	// Apart is a directory at the top. Those in it share no files with each other, nor
	// with others, whatever it looks like.
	Apart string
	// Instead has files, by their names at the top, that are copied in the place of
	// those of the directory.
	Instead map[string]*os.File
}

// Create copies src, which others may change, to a backup in dir, which must not exist
// or be empty. What is removed meanwhile is left out, and what grows is cut off. ready is
// asked whether all is in it that must be, before it becomes a backup.
func Create(ctx context.Context, src Source, dir string, ready func() error) (Summary, error) {
	if err := fresh(dir); err != nil {
		return Summary{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Summary{}, fmt.Errorf("make backup: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return Summary{}, fmt.Errorf("make backup: %w", err)
	}
	path := filepath.Join(dir, manifest)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Summary{}, fmt.Errorf("make backup: %w", err)
	}
	defer f.Close()
	w := newWriter(f)
	c := newCopier(src, filepath.Join(dir, stateName))
	c.live = true
	sum, err := w.all(ctx, c, ready)
	if err == nil {
		err = errors.Join(durable.SyncFilesystem(dir), f.Sync())
	}
	if err == nil {
		err = errors.Join(os.Rename(path+".new", path), durable.Sync(dir))
	}
	if err != nil {
		return Summary{}, fmt.Errorf("make backup: %w", err)
	}
	return sum, nil
}

// Verify compares a backup with its manifest.
func Verify(ctx context.Context, dir string) (Summary, error) {
	want, sum, err := read(dir)
	if err != nil {
		return Summary{}, err
	}
	defer want.close()
	got, err := newCopier(Source{Dir: filepath.Join(dir, stateName)}, "").copy(ctx, want.take)
	return sum, want.finish(dir, got, sum, err)
}

// Restore puts what is in a backup at target, which must not exist or be empty. It is
// the path from which the backup was made: files of a server have it in them.
func Restore(ctx context.Context, dir, target string) (Summary, error) {
	want, sum, err := read(dir)
	if err != nil {
		return Summary{}, err
	}
	defer want.close()
	if err := mayRestore(dir, want.source, target); err != nil {
		return Summary{}, err
	}
	return sum, restore(target, func(part string) error {
		got, err := newCopier(Source{Dir: filepath.Join(dir, stateName)}, part).copy(ctx, want.take)
		return want.finish(dir, got, sum, err)
	})
}

// mayRestore refuses to restore a backup elsewhere, or over something.
func mayRestore(what, source, target string) error {
	if target != source {
		return errdef.New(errdef.Invalid, "backup_elsewhere", "backup %s is of %s, and cannot be restored to %s: what is in it has that path", what, source, target).
			WithRemedy("restore it with --state-dir %s", source)
	}
	return fresh(target)
}

// restore fills a directory beside target, which then gets that name. Of one that could
// not be filled nothing is left.
func restore(target string, fill func(part string) error) (err error) {
	part := filepath.Clean(target) + ".restoring"
	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if _, err := os.Lstat(part); !errors.Is(err, fs.ErrNotExist) {
		return errdef.New(errdef.Conflict, "restore_unfinished", "%s is there: another restore is under way, or was cut off", part).
			WithRemedy("if none is under way, remove that directory and restore again")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tree.Remove(part))
		}
	}()
	if err := fill(part); err != nil {
		return err
	}
	if err := durable.SyncFilesystem(part); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := unix.Rename(part, target); err != nil { // in place of an empty directory too, which os.Rename refuses
		return fmt.Errorf("restore: %w", err)
	}
	return durable.Sync(filepath.Dir(part))
}

// fresh refuses a directory that has something in it.
func fresh(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errdef.New(errdef.Invalid, "directory_unusable", "cannot use %s: %w", dir, err)
	case len(entries) > 0:
		return errdef.New(errdef.Conflict, "target_not_empty", "%s is not empty, and nothing in it was changed", dir).
			WithRemedy("name a directory that does not exist, or is empty")
	}
	return nil
}

// writer writes lines of JSON, and sums them up.
type writer struct {
	out  *bufio.Writer
	sums hash.Hash // of the checksums of all lines
}

func newWriter(w io.Writer) *writer { return &writer{bufio.NewWriter(w), sha256.New()} }

// all writes the manifest of what a copier copies.
func (w *writer) all(ctx context.Context, c *copier, ready func() error) (Summary, error) {
	if err := w.line(header{kind, Format, c.from.Dir}); err != nil {
		return Summary{}, err
	}
	sum, err := c.copy(ctx, w.line)
	if err == nil {
		err = ready()
	}
	if err == nil {
		err = w.line(trailer{true, sum, hex.EncodeToString(w.sums.Sum(nil))})
	}
	return sum, errors.Join(err, w.out.Flush())
}

func (w *writer) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	w.sums.Write(sum[:])
	_, err = w.out.Write(append(text, '\n'))
	return err
}

// expected is what a manifest says that there is, in order. It is read as it is
// compared: it has a line for each file.
type expected struct {
	source string
	file   *os.File
	lines  *bufio.Reader
	left   int64 // lines of entries
}

func damaged(format string, args ...any) error {
	return errdef.New(errdef.Internal, "backup_damaged", format, args...).WithRemedy("use another backup")
}

// next returns the line of the next entry.
func (x *expected) next() ([]byte, error) {
	x.left--
	line, err := x.lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return line[:len(line)-1], nil
}

// take compares the next entry.
func (x *expected) take(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if x.left == 0 {
		return damaged("the backup has more than its manifest names: %.200s", text)
	}
	line, err := x.next()
	if err != nil {
		return err
	}
	if !bytes.Equal(text, line) {
		return damaged("the backup differs from its manifest: it has %.300s, and should have %.300s", text, line)
	}
	return nil
}

// finish judges a comparison at its end.
func (x *expected) finish(dir string, got, want Summary, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("backup %s: %w", dir, err)
	case x.left > 0:
		missing := x.left
		line, err := x.next()
		if err != nil {
			return err
		}
		return damaged("backup %s: %d entries of its manifest are missing, the first %.300s", dir, missing, line)
	case got != want:
		return damaged("backup %s has %+v, and should have %+v", dir, got, want)
	}
	return nil
}

func (x *expected) close() { _ = x.file.Close() }

// read reads the manifest of a backup: all of it, to know that it is whole, and then
// its first line. The caller closes what it returns.
func read(dir string) (_ *expected, _ Summary, err error) {
	f, err := os.Open(filepath.Join(dir, manifest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Summary{}, errdef.New(errdef.Invalid, "no_backup", "%s is no backup: it has no %s", dir, manifest).
			WithRemedy("a backup that was cut off has none either: make another")
	}
	if err != nil {
		return nil, Summary{}, fmt.Errorf("read backup: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	m, err := readManifest(f)
	if err != nil {
		return nil, Summary{}, fmt.Errorf("read backup: %w", err)
	}
	var first header
	if m.lines < 2 {
		return nil, Summary{}, damaged("backup %s: its manifest cannot be read", dir)
	}
	if err := first.parse(dir, m.first); err != nil {
		return nil, Summary{}, err
	}
	var last trailer
	if json.Unmarshal(m.last, &last) != nil || !last.End || last.SHA256 != m.sum {
		return nil, Summary{}, damaged("backup %s: its manifest is cut off or was changed", dir)
	}
	if _, err := f.Seek(int64(len(m.first)+1), io.SeekStart); err != nil {
		return nil, Summary{}, fmt.Errorf("read backup: %w", err)
	}
	return &expected{first.Source, f, bufio.NewReader(f), m.lines - 2}, last.Summary, nil
}

// lines are what is read of a manifest as a whole.
type lines struct {
	first, last []byte
	lines       int64
	sum         string // of all but the last
}

// readManifest reads the lines that end as lines do.
func readManifest(f io.Reader) (m lines, err error) {
	in := bufio.NewReader(f)
	sums := sha256.New()
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			m.sum = hex.EncodeToString(sums.Sum(nil))
			return m, nil
		}
		if err != nil {
			return m, err
		}
		if m.lines++; m.lines == 1 {
			m.first = line[:len(line)-1]
		} else {
			sum := sha256.Sum256(m.last)
			sums.Write(sum[:])
		}
		m.last = line[:len(line)-1]
	}
}
