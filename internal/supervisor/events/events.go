// Package events reads the event log, and tells when there is something new in it.
package events

import (
	"context"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Log is the event log of all sandboxes. It is safe for concurrent use.
type Log struct {
	store store.Events

	mu      sync.Mutex
	changed chan struct{} // closed at the next commit
}

// New returns the log that a store keeps.
func New(st store.Events) *Log { return &Log{store: st, changed: make(chan struct{})} }

// Events returns up to limit entries of the event log with Seq > after, oldest
// first, of one sandbox or, with an empty id, of all.
func (l *Log) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	return l.store.Events(ctx, sandbox, after, limit)
}

// EventsBefore returns up to limit entries of the event log with Seq < before,
// newest first, of one sandbox or, with an empty id, of all.
func (l *Log) EventsBefore(ctx context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	return l.store.EventsBefore(ctx, sandbox, before, limit)
}

// LastEvent returns the Seq of the last entry of the event log; 0 if there is
// none.
func (l *Log) LastEvent(ctx context.Context) (int64, error) {
	last, err := l.store.LastEvents(ctx, "", 1)
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[0].Seq, nil
}

// LastEvents returns the last entries about a sandbox, newest first. Of one that
// has not been committed yet there are none.
func (l *Log) LastEvents(ctx context.Context, sandbox string, limit int) ([]store.Event, error) {
	events, err := l.store.LastEvents(ctx, sandbox, limit)
	if errdef.Is(err, errdef.NotFound) {
		return nil, nil
	}
	return events, err
}

// Changed returns a channel that is closed at the next commit of any sandbox.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Announce tells that something has been committed.
func (l *Log) Announce() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}
