// Package inject puts secrets into requests that leave a sandbox, so that the
// sandbox need not have them.
//
// An [Opener] takes over the connections to the hosts that secrets are for, and no
// others. It answers a TLS greeting with a certificate of the sandbox's own
// [Authority], reads the requests, and passes each on over a connection of its own,
// whose certificate it verifies. What a request has in the place of a secret, or
// lacks of it, is put in on the way; answers lose the value from their headers.
//
// Requests and answers are parsed and written anew, so that what goes out is one
// request, for the host that the connection is for, whatever the sandbox has
// written. Only HTTP/1.1 is spoken; WebSockets pass once their request has.
package inject

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
)

// Source has the secrets of one sandbox.
type Source interface {
	// Watches reports whether there can be secrets for hosts at a port.
	Watches(port uint16) bool
	// For returns the secrets for a host, those that come first before others. The
	// error is an [egress.Reason].
	For(host string, port uint16) ([]Secret, error)
	// Takes reports whether there are secrets for a host.
	Takes(host string, port uint16) bool
	// Used is told of a use before the request goes out, and keeps it back by an
	// error.
	Used(u Use) error
	// Refused is told of what did not get through to a host, and why.
	Refused(host string, why egress.Reason)
	// Authority returns what the sandbox trusts.
	Authority() (*Authority, error)
}

// Use is one use of secrets.
type Use struct {
	Secrets []string
	Host    string
	Method  string
}

// Opener is an [egress.Opener] for one sandbox.
type Opener struct {
	Source
	Roots *x509.CertPool // by whom servers are verified; nil for this machine's
}

// The bounds of a connection.
const (
	handshakeTime = 15 * time.Second
	headTime      = 30 * time.Second // from the first byte of a request to the end of its head
	idleTime      = 10 * time.Minute // between two requests
	maxHead       = 64 << 10         // of a request
	maxAnswerHead = 256 << 10
)

// Carry implements egress.Opener.
func (o *Opener) Carry(t egress.Taken) egress.Reason {
	refuse := t.Refuse
	t.Refuse = func(why egress.Reason) {
		refuse(why)
		o.Refused(t.Name, why)
	}
	why := (&carried{Opener: o, Taken: t, closed: make(chan struct{})}).carry()
	if why != "" {
		o.Refused(t.Name, why)
	}
	return why
}

func (c *carried) carry() egress.Reason {
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer c.cancel()
	in := c.Conn
	if c.TLS {
		secured, why := c.greet()
		if why != "" {
			return why
		}
		in = secured
	} else if why := c.mayGoPlain(); why != "" {
		return why
	}
	c.serve(in)
	if c.TLS && !c.asked {
		return egress.ReasonDistrusted // a program that pins a certificate sees it, and leaves
	}
	return ""
}

// carried is one connection.
type carried struct {
	*Opener
	egress.Taken
	ctx    context.Context
	cancel context.CancelFunc
	asked  bool // a request has arrived

	once   sync.Once
	closed chan struct{} // when the sandbox's end is
}

// greet answers the TLS greeting.
func (c *carried) greet() (net.Conn, egress.Reason) {
	authority, err := c.Authority()
	if err != nil {
		return nil, egress.ReasonSealed
	}
	leaf, err := authority.Leaf(c.Name)
	if err != nil {
		return nil, egress.ReasonSealed
	}
	in := tls.Server(c.Conn, &tls.Config{
		Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
		SessionTicketsDisabled: true,
	})
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTime)
	defer cancel()
	err = in.HandshakeContext(ctx)
	if err == nil {
		return in, ""
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" || errors.Is(err, io.EOF) {
		return nil, egress.ReasonDistrusted
	}
	return nil, egress.ReasonProtocol
}

// mayGoPlain judges a connection without TLS. One that may not go on gets an
// answer, because it can be read.
func (c *carried) mayGoPlain() egress.Reason {
	secrets, err := c.For(c.Name, c.Port)
	if err != nil {
		return reasonOf(err)
	}
	var names []string
	for _, s := range secrets {
		if s.Plain {
			return ""
		}
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return "" // they have ended just now
	}
	text := fmt.Sprintf("drowse refused this request: it is for %s without TLS, and the secret %s must not go there in the clear. Use https, or allow it: drowse secret set --plain.\n",
		c.Name, strings.Join(names, ", "))
	_ = c.Conn.SetDeadline(time.Now().Add(handshakeTime))
	_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	drain(c.Conn)
	return egress.ReasonPlain
}

// drain takes what was sent already: a connection that is closed before it is read
// is reset, and the answer may be lost.
func drain(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c, maxHead)
}

// serve answers the requests of a connection until it has ended.
func (c *carried) serve(in net.Conn) {
	quiet := log.New(io.Discard, "", 0)
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dialTLS(ctx) },
		MaxConnsPerHost:        1,
		IdleConnTimeout:        idleTime,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHead,
		ExpectContinueTimeout:  time.Second,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite: c.rewrite, Transport: transport, FlushInterval: -1, ErrorLog: quiet,
		ModifyResponse: c.modify, ErrorHandler: c.fail,
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(proxy, w, r) }),
		BaseContext:       func(net.Listener) context.Context { return c.ctx },
		ReadHeaderTimeout: headTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHead, ErrorLog: quiet,
		TLSNextProto:                 map[string]func(*http.Server, *tls.Conn, http.Handler){},
		DisableGeneralOptionsHandler: true,
	}
	if err := server.Serve(&single{conn: &watched{in, c}, closed: c.closed}); !errors.Is(err, net.ErrClosed) {
		_ = in.Close()
	}
	<-c.closed
}

// single is a listener with one connection.
type single struct {
	conn   net.Conn
	closed <-chan struct{}
}

// Accept implements net.Listener.
func (s *single) Accept() (net.Conn, error) {
	if conn := s.conn; conn != nil {
		s.conn = nil
		return conn, nil
	}
	<-s.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (s *single) Close() error { return nil }

// Addr implements net.Listener.
func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

// watched is a connection that tells when it is closed.
type watched struct {
	net.Conn
	c *carried
}

// Close implements net.Conn.
func (w *watched) Close() error {
	err := w.Conn.Close()
	w.c.once.Do(func() { close(w.c.closed) })
	return err
}

// dial connects to the host. The connection ends with that of the sandbox, even if
// it is complete only then.
func (c *carried) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	out, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &tied{out, context.AfterFunc(c.ctx, func() { _ = out.Close() })}, nil
}

// tied is a connection that ends with another, which holds nothing of it once it is
// closed: the other may see many of them.
type tied struct {
	net.Conn
	untie func() bool
}

// Close implements net.Conn.
func (t *tied) Close() error {
	t.untie()
	return t.Conn.Close()
}

// dialTLS connects to the host, and verifies that it is that.
func (c *carried) dialTLS(ctx context.Context) (net.Conn, error) {
	raw, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	out := tls.Client(raw, &tls.Config{ServerName: c.Name, RootCAs: c.Roots, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := out.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return out, nil
}

// secretsOf are those that a request is to have, in its context.
type secretsOf struct{}

// answer answers one request.
func (c *carried) answer(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	c.asked = true
	if status, why, text := c.judge(r); why != "" {
		c.Refuse(why)
		refuse(w, status, text)
		return
	}
	if up := r.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		r.Header.Del("Upgrade") // a server may ignore it, and so may what is in between
	}
	all, err := c.For(c.Name, c.Port)
	if err != nil {
		c.Refuse(reasonOf(err))
		refuse(w, http.StatusBadGateway, "a secret for "+c.Name+" cannot be read. The server's log says why")
		return
	}
	u := Use{Host: c.Name, Method: r.Method}
	var put []Secret
	for _, s := range all {
		if !c.TLS && !s.Plain || !s.wanted(r) {
			continue
		}
		put, u.Secrets = append(put, s), append(u.Secrets, s.Name)
		// Whoever revokes it wants an end of what goes on by it, too.
		defer context.AfterFunc(s.Life, func() { _ = c.Conn.Close(); c.cancel() })()
	}
	if len(put) > 0 {
		if err := c.Used(u); err != nil {
			c.Refuse(egress.ReasonUnlogged)
			refuse(w, http.StatusServiceUnavailable, "the use of a secret could not be logged, and what is not logged is not done. Try again later")
			return
		}
	}
	proxy.ServeHTTP(&cleaned{w, all}, r.WithContext(context.WithValue(r.Context(), secretsOf{}, [2][]Secret{put, all})))
}

// judge says what is wrong with a request; nothing if the Reason is empty.
func (c *carried) judge(r *http.Request) (status int, why egress.Reason, text string) {
	host, port := r.Host, ""
	if h, p, err := net.SplitHostPort(r.Host); err == nil {
		host, port = h, p
	}
	switch {
	case !strings.EqualFold(strings.TrimSuffix(host, "."), c.Name) || port != "" && port != strconv.Itoa(int(c.Port)):
		return http.StatusMisdirectedRequest, egress.ReasonMismatch, fmt.Sprintf("it is for %.200q on a connection for %s", r.Host, c.Name)
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace || r.URL.Path == "*":
		return http.StatusMethodNotAllowed, egress.ReasonProtocol, "with a secret in it, " + r.Method + " is not passed on"
	}
	return 0, "", ""
}

// refuse answers a request that goes no further.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "drowse refused this request: %s.\n", text)
}

// rewrite makes the request that goes out.
func (c *carried) rewrite(p *httputil.ProxyRequest) {
	p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort(c.Name, strconv.Itoa(int(c.Port)))
	if c.TLS {
		p.Out.URL.Scheme = "https"
	}
	p.Out.Host = p.In.Host
	p.Out.URL.RawQuery = p.In.URL.RawQuery // without what the proxy leaves out that it cannot read
	for _, s := range p.In.Context().Value(secretsOf{}).([2][]Secret)[0] {
		s.into(p.Out)
	}
}

// modify takes values out of an answer.
func (c *carried) modify(r *http.Response) error {
	all := r.Request.Context().Value(secretsOf{}).([2][]Secret)[1]
	clean(all, r.Header)
	if r.StatusCode == http.StatusSwitchingProtocols {
		r.Status = "" // the server's own words
		return nil
	}
	r.Body = &trailed{r.Body, r, all}
	return nil
}

func clean(all []Secret, h http.Header) {
	for _, s := range all {
		s.out(h)
	}
}

// trailed cleans what follows the body of an answer.
type trailed struct {
	io.ReadCloser
	r   *http.Response
	all []Secret
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		clean(t.all, t.r.Trailer)
	}
	return n, err
}

// cleaned cleans the headers of every answer, provisional ones included.
type cleaned struct {
	http.ResponseWriter
	all []Secret
}

// WriteHeader implements http.ResponseWriter.
func (c *cleaned) WriteHeader(status int) {
	clean(c.all, c.Header())
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (c *cleaned) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// fail answers a request that could not be passed on.
func (c *carried) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // nobody waits
		panic(http.ErrAbortHandler)
	}
	bad, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case untrusted:
		c.Refuse(egress.ReasonCertificate)
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the certificate of %s could not be verified (%v), so that no secret was sent there", c.Name, bad.Err))
	case errors.Is(err, egress.ReasonUnresolved), errors.Is(err, egress.ReasonClosed), errors.Is(err, egress.ReasonDenied), errors.Is(err, egress.ReasonUnreachable):
		c.Refuse(reasonOf(err))
		refuse(w, http.StatusBadGateway, fmt.Sprintf("%s cannot be reached (%s)", c.Name, reasonOf(err)))
	default: // its text may have something of the request in it
		c.Refuse(egress.ReasonUnreachable)
		refuse(w, http.StatusBadGateway, c.Name+" gave no answer that can be passed on")
	}
}

// reasonOf returns the Reason in an error.
func reasonOf(err error) egress.Reason {
	if why, ok := errors.AsType[egress.Reason](err); ok {
		return why
	}
	return egress.ReasonUnreachable
}
