// Package guest reaches into a sandbox for a caller of the control plane whose
// SDK asks there, and not the sandbox itself, for commands and files.
//
// Every request of it is an access like one through the edge: it wakes the
// sandbox where that is allowed, counts as activity, holds the generation that
// serves it, and ends when that is cut. Errors of the supervisor stay
// *errdef.Error through all wrapping. Who may reach which sandbox is for the
// dialect to judge before it asks.
package guest

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/client/agentpb"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
)

// Sandboxes gives access to sandboxes, as the supervisor does.
type Sandboxes interface {
	Acquire(ctx context.Context, id string, access supervisor.Access) (*supervisor.Lease, error)
	EnvdToken(id string) string
}

// Guest is the inside of one sandbox, for one caller.
type Guest struct {
	Sandboxes Sandboxes
	ID        string // of the sandbox
	Actor     string // who asks, for the record
	User      string // inside; empty for the default user of the sandbox
}

// What an answer from inside may have: the guest is hostile.
const (
	maxHeader  = 64 << 10
	maxMessage = 2 << 20  // more than the longest chunk of output, and than a list of processes
	maxListing = 32 << 20 // of a directory
)

// Processes is the agent's service for processes.
func (g Guest) Processes() processconnect.ProcessClient {
	return processconnect.NewProcessClient(g.Client(agentapi.Port), base, agentpb.Bounded(maxMessage))
}

// Files is the agent's service for files. Their bytes go by [Guest.Client].
func (g Guest) Files() filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(g.Client(agentapi.Port), base, agentpb.Bounded(maxListing))
}

// base begins every URL: the client of a guest goes nowhere else, whatever the
// host of a URL is.
const base = "http://guest"

// Client returns a client for requests to a port inside. The body of each answer
// must be closed: until then the request is under way in the sandbox.
func (g Guest) Client(port int) *http.Client {
	return &http.Client{
		Transport:     door{g, port},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// URL returns the URL of a path and query for a guest's client.
func URL(pathAndQuery string) string { return base + pathAndQuery }

// door is the way to a port inside.
type door struct {
	guest Guest
	port  int
}

// RoundTrip implements http.RoundTripper.
func (d door) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	lease, err := d.guest.Sandboxes.Acquire(ctx, d.guest.ID, supervisor.Access{
		Port: d.port, Path: r.URL.EscapedPath(), Actor: d.guest.Actor, Stream: streams(r, d.port),
	})
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	v := &visit{lease: lease, over: make(chan struct{})}
	go v.watch()
	web := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return v.dial(ctx, d.port) },
	}
	inside := r.Clone(ctx)
	inside.Header.Set(agentapi.HeaderAccessToken, d.guest.Sandboxes.EnvdToken(d.guest.ID))
	if d.guest.User != "" {
		inside.SetBasicAuth(d.guest.User, "") // selects the user inside; proves nothing
	}
	res, err := web.RoundTrip(inside)
	if err != nil {
		v.end()
		return nil, v.why(err)
	}
	res.Body = &answer{res.Body, v}
	return res, nil
}

// streams reports whether a request has no natural end, or is for a cell of code,
// which has one when it pleases.
func streams(r *http.Request, port int) bool {
	return port == agentapi.CodePort && r.URL.Path == agentapi.PathCode ||
		strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+")
}

// visit is one request inside.
type visit struct {
	lease *supervisor.Lease
	once  sync.Once
	over  chan struct{} // closed by end

	mu   sync.Mutex
	conn net.Conn // nil before there is one
	cut  bool
}

// watch breaks the visit off when its generation is cut.
func (v *visit) watch() {
	select {
	case <-v.over:
	case <-v.lease.Cut:
		v.mu.Lock()
		v.cut = true
		conn := v.conn
		v.mu.Unlock()
		if conn != nil {
			conn.Close()
		}
		v.end()
	}
}

// end gives the lease back, once.
func (v *visit) end() {
	v.once.Do(func() {
		close(v.over)
		v.lease.Release()
	})
}

// why returns the reason of a cut for an error that it caused, or else the error.
func (v *visit) why(err error) error {
	v.mu.Lock()
	cut := v.cut
	v.mu.Unlock()
	if err == nil || !cut {
		return err
	}
	if v.lease.Why != nil {
		if why := v.lease.Why(); why != nil {
			return why
		}
	}
	return leases.ErrCut
}

func (v *visit) dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := v.lease.DialPatiently(ctx, port)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut {
		conn.Close()
		return nil, leases.ErrCut
	}
	v.conn = counted{conn, v.lease.Progress}
	return v.conn, nil
}

// counted tells of every byte, by which the request's hold has not stalled.
type counted struct {
	net.Conn
	progress func(int)
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(n)
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(n)
	return n, err
}

func (c counted) note(n int) {
	if n > 0 && c.progress != nil {
		c.progress(n)
	}
}

// answer is the body of an answer; its end is the end of the visit.
type answer struct {
	body  io.ReadCloser
	visit *visit
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err == io.EOF {
		a.visit.end()
		return n, err
	}
	return n, a.visit.why(err)
}

func (a *answer) Close() error {
	err := a.body.Close()
	a.visit.end()
	return err
}
