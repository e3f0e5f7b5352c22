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

// Write writes a bundle.
func Write(w io.Writer, m Manifest, from Source) error {
	sum := sha256.New()
	b := &writer{tw: tar.NewWriter(io.MultiWriter(w, sum)), at: m.ExportedAt}
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
	if err := b.tw.Flush(); err != nil {
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
	tw *tar.Writer
	at time.Time
}

func (b *writer) contents(m Manifest, from Source) error {
	for n := range m.Layers {
		dir := layerDir(n)
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
		err = b.file(imageDir+f.Name, f.Size, r)
		_ = r.Close()
		if err != nil {
			return err
		}
	}
	return nil
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
