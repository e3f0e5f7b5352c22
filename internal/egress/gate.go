package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Internet is what lies outside, as the server sees it.
type Internet interface {
	// Dial connects to an address.
	Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	// Lookup returns the IPv4 addresses of a host. It returns none, and no
	// error, for a host that does not exist.
	Lookup(ctx context.Context, host string) ([]netip.Addr, error)
	// Own returns the addresses that this machine has now.
	Own() ([]netip.Addr, error)
}

// Reason says why a sandbox did not get through.
type Reason string

// The reasons. The first two are those of a [Verdict].
const (
	ReasonClosed      = Reason(Closed)       // the address is closed to every sandbox, or this machine's own
	ReasonDenied      = Reason(Denied)       // the rules do not allow the address, or the question for the name
	ReasonName        = Reason("name")       // the rules allow names alone, and none of them was asked for
	ReasonUnresolved  = Reason("no address") // the name has no address now
	ReasonUnreachable = Reason("no answer")  // the other side did not take the connection
	ReasonCrowded     = Reason("too many")   // the sandbox, its key or the server has too many connections

	// Those of connections that go out through a [Proxy].
	ReasonProxyGone    = Reason("proxy unreachable") // the proxy has no address that can be reached, or did not take the connection
	ReasonProxyLogin   = Reason("proxy login")       // it did not accept the credentials, or there are none here
	ReasonProxyRefused = Reason("proxy refused")     // it did not connect on
	ReasonProxyBroken  = Reason("proxy protocol")    // it broke off, or gave an answer that is none, or none in time

	// Those of connections that an [Opener] takes over.
	ReasonPlain       = Reason("not TLS")     // it asked without TLS, and what is to be put into it must not go so
	ReasonDistrusted  = Reason("pinned")      // the program inside did not accept the certificate of the sandbox's own authority
	ReasonCertificate = Reason("certificate") // the other side's certificate could not be verified
	ReasonMismatch    = Reason("other host")  // a request was for another host than its connection
	ReasonProtocol    = Reason("protocol")    // it does not speak HTTP/1.1, or asks for what would send the request back
	ReasonUnlogged    = Reason("not logged")  // the use of a secret could not be logged
	ReasonSealed      = Reason("unreadable")  // the value of a secret could not be read
)

// Refusal is one attempt that did not get through.
type Refusal struct {
	At     time.Time
	Target string // an address and port, with the name that was asked for if one was; or a name
	Reason Reason
}

// Bounds of what one sandbox can make of the server.
const (
	maxConns     = 1024
	maxQuestions = 64 // answered at once; more are dropped, and asked again
	keptRefusals = 10
	sniffTime    = 10 * time.Second // until a connection says which name it is for
	dialTime     = 10 * time.Second
	lookupTime   = 5 * time.Second
	acceptRetry  = 50 * time.Millisecond // when the machine lacks something for a moment
)

// Gate holds one sandbox to its policy. Its methods are safe for concurrent
// use.
type Gate struct {
	internet Internet
	room     share
	counted  func(Reason)
	opener   Opener // nil for none; see SetOpener

	mu       sync.Mutex
	policy   Policy
	conns    map[*conn]struct{}
	begun    map[flow]*conn // those of conns that have not arrived
	refusals []Refusal      // newest last
}

// conn is a connection of the sandbox, from its SYN or its arrival to its end.
type conn struct {
	flow
	name   string // what it asked for, if that was needed
	http   bool   // it did so by HTTP, and is to do so in each request
	loan   loan   // of buffers, while its beginning is judged
	failed error  // why it could not be dialed

	// Guarded by Gate.mu.
	in      *net.TCPConn // nil until it has arrived
	at      netip.Addr   // where it goes: that of to, or one of the name's
	out     *net.TCPConn // nil until it is connected
	overdue *time.Timer  // nil until it has been dialed and waits to arrive
	broken  bool         // it was cut before it had arrived
}

// NewGate returns a gate that lets nothing through yet. What it takes of room
// counts for the API key that made the sandbox. Each refusal is told to counted.
func NewGate(internet Internet, room *Room, key string, counted func(Reason)) *Gate {
	return &Gate{internet: internet, room: share{room, key}, counted: counted, conns: map[*conn]struct{}{}, begun: map[flow]*conn{}}
}

// Set changes the policy. Connections that it does not allow are broken off.
func (g *Gate) Set(p Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy = p
	for c := range g.conns {
		if !c.allowedBy(p) {
			g.cutLocked(c)
		}
	}
}

// allowedBy reports whether a connection may go on under a policy.
func (c *conn) allowedBy(p Policy) bool {
	switch p.Address(c.at) {
	case Allowed:
		return true
	case ByName:
		return c.out == nil || p.Host(c.name) // until it is connected it can still say its name
	default:
		return false
	}
}

// cutLocked is cut. A connection that has not arrived is over with it, unless it
// is being dialed: then it is when that ends.
func (g *Gate) cutLocked(c *conn) {
	if c.in != nil {
		c.cut()
		return
	}
	c.broken = true
	if c.out != nil {
		g.leaveLocked(c)
	}
}

// cut breaks a connection off on both sides.
func (c *conn) cut() {
	reset(c.in)
	if c.out != nil {
		reset(c.out)
	}
}

// reset ends a connection so that the peer sees an error and not an end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// Open returns the addresses at which connections need to arrive.
func (g *Gate) Open() []Range { return g.current().Open() }

func (g *Gate) current() Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// Refusals returns the last refusals, newest first.
func (g *Gate) Refusals() []Refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := slices.Clone(g.refusals)
	slices.Reverse(list)
	return list
}

func (g *Gate) refuse(target string, why Reason) {
	g.counted(why)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.refusals) == keptRefusals {
		g.refusals = slices.Delete(g.refusals, 0, 1)
	}
	g.refusals = append(g.refusals, Refusal{At: time.Now().UTC(), Target: target, Reason: why})
}

// Serve takes over what a sandbox sends out: connections, each of which has as
// its local address the one that the sandbox connected to, and questions for
// names. Where syns is not nil, a connection arrives after its SYN has been
// answered. It returns when all of them have been closed and everything that came
// from them has ended.
func (g *Gate) Serve(conns net.Listener, names net.PacketConn, syns SYNs) {
	var work, judging sync.WaitGroup
	work.Go(func() { g.answerAll(names) })
	if syns != nil {
		judging.Go(func() { g.judgeAll(conns, syns, &work) })
	}
	for {
		c, err := conns.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			<-time.After(acceptRetry)
			continue
		}
		in := c.(*net.TCPConn)
		work.Go(func() { g.carry(conns, in, in.LocalAddr().(*net.TCPAddr).AddrPort()) })
	}
	judging.Wait() // nothing is begun any more
	g.cutAll(conns)
	work.Wait()
}

// cutAll breaks off what came from a listener: the other end is gone.
func (g *Gate) cutAll(via net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		if c.via == via {
			g.cutLocked(c)
		}
	}
}

// carry carries one connection to its end.
func (g *Gate) carry(via net.Listener, in *net.TCPConn, to netip.AddrPort) {
	defer reset(in) // after an orderly end it has been closed before
	f := flow{via, unmap(in.RemoteAddr().(*net.TCPAddr).AddrPort()), unmap(to)}
	c := g.arrived(f, in)
	if c == nil {
		c = &conn{loan: loan{from: g.room}, flow: f, in: in, at: to.Addr()}
		if !g.enter(c) {
			g.refuse(c.target(), ReasonCrowded)
			return
		}
	}
	defer g.leave(c)
	head, opens, why := g.connect(c)
	if opens {
		why = g.open(c, head)
	}
	if why != "" {
		g.refuse(c.target(), why)
		return
	}
	if opens {
		return
	}
	if c.http {
		g.relayRequests(c, head)
		return
	}
	relay(c, head)
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// target names where a connection was to go.
func (c *conn) target() string {
	if c.name == "" {
		return c.to.String()
	}
	return c.to.String() + " (" + c.name + ")"
}

func (g *Gate) enter(c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.conns) >= maxConns || !g.room.takeDescriptors(connDescriptors) {
		return false
	}
	g.conns[c] = struct{}{}
	if c.in == nil {
		g.begun[c.flow] = c
	}
	return true
}

func (g *Gate) leave(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(c)
}

// leaveLocked is leave. It can be called twice.
func (g *Gate) leaveLocked(c *conn) {
	if _, ok := g.conns[c]; !ok {
		return
	}
	delete(g.conns, c)
	if g.begun[c.flow] == c {
		delete(g.begun, c.flow)
	}
	if c.overdue != nil {
		c.overdue.Stop()
	}
	c.loan.giveAll()
	g.room.giveDescriptors(connDescriptors)
	if c.out != nil {
		reset(c.out)
	}
}

// connect connects on, if the policy allows it and the connection is not for the
// opener. It returns what has been read of the connection to judge it.
func (g *Gate) connect(c *conn) (head []byte, opens bool, why Reason) {
	p := g.current()
	verdict, watched := p.Address(c.to.Addr()), g.watches(c.to.Port())
	if c.out != nil {
		if verdict == Allowed && !watched {
			return nil, false, ""
		}
		g.hangUp(c) // its name has come to count
	}
	if verdict == ByName || verdict == Allowed && watched {
		head, c.name, c.http = sniff(c.in, sniffTime, &c.loan)
	}
	if verdict == Allowed && c.loan.short { // something may have been read and not kept
		return nil, false, ReasonCrowded
	}
	if watched && c.name != "" && g.opener.Takes(c.name, c.to.Port()) && (verdict == Allowed || verdict == ByName && p.Host(c.name)) {
		return head, true, ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	switch verdict {
	case Allowed:
		c.http = false // its requests are not judged
		return head, false, g.dial(ctx, c, []netip.Addr{c.to.Addr()})
	case ByName:
		if !p.Host(c.name) {
			return nil, false, ReasonName
		}
		// The name decides, and not the address that came with it: whatever that
		// was, the connection ends up at the host that is allowed.
		addrs, err := g.lookup(ctx, c.name)
		if err != nil || len(addrs) == 0 {
			return nil, false, ReasonUnresolved
		}
		return head, false, g.dial(ctx, c, addrs)
	default:
		return nil, false, Reason(verdict)
	}
}

func (g *Gate) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if !g.room.takeDescriptors(lookupDescriptors) {
		return nil, errCrowded
	}
	defer g.room.giveDescriptors(lookupDescriptors)
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	return g.internet.Lookup(ctx, canonical(name))
}

var errCrowded = errors.New("too many connections and questions are under way")

// dial connects to the first of the addresses that answers. Each is judged here,
// whoever named it.
func (g *Gate) dial(ctx context.Context, c *conn, addrs []netip.Addr) Reason {
	reachable, err := g.reachable(addrs)
	if err != nil {
		return ReasonUnreachable
	}
	if len(reachable) == 0 {
		return ReasonClosed
	}
	proxy, failed := g.current().proxy, ReasonUnreachable
	for _, addr := range reachable {
		to := netip.AddrPortFrom(addr, c.to.Port())
		var out *net.TCPConn
		if proxy.Host == "" {
			out, err = g.internet.Dial(ctx, to)
		} else if out, err = g.through(ctx, proxy, to); err != nil {
			failed = err.(Reason)
			if failed != ReasonProxyRefused {
				break // it is the same for every address
			}
		}
		if err != nil {
			c.failed = err
			continue
		}
		if !g.join(c, addr, out) {
			reset(out)
			return ReasonDenied
		}
		return ""
	}
	return failed
}

// reachable leaves out what is closed to every sandbox and what is this machine.
func (g *Gate) reachable(addrs []netip.Addr) ([]netip.Addr, error) {
	own, err := g.internet.Own()
	if err != nil {
		return nil, err
	}
	var left []netip.Addr
	for _, a := range addrs {
		a = a.Unmap()
		if a.Is4() && !contains(closed, a) && !slices.Contains(own, a) {
			left = append(left, a)
		}
	}
	return left, nil
}

// join completes a connection, unless the policy has changed meanwhile.
func (g *Gate) join(c *conn, at netip.Addr, out *net.TCPConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.at, c.out = at, out
	if c.allowedBy(g.policy) {
		return true
	}
	c.out = nil
	return false
}

// relay carries bytes both ways until both sides have ended, or one is broken.
func relay(c *conn, head []byte) {
	if _, err := c.out.Write(head); err != nil {
		return
	}
	c.loan.giveAll()
	var back sync.WaitGroup
	back.Go(func() { pass(c.in, c.out) })
	pass(c.out, c.in)
	back.Wait()
	_ = c.in.Close()
	_ = c.out.Close()
}

// relayRequests is relay for a connection whose requests are judged one by one.
func (g *Gate) relayRequests(c *conn, head []byte) {
	r := &requests{
		from: bufio.NewReader(io.MultiReader(bytes.NewReader(head), c.in)), to: c.out, loan: &c.loan,
		allow:    func(name string) bool { return g.current().Host(name) },
		switched: make(chan bool, 1), upgrades: upgrades(head),
	}
	var back sync.WaitGroup
	back.Go(func() {
		if r.upgrades {
			passOn(c.in, &answers{Reader: c.out, switched: r.switched}, c.out)
		} else {
			pass(c.in, c.out)
		}
	})
	err := r.pass()
	switch {
	case errors.Is(err, io.EOF) || err == nil:
		err = c.out.CloseWrite()
	case errors.Is(err, errNameless):
		g.refuse(c.target(), ReasonName)
	}
	if err != nil {
		g.mu.Lock()
		c.cut()
		g.mu.Unlock()
	}
	back.Wait()
	_ = c.in.Close()
	_ = c.out.Close()
}

// pass carries bytes one way. The kernel moves them where it can. An end is
// passed on as an end, and anything else breaks the connection off.
func pass(to, from *net.TCPConn) { passOn(to, from, from) }

// passOn is pass for what is read through something.
func passOn(to *net.TCPConn, through io.Reader, from *net.TCPConn) {
	if _, err := io.Copy(to, through); err == nil && to.CloseWrite() == nil {
		return
	}
	reset(to)
	reset(from)
}
