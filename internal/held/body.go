package held

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// BodyPatience is how long the body of a request may take to come.
const BodyPatience = 30 * time.Second

// firstBuffer is what a reader begins with.
const firstBuffer = 4 << 10

// ErrTooLarge is the end of what has more bytes than it may.
var ErrTooLarge = errors.New("there are more bytes than there may be")

// Read reads from to its end, which must come within most bytes, and takes room
// before memory by grow, whose error is returned. Of the data no room is given back.
func Read(from io.Reader, most int, grow func(n int) error) ([]byte, error) {
	var data []byte
	for {
		if len(data) == cap(data) {
			more := min(max(cap(data), firstBuffer), most+1-cap(data))
			if more <= 0 {
				return nil, ErrTooLarge
			}
			if err := grow(more); err != nil {
				return nil, err
			}
			larger := make([]byte, len(data), cap(data)+more)
			copy(larger, data)
			data = larger
		}
		n, err := from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case len(data) > most:
			return nil, ErrTooLarge
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, err
		}
	}
}

// ReadMessage reads a message of a client's WebSocket, of at most most bytes, into a
// share. While there is no room nothing is read, and after patience it fails with
// ErrNoRoom.
func ReadMessage(ctx context.Context, from io.Reader, s *Share, most, times int, patience time.Duration) ([]byte, error) {
	return Read(from, most, func(n int) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if !s.Await(ctx, n*times) {
			return ErrNoRoom
		}
		return nil
	})
}

// ErrNoRoom is the end of what found no room in time.
var ErrNoRoom = errors.New("as much waits for this API key, its address or all together as may")

// ReadBody reads the whole body of a request into a share, within patience. Its
// length need not be known. The error is an *errdef.Error.
func ReadBody(w http.ResponseWriter, r *http.Request, s *Share, most int, patience time.Duration) ([]byte, error) {
	if r.ContentLength > int64(most) {
		return nil, tooLarge(most)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(patience)) // a recorder of a test has none
	data, err := Read(r.Body, most, func(n int) error {
		if !s.Grow(n) {
			return errdef.New(errdef.Exhausted, "too_many_bodies",
				"the requests under way have as many bytes of bodies as they may: %s", waitingBounds).
				WithRemedy("wait for requests to end, then try again")
		}
		return nil
	})
	switch _, ours := errors.AsType[*errdef.Error](err); {
	case err == nil:
		_ = control.SetReadDeadline(time.Time{})
		return data, nil
	case ours:
		return nil, err
	case errors.Is(err, ErrTooLarge):
		return nil, tooLarge(most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errdef.New(errdef.Invalid, "body_timed_out", "the request body did not come to its end within %s", patience).
			WithRemedy("send it again, without pauses")
	}
	return nil, errdef.New(errdef.Invalid, "invalid_request", "the request body could not be read to its end")
}

func tooLarge(most int) error {
	return errdef.New(errdef.Invalid, "body_too_large", "the request body is larger than %d MiB", most>>20).With("allowedBytes", most)
}
