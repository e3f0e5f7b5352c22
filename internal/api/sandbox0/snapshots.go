package sandbox0

import (
	"net/http"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Snapshots is what the dialect needs of those who keep snapshots. One that is
// unknown is an errdef.NotFound.
type Snapshots = origin.Shelf

type snapshotView struct {
	ID        string             `json:"id"`
	SandboxID string             `json:"sandbox_id"`
	Name      string             `json:"name,omitempty"`
	CreatedAt httpapi.Timestamp  `json:"created_at"`
	ExpiresAt *httpapi.Timestamp `json:"expires_at,omitempty"` // null ends a client of 0.10
}

func viewSnapshot(snap store.Snapshot) snapshotView {
	v := snapshotView{ID: snap.ID, SandboxID: snap.Sandbox, Name: snap.Name, CreatedAt: httpapi.Timestamp(snap.CreatedAt)}
	if !snap.ExpiresAt.IsZero() {
		at := httpapi.Timestamp(snap.ExpiresAt)
		v.ExpiresAt = &at
	}
	return v
}

// createSnapshot keeps the files of a sandbox, as sandbox0's snapshots do.
func createSnapshot(s *server, c *call) (reply, error) {
	req := supervisor.SnapshotRequest{Mode: lifecycle.Filesystem}
	req.Name, _ = said[string](c.words, "name")
	req.ExpiresAt, _ = said[time.Time](c.words, "expires_at")
	snap, err := s.origins.Take(c.r.Context(), s.Snapshots, c.key, c.actor, c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: viewSnapshot(snap)}, nil
}

// listSnapshots lists those of one sandbox, and none that a restore has left.
func listSnapshots(s *server, c *call) (reply, error) {
	every, err := s.Snapshots.Snapshots()
	if err != nil {
		return reply{}, err
	}
	every = slices.DeleteFunc(every, func(snap store.Snapshot) bool {
		return snap.Sandbox != c.sandbox || snap.Undo || !auth.Sees(c.key, snap.Key)
	})
	views := []snapshotView{}
	for _, snap := range every {
		views = append(views, viewSnapshot(snap))
	}
	return ok(map[string]any{"snapshots": views, "count": len(views)})
}

func getSnapshot(s *server, c *call) (reply, error) {
	snap, err := s.origins.Snapshot(c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewSnapshot(snap))
}

func deleteSnapshot(s *server, c *call) (reply, error) {
	snap, err := s.origins.Snapshot(c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	if err := s.Snapshots.RemoveSnapshot(c.r.Context(), snap.ID, c.actor); err != nil {
		return reply{}, err
	}
	return done("deleted")
}

// restore has a paused sandbox go back to one of its snapshots.
func restore(s *server, c *call) (reply, error) {
	ref, _ := said[string](c.words, "snapshot_id")
	snap, err := s.origins.Snapshot(c.key, ref)
	if err != nil {
		return reply{}, err
	}
	if _, err := s.find(c); err != nil {
		return reply{}, err
	}
	sb, _, err := s.Snapshots.Restore(c.r.Context(), c.sandbox, supervisor.RestoreRequest{Snapshot: snap.ID, Only: lifecycle.Paused, Actor: c.actor})
	if err != nil {
		return reply{}, err
	}
	return ok(map[string]string{"sandbox_id": sb.ID, "snapshot_id": snap.ID, "status": statusOf(sb.Record)})
}

// fork answers with a child that sleeps, as sandbox0 has it: nothing of it runs
// until it is resumed or asked for something. Like its source now it has its memory.
func fork(s *server, c *call) (reply, error) {
	if err := checkLives(c.words); err != nil {
		return reply{}, err
	}
	req := supervisor.ForkRequest{Count: 1, Asleep: true, Key: c.key.ID, Actor: c.actor}
	if ttl, was := said[time.Duration](c.words, "config.ttl"); was {
		req.Timeout = &ttl
	}
	if hard, was := said[time.Duration](c.words, "config.hard_ttl"); was {
		req.MaxLifetime = &hard
	}
	children, err := s.Snapshots.Fork(c.r.Context(), c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	child, err := children[0].Sandbox, children[0].Err
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: map[string]any{"source_sandbox_id": c.sandbox, "sandbox": s.detail(c, child)}}, nil
}
