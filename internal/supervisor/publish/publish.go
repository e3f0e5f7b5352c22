// Package publish sends snapshots out as OCI images: to a registry, or as an archive
// of an image layout. Other servers, and any program that runs images, start from
// them.
//
// An image has two layers: what the sandbox started from, and what it changed. The
// first is the same for all snapshots of a template, so that a registry gets it once.
// Memory does not leave, and neither do the sandbox's own variables.
//
// Nothing is kept on disk for it. A server that is killed meanwhile leaves nothing
// behind, and the registry no tag.
package publish

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/layer/diff"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
)

// Snapshots is what the package needs of those who keep them.
type Snapshots interface {
	// ByID returns a snapshot whose files are here.
	ByID(id string) (store.Snapshot, error)
}

// Options are what a publisher is made of.
type Options struct {
	Layers    *layer.Store
	Templates *template.Store
	Snapshots Snapshots
	Log       *slog.Logger
}

// Publisher sends snapshots out: of each API key one at a time, others wait. The
// files are read one snapshot after the other, whosever they are; a registry or a
// client that is slow to take them holds up its own key alone.
type Publisher struct {
	o     Options
	keys  *ration.Turns
	reads chan struct{}
}

// New returns a publisher.
func New(o Options) *Publisher {
	return &Publisher{o, ration.NewTurns(1), make(chan struct{}, 1)}
}

// Request is a snapshot that is to leave.
type Request struct {
	Key      string       // the id of the API key that asks
	Snapshot string       // its id
	Ref      string       // where to, with a tag
	Login    *image.Login // nil for the server's own credentials
	Progress func(image.Progress)
	Actor    string
}

// PushSnapshot sends the files of a snapshot to a registry, as an image.
func (p *Publisher) PushSnapshot(ctx context.Context, req Request) (image.Published, error) {
	if err := image.CheckTag(req.Ref); err != nil {
		return image.Published{}, err
	}
	began := time.Now()
	a, err := p.open(ctx, req.Key, req.Snapshot, req.Progress)
	if err != nil {
		return image.Published{}, err
	}
	defer a.Close()
	out, err := a.packed.Push(ctx, req.Ref, req.Login, req.Progress)
	p.o.Log.Info("snapshot pushed", "snapshot", req.Snapshot, "ref", req.Ref, "digest", out.Digest, "actor", req.Actor, "dur", time.Since(began), "err", err)
	return out, err
}

// Archive is a snapshot as the archive of an image layout.
type Archive interface {
	// Write writes the archive.
	Write(ctx context.Context, out io.Writer) error
	// Close must be called when the archive is not needed any more.
	Close()
}

// archive is a snapshot whose files are open.
type archive struct {
	packed  *image.Packed
	name    string
	release func()
}

// Close implements Archive.
func (a *archive) Close() { a.release() }

// Write implements Archive.
func (a *archive) Write(ctx context.Context, out io.Writer) error {
	return a.packed.Save(ctx, out, a.name)
}

// OpenArchive reads the files of a snapshot once, and returns what writes them. The
// API key has no other until that is closed.
func (p *Publisher) OpenArchive(ctx context.Context, key, id string) (Archive, error) {
	a, err := p.open(ctx, key, id, nil)
	if err != nil {
		return nil, err // and no *archive
	}
	return a, nil
}

func (p *Publisher) open(ctx context.Context, key, id string, progress func(image.Progress)) (_ *archive, err error) {
	leave, err := p.keys.Enter(ctx, key)
	if err != nil {
		return nil, err
	}
	var opened []*layer.OpenTrees
	release := func() {
		for _, trees := range opened {
			if err := trees.Close(); err != nil {
				p.o.Log.Error("mount of a snapshot could not be removed", "snapshot", id, "err", err)
			}
		}
		leave()
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	select {
	case p.reads <- struct{}{}:
		defer func() { <-p.reads }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	snap, err := p.o.Snapshots.ByID(id)
	if err != nil {
		return nil, err
	}
	t, err := p.o.Templates.Resolve(snap.Config.Template)
	if err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	way := t.Outward()
	below, err := p.o.Layers.OpenTrees(way.Below, nil)
	if err != nil {
		return nil, err
	}
	opened = append(opened, below)
	whole, err := p.o.Layers.OpenTrees(t.Trees, snap.Checkpoint.Stack)
	if err != nil {
		return nil, err
	}
	opened = append(opened, whole)
	for i, dir := range way.Added {
		whole.Trees[i].Changes = append(whole.Trees[i].Changes, dir)
	}
	packed, err := image.Pack(ctx, p.outgoing(snap, t, way, below.Trees, whole.Trees), progress)
	if err != nil {
		return nil, err
	}
	return &archive{packed, snap.Name, release}, nil
}

// mostLinked bounds the paths that are kept while files are read.
const mostLinked = 64 << 20

// Labels of an image that was a snapshot.
const (
	snapshotLabel = "dev.drowse.snapshot"
	templateLabel = "dev.drowse.template"
)

func (p *Publisher) outgoing(snap store.Snapshot, t template.Template, way template.Outward, below, whole []layer.OpenTree) image.Outgoing {
	o := image.Outgoing{
		MadeAt:  snap.CreatedAt,
		Labels:  map[string]string{snapshotLabel: snap.ID, templateLabel: cmp.Or(snap.Config.Alias, snap.Config.Template)},
		History: []string{"template " + cmp.Or(snap.Config.Alias, snap.Config.Template), "snapshot " + snap.ID},
		Check: func() error {
			// With the snapshot, its template may go: what was read then may lack files.
			if _, err := p.o.Snapshots.ByID(snap.ID); err != nil {
				return errdef.New(errdef.Conflict, "snapshot_removed", "snapshot %s was removed while it was read", snap.ID).
					WithRemedy("take another snapshot; the image has not got its name")
			}
			return nil
		},
	}
	if t.Image != nil {
		o.Config = t.Image.Config
	}
	if snap.Config.Build != "" {
		o.Config.Env = environment(o.Config.Env, snap.Config.Env)
	}
	o.Config.User, o.Config.WorkingDir = cmp.Or(snap.Config.User, t.DefaultUser()), cmp.Or(snap.Config.Workdir, o.Config.WorkingDir)
	changed := func(name string) bool { return p.changed(snap.Checkpoint.Stack, t.Trees, name) }
	limits := diff.Options{MostBytes: image.DefaultLimits.Bytes, MostEntries: image.DefaultLimits.Entries, MostLinked: mostLinked}
	limits.Omit = func(name string) bool { return way.Omits(name, changed) }
	o.Parts = []image.Part{
		func(ctx context.Context, out io.Writer) error {
			_, err := diff.Write(ctx, out, below, limits)
			return err
		},
		func(ctx context.Context, out io.Writer) error {
			changes := limits
			changes.Below = below
			_, err := diff.Write(ctx, out, whole, changes)
			return err
		},
	}
	return o
}

// changed reports whether layers have something at a path of a sandbox.
func (p *Publisher) changed(stack []string, trees []layer.Tree, name string) bool {
	return slices.ContainsFunc(trees, func(t layer.Tree) bool {
		at := strings.Trim(t.Path, "/")
		inside, below := strings.CutPrefix(name, at+"/")
		if at == "" {
			inside, below = name, true
		}
		return below && p.o.Layers.Has(stack, t, inside)
	})
}

// environment returns the variables of an image with those of a build over them.
func environment(of []string, own map[string]string) []string {
	all := template.Template{Image: &image.Image{Config: image.Configuration{Env: of}}}.Env(own)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name])
	}
	return out
}
