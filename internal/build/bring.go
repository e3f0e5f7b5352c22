package build

import (
	"cmp"
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// bringWithin bounds how long it takes to bring a template here.
const bringWithin = 10 * time.Minute

// bringing is a template that is to be built by a recipe, maybe by another server than was asked.
type bringing struct {
	*Builder
	template string
	recipe   Recipe
}

// bring makes a template this server's of which another has made nothing yet, if this one has the
// snapshot with which a recipe begins, and brings along what its steps copy. It goes on when the
// caller has gone, who finds it here when it asks again.
func (b bringing) bring(ctx context.Context) error {
	if from, err := b.from(); from == nil {
		return err
	}
	done, err := b.brings.Enter(ctx, b.template)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(b.ctx, bringWithin)
	defer cancel()
	defer b.forgetUnowned(b.template) // what was fetched in vain
	for n := 1; ; n++ {
		t, err := b.from()
		if t == nil {
			return err
		}
		err = b.now(ctx, *t)
		if err == nil || errdef.CodeOf(err) != "record_changed" || n == tries {
			return err
		}
	}
}

// from returns the template if it is to be brought here; nil if it is not.
func (b bringing) from() (*Template, error) {
	t, err := b.known(b.template, func() *Template { return b.templates[b.template] })
	if err != nil || b.o.Store.Self() == "" || !t.OnlyWaits() {
		return nil, nil // as it is found further on
	}
	snap, is := b.o.Origins.SnapshotOf(b.recipe.Base)
	switch {
	case !is:
		return nil, nil
	case snap.Owner != b.o.Store.Self():
		return nil, store.ErrElsewhere("snapshot "+snap.ID, snap.Owner)
	case b.owns(&t):
		return nil, nil
	}
	return &t, nil
}

// now is bring of a template as it is known.
func (b bringing) now(ctx context.Context, t Template) error {
	err := b.fetchAll(ctx, t)
	if err == nil {
		err = b.o.Store.TakeTemplate(ctx, t, nil)
	}
	refreshed := b.Refresh(context.WithoutCancel(ctx)) // it may have been taken although it is not known
	if err = cmp.Or(err, refreshed); err != nil {
		return err
	}
	b.o.Log.Info("template goes to where its first build begins", "template", t.ID, "name", t.Name, "from", t.Owner)
	return nil
}

// fetchAll brings what the steps copy.
func (b bringing) fetchAll(ctx context.Context, t Template) error {
	for _, s := range b.recipe.Steps {
		if s.Kind != Copy || b.files.has(t.ID, s.Files) {
			continue
		}
		if err := b.fetch(ctx, t, s.Files); err != nil && errdef.CodeOf(err) != "build_files_missing" { // Start says so
			return err
		}
	}
	return nil
}

// fetch brings what was uploaded to the server of a template.
func (b bringing) fetch(ctx context.Context, t Template, hash string) error {
	leave, err := b.uploads.Enter(ctx, t.Key)
	if err != nil {
		return err
	}
	defer leave()
	data, err := b.o.FilesOf(ctx, t.Owner, t.ID, hash)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := b.files.put(ctx, t.ID, hash, data, func() error { return nil }); err != nil {
		return err
	}
	return b.files.trim(b.templatesOf(t.Key))
}
