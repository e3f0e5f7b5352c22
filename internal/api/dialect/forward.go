package dialect

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Forwarder passes requests on to other servers of the database.
type Forwarder interface {
	// HolderOf returns the server that has the sandbox in the path of a request; empty
	// where that is this one, or nobody.
	HolderOf(r *http.Request) (server string, err error)
	// HolderNow returns the server that has what a store.ErrElsewhere is about; empty where that
	// is this one by now, which has taken it over.
	HolderNow(ctx context.Context, elsewhere error) (server string, err error)
	// Forward has a server answer a request, this one if server is empty. Nothing was answered
	// if it returns an error.
	Forward(w http.ResponseWriter, r *http.Request, server string) error
	// Again reports whether a request for which Forward has failed is to be passed on once more:
	// the server got nothing of it, and stops. The request's body is as it was.
	Again(ctx context.Context, server string, failed error) bool
}

// mostAgain is how often a request goes to another server than the one that it could not be sent to.
const mostAgain = 4

// forwarding is what is needed to pass one request on.
type forwarding struct {
	to   Forwarder
	body *touched
}

type forwardingKey struct{}

// Forwarding returns a request that the handlers of dialects may pass on: where its path
// names a sandbox of another server, and where what they return is a store.ErrElsewhere.
func Forwarding(r *http.Request, to Forwarder) *http.Request {
	f := &forwarding{to, &touched{ReadCloser: r.Body}}
	r = r.WithContext(context.WithValue(r.Context(), forwardingKey{}, f))
	r.Body = f.body
	return r
}

// Forwards reports whether the request of a context can be passed on by a store.ErrElsewhere:
// otherwise that is its answer.
func Forwards(ctx context.Context) bool { return ctx.Value(forwardingKey{}) != nil }

// touched is the body of a request that knows whether somebody has begun to read it.
type touched struct {
	io.ReadCloser
	begun bool
}

// Read implements io.Reader.
func (b *touched) Read(p []byte) (int, error) {
	b.begun = true
	return b.ReadCloser.Read(p)
}

// again returns the body of r from its beginning: untouched, or as it was read whole; false
// if that is not there any more.
func (b *touched) again(r *http.Request) (io.ReadCloser, bool) {
	if !b.begun {
		return b.ReadCloser, true
	}
	data, whole := httpapi.Sent(r)
	return io.NopCloser(bytes.NewReader(data)), whole
}

// forward passes a request on if its path says to whom, or if err does, with which a
// handler has ended, or if the sandbox of its path is not here any more. It returns false, and the error to be answered, if nothing was.
func forward(w http.ResponseWriter, r *http.Request, err error) (done bool, _ error) {
	f, ok := r.Context().Value(forwardingKey{}).(*forwarding)
	if !ok {
		return false, err
	}
	var last string
	var broken error // why the last did not answer
	for tries := 0; ; tries++ {
		server, here, failed := f.whose(r, err)
		switch {
		case failed != nil || server == "" && !here && tries == 0:
			return false, cmp.Or(failed, err)
		case tries > 0 && (server == last || tries > mostAgain): // it has what no other goes on with
			return false, broken
		}
		body, whole := f.body.again(r)
		if !whole {
			return false, err
		}
		out := r.Clone(context.WithValue(r.Context(), forwardingKey{}, nil)) // once
		out.Body = body
		if server == "" {
			return true, f.to.Forward(w, out, server)
		}
		audit.Elsewhere(r.Context(), true) // it is logged when the answer begins
		if failed = f.to.Forward(w, out, server); failed == nil {
			return true, nil
		}
		audit.Elsewhere(r.Context(), false)
		if !f.to.Again(r.Context(), server, failed) {
			return false, failed
		}
		last, broken = server, failed
	}
}

// whose returns the server that is to answer a request, with which a handler has ended with err or
// which none has begun. Where it is empty, here says that this one has what it did not have.
func (f *forwarding) whose(r *http.Request, err error) (server string, here bool, _ error) {
	if _, elsewhere := store.Elsewhere(err); elsewhere {
		server, err = f.to.HolderNow(r.Context(), err)
		return server, true, err
	}
	if err != nil && errdef.CodeOf(err) != "sandbox_not_found" { // it waited here, and the sandbox has gone to another server
		return "", false, nil
	}
	server, err = f.to.HolderOf(r)
	return server, false, err
}
