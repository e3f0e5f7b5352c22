package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/held"
)

// MaxBody is the largest body that is read whole. Files have endpoints that read as
// they go.
const MaxBody = 1 << 20

// Bodies holds the bodies of requests to a room. What they take counts from their
// first byte to the end of the request.
type Bodies struct {
	room     *held.Room
	patience time.Duration // how long a body may take to come
}

// NewBodies returns the bound for one server.
func NewBodies(room *held.Room) *Bodies { return &Bodies{room, held.BodyPatience} }

// Bound returns a handler that holds the bodies that h reads to the bound.
func (b *Bodies) Bound(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		one := &body{of: b}
		defer one.release()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, one)))
	})
}

// bodyKey is where a request's context has its *body.
type bodyKey struct{}

// body is the body of one request.
type body struct {
	of    *Bodies
	share *held.Share // nil until it is read
}

// release gives back what the body has taken.
func (b *body) release() {
	if b.share != nil {
		b.share.Free()
	}
}

// ReadBody reads all of the body; its length need not be known. White space
// alone is nothing. Otherwise white space stays, for the positions that errors
// name. The bytes count for holder, which is the API key or what else proves who
// asks, and for the client's address. The error is an *errdef.Error.
func ReadBody(w http.ResponseWriter, r *http.Request, holder string) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	one, ok := r.Context().Value(bodyKey{}).(*body)
	if !ok { // a handler by itself, in front of which nobody counts
		one = &body{of: NewBodies(held.New())}
	}
	one.share = one.of.room.Passing(held.From(r, holder))
	data, err := held.ReadBody(w, r, one.share, MaxBody, one.of.patience)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return nil, err
	}
	return data, nil
}

// Position returns the line and the column, in bytes, of the byte before
// offset: where a JSON decoder stopped.
func Position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
