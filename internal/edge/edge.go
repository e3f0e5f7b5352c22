// Package edge is the data plane: it finds the sandbox that a request is for,
// wakes it if need be and if allowed, and passes the request on without
// buffering or rewriting.
//
// Credentials are checked before a sandbox is woken. A request holds a lease
// on one generation; when that is cut, the connection is broken off, never
// ended cleanly, so that no client takes half an answer for a whole one. The
// edge knows nothing of runtimes.
package edge

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"syscall"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Sandboxes is what the edge needs of the supervisor.
type Sandboxes interface {
	Acquire(ctx context.Context, id string, access supervisor.Access) (*supervisor.Lease, error)
	Get(ctx context.Context, id string) (store.Sandbox, error)
	List(ctx context.Context) ([]store.Sandbox, error)
	EnvdToken(id string) string
	TrafficToken(id string) string
}

// Handler serves the data plane.
type Handler struct {
	sandboxes Sandboxes
	log       *slog.Logger
	pool      *pool
}

// New returns a handler for requests that Routes reports as its own.
func New(s Sandboxes, log *slog.Logger) *Handler {
	return &Handler{sandboxes: s, log: log, pool: newPool()}
}

const headerTraffic = "E2b-Traffic-Access-Token"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, err := h.target(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if isReserved(t, r.URL.Path) {
		answer(w, r, reply{Code: http.StatusNotFound, Path: r.URL.Path,
			Message: "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"})
		return
	}
	if refusal, ok := h.authorize(r, t); !ok {
		answer(w, r, refusal)
		return
	}
	lease, err := h.sandboxes.Acquire(r.Context(), t.id, supervisor.Access{Port: t.port, Stream: streams(r), Probe: probes(r, t)})
	if err != nil {
		h.answerError(w, r, t, err)
		return
	}
	defer lease.Release()
	h.relay(w, r, t, lease)
}

// target finds the sandbox; for a signed file URL that names none, by trying
// the signature with each sandbox's token, of which at most one can match.
func (h *Handler) target(r *http.Request) (target, error) {
	if !byHeader(hostName(r.Host)) || r.Header.Get(headerSandbox) != "" || r.Header.Get(headerPort) != "" {
		return parseTarget(r)
	}
	list, err := h.sandboxes.List(r.Context())
	if err != nil {
		return target{}, err
	}
	q := r.URL.Query()
	op := agentapi.OperationRead
	if r.Method == http.MethodPost {
		op = agentapi.OperationWrite
	}
	var expiration *int64
	if q.Has("signature_expiration") {
		n, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil {
			return target{}, routeError("signature_expiration is not a number")
		}
		expiration = &n
	}
	for _, sb := range list {
		want := agentapi.Sign(q.Get("path"), op, q.Get("username"), h.sandboxes.EnvdToken(sb.ID), expiration)
		if sb.Config.Secure && same(want, q.Get("signature")) {
			return target{id: sb.ID, port: agentapi.Port}, nil
		}
	}
	return target{}, routeError("this signed URL belongs to no sandbox of this server")
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// authorize checks what must hold before a sandbox may be woken or reached.
func (h *Handler) authorize(r *http.Request, t target) (reply, bool) {
	sb, err := h.sandboxes.Get(r.Context(), t.id)
	if err != nil {
		return notFound(t), false
	}
	if t.port == agentapi.Port {
		asleep := sb.Record.State == lifecycle.Paused || sb.Record.Phase() == lifecycle.Pausing
		if asleep && sb.Record.Settings.AutoResume && sb.Config.Secure && !same(r.Header.Get(agentapi.HeaderAccessToken), h.sandboxes.EnvdToken(t.id)) {
			return reply{Code: http.StatusForbidden, SandboxID: t.id,
				Message: "This sandbox can't be resumed with the credentials provided. Send its access token in the header " + agentapi.HeaderAccessToken}, false
		}
		return reply{}, true
	}
	if !sb.Config.PrivatePorts {
		return reply{}, true
	}
	token := r.Header.Get(headerTraffic)
	switch {
	case token == "":
		return reply{Code: http.StatusForbidden, SandboxID: t.id,
			Message: "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"}, false
	case !same(token, h.sandboxes.TrafficToken(t.id)):
		return reply{Code: http.StatusForbidden, SandboxID: t.id,
			Message: "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"}, false
	}
	return reply{}, true
}

func (h *Handler) answerError(w http.ResponseWriter, r *http.Request, t target, err error) {
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone
	case errdef.Is(err, errdef.Unavailable):
		h.log.Warn("sandbox not reachable", "sandbox", t.id, "err", err)
		w.Header().Set("Retry-After", "1")
		answer(w, r, reply{Code: http.StatusServiceUnavailable, SandboxID: t.id, Message: err.Error()})
	case errdef.Is(err, errdef.Exhausted):
		answer(w, r, reply{Code: http.StatusTooManyRequests, SandboxID: t.id, Message: err.Error()})
	case errdef.Is(err, errdef.NotFound), errdef.Is(err, errdef.WrongState):
		answer(w, r, notFound(t))
	default:
		h.log.Error("access failed", "sandbox", t.id, "err", err)
		answer(w, r, notFound(t))
	}
}

// errCut is the cause of a request's end when its generation was cut.
var errCut = errors.New("the sandbox was paused or killed")

// relay passes the request on within the lease.
func (h *Handler) relay(w http.ResponseWriter, r *http.Request, t target, lease *supervisor.Lease) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-lease.Cut:
			cancel(errCut)
		case <-ctx.Done():
		}
	}()
	if r.ContentLength != 0 {
		// The body streams in while the answer streams out. HTTP/2 needs no leave
		// for that and refuses the question.
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		body := &requestBody{progressBody: progressBody{ReadCloser: r.Body, progress: lease.Progress}}
		defer body.finish(rc)
		r.Body = body
	}
	transport, done := h.pool.transport(t, lease)
	defer done()
	proxy := httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, t) },
		Transport:     transport,
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			resp.Body = withProgress(resp.Body, lease.Progress)
			return nil
		},
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			h.relayFailed(w, r, t, err)
		},
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// rewrite changes nothing but where the request goes.
func rewrite(p *httputil.ProxyRequest, t target) {
	p.Out.URL.Scheme = "http"
	p.Out.URL.Host = net.JoinHostPort(t.id, strconv.Itoa(t.port))
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	p.Out.Host = p.In.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
}

func (h *Handler) relayFailed(w http.ResponseWriter, r *http.Request, t target, err error) {
	if cause := context.Cause(r.Context()); cause != nil {
		// Cut, or the client has gone: break off, answer nothing.
		panic(http.ErrAbortHandler)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		answer(w, r, reply{Code: http.StatusBadGateway, SandboxID: t.id, Port: t.port,
			Message: "The sandbox is running but port is not open"})
		return
	}
	h.log.Warn("request to sandbox failed", "sandbox", t.id, "port", t.port, "err", err)
	answer(w, r, reply{Code: http.StatusBadGateway, SandboxID: t.id, Port: t.port,
		Message: "The connection to the sandbox's port broke before it answered"})
}

func notFound(t target) reply {
	return reply{Code: http.StatusBadGateway, SandboxID: t.id, Message: "The sandbox was not found"}
}
