package held

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

const (
	// answerPiece is how much of an answer is written at once. An answer that is no
	// larger does not count: it is in the buffers of its connection.
	answerPiece = 64 << 10
	// answerPatience is how long a client may take for a piece.
	answerPatience = 30 * time.Second
)

// Answer takes room for an answer of n bytes that has been made, until the share is
// freed. The error is an *errdef.Error.
func (r *Room) Answer(who Who, n int) (*Share, error) {
	s := r.Passing(who)
	if n > answerPiece && !s.Grow(n) {
		return nil, errdef.New(errdef.Exhausted, "too_many_answers",
			"this answer has %d bytes, and clients have as much to take as they may: %s", n, waitingBounds).
			WithRemedy("read the answers that are there, then try again, or ask for less at once")
	}
	return s, nil
}

// Told is Answer for an answer that tells of what has been done, so that it must be
// given. It waits for room as long as a client may take for a piece of what is in the
// way, or until ctx ends; after that the answer does not count. Its n bytes must not be
// in memory meanwhile.
func (r *Room) Told(ctx context.Context, who Who, n int) *Share {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	s := r.Passing(who)
	s.Await(ctx, n)
	return s
}

// WriteAnswer writes an answer that has been made to a client that takes it, and fails
// for one that does not.
func WriteAnswer(w http.ResponseWriter, data []byte) error {
	if len(data) <= answerPiece {
		_, err := w.Write(data)
		return err
	}
	control := http.NewResponseController(w)
	for len(data) > 0 {
		piece := data[:min(len(data), answerPiece)]
		_ = control.SetWriteDeadline(time.Now().Add(answerPatience)) // a recorder of a test has none
		if _, err := w.Write(piece); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
		data = data[len(piece):]
	}
	_ = control.SetWriteDeadline(time.Time{})
	return nil
}

// MakeAnswer waits until the key of somebody may make an answer. How large one is, is
// known only afterwards, so that a key may make no more at once than there are
// processors to do it. done says that it is made. The error is that of ctx.
func (r *Room) MakeAnswer(ctx context.Context, key string) (done func(), err error) {
	return r.makers.Enter(ctx, key)
}
