package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// handler serves the requests of HTTP/2 connections.
func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := request{method: r.Method, host: r.Host, target: r.RequestURI, header: header2{r.Header}, client: parseAddr(r.RemoteAddr), secure: r.TLS != nil}
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			q.loopback = isLoopback(local)
		}
		if refusal := s.refuseTarget(&q); refusal != nil {
			x := exchange2{s: s, w: w, r: r, q: &q, begin: time.Now()}
			x.reply(refusal)
			return
		}
		if !routes(&q) {
			s.control.ServeHTTP(w, r)
			return
		}
		x := exchange2{s: s, w: w, r: r, q: &q, begin: time.Now()}
		defer x.end()
		x.serve()
	})
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

	mu             sync.Mutex // what is below is written while the body is still read
	sent, received int64
	said           *saying // what the sandbox says in messages; nil if nothing yet
	half           bool    // the request's body has not been sent to its end
}

// breakOff implements breaker.
func (x *exchange2) breakOff() { x.cancel(errCut) }

// cut implements breaker.
func (x *exchange2) cut() {
	x.mu.Lock()
	said := x.said
	x.mu.Unlock()
	if said == nil || said.cut() {
		x.cancel(errCut)
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
	ok, refusal := x.enter(ctx, &x.s.edge, x.q, x)
	switch {
	case refusal != nil:
		x.reply(refusal)
	case !ok && x.g != nil && x.g.isCut():
		x.reply(interrupted(x.p.id, x.lease.Why()))
	case !ok:
		panic(http.ErrAbortHandler)
	default:
		x.relay(ctx)
	}
}

func (x *exchange2) reply(a *reply) {
	x.status = a.Code
	h, body := a.render(x.q)
	for name, values := range h {
		x.w.Header()[name] = values
	}
	x.w.WriteHeader(a.Code)
	_, _ = x.w.Write(body)
}

// relay passes the request on by HTTP/1.1, or by HTTP/2 if it is gRPC, which
// needs that all the way.
func (x *exchange2) relay(ctx context.Context) {
	if x.r.ContentLength != 0 {
		// While net/http waits for more of the body it looks at nothing else, and
		// would not notice a cut.
		body := x.r.Body
		defer context.AfterFunc(ctx, func() { _ = body.Close() })()
		x.half = true
		x.r.Body = &countedBody{ReadCloser: x.r.Body, note: func(n int) { x.count(&x.received, n) }, end: x.bodySent}
	}
	transport, done := x.transport(strings.HasPrefix(x.r.Header.Get("Content-Type"), "application/grpc"))
	defer done()
	proxy := &httputil.ReverseProxy{
		Rewrite:       x.rewrite,
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(x.s.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			x.failed(ctx, err)
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
		resp.Body = &countedBody{ReadCloser: resp.Body, note: func(n int) { x.count(&x.sent, n) }, end: func() {}}
		contentType := resp.Header.Get("Content-Type")
		if isEventStream(contentType) {
			x.lease.Streams()
		}
		if m := messagesOf(resp.StatusCode, "", contentType); m != nil {
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
	x.lease.Progress(n)
}

// rewrite changes nothing but where the request goes, and keeps what is only
// for the edge.
func (x *exchange2) rewrite(p *httputil.ProxyRequest) {
	path := x.p.path
	if x.p.preview {
		path = withoutPreview(path)
		if cookies := withoutPreviewCookie(strings.Join(p.In.Header["Cookie"], "; ")); cookies == "" {
			p.Out.Header.Del("Cookie")
		} else {
			p.Out.Header.Set("Cookie", cookies)
		}
	}
	raw, query, _ := strings.Cut(path, "?")
	p.Out.URL = &url.URL{Scheme: "http", Host: x.p.id, Path: raw, RawPath: raw, RawQuery: query}
	if decoded, err := url.PathUnescape(raw); err == nil {
		p.Out.URL.Path = decoded // and RawPath goes out as it is
	}
	p.Out.Host = x.p.hostInside(p.In.Host)
	p.Out.Trailer = p.In.Trailer // the same map: its values come after the body
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
	if x.p.mask != "" {
		p.Out.Header.Set("X-Forwarded-Host", p.In.Host)
	}
}

// bodySent notes that the request's body has been sent to its end.
func (x *exchange2) bodySent() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.half = false
}

func (x *exchange2) failed(ctx context.Context, err error) {
	x.mu.Lock()
	half := x.half
	x.mu.Unlock()
	switch {
	case x.g.isCut() && !half && x.r.Context().Err() == nil:
		x.reply(interrupted(x.p.id, x.lease.Why()))
	case context.Cause(ctx) != nil, x.g.isCut():
		panic(http.ErrAbortHandler) // cut, or the client has gone: answer nothing
	case errors.Is(err, syscall.ECONNREFUSED):
		x.reply(portClosed(x.p))
	default:
		x.s.log.Warn("request to sandbox failed", "sandbox", x.p.id, "port", x.p.port, "err", err)
		x.reply(brokeOff(x.p))
	}
}

// transport returns what carries the request, and what to call after it.
func (x *exchange2) transport(grpc bool) (rt *http.Transport, done func()) {
	protocol := "http/1.1"
	if grpc {
		protocol = "h2"
	}
	rt = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return x.connect(ctx, protocol) },
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
	end  func()
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.note(n)
	}
	if errors.Is(err, io.EOF) {
		b.end()
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
