package apitest

import (
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
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
		{Name: "app", Key: KeyID, CreatedAt: Epoch, Builds: at(build.Ready, nil), Tags: ready},
		{Name: "broken", Key: KeyID, CreatedAt: Epoch, Builds: at(build.Failed, &build.Reason{Text: "the command ended with exit status 2", Step: "1"})},
		{Name: "others", Key: "another", CreatedAt: Epoch, Builds: at(build.Building, nil)},
	}}
}

func (b *Builds) find(name string) (int, error) {
	i := slices.IndexFunc(b.list, func(t build.Template) bool { return t.Name == name })
	if i < 0 {
		return i, build.NotFound(name)
	}
	return i, nil
}

// Template returns one.
func (b *Builds) Template(name string) (build.Template, error) {
	i, err := b.find(name)
	if err != nil {
		return build.Template{}, err
	}
	return b.list[i], nil
}

// Templates returns all.
func (b *Builds) Templates() []build.Template { return slices.Clone(b.list) }

// Delete removes one.
func (b *Builds) Delete(_ context.Context, name string) error {
	i, err := b.find(name)
	if err == nil {
		b.list = slices.Delete(slices.Clone(b.list), i, i+1)
	}
	return err
}

// Untag takes tags away, but not the one of all.
func (b *Builds) Untag(_ context.Context, name string, tags []string) error {
	i, err := b.find(name)
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
