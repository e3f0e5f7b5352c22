// Package events reads the event log, and tells when there is something new in it.
//
// What is new is read from the store once, however many readers follow the log.
package events

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Log is the event log of all sandboxes. It is safe for concurrent use.
type Log struct {
	store store.Events
	tail  tail

	mu      sync.Mutex
	changed chan struct{} // closed at the next commit
	commits int64         // how many there were
}

// New returns the log that a store keeps.
func New(st store.Events) *Log { return &Log{store: st, changed: make(chan struct{}), commits: 1} }

// Scope is whose events are asked for: those of one sandbox, or else of all that an
// API key has made. The zero Scope is all events.
type Scope struct {
	Sandbox string
	Key     string
}

func (s Scope) has(e store.Event) bool {
	if s.Sandbox != "" {
		return e.Sandbox == s.Sandbox
	}
	return s.Key == "" || e.Key == s.Key
}

// Page is a piece of the event log, oldest first.
type Page struct {
	Events []store.Event
	Next   int64 // after which to go on
	More   bool  // there may be more already
}

// EventsAfter returns up to limit events with Seq > after. Of a sandbox that is not
// known there are none.
func (l *Log) EventsAfter(ctx context.Context, of Scope, after int64, limit int) (Page, error) {
	page, found, err := l.tail.after(ctx, l, of, after, limit)
	if found || err != nil {
		return page, err
	}
	events, err := l.read(ctx, of, after, limit)
	p := Page{Events: events, Next: max(after, page.Next), More: len(events) == limit}
	if n := len(events); n > 0 && (p.More || events[n-1].Seq > p.Next) {
		p.Next = events[n-1].Seq
	}
	return p, err
}

// read reads the store.
func (l *Log) read(ctx context.Context, of Scope, after int64, limit int) ([]store.Event, error) {
	if of.Sandbox == "" && of.Key != "" {
		return l.store.EventsOfKey(ctx, of.Key, after, limit)
	}
	events, err := l.store.Events(ctx, of.Sandbox, after, limit)
	if errdef.Is(err, errdef.NotFound) {
		return nil, nil
	}
	return events, err
}

// Events returns up to limit entries of the event log with Seq > after, oldest
// first, of one sandbox or, with an empty id, of all.
func (l *Log) Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	if sandbox == "" {
		page, err := l.EventsAfter(ctx, Scope{}, after, limit)
		return page.Events, err
	}
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
	l.commits++
}

func (l *Log) commitsSoFar() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commits
}

// mostTail is how many events are kept in memory.
const mostTail = 1024

// tail is the end of the log, in memory.
type tail struct {
	mu     sync.Mutex    // held while the store is read, so that one reads for all
	events []store.Event // all with Seq > from, oldest first
	from   int64
	last   int64 // Seq of the last event that was there when the tail was read
	asOf   int64 // commits when the tail was read; 0 before the first time
}

// after returns events from memory; false if some of them are not there. Then Next
// is the last event of the log: whoever reads the store from now on misses none
// before it.
func (t *tail) after(ctx context.Context, l *Log, of Scope, after int64, limit int) (Page, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.catchUp(ctx, l); err != nil {
		return Page{}, false, err
	}
	if after < t.from {
		return Page{Next: t.last}, false, nil
	}
	p := Page{Next: max(after, t.last)}
	first, _ := slices.BinarySearchFunc(t.events, after+1, func(e store.Event, seq int64) int { return int(e.Seq - seq) })
	for _, e := range t.events[first:] {
		if !of.has(e) {
			continue
		}
		if len(p.Events) >= max(limit, 0) {
			p.More = true
			break
		}
		p.Events = append(p.Events, e)
	}
	if p.More {
		p.Next = after
		if n := len(p.Events); n > 0 {
			p.Next = p.Events[n-1].Seq
		}
	}
	return p, true, nil
}

// catchUp reads what has been committed since the last time. The number of commits
// is taken first: what is committed after that is read the next time, at the latest.
func (t *tail) catchUp(ctx context.Context, l *Log) error {
	commits := l.commitsSoFar()
	if t.asOf == commits {
		return nil
	}
	var news []store.Event
	err := error(nil)
	if t.asOf > 0 {
		news, err = l.store.Events(ctx, "", t.last, mostTail)
	}
	if t.asOf == 0 || len(news) == mostTail { // it begins, or has been left far behind
		t.events, t.from = nil, 0
		news, err = l.store.EventsBefore(ctx, "", math.MaxInt64, mostTail+1)
		slices.Reverse(news)
	}
	if err != nil {
		return err
	}
	t.events = append(t.events, news...)
	if over := len(t.events) - mostTail; over > 0 {
		t.from = t.events[over-1].Seq
		t.events = slices.Delete(t.events, 0, over)
	}
	if n := len(t.events); n > 0 {
		t.last = t.events[n-1].Seq
	}
	t.asOf = commits
	return nil
}
