package apitest

import (
	"context"

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

// Servers returns them.
func (s Servers) Servers(context.Context) ([]store.Server, error) { return s, nil }
