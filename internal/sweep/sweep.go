// Package sweep finds what is in a state directory and nobody owns: runtimes,
// mounts, layers, images, volumes and unfinished work. It says why nobody owns it, and
// removes it.
//
// A server does so when it starts, "drowse gc" and "drowse fsck" while none
// runs. What can belong to somebody is left alone: whoever calls must hold the
// lock of the state directory, and must have read every record.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// Grace is how long what no record knows is left alone.
const Grace = time.Minute

// Kind is what a thing is.
type Kind string

// The kinds.
const (
	Runtime   Kind = "runtime"   // processes, cgroups, network namespace, mounts and directory
	Layer     Kind = "layer"     // files that a sandbox wrote
	Image     Kind = "image"     // a memory image, whole or not
	Template  Kind = "template"  // a base that was replaced, or not finished
	OfImage   Kind = "oci"       // a template of an OCI image, a layer of one, or unfinished work on one
	Volume    Kind = "volume"    // files that sandboxes shared
	Build     Kind = "build"     // a program that memory images were written by
	Snapshot  Kind = "snapshot"  // of a build, in the database, which a server alone removes
	Unremoved Kind = "unremoved" // a layer or image that was being removed
)

// Thing is something that nobody owns.
type Thing struct {
	Kind     Kind      `json:"kind"`
	ID       string    `json:"id"`
	Path     string    `json:"path"`
	Why      string    `json:"why"`            // nobody owns it
	Since    time.Time `json:"since"`          // when it last changed
	Stranger bool      `json:"stranger"`       // no record knows whose it was
	Kept     string    `json:"kept,omitempty"` // why it is not removed, ever
	// Spare is what each server leaves, however it ends: runtimes that waited for a
	// start, and a build of drowse whose last memory image has gone meanwhile.
	Spare bool `json:"-"`
}

// Due returns when the thing may be removed. What no record knows could be of a
// server that has another database, and gets a grace period.
func (t Thing) Due() time.Time {
	if t.Stranger && !planted.In(planted.NoGrace) {
		return t.Since.Add(Grace)
	}
	return time.Time{}
}

// Runtimes are those of a driver.
type Runtimes interface {
	List(ctx context.Context) ([]string, error)
	Remove(ctx context.Context, id string) error
}

// dirs is a driver that has a directory for each runtime.
type dirs interface{ Dir(id string) string }

// Sweeper looks through one state directory.
type Sweeper struct {
	Runtimes  Runtimes
	RunDir    string // of mount points, by runtime
	Layers    *layer.Store
	Templates *template.Store
	Volumes   *volume.Store
	Builds    *builds.Store // nil where none are kept
}

// Records are all that a store knows.
type Records struct {
	Sandboxes []store.Sandbox
	Volumes   []store.Volume
	Snapshots []store.Snapshot
}

// Find returns what none of the records owns. They must be all there are.
func (s Sweeper) Find(ctx context.Context, records Records) ([]Thing, error) {
	o := OwnedBy(records)
	var all []Thing
	for _, find := range []func(context.Context, Owned) ([]Thing, error){s.runtimes, s.files, s.templates, s.volumes, s.builds} {
		things, err := find(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("look for what nobody owns: %w", err)
		}
		all = append(all, things...)
	}
	return all, nil
}

func (s Sweeper) runtimes(ctx context.Context, o Owned) ([]Thing, error) {
	ids, err := s.Runtimes.List(ctx)
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadDir(s.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, m := range mounts {
		ids = append(ids, m.Name())
	}
	slices.Sort(ids)
	var found []Thing
	for _, id := range slices.Compact(ids) {
		if o.runtimes[id] {
			continue
		}
		found = append(found, o.thing(Runtime, id, s.dir(id)))
	}
	return found, nil
}

// dir returns the directory of a runtime: the driver's, or the mount point.
func (s Sweeper) dir(id string) string {
	if d, ok := s.Runtimes.(dirs); ok {
		if path := d.Dir(id); exists(path) {
			return path
		}
	}
	return filepath.Join(s.RunDir, id)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (s Sweeper) files(_ context.Context, o Owned) (found []Thing, err error) {
	layers, err := s.Layers.Layers()
	if err != nil {
		return nil, err
	}
	for _, id := range layers {
		if o.runtimes[id] || o.Layers[id] {
			continue
		}
		t := o.thing(Layer, id, s.Layers.LayerDir(id))
		if s.Layers.Abandoned(id) {
			t.Why, t.Stranger = "its import did not come to its end", false
		}
		found = append(found, t)
	}
	images, err := s.Layers.Images()
	if err != nil {
		return nil, err
	}
	for _, id := range images {
		if o.Images[id] || o.begun[id] {
			continue
		}
		t := o.thing(Image, id, s.Layers.ImageDir(id))
		t.Why, t.Stranger = "no checkpoint has it: its pause did not commit, or a newer one took its place", false
		found = append(found, t)
	}
	unremoved, err := s.Layers.Unremoved()
	for _, path := range unremoved {
		t := o.thing(Unremoved, filepath.Base(path), path)
		t.Why, t.Stranger = "it was being removed, or imported, when the server ended", false
		found = append(found, t)
	}
	return found, err
}

func (s Sweeper) templates(_ context.Context, o Owned) (found []Thing, err error) {
	bases, err := s.Templates.OldBases(func(id string) bool { return o.Templates[id] })
	for _, id := range bases {
		t := o.thing(Template, id, s.Templates.Dir(id))
		t.Why, t.Stranger = "it is not finished, or a newer one took its place and no sandbox uses it", false
		found = append(found, t)
	}
	if err != nil {
		return nil, err
	}
	images, err := s.Templates.Garbage(func(id string) bool { return o.Templates[id] })
	for _, g := range images {
		t := o.thing(OfImage, g.ID, g.Path)
		t.Why, t.Stranger = g.Why, g.Fresh
		found = append(found, t)
	}
	return found, err
}

// volumes keeps what no record names and has files in it: they are worth more
// than the record, which may come back. What has none is worth nothing.
func (s Sweeper) volumes(_ context.Context, o Owned) (found []Thing, err error) {
	names, err := s.Volumes.Names()
	for _, name := range names {
		id, discarded := strings.CutSuffix(name, volume.Discarded)
		if o.Volumes[id] {
			continue
		}
		t := o.thing(Volume, name, s.Volumes.Dir(name))
		switch {
		case discarded:
			t.Why, t.Stranger = "it was being deleted when the server ended", false
		case s.Volumes.Empty(name):
			t.Why, t.Stranger = "it is empty and no record names it: it was being made when the server ended", false
		default:
			t.Kept = "it has files, which are not removed without a record that they were deleted"
		}
		found = append(found, t)
	}
	return found, err
}

// builds finds the programs that no memory image needs any more. What runs has
// its program open.
func (s Sweeper) builds(_ context.Context, o Owned) (found []Thing, err error) {
	if s.Builds == nil {
		return nil, nil
	}
	names, err := s.Builds.Names()
	if err != nil {
		return nil, err
	}
	unneeded := map[string]bool{}
	for _, name := range names {
		unneeded[name] = true
	}
	for _, id := range slices.Concat(slices.Collect(maps.Keys(o.Images)), slices.Collect(maps.Keys(o.begun))) {
		if len(unneeded) == 0 {
			return nil, nil
		}
		build, err := s.Layers.BuildOf(id)
		if err != nil { // it may need any of them
			unneeded = map[string]bool{}
			break
		}
		delete(unneeded, build)
	}
	for _, name := range names {
		t := o.thing(Build, name, s.Builds.Path(name))
		t.Why, t.Stranger, t.Spare = "no memory image needs this build of drowse any more", false, true
		if !builds.IsDigest(name) {
			t.Why, t.Spare = "its copy did not come to its end", false
		} else if !unneeded[name] {
			continue
		}
		found = append(found, t)
	}
	return found, nil
}

// Remove removes a thing. It is idempotent.
func (s Sweeper) Remove(ctx context.Context, t Thing) error {
	switch t.Kind {
	case Runtime:
		return errors.Join(s.Runtimes.Remove(ctx, t.ID), layer.Unmount(filepath.Join(s.RunDir, t.ID)))
	case Layer:
		return s.Layers.RemoveLayer(t.ID)
	case Image:
		return s.Layers.RemoveImage(t.ID)
	case Template:
		return s.Templates.RemoveBase(t.ID)
	case OfImage:
		return s.Templates.RemoveGarbage(template.Garbage{ID: t.ID, Path: t.Path, Why: t.Why})
	case Volume:
		if t.Kept != "" {
			return nil
		}
		return s.Volumes.Remove(t.ID)
	case Build:
		return s.Builds.Remove(t.ID)
	case Unremoved:
		return s.Layers.FinishRemovals()
	}
	panic(fmt.Sprintf("internal error: sweep: kind %q", t.Kind))
}

// Owned is what records refer to, by id.
type Owned struct {
	Layers, Images, Templates, Volumes map[string]bool

	runtimes  map[string]bool // and the layers that they write to
	begun     map[string]bool // images that may be there, or not
	sandboxes map[string]lifecycle.State
}

// OwnedBy returns what records refer to.
func OwnedBy(records Records) Owned {
	o := Owned{
		Layers: map[string]bool{}, Images: map[string]bool{}, Templates: map[string]bool{}, Volumes: map[string]bool{},
		runtimes: map[string]bool{}, begun: map[string]bool{}, sandboxes: map[string]lifecycle.State{},
	}
	for _, sb := range records.Sandboxes {
		o.add(sb)
	}
	for _, snap := range records.Snapshots {
		o.Templates[snap.Config.Template] = true
		o.addCheckpoint(snap.Checkpoint)
	}
	for _, v := range records.Volumes {
		o.Volumes[v.ID] = true
	}
	return o
}

func (o *Owned) add(sb store.Sandbox) {
	rec := sb.Record
	o.sandboxes[sb.ID] = rec.State
	if rec.State == lifecycle.Terminated {
		return // also while it is being released
	}
	o.Templates[sb.Config.Template] = true
	if rec.State == lifecycle.Running {
		o.runtimes[RuntimeID(sb.ID, rec.Launch)] = true
	}
	if op := rec.Op; op != nil {
		// Whoever finishes the operation decides what becomes of it.
		o.begun[op.ID] = true
		if op.Restore != nil {
			o.addCheckpoint(op.Restore.Checkpoint)
		}
		for n := range rec.Launches {
			o.runtimes[RuntimeID(sb.ID, n+1)] = true
		}
	}
	if cp := rec.Checkpoint; cp != nil {
		o.addCheckpoint(*cp)
	}
}

func (o *Owned) addCheckpoint(cp lifecycle.Checkpoint) {
	if cp.Mode != lifecycle.Filesystem { // which is called like an image that is not its own
		o.Images[cp.ID] = true
	}
	for _, id := range cp.Stack {
		o.Layers[id] = true
	}
}

// thing says of a runtime or layer why nobody owns it.
func (o *Owned) thing(kind Kind, id, path string) Thing {
	t := Thing{Kind: kind, ID: id, Path: path}
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		t.Since = time.Unix(st.Mtim.Unix()).UTC()
	}
	owner := SandboxOf(id)
	switch state, known := o.sandboxes[owner]; {
	case strings.HasPrefix(id, "warm-"):
		t.Why, t.Spare = "it waited for a start by a server that has ended", true
	case !known:
		t.Why, t.Stranger = "no record names it", true
	case state == lifecycle.Terminated:
		t.Why = fmt.Sprintf("sandbox %s has ended", owner)
	default:
		t.Why = fmt.Sprintf("sandbox %s is %s without it", owner, state)
	}
	return t
}

// RuntimeID names a launch of a sandbox. Ids have a fixed length, because gVisor
// finds runtimes by prefix, and are never used twice. A launch's layer has the
// same name.
func RuntimeID(sandbox string, launch int64) string { return fmt.Sprintf("%sr%07d", sandbox, launch) }

// MergedID names a layer that others were merged into, after something unique.
// The name is never used twice, and is as long as those of launches.
func MergedID(sandbox, unique string) string {
	return fmt.Sprintf("%sm%s", sandbox, unique[len(unique)-7:])
}

// SnapshotLayerID names a copy of the top of a sandbox, likewise.
func SnapshotLayerID(sandbox, unique string) string {
	return fmt.Sprintf("%ss%s", sandbox, unique[len(unique)-7:])
}

// SandboxOf returns the sandbox that a runtime or layer id belongs to.
func SandboxOf(id string) string {
	const suffix = len("r0000000")
	if len(id) <= suffix {
		return ""
	}
	return id[:len(id)-suffix]
}
