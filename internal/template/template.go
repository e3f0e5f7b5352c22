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

	mu    sync.Mutex
	alias map[string]string // to id
}

const manifestName = "template.json"

// Open returns the templates in dir.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open templates: %w", err)
	}
	return &Store{dir: dir, alias: map[string]string{}}, nil
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
	return t, nil
}

func notFound(name string) error {
	return errdef.New(errdef.NotFound, "template_not_found", "template '%s' not found", name).
		WithRemedy("this server has the template 'base'")
}

// RemoveOldBases deletes builds of "base" that are no longer current, and what
// is left of unfinished ones, unless used reports them as used.
func (s *Store) RemoveOldBases(used func(id string) bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	current := map[string]bool{}
	for _, id := range s.alias {
		current[id] = true
	}
	for _, e := range entries {
		old := strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), "base")
		if !old || current[e.Name()] || used(e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
			return fmt.Errorf("remove template %s: %w", e.Name(), err)
		}
	}
	return nil
}
