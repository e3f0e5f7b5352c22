package edge

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
)

// upstreams knows what is open into each generation: connections kept for the
// next request, and requests under way. All of a generation ends when that is
// cut; none of it is used for another.
type upstreams struct {
	mu          sync.Mutex
	generations map[string]*generation // by sandbox
}

// generation is what is open into one generation of a sandbox.
type generation struct {
	id     string
	number int64
	cut    <-chan struct{}

	mu      sync.Mutex
	over    bool
	ports   map[int]*port
	flights map[breaker]struct{}
	dials   map[*dialing]struct{}
}

// breaker is a request under way.
type breaker interface {
	// cut ends it, in a way that tells its client why, where there is one.
	cut()
	// breakOff breaks it off.
	breakOff()
}

// dialing is a connection that is being made.
type dialing struct{ cancel context.CancelFunc }

// port is what is open to one port.
type port struct {
	idle []*upstream
	// unproven are the connections that have not answered yet. If one takes
	// long to, the server may be one that takes a single connection at a time
	// and waits for the end of another: then, until alone, none is kept.
	unproven map[*upstream]struct{}
	alone    time.Time
	// waiting are requests that could use a kept connection, in a crowd.
	waiting []chan *upstream
}

// How long an idle connection is kept. The agent keeps it longer; a user's
// server may be one that waits for its end.
const (
	agentIdle   = 60 * time.Second
	userIdle    = 2 * time.Second
	idlePerPort = 512
	// unprovenMost is how long a connection may take to answer before the
	// server is taken for one of a single connection, and keepAlone for how
	// long it then is.
	unprovenMost = 250 * time.Millisecond
	keepAlone    = 10 * time.Second
	// crowd is how many connections may be new at once before a request that
	// could use a kept one waits for that; for so long at most. When a thousand
	// requests have waited for a wake, connecting is most of the work.
	crowd         = 32
	crowdPatience = 50 * time.Millisecond
)

// upstream is a connection into a sandbox.
type upstream struct {
	stream
	g      *generation
	port   int
	reused bool // it has answered a request before
	opened time.Time
	idleAt time.Time

	raw   syscall.RawConn // below TLS; nil until alive needs it
	peek  func(fd uintptr)
	quiet bool // what peek found: open, and nothing to read
}

// enter returns the generation of a lease.
func (u *upstreams) enter(id string, lease *supervisor.Lease) *generation {
	u.mu.Lock()
	defer u.mu.Unlock()
	if g := u.generations[id]; g != nil && g.number == lease.Generation && g.cut == lease.Cut {
		return g
	}
	g := &generation{id: id, number: lease.Generation, cut: lease.Cut, ports: map[int]*port{}, flights: map[breaker]struct{}{}, dials: map[*dialing]struct{}{}}
	if u.generations == nil {
		u.generations = map[string]*generation{}
	}
	u.generations[id] = g
	go u.await(g)
	return g
}

// await ends a generation when it is cut.
func (u *upstreams) await(g *generation) {
	<-g.cut
	u.mu.Lock()
	if u.generations[g.id] == g {
		delete(u.generations, g.id)
	}
	u.mu.Unlock()
	g.end()
	time.AfterFunc(cutPatience, g.breakOff)
}

// end ends what is open into the generation.
func (g *generation) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	for d := range g.dials {
		d.cancel()
	}
	for _, p := range g.ports {
		for _, up := range p.idle {
			_ = up.conn.Close()
		}
		p.idle = nil
		for _, turn := range p.waiting {
			turn <- nil
		}
		p.waiting = nil
	}
	for f := range g.flights {
		f.cut()
	}
}

// breakOff breaks off the requests that a cut has not ended.
func (g *generation) breakOff() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for f := range g.flights {
		f.breakOff()
	}
}

// isCut reports whether the generation has been cut, also ahead of await, which
// what failed for that reason can be.
func (g *generation) isCut() bool {
	select {
	case <-g.cut:
		return true
	default:
		return false
	}
}

// board notes a request under way. False if the generation has been cut, or
// has as many as it may have.
func (g *generation) board(f breaker, most int) (ok, full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return false, false
	}
	if most > 0 && len(g.flights) >= most {
		return false, true
	}
	g.flights[f] = struct{}{}
	return true, false
}

func (g *generation) leave(f breaker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flights, f)
}

// portLocked returns the state of a port.
func (g *generation) portLocked(n int) *port {
	p := g.ports[n]
	if p == nil {
		p = &port{unproven: map[*upstream]struct{}{}}
		g.ports[n] = p
	}
	return p
}

// dial returns a connection to a visit's port. A kept one is used if repeatable, that
// is, if the request may be sent again in case the server has just closed it;
// and to the agent or another server, which do not do that. Either must be alive.
func (g *generation) dial(ctx context.Context, v *visit, repeatable bool) (*upstream, error) {
	n := v.door()
	reusable := repeatable || n == agentapi.Port
	g.mu.Lock()
	p := g.portLocked(n)
	for len(p.idle) > 0 {
		up := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if reusable && up.alive() {
			g.mu.Unlock()
			return up, nil
		}
		// Not used, it could still keep a server of one connection busy.
		_ = up.conn.Close()
	}
	var turn chan *upstream
	if !g.over && len(p.unproven) >= crowd && reusable && v.p.server == "" && time.Now().After(p.alone) {
		turn = make(chan *upstream, 1)
		p.waiting = append(p.waiting, turn)
	}
	g.mu.Unlock()
	if turn != nil {
		if up := g.await(ctx, p, turn); up != nil {
			if up.alive() {
				return up, nil
			}
			_ = up.conn.Close()
		}
	}
	return g.open(ctx, v)
}

// await waits a moment for a connection that another request has done with;
// nil if there is none.
func (g *generation) await(ctx context.Context, p *port, turn chan *upstream) *upstream {
	timer := time.NewTimer(crowdPatience)
	defer timer.Stop()
	select {
	case up := <-turn:
		return up
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(p.waiting, turn); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return nil
	}
	return <-turn // it came just now
}

// open returns a new connection.
func (g *generation) open(ctx context.Context, v *visit) (*upstream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &dialing{cancel}
	if !g.beginDial(d) {
		return nil, leases.ErrCut
	}
	defer g.endDial(d)
	conn, err := v.connect(ctx, "http/1.1")
	if err != nil {
		return nil, err
	}
	up := &upstream{stream: newStream(conn), g: g, port: v.door(), opened: time.Now()}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.portLocked(up.port).unproven[up] = struct{}{}
	return up, nil
}

// beginDial notes a connection that is being made. False if the generation has
// been cut.
func (g *generation) beginDial(d *dialing) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return false
	}
	g.dials[d] = struct{}{}
	return true
}

func (g *generation) endDial(d *dialing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.dials, d)
}

// proven notes that the connection has been answered on.
func (up *upstream) proven() {
	if up.reused {
		return
	}
	up.reused = true
	up.g.mu.Lock()
	defer up.g.mu.Unlock()
	delete(up.g.portLocked(up.port).unproven, up)
}

// close ends the connection.
func (up *upstream) close() {
	up.proven()
	_ = up.conn.Close()
	up.drop()
}

// keep gives the connection back for another request.
func (up *upstream) keep() {
	up.proven()
	g := up.g
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.portLocked(up.port)
	now := time.Now()
	if g.over || up.r != up.w || now.Before(p.alone) || len(p.idle) >= idlePerPort {
		_ = up.conn.Close()
		return
	}
	up.shrink()
	if len(p.waiting) > 0 {
		p.waiting[0] <- up
		p.waiting = slices.Delete(p.waiting, 0, 1)
		return
	}
	up.idleAt = now
	p.idle = append(p.idle, up)
}

// alive reports whether the peer has neither closed the connection nor sent
// anything unasked, which would be taken for the answer to the next request. It
// costs one system call that does not wait.
func (up *upstream) alive() bool {
	if up.raw == nil && !up.findRaw() {
		return false
	}
	return up.raw.Control(up.peek) == nil && up.quiet
}

// findRaw finds the connection's descriptor. Below TLS, anything to read is
// unasked as well: what belongs to the last answer has been read with it.
func (up *upstream) findRaw() bool {
	below := up.conn
	if t, ok := below.(*tls.Conn); ok {
		below = t.NetConn()
	}
	c, ok := below.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	up.raw = raw
	b := new([1]byte)
	up.peek = func(fd uintptr) {
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		up.quiet = errno == unix.EAGAIN
	}
	return true
}

// sweep closes what has been idle for too long.
func (u *upstreams) sweep(now time.Time) {
	u.mu.Lock()
	generations := make([]*generation, 0, len(u.generations))
	for _, g := range u.generations {
		generations = append(generations, g)
	}
	u.mu.Unlock()
	for _, g := range generations {
		g.sweep(now)
	}
}

func (g *generation) sweep(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, p := range g.ports {
		most := userIdle
		if n == agentapi.Port {
			most = agentIdle
		} else if p.blocked(now) {
			p.alone, most = now.Add(keepAlone), 0
		}
		// The least recently used are in front.
		old := 0
		for old < len(p.idle) && now.Sub(p.idle[old].idleAt) > most {
			_ = p.idle[old].conn.Close()
			old++
		}
		p.idle = append(p.idle[:0], p.idle[old:]...)
	}
}

// blocked reports whether a connection waits for long to be answered for the
// first time.
func (p *port) blocked(now time.Time) bool {
	for up := range p.unproven {
		if now.Sub(up.opened) > unprovenMost {
			return true
		}
	}
	return false
}
