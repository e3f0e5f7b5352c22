package apitest

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
	"github.com/drowse-dev/drowse/internal/template"
)

// Templates are those of a server: the base, and what is added. An image is
// called by its reference; "missing" is not in its registry, and "used" is in use.
type Templates struct {
	fake *Fake // what it fails with
	list []templates.Template
}

// NewTemplates returns the base.
func NewTemplates(f *Fake) *Templates {
	return &Templates{fake: f, list: []templates.Template{{
		ID: "tmplbase", Alias: "base", Names: []string{"base", "host"}, User: "user", MadeAt: Epoch,
		Limits: store.Limits{CPUs: 2, MemoryMiB: 512, DiskMiB: 1024, PIDs: 512},
	}}}
}

func (t *Templates) find(ref string) (int, error) {
	i := slices.IndexFunc(t.list, func(has templates.Template) bool {
		return slices.ContainsFunc(append([]string{has.ID}, has.Names...), func(n string) bool { return strings.EqualFold(n, strings.TrimSpace(ref)) })
	})
	if i < 0 {
		return i, errdef.New(errdef.NotFound, "template_not_found", "template '%s' not found", ref)
	}
	return i, nil
}

// Template returns a template.
func (t *Templates) Template(ref string) (templates.Template, error) {
	err := t.fake.enter()
	defer t.fake.mu.Unlock()
	if err != nil {
		return templates.Template{}, err
	}
	i, err := t.find(ref)
	if err != nil {
		return templates.Template{}, err
	}
	return t.list[i], nil
}

// Templates returns all.
func (t *Templates) Templates() ([]templates.Template, error) {
	err := t.fake.enter()
	defer t.fake.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return slices.Clone(t.list), nil
}

// AddTemplate makes a template of one layer. An archive is what it says.
func (t *Templates) AddTemplate(_ context.Context, req templates.AddRequest) (templates.Template, error) {
	err := t.fake.enter()
	defer t.fake.mu.Unlock()
	if err != nil {
		return templates.Template{}, err
	}
	if req.Archive != nil {
		data, err := io.ReadAll(req.Archive)
		if err != nil {
			return templates.Template{}, err
		}
		req.Ref = string(data)
	}
	if req.Ref == "" {
		return templates.Template{}, errdef.New(errdef.Invalid, "image_reference_invalid", "no image was named")
	}
	if req.Ref == "missing" {
		return templates.Template{}, errdef.New(errdef.NotFound, "image_not_found", "the registry has no %s", req.Ref)
	}
	if req.Name == "" {
		req.Name = req.Ref
	}
	if req.Progress != nil {
		for _, state := range []image.State{image.Fetching, image.Unpacked} {
			req.Progress(image.Progress{Layer: "sha256:1", State: state, Done: 10, Size: 10})
		}
	}
	made := templates.Template{
		ID: "img" + req.Name, Alias: req.Name, Names: []string{req.Name}, User: "user", MadeAt: Epoch,
		Image: &image.Image{Ref: req.Ref, Digest: "sha256:2", Platform: "linux/amd64", Layers: []image.Layer{{Digest: "sha256:1", Bytes: 10, Entries: 1}}},
	}
	t.list = append(t.list, made)
	return made, nil
}

// SetTemplate gives a template a name more.
func (t *Templates) SetTemplate(name, as, _ string) (templates.Template, error) {
	err := t.fake.enter()
	defer t.fake.mu.Unlock()
	if err != nil {
		return templates.Template{}, err
	}
	i, err := t.find(as)
	if err != nil {
		return templates.Template{}, err
	}
	if err := template.CheckName(name); err != nil {
		return templates.Template{}, err
	}
	if t.list[i].Image == nil && name != "base" && name != "code-interpreter-v1" {
		return templates.Template{}, errdef.New(errdef.Invalid, "template_name_invalid", "the host's system cannot be called %s", name)
	}
	for j := range t.list {
		t.list[j].Names = slices.DeleteFunc(slices.Clone(t.list[j].Names), func(n string) bool { return n == name })
	}
	t.list[i].Names = append(t.list[i].Names, name)
	return t.list[i], nil
}

// RemoveTemplate removes a template but "used".
func (t *Templates) RemoveTemplate(ref, _ string) error {
	err := t.fake.enter()
	defer t.fake.mu.Unlock()
	if err != nil {
		return err
	}
	i, err := t.find(ref)
	if err != nil {
		return err
	}
	if t.list[i].Image == nil {
		return errdef.New(errdef.Conflict, "template_is_built_in", "%s is the host's own system", ref)
	}
	if ref == "used" {
		return errdef.New(errdef.Conflict, "template_in_use", "template used is what i0 started from")
	}
	if names := t.list[i].Names; len(names) > 1 && slices.Contains(names, ref) {
		t.list[i].Names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == ref })
		return nil
	}
	t.list = slices.Delete(t.list, i, i+1)
	return nil
}
