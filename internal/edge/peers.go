package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Several servers share one database, and a request can come to any of them. The one it
// came to passes it on as it is to the one that has its sandbox, which admits it, wakes
// the sandbox, and rewrites what is to be rewritten. Between them is one more hop of
// HTTP, by mutual TLS, that only says from where the request came. One that comes to a
// server that has just given the sandbox away goes on once more.

const (
	// peerPatience is how long a connection to another server may take.
	peerPatience = 5 * time.Second
	// maxForwarded is what HeaderForwarded adds to a head, at most.
	maxForwarded = 128
	// MostHops is how often a request is passed on: a sandbox can move on while a request is on
	// its way to it, and servers do not hear of that at once.
	MostHops = 4
	// ofServer stands for how often a request was passed on that another server makes for itself.
	ofServer = MostHops + 1
	// maxPeerBuffers is maxClientBuffers for all other servers together, which serve
	// many clients.
	maxPeerBuffers = maxBuffers / 2
)

// elsewhere looks for a sandbox that is not here. Without a reply, p goes on to the
// server that has it; or that is this one by now, if p names none.
func (e *edge) elsewhere(ctx context.Context, r *request, t target, absent error, p *passage) *reply {
	server, given := store.Elsewhere(absent)
	if e.peers == nil || !given && !errdef.Is(absent, errdef.NotFound) {
		return gone(t.id, absent)
	}
	var err error
	if !given {
		server, err = e.peers.Holder(ctx, t.id)
	}
	switch {
	case lifecycle.Ended(err):
		return gone(t.id, err)
	case server != "" && r.hops >= MostHops:
		return takenOver(t.id, server)
	case errdef.CodeOf(err) == codeUnreachable:
		return &reply{Code: http.StatusServiceUnavailable, SandboxID: t.id, ErrorCode: codeUnreachable, retryAfter: 1, Message: err.Error()}
	case err != nil:
		e.log.Warn("server of a sandbox not found out", "sandbox", t.id, "err", err)
		return &reply{Code: http.StatusServiceUnavailable, SandboxID: t.id, ErrorCode: codeUnreachable, retryAfter: 1,
			Message: "The sandbox is not on this server, and could not be had from another now. Send the request again; if that lasts, see the log of this server: it says what failed"}
	case server == "":
		*p = passage{}
		return nil
	}
	*p = passage{target: target{id: t.id, port: t.port}, server: server}
	return nil
}

// takenOver is the answer to a request that has come too late to this server.
func takenOver(id, server string) *reply {
	return &reply{Code: http.StatusServiceUnavailable, SandboxID: id, Server: server, ErrorCode: codeUnreachable, retryAfter: 1,
		Message: "The server " + server + " has just taken the sandbox over, and the request was not carried out. Send it again"}
}

const codeUnreachable = "server_unreachable"

// pass enters the server that has the visit's sandbox. False if this server ends.
func (v *visit) pass(e *edge, b breaker) bool {
	e.counts.forwarded.Inc()
	v.lease = e.leaseOf(v.p.server)
	v.g = e.upstreams.enter("server "+v.p.server, v.lease) // no sandbox has such an id
	ok, _ := v.g.board(b, 0)
	return ok
}

// leaseOf returns what stands for a lease where another server has the sandbox. It is
// cut when this server ends.
func (e *edge) leaseOf(server string) *supervisor.Lease {
	return &supervisor.Lease{
		Dial:     func(ctx context.Context, _ int) (net.Conn, error) { return e.dialPeer(ctx, server, "http/1.1") },
		Cut:      e.ends,
		Why:      func() error { return errEnds },
		Progress: func(int) {}, Streams: func() {}, Release: func() {},
	}
}

var errEnds = errors.New("this server ends")

// door is the port that the visit's connections are kept under. Another server's edge
// keeps connections as the agent does: it leaves nothing of a request unread, and ends
// one that is idle only when it ends itself. Then a new one would get nowhere either.
func (v *visit) door() int {
	if v.p.server != "" {
		return agentapi.Port
	}
	return v.p.port
}

// dialPeer connects to a server. The error is an *unreachable.
func (e *edge) dialPeer(ctx context.Context, server, protocol string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	conn, err := e.peers.Dial(ctx, server, protocol)
	if err != nil {
		return nil, &unreachable{err}
	}
	keepAsking(conn, goneAfter)
	watchSilence(conn, goneAfter)
	return conn, nil
}

// unreachable is why a server got nothing of a request.
type unreachable struct{ err error }

func (u *unreachable) Error() string { return u.err.Error() }
func (u *unreachable) Unwrap() error { return u.err }

// mostAgain is how often a request goes to another server than the one that it could not be sent to.
const mostAgain = MostHops

// beginAgain decides whether a request begins again that failed on its way to a server: it does if
// that got nothing of it, and stops.
func (v *visit) beginAgain(ctx context.Context, e *edge, err error) bool {
	v.again = Unsent(err) && v.tries < mostAgain && e.peers.Stops(ctx, v.p.server)
	return v.again
}

// Unsent reports whether a request failed of which the server that it was for got nothing.
func Unsent(err error) bool { return errors.As(err, new(*unreachable)) }

// errSent is the end of a request that was sent, and could not be sent again.
var errSent = errors.New("the connection broke that it was sent on, and there was no other")

// peerFailed is the answer where another server has the sandbox and gave none. It says
// nothing of the sandbox, which is there.
func peerFailed(p *passage, err error) *reply {
	a := &reply{Code: http.StatusServiceUnavailable, SandboxID: p.id, Server: p.server, ErrorCode: codeUnreachable, retryAfter: 1}
	a.Message = "The sandbox is on the server " + p.server + ", which could not be reached. Send the request again; if that lasts, see why that server is down"
	if !Unsent(err) {
		a.Interrupted = true
		a.Message = "The connection to the server " + p.server + ", which has the sandbox, broke before it answered. See whether the request was carried out, then send it again; if that lasts, see why that server is down"
	}
	return a
}

func (e *edge) logPeer(p *passage, err error) {
	if told, ok := errors.AsType[*errdef.Error](err); ok && told.Err != nil {
		err = told.Err // the rest is for clients
	}
	e.log.Warn("request not answered by the server of its sandbox", "sandbox", p.id, "server", p.server, "err", err)
}

// appendForwarded appends a request's head as it came, and from where. The field comes
// first: what of that name the client has sent is its own affair.
func appendForwarded(out []byte, head string, r *request) []byte {
	begin := strings.IndexByte(head, '\n') + 1
	out = append(out, head[:begin]...)
	out = appendField(out, HeaderForwarded, forwardedValue(r.client, r.secure, r.hops+1))
	return append(out, head[begin:]...)
}

// SetForwarded says in the header of a request that is passed on from where r came, and that it
// is passed on for the time hop.
func SetForwarded(h http.Header, r *http.Request, hop int) {
	h[HeaderForwarded] = append([]string{forwardedValue(parseAddr(r.RemoteAddr), r.TLS != nil, hop)}, h[HeaderForwarded]...)
}

func forwardedValue(client netip.Addr, secure bool, hop int) string {
	from := "unknown" // of a connection that is none of a network
	if client.IsValid() {
		from = client.WithZone("").String()
	}
	protocol := "0"
	if secure {
		protocol = "1"
	}
	return "for=" + from + "; secure=" + protocol + "; hop=" + strconv.Itoa(hop)
}

// origin is from where a request came that another server has passed on.
type origin struct {
	client netip.Addr
	secure bool
	hops   int // how often it was passed on
}

func parseForwarded(value string) (o origin, ok bool) {
	from, rest, _ := strings.Cut(value, "; secure=")
	last, hop, _ := strings.Cut(rest, "; hop=")
	from, ok = strings.CutPrefix(from, "for=")
	if !ok || last != "0" && last != "1" {
		return origin{}, false
	}
	client, err := netip.ParseAddr(from)
	if err != nil && from != "unknown" {
		return origin{}, false
	}
	hops, err := strconv.Atoi(hop)
	return origin{client, last == "1", hops}, err == nil && hops > 0
}

var errNotForwarded = &h1.Error{Status: http.StatusBadRequest, Reason: "requests that another server passes on begin with a field " + HeaderForwarded + ", and this one has none that can be read"}

// cutForwarded takes from a head what the server that passed it on has put into it.
// The rest is the head that came to that one.
func cutForwarded(head string) (rest string, from origin, ok bool) {
	const name = HeaderForwarded + ":"
	for i := strings.IndexByte(head, '\n') + 1; 0 < i && i < len(head); {
		line, after, _ := strings.Cut(head[i:], "\n")
		if len(line) >= len(name) && strings.EqualFold(line[:len(name)], name) {
			from, ok = parseForwarded(strings.Trim(line[len(name):], " \t\r"))
			return head[:i] + after, from, ok
		}
		i += len(line) + len("\n")
	}
	return "", origin{}, false
}

// takeForwarded is cutForwarded for a request by HTTP/2.
func takeForwarded(r *http.Request) (*http.Request, bool) {
	values := r.Header[HeaderForwarded]
	if len(values) == 0 {
		return r, false
	}
	from, ok := parseForwarded(values[0])
	if !ok {
		return r, false
	}
	if r.Header[HeaderForwarded] = values[1:]; len(values) == 1 {
		delete(r.Header, HeaderForwarded)
	}
	return forwardedRequest(r, from), true
}

// forwardedRequest returns a request as one that a client made here.
func forwardedRequest(r *http.Request, from origin) *http.Request {
	r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, from.hops))
	r.RemoteAddr, r.TLS = ":0", nil
	if from.client.IsValid() {
		r.RemoteAddr = netip.AddrPortFrom(from.client, 0).String()
	}
	if from.secure {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	}
	return r
}

type forwardedKey struct{}

// Hops returns how often other servers of the database have passed on the request of a
// context: [MostHops] times at most, unless it is [FromServer].
func Hops(ctx context.Context) int {
	hops, _ := ctx.Value(forwardedKey{}).(int)
	return hops
}

// SetFromServer says in the header of a request to another server that it is this server's own,
// not one of a client.
func SetFromServer(h http.Header) {
	h.Set(HeaderForwarded, forwardedValue(netip.Addr{}, true, ofServer))
}

// FromServer reports whether another server of the database has made the request of a context for
// itself.
func FromServer(ctx context.Context) bool { return Hops(ctx) == ofServer }

// ServePeers accepts connections that other servers of the database have made, beside
// Serve, until ln is closed or Shutdown is called. Whoever gets through ln is trusted to
// be one of them: ln asks for certificates and verifies them. It accepts a *tls.Conn
// whose protocols, in ALPN, are h2 and http/1.1, and whose configuration has
// SessionTicketsDisabled: a ticket would come beside an answer, and a connection where
// something came unasked is not used again.
func (s *Server) ServePeers(ln net.Listener) error { return s.acceptAll(ln, s.acceptPeer) }

// acceptPeer serves a connection that another server has made. That one has counted the
// client.
func (s *Server) acceptPeer(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		breakOff(nc)
		return
	}
	keepAsking(nc, s.goneAfter)
	setLinger(nc, 0)
	c := newConn(s, nc, clientAddr(nc), nil)
	c.peer, c.loopback = true, false
	c.in.room.holder = ration.Holder{Name: "servers", Most: maxPeerBuffers}
	s.startLocked(c)
}

// setLinger says how the kernel closes a connection of another server: 0 is as one that
// broke, which it is if this process is killed. That one would take another end for the
// end of an answer that has no length: crypto/tls does not insist on a close_notify.
// Who ends the connection in order sets it to -1 before.
func setLinger(nc net.Conn, seconds int) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetLinger(seconds)
	}
}

// forward passes a request by HTTP/2 on to the server that has its sandbox.
func (x *exchange2) forward(p *httputil.ProxyRequest) {
	p.Out.URL = urlOf("server", x.q.target)
	p.Out.Host = p.In.Host
	keepSent(p)
	SetForwarded(p.Out.Header, p.In, x.q.hops+1)
}

// peerTransports are what carries requests by HTTP/2 to other servers, by HTTP/1.1: each
// has a connection for itself while it is under way.
type peerTransports struct {
	mu sync.Mutex
	to map[string]*http.Transport // by server
}

// TransportTo returns what carries requests to the edge of a server, whose URL has another
// host.
func (e *edge) TransportTo(server string) *http.Transport {
	p := &e.toPeers
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.to[server]; t != nil {
		return t
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := e.dialPeer(ctx, server, "http/1.1")
		if err != nil {
			return nil, err
		}
		broken, breakUp := context.WithCancelCause(context.WithoutCancel(ctx))
		return &peerConn{conn, broken, breakUp}, nil
	}
	t := &http.Transport{
		DialContext:         dial,
		DisableCompression:  true,
		Protocols:           new(http.Protocols),
		IdleConnTimeout:     agentIdle,
		MaxIdleConnsPerHost: idlePerPort,
	}
	t.Protocols.SetHTTP1(true)
	if p.to == nil {
		p.to = map[string]*http.Transport{}
	}
	p.to[server] = t
	return t
}

// peerConn is a connection to another server.
type peerConn struct {
	net.Conn
	broken  context.Context // done when it breaks; its cause says why
	breakUp context.CancelCauseFunc
}

// Read implements net.Conn.
func (c *peerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, net.ErrClosed) { // which is our own doing
		c.breakUp(err)
	}
	return n, err
}

// WhenBroken returns a context for a request, by its method, that TransportTo carries. With it f is called
// if the connection breaks before end is. The transport waits then for more of the request's body,
// which may never come: f sees to it that it does not. end returns why the last connection broke
// that did, also where the request was tried again on another, and the error of the request: one that
// was sent and changes something is not [Unsent], although the transport has tried another connection
// after that.
func WhenBroken(ctx context.Context, method string, f func()) (_ context.Context, end func(error) (lost, err error)) {
	var mu sync.Mutex
	var lost error
	var last *peerConn // of those it was tried on
	sent, stop := false, func() bool { return true }
	trace := &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) {
			mu.Lock()
			defer mu.Unlock()
			stop()
			if last != nil {
				lost = cmp.Or(context.Cause(last.broken), lost)
			}
			if conn, ok := got.Conn.(*peerConn); ok {
				last = conn
			}
		},
		WroteHeaders: func() { // nobody reads the body before
			mu.Lock()
			defer mu.Unlock()
			if sent = true; last != nil {
				stop = context.AfterFunc(last.broken, f)
			}
		},
	}
	return httptrace.WithClientTrace(ctx, trace), func(err error) (error, error) {
		mu.Lock()
		defer mu.Unlock()
		stop()
		if sent && Unsent(err) && !isSafe(method) {
			err = errSent
		}
		if last == nil {
			return nil, err
		}
		return cmp.Or(context.Cause(last.broken), lost), err
	}
}

// close closes the connections that are idle.
func (p *peerTransports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.to {
		t.CloseIdleConnections()
	}
}

// isClosedPeer is isClosed for a connection to another server: one that was killed has
// not ended its TLS.
func isClosedPeer(err error) bool { return isClosed(err) || errors.Is(err, io.ErrUnexpectedEOF) }
