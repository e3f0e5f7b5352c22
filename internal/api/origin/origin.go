// Package origin finds what a sandbox starts from: a template or a snapshot. In
// most clients both have the same field, so that they share their names.
//
// A name stands for a template of the server; if there is none, for what the API key
// that asks has given the name itself: a template that it has built, or a snapshot.
// It never stands for what another key has made. Who sees that names it by its id.
// New snapshots get their names here, apart from those of templates.
package origin

import (
	"context"
	"strings"

	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Templates finds templates of the server. One that is unknown is an errdef.NotFound.
type Templates interface {
	Template(ref string) (templates.Template, error)
}

// Snapshots finds snapshots by id, or by name among those of an API key. One that is
// unknown is an errdef.NotFound.
type Snapshots interface {
	Snapshot(key, ref string) (store.Snapshot, error)
}

// Shelf takes snapshots of sandboxes, keeps them, and starts and restores sandboxes by
// them.
type Shelf interface {
	Snapshots
	// TakeSnapshot is an errdef.Exists where the name is taken.
	TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error)
	// Snapshots returns all snapshots, newest first.
	Snapshots() ([]store.Snapshot, error)
	RemoveSnapshot(ctx context.Context, id, actor string) error
	Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error)
	// Restore returns the sandbox as it is then, and the id of the snapshot that
	// keeps what it was before; empty if none does.
	Restore(ctx context.Context, id string, req supervisor.RestoreRequest) (store.Sandbox, string, error)
}

// Builds finds templates that were built of steps in the same way. One that is unknown
// is an errdef.NotFound.
type Builds interface {
	Template(key, ref string) (build.Template, error)
}

// Origins is all that there is to start from.
type Origins struct {
	Templates Templates
	Snapshots Snapshots
	Builds    Builds
}

// DefaultTag is the tag that a name without a tag has.
const DefaultTag = ":" + build.DefaultTag

// Namespace is that of the one tenant. A name in it is the name without it.
const Namespace = "default"

// Ref returns the name or id that a client has sent in its shortest form.
func Ref(text string) string {
	ref := strings.ToLower(strings.TrimSpace(text))
	return strings.TrimSuffix(strings.TrimPrefix(ref, Namespace+"/"), DefaultTag)
}

// Named returns the tag of a built template that a client has named in full, of which
// Built has told a tag: a template with its default tag is not all of the template.
func Named(text, tag string) string {
	if strings.HasSuffix(strings.ToLower(strings.TrimSpace(text)), DefaultTag) {
		return build.DefaultTag
	}
	return tag
}

// Snapshot returns a snapshot that the key sees: one of its own by name, any by id. The
// results of builds are among them, also by the id of their template and a tag. For the
// key there is no other.
func (o Origins) Snapshot(key store.Key, ref string) (store.Snapshot, error) {
	snap, err := o.Snapshots.Snapshot(key.ID, ref)
	if errdef.Is(err, errdef.NotFound) {
		if of := o.result(key, ref); of != "" {
			snap, err = o.Snapshots.Snapshot(key.ID, of)
		}
	}
	if err == nil && !auth.Sees(key, snap.Key) || errdef.Is(err, errdef.NotFound) {
		return store.Snapshot{}, store.ErrSnapshotNotFound(ref)
	}
	return snap, err
}

// result returns the id of the snapshot that a template was built to; empty if a
// reference names none.
func (o Origins) result(key store.Key, ref string) string {
	t, tag, err := o.Built(key, ref)
	if err != nil {
		return ""
	}
	if tag == "" {
		tag = build.DefaultTag
	}
	return t.Tags[tag].Snapshot
}

// Built returns a template that was built of steps and that the key sees, and the tag
// that the reference names; empty for none.
func (o Origins) Built(key store.Key, ref string) (t build.Template, tag string, err error) {
	name, tag, _ := strings.Cut(Ref(ref), ":")
	t, err = o.Builds.Template(key.ID, name)
	if err == nil && !auth.Sees(key, t.Key) || errdef.Is(err, errdef.NotFound) {
		return build.Template{}, "", store.ErrTemplateNotFound(ref)
	}
	return t, tag, err
}

// apart refuses a name for a new snapshot that a template of the server has: where both
// are asked for by one field, the snapshot would never be found.
func (o Origins) apart(name string) error {
	if name == "" {
		return nil
	}
	is, err := o.IsTemplate(Ref(name))
	if is {
		err = errdef.New(errdef.Exists, "snapshot_exists", "a template is called %q", Ref(name)).WithRemedy("choose another name")
	}
	return err
}

// IsTemplate reports whether a template of the server is called this.
func (o Origins) IsTemplate(ref string) (bool, error) {
	_, err := o.Templates.Template(ref)
	if errdef.Is(err, errdef.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// Find finds the snapshot that a new sandbox starts from, if it is one, and makes
// the request name it by its id: its name may pass to another meanwhile. If neither
// a template nor a snapshot has the name, the request is left as it is.
func (o Origins) Find(key store.Key, req *supervisor.CreateRequest) error {
	if ref := req.SnapshotRef(); ref != "" {
		return o.start(key, ref, req)
	}
	if req.Template == "" {
		return nil
	}
	if is, err := o.IsTemplate(req.Template); is || err != nil {
		return err
	}
	err := o.start(key, Ref(req.Template), req)
	if errdef.Is(err, errdef.NotFound) {
		return nil
	}
	return err
}

// Creator creates sandboxes.
type Creator interface {
	Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error)
}

// Create has a sandbox created for a key, by what the request names.
func (o Origins) Create(ctx context.Context, by Creator, key store.Key, actor string, req supervisor.CreateRequest) (store.Sandbox, error) {
	if len(req.Config.Volumes) > 0 {
		if err := auth.Require(key, auth.Share); err != nil {
			return store.Sandbox{}, err
		}
	}
	req.Actor, req.Config.Key = actor, key.ID
	sb, err := o.create(ctx, by, key, req)
	if code := errdef.CodeOf(err); code == "snapshot_gone" || code == "snapshot_not_found" { // another may have its name
		sb, err = o.create(ctx, by, key, req)
	}
	if err == nil {
		audit.About(ctx, sb.ID)
	}
	return sb, err
}

func (o Origins) create(ctx context.Context, by Creator, key store.Key, req supervisor.CreateRequest) (store.Sandbox, error) {
	if err := o.Find(key, &req); err != nil {
		return store.Sandbox{}, err
	}
	return by.Create(ctx, req)
}

// Take has a snapshot of a sandbox taken for a key. The request may name the snapshot
// that it replaces as the key does; if there is none, it replaces none.
func (o Origins) Take(ctx context.Context, by Shelf, key store.Key, actor, sandbox string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	if err := o.apart(req.Name); err != nil {
		return store.Snapshot{}, err
	}
	if req.Replace != "" {
		has, err := o.Snapshot(key, req.Replace)
		if err != nil && !errdef.Is(err, errdef.NotFound) {
			return store.Snapshot{}, err
		}
		req.Replace = has.ID
	}
	req.Key, req.Actor = key.ID, actor
	return by.TakeSnapshot(ctx, sandbox, req)
}

// start makes a request start from a snapshot. If that is the result of a build, the
// sandbox is one of the template that was built.
func (o Origins) start(key store.Key, ref string, req *supervisor.CreateRequest) error {
	snap, err := o.Snapshot(key, ref)
	req.Snapshot = snap.ID
	if err != nil || snap.Config.Build == "" {
		return err
	}
	name, _, _ := strings.Cut(snap.Name, ":")
	t, err := o.Builds.Template(snap.Key, name)
	if errdef.Is(err, errdef.NotFound) {
		return nil // it is being removed
	}
	req.Config.Built.ID = t.ID
	if t.Key == key.ID {
		req.Config.Built.Name = t.Name
	}
	return err
}
