package memstore

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
)

// lists is the part of a store that reads the sandboxes of several servers.
type lists struct{ s *Store }

// Page implements store.Owners.
func (l lists) Page(ctx context.Context, q store.Selection) (store.Page, error) {
	all, err := l.s.Sandboxes(ctx)
	if q.Others {
		all = slices.DeleteFunc(all, func(sb store.Sandbox) bool { return sb.Owner == l.s.Self() })
	}
	return q.From(all), err
}

// UseOfOthers implements store.Owners.
func (l lists) UseOfOthers(ctx context.Context) (map[string]store.Use, error) {
	p, err := l.Page(ctx, store.Selection{Others: true})
	all := map[string]store.Use{}
	for _, sb := range p.Sandboxes {
		if use := sb.Use(); use != (store.Use{}) {
			all[sb.Config.Key] = all[sb.Config.Key].Plus(use)
		}
	}
	return all, err
}
