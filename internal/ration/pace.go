package ration

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

// mostPaced is how many names a Pace remembers.
const mostPaced = 4096

// Pace is how often somebody may do something that costs the server more than it costs
// them. After a number at once, those who go on wait; each name by itself.
type Pace struct {
	atOnce    int
	perSecond float64

	mu sync.Mutex
	of map[string]*rate.Limiter
}

// NewPace returns a Pace of so many at once, one at least, and so many a second from then
// on.
func NewPace(atOnce int, perSecond float64) *Pace {
	return &Pace{atOnce: atOnce, perSecond: perSecond, of: map[string]*rate.Limiter{}}
}

// Wait waits until somebody may once more. It fails when ctx ends; then it does not
// count.
func (p *Pace) Wait(ctx context.Context, name string) error {
	if err := p.limiter(name).Wait(ctx); err != nil {
		<-ctx.Done() // its deadline comes too early
		return ctx.Err()
	}
	return nil
}

func (p *Pace) limiter(name string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.of[name]
	if l == nil {
		if len(p.of) >= mostPaced {
			p.forget()
		}
		l = rate.NewLimiter(rate.Limit(p.perSecond), p.atOnce)
		p.of[name] = l
	}
	return l
}

// forget drops those who have done nothing for a while, or else all.
func (p *Pace) forget() {
	for name, l := range p.of {
		if l.Tokens() >= float64(p.atOnce) {
			delete(p.of, name)
		}
	}
	if len(p.of) >= mostPaced {
		clear(p.of)
	}
}
