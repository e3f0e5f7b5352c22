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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// AgentPath is where every template has the agent.
const AgentPath = "/usr/lib/drowse/agent"

// Template is what a sandbox starts from.
type Template struct {
	ID    string       `json:"id"`
	Alias string       `json:"alias"`
	Trees []layer.Tree `json:"trees"`
}

// Store is a directory of templates.
type Store struct {
	dir string

	mu     sync.Mutex
	alias  map[string]string // to id
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
	return At(dir), nil
}

// At returns the templates in dir as they are.
func At(dir string) *Store {
	return &Store{dir: dir, alias: map[string]string{}, system: map[string]*view{}}
}

// Resolve returns the template with the given id or alias, or an
// errdef.NotFound with code "template_not_found".
func (s *Store) Resolve(name string) (Template, error) {
	id := strings.ToLower(strings.TrimSpace(name))
	s.mu.Lock()
	if of, ok := s.alias[id]; ok {
		id = of
	}
	s.mu.Unlock()
	if id == "" || strings.ContainsAny(id, "/.") {
		return Template{}, notFound(name)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, id, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return Template{}, notFound(name)
	}
	if err != nil {
		return Template{}, fmt.Errorf("read template %s: %w", name, err)
	}
	var t Template
	if err := json.Unmarshal(data, &t); err != nil {
		return Template{}, fmt.Errorf("read template %s: %w", name, err)
	}
	for i, tree := range t.Trees {
		t.Trees[i].Shared = s.shared(tree)
	}
	return t, nil
}

func notFound(name string) error {
	return errdef.New(errdef.NotFound, "template_not_found", "template '%s' not found", name).
		WithRemedy("this server has the template 'base', also called '" + codeInterpreter + "'")
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
	if err := os.RemoveAll(s.Dir(id)); err != nil {
		return fmt.Errorf("remove template %s: %w", id, err)
	}
	return nil
}

// unfinishedBase begins the names of bases that are being built.
const unfinishedBase = ".base-"
