package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
)

// handler serves the requests of HTTP/2 connections.
func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := false, true
		if f, ok := r.Context().Value(framesKey{}).(*frames); ok {
			r.TLS, peer = f.secure, f.peer
			defer f.requests.more(-1)
		}
		if peer {
			r, ok = takeForwarded(r)
		}
		q := request{method: r.Method, host: r.Host, target: r.RequestURI, header: header2{r.Header}, client: parseAddr(r.RemoteAddr), secure: r.TLS != nil, hops: Hops(r.Context())}
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && !peer {
			q.loopback = isLoopback(local)
		}
		x := exchange2{s: s, w: w, r: r, q: &q, begin: time.Now()}
		fields, size := fieldsOf(r)
		leave, full := s.enter2(q.client, size)
		if full != nil {
			// It is not counted, and must not wait for its client: an answer without
			// a body needs no window.
			head, _ := full.render(&q)
			maps.Copy(w.Header(), head)
			w.WriteHeader(full.Code)
			return
		}
		defer leave()
		var refusal *reply
		if !ok {
			refusal = s.malformed(errNotForwarded)
		}
		if refusal == nil {
			refusal = s.refuse2(&q, r, fields)
		}
		if refusal == nil {
			refusal = s.refuseTarget(&q)
		}
		switch {
		case refusal != nil:
			s.holdBack(r.Context(), q.client, refusal.Code)
			x.reply(refusal)
		case !routes(&q):
			s.control.ServeHTTP(w, r)
			s.finish2(w)
		default:
			defer x.end()
			x.serve()
		}
	})
}

// finish2 sends what net/http has of an answer and would send after the handler, to a
// client that opens its window or does not: until then the request is counted. A
// client that takes nothing for long has its stream reset.
func (s *Server) finish2(w http.ResponseWriter) {
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(s.headPatience))
	_ = c.Flush()
}

// enter2 counts a request by HTTP/2, with a head of that size. A client may have
// as many under way as it may have connections, because by HTTP/1.1 each would
// be one. If it has, the reply is the answer; if not, leave must follow.
func (s *Server) enter2(client netip.Addr, size int) (leave func(), refusal *reply) {
	room := room{all: s.buffers, holder: ration.Holder{Name: client.String(), Most: maxClientBuffers}}
	size = max(size-readSize, 0)
	switch {
	case !s.streams.enter(client, s.limits.PerClient):
		s.counts.refused.Inc()
		return nil, &reply{Code: http.StatusTooManyRequests, Message: "too many requests from this address are under way", plain: true, retryAfter: 1}
	case !room.take(size):
		s.streams.leave(client)
		return nil, &reply{Code: errNoRoom.Status, Message: errNoRoom.Reason, plain: true, retryAfter: 1}
	}
	return func() { room.give(size); s.streams.leave(client) }, nil
}

// refuse2 answers a request that HTTP/1.1 could not have, or that says two
// things of itself; nil if it is neither. net/http lets some pass that those
// behind would understand in another way.
func (s *Server) refuse2(q *request, r *http.Request, fields h1.Fields) *reply {
	if len(q.target) > maxTarget {
		return s.malformed(errTargetTooLarge)
	}
	length, err := h1.CheckTranslated(q.method, q.target, q.host, fields)
	if e, ok := errors.AsType[*h1.Error](err); ok {
		return s.malformed(e)
	}
	if length >= 0 && length != r.ContentLength {
		return s.malformed(&h1.Error{Status: http.StatusBadRequest, Reason: "there is no body, and Content-Length says that there is"})
	}
	return nil
}

func (s *Server) malformed(e *h1.Error) *reply {
	s.counts.malformed.Inc()
	return &reply{Code: e.Status, Message: e.Reason, plain: true}
}

// fieldsOf returns the fields of a request by HTTP/2, and how large its head is.
func fieldsOf(r *http.Request) (fields h1.Fields, size int) {
	fields, size = make(h1.Fields, 0, len(r.Header)), len(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			fields = append(fields, h1.Field{Name: name, Value: value})
			size += len(name) + len(value)
		}
	}
	return fields, size
}

// header2 are the fields of a request by HTTP/2.
type header2 struct{ http.Header }

// Count implements fields.
func (h header2) Count(name string) int { return len(h.Values(name)) }

// exchange2 is one request for a sandbox by HTTP/2, and its answer.
type exchange2 struct {
	visit
	s *Server
	w http.ResponseWriter
	r *http.Request
	q *request

	cancel context.CancelCauseFunc
	begin  time.Time
	status int

	idle *time.Timer // breaks off what passes nothing for long; nil for never

	mu             sync.Mutex // what is below is written while the body is still read
	sent, received int64
	said           *saying // what the sandbox says in messages; nil if nothing yet
	half           bool    // the request's body has not been sent to its end
	bad            error   // what came is not the body that the head says
}

// breakOff implements breaker.
func (x *exchange2) breakOff() { x.cancel(leases.ErrCut) }

// cut implements breaker.
func (x *exchange2) cut() {
	x.mu.Lock()
	said := x.said
	x.mu.Unlock()
	if said == nil || said.cut() {
		x.cancel(leases.ErrCut)
		return
	}
	time.AfterFunc(messagePatience, x.breakOff)
}

func (x *exchange2) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.s.served(x.q, x.p, "2", x.status, x.sent, x.received, x.begin)
}

func (x *exchange2) serve() {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	x.cancel = cancel
	defer cancel(nil)
	defer x.leave(x)
	defer func() {
		if x.r.Context().Err() != nil && x.g != nil && !x.g.isCut() && !x.s.isClosing() {
			x.hangUp(x.q)
		}
	}()
	if f, ok := x.r.Context().Value(framesKey{}).(*frames); ok {
		defer watchSilence(f.Conn, x.s.goneAfter)()
	}
	for begins := true; begins; begins = x.again {
		ok, refusal := x.enter(ctx, &x.s.edge, x.q, x)
		switch {
		case refusal != nil:
			x.s.holdBack(ctx, x.q.client, refusal.Code)
			x.reply(refusal)
		case !ok && x.g != nil && x.g.isCut():
			x.reply(interrupted(x.p, x.lease.Why()))
		case !ok:
			panic(http.ErrAbortHandler)
		default:
			x.relay(ctx)
		}
	}
}

func (x *exchange2) reply(a *reply) {
	x.status = a.Code
	h, body := a.render(x.q)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	maps.Copy(x.w.Header(), h)
	x.w.WriteHeader(a.Code)
	_, _ = x.w.Write(body)
	x.s.finish2(x.w)
}

// relay passes the request on by HTTP/1.1, or by HTTP/2 if it is gRPC, which
// needs that all the way.
func (x *exchange2) relay(ctx context.Context) {
	if most := x.s.limits.IdleStream; most > 0 {
		x.idle = time.AfterFunc(most, x.breakOff)
		defer x.idle.Stop()
	}
	answerEnded, whyBroken := func(error) {}, func(err error) (error, error) { return nil, err }
	body, grpc := x.r.Body, strings.HasPrefix(x.r.Header.Get("Content-Type"), "application/grpc")
	if x.p.server != "" {
		ctx, whyBroken = WhenBroken(ctx, x.r.Method, func() { _ = body.Close() })
		defer func() { _, _ = whyBroken(nil) }()
	}
	if x.r.ContentLength != 0 {
		// While net/http waits for more of the body it looks at nothing else, and
		// would not notice a cut.
		defer context.AfterFunc(ctx, func() { _ = body.Close() })()
		answerEnded = func(err error) {
			if err != nil || grpc {
				_ = body.Close() // or net/http waits for its end before it ends a stream that was reset, or has ended
			}
		}
		defer func() {
			if x.r.Body = body; !x.again {
				_ = body.Close()
			}
		}()
		x.half = true
		x.r.Body = &countedBody{ReadCloser: io.NopCloser(body), note: func(n int) { x.count(&x.received, n) }, end: x.bodyEnded}
	}
	transport, done := x.transport(grpc)
	defer done()
	proxy := &httputil.ReverseProxy{
		Rewrite:       x.rewrite,
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(x.s.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			broken, err := whyBroken(err)
			x.failed(ctx, broken, err)
		},
	}
	proxy.ModifyResponse = func(resp *http.Response) error {
		x.status = resp.StatusCode
		x.lease.Progress(0)
		if resp.ContentLength == 0 {
			// The end goes with the head: in gRPC, an answer that is only an error
			// has its trailers there, and they count only if nothing follows.
			proxy.FlushInterval = 0
		}
		resp.Body = &countedBody{ReadCloser: resp.Body, note: func(n int) { x.count(&x.sent, n) }, end: answerEnded}
		contentType := resp.Header.Get("Content-Type")
		if isEventStream(contentType) {
			x.lease.Streams()
		}
		if m := messagesOf(resp.StatusCode, "", contentType); m != nil && x.p.server == "" {
			resp.Body = x.follow(resp.Body, m)
		}
		if x.p.prefix != "" {
			x.underPrefix(resp.Header)
		}
		return nil
	}
	proxy.ServeHTTP(x.w, x.r.WithContext(ctx))
}

// underPrefix adapts the head of an answer to the path that the client knows.
func (x *exchange2) underPrefix(h http.Header) {
	for name, values := range h {
		if ofWholeOrigin(name) {
			delete(h, name)
			continue
		}
		for i := range values {
			values[i] = x.p.underPrefix(name, values[i], x.q.host)
		}
	}
	if policy := x.p.pagePolicy(); policy != "" {
		h.Add(headerPolicy, policy)
	}
}

func (x *exchange2) count(c *int64, n int) {
	x.mu.Lock()
	*c += int64(n)
	x.mu.Unlock()
	if x.idle != nil {
		x.idle.Reset(x.s.limits.IdleStream)
	}
	x.lease.Progress(n)
}

// rewrite changes nothing but where the request goes, and keeps what is only
// for the edge.
func (x *exchange2) rewrite(p *httputil.ProxyRequest) {
	if x.p.server != "" {
		x.forward(p)
		return
	}
	path := x.p.path
	if x.p.preview {
		path = withoutPreview(path)
	}
	if sent := strings.Join(p.In.Header["Cookie"], "; "); x.s.hidesCookies(sent, x.p.preview) {
		if cookies := x.s.withoutCookies(sent, x.p.preview); cookies == "" {
			p.Out.Header.Del("Cookie")
		} else {
			p.Out.Header.Set("Cookie", cookies)
		}
	}
	p.Out.URL = urlOf(x.p.id, path)
	p.Out.Host = x.p.hostInside(p.In.Host)
	keepSent(p)
	if x.p.mask != "" {
		p.Out.Header.Set("X-Forwarded-Host", p.In.Host)
	}
	if x.p.token != "" {
		p.Out.Header.Del(headerAPIKey)
		p.Out.Header.Set(agentapi.HeaderAccessToken, x.p.token)
	}
}

// keepSent gives what goes out what httputil takes from every request.
func keepSent(p *httputil.ProxyRequest) {
	p.Out.Trailer = p.In.Trailer // the same map: its values come after the body
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
}

// urlOf returns the URL that is asked for as target, a path and query as they
// came. Package url would escape some characters that it thinks odd, in a path,
// which those inside could take for another one. It leaves an opaque URL as it
// is; only not one that begins with two slashes, which it takes for a host.
func urlOf(host, target string) *url.URL {
	raw, query, hasQuery := strings.Cut(target, "?")
	u := &url.URL{Scheme: "http", Host: host, RawQuery: query, ForceQuery: hasQuery && query == ""}
	if !strings.HasPrefix(raw, "//") {
		u.Opaque = raw
		return u
	}
	u.Path, u.RawPath = raw, raw
	if decoded, err := url.PathUnescape(raw); err == nil {
		u.Path = decoded // and RawPath goes out as it is
	}
	return u
}

// bodyEnded notes that the request's body has been sent to its end, or that err
// is what came in its place.
func (x *exchange2) bodyEnded(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.half, x.bad = err != nil, err
}

// failed ends a request that was not answered. broken is why a connection to the server of its
// sandbox broke; nil if none did.
func (x *exchange2) failed(ctx context.Context, broken, err error) {
	x.mu.Lock()
	received, bad := x.received, x.bad
	half := x.half && received != x.r.ContentLength // that nothing follows may be yet to come
	x.mu.Unlock()
	if broken != nil && bad != nil {
		bad, err = nil, broken // the body's end is our doing
	}
	switch {
	case x.g.isCut() && !half && x.r.Context().Err() == nil:
		x.reply(interrupted(x.p, x.lease.Why()))
	case context.Cause(ctx) != nil, x.g.isCut():
		panic(http.ErrAbortHandler) // cut, or the client has gone: answer nothing
	case half && received > 0 && broken != nil:
		x.s.logPeer(x.p, broken)
		panic(http.ErrAbortHandler) // the sandbox was cut there, or that server has gone
	case bad != nil:
		x.reply(x.s.malformed(&h1.Error{Status: http.StatusBadRequest, Reason: "the request's body did not come as announced: " + bad.Error()}))
	case x.p.server != "" && received == 0 && x.beginAgain(ctx, &x.s.edge, err):
	case x.p.server != "":
		x.s.logPeer(x.p, err)
		x.reply(peerFailed(x.p, err))
	case errors.Is(err, syscall.ECONNREFUSED):
		x.reply(portClosed(x.p))
	default:
		x.s.log.Warn("request to sandbox failed", "sandbox", x.p.id, "port", x.p.port, "err", err)
		x.reply(brokeOff(x.p, err))
	}
}

// transport returns what carries the request, and what to call after it.
func (x *exchange2) transport(grpc bool) (rt *http.Transport, done func()) {
	protocol, dial := "http/1.1", x.connect
	if grpc {
		protocol = "h2"
	}
	switch {
	case x.p.server == "":
	case !grpc:
		return x.s.TransportTo(x.p.server), func() {}
	default:
		dial = func(ctx context.Context, protocol string) (net.Conn, error) {
			return x.s.dialPeer(ctx, x.p.server, protocol)
		}
	}
	rt = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, protocol) },
		DisableCompression: true,
		Protocols:          new(http.Protocols),
	}
	if grpc {
		rt.Protocols.SetUnencryptedHTTP2(true)
	} else {
		rt.Protocols.SetHTTP1(true)
	}
	return rt, rt.CloseIdleConnections
}

// countedBody tells when bytes pass, and when there are no more.
type countedBody struct {
	io.ReadCloser
	note func(int)
	end  func(error) // nil at the end
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.note(n)
	}
	switch {
	case errors.Is(err, io.EOF):
		b.end(nil)
	case err != nil:
		b.end(err)
	}
	return n, err
}

// follow returns the body of an answer whose messages are followed.
func (x *exchange2) follow(body io.ReadCloser, m messages) io.ReadCloser {
	s := &saying{ReadCloser: body, x: x, m: m}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.said = s
	return s
}

// saying is what the sandbox says in messages. When the exchange is cut, the
// last one says why.
type saying struct {
	io.ReadCloser
	x *exchange2

	mu    sync.Mutex
	m     messages
	isCut bool
	last  []byte // what is left of the message that says why
	over  bool   // and that is all
}

// cut tells whether the last message is complete, and nothing more is to be
// read.
func (s *saying) cut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isCut = true
	return s.m.between()
}

// Read implements io.Reader.
func (s *saying) Read(p []byte) (int, error) {
	if s.over {
		return s.readLast(p)
	}
	n, err := s.ReadCloser.Read(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isCut && s.m.between() {
		return s.endLocked(p, 0)
	}
	n, _ = follow(s.m, nil, p[:n], s.isCut)
	if s.m.between() && (s.isCut || err != nil && s.wasCut()) {
		return s.endLocked(p, n)
	}
	return n, err
}

// wasCut reports whether a stream broke because of a cut, which may be told a
// little later.
func (s *saying) wasCut() bool {
	timer := time.NewTimer(causePatience)
	defer timer.Stop()
	select {
	case <-s.x.g.cut:
		return true
	case <-s.x.r.Context().Done():
	case <-timer.C:
	}
	return false
}

// endLocked ends the stream after the first n bytes of p.
func (s *saying) endLocked(p []byte, n int) (int, error) {
	s.last, s.over = s.m.farewell(s.x.lease.Why()), true
	if n > 0 {
		return n, nil
	}
	return s.readLast(p)
}

func (s *saying) readLast(p []byte) (int, error) {
	if len(s.last) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.last)
	s.last = s.last[n:]
	return n, nil
}
