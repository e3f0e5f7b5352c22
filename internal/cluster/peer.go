package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// What servers know of each other is in the database. They ask each other for one thing: to take
// what the one that asks offers. That is a request of the server, not of a client, with no
// API key.

const (
	takePath = "/take"
	// mostAsked bounds what is read of what a server asks, or answers.
	mostAsked = 64 << 10
)

// taking is what a server is asked to take.
type taking struct {
	ID    string `json:"id"`
	Actor string `json:"actor,omitempty"` // who wants it
	Runs  bool   `json:"runs,omitempty"`  // it is to run there
}

// refusal is why a server does not do what it is asked.
type refusal struct {
	Code, Message, Remedy string
	Context               map[string]any
}

// Peers returns a handler that answers what other servers ask for themselves, and leaves to h what
// clients do.
func (c *Cluster) Peers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !edge.FromServer(r.Context()) {
			h.ServeHTTP(w, r)
			return
		}
		if err := c.take(r); err != nil {
			refused, ok := errors.AsType[*errdef.Error](err)
			if !ok {
				c.o.Log.Error("what another server asks for failed", "path", r.URL.Path, "err", err)
				refused = errdef.New(errdef.Internal, "internal_server_error", "it failed, and the log of that server says why")
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(refusal{refused.Code, refused.Message, refused.Remedy, refused.Context})
		}
	})
}

// take does what another server asks for.
func (c *Cluster) take(r *http.Request) error {
	var asked taking
	if err := json.NewDecoder(io.LimitReader(r.Body, mostAsked)).Decode(&asked); err != nil || r.URL.Path != takePath {
		return errdef.New(errdef.NotFound, "unknown_path", "this server does not know what it is asked for").
			WithRemedy("have all servers run the same version")
	}
	return c.receive(context.WithoutCancel(r.Context()), asked)
}

// askToTake asks a server to take something over.
func (c *Cluster) askToTake(ctx context.Context, server string, what taking) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server"+takePath, bytes.NewReader(text))
	if err != nil {
		return err
	}
	edge.SetFromServer(out.Header)
	resp, err := c.o.Transport(server).RoundTrip(out)
	if err != nil {
		return c.broken(ctx, server, nil, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var why refusal
	if err = json.NewDecoder(io.LimitReader(resp.Body, mostAsked)).Decode(&why); err != nil || why.Code == "" {
		return c.broken(ctx, server, nil, errors.Join(fmt.Errorf("status %d", resp.StatusCode), err))
	}
	class := errdef.Unavailable
	if known, ok := errdef.Lookup(why.Code); ok {
		class = known.Class
	}
	refused := errdef.New(class, why.Code, "server %s does not take %s, which stays where it was: %s", server, called(what.ID), why.Message).WithRemedy("%s", why.Remedy)
	for name, value := range why.Context {
		refused = refused.With(name, value)
	}
	return refused.With("server", server)
}
