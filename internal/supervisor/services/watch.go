package services

import (
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/service"
)

// How often the agent of a sandbox with services is asked what has happened to them:
// soon while one of them is not ready, and ever less often while all are.
const (
	soon = time.Second
	late = 30 * time.Second
)

// What a sandbox may have in the event log about its services: so many entries at
// once, and one more in each refill. The rest is dropped: its guest is hostile.
const (
	mostEntries = 100
	refill      = 6 * time.Second
)

// entryTypes are the entries of the event log by what the agent says.
var entryTypes = map[service.EventType]lifecycle.EntryType{
	service.EventStarted:    lifecycle.EntryServiceStarted,
	service.EventReady:      lifecycle.EntryServiceReady,
	service.EventCrashed:    lifecycle.EntryServiceCrashed,
	service.EventEnded:      lifecycle.EntryServiceEnded,
	service.EventBackingOff: lifecycle.EntryServiceBackingOff,
}

// watcher follows what happens to the services of one sandbox.
type watcher struct {
	runtime string    // that it asks
	begun   time.Time // what is older happened before this server watched
	life    string    // of the agent that numbers events
	seen    int64     // the last event that was told of
	entries float64   // how many more it may have in the log now
	refill  time.Time // since when entries is so
}

// Watch follows what happens to services in a runtime until it ends, if there are
// any. It does no I/O itself.
func (b *Board) Watch(id string, inst runtime.Instance, list []service.Service) {
	if len(list) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	w := b.watchers[id]
	switch {
	case w == nil:
		w = &watcher{entries: mostEntries, refill: now, begun: now.Add(-settled)}
		b.watchers[id] = w
	case w.runtime == inst.ID():
		return
	}
	w.runtime = inst.ID()
	go b.follow(id, inst, w)
}

// settled is how long a runtime may have run before it is watched.
const settled = 30 * time.Second

// follow asks until the runtime ends, or another one is watched.
func (b *Board) follow(id string, inst runtime.Instance, w *watcher) {
	wait := soon
	for {
		select {
		case <-inst.Exited():
			b.ended(id)
			return
		case <-b.ctx.Done():
			return
		case <-time.After(wait):
		}
		serving, log := b.served(id)
		if log == nil { // there is no such sandbox any more
			b.ended(id)
			return
		}
		if serving != inst {
			wait = soon // it is about to sleep, or is copied
			continue
		}
		ctx, cancel := context.WithTimeout(b.ctx, askTimeout)
		report, err := b.agents.Agent(inst, id).Services(ctx, b.seen(w))
		cancel()
		wait = min(2*wait, late)
		if err == nil && b.note(report, w, log) {
			wait = soon
		}
	}
}

// ended forgets a watcher of a sandbox that has ended. One that sleeps is not
// forgotten: it may wake with its memory, and its agent with the numbers of events.
func (b *Board) ended(id string) {
	sb, err := b.sandboxes.Find(b.ctx, id)
	if err == nil && sb.Record.State != lifecycle.Terminated {
		return
	}
	b.EndServices(id)
}

// EndServices forgets what was noted of the services of a sandbox that has ended. Of one
// that was killed while it slept, nothing follows the services then.
func (b *Board) EndServices(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watchers, id)
	delete(b.ready, id)
}

// Noted returns of how many sandboxes something is noted, those that sleep included.
func (b *Board) Noted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(len(b.watchers), len(b.ready))
}

func (b *Board) seen(w *watcher) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return w.seen
}

// note writes what is new to the event log, and reports whether something goes on
// that is to be looked at soon.
func (b *Board) note(r service.Report, w *watcher, log func(lifecycle.Entry) error) (soon bool) {
	soon = slices.ContainsFunc(r.Services, func(s service.Status) bool {
		return s.State == service.Starting || s.State == service.Waiting || s.State == service.Stopping
	})
	entries, again := b.fresh(r, w, time.Now())
	soon = soon || again
	for _, e := range entries {
		soon = true
		if err := log(e); err != nil {
			return soon // it has ended, or the store takes nothing now
		}
	}
	return soon
}

// fresh returns entries for the events of a report that are new and no more than
// they may be. With again, it must be asked for all events first.
func (b *Board) fresh(r service.Report, w *watcher, now time.Time) (entries []lifecycle.Entry, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked := w.seen; r.Life != w.life {
		w.life, w.seen = r.Life, 0
		if asked > 0 {
			return nil, true
		}
	}
	more := now.Sub(w.refill).Seconds() / refill.Seconds()
	w.entries, w.refill = min(w.entries+more, mostEntries), now
	skew := now.Sub(r.Now)
	for _, e := range r.Events {
		t, known := entryTypes[e.Type]
		if e.Seq <= w.seen || !known {
			continue
		}
		w.seen = e.Seq
		at := e.At.Add(skew)
		if w.entries < 1 || at.Before(w.begun) {
			continue
		}
		w.entries--
		detail := e.Service
		if e.Detail != "" {
			detail += ": " + e.Detail
		}
		entries = append(entries, lifecycle.Entry{Type: t, At: now.UTC().Truncate(time.Microsecond), Detail: human.Line(detail, service.MaxDetail)})
	}
	return entries, false
}
