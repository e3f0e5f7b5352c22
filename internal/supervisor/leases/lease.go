package leases

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Access describes a request for a way into a sandbox.
type Access struct {
	Port int
	// Path is that of an HTTP request as it was sent: percent-encoded, without
	// the query. It is empty for what has none.
	Path  string
	Actor string
	// Stream says that the access has no natural end (WebSocket, SSE, exec). A
	// pause ends it and does not wait for it.
	Stream bool
	// Probe says that the access only asks whether the sandbox runs. It is no
	// activity, wakes nothing and cancels no pause.
	Probe bool
}

// Lease is the right to talk to one committed generation. The generation is
// not released while a lease on it is open, unless Cut is closed: then the
// holder must break its connections at once.
type Lease struct {
	Generation int64
	// Ready waits until the service is ready that the access is for; nil where there
	// is nothing to wait for. Who grants the lease calls it.
	Ready func(ctx context.Context) error
	// Dial connects to a port inside the sandbox.
	Dial func(ctx context.Context, port int) (net.Conn, error)
	// Progress tells that so many bytes have passed: the hold that the lease is has not
	// stalled. It is cheap.
	Progress func(bytes int)
	// Cut is closed when the generation is about to be paused or killed, and Why
	// says then what happened.
	Cut <-chan struct{}
	Why func() error
	// Streams tells that the access has no natural end, where Access.Stream did
	// not say so.
	Streams func()
	// Release gives the lease back. It may be called more than once.
	Release func()
}

// ErrCut is why a connection has ended into a generation that was cut.
var ErrCut = errors.New("the sandbox was paused or killed")

// dialWaits are between the attempts to reach a port that nobody listens on, a second in
// all: a server that was just started comes up in a moment, after a wake in milliseconds.
var dialWaits = []time.Duration{
	2 * time.Millisecond, 8 * time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond, 150 * time.Millisecond,
	200 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond,
}

// DialPatiently connects to a port inside, and gives a server there a moment to come up.
// The error is ErrCut if the lease was cut meanwhile.
func (l *Lease) DialPatiently(ctx context.Context, port int) (net.Conn, error) {
	for _, wait := range dialWaits {
		conn, err := l.Dial(ctx, port)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.Cut:
			return nil, ErrCut
		}
	}
	return l.Dial(ctx, port)
}

// WhenReady waits until the service is ready that the access is for, and gives the
// lease back if it is not.
func (l *Lease) WhenReady(ctx context.Context) (*Lease, error) {
	if l.Ready == nil {
		return l, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-l.Cut:
			cancel(l.Why())
		case <-ended:
		}
	}()
	err := l.Ready(ctx)
	if err == nil {
		return l, nil
	}
	l.Release()
	select {
	case <-l.Cut:
		return nil, l.Why()
	default:
		return nil, err
	}
}
