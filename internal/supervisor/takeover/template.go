package takeover

import (
	"context"
	"errors"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
)

// failedBuild is why builds have failed that did not come to their end.
const failedBuild = "the server that was to build is gone: build again"

// takeOverTemplate is TakeOver of a template that was built, with the results that its tags name.
// What its steps have led to stays behind, and is removed.
func (t *Taker) takeOverTemplate(ctx context.Context, id string) error {
	was, err := t.template(ctx, id)
	if err != nil {
		return err
	}
	results, err := t.results(ctx, was)
	if err != nil {
		return err
	}
	next := was.Copy()
	next.Cache = nil
	next.FailUnfinished(failedBuild, ids.Now())
	return t.fetchResults(ctx, next, results, nil, nil)
}

// template returns a template as it is stored.
func (t *Taker) template(ctx context.Context, id string) (store.Template, error) {
	all, err := t.o.Store.Templates(ctx)
	i := slices.IndexFunc(all, func(x store.Template) bool { return x.ID == id })
	switch {
	case err != nil:
		return store.Template{}, err
	case i < 0:
		return store.Template{}, store.ErrTemplateNotFound(id)
	}
	return all[i], nil
}

// results returns the snapshots that the tags of a template name, or why the store would refuse
// now that they are taken over.
func (t *Taker) results(ctx context.Context, of store.Template) (results []store.Snapshot, err error) {
	servers, err := t.o.Store.Servers(ctx)
	if err == nil {
		err = of.Takes(of, t.o.Store.Self(), servers)
	}
	if err != nil {
		return nil, err
	}
	all, err := t.o.Store.Snapshots(ctx)
	of.Cache = nil
	needed := of.Snapshots()
	for _, snap := range all {
		if needed[snap.ID] {
			results = append(results, snap)
			err = errors.Join(err, t.maySnapshot(ctx, snap))
		}
	}
	return results, err
}

// fetchResults makes results of a template one after the other, and commits that this server has
// it with them and those that were made before, of which there are these copies.
func (t *Taker) fetchResults(ctx context.Context, next store.Template, results []store.Snapshot, made []store.Remade, copies []store.Replica) error {
	if len(results) == 0 {
		return t.commitTemplate(next, made, copies)
	}
	snap := results[0]
	return t.fetch(ctx, t.snapshot(snap, func(a *moving.Arrival, replica store.Replica) error {
		return t.fetchResults(ctx, next, results[1:], append(made, store.Remade{Was: snap, Made: a.Checkpoint, Config: a.Config}), append(copies, replica))
	}))
}

// commitTemplate commits that this server has a template, whose results are in their places.
func (t *Taker) commitTemplate(next store.Template, made []store.Remade, copies []store.Replica) error {
	err := t.decide(next.ID, func(ctx context.Context) (bool, error) {
		is, err := t.template(ctx, next.ID) // by this commit alone, whatever has become of its results since
		return err == nil && is.Owner == t.o.Store.Self(), err
	}, func(ctx context.Context) error { return t.o.Store.TakeTemplate(ctx, next, made) })
	if err != nil {
		return err
	}
	t.o.Log.Info("template taken over", "template", next.ID, "name", next.Name, "from", next.Owner)
	t.arriveSnapshots(made, copies)
	return nil
}
