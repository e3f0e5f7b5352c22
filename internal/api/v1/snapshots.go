package v1

import (
	"context"
	"encoding/json"
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
// unknown is an errdef.NotFound with code "snapshot_not_found".
type Snapshots interface {
	// TakeSnapshot is an errdef.Exists where the name is taken.
	TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error)
	// Snapshots returns all snapshots, newest first.
	Snapshots() ([]store.Snapshot, error)
	// Snapshot returns a snapshot by its id or name.
	Snapshot(ref string) (store.Snapshot, error)
	RemoveSnapshot(ctx context.Context, ref, actor string) error
	Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error)
}

// snapshotView is a snapshot as clients see it.
type snapshotView struct {
	ID         string            `json:"id"`
	Name       *string           `json:"name"`
	Sandbox    string            `json:"sandbox" doc:"The sandbox that it was taken of, which may have ended."`
	Generation int64             `json:"generation" doc:"Of the sandbox at that time."`
	Template   string            `json:"template"`
	Alias      *string           `json:"alias" doc:"The template's alias."`
	Mode       lifecycle.Mode    `json:"mode" doc:"memory has processes, memory and files; filesystem has files only, and sandboxes boot from them."`
	CreatedAt  httpapi.Timestamp `json:"createdAt"`
	Key        *string           `json:"key" doc:"The id of the API key that created it; null if unknown."`
	Bytes      int64             `json:"bytes" doc:"What was written for it, or by the pause that it keeps. Other files are shared."`
	FrozenMs   *float64          `json:"frozenMs" doc:"How long the running sandbox was frozen for it; null for one that was paused."`
	Limits     limitsView        `json:"limits"`
}

type snapshotsView struct {
	Snapshots []snapshotView `json:"snapshots"`
}

// childView is one child of a fork, or why there is none.
type childView struct {
	Sandbox *sandboxView    `json:"sandbox" doc:"null if it did not start."`
	Status  int             `json:"status,omitempty" doc:"That the error would have had."`
	Error   json.RawMessage `json:"error,omitempty" doc:"Why it did not start."`
}

type childrenView struct {
	Children []childView `json:"children" doc:"As many as were asked for."`
}

func viewSnapshot(snap store.Snapshot) snapshotView {
	v := snapshotView{
		ID: snap.ID, Name: orNull(snap.Name), Sandbox: snap.Sandbox, Generation: snap.Generation, Template: snap.Config.Template, Alias: orNull(snap.Config.Alias),
		Mode: snap.Checkpoint.Mode, CreatedAt: httpapi.Timestamp(snap.CreatedAt), Key: orNull(snap.Key), Bytes: snap.Bytes, Limits: limitsView(snap.Config.Limits),
	}
	if snap.Frozen > 0 {
		v.FrozenMs = new(float64(snap.Frozen.Microseconds()) / 1000)
	}
	return v
}

func createSnapshot(s *server, c *call) (reply, error) {
	words, err := c.parse(snapshotBody)
	if err != nil {
		return reply{}, err
	}
	req := supervisor.SnapshotRequest{Key: c.key.ID, Actor: c.actor}
	if w, said := words["name"]; said {
		req.Name = w.Value.(string)
	}
	snap, err := s.Snapshots.TakeSnapshot(c.r.Context(), c.sandbox, req)
	return reply{status: http.StatusCreated, body: viewSnapshot(snap)}, err
}

// listSnapshots answers with all snapshots, or with those of one sandbox.
func listSnapshots(s *server, c *call) (reply, error) {
	all, err := s.Snapshots.Snapshots()
	if err != nil {
		return reply{}, err
	}
	all = slices.DeleteFunc(all, func(snap store.Snapshot) bool {
		return !auth.Sees(c.key, snap.Key) || c.sandbox != "" && c.sandbox != snap.Sandbox
	})
	if c.sandbox != "" {
		if _, err := s.Sandboxes.Find(c.r.Context(), c.sandbox); err != nil && len(all) == 0 {
			return reply{}, err
		}
	}
	v := snapshotsView{Snapshots: []snapshotView{}}
	for _, snap := range all {
		v.Snapshots = append(v.Snapshots, viewSnapshot(snap))
	}
	return ok(v)
}

func getSnapshot(s *server, c *call) (reply, error) {
	snap, err := origin.Snapshot(s.Snapshots, c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewSnapshot(snap))
}

func deleteSnapshot(s *server, c *call) (reply, error) {
	snap, err := origin.Snapshot(s.Snapshots, c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, s.Snapshots.RemoveSnapshot(c.r.Context(), snap.ID, c.actor)
}

func fork(s *server, c *call) (reply, error) {
	words, err := c.parse(forkBody)
	if err != nil {
		return reply{}, err
	}
	req := supervisor.ForkRequest{Count: 1, Key: c.key.ID, Actor: c.actor}
	if w, said := words["count"]; said {
		req.Count = w.Value.(int)
	}
	if w, said := words["timeoutSeconds"]; said {
		req.Timeout = new(w.Value.(time.Duration))
	}
	children, err := s.Snapshots.Fork(c.r.Context(), c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	v := childrenView{Children: []childView{}}
	for _, child := range children {
		if child.Err != nil {
			res := s.failed(c, child.Err)
			v.Children = append(v.Children, childView{Status: res.Status, Error: errorOf(res.Body)})
			continue
		}
		v.Children = append(v.Children, childView{Sandbox: new(s.viewWithTokens(c, child.Sandbox))})
	}
	return reply{status: http.StatusCreated, body: v}, nil
}
