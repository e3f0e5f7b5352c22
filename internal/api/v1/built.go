package v1

import (
	"cmp"
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
)

// Builds is the templates that were built of steps. One that is unknown is an
// errdef.NotFound with code "template_not_found".
type Builds interface {
	Template(key, ref string) (build.Template, error)
	Templates() []build.Template
	Delete(ctx context.Context, id string) error
	Untag(ctx context.Context, id string, tags []string) error
}

// builtView is how a template was built.
type builtView struct {
	Name   string       `json:"name" doc:"What the API key that has built it calls it. To other keys the name means nothing."`
	Status build.Status `json:"status" doc:"Of the newest build: waiting, building, ready or error. What an older build has led to stays while a newer one runs or has failed."`
	Reason string       `json:"reason,omitempty" doc:"Why the newest build failed."`
	Builds int          `json:"builds" doc:"How many builds are remembered."`
	Key    string       `json:"key" doc:"The id of the API key that has built it."`
}

// viewBuilt shows a template that was built to a key. Its names are what sandboxes of
// that key start from it by.
func viewBuilt(s *server, key store.Key, t build.Template) templateView {
	v := templateView{ID: t.ID, Names: []string{}, Source: "build", MadeAt: httpapi.Timestamp(t.CreatedAt), User: template.User, Build: &builtView{Name: t.Name, Builds: len(t.Builds), Key: t.Key}}
	for tag, result := range t.Tags {
		v.Names = append(v.Names, build.Full(t.CalledBy(key.ID), tag))
		if snap, err := s.Snapshots.Snapshot("", result.Snapshot); err == nil && tag == build.DefaultTag {
			v.User = cmp.Or(snap.Config.User, v.User)
		}
	}
	slices.Sort(v.Names)
	if len(t.Builds) > 0 {
		last := t.Builds[0]
		v.MadeAt, v.Build.Status = httpapi.Timestamp(last.CreatedAt), last.Status
		if last.Reason != nil {
			v.Build.Reason = last.Reason.Text
		}
	}
	return v
}

// built returns the template that a reference names, and the tag of it; empty where
// it names all of it. For the key there is none of another's.
func built(s *server, key store.Key, ref string) (t build.Template, tag string, err error) {
	t, tag, err = s.origins.Built(key, ref)
	if _, has := t.Tags[tag]; err == nil && tag != "" && !has {
		err = store.ErrTemplateNotFound(ref)
	}
	return t, tag, err
}

// orBuilt does something else where a template is not known.
func orBuilt(err error, do func() error) error {
	if !errdef.Is(err, errdef.NotFound) {
		return err
	}
	if of := do(); !errdef.Is(of, errdef.NotFound) {
		return of
	}
	return err
}
