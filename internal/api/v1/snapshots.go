package v1

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// Snapshots is what the dialect needs of those who keep snapshots. One that is
// unknown is an errdef.NotFound with code "snapshot_not_found".
type Snapshots interface {
	origin.Shelf
	// ChangeSnapshot changes how long one is kept.
	ChangeSnapshot(ctx context.Context, id string, c snapshots.Change) (store.Snapshot, error)
}

// snapshotView is a snapshot as clients see it.
type snapshotView struct {
	ID         string             `json:"id"`
	Name       *string            `json:"name"`
	Sandbox    string             `json:"sandbox" doc:"The sandbox that it was taken of, which may have ended."`
	Generation int64              `json:"generation" doc:"Of the sandbox at that time."`
	Template   string             `json:"template"`
	Alias      *string            `json:"alias" doc:"The template's alias."`
	Mode       lifecycle.Mode     `json:"mode" doc:"memory has processes, memory and files; filesystem has files only, and sandboxes boot from them."`
	CreatedAt  httpapi.Timestamp  `json:"createdAt"`
	Key        *string            `json:"key" doc:"The id of the API key that created it; null if unknown."`
	Bytes      int64              `json:"bytes" doc:"What was written for it, or by the pause that it keeps. Other files are shared."`
	FrozenMs   *float64           `json:"frozenMs" doc:"How long the running sandbox was frozen for it; null for one that was paused."`
	Undo       bool               `json:"undo" doc:"It keeps what the sandbox was before it went back to another snapshot, until the next time, or until the sandbox ends."`
	Pinned     bool               `json:"pinned" doc:"It neither expires nor makes room for newer ones."`
	KeepLast   int                `json:"keepLast" doc:"Of how many it is one that are kept of the sandbox; 0 if it is not deleted for newer ones."`
	ExpiresAt  *httpapi.Timestamp `json:"expiresAt" doc:"When it is deleted, unless it is pinned; null for never."`
	Limits     limitsView         `json:"limits"`
	Durability *store.Durability  `json:"durability" doc:"Where it is. local: on the disk of its server alone. replicated: in object storage too, so that another server can go on with it if its own is gone. null without object storage."`
}

// restoredView answers a restore.
type restoredView struct {
	Sandbox sandboxView `json:"sandbox"`
	Undo    *string     `json:"undo" doc:"The id of the snapshot that keeps what the sandbox was before; null if that was discarded."`
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
		ID: snap.ID, Name: orNull(snap.Name), Sandbox: snap.Sandbox, Generation: snap.Generation, Template: snap.Config.TemplateID(), Alias: orNull(snap.Config.TemplateName()),
		Mode: snap.Checkpoint.Mode, CreatedAt: httpapi.Timestamp(snap.CreatedAt), Key: orNull(snap.Key), Bytes: snap.Bytes, Undo: snap.Undo, Pinned: snap.Pinned, KeepLast: snap.KeepLast, ExpiresAt: timeOrNull(snap.ExpiresAt), Limits: limitsView(snap.Config.Limits),
	}
	if snap.Durability != "" {
		v.Durability = &snap.Durability
	}
	if snap.Frozen > 0 {
		v.FrozenMs = new(float64(snap.Frozen.Microseconds()) / 1000)
	}
	return v
}

func createSnapshot(s *server, c *call) (reply, error) {
	var req supervisor.SnapshotRequest
	if w, said := c.words["name"]; said {
		req.Name = w.Value.(string)
	}
	if w, said := c.words["mode"]; said {
		req.Mode = w.Value.(lifecycle.Mode)
	}
	if w, said := c.words["replace"]; said && w.Value.(bool) {
		if req.Name == "" {
			return reply{}, s.ifKnown(c, body.Invalid(`"replace" takes over a name, and "name" is not given`).With("field", "replace").WithRemedy("give the name"))
		}
		req.Replace = req.Name
	}
	if w, said := c.words["pinned"]; said {
		req.Pinned = w.Value.(bool)
	}
	if w, said := c.words["expiresInSeconds"]; said {
		req.ExpiresAt = now().Add(w.Value.(time.Duration))
	}
	if w, said := c.words["keepLast"]; said {
		req.KeepLast = w.Value.(int)
	}
	snap, err := s.origins.Take(c.r.Context(), s.Snapshots, c.key, c.actor, c.sandbox, req)
	return reply{Status: http.StatusCreated, Body: viewSnapshot(snap)}, err
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
	snap, err := s.origins.Snapshot(c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewSnapshot(snap))
}

// changeSnapshot changes how long a snapshot is kept.
func changeSnapshot(s *server, c *call) (reply, error) {
	snap, err := s.origins.Snapshot(c.key, c.params[snapshotParam])
	if err != nil {
		return reply{}, err
	}
	var change snapshots.Change
	if w, said := c.words["pinned"]; said {
		change.Pinned = new(w.Value.(bool))
	}
	if w, said := c.words["expiresInSeconds"]; said {
		change.ExpiresAt = new(time.Time)
		if d := w.Value.(time.Duration); d > 0 {
			*change.ExpiresAt = now().Add(d)
		}
	}
	snap, err = s.Snapshots.ChangeSnapshot(c.r.Context(), snap.ID, change)
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
	return reply{Status: http.StatusNoContent}, s.Snapshots.RemoveSnapshot(c.r.Context(), snap.ID, c.actor)
}

// restore has a sandbox go back to one of its snapshots, which must be said: a body
// without either would undo by mistake.
func restore(s *server, c *call) (reply, error) {
	req := supervisor.RestoreRequest{Actor: c.actor}
	if w, said := c.words["mode"]; said {
		req.Mode = w.Value.(lifecycle.Mode)
	}
	if w, said := c.words["discard"]; said {
		req.Discard = w.Value.(bool)
	}
	undo := false
	if w, said := c.words["undo"]; said {
		undo = w.Value.(bool)
	}
	w, said := c.words["snapshot"]
	if said == undo {
		problem := `neither "snapshot" nor "undo" says what the sandbox is to go back to`
		if undo {
			problem = `"snapshot" and "undo" are both given`
		}
		return reply{}, s.ifKnown(c, body.Invalid("%s", problem).With("field", "undo").
			WithRemedy("give the id or name of one of its snapshots, or undo: true for what it was before the last restore"))
	}
	if said {
		snap, err := s.origins.Snapshot(c.key, w.Value.(string))
		if err != nil {
			return reply{}, s.ifKnown(c, err)
		}
		req.Snapshot = snap.ID
	}
	sb, kept, err := s.Snapshots.Restore(c.r.Context(), c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	return ok(restoredView{Sandbox: s.viewWithTokens(c, sb), Undo: orNull(kept)})
}

func fork(s *server, c *call) (reply, error) {
	req := supervisor.ForkRequest{Count: 1, Key: c.key.ID, Actor: c.actor}
	if w, said := c.words["count"]; said {
		req.Count = w.Value.(int)
	}
	if w, said := c.words["timeoutSeconds"]; said {
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
	return reply{Status: http.StatusCreated, Body: v}, nil
}
