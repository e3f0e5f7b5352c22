package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// Sink takes what is in a bundle.
type Sink interface {
	// Layer is called for everything in the n-th layer, in the order in which
	// it was written, one layer after the other.
	Layer(n int, e layer.Entry, data io.Reader) error
	ImageFile(name string, size int64, data io.Reader) error
}

// Reader reads a bundle from somewhere that is not trusted. What is not a
// bundle, or not all of one, is an errdef.Invalid with code "import_damaged".
type Reader struct {
	// Manifest holds what the bundle says of itself. It was checked against
	// itself alone.
	Manifest Manifest
	// Digest is the SHA-256 of the manifest as it was written, in hex. It stands for
	// all of the bundle: the manifest has the digests of what follows.
	Digest string
	// Skip is asked of each file of the memory image whether to pass over its data, which is
	// at an offset of the bundle. nil passes over none. For who reads a copy of which
	// each piece is known to be what was written: the checksum of the bundle is not compared then.
	Skip func(f layer.File, offset int64) bool

	raw     *source
	tr      *tar.Reader
	skipped bool // something was passed over
}

// NewReader reads the manifest.
func NewReader(r io.Reader) (*Reader, error) {
	raw := &source{r: r, sum: sha256.New()}
	b := &Reader{raw: raw, tr: tar.NewReader(raw)}
	if s, ok := r.(io.Seeker); ok {
		b.tr = tar.NewReader(seeking{raw, s, &b.skipped})
	}
	if err := b.readManifest(); err != nil {
		return nil, raw.explain(err)
	}
	return b, nil
}

func (b *Reader) readManifest() error {
	h, err := b.next(manifestName)
	if err != nil {
		return err
	}
	if h.Size > maxManifest {
		return layer.Damaged("its manifest has %d bytes", h.Size)
	}
	data, err := io.ReadAll(b.tr)
	if err != nil {
		return err
	}
	// What else it says depends on the form, and is looked at after that.
	if err := json.Unmarshal(data, &struct {
		Format *int    `json:"format"`
		Kind   *string `json:"kind"`
	}{&b.Manifest.Format, &b.Manifest.Kind}); err != nil {
		return layer.Damaged("its manifest: %w", err)
	}
	if err := b.Manifest.checkForm(); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var form manifestForm
	if err := dec.Decode(&form); err != nil {
		return layer.Damaged("its manifest: %w", err)
	}
	b.Manifest = form.manifest()
	sum := sha256.Sum256(data)
	b.Digest = hex.EncodeToString(sum[:])
	if dec.InputOffset() != int64(len(data)) {
		return layer.Damaged("its manifest goes on after its end")
	}
	return b.Manifest.check()
}

// next reads the header of a plain file of that name.
func (b *Reader) next(name string) (*tar.Header, error) {
	h, err := b.tr.Next()
	if err != nil {
		return nil, err
	}
	if h.Name != name || h.Typeflag != tar.TypeReg || len(h.PAXRecords) > 0 {
		return nil, layer.Damaged("%.100q is where %q should be", h.Name, name)
	}
	return h, nil
}

// Extract gives a sink everything after the manifest. Only when it has returned
// nil is it known that all of it is as it was written.
func (b *Reader) Extract(to Sink) error {
	for n, l := range b.Manifest.Layers {
		if err := b.layer(n, l, to); err != nil {
			return b.raw.explain(err)
		}
	}
	if err := b.image(to); err != nil {
		return b.raw.explain(err)
	}
	return b.raw.explain(b.end())
}

func (b *Reader) layer(n int, l Layer, to Sink) error {
	left := l.Bytes
	for range l.Entries {
		h, err := b.tr.Next()
		if err != nil {
			return err
		}
		e, err := entryOf(h, layerDir(n))
		if err != nil {
			return err
		}
		if left -= h.Size; left < 0 {
			return layer.Damaged("layer %d has more than %d bytes", n, l.Bytes)
		}
		if err := to.Layer(n, e, b.tr); err != nil {
			return err
		}
	}
	if left != 0 {
		return layer.Damaged("layer %d has less than %d bytes", n, l.Bytes)
	}
	return nil
}

func (b *Reader) image(to Sink) error {
	if b.Manifest.Image == nil {
		return nil
	}
	for _, f := range b.Manifest.Image.Files {
		h, err := b.tr.Next()
		if err != nil {
			return err
		}
		// A large one has its size in a record.
		if h.Name != imageDir+f.Name || h.Typeflag != tar.TypeReg || h.Size != f.Size || onlyRecords(h, "size") != nil {
			return layer.Damaged("%.100q is where %q should be", h.Name, imageDir+f.Name)
		}
		if b.Skip != nil && b.Skip(f, b.raw.at) {
			b.skipped = true
			continue
		}
		if err := to.ImageFile(f.Name, f.Size, b.tr); err != nil {
			return err
		}
	}
	return nil
}

// end reads the checksum, and that there is nothing after it.
func (b *Reader) end() error {
	h, err := b.next(sumName)
	if err != nil {
		return err
	}
	var header bytes.Buffer // the one block that the checksum does not cover
	if err := tar.NewWriter(&header).WriteHeader(plain(sumName, h.Size, h.ModTime)); err != nil || !bytes.Equal(header.Bytes(), b.raw.last) {
		return layer.Damaged("its end is not as it was written")
	}
	want := hex.EncodeToString(b.raw.sum.Sum(nil)) // of all before this header
	got := make([]byte, len(want))
	if _, err := io.ReadFull(b.raw, got); err != nil {
		return err
	}
	if string(got) != want && !b.skipped {
		return layer.Damaged("its checksum is not that of its bytes")
	}
	// The rest of the block, and the two that end an archive.
	rest, err := io.ReadAll(io.LimitReader(b.raw, 3*blockSize))
	if err != nil {
		return err
	}
	if len(rest) < 3*blockSize-len(want) {
		return io.ErrUnexpectedEOF
	}
	if len(rest) != 3*blockSize-len(want) || slices.ContainsFunc(rest, func(c byte) bool { return c != 0 }) {
		return layer.Damaged("it goes on after its end")
	}
	return nil
}

// entryOf returns the entry that a header in a layer's directory tells of. What
// the entry says is for whoever makes it to judge.
func entryOf(h *tar.Header, dir string) (layer.Entry, error) {
	rel, inside := strings.CutPrefix(h.Name, dir)
	if !inside {
		return layer.Entry{}, layer.Damaged("%.100q is where the rest of %q should be", h.Name, dir)
	}
	if err := onlyRecords(h, "path", "linkpath", "size", "uid", "gid", "mtime", recordSize, recordExtents); err != nil {
		return layer.Entry{}, err
	}
	e := layer.Entry{Path: rel, Mode: uint32(h.Mode), UID: h.Uid, GID: h.Gid, ModTime: h.ModTime, Attributes: attributesOf(h)}
	if h.Mode&^0o7777 != 0 || h.Uname != "" || h.Gname != "" {
		return layer.Entry{}, layer.Damaged("%.100q has mode %o and owner %.100q", h.Name, h.Mode, h.Uname+":"+h.Gname)
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Mode |= unix.S_IFREG
		err := sized(&e, h)
		return e, err
	case tar.TypeLink:
		e.Mode |= unix.S_IFREG
		if e.Link, inside = strings.CutPrefix(h.Linkname, dir); !inside {
			return layer.Entry{}, layer.Damaged("%.100q is one more name of %.100q, which is outside of its layer", h.Name, h.Linkname)
		}
	case tar.TypeSymlink:
		e.Mode, e.Target = e.Mode|unix.S_IFLNK, h.Linkname
	case tar.TypeDir:
		e.Mode |= unix.S_IFDIR
		e.Path = strings.TrimSuffix(rel, "/")
		if rel == "" {
			e.Path = "."
		}
	case tar.TypeChar:
		e.Mode |= unix.S_IFCHR
		if h.Devmajor != 0 || h.Devminor != 0 {
			return layer.Entry{}, layer.Damaged("%.100q is a device", h.Name)
		}
	default:
		return layer.Entry{}, layer.Damaged("%.100q is of type %q", h.Name, h.Typeflag)
	}
	if h.Size != 0 {
		return layer.Entry{}, layer.Damaged("%.100q has contents and is no file", h.Name)
	}
	return e, nil
}

// onlyRecords refuses records that no writer of ours adds, such as those of
// sparse files in other forms.
func onlyRecords(h *tar.Header, known ...string) error {
	for name := range h.PAXRecords {
		if !slices.Contains(known, name) && !strings.HasPrefix(name, recordAttribute) {
			return layer.Damaged("%.100q has the record %.100q", h.Name, name)
		}
	}
	return nil
}

func attributesOf(h *tar.Header) map[string]string {
	var all map[string]string
	for record, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(record, recordAttribute); ok {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = value
		}
	}
	return all
}

// sized says how long a file is and where its data belongs.
func sized(e *layer.Entry, h *tar.Header) error {
	size, sparse := h.PAXRecords[recordSize]
	if !sparse {
		e.Size = h.Size
		if h.Size > 0 {
			e.Data = []layer.Extent{{Offset: 0, Length: h.Size}}
		}
		return nil
	}
	var err error
	if e.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
		return layer.Damaged("%.100q has the size %.100q", h.Name, size)
	}
	if e.Data, err = parseExtents(h.PAXRecords[recordExtents]); err != nil || e.Bytes() != h.Size {
		return layer.Damaged("%.100q has %d bytes, which do not fit into its pieces", h.Name, h.Size)
	}
	return nil
}

func parseExtents(text string) ([]layer.Extent, error) {
	if text == "" {
		return nil, nil
	}
	var all []layer.Extent
	for part := range strings.SplitSeq(text, ",") {
		offset, length, _ := strings.Cut(part, "+")
		o, err := strconv.ParseInt(offset, 10, 64)
		l, err2 := strconv.ParseInt(length, 10, 64)
		if err := errors.Join(err, err2); err != nil || o < 0 || l <= 0 {
			return nil, fmt.Errorf("no extent: %q", part)
		}
		all = append(all, layer.Extent{Offset: o, Length: l})
	}
	return all, nil
}

const blockSize = 512

// source is the bytes of a bundle, with the checksum of all but the last block
// that was read: where a header has just been read, of all before that.
type source struct {
	r    io.Reader
	at   int64 // how much was read or passed over
	sum  hash.Hash
	last []byte
	err  error // of r; its end is none
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.at += int64(n)
	s.last = append(s.last, p[:n]...)
	if old := len(s.last) - blockSize; old > 0 {
		s.sum.Write(s.last[:old])
		s.last = s.last[:copy(s.last, s.last[old:])]
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// seeking is a source of which parts can be passed over.
type seeking struct {
	*source
	to      io.Seeker
	skipped *bool
}

// Seek implements io.Seeker, for the data of files that are to be passed over.
func (s seeking) Seek(offset int64, whence int) (int64, error) {
	if !*s.skipped {
		return -1, errors.ErrUnsupported
	}
	if offset > 0 {
		offset++ // archive/tar leaves the last byte to be read, for which all of a piece would be
	}
	at, err := s.to.Seek(offset, whence)
	if err != nil {
		s.err = err
	}
	s.at += offset // whence is io.SeekCurrent: archive/tar knows no other
	return at, err
}

// explain says of the error of whoever reads whether the bundle is to blame.
func (s *source) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case s.err != nil:
		return fmt.Errorf("read bundle: %w", s.err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return layer.Damaged("it ends too soon")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return layer.Damaged("it is no tar archive, or not from there on: %w", err)
	}
	if _, ours := errors.AsType[*errdef.Error](err); ours {
		return err
	}
	return fmt.Errorf("read bundle: %w", err)
}
