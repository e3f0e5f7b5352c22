package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/ration"
)

// Limits bound what clients may take. Zero means no bound.
type Limits struct {
	// PerClient is how many connections one client address may have open, and
	// how many requests by HTTP/2 it may have under way.
	PerClient int
	// PerSandbox is how many requests may be under way in one sandbox.
	PerSandbox int
	// IdleStream is how long a request under way may pass without a byte either
	// way.
	IdleStream time.Duration
}

// Options is what a [Server] is made of.
type Options struct {
	Sandboxes Sandboxes
	// Peers has the sandboxes that are not here; nil for nobody.
	Peers Peers
	// Control answers what is for no sandbox.
	Control http.Handler
	// MayUse reports whether the bearer of an API key may use a sandbox. Nil is
	// for nobody.
	MayUse func(apiKey, owner string) bool
	// OwnCookies are the names of cookies that are for the control plane alone: no
	// sandbox gets them.
	OwnCookies []string
	// Domain is the wildcard domain under which sandboxes are reached; empty for
	// none.
	Domain string
	// TLS is for all connections; nil for none. HTTP's are added to its NextProtos. A
	// connection of another protocol is closed after the handshake.
	TLS       *tls.Config
	Limits    Limits
	AccessLog bool // log every request for a sandbox
	Log       *slog.Logger
}

// Fixed bounds.
const (
	maxTarget     = 32 << 10  // bytes of a URL
	maxHead       = 64 << 10  // bytes of a request's head
	maxAnswerHead = 256 << 10 // bytes of an answer's head
	headPatience  = 30 * time.Second
	idlePatience  = 620 * time.Second // between requests, as the hosted service, which clients expect
	watchEvery    = 250 * time.Millisecond
)

// Server serves the data plane, and the control plane beside it, on one
// listener.
type Server struct {
	edge
	control http.Handler
	tls     *tls.Config
	domain  string // see Options
	h2      *http.Server
	h2conns *handedOver

	headPatience time.Duration // for a request's head, from its first byte
	goneAfter    time.Duration // silence for so long takes a client for gone

	ctx  context.Context
	stop context.CancelFunc

	clients clients
	streams clients        // counts requests by HTTP/2
	buffers *ration.Ration // bytes; see room
	refused held.Refusals  // by address

	mu      sync.Mutex // taken before a conn's
	conns   map[*conn]struct{}
	closing bool
	ended   sync.WaitGroup
}

// clients counts connections by address.
type clients struct {
	mu   sync.Mutex // taken after any other
	open map[netip.Addr]int
}

// enter counts a connection; false if its client has most already.
func (c *clients) enter(client netip.Addr, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if most > 0 && c.open[client] >= most {
		return false
	}
	c.open[client]++
	return true
}

func (c *clients) leave(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[client]--; c.open[client] <= 0 {
		delete(c.open, client)
	}
}

// NewServer returns a server that serves when Serve is called.
func NewServer(o Options) *Server {
	s := &Server{
		edge:    edge{sandboxes: o.Sandboxes, peers: o.Peers, mayUse: o.MayUse, log: o.Log, limits: o.Limits, counts: newCounts(), accessLog: o.AccessLog, signers: newSigners(), ownCookies: o.OwnCookies},
		control: o.Control,
		h2conns: newHandedOver(),
		domain:  hostName(o.Domain),
		conns:   map[*conn]struct{}{},
		clients: clients{open: map[netip.Addr]int{}},
		streams: clients{open: map[netip.Addr]int{}},
		buffers: ration.New(maxBuffers),
		refused: held.NewRefusals(),

		headPatience: headPatience,
		goneAfter:    goneAfter,
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.ends = s.ctx.Done()
	s.h2 = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHead,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	// A stream that nobody reads holds what its window lets in.
	s.h2.HTTP2 = &http.HTTP2Config{
		MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: 256 << 10,
		MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame, MaxDecoderHeaderTableSize: maxDynamicTable,
	}
	s.h2.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, framesKey{}, c) }
	s.h2.Protocols.SetUnencryptedHTTP2(true) // what comes by TLS is read below
	if o.TLS != nil {
		s.tls = o.TLS.Clone()
		s.tls.NextProtos = append([]string{"h2", "http/1.1"}, o.TLS.NextProtos...)
		s.tls.GetConfigForClient = withoutTickets(s.tls.Clone())
	}
	return s
}

// withoutTickets returns a GetConfigForClient that sends no session tickets to a
// client that negotiates no protocol. TLS 1.3 sends them after the handshake. A
// client that reads and writes from two threads without a lock, as Python's
// websockets does, can then lose its connection. Such clients offer no ALPN; those
// that gain by resuming a session, as browsers, do.
func withoutTickets(c *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.SessionTicketsDisabled = true
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) == 0 {
			return c, nil
		}
		return nil, nil
	}
}

// Collector returns what the server counts.
func (s *Server) Collector() prometheus.Collector { return s.counts }

// Serve accepts connections until ln is closed or Shutdown is called, which it
// reports as http.ErrServerClosed.
func (s *Server) Serve(ln net.Listener) error {
	h2 := make(chan struct{})
	go func() {
		defer close(h2)
		_ = s.h2.Serve(s.h2conns)
	}()
	go s.watch()
	defer func() {
		s.h2conns.close()
		<-h2
	}()
	return s.acceptAll(ln, func(c net.Conn) { s.accept(c, s.tls) })
}

// acceptAll accepts connections until ln is closed or Shutdown is called.
func (s *Server) acceptAll(ln net.Listener, accept func(net.Conn)) error {
	for wait := time.Duration(0); ; {
		c, err := ln.Accept()
		switch {
		case err == nil:
			wait = 0
			accept(c)
			continue
		case s.isClosing():
			return http.ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		}
		// Out of descriptors, most likely: others must end first.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		s.log.Warn("connection not accepted", "err", err, "retry", wait)
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
		}
	}
}

// holdBack waits before a client gets an answer of that status, if it has been refused
// too often, or until ctx ends. Requests for the control plane have keys, and wait there.
func (s *Server) holdBack(ctx context.Context, client netip.Addr, status int) {
	if status >= http.StatusBadRequest && !s.isClosing() {
		s.refused.Wait(ctx, client.String())
	}
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// Shutdown ends the server: idle connections at once, the others when their
// request has ended, or when ctx has, broken off. The caller closes the
// listener.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for c := range s.conns {
		c.endIfIdle()
	}
	s.mu.Unlock()
	go func() { _ = s.h2.Shutdown(ctx) }()
	idle := make(chan struct{})
	go func() { s.ended.Wait(); close(idle) }()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.stop()
	s.toPeers.close()
	s.mu.Lock()
	for c := range s.conns {
		c.breakOff()
	}
	s.mu.Unlock()
	<-idle
	return errors.Join(err, s.h2.Close())
}

// Connect returns a connection to the server from within this process, on behalf
// of the client at an address, without TLS.
func (s *Server) Connect(client net.Addr) (net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("connect within the process: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "within")
		var failed error
		ends[i], failed = net.FileConn(f)
		err = errors.Join(err, failed, f.Close())
	}
	if err != nil {
		for _, end := range ends {
			if end != nil {
				end.Close()
			}
		}
		return nil, fmt.Errorf("connect within the process: %w", err)
	}
	s.accept(onBehalf{Conn: ends[1], client: client}, nil)
	return ends[0], nil
}

// onBehalf is a connection whose client is somebody else than who is at its other
// end.
type onBehalf struct {
	net.Conn
	client net.Addr
}

func (c onBehalf) RemoteAddr() net.Addr { return c.client }

// accept serves a connection, if its client may have another one.
func (s *Server) accept(nc net.Conn, certificates *tls.Config) {
	client := clientAddr(nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		breakOff(nc)
		return
	case !s.clients.enter(client, s.limits.PerClient):
		s.counts.refused.Inc()
		if certificates == nil {
			_, _ = nc.Write(tooManyConnections) // fits into the empty send buffer
		}
		_ = nc.Close()
		return
	}
	keepAsking(nc, s.goneAfter)
	s.startLocked(newConn(s, nc, client, certificates))
}

// startLocked serves a connection; s.mu is held.
func (s *Server) startLocked(c *conn) {
	s.conns[c] = struct{}{}
	s.counts.connections.Inc()
	s.ended.Add(1)
	go func() {
		defer s.ended.Done()
		c.serve()
		s.forget(c)
	}()
}

// forget drops a connection that has ended or that net/http serves now.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.counts.connections.Dec()
	if !c.peer && !c.secure && !c.handedOver {
		s.clients.leave(c.client) // else its connection does, at its end
	}
}

// watch looks after what takes long: clients that send slowly or have gone,
// connections that are idle.
func (s *Server) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			s.mu.Lock()
			for c := range s.conns {
				c.look(now)
			}
			s.mu.Unlock()
			s.upstreams.sweep(now)
		}
	}
}

var tooManyConnections = appendAnswer(nil, http.StatusTooManyRequests,
	http.Header{"Connection": {"close"}, "Retry-After": {"1"}, "Content-Type": {"text/plain; charset=utf-8"}},
	[]byte("too many connections from this address\n"), false)

func clientAddr(nc net.Conn) netip.Addr {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// parseAddr returns the address of an address and port as net/http has it.
func parseAddr(remote string) netip.Addr {
	a, _ := netip.ParseAddrPort(remote) // else there is none
	return a.Addr().Unmap()
}

// http2Preface begins every connection that speaks HTTP/2 without TLS.
var http2Preface = []byte("PRI * HTTP/2.0\r\n\r\n")

func speaksHTTP2(begin []byte) bool { return bytes.HasPrefix(begin, http2Preface[:16]) }

// handedOver is the listener from which net/http takes HTTP/2 connections.
type handedOver struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandedOver() *handedOver {
	return &handedOver{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *handedOver) give(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

// Accept implements net.Listener.
func (l *handedOver) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *handedOver) close() { l.once.Do(func() { close(l.done) }) }

// Close implements net.Listener.
func (l *handedOver) Close() error { l.close(); return nil }

// Addr implements net.Listener.
func (l *handedOver) Addr() net.Addr { return &net.TCPAddr{} }

// handed is a connection that net/http serves, or may come to: with what was
// already read from it, and a say at its end.
type handed struct {
	net.Conn
	prefix []byte
	onEnd  func() // called once
	once   sync.Once
}

// Read implements io.Reader.
func (c *handed) Read(p []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(p, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends the writing direction.
func (c *handed) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements net.Conn.
func (c *handed) Close() error {
	c.once.Do(c.onEnd)
	return c.Conn.Close()
}
