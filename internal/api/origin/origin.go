// Package origin finds what a sandbox starts from: a template or a snapshot. In
// most clients both have the same field, so that they share their names. Where
// both have one, it is the template's.
package origin

import (
	"strings"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Templates finds templates. One that is unknown is an errdef.NotFound.
type Templates interface {
	Template(ref string) (templates.Template, error)
}

// Snapshots finds snapshots by id or name. One that is unknown is an
// errdef.NotFound.
type Snapshots interface {
	Snapshot(ref string) (store.Snapshot, error)
}

// DefaultTag is the tag that a name without a tag has.
const DefaultTag = ":default"

// Namespace is that of the one tenant. A name in it is the name without it.
const Namespace = "default"

// Ref returns the name or id that a client has sent in its shortest form.
func Ref(text string) string {
	ref := strings.ToLower(strings.TrimSpace(text))
	return strings.TrimSuffix(strings.TrimPrefix(ref, Namespace+"/"), DefaultTag)
}

// Snapshot returns a snapshot that the key sees. For the key there is no other.
func Snapshot(from Snapshots, key store.Key, ref string) (store.Snapshot, error) {
	snap, err := from.Snapshot(ref)
	if err == nil && !auth.Sees(key, snap.Key) {
		return store.Snapshot{}, store.ErrSnapshotNotFound(ref)
	}
	return snap, err
}

// Taken returns a snapshot as Snapshot does, for a caller that changes or removes it.
// A result of a build belongs to its template, and is refused.
func Taken(from Snapshots, key store.Key, ref string) (store.Snapshot, error) {
	snap, err := Snapshot(from, key, ref)
	if err == nil && snap.Config.Build != "" {
		return store.Snapshot{}, errdef.New(errdef.Conflict, "snapshot_of_template", "%.200q belongs to a template that was built", ref).
			WithRemedy("choose another snapshot or name, or delete or build the template")
	}
	return snap, err
}

// Builds finds templates that were built of steps, by name. One that is unknown is an
// errdef.NotFound.
type Builds interface {
	Template(name string) (build.Template, error)
}

// Free refuses a name for a new snapshot if it is one that a template can be built to,
// whoever builds it: the snapshot would take it away.
func Free(from Builds, name string) error {
	of, _, _ := strings.Cut(Ref(name), ":")
	_, err := from.Template(of)
	if errdef.Is(err, errdef.NotFound) {
		return nil
	}
	if err == nil {
		err = errdef.New(errdef.Exists, "snapshot_exists", "a template that was built is called %q", of).
			WithRemedy("choose another name")
	}
	return err
}

// IsTemplate reports whether a template is called this.
func IsTemplate(from Templates, ref string) (bool, error) {
	_, err := from.Template(ref)
	if errdef.Is(err, errdef.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// Find finds the snapshot that a new sandbox starts from, if it is one, and makes
// the request name it by its id: its name may pass to another meanwhile. If neither
// a template nor a snapshot has the name, the request is left as it is.
func Find(templates Templates, snapshots Snapshots, key store.Key, req *supervisor.CreateRequest) error {
	if ref := req.SnapshotRef(); ref != "" {
		snap, err := Snapshot(snapshots, key, ref)
		req.Snapshot = snap.ID
		return err
	}
	if req.Template == "" {
		return nil
	}
	if is, err := IsTemplate(templates, req.Template); is || err != nil {
		return err
	}
	snap, err := Snapshot(snapshots, key, Ref(req.Template))
	if errdef.Is(err, errdef.NotFound) {
		return nil
	}
	req.Snapshot = snap.ID
	return err
}
