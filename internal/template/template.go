// Package template provides what a sandbox starts from: named sets of
// immutable trees. The one template that exists on every machine, with no
// network, is "base": the host's own system, read-only and filtered.
//
// A template's id is derived from its content, so that a sandbox keeps the one
// it started from when a newer one appears. The package knows nothing of
// sandboxes.
package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/tree"
)

// AgentPath is where every template has the agent.
const AgentPath = "/usr/lib/drowse/agent"

// Template is what a sandbox starts from.
type Template struct {
	ID    string       `json:"id"`
	Alias string       `json:"alias"`
	Trees []layer.Tree `json:"trees"`

	// Image is what the template was made of; nil for the host's system.
	Image *image.Image `json:"image,omitempty"`
	User  string       `json:"user,omitempty"` // as whom commands run; empty for "user"

	// Agent is where AgentPath leads; empty where no link is on the way.
	Agent string `json:"agent,omitempty"`
}

// User is as whom commands run in a sandbox unless another is asked for.
const User = "user"

// DefaultUser returns as whom commands run that do not say.
func (t Template) DefaultUser() string {
	if t.User != "" {
		return t.User
	}
	return User
}

// Workdir returns where commands run that do not say; empty for the user's home.
func (t Template) Workdir() string {
	if t.Image == nil || t.Image.Config.WorkingDir == "/" {
		return ""
	}
	return t.Image.Config.WorkingDir
}

// Env returns the variables of an image, with those that a sandbox has of its own
// over them. Whose home it is depends on the user.
func (t Template) Env(own map[string]string) map[string]string {
	if t.Image == nil {
		return own
	}
	env := map[string]string{}
	for _, v := range t.Image.Config.Env {
		name, value, ok := strings.Cut(v, "=")
		if ok && name != "" && name != "HOME" && name != "USER" && name != "LOGNAME" && !strings.ContainsRune(v, 0) {
			env[name] = value
		}
	}
	maps.Copy(env, own)
	return env
}

// Digest returns what pins the image that the template was made of; empty for the
// host's system.
func (t Template) Digest() string {
	if t.Image == nil {
		return ""
	}
	return t.Image.Digest
}

// Store is a directory of templates.
type Store struct {
	// Check returns an error where there is no room for more on the disk. It is set
	// before anything is fetched.
	Check func() error
	// Later puts a removal off while a backup is being made, which may read templates
	// that nobody uses any more, and reports whether one is. It is set before anything is
	// removed; nil is for no backups, ever.
	Later func(remove func() error) bool

	dir    string
	images *image.Store

	// packages is the root of the host whose packages a base knows. Tests that make
	// many bases have a small one.
	packages string

	agent Agent // zero of a store that makes no templates

	// using is held to read by whoever is about to use a template, and to write by
	// whoever removes one.
	using sync.RWMutex

	mu     sync.Mutex
	alias  map[string]string // to id, of what the host's system is called
	names  map[string]entry  // of images
	making map[string]bool   // templates of images that are being made
	system map[string]*view  // by the directories that it is of

	masks sync.Mutex // held while a mask is made
}

const manifestName = "template.json"

// Open returns the templates in dir.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open templates: %w", err)
	}
	if err := durable.Sync(filepath.Dir(dir)); err != nil {
		return nil, fmt.Errorf("open templates: %w", err)
	}
	s := At(dir)
	return s, s.readNames()
}

// At returns the templates in dir as they are.
func At(dir string) *Store {
	s := &Store{
		dir: dir, images: image.At(filepath.Join(dir, ociDir), image.DefaultLimits),
		packages: "/", alias: map[string]string{}, making: map[string]bool{}, system: map[string]*view{},
	}
	s.images.Check = func() error {
		if s.Check == nil {
			return nil
		}
		return s.Check()
	}
	return s
}

// Resolve returns the template with the given id, name, reference to an image or
// digest of an image, or an errdef.NotFound with code "template_not_found".
func (s *Store) Resolve(name string) (Template, error) {
	ref := strings.ToLower(strings.TrimSpace(name))
	id, alias := s.lookup(ref)
	if id == "" || len(id) > mostID || strings.ContainsAny(id, "/.:\x00") { // no file is called so
		return Template{}, notFound(name)
	}
	t, err := s.read(id)
	if errors.Is(err, fs.ErrNotExist) {
		return Template{}, notFound(name)
	}
	if err != nil {
		return Template{}, fmt.Errorf("read template %s: %w", name, err)
	}
	if alias != "" {
		t.Alias = alias
	}
	return t, nil
}

// mostID is how long the name of a file may be.
const mostID = 255

// lookup returns the id that a reference stands for, and what the template is
// called then; empty for its own name.
func (s *Store) lookup(ref string) (id, alias string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.names[ref]; ok {
		return s.imageID(e.Image.Digest), ref
	}
	if of, ok := s.alias[ref]; ok {
		if ref == Host {
			alias = Host
		}
		return of, alias
	}
	if full, err := image.Reference(ref); err == nil {
		for _, name := range slices.Sorted(maps.Keys(s.names)) {
			if img := s.names[name].Image; img.Ref == full || img.Source == full || img.Digest == ref || s.imageID(img.Digest) == ref {
				return s.imageID(img.Digest), name
			}
		}
	}
	return ref, ""
}

// read reads a template by its id.
func (s *Store) read(id string) (t Template, err error) {
	data, err := os.ReadFile(filepath.Join(s.dir, id, manifestName))
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	for i, tree := range t.Trees {
		t.Trees[i].Shared = s.shared(tree)
		t.Trees[i].Fixed = t.fixed(tree)
	}
	return t, err
}

// AgentAt returns where the agent is, without links on the way to it.
func (t Template) AgentAt() string {
	if t.Agent != "" {
		return t.Agent
	}
	return AgentPath
}

// fixed returns the directory of the agent in the tree that has it. A sandbox must
// not replace what boots it after a pause of the file system. The agent is in the
// uppermost directory, which the server has made: those of an image have what
// links its maker liked.
func (t Template) fixed(tree layer.Tree) []layer.Fixed {
	inside, ok := strings.CutPrefix(path.Dir(t.AgentAt()), strings.TrimSuffix(tree.Path, "/")+"/")
	if !ok || len(tree.Lowers) == 0 {
		return nil
	}
	source := filepath.Join(tree.Lowers[0], inside)
	if !exists(filepath.Join(source, path.Base(AgentPath))) {
		return nil
	}
	return []layer.Fixed{{Path: inside, Source: source}}
}

func notFound(name string) error {
	return errdef.New(errdef.NotFound, "template_not_found", "template '%s' not found", name).
		WithRemedy("drowse template ls lists what there is; drowse template pull fetches an image")
}

// MadeAt returns when a template was made; zero if that is not known.
func (s *Store) MadeAt(id string) time.Time {
	info, err := os.Stat(filepath.Join(s.dir, id, manifestName))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime().UTC()
}

// Dir returns the directory of a template.
func (s *Store) Dir(id string) string { return filepath.Join(s.dir, id) }

// OldBases returns the builds of "base" that are no longer current, and what is
// left of unfinished ones, unless used reports them as used. Where none has
// been built yet, it is not known which is current: all that are finished may be.
func (s *Store) OldBases(used func(id string) bool) ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	current := map[string]bool{}
	for _, id := range s.alias {
		current[id] = true
	}
	var old []string
	for _, e := range entries {
		name := e.Name()
		unfinished := strings.HasPrefix(name, unfinishedBase)
		replaced := strings.HasPrefix(name, "base") && len(current) > 0 && !current[name] && !used(name)
		if unfinished || replaced {
			old = append(old, name)
		}
	}
	return old, nil
}

// RemoveBase deletes what OldBases has returned.
func (s *Store) RemoveBase(id string) error {
	if err := tree.Remove(s.Dir(id)); err != nil {
		return fmt.Errorf("remove template %s: %w", id, err)
	}
	return nil
}

// unfinishedBase begins the names of bases that are being built.
const unfinishedBase = ".base-"
