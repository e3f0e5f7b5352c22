package agent

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// maxMessage bounds one RPC message and one JSON body.
const maxMessage = 16 << 20

// route is a REST endpoint. A handler with its own authentication is called
// without the token having been checked.
type route struct {
	handler http.HandlerFunc
	ownAuth bool
}

func (a *Agent) restRoutes() map[string]route {
	return map[string]route{
		"GET /health":         {handler: a.handleHealth, ownAuth: true},
		"GET /envs":           {handler: a.handleEnvs},
		"GET /metrics":        {handler: a.handleMetrics},
		"GET /files":          {handler: a.handleDownload, ownAuth: true},
		"POST /files":         {handler: a.handleUpload, ownAuth: true},
		"POST /files/compose": {handler: a.handleCompose},
		"POST /init":          {handler: a.meetHost(a.handleInit), ownAuth: true},

		"GET " + agentapi.PathActivity:           {handler: a.fromHost(a.handleActivity), ownAuth: true},
		"POST " + agentapi.PathSync:              {handler: a.fromHost(a.handleSync), ownAuth: true},
		"POST " + agentapi.PathRelieve:           {handler: a.fromHost(relief{a.processes, &a.journal}.handle), ownAuth: true},
		"POST " + agentapi.PathHangUp:            {handler: a.handleHangUp, ownAuth: true},
		"GET " + agentapi.PathLog:                {handler: a.fromHost(a.handleLog), ownAuth: true},
		"GET " + agentapi.PathServices:           {handler: a.fromHost(serviceCalls{a}.report), ownAuth: true},
		"POST " + agentapi.PathServices:          {handler: a.fromHost(serviceCalls{a}.apply), ownAuth: true},
		"GET " + agentapi.PathServiceLog:         {handler: a.fromHost(serviceCalls{a}.log), ownAuth: true},
		"GET " + agentapi.PathServiceReady:       {handler: a.fromHost(serviceCalls{a}.ready), ownAuth: true},
		"POST " + agentapi.PathServiceRestart:    {handler: a.fromHost(serviceCalls{a}.restart), ownAuth: true},
		"GET " + agentapi.PathHolds:              {handler: fromInside(a.handleListHolds), ownAuth: true},
		"POST " + agentapi.PathHolds:             {handler: fromInside(a.handleTakeHold), ownAuth: true},
		"DELETE " + agentapi.PathHolds + "/{id}": {handler: fromInside(a.handleReleaseHold), ownAuth: true},
	}
}

func (a *Agent) rpcServices() map[string]http.Handler {
	options := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		// Compressed requests are understood, but no response is compressed:
		// the link is a local one, and a stream of output would pay for it.
		connect.WithCompressMinBytes(1 << 30),
	}
	services := map[string]http.Handler{}
	add := func(path string, handler http.Handler) { services[strings.Trim(path, "/")] = handler }
	add(processconnect.NewProcessHandler(processService{a}, options...))
	add(filesystemconnect.NewFilesystemHandler(filesystemService{a}, options...))
	return services
}

// ServeHTTP routes by hand: http.ServeMux would redirect unclean paths, which
// clients of this API do not follow.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer reportPanic(r)
	allowAnyOrigin(w.Header(), r)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if service, _, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); ok && a.services[service] != nil {
		a.serveRPC(w, r, a.services[service])
		return
	}
	a.serveREST(w, r)
}

func (a *Agent) serveREST(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	path := routePath(r.URL.Path)
	route, ok := a.routes[method+" "+path]
	switch {
	case !ok && a.hasRoute(path):
		writeStatus(w, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed on "+r.URL.Path)
	case !ok:
		writeStatus(w, http.StatusNotFound, "no such endpoint: "+r.URL.Path)
	case !route.ownAuth && !a.tokenMatches(r):
		refuseToken(w)
	default:
		route.handler(w, r)
	}
}

// routePath is the path as the table of routes has it.
func routePath(path string) string {
	if id, ok := strings.CutPrefix(path, agentapi.PathHolds+"/"); ok && id != "" {
		return agentapi.PathHolds + "/{id}"
	}
	return path
}

// hasRoute reports whether path is there for some method.
func (a *Agent) hasRoute(path string) bool {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if _, ok := a.routes[method+" "+path]; ok {
			return true
		}
	}
	return false
}

// reportPanic says where before net/http closes the connection: its own
// report goes nowhere.
func reportPanic(r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler {
		fmt.Fprintf(os.Stderr, "drowse-agent: internal error: %s %s: %v\n%s", r.Method, r.URL.Path, v, debug.Stack())
	}
	panic(http.ErrAbortHandler)
}

// allowAnyOrigin lets browsers in: what protects the agent is the token, which
// they do not send by themselves.
func allowAnyOrigin(h http.Header, r *http.Request) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*, Accept-Ranges, Content-Disposition, Content-Encoding, Content-Length, Content-Range, Content-Type, Last-Modified")
	if r.Method != http.MethodOptions {
		return
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	// The wildcard does not cover Authorization, so what is asked is granted.
	asked := r.Header.Get("Access-Control-Request-Headers")
	if asked == "" {
		asked = "*"
	}
	h.Set("Access-Control-Allow-Headers", asked)
	h.Set("Access-Control-Max-Age", "7200")
	h.Add("Vary", "Access-Control-Request-Headers")
}

// tokenMatches is true as well while no token is configured.
func (a *Agent) tokenMatches(r *http.Request) bool {
	token := a.settings.accessToken()
	return token == "" || equalSecret(r.Header.Get(agentapi.HeaderAccessToken), token)
}

func equalSecret(got, want string) bool {
	return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}

func refuseToken(w http.ResponseWriter) {
	writeStatus(w, http.StatusUnauthorized, "the "+agentapi.HeaderAccessToken+" header is missing or wrong: it is to hold the token of the sandbox, which is given to those who may use it")
}

// rpcContext carries what the handlers need of the HTTP request.
type rpcContext struct {
	user      *account // nil: the default one
	deadline  time.Duration
	bounded   bool
	interrupt func()
	ending    func()
}

type rpcContextKey struct{}

func rpcContextOf(ctx context.Context) rpcContext {
	c, _ := ctx.Value(rpcContextKey{}).(rpcContext)
	return c
}

// processDeadline is the timeout of a Start request.
func processDeadline(ctx context.Context) (time.Duration, bool) {
	c := rpcContextOf(ctx)
	return c.deadline, c.bounded
}

// writeInterrupt makes a blocked write to the client fail, after a last chance.
func writeInterrupt(ctx context.Context) func() { return rpcContextOf(ctx).interrupt }

// gather says that the next message is the last, so that it and the end of the response
// are written at once.
func gather(ctx context.Context) {
	if ending := rpcContextOf(ctx).ending; ending != nil {
		ending()
	}
}

// stream is a response of which every message is written when it comes, and the last one
// together with the end.
type stream struct {
	http.ResponseWriter
	ending bool
}

// Flush implements http.Flusher. At the end of the response all is flushed.
func (s *stream) Flush() {
	if !s.ending {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
	}
}

// Unwrap serves http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (a *Agent) serveRPC(w http.ResponseWriter, r *http.Request, service http.Handler) {
	if !a.tokenMatches(r) {
		refuseToken(w)
		return
	}
	cut := &interrupter{controller: http.NewResponseController(w)}
	defer cut.lift()
	s := &stream{ResponseWriter: w}
	c := rpcContext{interrupt: cut.interrupt, ending: func() { s.ending = true }}
	if name, _, ok := r.BasicAuth(); ok && name != "" {
		user, err := a.user(name)
		if err != nil {
			_ = connect.NewErrorWriter().Write(w, r, rpcError(err))
			return
		}
		c.user = user
	}
	if r.URL.Path == processconnect.ProcessStartProcedure {
		c.deadline, c.bounded = takeTimeout(r.Header)
	}
	service.ServeHTTP(s, r.WithContext(context.WithValue(r.Context(), rpcContextKey{}, c)))
}

// takeTimeout takes the timeout out of the headers of a Start request, where
// it bounds the process and not the call. A malformed one stays, and is
// refused by the Connect library.
func takeTimeout(h http.Header) (time.Duration, bool) {
	text := h.Get(agentapi.HeaderTimeout)
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || len(text) > 10 {
		return 0, false
	}
	h.Del(agentapi.HeaderTimeout)
	return time.Duration(ms) * time.Millisecond, true
}

// lastChance is how long a client that was cut off has for reading why.
const lastChance = 10 * time.Second

// interrupter limits the writing of one response.
type interrupter struct {
	controller *http.ResponseController
	limited    atomic.Bool
}

func (i *interrupter) interrupt() {
	i.limited.Store(true)
	_ = i.controller.SetWriteDeadline(time.Now().Add(lastChance))
}

// lift keeps the limit from the next response on the connection.
func (i *interrupter) lift() {
	if i.limited.Load() {
		_ = i.controller.SetWriteDeadline(time.Time{})
	}
}

// user returns the account of a name, or the default one for no name.
func (a *Agent) user(name string) (*account, error) {
	as := a.accounts()
	if name == "" {
		name = a.settings.defaultUser()
	}
	if name == "" {
		if user := as.byName["user"]; user != nil {
			return user, nil
		}
		name = "root"
	}
	if user := as.byName[name]; user != nil {
		return user, nil
	}
	return nil, faultf(unauthenticated, "user '%s' does not exist", wireText(name))
}

func (a *Agent) accounts() *accounts {
	return readAccounts(a.options.PasswdFile, a.options.GroupFile)
}

func (a *Agent) rpcUser(ctx context.Context) (*account, error) {
	if user := rpcContextOf(ctx).user; user != nil {
		return user, nil
	}
	return a.user("")
}
