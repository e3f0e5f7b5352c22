package held

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of what a client that is refused again and again gets to hear at once.
const (
	refusalsAtOnce    = 500
	refusalsPerSecond = 100
	refusalPatience   = 5 * time.Second // no answer is held back for longer
	maxRefused        = 4096            // clients who are remembered
)

// Refusals slows down who is refused again and again. A refusal costs its client
// nothing, and the server as much as a small call: a client that asks again at once
// could have all of a processor. The zero Refusals is ready to use.
type Refusals struct {
	mu sync.Mutex
	of map[string]*rate.Limiter
}

// Wait is called when a request of a client has been refused, before it gets to know.
// It returns at once for the first refusals in a while, and later for those that
// follow closer than they may, or when ctx ends. That the client of a connection has gone
// is no reason to end ctx: it would come back sooner, and connections are counted. A
// stream of HTTP/2 that its client takes back is, because it is not counted any more.
func (r *Refusals) Wait(ctx context.Context, client string) {
	ctx, cancel := context.WithTimeout(ctx, refusalPatience)
	defer cancel()
	l := r.limiter(client)
	if err := l.Wait(ctx); err != nil { // there is no room within patience
		<-ctx.Done()
	}
}

func (r *Refusals) limiter(client string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[client]
	if l == nil {
		if len(r.of) >= maxRefused {
			r.forget()
		}
		l = rate.NewLimiter(refusalsPerSecond, refusalsAtOnce)
		if r.of == nil {
			r.of = map[string]*rate.Limiter{}
		}
		r.of[client] = l
	}
	return l
}

// forget drops clients who have not been refused for a while, or else all.
func (r *Refusals) forget() {
	for client, l := range r.of {
		if l.Tokens() >= refusalsAtOnce {
			delete(r.of, client)
		}
	}
	if len(r.of) >= maxRefused {
		clear(r.of)
	}
}
