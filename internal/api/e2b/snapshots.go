package e2b

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Snapshots is what sandboxes can start from besides templates. One that is
// unknown is an errdef.NotFound with code "snapshot_not_found".
type Snapshots = origin.Shelf

// snapshotView is a snapshot as clients see it: a template with a tag.
type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// forkView is one child of a fork, or why there is none.
type forkView struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *failure     `json:"error,omitempty"`
}

// cloneView answers a clone, which is Novita's fork.
type cloneView struct {
	Sandboxes          []clonedView `json:"sandboxes"`
	SnapshotTemplateID *string      `json:"snapshotTemplateId"` // none is kept
}

// clonedView is a clone. Clients add the id of a client to that of the sandbox if
// they are told one, also where the data plane is asked.
type clonedView struct {
	sandboxView
	ClientID *string `json:"clientID,omitempty"`
}

// snapshotName is a name that clients can send as that of a template. Those that
// only the native API gives are shown by id.
var snapshotName = lazyregexp.New(`^[a-z0-9_-]+(:[a-z0-9_.-]+)?$`)

// viewOfSnapshot shows a snapshot to a key. Its id is its name, as E2B has it, where
// that name means this snapshot to the key.
func viewOfSnapshot(s *server, key store.Key, snap store.Snapshot) (snapshotView, error) {
	v := snapshotView{SnapshotID: snap.ID + origin.DefaultTag, Names: []string{}}
	if snap.Name == "" {
		return v, nil
	}
	v.Names = append(v.Names, snap.Name)
	if snap.Key != key.ID || !snapshotName.MatchString(snap.Name) {
		return v, nil
	}
	taken, err := s.origins.IsTemplate(snap.Name)
	if !taken {
		v.SnapshotID = tagged(snap.Name)
	}
	return v, err
}

// tagged returns a name with its tag.
func tagged(name string) string {
	if strings.Contains(name, ":") {
		return name
	}
	return name + origin.DefaultTag
}

// createSnapshot takes a snapshot. A name that is in use passes to it.
func createSnapshot(s *server, c *call) (reply, error) {
	var req supervisor.SnapshotRequest
	req.Mode, _ = said[lifecycle.Mode](c.words, "mode")
	if name, _ := said[string](c.words, "name"); name != "" {
		req.Name = origin.Ref(name)
		if !snapshotName.MatchString(req.Name) {
			return reply{}, s.ifKnown(c, badRequest(`"name" must be letters, digits, _ and -, with or without a tag as in name:tag, not %.200q; a namespace can only be %q`, name, origin.Namespace))
		}
		req.Replace = req.Name
	}
	snap, err := s.origins.Take(c.r.Context(), s.Snapshots, c.key, c.actor, c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	v, err := viewOfSnapshot(s, c.key, snap)
	return reply{Status: http.StatusCreated, Body: v}, err
}

// listSnapshots answers with a page of the snapshots, newest first.
func listSnapshots(s *server, c *call) (reply, error) {
	limit, err := pageLimit(c.query)
	if err != nil {
		return reply{}, err
	}
	var after *cursor
	if token := c.query.Get("nextToken"); token != "" {
		at, err := parseToken(token, descending)
		if err != nil {
			return reply{}, err
		}
		after = &at
	}
	sandbox := c.query.Get("sandboxID")
	if id, err := parseSandboxID(sandbox); err == nil {
		sandbox = id
	}
	all, err := s.Snapshots.Snapshots()
	if err != nil {
		return reply{}, err
	}
	views, header := []snapshotView{}, http.Header{}
	var last cursor
	for _, snap := range all {
		at := cursor{order: descending, startedAt: micros(snap.CreatedAt), id: snap.ID}
		if after != nil && at.compare(*after) <= 0 || !auth.Sees(c.key, snap.Key) ||
			sandbox != "" && sandbox != snap.Sandbox || !isCalled(snap, c.query.Get("name")) {
			continue
		}
		if len(views) == limit {
			header.Set("X-Next-Token", last.token())
			break
		}
		v, err := viewOfSnapshot(s, c.key, snap)
		if err != nil {
			return reply{}, err
		}
		views, last = append(views, v), at
	}
	return reply{Status: http.StatusOK, Header: header, Body: views}, nil
}

// isCalled reports whether a snapshot passes a filter: its id, its name, or its
// name without the tag.
func isCalled(snap store.Snapshot, filter string) bool {
	text := origin.Ref(filter)
	untagged, _, _ := strings.Cut(snap.Name, ":")
	return text == "" || text == snap.ID || snap.Name != "" && (text == snap.Name || text == untagged)
}

// deleteTemplate deletes a snapshot, or a template that was built of steps.
// Templates of images are not made by this dialect, and not deleted by it.
func deleteTemplate(s *server, c *call) (reply, error) {
	ref := origin.Ref(c.params["templateID"])
	built, tag, err := s.origins.Built(c.key, ref)
	if err == nil && origin.Named(c.params["templateID"], tag) == build.DefaultTag {
		return noContent, s.Builds.Untag(c.r.Context(), built.ID, []string{build.DefaultTag}) // which refuses it
	}
	if err == nil && tag == "" {
		return noContent, s.Builds.Delete(c.r.Context(), built.ID)
	}
	if is, err := s.origins.IsTemplate(ref); is {
		return s.refuse(c)
	} else if err != nil {
		return reply{}, err
	}
	snap, err := s.origins.Snapshot(c.key, ref)
	if err != nil {
		return reply{}, err
	}
	if snap.Config.Build != "" {
		return untagSnapshot(s, c, snap)
	}
	return noContent, s.Snapshots.RemoveSnapshot(c.r.Context(), snap.ID, c.actor)
}

// untagSnapshot takes the tag away that a result of a build is.
func untagSnapshot(s *server, c *call, snap store.Snapshot) (reply, error) {
	name, tag, _ := strings.Cut(snap.Name, ":")
	t, err := s.Builds.Template(snap.Key, name)
	if err != nil {
		return reply{}, err
	}
	return noContent, s.Builds.Untag(c.r.Context(), t.ID, []string{orDefault(tag)})
}

func forkV1(s *server, c *call) (reply, error) { return fork(s, c, defaultTimeoutV1) }

func forkV2(s *server, c *call) (reply, error) { return fork(s, c, defaultTimeoutV2) }

// fork answers with a result for each child.
func fork(s *server, c *call, otherwise time.Duration) (reply, error) {
	timeout, err := s.startsWith(c.words, s.defaultTimeout(otherwise))
	if err != nil {
		return reply{}, s.ifKnown(c, err)
	}
	if _, err := s.find(c); err != nil {
		return reply{}, err
	}
	children, err := children(s, c, c.words, supervisor.ForkRequest{Timeout: &timeout, Only: lifecycle.Running})
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == codeNotRunning {
		return reply{}, fail(http.StatusConflict, e.Code, "%s: resume it first, then fork it", e.Message)
	}
	if err != nil {
		return reply{}, err
	}
	views := []forkView{}
	for _, child := range children {
		if child.Err != nil {
			views = append(views, forkView{Error: c.translate(child.Err)})
			continue
		}
		views = append(views, forkView{Sandbox: new(s.sandboxView(c, child.Sandbox))})
	}
	return reply{Status: http.StatusCreated, Body: views}, nil
}

// children starts as many as the body says, and as the dialect has it.
func children(s *server, c *call, words map[string]body.Said, req supervisor.ForkRequest) ([]supervisor.Forked, error) {
	req.Count, req.Key, req.Actor = 1, c.key.ID, c.actor
	if n, given := said[int](words, "count"); given {
		req.Count = n
	}
	if req.Timeout != nil {
		req.Timeout = new(max(*req.Timeout, 0)) // of settings, zero is no limit
	}
	return s.Snapshots.Fork(c.r.Context(), c.sandbox, req)
}

// clone is Novita's fork: of what sleeps too, with the timeout of the sandbox
// where none is said. It answers with those that have started; "strict" wants all
// or none.
func clone(s *server, c *call) (reply, error) {
	var req supervisor.ForkRequest
	req.All, _ = said[bool](c.words, "strict")
	if _, given := c.words["timeoutSeconds"]; given {
		d, err := s.startsWith(c.words, 0)
		if err != nil {
			return reply{}, s.ifKnown(c, err)
		}
		req.Timeout = &d
	}
	children, err := children(s, c, c.words, req)
	if err != nil {
		return reply{}, err
	}
	v := cloneView{Sandboxes: []clonedView{}}
	for _, child := range children {
		if child.Err != nil {
			err = child.Err
			continue
		}
		v.Sandboxes = append(v.Sandboxes, clonedView{sandboxView: s.sandboxView(c, child.Sandbox)})
	}
	if len(v.Sandboxes) == 0 {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: v}, nil
}

// rolledBackView answers a rollback.
type rolledBackView struct {
	SandboxID  string `json:"sandboxID"`
	SnapshotID string `json:"snapshotID"`
	Status     string `json:"status"`
}

// rollback takes a sandbox back to one of its snapshots. An unknown one is no 404:
// clients would take that for the sandbox.
func rollback(s *server, c *call) (reply, error) {
	ref, _ := said[string](c.words, "snapshotID")
	snap, err := s.origins.Snapshot(c.key, origin.Ref(ref))
	if ref == "" || errdef.Is(err, errdef.NotFound) {
		err = badRequest(`"snapshotID" is %.200q, and there is no such snapshot`, ref)
	}
	if err != nil {
		return reply{}, s.ifKnown(c, err)
	}
	if _, _, err := s.Snapshots.Restore(c.r.Context(), c.sandbox, supervisor.RestoreRequest{Snapshot: snap.ID, Actor: c.actor}); err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: rolledBackView{c.sandbox, ref, "success"}}, nil
}
