// Package follow has a server take over what others change in the database that they
// share: soon after each change, and at once where something is asked for that is missing.
package follow

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// Every is how often a server looks for changes that is not told otherwise.
const Every = 250 * time.Millisecond

// Options say what is followed.
type Options struct {
	Owners store.Owners
	Every  time.Duration // 0 for [Every]
	// On has what is called for each kind of records that has changed, again and again
	// until it succeeds.
	On map[store.Kind]func(context.Context) error
	// Alone reports whether there is nobody to follow now; nil for never. When that ends,
	// all is taken for changed.
	Alone func(context.Context) bool
	Log   *slog.Logger
}

// order is that in which changes are taken over: events come last, since who learns of
// one looks for what it is about.
var order = []store.Kind{
	store.KindKeys, store.KindSSHKeys, store.KindSecrets, store.KindVolumes, store.KindSnapshots, store.KindTemplates,
	store.KindOwners, store.KindWebhooks, store.KindEvents,
}

// Follower takes over what other servers change. It is safe for concurrent use.
type Follower struct {
	o Options

	looking chan struct{}        // has room for one, who looks; guards what follows
	seen    map[store.Kind]int64 // of what was taken over
	failing map[store.Kind]bool  // "" is that of the look itself

	alone atomic.Int64 // when there was nobody to follow last, in Unix nanoseconds; 0 for never
	mu    sync.Mutex
	next  *reading // a look that has not begun; nil for none
}

// New returns one that knows of no change yet: at first it takes all for changed.
func New(o Options) *Follower {
	if o.Every == 0 {
		o.Every = Every
	}
	return &Follower{o: o, looking: make(chan struct{}, 1), seen: map[store.Kind]int64{}, failing: map[store.Kind]bool{}}
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	tick := time.NewTicker(f.o.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		f.looking <- struct{}{}
		f.look(ctx)
		<-f.looking
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// nowWithin is how long Now waits.
const nowWithin = time.Second

// Now returns when all is taken over that others had changed when it was called: who has
// an answer of another server then sees here what it is about. Where the database does
// not answer in time, what is known has to do. However many call it, each look is for all
// that came before it began.
func (f *Follower) Now(ctx context.Context) {
	if time.Since(time.Unix(0, f.alone.Load())) < 2*f.o.Every {
		return
	}
	f.mu.Lock()
	r := f.next
	if r == nil {
		r = &reading{done: make(chan struct{})}
		f.next = r
		go f.lookFor(context.WithoutCancel(ctx), r) // others wait for it, also if ctx ends
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, nowWithin)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

// lookFor looks for those who wait for r.
func (f *Follower) lookFor(ctx context.Context, r *reading) {
	f.looking <- struct{}{}
	defer func() { <-f.looking }()
	f.mu.Lock()
	f.next = nil
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, againWithin)
	defer cancel()
	f.look(ctx)
	close(r.done)
}

// look takes over what has changed. The caller holds looking.
func (f *Follower) look(ctx context.Context) {
	if f.o.Alone != nil && f.o.Alone(ctx) {
		f.alone.Store(time.Now().UnixNano())
		clear(f.seen)
		return
	}
	now, err := f.o.Owners.Changes(ctx)
	f.note(ctx, "", err)
	if err != nil {
		return
	}
	for _, kind := range order {
		on := f.o.On[kind]
		if seen, before := f.seen[kind]; on == nil || before && seen == now[kind] {
			continue
		}
		err := on(ctx)
		f.note(ctx, kind, err)
		if err == nil {
			f.seen[kind] = now[kind]
		}
	}
}

// note logs the first failure of several, and their end.
func (f *Follower) note(ctx context.Context, kind store.Kind, err error) {
	failed := err != nil
	if ctx.Err() != nil || failed == f.failing[kind] {
		return
	}
	f.failing[kind] = failed
	if failed {
		f.o.Log.Warn("changes of other servers cannot be read; trying again", "kind", kind, "err", err)
		return
	}
	f.o.Log.Info("changes of other servers are read again", "kind", kind)
}

const (
	// againAfter is the time from one reading to the next that is asked for out of turn.
	againAfter = 200 * time.Millisecond
	// againWithin bounds one.
	againWithin = 5 * time.Second
)

// Again reads records again where something is asked for that is missing: another server
// may just have made it. However many ask, it reads once in a while.
type Again struct {
	Read func(ctx context.Context) error

	mu    sync.Mutex
	next  *reading  // that has not begun; nil for none
	began time.Time // the last one
}

// reading is one that some wait for.
type reading struct {
	done chan struct{}
	err  error // set before done is closed
}

// Now returns when all has been read that was there when it was called. It is called
// without any lock that Read takes.
func (a *Again) Now(ctx context.Context) error {
	a.mu.Lock()
	r, wait := a.next, againAfter-time.Since(a.began)
	if r != nil {
		a.mu.Unlock()
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r = &reading{done: make(chan struct{})}
	a.next = r
	a.mu.Unlock()
	time.Sleep(wait) // others wait for this one, also if ctx ends
	a.mu.Lock()
	a.next, a.began = nil, time.Now()
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), againWithin)
	defer cancel()
	r.err = a.Read(ctx)
	close(r.done)
	return r.err
}
