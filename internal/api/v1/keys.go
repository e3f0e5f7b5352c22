package v1

import (
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/cost"
)

// keyView is an API key. Its text is in the answer that makes it and nowhere
// else.
type keyView struct {
	ID         string             `json:"id"`
	Name       string             `json:"name"`
	Role       store.Role         `json:"role" doc:"admin for everything, full for everything with sandboxes, own for that with the sandboxes that it has made, and it sees no others, read to look at sandboxes from outside."`
	Mask       string             `json:"mask" doc:"The beginning and end of its text."`
	CreatedAt  httpapi.Timestamp  `json:"createdAt"`
	ExpiresAt  *httpapi.Timestamp `json:"expiresAt" doc:"Null for never."`
	LastUsedAt *httpapi.Timestamp `json:"lastUsedAt" doc:"Null for never. After a crash of the server it may be some minutes too early."`
	Limits     keyLimitsView      `json:"limits" doc:"Limits of the key's sandboxes together, and of its calls."`
	Use        keyUseView         `json:"use" doc:"Current use."`
	Cost       keyCostView        `json:"cost" doc:"What the key's sandboxes and requests cost the server."`
	Key        string             `json:"key,omitempty" doc:"The key's text; only in the answer that creates or rotates it."`
}

type keyLimitsView struct {
	MaxRunning   int `json:"maxRunning" doc:"How many may run at once; 0 for no limit."`
	MaxSandboxes int `json:"maxSandboxes" doc:"How many there may be, paused ones included; 0 for no limit."`
	MaxMemoryMiB int `json:"maxMemoryMiB" doc:"Sum of the memory limits of running sandboxes; 0 for no limit."`
	MaxDiskMiB   int `json:"maxDiskMiB" doc:"Sum of all disk limits, paused sandboxes included; 0 for no limit."`
	MaxRate      int `json:"maxRate" doc:"How many calls of the API per second; 0 for the server's --max-key-rate."`
}

type keyUseView struct {
	Running   int `json:"running"`
	Sandboxes int `json:"sandboxes"`
	MemoryMiB int `json:"memoryMiB"`
	DiskMiB   int `json:"diskMiB"`
}

type keyCostView struct {
	Starting          int     `json:"starting" doc:"Sandboxes on their way up now, those that wait for a turn included."`
	Requests          int     `json:"requests" doc:"Requests and streams open into its sandboxes now."`
	Descriptors       int     `json:"descriptors" doc:"Descriptors of connections out of its sandboxes now."`
	BufferedBytes     int     `json:"bufferedBytes" doc:"Bytes that wait for clients and guests now: of bodies of requests, of input that programs do not read, of output that clients do not read, and of connections out whose name is not known yet."`
	KeptBytes         int     `json:"keptBytes" doc:"Bytes kept now for clients who ask later, such as the output of contexts."`
	Sessions          int     `json:"sessions" doc:"Connections that last, over SSH and of terminals and WebSockets, and the programs that SSH clients run, now."`
	LogBytes          int64   `json:"logBytes" doc:"Bytes kept now of what its sandboxes log."`
	DatabaseBytes     int64   `json:"databaseBytes" doc:"Bytes written to the database since the server's start."`
	CheckpointSeconds float64 `json:"checkpointSeconds" doc:"Time spent since the server's start to checksum checkpoints, make them durable and verify them."`
}

func viewCost(c cost.Cost) keyCostView {
	return keyCostView{c.Starting, c.Requests, c.Descriptors, c.BufferedBytes, c.KeptBytes, c.Sessions, c.LogBytes, c.DatabaseBytes, c.Checkpoints.Seconds()}
}

type keysView struct {
	Keys []keyView `json:"keys"`
}

func viewKey(k store.Key, use store.Use, costs cost.Cost) keyView {
	return keyView{
		ID: k.ID, Name: k.Name, Role: k.Role, Mask: k.Prefix + "…" + k.Suffix,
		CreatedAt: httpapi.Timestamp(k.CreatedAt), ExpiresAt: timeOrNull(k.ExpiresAt), LastUsedAt: timeOrNull(k.LastUsedAt),
		Limits: keyLimitsView{k.Limits.Running, k.Limits.Sandboxes, k.Limits.MemoryMiB, k.Limits.DiskMiB, k.Limits.Rate}, Use: keyUseView(use), Cost: viewCost(costs),
	}
}

func (s *server) createKey(c *call) (reply, error) {
	k, text, err := s.Keys.Create(c.r.Context(), keyRequest(c.words))
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("API key made", "key", k.ID, "name", k.Name, "role", k.Role, "actor", c.actor)
	return replyWithText(http.StatusCreated, viewKey(k, store.Use{}, cost.Cost{}), text), nil
}

// replyWithText is the one answer that has a key's text.
func replyWithText(status int, v keyView, text string) reply {
	v.Key = text
	return reply{Status: status, Body: v, Header: http.Header{"Cache-Control": {"no-store"}}}
}

// selfKey is the id that stands for the key of the call.
const selfKey = "self"

func rotateKey(s *server, c *call) (reply, error) {
	id := c.params[keyParam]
	if id == selfKey {
		id = c.key.ID
	}
	var text string
	if w, given := c.words["key"]; given {
		text = w.Value.(string)
	}
	k, text, err := s.Keys.Rotate(c.r.Context(), id, text)
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("API key rotated", "key", k.ID, "name", k.Name, "actor", c.actor)
	return replyWithText(http.StatusOK, viewKey(k, s.Sandboxes.KeyUse(k.ID), s.Sandboxes.KeyCosts()[k.ID]), text), nil
}

func keyRequest(words map[string]body.Said) auth.Request {
	req := auth.Request{Name: words["name"].Value.(string), Role: store.RoleFull}
	if w, given := words["role"]; given {
		req.Role = w.Value.(store.Role)
	}
	if w, given := words["expiresInSeconds"]; given {
		req.For = w.Value.(time.Duration)
	}
	limitKey(&req.Limits, words)
	return req
}

// limitKey sets those limits of a key that are given.
func limitKey(l *store.KeyLimits, words map[string]body.Said) {
	for name, limit := range map[string]*int{
		"maxRunning": &l.Running, "maxSandboxes": &l.Sandboxes, "maxMemoryMiB": &l.MemoryMiB, "maxDiskMiB": &l.DiskMiB, "maxRate": &l.Rate,
	} {
		if w, given := words[name]; given {
			*limit = w.Value.(int)
		}
	}
}

func (s *server) keys(*call) (reply, error) {
	v, costs := keysView{Keys: []keyView{}}, s.Sandboxes.KeyCosts()
	for _, k := range s.Keys.List() {
		v.Keys = append(v.Keys, viewKey(k, s.Sandboxes.KeyUse(k.ID), costs[k.ID]))
	}
	return ok(v)
}

func changeKey(s *server, c *call) (reply, error) {
	change := auth.Change{Limits: func(l *store.KeyLimits) { limitKey(l, c.words) }}
	if w, given := c.words["name"]; given {
		change.Name = new(w.Value.(string))
	}
	k, err := s.Keys.Change(c.r.Context(), c.params[keyParam], change)
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("API key changed", "key", k.ID, "name", k.Name, "limits", k.Limits, "actor", c.actor)
	return ok(viewKey(k, s.Sandboxes.KeyUse(k.ID), s.Sandboxes.KeyCosts()[k.ID]))
}

func (s *server) revokeKey(c *call) (reply, error) {
	id := c.params[keyParam]
	if err := s.Keys.Revoke(c.r.Context(), id); err != nil {
		return reply{}, err
	}
	s.Log.Info("API key revoked", "key", id, "actor", c.actor)
	return reply{Status: http.StatusNoContent}, nil
}
