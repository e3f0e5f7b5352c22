// Package templates knows what sandboxes can start from: the host's own system,
// and images that an operator has fetched. A template that a sandbox started from
// is not removed.
package templates

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/putoff"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/template"
)

// Options are what a catalog is made of.
type Options struct {
	Store  *template.Store
	Space  *space.Disk
	Limits store.Limits // of a sandbox that asks for none
	// Users returns the sandboxes that started from a template, by its id.
	Users  func(id string) []string
	PutOff *putoff.Queue // what backups may read
	Log    *slog.Logger
}

// Catalog is all templates.
type Catalog struct{ o Options }

// New returns the templates of a server.
func New(o Options) *Catalog {
	o.Store.Check = func() error { return o.Space.Check(space.Least) }
	o.Store.Later = func(remove func() error) bool { return o.PutOff.Later("", remove) }
	return &Catalog{o}
}

// HasRoom returns an error where the disk has no room for another template.
func (c *Catalog) HasRoom() error { return c.o.Space.Check(space.Least) }

// Template is what sandboxes are made of.
type Template struct {
	ID     string
	Alias  string   // what it was asked for by, or the first of its names
	Names  []string // all its names
	Limits store.Limits
	MadeAt time.Time
	Image  *image.Image // nil for the host's own system
	User   string       // as whom commands run that do not say
}

// Template returns what a reference to a template stands for, or an
// errdef.NotFound with code "template_not_found".
func (c *Catalog) Template(ref string) (Template, error) {
	t, err := c.o.Store.Resolve(ref)
	if err != nil {
		return Template{}, err
	}
	list, err := c.Templates()
	if err != nil {
		return Template{}, err
	}
	out := c.of(t)
	for _, one := range list {
		if one.ID == t.ID {
			out.Names = one.Names
		}
	}
	return out, nil
}

func (c *Catalog) of(t template.Template) Template {
	user := t.User
	if user == "" {
		user = template.User
	}
	return Template{ID: t.ID, Alias: t.Alias, Limits: c.o.Limits, MadeAt: c.o.Store.MadeAt(t.ID), Image: t.Image, User: user}
}

// Templates returns all templates that have a name, each once, by their first
// names.
func (c *Catalog) Templates() ([]Template, error) {
	list, err := c.o.Store.List()
	if err != nil {
		return nil, err
	}
	var all []Template
	at := map[string]int{}
	for _, t := range list {
		i, known := at[t.ID]
		if !known {
			i = len(all)
			at[t.ID] = i
			all = append(all, c.of(t))
		}
		all[i].Names = append(all[i].Names, t.Alias)
		slices.Sort(all[i].Names)
	}
	return all, nil
}

// AddRequest is an image that is to become a template.
type AddRequest struct {
	Ref     string       // a reference, to be pulled; empty to read Archive
	Login   *image.Login // for the pull; nil for the server's own credentials
	Archive io.Reader    // of docker save, or of an OCI image layout
	Name    string       // what it is to be called; empty for what the image is called
	// Progress is told how far the layers are; it may be nil, and is called by
	// several goroutines at once.
	Progress func(image.Progress)
	Actor    string
}

// AddTemplate makes a template of an image. Layers that are here already are not
// fetched.
func (c *Catalog) AddTemplate(ctx context.Context, req AddRequest) (Template, error) {
	if err := c.o.Space.Check(space.Least); err != nil {
		return Template{}, err
	}
	if req.Archive != nil {
		req.Archive = c.o.Space.Within(ctx, req.Archive)
	} else if req.Ref == "" {
		return Template{}, errdef.New(errdef.Invalid, "image_reference_invalid", "no image was named")
	}
	began := time.Now()
	t, err := c.o.Store.Add(ctx, template.Request{Ref: req.Ref, Login: req.Login, Archive: req.Archive, Name: req.Name, Progress: req.Progress})
	c.o.Log.Info("image fetched", "ref", req.Ref, "name", t.Alias, "template", t.ID, "actor", req.Actor, "dur", time.Since(began), "err", err)
	if err != nil {
		return Template{}, err
	}
	return c.Template(t.Alias)
}

// SetTemplate makes a name stand for a template, which is called by another name
// or its id. The host's system gives "base" back what it means by itself.
func (c *Catalog) SetTemplate(name, as, actor string) (Template, error) {
	t, err := c.o.Store.Set(name, as)
	if err != nil {
		return Template{}, fmt.Errorf("set template %s: %w", name, err)
	}
	c.o.Log.Info("template named", "name", name, "template", t.ID, "actor", actor)
	return c.Template(name)
}

// RemoveTemplate takes a name away, and removes the template if that was its last
// one. One that sandboxes started from is an errdef.Conflict with code
// "template_in_use".
func (c *Catalog) RemoveTemplate(ref, actor string) error {
	if err := c.o.Store.Remove(ref, c.o.Users); err != nil {
		return err
	}
	c.o.Log.Info("template removed", "name", ref, "actor", actor)
	return nil
}
