package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Handler returns a handler of dialects whose requests are passed on where another server
// has what they are for.
func (c *Cluster) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if presents(r) { // who may have just changed something at another server
			c.o.CatchUp(r.Context())
		}
		if edge.Hops(r.Context()) < edge.MostHops {
			r = dialect.Forwarding(r, within{c, h})
		}
		h.ServeHTTP(w, r)
	})
}

// presents reports whether a request shows an API key, or what a server has given to the holder of
// one: a token, or an address with a signature.
func presents(r *http.Request) bool {
	return auth.FromHeader(r.Header) != "" || r.Header.Get("Authorization") != "" || r.URL.Query().Has("signature")
}

// within is a Cluster within which a handler answers what is here.
type within struct {
	*Cluster
	here http.Handler
}

// Forward implements dialect.Forwarder.
func (x within) Forward(w http.ResponseWriter, r *http.Request, server string) error {
	if server != "" {
		return x.Cluster.Forward(w, r, server)
	}
	x.here.ServeHTTP(w, r)
	return nil
}

// HolderNow implements dialect.Forwarder.
func (c *Cluster) HolderNow(ctx context.Context, elsewhere error) (server string, err error) {
	server, _ = store.Elsewhere(elsewhere)
	if c.o.TakeOver == nil {
		return server, nil
	}
	for _, kind := range []string{"snapshot", "template", "sandbox"} {
		if id, ok := errdef.Fact(elsewhere, kind).(string); ok {
			return c.unlessGone(ctx, id, server, func() (string, error) { return c.ownerNow(ctx, id) })
		}
	}
	return server, nil
}

// HolderOf implements dialect.Forwarder. Whoever has no good key is refused here.
func (c *Cluster) HolderOf(r *http.Request) (server string, err error) {
	_, after, found := strings.Cut(r.URL.EscapedPath(), "/sandboxes/")
	segment, _, _ := strings.Cut(after, "/")
	id, _, _ := strings.Cut(segment, "-") // some clients add that of a client
	if !found || !ids.Valid(id) || !c.o.Admits(r) {
		return "", nil
	}
	server, err = c.owner(r.Context(), id)
	if err != nil || server == "" {
		return server, err
	}
	srv, err := c.server(r.Context(), server)
	part := strings.TrimPrefix(after, segment)
	switch {
	case err == nil && srv.Answers():
		return server, nil
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && slices.Contains(storedParts, part):
		return "", nil
	case part == "" && r.Method == http.MethodDelete && err == nil && !srv.Alive(): // nothing of it is needed
		return "", nil
	}
	if sb, err := c.o.Store.Sandbox(r.Context(), id); err == nil && !c.o.AdmitsTo(r, sb.Config.Key) {
		return "", nil // for this key there is none
	}
	return c.Holder(r.Context(), id)
}

// storedParts are what the store knows of a sandbox, by the rest of a path.
var storedParts = []string{"", "/lifecycle", "/events", "/snapshots"}

// Forward has another server answer a request. Nothing was answered if it returns an error; if
// that is edge.Unsent, the request's body is as it was.
func (c *Cluster) Forward(w http.ResponseWriter, r *http.Request, server string) (failed error) {
	sent := r.Body
	body := &observed{ReadCloser: io.NopCloser(sent)}
	defer func() {
		if !edge.Unsent(failed) {
			_ = sent.Close()
		}
	}()
	r.Body = body
	ctx, end := edge.WhenBroken(r.Context(), r.Method, func() { _ = sent.Close() })
	defer func() { _, _ = end(nil) }()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "server"
			p.Out.URL.RawQuery, p.Out.Host = p.In.URL.RawQuery, p.In.Host
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := p.In.Header[name]; ok {
					p.Out.Header[name] = v
				}
			}
			c.o.Relay(p.Out.Header)
			edge.SetForwarded(p.Out.Header, p.In, edge.Hops(p.In.Context())+1)
		},
		Transport:     c.o.Transport(server),
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(c.o.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			because := body.err()
			lost, err := end(err)
			if lost != nil && because != nil {
				because, err = nil, lost // the body's end is our doing
			}
			failed = c.broken(r.Context(), server, because, err)
		},
	}
	// The proxy breaks off an answer that breaks half way only for a server of net/http,
	// which it knows by this.
	proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, http.ServerContextKey, c)))
	return failed
}

// Again implements dialect.Forwarder.
func (c *Cluster) Again(ctx context.Context, server string, failed error) bool {
	return edge.Unsent(failed) && c.Stops(ctx, server)
}

// observed is the body of a request that remembers why it could not be read.
type observed struct {
	io.ReadCloser
	mu     sync.Mutex
	failed error
}

// Read implements io.Reader.
func (o *observed) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		o.mu.Lock()
		o.failed = err
		o.mu.Unlock()
	}
	return n, err
}

func (o *observed) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// broken is the error of a request that a server did not answer: because its body did not
// come, or for another reason.
func (c *Cluster) broken(ctx context.Context, server string, body, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case body != nil:
		return errdef.New(errdef.Invalid, "invalid_request", "the request body could not be read to its end")
	}
	if edge.Unsent(err) {
		return err
	}
	e := errdef.New(errdef.Unavailable, codeUnreachable, "the connection to server %s, which has what this is for, broke before it answered; the request may have been carried out", server).
		WithRemedy("see whether it was, then send it again; if that lasts, see why that server is down").With("server", server)
	e.Err = err
	return e
}
