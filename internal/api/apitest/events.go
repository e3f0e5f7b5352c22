package apitest

import (
	"context"
	"iter"
	"math"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
)

// EventLog is the event log of a Fake.
type EventLog struct{ of *Fake }

// Events returns entries of the log.
func (l *EventLog) Events(_ context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	return l.some(sandbox, limit, slices.All, func(seq int64) bool { return seq > after })
}

// some returns entries of the log in an order.
func (l *EventLog) some(sandbox string, limit int, order func([]store.Event) iter.Seq2[int, store.Event], in func(seq int64) bool) ([]store.Event, error) {
	f := l.of
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if _, err := f.find(sandbox); sandbox != "" && err != nil {
		return nil, err
	}
	var found []store.Event
	for _, e := range order(f.log) {
		if in(e.Seq) && (sandbox == "" || e.Sandbox == sandbox) && len(found) < limit {
			found = append(found, e)
		}
	}
	return found, nil
}

// EventsAfter returns entries of the log.
func (l *EventLog) EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error) {
	f := l.of
	found, err := f.Events(ctx, of.Sandbox, after, math.MaxInt)
	if of.Sandbox == "" && of.Key != "" {
		found = slices.DeleteFunc(found, func(e store.Event) bool { return e.Key != of.Key })
	}
	p := events.Page{Events: found, Next: after, More: len(found) > limit}
	p.Events = found[:min(limit, len(found))]
	if n := len(p.Events); n > 0 {
		p.Next = p.Events[n-1].Seq
	}
	return p, err
}

// EventsBefore returns entries of the log, newest first.
func (l *EventLog) EventsBefore(_ context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	return l.some(sandbox, limit, slices.Backward, func(seq int64) bool { return seq < before })
}

// LastEvent returns the Seq of the last entry of the log.
func (l *EventLog) LastEvent(context.Context) (int64, error) {
	f := l.of
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil || len(f.log) == 0 {
		return 0, err
	}
	return f.log[len(f.log)-1].Seq, nil
}

// Changed is closed at the next commit.
func (l *EventLog) Changed() <-chan struct{} {
	f := l.of
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}
