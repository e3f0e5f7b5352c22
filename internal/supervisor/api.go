package supervisor

import (
	"context"
	"net"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// CreateRequest is what a new sandbox is asked to be.
type CreateRequest struct {
	Template string // id or alias, or the id of a snapshot
	Snapshot string // id or name; empty to start from Template
	Settings lifecycle.Settings
	Said     []string     // the settings that count as they are; the others get the server's defaults where they are zero
	Config   store.Config // Template and Alias are filled in by Create, and Limits where it says nothing
	Actor    string
	inherit  bool // it is a fork: Settings and Config are those of its source
}

// SnapshotRef returns what snapshot the sandbox starts from; empty for none.
func (r CreateRequest) SnapshotRef() string {
	if r.Snapshot == "" && snapshots.IsID(r.Template) {
		return r.Template
	}
	return r.Snapshot
}

// Connected is the answer to Connect.
type Connected struct {
	Sandbox store.Sandbox
	Resumed bool // it was paused and has been woken by this call or one it joined
}

// Patch changes a live or paused sandbox; nil leaves a thing as it is.
type Patch struct {
	Settings lifecycle.Patch
	Metadata map[string]string // replaces all
	Ports    store.Ports       // replaces all

	AllowInternet *bool
	AllowOut      []string // replaces all
	DenyOut       []string // replaces all
}

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

// Explanation says why a sandbox is in the state it is in and what happens
// next.
type Explanation struct {
	Sandbox store.Sandbox
	Holds   []awake.Hold // those that count first
	// LastActive is when it was active last: now, while a hold counts.
	LastActive time.Time
	// Deadlines are the clocks that run, earliest first. While a hold counts,
	// the idle timeout is not among them.
	Deadlines []lifecycle.Deadline
	Blindness awake.Blindness
	// Fault is why a sandbox that sleeps cannot wake; nil if nothing is known of
	// that.
	Fault error
	// Refusals are the last things outside that it did not get through to, newest
	// first, as far as this server has seen them.
	Refusals []egress.Refusal
	// Transitions are the last entries of the event log, newest first.
	Transitions []store.Event
}
