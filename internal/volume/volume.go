// Package volume keeps the directories of volumes, which outlive sandboxes, and
// does with the files in them what is asked from outside.
//
// Sandboxes write to the same directories meanwhile, and none of them is to be
// trusted. Every path is looked up below the directory of its volume and step
// by step, so that no link in it leads out, whenever it appears; and nothing
// but regular files and directories is ever opened. Which volumes there are,
// and who uses them, is for others to know.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Store is the directory of all volumes.
type Store struct {
	dir   string
	owner int
}

// Open returns the volumes in dir, which it makes if it is missing. What is made
// in volumes belongs to the user and group owner, if nothing else is asked for.
// Files that were not whole when the last server ended are removed.
func Open(dir string, owner int) (*Store, error) {
	s := At(dir, owner)
	err := tree.Remove(s.staging())
	if err == nil {
		err = os.MkdirAll(s.staging(), 0o700)
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	return s, nil
}

// At returns the volumes in dir as they are.
func At(dir string, owner int) *Store { return &Store{dir: dir, owner: owner} }

// Dir returns the directory of a volume.
func (s *Store) Dir(id string) string { return filepath.Join(s.dir, id) }

// stagingName is what lies beside the volumes, and is none: no sandbox sees what
// is in it.
const stagingName = ".writing"

// staging is where files of volumes are written until they are whole.
func (s *Store) staging() string { return filepath.Join(s.dir, stagingName) }

// Make makes the empty directory of a new volume, durably.
func (s *Store) Make(id string) error {
	dir := s.Dir(id)
	err := failpoint.Fail(failpoint.VolumeMake)
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = os.Chown(dir, s.owner, s.owner)
	}
	if err == nil {
		err = errors.Join(durable.Sync(dir), durable.Sync(s.dir))
	}
	if err == nil {
		err = failpoint.Fail(failpoint.VolumeMade)
	}
	if err != nil {
		return fmt.Errorf("make volume %s: %w", id, err)
	}
	return nil
}

// Discarded ends the names of directories that are to be removed.
const Discarded = ".deleted"

// Discard puts the directory of a volume aside, durably, under the name that it
// returns.
func (s *Store) Discard(id string) (name string, err error) {
	name = id + Discarded
	if err := failpoint.Fail(failpoint.VolumeDiscard); err != nil {
		return name, err
	}
	return name, errors.Join(s.rename(id, name), failpoint.Fail(failpoint.VolumeDiscarded))
}

// Recall undoes Discard. A volume that was not discarded stays as it is.
func (s *Store) Recall(id string) error {
	if _, err := os.Lstat(s.Dir(id + Discarded)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := failpoint.Fail(failpoint.VolumeRecall); err != nil {
		return err
	}
	return s.rename(id+Discarded, id)
}

// rename gives a directory that is there another name.
func (s *Store) rename(from, to string) error {
	err := os.Rename(s.Dir(from), s.Dir(to))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.Sync(s.dir)
	}
	return err
}

// Remove removes a directory of the store with all that is in it. It is
// idempotent.
func (s *Store) Remove(name string) error {
	err := failpoint.Fail(failpoint.VolumeRemove)
	if err == nil {
		err = tree.Remove(s.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// Names returns the names of all directories: ids of volumes, and what Discard
// made of them.
func (s *Store) Names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == stagingName }), nil
}

// Empty reports whether a directory has nothing in it.
func (s *Store) Empty(name string) bool {
	entries, err := os.ReadDir(s.Dir(name))
	return err == nil && len(entries) == 0
}
