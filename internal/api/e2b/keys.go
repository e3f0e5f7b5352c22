package e2b

import (
	"context"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
)

// Keys makes and revokes API keys, as [auth.Keys] does.
type Keys interface {
	// Create returns the key and its text, which is nowhere else.
	Create(ctx context.Context, req auth.Request) (store.Key, string, error)
	// List returns all keys, oldest first.
	List() []store.Key
	Revoke(ctx context.Context, id string) error
}

// Authenticator knows the API keys of calls.
type Authenticator interface {
	auth.Checker
	// Current returns the key of an id as it is now, or an errdef.Unauthorized.
	Current(id string) (store.Key, error)
}

// A server has one tenant, which clients that ask for teams see as one.
const (
	teamID   = "00000000-0000-4000-8000-000000000000"
	teamName = origin.Namespace
)

// teamView is a team. Its key is empty: keys are shown when they are made.
type teamView struct {
	TeamID    string `json:"teamID"`
	Name      string `json:"name"`
	APIKey    string `json:"apiKey"`
	IsDefault bool   `json:"isDefault"`
}

func (s *server) teams(*call) (reply, error) {
	return reply{Status: http.StatusOK, Body: []teamView{{TeamID: teamID, Name: teamName, IsDefault: true}}}, nil
}

// keyView is an API key.
type keyView struct {
	ID        string             `json:"id"`
	Name      string             `json:"name"`
	Mask      maskView           `json:"mask"`
	CreatedAt httpapi.Timestamp  `json:"createdAt"`
	LastUsed  *httpapi.Timestamp `json:"lastUsed,omitempty"`
	Key       string             `json:"key,omitempty"` // in the answer that makes it, and nowhere else
}

// maskView tells what a key looks like: the prefix, then so many characters, of
// which the first and the last are given. How many is said of a key made here; a
// preset one may have more or fewer.
type maskView struct {
	Prefix            string `json:"prefix"`
	ValueLength       int    `json:"valueLength"`
	MaskedValuePrefix string `json:"maskedValuePrefix"`
	MaskedValueSuffix string `json:"maskedValueSuffix"`
}

func viewKey(k store.Key) keyView {
	v := keyView{
		ID: k.ID, Name: k.Name, CreatedAt: httpapi.Timestamp(k.CreatedAt),
		Mask: maskView{
			Prefix: auth.Prefix, ValueLength: auth.MadeLen - len(auth.Prefix),
			MaskedValuePrefix: strings.TrimPrefix(k.Prefix, auth.Prefix), MaskedValueSuffix: k.Suffix,
		},
	}
	if !k.LastUsedAt.IsZero() {
		used := httpapi.Timestamp(k.LastUsedAt)
		v.LastUsed = &used
	}
	return v
}

// createKey makes a key of role full: this dialect has no roles.
func (s *server) createKey(c *call) (reply, error) {
	name, _ := said[string](c.words, "name")
	k, text, err := s.Keys.Create(c.r.Context(), auth.Request{Name: name, Role: store.RoleFull})
	if err != nil {
		return reply{}, err
	}
	s.Log.Info("API key made", "key", k.ID, "name", k.Name, "role", k.Role, "actor", c.actor)
	v := viewKey(k)
	v.Key = text
	return reply{Status: http.StatusCreated, Body: v, Header: http.Header{"Cache-Control": {"no-store"}}}, nil
}

func (s *server) keys(*call) (reply, error) {
	views := []keyView{}
	for _, k := range s.Keys.List() {
		views = append(views, viewKey(k))
	}
	return reply{Status: http.StatusOK, Body: views}, nil
}

func (s *server) revokeKey(c *call) (reply, error) {
	id := c.params[keyParam]
	if err := s.Keys.Revoke(c.r.Context(), id); err != nil {
		return reply{}, err
	}
	s.Log.Info("API key revoked", "key", id, "actor", c.actor)
	return noContent, nil
}
