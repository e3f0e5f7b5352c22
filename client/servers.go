package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Server is one of several that have their records in one database.
type Server struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`              // of the machine that it runs on, or ran on last
	Address     string    `json:"address,omitempty"` // at which the others reach it; empty where they do not
	Alive       bool      `json:"alive"`             // it has a lease
	Leaving     bool      `json:"leaving"`           // its process stops: others wait for what it has, until it is started again
	Draining    bool      `json:"draining"`          // it gives what it has to other servers
	Drain       *Draining `json:"drain"`             // how far it is with that; nil if it has not said
	LeaseEndsAt time.Time `json:"leaseEndsAt"`       // unless it renews that, by the clock of the database
	Self        bool      `json:"self"`              // it is the one that answers
	Room        *Room     `json:"room"`              // nil if it has not said since it was started
}

// Room is what a server has for more sandboxes, as it said last.
type Room struct {
	Running    int  `json:"running"`    // sandboxes
	MaxRunning *int `json:"maxRunning"` // nil for no bound
	MemoryMiB  int  `json:"memoryMiB"`  // of its machine that is available
	DiskMiB    int  `json:"diskMiB"`    // that is free where its sandboxes are
}

// Draining is how far a server is that gives what it has to others, as it said last.
type Draining struct {
	Left  int    `json:"left"`            // sandboxes, snapshots and templates that it has still
	Stay  int    `json:"stay"`            // of these, that were tried and could not go
	Cause string `json:"cause,omitempty"` // why the last of these could not
}

// Servers returns the servers that have one database, by id. There are none where the
// server keeps its records by itself. It needs an admin key.
func Servers(ctx context.Context, c *Client) ([]Server, error) {
	var out struct {
		Servers []Server `json:"servers"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/servers", nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	return out.Servers, nil
}

// Move moves a sandbox to another server of the same database: to the one of that id, or to
// another that is alive if that is empty. One that runs, runs on there, with its timeout and holds;
// requests for it wait meanwhile. Where it is there already, nothing happens. It needs an
// admin key.
//
// ErrConflict: it changed or woke meanwhile, or there is no other server. After an error it is
// where it was.
func Move(ctx context.Context, c *Client, id, server string) (Info, error) {
	path, err := sandboxPath(id)
	var info Info
	if err == nil {
		err = c.call(ctx, http.MethodPost, path+"/move", nil, moveBody{server}, &info)
	}
	if err != nil {
		return Info{}, fmt.Errorf("move sandbox %s: %w", id, err)
	}
	return info, nil
}

// Drain has a server of the database give its sandboxes, snapshots and built templates to others, one
// after the other, and returns when that is on record, not when it is done: see [Server.Drain]. The server
// serves meanwhile. With draining false, it stops that. It needs an admin key.
//
// ErrNotFound: there is no such server.
func Drain(ctx context.Context, c *Client, server string, draining bool) (Server, error) {
	var srv Server
	if err := c.call(ctx, http.MethodPatch, "/v1/servers/"+url.PathEscape(server), nil, map[string]bool{"draining": draining}, &srv); err != nil {
		return Server{}, fmt.Errorf("drain server %s: %w", server, err)
	}
	return srv, nil
}

type moveBody struct {
	Server string `json:"server,omitempty"`
}
