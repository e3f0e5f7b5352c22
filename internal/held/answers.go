package held

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

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
			"this answer has %d bytes, and clients have as much to take as they may: %d MiB in all, %d MiB at one address, %d MiB of one API key",
			n, MaxWaiting>>20, MaxAddressWaiting>>20, MaxKeyWaiting>>20).
			WithRemedy("read the answers that are there, then try again, or ask for less at once")
	}
	return s, nil
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

// makers are those who make answers. How large one is, is known only afterwards, so
// that a key may make no more at once than there are processors to do it.
type makers struct {
	mu sync.Mutex
	of map[string]*maker // by key
}

type maker struct {
	turns *semaphore.Weighted
	users int
}

// MakeAnswer waits until the key of somebody may make an answer. done says that it is
// made. The error is that of ctx.
func (r *Room) MakeAnswer(ctx context.Context, key string) (done func(), err error) {
	r.makers.mu.Lock()
	m := r.makers.of[key]
	if m == nil {
		m = &maker{turns: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0)))}
		r.makers.of[key] = m
	}
	m.users++
	r.makers.mu.Unlock()
	leave := func() {
		r.makers.mu.Lock()
		defer r.makers.mu.Unlock()
		if m.users--; m.users == 0 {
			delete(r.makers.of, key)
		}
	}
	if err := m.turns.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { m.turns.Release(1); leave() }, nil
}
