package bundle

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
)

// The names in a bundle.
const (
	manifestName = "manifest.json"
	layersDir    = "layers/"
	imageDir     = "image/"
	sumName      = "sha256"
)

// The records of a file with holes.
const (
	recordExtents = "DROWSE.extents"
	recordSize    = "DROWSE.size"

	recordAttribute = "SCHILY.xattr."
)

// Source is what a bundle is made of.
type Source interface {
	// Layer calls f for everything in the n-th layer, in the order of
	// layer.Store.Read.
	Layer(n int, f func(e layer.Entry, data io.Reader) error) error
	ImageFile(name string) (io.ReadCloser, error)
}

// Cutter is a writer that is told where the parts of a bundle begin, so that those which
// are the same in another bundle can be known as such. What a cut parts from the rest:
// the manifest, each layer, the data of each file of the image with what pads it, and the
// checksum. Layers and data are the same whenever a bundle of them is written; the rest is
// not.
type Cutter interface {
	// Cut is called after the last byte of a part.
	Cut() error
}

// Write writes a bundle. If w is a [Cutter], it is told of the parts.
func Write(w io.Writer, m Manifest, from Source) error {
	sum := sha256.New()
	b := &writer{tw: tar.NewWriter(io.MultiWriter(w, sum)), at: m.ExportedAt}
	b.cutter, _ = w.(Cutter)
	m.Format = formatVersion
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := b.file(manifestName, int64(len(data)), strings.NewReader(string(data))); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := b.contents(m, from); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := b.cut(); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	text := hex.EncodeToString(sum.Sum(nil))
	if err := b.file(sumName, int64(len(text)), strings.NewReader(text)); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := b.tw.Close(); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

type writer struct {
	tw     *tar.Writer
	cutter Cutter // nil for none
	at     time.Time
}

// cut ends a part: first comes what pads it.
func (b *writer) cut() error {
	if err := b.tw.Flush(); err != nil {
		return err
	}
	return b.cutHere()
}

// cutHere ends a part that nothing pads: what the archive is given it writes at once.
func (b *writer) cutHere() error {
	if b.cutter == nil {
		return nil
	}
	return b.cutter.Cut()
}

func (b *writer) contents(m Manifest, from Source) error {
	for n := range m.Layers {
		dir := layerDir(n)
		if err := b.cut(); err != nil {
			return err
		}
		if err := from.Layer(n, func(e layer.Entry, data io.Reader) error { return b.entry(dir, e, data) }); err != nil {
			return err
		}
	}
	if m.Image == nil {
		return nil
	}
	for _, f := range m.Image.Files {
		r, err := from.ImageFile(f.Name)
		if err != nil {
			return err
		}
		err = b.imageFile(f, r)
		_ = r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// imageFile writes a file of the image. Its header has the time of the export, its data
// has not.
func (b *writer) imageFile(f layer.File, data io.Reader) error {
	if err := b.cut(); err != nil {
		return err
	}
	h := plain(imageDir+f.Name, f.Size, b.at)
	if err := b.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	if err := b.cutHere(); err != nil {
		return err
	}
	return b.data(h, data)
}

func layerDir(n int) string { return layersDir + strconv.Itoa(n) + "/" }

// file writes something that is no part of a layer.
func (b *writer) file(name string, size int64, data io.Reader) error {
	return b.write(plain(name, size, b.at), data)
}

// plain is the header of something that is no part of a layer. It is one block,
// which the reader of the checksum counts on, unless the size is huge.
func plain(name string, size int64, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second)}
}

// write writes one header and exactly as much data as it says.
func (b *writer) write(h *tar.Header, data io.Reader) error {
	if err := b.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return b.data(h, data)
}

// data writes what a header was about.
func (b *writer) data(h *tar.Header, data io.Reader) error {
	if _, err := io.CopyN(b.tw, data, h.Size); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}

// entry writes something of a layer.
func (b *writer) entry(dir string, e layer.Entry, data io.Reader) error {
	h := &tar.Header{
		Format: tar.FormatPAX, Name: dir + e.Path, Mode: int64(e.Mode & 0o7777), Uid: e.UID, Gid: e.GID, ModTime: e.ModTime,
		Size: e.Bytes(), PAXRecords: map[string]string{},
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case unix.S_IFCHR:
		h.Typeflag = tar.TypeChar
	default:
		h.Typeflag = tar.TypeReg
		if e.Link != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, dir+e.Link
		}
	}
	if e.Path == "." {
		h.Name = dir
	}
	for name, value := range e.Attributes {
		h.PAXRecords[recordAttribute+name] = value
	}
	if e.Size != e.Bytes() {
		h.PAXRecords[recordSize] = strconv.FormatInt(e.Size, 10)
		h.PAXRecords[recordExtents] = formatExtents(e.Data)
	}
	return b.write(h, data)
}

// formatExtents writes extents as "offset+length", joined by commas.
func formatExtents(all []layer.Extent) string {
	texts := make([]string, len(all))
	for i, x := range all {
		texts[i] = fmt.Sprintf("%d+%d", x.Offset, x.Length)
	}
	return strings.Join(texts, ",")
}
