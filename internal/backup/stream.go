package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// A stream has the lines of the manifest. Before the line of a file there is the same
// line without its checksum, behind a plus, and then the file's blocks that are not
// zero, each behind a line such as "=65536 4096": where it is in the file, and how many
// bytes follow. An asterisk is for what may get other names; it need not be a file.
const (
	beginMark  = "+"
	linkedMark = "*"
	blockMark  = '='
)

// maxLine bounds a line: an entry has a name, and attributes of at most 64 KiB each.
const maxLine = 16 << 20

// streaming writes what a manifest has not.
type streaming struct{ w *writer }

func (s *streaming) begin(e entry, linked bool) error {
	mark := beginMark
	switch {
	case linked:
		mark = linkedMark
	case e.kind() != unix.S_IFREG:
		return nil
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.w.out, "%s%s\n", mark, text)
	return err
}

func (s *streaming) data(at int64, data []byte) error {
	if _, err := fmt.Fprintf(s.w.out, "%c%d %d\n", blockMark, at, len(data)); err != nil {
		return err
	}
	_, err := s.w.out.Write(data)
	return err
}

// Write is [Create] into a stream.
func Write(ctx context.Context, src Source, to io.Writer, ready func() error) (Summary, error) {
	w := newWriter(to)
	c := newCopier(src, "")
	c.live, c.out = true, &streaming{w}
	sum, err := w.all(ctx, c, ready)
	if err != nil {
		return Summary{}, fmt.Errorf("make backup: %w", err)
	}
	return sum, nil
}

// VerifyStream is [Verify] of a stream.
func VerifyStream(ctx context.Context, from io.Reader) (Summary, error) {
	in := newReader(from)
	if _, err := in.header(); err != nil {
		return Summary{}, err
	}
	return in.entries(ctx, nil)
}

// RestoreStream is [Restore] of a stream.
func RestoreStream(ctx context.Context, from io.Reader, target string) (sum Summary, err error) {
	in := newReader(from)
	first, err := in.header()
	if err == nil {
		err = mayRestore("on the standard input", first.Source, target)
	}
	if err != nil {
		return Summary{}, err
	}
	err = restore(target, func(part string) (err error) {
		to := &maker{at: part}
		defer to.abort()
		sum, err = in.entries(ctx, to)
		return err
	})
	return sum, err
}

// reader reads a stream. What it reads may be anything.
type reader struct {
	in     *bufio.Reader
	sums   hash.Hash // of the checksums of the lines of the manifest
	sum    Summary
	links  map[int64]bool // the entries that others may be other names of
	open   []bool         // whether the directory at each depth is one that was made
	buffer []byte
}

func newReader(from io.Reader) *reader {
	return &reader{in: bufio.NewReaderSize(from, block), sums: sha256.New(), links: map[int64]bool{}, buffer: make([]byte, block)}
}

// line returns the next line, without its end.
func (r *reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, io.EOF):
			return nil, damaged("the backup is cut off")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read backup: %w", err)
		case len(line) > maxLine:
			return nil, damaged("the backup has a line of more than %d bytes", maxLine)
		}
	}
}

// note sums up a line of the manifest.
func (r *reader) note(line []byte) {
	sum := sha256.Sum256(line)
	r.sums.Write(sum[:])
}

func (r *reader) header() (first header, err error) {
	begin, err := r.in.Peek(1)
	if err != nil || begin[0] != '{' {
		return first, errdef.New(errdef.Invalid, "no_backup", "the standard input is no backup").WithRemedy("give it what drowse backup - has written")
	}
	line, err := r.line()
	if err != nil {
		return first, err
	}
	r.note(line)
	err = first.parse("on the standard input", line)
	return first, err
}

// entries reads all that follows the header, and makes it, if there is somewhere.
func (r *reader) entries(ctx context.Context, to *maker) (Summary, error) {
	doing := "restore"
	if to == nil {
		doing = "verify"
	}
	for {
		line, err := r.line()
		if err != nil {
			return Summary{}, err
		}
		var last trailer
		if bytes.HasPrefix(line, []byte(`{"end":`)) && json.Unmarshal(line, &last) == nil {
			return r.sum, r.finish(to, last)
		}
		if err := r.entry(ctx, to, line); err != nil {
			return Summary{}, fmt.Errorf("%s entry %d: %w", doing, r.sum.Files, err)
		}
		r.sum.Files++
	}
}

// finish judges the end of a stream.
func (r *reader) finish(to *maker, last trailer) error {
	if !last.End || last.Summary != r.sum || last.SHA256 != hex.EncodeToString(r.sums.Sum(nil)) {
		return damaged("the backup was changed: its end tells of other contents")
	}
	if to != nil {
		return to.leaveUntil(0)
	}
	return nil
}

// entry reads one entry, of which the first line has been read.
func (r *reader) entry(ctx context.Context, to *maker, line []byte) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	var e entry
	text, linked := bytes.CutPrefix(line, []byte(linkedMark))
	text, begins := bytes.CutPrefix(text, []byte(beginMark))
	if err := json.Unmarshal(text, &e); err != nil {
		return damaged("the backup has a line that cannot be read: %.100q", line)
	}
	if same, err := json.Marshal(e); err != nil || !bytes.Equal(same, text) {
		return damaged("the backup has a line that no backup has: %.100q", line)
	}
	begins = begins || linked
	if err := r.judge(e, begins); err != nil {
		return err
	}
	if to != nil {
		if err := to.leaveUntil(e.Depth); err != nil {
			return err
		}
	}
	if e.Same > 0 {
		r.note(line)
		if to == nil {
			return nil
		}
		return to.link(e)
	}
	var out *os.File
	if to != nil {
		if out, err = to.make(e); err != nil {
			return err
		}
	}
	if e.kind() == unix.S_IFREG {
		e.SHA256, err = r.contents(out, e.Size)
		if out != nil {
			err = errors.Join(err, out.Close())
		}
		if err != nil {
			return err
		}
	}
	if begins {
		if line, err = r.line(); err != nil {
			return err
		}
		if want, err := json.Marshal(e); err != nil || !bytes.Equal(want, line) {
			return damaged("%.100q differs from what was written", string(e.Name))
		}
	}
	r.note(line)
	if linked {
		r.links[r.sum.Files] = true
	}
	if to != nil {
		return to.finish(e, r.sum.Files, linked)
	}
	return nil
}

// judge refuses an entry that cannot be at this place: a stream may be anything, and
// nothing is made outside of the directory that is restored.
func (r *reader) judge(e entry, begins bool) error {
	name := string(e.Name)
	top := r.sum.Files == 0
	switch {
	case top && (e.Depth != 0 || name != "." || e.kind() != unix.S_IFDIR),
		!top && (e.Depth < 1 || e.Depth > len(r.open) || !r.open[e.Depth-1]),
		!top && (name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00")),
		!top && e.Depth == 1 && name == linksName,
		e.Same == 0 && e.kind() == unix.S_IFREG && !begins, begins && (e.Same > 0 || e.SHA256 != ""), begins && e.kind() == unix.S_IFDIR,
		e.Size < 0, e.Same < 0, e.Same > 0 && !r.links[e.Same]:
		return damaged("the backup has something that cannot be where it stands: %.100q", name)
	}
	r.open = append(r.open[:e.Depth], e.kind() == unix.S_IFDIR)
	return nil
}

// contents reads a file's blocks, and returns their checksum.
func (r *reader) contents(out *os.File, size int64) (sum string, err error) {
	if out != nil {
		if err := out.Truncate(size); err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for {
		mark, err := r.in.Peek(1)
		if err != nil {
			return "", damaged("the backup is cut off")
		}
		if mark[0] != blockMark {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		line, err := r.line()
		if err != nil {
			return "", err
		}
		var at int64
		var n int
		if _, err := fmt.Sscanf(string(line[1:]), "%d %d", &at, &n); err != nil || n < 1 || n > block || at < 0 || at > size-int64(n) {
			return "", damaged("the backup has a block that cannot be: %.100q", line)
		}
		data := r.buffer[:n]
		if _, err := io.ReadFull(r.in, data); err != nil {
			return "", damaged("the backup is cut off")
		}
		_ = binary.Write(h, binary.BigEndian, at) // into a hash
		h.Write(data)
		r.sum.Bytes += int64(n)
		if out != nil {
			if err := writeData(out, data, at); err != nil {
				return "", err
			}
		}
	}
}
