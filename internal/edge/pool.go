package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// pool keeps connections to agents open between requests. Those of one
// generation are closed when it is cut: none survives into the next.
//
// Connections to the user's own servers are not kept: they may close an idle
// one just when a request is sent on it, and a request that is not idempotent
// must not be sent twice.
type pool struct {
	mu     sync.Mutex
	agents map[string]*generation // by sandbox
}

type generation struct {
	number int64
	cut    <-chan struct{}
	rt     *http.Transport
}

func newPool() *pool { return &pool{agents: map[string]*generation{}} }

// transport returns what carries a request within a lease, and what to call
// after it. A user's server is not told that its connection ends with the
// request: one that then closes with part of the request unread resets the
// connection, and its answer is lost.
func (p *pool) transport(t target, lease *supervisor.Lease) (rt *http.Transport, done func()) {
	if t.port != agentapi.Port {
		rt := newTransport(lease)
		return rt, rt.CloseIdleConnections
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.agents[t.id]; g != nil && g.number == lease.Generation && g.cut == lease.Cut {
		return g.rt, func() {}
	}
	g := &generation{number: lease.Generation, cut: lease.Cut, rt: newTransport(lease)}
	p.agents[t.id] = g
	go p.forget(t.id, g)
	return g.rt, func() {}
}

// forget drops a generation's connections when it is cut.
func (p *pool) forget(id string, g *generation) {
	<-g.cut
	p.mu.Lock()
	if p.agents[id] == g {
		delete(p.agents, id)
	}
	p.mu.Unlock()
	g.rt.CloseIdleConnections()
}

// How long an idle connection to an agent is kept; the agent keeps it longer.
const idleTimeout = 90 * time.Second

func newTransport(lease *supervisor.Lease) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				return nil, err
			}
			return dialPatiently(ctx, lease, n)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     idleTimeout,
	}
}

// dialWaits are the pauses between attempts at a port that nobody listens on:
// a server that was just started gets a moment to come up.
var dialWaits = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond}

func dialPatiently(ctx context.Context, lease *supervisor.Lease, port int) (net.Conn, error) {
	for _, wait := range dialWaits {
		conn, err := lease.Dial(ctx, port)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return lease.Dial(ctx, port)
}
