package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
)

// template is one in the form that survives.
type template struct {
	id, key, name string
	owner         string
	rev           int64
	builds        []store.Build
	data          []byte
}

// PutTemplate implements store.Store.
func (s *Store) PutTemplate(_ context.Context, t store.Template) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	return s.putTemplate(t)
}

// putTemplate is PutTemplate with the lock.
func (s *Store) putTemplate(t store.Template) error {
	t = t.Copy()
	data, err := encode(t)
	if err != nil {
		return fmt.Errorf("store template %s: %w", t.Name, err)
	}
	has, known := s.d.built[t.ID]
	switch {
	case t.Rev > 0 && !known:
		return store.ErrTemplateNotFound(t.ID)
	case t.Rev > 0 && has.owner != s.server:
		return s.own("template", t.ID, has.owner)
	case t.Rev > 0 && (has.rev != t.Rev || has.key != t.Key || has.name != t.Name):
		return store.ErrTemplateChanged(t)
	case t.Rev == 0:
		if err := s.d.freeForTemplate(t); err != nil {
			return err
		}
	}
	if err := s.d.freeForBuilds(t); err != nil {
		return err
	}
	s.d.built[t.ID] = template{t.ID, t.Key, t.Name, s.server, t.Rev + 1, t.Builds, data}
	s.d.changed(store.KindTemplates)
	return nil
}

func (d *Data) freeForTemplate(t store.Template) error {
	for _, snap := range d.snaps {
		if snap.key == t.Key && !snap.ofBuild && store.BaseName(snap.name) == t.Name {
			return store.ErrSnapshotExists(store.Snapshot{Name: snap.name})
		}
	}
	of := 0
	for _, x := range d.built {
		if x.id == t.ID || x.key == t.Key && x.name == t.Name {
			return store.ErrTemplateExists(t)
		}
		if x.key == t.Key {
			of++
		}
	}
	if of >= store.MostTemplates {
		return store.ErrTooManyTemplates()
	}
	return nil
}

// freeForBuilds judges the builds that a template has and had not before.
func (d *Data) freeForBuilds(t store.Template) error {
	var others []store.Build // of the key
	ids := map[string]bool{}
	for _, x := range d.built {
		for _, b := range x.builds {
			if x.id == t.ID {
				continue
			}
			ids[b.ID] = true
			if x.key == t.Key {
				others = append(others, b)
			}
		}
	}
	had := d.built[t.ID].builds
	for _, b := range t.Builds {
		if ids[b.ID] {
			return store.ErrBuildExists(b.ID)
		}
		if b.Status.Over() || slices.ContainsFunc(had, func(x store.Build) bool { return x.ID == b.ID }) {
			continue
		}
		open := 0
		for _, x := range slices.Concat(others, t.Builds) {
			if !x.Status.Over() && x.CreatedAt.After(b.CreatedAt.Add(-store.BuildStartWithin)) {
				open++
			}
		}
		if open > store.MostOpenBuilds {
			return store.ErrTooManyBuilds()
		}
	}
	return nil
}

// Templates implements store.Store.
func (s *Store) Templates(context.Context) ([]store.Template, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []store.Template
	for _, one := range s.d.built {
		t, err := one.read()
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b store.Template) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// read returns one as it was stored.
func (x template) read() (store.Template, error) {
	t, err := decode[store.Template](x.data)
	if err != nil {
		return t, fmt.Errorf("read template %s: %w", x.id, err)
	}
	for name, tag := range t.Tags {
		tag.At = tag.At.UTC()
		t.Tags[name] = tag
	}
	t.Rev, t.Owner = x.rev, x.owner
	return t, nil
}

// RemoveTemplate implements store.Store.
func (s *Store) RemoveTemplate(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	has, known := s.d.built[id]
	if !known {
		return store.ErrTemplateNotFound(id)
	}
	if err := s.own("template", id, has.owner); err != nil {
		return err
	}
	delete(s.d.built, id)
	s.d.changed(store.KindTemplates)
	return nil
}

// tagTemplate gives the result of a build to the template that it is named after.
func (w *writer) tagTemplate(result store.Snapshot) error {
	d := w.d
	for id, has := range d.built {
		if result.Config.Build == "" || result.Name == "" || has.key != result.Key || has.name != store.BaseName(result.Name) {
			continue
		}
		t, err := decode[store.Template](has.data)
		if err != nil {
			return fmt.Errorf("read template %s: %w", id, err)
		}
		if !t.Built(result.Config.Build) { // another one, made after that of the build was removed
			continue
		}
		if err := w.own("template", id, has.owner); err != nil {
			return err
		}
		if has.data, err = encode(t.Tagged(result)); err != nil {
			return fmt.Errorf("store template %s: %w", id, err)
		}
		has.rev++
		d.built[id] = has
		d.changed(store.KindTemplates)
	}
	return nil
}

// FreeForSnapshot implements store.Store.
func (s *Store) FreeForSnapshot(_ context.Context, snap store.Snapshot) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.freeForSnapshot(snap)
}

func (d *Data) freeForSnapshot(snap store.Snapshot) error {
	if snap.Name == "" || snap.Config.Build != "" {
		return nil
	}
	base := store.BaseName(snap.Name)
	for _, x := range d.built {
		if x.id == base || x.key == snap.Key && x.name == base {
			return store.ErrNameOfTemplate(base)
		}
	}
	return nil
}
