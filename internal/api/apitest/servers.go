package apitest

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
)

// Servers are servers that have one database. The first is the one that answers.
type Servers []store.Server

// Self returns the id of the first; empty for none.
func (s Servers) Self() string {
	if len(s) == 0 {
		return ""
	}
	return s[0].ID
}

// SetDraining implements v1.Servers.
func (s Servers) SetDraining(_ context.Context, id string, draining bool) error {
	i := slices.IndexFunc(s, func(srv store.Server) bool { return srv.ID == id })
	if i < 0 {
		return store.ErrServerNotFound(id)
	}
	s[i].Draining = draining
	return nil
}

// Servers returns them.
func (s Servers) Servers(context.Context) ([]store.Server, error) { return s, nil }
