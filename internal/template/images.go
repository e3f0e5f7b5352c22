package template

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Host is the name of the template that is the host's own system. It is also
// what "base" means until the operator has chosen another.
const Host = "host"

const baseName = "base"

// Names below the directory of templates.
const (
	ociDir          = "oci"        // the layers of images
	namesName       = "names.json" // what the names stand for
	imagePrefix     = "img"        // begins the ids of templates of images
	unfinishedImage = ".img-"      // begins the names of those that are being made
)

// entry is what a name stands for.
type entry struct {
	Image  image.Image `json:"image"`
	MadeAt time.Time   `json:"madeAt"`
}

// namesFile is the form of what the names stand for on disk.
type namesFile struct {
	Version int              `json:"version"`
	Names   map[string]entry `json:"names"`
}

// nameForm is what a template can be called: an alias, in a namespace or not,
// with a tag or not.
var nameForm = lazyregexp.New(`^(?:[a-z0-9_-]{1,64}/)?[a-z0-9_-]{1,64}(?::[a-z0-9_.-]{1,64})?$`)

// idForm is what templates call themselves.
var idForm = lazyregexp.New(`^(?:base|img)[0-9a-f]{16,}$`)

// CheckName returns an errdef.Invalid with code "template_name_invalid" for what no
// template can be called.
func CheckName(name string) error {
	if name == Host || idForm.MatchString(name) || !nameForm.MatchString(name) {
		return errdef.New(errdef.Invalid, "template_name_invalid", "a template cannot be called %.100q", name).
			WithRemedy("use lower-case letters, digits, - and _, with a tag after a colon if you like, such as py:3.12")
	}
	return nil
}

// NameFor returns what a template of an image is called if nobody says: the last
// part of its repository, with its tag.
func NameFor(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	repo, tag, _ := strings.Cut(path.Base(ref), ":")
	repo = strings.ReplaceAll(strings.ToLower(repo), ".", "-")
	if tag == "" || tag == "latest" {
		return repo
	}
	return repo + ":" + strings.ToLower(tag)
}

// Request is an image that is to become a template.
type Request struct {
	Ref      string       // to pull; empty to load Archive
	Login    *image.Login // for the pull; nil for the server's own credentials
	Archive  io.Reader    // of docker save, or of an OCI image layout
	Name     string       // empty for NameFor
	Progress func(image.Progress)
}

// Add makes a template of an image and gives it a name, which it takes from the
// template that has it.
func (s *Store) Add(ctx context.Context, req Request) (t Template, err error) {
	if req.Name != "" {
		if err := CheckName(req.Name); err != nil {
			return t, err
		}
	}
	keep := func(img image.Image) error {
		name := req.Name
		if name == "" {
			name = NameFor(img.Ref)
		}
		if img.Ref == "" && req.Name == "" {
			return errdef.New(errdef.Invalid, "template_name_invalid", "the archive does not say what its image is called").
				WithRemedy("give the template a name with --name")
		}
		if err := CheckName(name); err != nil {
			return err
		}
		s.using.RLock() // until it has its name, it looks like garbage
		defer s.using.RUnlock()
		if t, err = s.finish(img); err != nil {
			return fmt.Errorf("make template %s: %w", name, err)
		}
		t.Alias = name
		return s.setName(name, &entry{Image: img, MadeAt: time.Now().UTC().Truncate(time.Microsecond)})
	}
	if req.Archive != nil {
		err = s.images.Load(ctx, req.Archive, req.Progress, keep)
	} else {
		err = s.images.Pull(ctx, req.Ref, req.Login, req.Progress, keep)
	}
	return t, err
}

// setName gives a name a meaning, or none, durably.
func (s *Store) setName(name string, e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := maps.Clone(s.names)
	if e == nil {
		delete(names, name)
	} else {
		names[name] = *e
	}
	data, err := json.Marshal(namesFile{Version: 1, Names: names})
	if err != nil {
		return err
	}
	at := filepath.Join(s.dir, namesName)
	err = durable.Replace(at, data, 0o600)
	if has, _ := os.ReadFile(at); bytes.Equal(has, data) { // in place, durable or not
		s.names = names
	}
	if err != nil {
		return fmt.Errorf("name template %s: %w", name, err)
	}
	return nil
}

// readNames reads what the names stand for, unless that is known.
func (s *Store) readNames() error {
	if s.named() != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(s.dir, namesName))
	f := namesFile{Version: 1}
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{\"version\":1}"), nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && f.Version != 1 {
		err = fmt.Errorf("it is of version %d, and this server reads 1", f.Version)
	}
	if err != nil {
		return fmt.Errorf("read names of templates: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names = f.Names; s.names == nil {
		s.names = map[string]entry{}
	}
	return nil
}

// Refresh makes the templates of all images that have a name for the agent of
// this server, which may be another than the one of the server before. One that
// cannot be made, as when its layers are gone, keeps no other from being made.
func (s *Store) Refresh() error {
	var errs []error
	for name, e := range s.named() {
		if _, err := s.finish(e.Image); err != nil {
			errs = append(errs, fmt.Errorf("make template %s of %s: %w", name, e.Image.Digest, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) named() map[string]entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.names)
}

// Set makes a name mean what another one does, which is the name or id of a
// template, or Host.
func (s *Store) Set(name, as string) (Template, error) {
	name = strings.ToLower(strings.TrimSpace(name))
	_, release, err := s.Use(as)
	if err != nil {
		return Template{}, err
	}
	defer release()
	t, err := s.Resolve(as)
	if err != nil {
		return t, err
	}
	if err := CheckName(name); err != nil {
		return t, err
	}
	var e *entry
	if t.Image != nil {
		e = &entry{Image: *t.Image, MadeAt: time.Now().UTC().Truncate(time.Microsecond)}
	} else if name != baseName && name != codeInterpreter {
		return t, errdef.New(errdef.Invalid, "template_name_invalid", "the host's system is called %s, and only %s and %s can mean it too", Host, baseName, codeInterpreter).
			WithRemedy("name a template of an image instead, or use %s itself", Host)
	}
	if err := s.setName(name, e); err != nil {
		return t, err
	}
	return s.Resolve(name)
}

// List returns all templates that have a name, by name, and the host's system.
func (s *Store) List() ([]Template, error) {
	names := s.named()
	refs := slices.Sorted(maps.Keys(names))
	refs = append(refs, Host)
	for _, name := range []string{baseName, codeInterpreter} {
		if _, own := names[name]; !own {
			refs = append(refs, name)
		}
	}
	var list []Template
	for _, name := range refs {
		t, err := s.Resolve(name)
		if err != nil {
			if errdef.Is(err, errdef.NotFound) && names[name].Image.Digest == "" {
				continue // a server without a base
			}
			return nil, err
		}
		t.Alias = name
		list = append(list, t)
	}
	return list, nil
}

// Use resolves a reference, and keeps the template from being removed until
// release is called. By then whoever uses it must be known to be a user.
func (s *Store) Use(ref string) (t Template, release func(), err error) {
	s.using.RLock()
	if t, err = s.Resolve(ref); err != nil {
		s.using.RUnlock()
		return t, func() {}, err
	}
	return t, s.using.RUnlock, nil
}

// Remove takes a name away. A template that has no other is removed, with the
// layers that no other image has. One that users returns sandboxes for is in
// use: nothing changes then.
func (s *Store) Remove(ref string, users func(id string) []string) error {
	if err := s.forget(strings.ToLower(strings.TrimSpace(ref)), users); err != nil {
		return err
	}
	collect := func() error { return s.collect(func(id string) bool { return len(users(id)) > 0 }) }
	if s.Later != nil && s.Later(collect) {
		return nil
	}
	return collect()
}

// forget takes a name away, or all of a template that is called by its id.
func (s *Store) forget(ref string, users func(id string) []string) error {
	s.using.Lock()
	defer s.using.Unlock()
	t, err := s.Resolve(ref)
	if err != nil {
		return err
	}
	if t.Image == nil {
		return errdef.New(errdef.Conflict, "template_is_built_in", "%s is the host's own system, which every server has", ref).
			WithRemedy("to give the name another meaning, use drowse template set")
	}
	var of []string
	for name, e := range s.named() {
		if e.Image.Digest == t.Image.Digest {
			of = append(of, name)
		}
	}
	slices.Sort(of)
	gone := of
	if slices.Contains(of, ref) {
		gone = []string{ref}
	}
	if in := users(t.ID); len(gone) == len(of) && len(in) > 0 {
		return inUse(ref, in)
	}
	for _, name := range gone {
		if err := s.setName(name, nil); err != nil {
			return err
		}
	}
	return nil
}

// inUse names a few of the sandboxes of a template.
func inUse(ref string, sandboxes []string) error {
	const shown = 3
	slices.Sort(sandboxes)
	list := strings.Join(sandboxes[:min(shown, len(sandboxes))], ", ")
	if more := len(sandboxes) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return errdef.New(errdef.Conflict, "template_in_use", "template %s is what %s started from", ref, list).
		WithRemedy("end these sandboxes first")
}

// Garbage is something of an image that nothing needs.
type Garbage struct {
	ID, Path, Why string
	Fresh         bool // it may be of an image that is to be fetched again soon
}

// Garbage returns the templates of images that have no name and are not used,
// layers that no template needs, and what unfinished work has left.
func (s *Store) Garbage(used func(id string) bool) ([]Garbage, error) {
	if err := s.readNames(); err != nil {
		return nil, err
	}
	var found []Garbage
	dirs, err := s.imageDirs()
	if err != nil {
		return nil, err
	}
	current := s.currentImages()
	for _, id := range dirs {
		switch {
		case strings.HasPrefix(id, unfinishedImage):
			found = append(found, Garbage{ID: id, Path: s.Dir(id), Why: "its making did not come to its end"})
		case !current[id] && !used(id):
			found = append(found, Garbage{ID: id, Path: s.Dir(id), Why: "no name stands for it and no sandbox uses it"})
		}
	}
	needed, err := s.neededLayers(func(id string) bool { return current[id] || used(id) })
	if err != nil {
		return nil, err
	}
	layers, err := s.images.Layers()
	if err != nil {
		return nil, err
	}
	for _, id := range layers {
		if !needed[id] {
			found = append(found, Garbage{
				ID: id, Path: s.images.LayerDir(id), Fresh: true,
				Why: "no template has this layer: its image was removed, or was not fetched to its end",
			})
		}
	}
	unfinished, err := s.images.Unfinished()
	for _, path := range unfinished {
		found = append(found, Garbage{ID: filepath.Base(path), Path: path, Why: "an image was being fetched or removed when the server ended"})
	}
	return found, err
}

// neededLayers returns the layers of all images that have a name, and of the
// templates that count.
func (s *Store) neededLayers(counts func(id string) bool) (map[string]bool, error) {
	needed := map[string]bool{}
	dirs, err := s.imageDirs()
	if err != nil {
		return nil, err
	}
	for _, id := range dirs {
		if strings.HasPrefix(id, unfinishedImage) || !counts(id) {
			continue
		}
		t, err := s.read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // half removed
		}
		if err != nil {
			return nil, fmt.Errorf("read template %s: %w", id, err)
		}
		for _, l := range t.layers() {
			needed[l] = true
		}
	}
	for _, e := range s.named() {
		for _, l := range e.Image.Layers {
			needed[l.ID] = true
		}
	}
	return needed, nil
}

// layers returns the ids of the layers of a template of an image.
func (t Template) layers() (ids []string) {
	if t.Image != nil {
		for _, l := range t.Image.Layers {
			ids = append(ids, l.ID)
		}
	}
	return ids
}

// currentImages returns the ids of the templates that a name stands for. Where
// the agent is not known, all of the image are.
func (s *Store) currentImages() map[string]bool {
	current := map[string]bool{}
	digests := map[string]bool{}
	for _, e := range s.named() {
		digests[e.Image.Digest] = true
		current[s.imageID(e.Image.Digest)] = true
	}
	if s.agent.Sum == "" {
		dirs, _ := s.imageDirs()
		for _, id := range dirs {
			if t, err := s.read(id); err == nil && t.Image != nil && digests[t.Image.Digest] {
				current[id] = true
			}
		}
	}
	return current
}

// imageDirs returns the names of all templates of images, finished or not.
func (s *Store) imageDirs() (ids []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, imagePrefix) || strings.HasPrefix(name, unfinishedImage) && !s.making[name] {
			ids = append(ids, name)
		}
	}
	return ids, nil
}

// RemoveGarbage removes what Garbage has returned, unless it is needed by now: a
// layer stays for as long as any template has it.
func (s *Store) RemoveGarbage(g Garbage) error {
	return s.removeGarbage(g, func(string) bool { return false })
}

func (s *Store) removeGarbage(g Garbage, used func(id string) bool) error {
	switch {
	case strings.HasPrefix(g.Path, filepath.Join(s.dir, ociDir, "staging")+"/"):
		return s.images.RemoveUnfinished(g.Path)
	case strings.HasPrefix(g.Path, filepath.Join(s.dir, ociDir)+"/"):
		return s.images.Remove(g.ID, func() (needed bool, err error) {
			all, err := s.neededLayers(func(string) bool { return true })
			return all[g.ID], err
		})
	}
	if free, err := s.retire(g, used); !free || err != nil {
		return err
	}
	return tree.Remove(g.Path)
}

// retire makes a template one that nobody can begin to use, unless somebody does:
// half a template must not be taken for one.
func (s *Store) retire(g Garbage, used func(id string) bool) (free bool, err error) {
	s.using.Lock()
	defer s.using.Unlock()
	if s.currentImages()[g.ID] || used(g.ID) {
		return false, nil
	}
	return true, gone(os.Remove(filepath.Join(g.Path, manifestName)))
}

// collect removes what Garbage finds.
func (s *Store) collect(used func(id string) bool) error {
	// A template keeps its layers, so that they are garbage only after it.
	for range 2 {
		list, err := s.Garbage(used)
		if err != nil {
			return err
		}
		for _, g := range list {
			if err := s.removeGarbage(g, used); err != nil {
				return fmt.Errorf("remove %s: %w", g.Path, err)
			}
		}
	}
	return nil
}

// CheckImage returns what is wrong with the files of a template of an image.
func (s *Store) CheckImage(t Template) error {
	for _, tree := range t.Trees {
		for _, dir := range tree.Lowers {
			if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
				return fmt.Errorf("its layer %s is not there", dir)
			}
		}
	}
	for _, id := range t.layers() {
		if _, err := s.images.Layer(id); err != nil {
			return err
		}
	}
	return nil
}
