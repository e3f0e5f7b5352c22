// Package putoff holds removals back while a backup is being made that may read what is
// to be removed.
package putoff

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Options are what a queue is made of.
type Options struct {
	// Needs reports whether a backup that is being made may need what is at a path, or
	// anything if that is empty. Nil is for no backups, ever.
	Needs func(path string) bool
	// Go runs something beside all else, with a context that ends with the server.
	Go func(func(context.Context))
	// Insist removes something, and tries again for as long as it fails.
	Insist func(remove func() error, failed string, args ...any)
	Log    *slog.Logger
}

// How often it is looked whether the backup has ended, and after how long it is logged
// that it takes long.
const (
	look = time.Second
	long = 10 * time.Minute
)

// Queue is what waits for backups to end. If the server ends before, the next one finds
// the rest, as what nobody owns.
type Queue struct {
	o Options

	mu      sync.Mutex
	waiting []func() error
}

// New returns a queue in which nothing waits.
func New(o Options) *Queue { return &Queue{o: o} }

// Needs is that of the options.
func (q *Queue) Needs(path string) bool { return q.o.Needs != nil && q.o.Needs(path) }

// Later calls remove when no backup is made any more, and reports whether one is made
// that may need what is at path. If not, it does nothing.
func (q *Queue) Later(path string, remove func() error) bool {
	if !q.Needs(path) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting = append(q.waiting, remove); len(q.waiting) == 1 {
		q.o.Go(q.wait)
	}
	return true
}

func (q *Queue) wait(ctx context.Context) {
	q.o.Log.Info("a backup is being made; what is removed meanwhile stays on disk until it ends")
	begin, told := time.Now(), false
	for q.Needs("") {
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return
		}
		if time.Since(begin) > long && !told {
			told = true
			q.o.Log.Warn("a backup takes long, and holds removals back", "since", begin, "remedy", "look whether drowse backup still runs, and end it if it hangs")
		}
	}
	q.mu.Lock()
	due := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, remove := range due {
		q.o.Insist(remove, "what a backup has read could not be removed")
	}
	q.o.Log.Info("the backup has ended; what it held back is removed", "removals", len(due))
}
