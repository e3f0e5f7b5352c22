package apitest

import (
	"context"
	"io"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/store"
)

// Others are other servers to which requests can be passed on, as a dialect.Forwarder. All of them
// answer that there is nothing to say.
type Others struct {
	Got  []string // the servers, each with the body that it got
	Lost error    // why nobody has the sandbox of a request; nil where it is here
}

// Before returns a handler of a dialect that may pass requests on to the others.
func (o *Others) Before(h http.Handler) http.Handler {
	return httpapi.NewBodies(held.New()).Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, dialect.Forwarding(r, o))
	}))
}

// HolderOf implements dialect.Forwarder.
func (o *Others) HolderOf(*http.Request) (string, error) { return "", o.Lost }

// HolderNow implements dialect.Forwarder.
func (o *Others) HolderNow(_ context.Context, elsewhere error) (string, error) {
	server, _ := store.Elsewhere(elsewhere)
	return server, nil
}

// Forward implements dialect.Forwarder.
func (o *Others) Forward(w http.ResponseWriter, r *http.Request, server string) error {
	body, err := io.ReadAll(r.Body)
	o.Got = append(o.Got, server+" "+string(body))
	w.WriteHeader(http.StatusNoContent)
	return err
}

// Again implements dialect.Forwarder.
func (o *Others) Again(context.Context, string, error) bool { return false }
