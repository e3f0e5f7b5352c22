package serve

import (
	"context"
	"net"
	"net/http"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/ui"
)

// newDashboard returns the handler of the dashboard. It is a client of the server
// like any other, in the name of the API key that somebody has signed in with.
func newDashboard(ctx context.Context, o Options, keys *auth.Keys, room *held.Room, connect func(client net.Addr) (net.Conn, error)) http.Handler {
	return ui.New(ctx, ui.Options{Keys: dashboardKeys{keys}, Connect: connect, Room: room, Log: o.Log})
}

// dashboardKeys are the API keys as the dashboard knows them.
type dashboardKeys struct{ *auth.Keys }

// Check returns whose key a text is.
func (k dashboardKeys) Check(text string) (ui.Holder, error) {
	key, err := k.Keys.Check(text)
	if err != nil {
		return ui.Holder{}, err
	}
	return ui.Holder{ID: key.ID, Name: key.Name, Mask: key.Prefix + "…" + key.Suffix, Role: client.Role(key.Role)}, nil
}
