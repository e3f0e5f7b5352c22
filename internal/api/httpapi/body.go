package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/held"
)

// MaxBody is the largest body that is read whole. Files have endpoints that read as
// they go.
const MaxBody = 1 << 20

// Bodies holds the bodies of requests, and of their answers, to a room. What they take
// counts from when it is there to the end of the request.
type Bodies struct {
	room     *held.Room
	patience time.Duration // how long a body may take to come
}

// NewBodies returns the bound for one server.
func NewBodies(room *held.Room) *Bodies { return &Bodies{room, held.BodyPatience} }

// Bound returns a handler that holds the bodies that h reads and writes to the bound.
func (b *Bodies) Bound(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := &body{of: b}
		defer one.release()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, one)))
	})
}

// bodyKey is where a request's context has its *body.
type bodyKey struct{}

// body is the body of one request, and that of its answer.
type body struct {
	of     *Bodies
	share  *held.Share // nil until it is read
	answer *held.Share // nil until it is made
	made   func()      // gives back the turn to make it; nil without one
	sent   []byte      // all of it, once it is read whole
}

// release gives back what the body has taken.
func (b *body) release() {
	if b.made != nil {
		b.made()
	}
	for _, s := range []*held.Share{b.share, b.answer} {
		if s != nil {
			s.Free()
		}
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
	if one.share != nil { // it is read again
		one.share.Free()
	}
	one.share = one.of.room.Passing(held.From(r, holder))
	data, err := held.ReadBody(w, r, one.share, MaxBody, one.of.patience)
	if err == nil {
		one.sent = data
	}
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return nil, err
	}
	return data, nil
}

// Sent returns the body of a request that ReadBody has read; false where it has not, whole.
func Sent(r *http.Request) (data []byte, whole bool) {
	one, ok := r.Context().Value(bodyKey{}).(*body)
	if !ok || one.sent == nil {
		return nil, false
	}
	return one.sent, true
}

// Answer makes the response to a request that succeeded, of a body, nil for none. Like
// those of the request, its bytes count for holder and for the client's address. Where
// there is no room for it, the error is an *errdef.Error; but only for a request that
// has changed nothing. Another waits for room, and is answered in any case.
func Answer(r *http.Request, holder string, status int, header http.Header, content any) (Response, error) {
	one, ok := r.Context().Value(bodyKey{}).(*body)
	if !ok || content == nil {
		return Encode(status, header, content)
	}
	if err := AwaitTurn(r, holder); err != nil {
		return Response{}, err
	}
	res, err := Encode(status, header, content)
	if err != nil {
		return Response{}, err
	}
	one.made()
	one.made = nil
	who, n := held.From(r, holder), len(res.Body)
	one.answer, err = one.of.room.Answer(who, n)
	switch {
	case err == nil:
		return res, nil
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return Response{}, err
	}
	res.Body = nil
	one.answer = one.of.room.Told(r.Context(), who, n)
	return Encode(status, header, content)
}

// AwaitTurn waits until holder may make an answer that can be large, before what goes
// into it is collected. The turn ends when it is made. Nobody must wait for anything
// else during it.
func AwaitTurn(r *http.Request, holder string) error {
	one, ok := r.Context().Value(bodyKey{}).(*body)
	if !ok || one.made != nil {
		return nil
	}
	made, err := one.of.room.MakeAnswer(r.Context(), cmp.Or(holder, "address "+held.AddressOf(r.RemoteAddr)))
	if err != nil {
		return fmt.Errorf("make an answer: %w", err)
	}
	one.made = made
	return nil
}

// Position returns the line and the column, in bytes, of the byte before
// offset: where a JSON decoder stopped.
func Position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
