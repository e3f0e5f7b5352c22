package snapshots

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
)

// RefreshSnapshots takes over which snapshots other servers have. What this one has it alone
// changes, but for two things: what it has taken over comes with this, and what others have
// taken over meanwhile goes.
func (s *Shelf) RefreshSnapshots(ctx context.Context) error {
	lost, err := refresh(ctx, s)
	for _, snap := range lost {
		s.o.Log.Warn("another server has taken a snapshot over: what is here of it is removed", "snapshot", snap.ID, "name", snap.Name)
		s.removeOf(snap)
	}
	return err
}

// refresh returns the snapshots that this server had until now.
func refresh(ctx context.Context, s *Shelf) (lost []store.Snapshot, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	list, err := s.o.Store.Snapshots(ctx)
	if err != nil {
		return nil, fmt.Errorf("read snapshots again: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.byID
	s.byID = map[string]store.Snapshot{}
	for _, snap := range list {
		before, known := was[snap.ID]
		had := known && s.o.has(before)
		switch {
		case had && s.o.has(snap):
			s.byID[snap.ID] = before
		case s.o.has(snap):
			add(s, snap)
			s.look()
		case had:
			lost = append(lost, before)
			drop(s, before)
			s.o.Copies.Lost(snap.ID)
			s.byID[snap.ID] = snap
		default:
			s.byID[snap.ID] = snap
		}
	}
	for id, before := range was {
		if _, there := s.byID[id]; !there && s.o.has(before) { // another has removed what it had taken over
			lost = append(lost, before)
			drop(s, before)
			s.o.Copies.Lost(id)
		}
	}
	return lost, nil
}

// add makes a snapshot known that this server has from now on, and drop forgets one. The caller
// holds mu.
func add(s *Shelf, snap store.Snapshot) {
	if had, known := s.byID[snap.ID]; !known || !s.o.has(had) {
		s.o.Slots.HoldKept(snap.Key, snap.DiskMiB())
	}
	s.byID[snap.ID] = snap
	s.o.Copies.Keep(snap)
}

func drop(s *Shelf, snap store.Snapshot) {
	delete(s.byID, snap.ID)
	s.o.Slots.HoldKept(snap.Key, -snap.DiskMiB())
}

// described returns a snapshot with where it is kept. The store knows which of other servers
// have copies.
func (o Options) described(snap store.Snapshot) store.Snapshot {
	is := o.Copies.Describe(snap)
	if !o.has(snap) && is.Durability != "" {
		is.Durability = cmp.Or(snap.Durability, store.Local)
	}
	return is
}

// OwnerOf returns the server that has a snapshot now.
func OwnerOf(ctx context.Context, s *Shelf, id string) (server string, err error) {
	if err := s.again.Now(ctx); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, err := s.find(id)
	return snap.Owner, err
}

// Export returns what reads a snapshot of this server for a copy, until the server stops.
func Export(ctx context.Context, s *Shelf, server context.Context, by moving.Carrier, id string) (*moving.Export, error) {
	snap, err := s.ByID(id)
	if err != nil {
		return nil, err
	}
	done := s.Read(snap.Checkpoint)
	release := sync.OnceFunc(func() {
		done()
		s.removeOf(snap) // if it was removed meanwhile
	})
	return by.Export(ctx, moving.Right{Context: server, Sandbox: moving.OfSnapshot(snap), Release: release})
}
