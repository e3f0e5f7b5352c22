package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Store is a directory of unpacked layers. Its methods are safe for concurrent
// use.
type Store struct {
	// Check returns an error where there is no room for more on the disk; nil for
	// no check. It is set before anything is fetched.
	Check func() error

	dir    string
	limits Limits
	zone   func(netip.Addr) egress.Zone // of an address that a registry leads to

	mu      sync.Mutex
	pins    map[string]int           // by layer: images on their way that need it
	busy    map[string]chan struct{} // by layer: holds a value of whoever unpacks it
	staging map[string]bool          // the staging directories in use
}

// Names in the directory of a store, and in that of a layer.
const (
	layersDir  = "layers"
	stagingDir = "staging"
	filesDir   = "fs"
	recordName = "layer.json"
)

// At returns the layers in dir as they are. Nothing is made before it is needed.
func At(dir string, limits Limits) *Store {
	return &Store{dir: dir, limits: limits, zone: egress.ZoneOf, pins: map[string]int{}, busy: map[string]chan struct{}{}, staging: map[string]bool{}}
}

// record is what is stored of a layer beside its files.
type record struct {
	Layer
	// Directories that the archive used and did not describe: their attributes
	// are those of the layers below.
	ImplicitDirs []string `json:"implicitDirs,omitempty"`
}

// Files returns the directory with the files of a layer.
func (s *Store) Files(id string) string { return filepath.Join(s.layerDir(id), filesDir) }

func (s *Store) layerDir(id string) string { return filepath.Join(s.dir, layersDir, id) }

// LayerDir returns the directory of a layer, with its files and its record.
func (s *Store) LayerDir(id string) string { return s.layerDir(id) }

// layerID is what layers are called.
var layerID = lazyregexp.New(`^[0-9a-f]{64}$`)

// Layer returns what is known of an unpacked layer; an errdef.NotFound if it is
// not here.
func (s *Store) Layer(id string) (Layer, error) {
	r, err := s.record(id)
	return r.Layer, err
}

// ImplicitDirs returns the directories of a layer whose attributes are those of
// the layers below.
func (s *Store) ImplicitDirs(id string) ([]string, error) {
	r, err := s.record(id)
	return r.ImplicitDirs, err
}

func (s *Store) record(id string) (r record, err error) {
	missing := errdef.New(errdef.NotFound, "image_not_found", "the layer %.80q is not on this server", id)
	if !layerID.MatchString(id) {
		return r, missing
	}
	data, err := os.ReadFile(filepath.Join(s.layerDir(id), recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return r, missing
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read layer %s: %w", id, err)
	}
	return r, nil
}

// Layers returns the ids of all unpacked layers.
func (s *Store) Layers() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, layersDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list image layers: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if layerID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Unfinished returns the directories of work that did not come to its end, and
// that nobody is at.
func (s *Store) Unfinished() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(s.dir, stagingDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list unfinished image layers: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if path := filepath.Join(s.dir, stagingDir, e.Name()); !s.staging[path] {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// RemoveUnfinished removes what Unfinished has returned.
func (s *Store) RemoveUnfinished(path string) error {
	left, err := s.Unfinished()
	if err != nil || !slices.Contains(left, path) {
		return err
	}
	return tree.Remove(path)
}

// Remove deletes a layer, unless an image that is on its way needs it or needed
// says that something else does. It is idempotent.
func (s *Store) Remove(id string, needed func() (bool, error)) error {
	if !layerID.MatchString(id) {
		panic(fmt.Sprintf("internal error: image: bad layer %q", id))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins[id] > 0 {
		return nil
	}
	if need, err := needed(); need || err != nil {
		return err
	}
	doomed, err := s.stageLocked()
	if err != nil {
		return err
	}
	err = os.Rename(s.layerDir(id), filepath.Join(doomed, id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("remove layer %s: %w", id, err), s.unstageLocked(doomed))
	}
	// A layer can have many files: nobody waits for them.
	s.mu.Unlock()
	err = tree.Remove(doomed)
	s.mu.Lock()
	delete(s.staging, doomed)
	return err
}

// stage makes a staging directory. unstage removes what is left of it.
func (s *Store) stage() (dir string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stageLocked()
}

func (s *Store) stageLocked() (dir string, err error) {
	all := filepath.Join(s.dir, stagingDir)
	for _, dir := range []string{s.dir, all, filepath.Join(s.dir, layersDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	if dir, err = os.MkdirTemp(all, "new-"); err == nil {
		s.staging[dir] = true
	}
	return dir, err
}

func (s *Store) unstage(dir string) error {
	err := tree.Remove(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.staging, dir)
	return err
}

func (s *Store) unstageLocked(dir string) error {
	delete(s.staging, dir)
	return tree.Remove(dir)
}

// pin keeps a layer from being removed until the function that it returns is
// called.
func (s *Store) pin(id string) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[id]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pins[id]--; s.pins[id] == 0 {
			delete(s.pins, id)
		}
	})
}

// turn waits until nobody else unpacks a layer.
func (s *Store) turn(ctx context.Context, id string) (done func(), err error) {
	s.mu.Lock()
	m := s.busy[id]
	if m == nil {
		m = make(chan struct{}, 1)
		s.busy[id] = m
	}
	s.mu.Unlock()
	select {
	case m <- struct{}{}:
		return func() { <-m }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// place unpacks a layer, and gives it its name once it is known to be whole and
// is durable.
func (s *Store) place(ctx context.Context, l source, progress func(Progress)) (Layer, error) {
	id := l.diffID.Hex
	done, err := s.turn(ctx, id)
	if err != nil {
		return Layer{}, err
	}
	defer done()
	if have, err := s.Layer(id); err == nil || !errdef.Is(err, errdef.NotFound) {
		progress(Progress{Layer: l.name(), State: Present, Done: l.size, Size: l.size})
		return have, err
	}
	dir, err := s.stage()
	if err != nil {
		return Layer{}, err
	}
	defer func() { _ = s.unstage(dir) }() // what is left of it, gc removes
	files := filepath.Join(dir, filesDir)
	if err := os.Mkdir(files, 0o700); err != nil {
		return Layer{}, err
	}
	if err := os.Chmod(files, 0o755); err != nil {
		return Layer{}, err
	}
	c, err := s.unpackInto(ctx, files, l, progress)
	if err != nil {
		return Layer{}, explain(err)
	}
	r := record{
		Layer:        Layer{ID: id, Digest: l.name(), Bytes: c.bytes, Entries: c.entries, Devices: c.devices, Implicit: len(c.implicit)},
		ImplicitDirs: c.implicit,
	}
	data, err := json.Marshal(r)
	if err != nil {
		return Layer{}, err
	}
	if err := durable.WriteFile(filepath.Join(dir, recordName), data); err != nil {
		return Layer{}, explain(err)
	}
	if err := durable.SyncFilesystem(dir); err != nil {
		return Layer{}, explain(err)
	}
	if err := os.Rename(dir, s.layerDir(id)); err != nil {
		return Layer{}, err
	}
	if err := durable.Sync(filepath.Join(s.dir, layersDir)); err != nil {
		return Layer{}, err
	}
	progress(Progress{Layer: l.name(), State: Unpacked, Done: l.size, Size: l.size})
	return r.Layer, nil
}

func (s *Store) unpackInto(ctx context.Context, files string, l source, progress func(Progress)) (contents, error) {
	root, err := unix.Open(files, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return contents{}, err
	}
	defer unix.Close(root)
	in, err := s.open(ctx, l, progress)
	if err != nil {
		return contents{}, err
	}
	defer in.Close()
	c, err := unpack(root, in, s.limits)
	if err != nil {
		return c, err
	}
	return c, in.finish()
}
