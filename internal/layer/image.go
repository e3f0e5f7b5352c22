package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/planted"
)

const (
	manifestName = "manifest.json"
	// manifestVersion is the newest that is written. Every version since the first is
	// read: 2 added Build, 3 images with a map of pages. An image without a map is
	// still written as version 2, so that servers from before maps read it.
	manifestVersion = 3
	wholeVersion    = 2
	// ChunkSize bounds what one checksum covers, so that damage is located and
	// both cores can check at once.
	ChunkSize = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Manifest makes a directory of files an image: it lists their sizes and
// checksums and what is needed to read them.
type Manifest struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Runtime string `json:"runtime"` // what wrote it and can read it
	// Build is the SHA-256, in hex, of the program that did: empty before version 2,
	// and where the program of its runtime could not be told.
	Build string   `json:"build,omitempty"`
	Stack []string `json:"stack"` // the layers that it was taken over, bottom first; some may be merged since
	Files []File   `json:"files"`
	// System is what its programs ran from besides the stack; nil in an image of a
	// version that did not look.
	System *System `json:"system,omitempty"`
	// HostFiles are those of the host's files that its programs had open; nil where
	// that is not known.
	HostFiles []HostFile `json:"hostFiles,omitzero"`
}

// Mapped reports whether the image has a map of pages, as package pagemap describes.
func (m Manifest) Mapped() bool { return m.Version >= 3 }

// HostFile is a file of the host below a template, as a runtime saw it.
type HostFile struct {
	Path     string    `json:"path"` // in the sandbox
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

// System is what the host's own directories below a template are like at one
// time. It is zero where a template shows none.
type System struct {
	// Digest is of the names, types and sizes of files, and of where links lead.
	// It is the same on machines on which the same is installed.
	Digest string `json:"digest,omitempty"`
	// Exact is besides of when each file was written, so that it differs as soon as
	// one is replaced by another of its size.
	Exact string `json:"exact,omitempty"`
}

// File is one file of an image.
type File struct {
	Name   string   `json:"name"`
	Size   int64    `json:"size"`
	CRC32C []uint32 `json:"crc32c"` // of each chunk of 1 MiB, the last shorter
}

// ImageDir returns the directory of an image.
func (s *Store) ImageDir(id string) string { return filepath.Join(s.images, id) }

// NewImage makes the empty directory of a new image.
func (s *Store) NewImage(id string) (string, error) {
	dir := s.ImageDir(id)
	if err := failpoint.Fail(failpoint.ImageMake); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make image: %w", err)
	}
	return dir, nil
}

// Seal makes the files that a runtime wrote into an image's directory durable,
// and writes the manifest. It returns the SHA-256 of the manifest in hex, by
// which Verify later knows the image from any other, and the bytes that were written
// for it.
//
// The packs of an image that NewImageOver made are p, else nil. Those that it has from
// other images are durable, and their checksums are known.
func (s *Store) Seal(m Manifest, p *Packs) (digest string, written int64, err error) {
	if digest, err = seal(s.ImageDir(m.ID), &m, p); err != nil {
		return "", 0, fmt.Errorf("seal image %s: %w", m.ID, err)
	}
	for _, f := range m.Files {
		if _, linked := p.linked(f.Name); !linked {
			written += f.Size
		}
	}
	return digest, written, failpoint.Fail(failpoint.Sealed)
}

// seal makes the files in dir durable, lists them in m, and writes that beside
// them. Pages that come late are as m lists them already.
func seal(dir string, m *Manifest, p *Packs) (digest string, err error) {
	m.Version = wholeVersion
	if p != nil {
		m.Version = manifestVersion
		if err := p.dropUnneeded(dir); err != nil {
			return "", err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	known := *m
	m.Files = make([]File, len(entries))
	var g errgroup.Group
	for i, e := range entries {
		if f, ok := p.linked(e.Name()); ok {
			m.Files[i] = f
			continue
		}
		if name, late := strings.CutSuffix(e.Name(), lateSuffix); late {
			m.Files[i] = fileOf(known, name)
			continue
		}
		g.Go(func() (err error) {
			m.Files[i], err = sealFile(filepath.Join(dir, e.Name()))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	if m.Mapped() {
		if _, err := readMap(dir, *m); err != nil {
			return "", err
		}
	}
	return writeManifest(dir, *m)
}

// sealFile restricts, checksums and syncs a file. The checksums are taken while
// the disk works.
func sealFile(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	if err := f.Chmod(0o600); err != nil {
		return File{}, err
	}
	if err := failpoint.Fail(failpoint.ImageFile); err != nil {
		return File{}, err
	}
	var synced errgroup.Group
	if !planted.In(planted.UnsyncedImage) {
		synced.Go(f.Sync)
	}
	sums, size, err := checksum(f)
	if err := errors.Join(err, synced.Wait()); err != nil {
		return File{}, err
	}
	return File{Name: filepath.Base(path), Size: size, CRC32C: sums}, nil
}

// checksum returns the CRC-32C of each chunk of r, and its length.
func checksum(r io.Reader) (sums []uint32, size int64, err error) {
	buf := make([]byte, ChunkSize)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			sums = append(sums, crc32.Checksum(buf[:n], castagnoli))
			size += int64(n)
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return sums, size, nil
		default:
			return nil, 0, err
		}
	}
}

func writeManifest(dir string, m Manifest) (digest string, err error) {
	data, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(dir, manifestName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := failpoint.Fail(failpoint.Manifest); err != nil {
		return "", err
	}
	if _, err := f.Write(data); err != nil {
		return "", err
	}
	if err := failpoint.Fail(failpoint.ManifestSync); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	if err := failpoint.Fail(failpoint.NamesSync); err != nil {
		return "", err
	}
	if planted.In(planted.UnsyncedNames) || m.Mapped() && planted.In(planted.UnsyncedPackNames) {
		return digestOf(data), nil
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := durable.Sync(d); err != nil {
			return "", err
		}
	}
	return digestOf(data), nil
}

// Verify checks that the image id is the one sealed as digest and undamaged,
// and returns its manifest. The error is an errdef.Unavailable with code
// "checkpoint_damaged" and says which file differs.
func (s *Store) Verify(id, digest string) (Manifest, error) {
	if err := failpoint.Fail(failpoint.Verify); err != nil {
		return Manifest{}, err
	}
	m, err := lookIn(s.ImageDir(id), id, digest)
	if err == nil {
		err = verifyContents(s.ImageDir(id), m)
	}
	if err == nil && m.Mapped() {
		_, err = readMap(s.ImageDir(id), m)
	}
	if err != nil {
		return Manifest{}, imageDamaged(id, err)
	}
	return m, nil
}

// Look is Verify without the contents of the files: the manifest is the one sealed
// as digest, and the files that it names are there, with their sizes, and no others.
// It is for who compares each part with its checksum when it is read.
func (s *Store) Look(id, digest string) (Manifest, error) {
	m, err := lookIn(s.ImageDir(id), id, digest)
	if err == nil {
		err = verifySizes(s.ImageDir(id), m)
	}
	if err != nil {
		return Manifest{}, imageDamaged(id, err)
	}
	return m, nil
}

// lookIn returns the manifest sealed as digest.
func lookIn(dir, id, digest string) (Manifest, error) {
	m, err := readManifest(dir, id, digest)
	if err == nil {
		err = verifyNames(dir, m)
	}
	return m, err
}

// readManifest is lookIn that does not ask which files there are.
func readManifest(dir, id, digest string) (Manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return Manifest{}, err
	}
	if digestOf(data) != digest {
		return Manifest{}, fmt.Errorf("%s is not the one that was committed", manifestName)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Version < 1 || m.Version > manifestVersion || m.ID != id {
		return Manifest{}, fmt.Errorf("%s is of version %d and image %s", manifestName, m.Version, m.ID)
	}
	return m, nil
}

func verifyContents(dir string, m Manifest) error {
	var g errgroup.Group
	for _, want := range m.Files {
		g.Go(func() error { return verifyFile(dir, want) })
	}
	return g.Wait()
}

func verifySizes(dir string, m Manifest) error {
	for _, want := range m.Files {
		info, err := os.Stat(filepath.Join(dir, want.Name))
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || info.Size() != want.Size {
			return fmt.Errorf("%s has %d bytes instead of %d", want.Name, info.Size(), want.Size)
		}
	}
	return nil
}

// verifyNames refuses a file that was not there: a runtime might read it.
func verifyNames(dir string, m Manifest) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), lateSuffix) {
			return errPending(m.ID)
		}
		known := slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == e.Name() })
		if !known && e.Name() != manifestName {
			return fmt.Errorf("%s was added", e.Name())
		}
	}
	return nil
}

func verifyFile(dir string, want File) error {
	f, err := os.Open(filepath.Join(dir, want.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	sums, size, err := checksum(f)
	if err != nil {
		return err
	}
	if size != want.Size {
		return fmt.Errorf("%s has %d bytes instead of %d", want.Name, size, want.Size)
	}
	if !slices.Equal(sums, want.CRC32C) && !planted.In(planted.UncheckedImage) {
		return fmt.Errorf("%s differs from what was written", want.Name)
	}
	return nil
}

// BuildOf returns the Build in the manifest of an image, which is not verified;
// empty if it has no manifest yet.
func (s *Store) BuildOf(id string) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.ImageDir(id), manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	var m Manifest
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return "", fmt.Errorf("build of image %s: %w", id, err)
	}
	return m.Build, nil
}

// AbandonImage gives up at once the memory that an image which will not be
// committed takes while it is on its way to the disk. It may be being sealed; it
// is damaged after this, and to be removed.
func (s *Store) AbandonImage(id string) {
	entries, _ := os.ReadDir(s.ImageDir(id)) // there may be none
	for _, e := range entries {
		if pagemap.IsPack(e.Name()) && e.Name() != pagemap.PackOf(id) {
			continue // another image's as well
		}
		_ = os.Truncate(filepath.Join(s.ImageDir(id), e.Name()), 0) // it is removed in any case
	}
}

// Images returns the ids of all images on disk, sealed or not.
func (s *Store) Images() ([]string, error) { return names(s.images) }

// RemoveImage deletes an image. It is idempotent.
func (s *Store) RemoveImage(id string) error {
	if err := removeAll(s.images, id); err != nil {
		return fmt.Errorf("remove image %s: %w", id, err)
	}
	return nil
}
