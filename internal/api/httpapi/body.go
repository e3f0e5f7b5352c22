package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/ration"
)

// Bounds of the bodies that are read whole. What they take counts from their
// first byte to the end of the request.
const (
	// MaxBody is the largest body. Files have endpoints that read as they go.
	MaxBody = 1 << 20
	// bodyPatience is how long a body may take to come.
	bodyPatience = 30 * time.Second

	maxBodies        = 64 << 20 // of all requests together
	maxKeyBodies     = 16 << 20 // of the requests of one API key
	maxAddressBodies = 32 << 20 // of the requests of one client address
	firstBuffer      = 4 << 10
)

// Bodies bounds how much memory the bodies of requests take together.
type Bodies struct {
	room     *ration.Ration
	patience time.Duration
}

// NewBodies returns the bound for one server.
func NewBodies() *Bodies { return &Bodies{room: ration.New(maxBodies), patience: bodyPatience} }

// Of returns how many bytes the requests of an API key have.
func (b *Bodies) Of(key string) int { return b.room.Of(keyHolder(key)) }

// keyHolder is a holder's name in the room.
func keyHolder(holder string) string { return "key:" + holder }

// Bound returns a handler that holds the bodies that h reads to the bound.
func (b *Bodies) Bound(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		held := &body{all: b}
		defer held.release()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, held)))
	})
}

// bodyKey is where a request's context has its *body.
type bodyKey struct{}

// body is what the body of one request takes.
type body struct {
	all     *Bodies
	taken   int
	holders []ration.Holder
}

// release gives back what the body has taken.
func (b *body) release() {
	if b.taken > 0 {
		b.all.room.Give(b.taken, b.holders...)
		b.taken = 0
	}
}

// grow takes room for n more bytes.
func (b *body) grow(n int) error {
	if !b.all.room.Take(n, b.holders...) {
		return errdef.New(errdef.Exhausted, "too_many_bodies",
			"the requests under way have as many bytes of bodies as they may: %d MiB in all, %d MiB from one address, %d MiB of one API key",
			maxBodies>>20, maxAddressBodies>>20, maxKeyBodies>>20).
			WithRemedy("wait for requests to end, then try again")
	}
	b.taken += n
	return nil
}

// ReadBody reads all of the body; its length need not be known. White space
// alone is nothing. Otherwise white space stays, for the positions that errors
// name. The bytes count for holder, which is the API key or what else proves who
// asks, and for the client's address. The error is an *errdef.Error.
func ReadBody(w http.ResponseWriter, r *http.Request, holder string) ([]byte, error) {
	if r.ContentLength > MaxBody {
		return nil, tooLarge()
	}
	if r.ContentLength == 0 {
		return nil, nil
	}
	held, ok := r.Context().Value(bodyKey{}).(*body)
	if !ok { // a handler by itself, in front of which nobody counts
		held = &body{all: NewBodies()}
	}
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	held.holders = []ration.Holder{{Name: keyHolder(holder), Most: maxKeyBodies}, {Name: "address:" + address, Most: maxAddressBodies}}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(held.all.patience)) // a recorder of a test has none
	data, err := held.read(r.Body)
	if err != nil {
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{})
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	return data, nil
}

// read reads to the end, and takes room before it takes memory.
func (b *body) read(from io.Reader) ([]byte, error) {
	var data []byte
	for {
		if len(data) == cap(data) {
			more := min(max(cap(data), firstBuffer), MaxBody+1-cap(data))
			if more <= 0 {
				return nil, tooLarge()
			}
			if err := b.grow(more); err != nil {
				return nil, err
			}
			larger := make([]byte, len(data), cap(data)+more)
			copy(larger, data)
			data = larger
		}
		n, err := from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case len(data) > MaxBody:
			return nil, tooLarge()
		case errors.Is(err, io.EOF):
			return data, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errdef.New(errdef.Invalid, "body_timed_out", "the request body did not come to its end within %s", b.all.patience).
				WithRemedy("send it again, without pauses")
		case err != nil:
			return nil, errdef.New(errdef.Invalid, "invalid_request", "the request body could not be read to its end")
		}
	}
}

func tooLarge() error {
	return errdef.New(errdef.Invalid, "body_too_large", "the request body is larger than %d MiB", MaxBody>>20).
		With("allowedBytes", MaxBody)
}

// Position returns the line and the column, in bytes, of the byte before
// offset: where a JSON decoder stopped.
func Position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
