package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// SYN is the packet by which a sandbox begins a connection.
type SYN struct {
	From, To netip.AddrPort
	Packet   []byte // for whoever made it
}

// Answer is what becomes of a SYN.
type Answer string

// The answers.
const (
	Accept      Answer = "accept"      // the connection is to arrive
	Refuse      Answer = "refuse"      // nobody listens there
	Unreachable Answer = "unreachable" // there is no way to the other side
)

// SYNs holds back what a sandbox begins to connect until it is answered. The
// sandbox sends again what gets no answer.
type SYNs interface {
	// Next waits for a SYN. The error is [net.ErrClosed] at the end.
	Next() (SYN, error)
	Answer(SYN, Answer)
}

// handshakeTime is how long the sandbox may take to complete a connection that
// the server has connected on.
const handshakeTime = 10 * time.Second

// flow names a connection.
type flow struct {
	via      net.Listener
	from, to netip.AddrPort
}

// judgeAll answers the SYNs of a sandbox, each before its connection arrives at a
// listener. What it dials meanwhile is added to work.
func (g *Gate) judgeAll(via net.Listener, syns SYNs, work *sync.WaitGroup) {
	for {
		s, err := syns.Next()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-time.After(acceptRetry)
			continue
		}
		g.judge(via, syns, s, work)
	}
}

func (g *Gate) judge(via net.Listener, syns SYNs, s SYN, work *sync.WaitGroup) {
	switch verdict := g.current().Address(s.To.Addr()); {
	case verdict == ByName, verdict == Allowed && g.watches(s.To.Port()):
		syns.Answer(s, Accept) // it is judged by what it says
		return
	case verdict != Allowed:
		return // it does not arrive; the kernel has refused it, or does so when it comes again
	}
	c := &conn{loan: loan{from: g.room}, flow: flow{via, s.From, s.To}, at: s.To.Addr()}
	g.mu.Lock()
	before := g.begun[c.flow]
	dialed := before != nil && before.overdue != nil
	g.mu.Unlock()
	switch {
	case dialed:
		syns.Answer(s, Accept) // the one before was lost
	case before != nil:
	case !g.enter(c):
		g.refuse(c.target(), ReasonCrowded)
		syns.Answer(s, Refuse)
	default:
		work.Go(func() { g.begin(c, syns, s) })
	}
}

// begin connects on for a connection that has not arrived, and has it arrive.
func (g *Gate) begin(c *conn, syns SYNs, s SYN) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	why := g.dial(ctx, c, []netip.Addr{c.to.Addr()})
	if why == "" && g.await(c) {
		syns.Answer(s, Accept)
		return
	}
	g.leave(c)
	if why != "" {
		g.refuse(c.target(), why)
	}
	syns.Answer(s, c.answer(why))
}

// answer says what a sandbox is told of a connection that did not get through.
func (c *conn) answer(why Reason) Answer {
	switch why {
	case ReasonUnreachable:
		if !errors.Is(c.failed, syscall.ECONNREFUSED) {
			return Unreachable
		}
	case ReasonProxyGone, ReasonProxyLogin, ReasonProxyBroken:
		return Unreachable
	}
	return Refuse
}

// await keeps a connection that has been dialed until it arrives, for a while. It
// returns false if it was cut meanwhile.
func (g *Gate) await(c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.broken {
		return false
	}
	c.overdue = time.AfterFunc(handshakeTime, func() { g.giveUp(c) })
	return true
}

// giveUp ends a connection that was dialed and has not arrived.
func (g *Gate) giveUp(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun[c.flow] == c {
		g.leaveLocked(c)
	}
}

// arrived returns the connection that was dialed for one that has arrived, or nil.
func (g *Gate) arrived(f flow, in *net.TCPConn) *conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.begun[f]
	if c == nil || c.overdue == nil {
		return nil
	}
	c.overdue.Stop()
	delete(g.begun, f)
	c.in = in
	return c
}
