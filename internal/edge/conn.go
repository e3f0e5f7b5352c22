package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/ration"
)

// conn is a client's HTTP/1.1 connection. Its goroutine reads a request,
// answers it, and reads the next.
type conn struct {
	s      *Server
	client netip.Addr
	in     stream
	secure bool
	// peer says that another server of the database has made the connection, for
	// requests of its clients: client, secure and hops are then those of the last request.
	peer bool
	hops int

	loopback bool            // it came to a loopback address
	tcp      syscall.RawConn // of the client; nil if that is not by TCP

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	// Of the request under way, and reused: what each request would leave to the
	// garbage collector is marked among the records of all sandboxes.
	fields       h1.Fields
	req          h1.Request
	r            request
	x            exchange
	answerFields h1.Fields
	resp         h1.Response
	out          []byte

	begun      bool // the first request has been read
	handedOver bool // net/http serves the connection now

	mu       sync.Mutex
	phase    phase
	since    time.Time // of the phase; set by look, so late by up to a tick
	moved    uint64    // counts bytes that passed; not exactly
	movedWas uint64
	movedAt  time.Time
	reading  bool          // somebody reads from the client, or will at once
	watching chan struct{} // closed when the watcher has ended; nil if there is none
	up       net.Conn      // where the request goes, to be broken off with this
	askedAt  time.Time     // when it was last looked whether the client is there
	gone     bool          // the client is; it was not the server that ended the request
	broken   bool
}

// phase is what a connection waits for.
type phase uint8

const (
	phaseIdle   phase = iota // the next request
	phaseHead                // the rest of a head
	phaseAnswer              // the end of a request under way
)

func newConn(s *Server, nc net.Conn, client netip.Addr, certificates *tls.Config) *conn {
	c := &conn{s: s, client: client, loopback: isLoopback(nc.LocalAddr()), tcp: tcpOf(nc)}
	if certificates != nil {
		// Below TLS, because the others look for a *tls.Conn on top.
		nc = tls.Server(&handed{Conn: nc, onEnd: func() { s.clients.leave(client) }}, certificates)
		c.secure = true
	}
	c.in = stream{conn: nc, room: &room{all: s.buffers, holder: ration.Holder{Name: client.String(), Most: maxClientBuffers}}}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.phase = phaseHead // of a handshake or of the first request
	return c
}

// serve runs the connection to its end, which is clean unless something was
// broken off.
func (c *conn) serve() {
	defer c.cancel()
	if t, ok := c.in.conn.(*tls.Conn); ok {
		if err := t.HandshakeContext(c.ctx); err != nil {
			_ = t.Close()
			return
		}
		switch t.ConnectionState().NegotiatedProtocol {
		case "", "http/1.1":
		case "h2":
			c.handOver()
			return
		default: // of Options.TLS: the handshake was all
			_ = t.Close()
			return
		}
	}
	c.in.buf = make([]byte, readSize)
	for c.serveRequest() {
		c.in.shrink()
	}
	if !c.handedOver {
		c.endInOrder()
		_ = c.in.conn.Close()
	}
	c.stopWatching()
	c.in.drop()
}

// serveRequest answers one request. False ends the connection.
func (c *conn) serveRequest() bool {
	if c.begun && !c.enter(phaseIdle) {
		return false
	}
	most := maxHead
	if c.peer {
		most += maxForwarded
	}
	head, err := c.in.readHead(most, maxTarget, func() { c.enter(phaseHead) })
	if err != nil {
		c.refuse(err)
		return false
	}
	c.begun = true
	if !c.peer && speaksHTTP2(c.in.buffered()) {
		c.handOver()
		return false
	}
	c.enter(phaseAnswer)
	size := len(head)
	if c.peer {
		own, from, ok := cutForwarded(head)
		if !ok {
			c.refuse(errNotForwarded)
			return false
		}
		head, c.client, c.secure, c.hops = own, from.client, from.secure, from.hops
	}
	c.req, err = h1.ParseRequest(head, c.fields[:0])
	req := &c.req
	if req.Fields != nil {
		c.fields = req.Fields
	}
	if err != nil {
		c.refuse(err)
		return false
	}
	c.in.skip(size)
	c.r = request{method: req.Method, host: req.Host, target: req.Target, header: &req.Fields, client: c.client, secure: c.secure, loopback: c.loopback, hops: c.hops}
	r := &c.r
	if refusal := c.s.refuseTarget(r); refusal != nil {
		c.stopWatching()
		c.s.holdBack(c.s.ctx, c.client, refusal.Code)
		return c.answer(r, refusal, !req.Close && c.drain(req), req.Method)
	}
	if routes(r) {
		c.x = exchange{c: c, head: head, req: req, r: r}
		if !c.x.serve() {
			return false
		}
		// Nothing uses it any more. A connection that is idle holds on to no sandbox.
		c.x = exchange{}
		return !c.s.isClosing()
	}
	own := *req // handlers may keep what they were given, but for its fields
	return c.serveControl(head, &own) && !c.s.isClosing()
}

// refuse answers what cannot be read as a request, and ends the connection.
func (c *conn) refuse(err error) {
	c.stopWatching()
	e, ok := errors.AsType[*h1.Error](err)
	switch {
	case ok:
		c.s.holdBack(c.s.ctx, c.client, e.Status)
	case errors.Is(err, os.ErrDeadlineExceeded) && c.inPhase(phaseHead):
		e = &h1.Error{Status: http.StatusRequestTimeout, Reason: "the request did not come within " + c.s.headPatience.String()}
		_ = c.in.conn.SetDeadline(time.Now().Add(time.Second)) // for the answer
	default:
		return // closed, or idle for too long
	}
	c.s.counts.malformed.Inc()
	a := reply{Code: e.Status, Message: e.Reason, plain: true}
	c.answer(&request{header: h1.Fields(nil)}, &a, false, "")
	c.linger()
}

// answer writes a reply of the server's own. False if the connection is over.
func (c *conn) answer(r *request, a *reply, keep bool, method string) bool {
	h, body := a.render(r)
	if !keep {
		h.Set("Connection", "close")
	}
	c.out = appendAnswer(c.out[:0], a.Code, h, body, method == http.MethodHead)
	_, err := c.in.conn.Write(c.out)
	return err == nil && keep
}

// Bounds of what is read of a body that nobody wants.
const (
	drainBytes = 256 << 10
	lingerFor  = 5 * time.Second
	lingerPace = 10 * time.Millisecond // between two times drainBytes
)

// drain reads the rest of a body that nobody wants, so that the connection can
// be used again. False if it cannot.
func (c *conn) drain(req *h1.Request) bool {
	switch {
	case req.Length == 0:
		return true
	case req.Length > drainBytes || req.Fields.Get("Expect") != "":
		return false
	}
	_ = c.in.conn.SetReadDeadline(time.Now().Add(lingerFor))
	left := drainBytes
	note := func(n int) {
		if left -= n; left < 0 {
			_ = c.in.conn.SetReadDeadline(past)
		}
	}
	if err := c.copyBody(discard{}, req, note); err != nil {
		return false
	}
	return c.in.conn.SetReadDeadline(time.Time{}) == nil
}

// linger ends the connection so that the client can read the last answer: data
// that arrives on a closed connection would reset it, and with it the answer. What
// a client still sends is read slowly, so that it has time to look for an answer
// however much it has.
func (c *conn) linger() {
	_ = c.in.conn.SetReadDeadline(time.Now().Add(lingerFor))
	if closeWrite(c.in.conn) != nil {
		return
	}
	for pace := time.Tick(lingerPace); ; <-pace {
		if _, err := io.CopyN(io.Discard, c.in.conn, drainBytes); err != nil {
			return
		}
	}
}

// copyBody passes on the request's body.
func (c *conn) copyBody(dst net.Conn, req *h1.Request, note func(int)) error {
	if req.Length == h1.Chunked {
		return c.in.copyChunks(dst, false, note)
	}
	return c.in.copyN(dst, req.Length, note)
}

// discard is a connection into which bodies vanish.
type discard struct{ net.Conn }

// Write implements io.Writer.
func (discard) Write(p []byte) (int, error) { return len(p), nil }

// endInOrder lets the connection be closed without a reset; see setLinger.
func (c *conn) endInOrder() {
	if c.peer {
		setLinger(c.in.conn, -1)
	}
}

// handOver gives the connection to net/http, which speaks HTTP/2.
func (c *conn) handOver() {
	c.stopWatching()
	c.endInOrder()
	c.handedOver = true
	given := c.in.conn
	if !c.secure && !c.peer {
		client, all := c.client, &c.s.clients
		given = &handed{Conn: given, prefix: bytes.Clone(c.in.buffered()), onEnd: func() { all.leave(client) }}
	}
	var state *tls.ConnectionState
	if t, ok := given.(*tls.Conn); ok {
		now := t.ConnectionState()
		state = &now
	}
	f := newFrames(given, state, c.s.headPatience, &room{all: c.s.buffers, holder: c.in.room.holder})
	f.peer, given = c.peer, f
	if !c.s.h2conns.give(given) {
		_ = given.Close()
	}
}

// enter begins a phase; false if the connection has been broken off.
func (c *conn) enter(p phase) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase, c.since, c.movedAt, c.reading = p, time.Time{}, time.Time{}, true
	return !c.broken
}

func (c *conn) inPhase(p phase) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase == p
}

// past makes reads end at once.
var past = time.Unix(1, 0)

// look is called at every tick.
func (c *conn) look(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		c.since = now
		return
	}
	age := now.Sub(c.since)
	switch c.phase {
	case phaseIdle:
		if age > idlePatience {
			_ = c.in.conn.SetReadDeadline(past)
		}
	case phaseHead:
		if age > c.s.headPatience {
			_ = c.in.conn.SetDeadline(past)
		}
	case phaseAnswer:
		if c.watching == nil && !c.reading && !c.broken {
			c.watching = make(chan struct{})
			go c.watch(c.watching)
		}
		if now.Sub(c.askedAt) > c.s.goneAfter/8 {
			c.askedAt = now
			if silent(c.tcp, c.s.goneAfter) {
				c.gone = true
				c.breakOffLocked()
			}
		}
		c.lookAtStreamLocked(now)
	}
}

func (c *conn) lookAtStreamLocked(now time.Time) {
	most := c.s.limits.IdleStream
	switch {
	case most == 0 || c.broken:
	case c.movedAt.IsZero() || c.moved != c.movedWas:
		c.movedAt, c.movedWas = now, c.moved
	case now.Sub(c.movedAt) > most:
		c.breakOffLocked()
	}
}

// watch waits for the client to go away while its request is under way. What
// it reads instead is the beginning of the next request, and stays there.
func (c *conn) watch(done chan struct{}) {
	defer close(done)
	err := c.in.fill()
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = c.gone || !c.broken
	c.breakOffLocked()
}

// lost notes that the client took no more of an answer, and did not have it broken off.
func (c *conn) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = c.gone || !c.broken
}

// hasGone reports whether the client has gone while its request was under way.
func (c *conn) hasGone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// stopWatching ends the watcher, so that somebody else may read.
func (c *conn) stopWatching() {
	c.mu.Lock()
	watching := c.watching
	c.reading = true // no new one
	c.mu.Unlock()
	if watching == nil {
		return
	}
	_ = c.in.conn.SetReadDeadline(past)
	<-watching
	_ = c.in.conn.SetReadDeadline(time.Time{})
	c.mu.Lock()
	c.watching = nil
	c.mu.Unlock()
}

// startWatching lets the client be watched: nobody reads its connection.
func (c *conn) startWatching() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
}

// note counts bytes that passed.
func (c *conn) note(n int) {
	c.mu.Lock()
	c.moved += uint64(n)
	c.mu.Unlock()
}

// bind ties the connection that a request goes to to this one. False if this
// one has been broken off.
func (c *conn) bind(up net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return false
	}
	c.up = up
	return true
}

// unbind unties them. False if that one has been broken off with this.
func (c *conn) unbind() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = nil
	return !c.broken
}

// breakOff ends the connection, and the one its request goes to, so that both
// peers see that it broke.
func (c *conn) breakOff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakOffLocked()
}

func (c *conn) breakOffLocked() {
	if c.broken {
		return
	}
	c.broken = true
	c.cancel()
	breakOff(c.in.conn)
	if c.up != nil {
		breakOff(c.up)
	}
}

// endIfIdle ends the connection unless a request is under way.
func (c *conn) endIfIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == phaseIdle {
		_ = c.in.conn.SetReadDeadline(past)
	}
}
