package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Builds are the templates that were built on a server: "app", which is ready and was
// built as v1 too, "broken", whose only build failed, and "others" of another API key.
type Builds struct{ list []build.Template }

// NewBuilds returns them.
func NewBuilds() *Builds {
	at := func(s build.Status, r *build.Reason) []build.Build {
		return []build.Build{{ID: "b1", Status: s, CreatedAt: Epoch.Add(time.Hour), Reason: r}}
	}
	ready := map[string]build.Tag{build.DefaultTag: {Build: "b1", Snapshot: "sapp"}, "v1": {Build: "b1", Snapshot: "sv1"}}
	return &Builds{[]build.Template{
		{ID: IDOfBuilt("app"), Name: "app", Key: KeyID, CreatedAt: Epoch, Builds: at(build.Ready, nil), Tags: ready},
		{ID: IDOfBuilt("broken"), Name: "broken", Key: KeyID, CreatedAt: Epoch, Builds: at(build.Failed, &build.Reason{Text: "the command ended with exit status 2", Step: "1"})},
		{ID: IDOfBuilt("others"), Name: "others", Key: "another", CreatedAt: Epoch, Builds: at(build.Building, nil)},
	}}
}

// IDOfBuilt returns the id of the one of that name.
func IDOfBuilt(name string) string { return "t" + strings.Repeat("0", 20-len(name)) + name }

func (b *Builds) find(id string) (int, error) {
	i := slices.IndexFunc(b.list, func(t build.Template) bool { return t.ID == id })
	if i < 0 {
		return i, store.ErrTemplateNotFound(id)
	}
	return i, nil
}

// Template returns one by its id, or by its name among those of a key.
func (b *Builds) Template(key, ref string) (build.Template, error) {
	for _, t := range b.list {
		if t.ID == ref || t.Key == key && t.Name == ref {
			return t, nil
		}
	}
	return build.Template{}, store.ErrTemplateNotFound(ref)
}

// Templates returns all.
func (b *Builds) Templates() []build.Template { return slices.Clone(b.list) }

// Delete removes one.
func (b *Builds) Delete(_ context.Context, id string) error {
	i, err := b.find(id)
	if err == nil {
		b.list = slices.Delete(slices.Clone(b.list), i, i+1)
	}
	return err
}

// Untag takes tags away, but not the one of all.
func (b *Builds) Untag(_ context.Context, id string, tags []string) error {
	i, err := b.find(id)
	if err == nil && slices.Contains(tags, build.DefaultTag) {
		err = errdef.New(errdef.Invalid, "template_tag_fixed", "the tag %s cannot be removed", build.DefaultTag)
	}
	if err == nil {
		for _, tag := range tags {
			delete(b.list[i].Tags, tag)
		}
	}
	return err
}

// FreeForSnapshot refuses a name that one of them can be built to.
func (b *Builds) FreeForSnapshot(_ context.Context, snap store.Snapshot) error {
	base := store.BaseName(snap.Name)
	if _, err := b.Template(snap.Key, base); err != nil || snap.Config.Build != "" {
		return nil
	}
	return store.ErrNameOfTemplate(base)
}
