package memstore

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// parts is the part of the data with who needs which layers and images: the holders of
// each part, and whether they are snapshots.
type parts map[string]map[string]bool

// Needed implements store.Store.
func (s *Store) Needed(_ context.Context, part, but string) (bool, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for holder := range s.d.parts[part] {
		if holder != but && !s.elsewhere(holder) {
			return true, nil
		}
	}
	return false, nil
}

// elsewhere reports whether another server has the sandbox or the snapshot of an id.
func (s *Store) elsewhere(holder string) bool {
	owner := s.d.boxes[holder].given.Owner
	if i := s.d.snapshot(holder); i >= 0 {
		owner = s.d.snaps[i].owner
	}
	return owner != "" && s.server != "" && owner != s.server
}

// adopt refuses the commit of a record that is to go on from a snapshot that is gone.
func (p parts) adopt(sb store.Sandbox, has []string, entries []lifecycle.Entry) error {
	if !sb.Adopts(entries) {
		return nil
	}
	for _, part := range sb.Parts() {
		if slices.Contains(has, part) {
			continue
		}
		there := false
		for _, snapshot := range p[part] {
			there = there || snapshot
		}
		if !there {
			return store.ErrSnapshotGone(sb.ID)
		}
	}
	return nil
}

func (p parts) hold(holder string, all []string, snapshot bool) {
	for _, part := range all {
		if p[part] == nil {
			p[part] = map[string]bool{}
		}
		p[part][holder] = snapshot
	}
}

func (p parts) drop(holder string, all []string) {
	for _, part := range all {
		if delete(p[part], holder); len(p[part]) == 0 {
			delete(p, part)
		}
	}
}
