// Package edge is the data plane: it finds the sandbox that a request is for,
// wakes it if need be and if allowed, and passes the request on without
// buffering or rewriting.
//
// A [Server] owns the listener. HTTP/1.1 is its own: connections are read with
// the strict parser of package h1, and what passes that is relayed byte for
// byte. HTTP/2 is net/http's, behind the same routing, admission and leases.
// Requests that name no sandbox go to the control plane's handler.
//
// Credentials are checked before a sandbox is woken. A request holds a lease
// on one generation; when that is cut, the connection is broken off, never
// ended cleanly, so that no client takes half an answer for a whole one. The
// edge knows nothing of runtimes.
package edge

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
)

// Sandboxes is what the edge needs of the supervisor.
type Sandboxes interface {
	Acquire(ctx context.Context, id string, access supervisor.Access) (*supervisor.Lease, error)
	// Admission is an errdef.NotFound for a sandbox that has ended or never was.
	Admission(id string) (leases.Admission, error)
	List(ctx context.Context) ([]store.Sandbox, error)
	EnvdToken(id string) string
	TrafficToken(id string) string
	// CheckPreview tells whether a preview link's token opens a port.
	CheckPreview(ctx context.Context, id string, port int, token string) error
}

// Peers are the other servers of the database.
type Peers interface {
	// Holder returns the server that has the sandbox of an id; empty where that is this
	// one, or nobody.
	Holder(ctx context.Context, id string) (server string, err error)
	// Stops reports whether a server that could not be reached stops, or has: who looks for
	// what it has waits until another has that.
	Stops(ctx context.Context, server string) bool
	// Dial connects to the edge of a server, to its [Server.ServePeers], over mutual TLS
	// whose handshake is done. The protocol, as in ALPN, is http/1.1 or h2.
	Dial(ctx context.Context, server, protocol string) (net.Conn, error)
}

// HeaderForwarded is the first field of a request that another server of the database has
// passed on. It tells from where that came: "for=192.0.2.1; secure=1".
const HeaderForwarded = "Drowse-Forwarded"

// edge is what requests of every protocol have in common.
type edge struct {
	sandboxes Sandboxes
	peers     Peers                           // nil for none
	mayUse    func(apiKey, owner string) bool // nil for nobody
	log       *slog.Logger
	limits    Limits
	counts    *counts
	accessLog bool
	upstreams upstreams
	toPeers   peerTransports
	ends      <-chan struct{} // closed when the server ends
	signers   *signers

	ownCookies []string // see Options
}

const headerTraffic = "E2b-Traffic-Access-Token"

// passage is a request that may go on to its sandbox.
type passage struct {
	target
	server  string // of the database, which has the sandbox, and is to do all else; "" for this one
	access  supervisor.Access
	asleep  bool   // the sandbox does not run now
	token   string // the sandbox's access token, in place of the API key that the request carries; "" to pass on what it carries
	preview bool   // the request carries a preview link's token, which stays outside
	mask    string // the Host that the server inside sees; "" for the client's
	https   bool   // the server inside speaks TLS
}

// hostInside returns the Host that the server inside sees of a request.
func (p *passage) hostInside(host string) string {
	if p.mask != "" {
		return p.mask
	}
	return host
}

// admit finds a request's sandbox and checks what must hold before that may be
// woken or reached. Without a reply, p is the request's passage.
func (e *edge) admit(ctx context.Context, r *request, p *passage) *reply {
	t, err := e.target(ctx, r)
	if errors.Is(err, errTooManySearches) {
		return &reply{Code: http.StatusTooManyRequests, Message: err.Error(), plain: true, retryAfter: 5}
	}
	if errors.Is(err, errNoBearer) {
		return gone("", err)
	}
	if err != nil {
		return &reply{Code: http.StatusBadRequest, Message: err.Error(), plain: true}
	}
	if path, ok := isReserved(t); ok {
		return &reply{Code: http.StatusNotFound, Path: path,
			Message: "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"}
	}
	to, err := e.sandboxes.Admission(t.id)
	if err != nil {
		if a := e.elsewhere(ctx, r, t, err, p); a != nil || p.server != "" {
			return a
		}
		if to, err = e.sandboxes.Admission(t.id); err != nil {
			return gone(t.id, err)
		}
	}
	*p = passage{
		target: t,
		asleep: to.Asleep,
		access: supervisor.Access{Port: t.port, Path: rawPath(t.path), Stream: streams(r, t), Probe: probes(r, t)},
	}
	if t.port != agentapi.Port {
		if to.HostMask != "" { // which few have
			p.mask = strings.ReplaceAll(to.HostMask, "${PORT}", strconv.Itoa(t.port))
		}
		p.https = slices.Contains(to.HTTPSPorts, t.port)
	}
	if e.opensByKey(r, t, &to) {
		p.token = e.sandboxes.EnvdToken(t.id)
	}
	return e.authorize(ctx, r, p, &to)
}

// visit is a request in its sandbox. What is not known yet is nil.
type visit struct {
	p     *passage
	lease *supervisor.Lease
	g     *generation
	again bool // the request goes to another server than the one that got nothing of it
	tries int  // how often it did

	admitted passage // what p points to
}

// enter admits a request, waits until its sandbox serves, and counts it there.
// If it gets no further, the reply is its answer; without one, it is to be
// broken off, because the client has gone or the sandbox was cut. Either way
// leave must follow, or enter once more if the visit is to begin again.
func (v *visit) enter(ctx context.Context, e *edge, r *request, b breaker) (ok bool, refusal *reply) {
	if v.again {
		v.leave(b)
		*v = visit{tries: v.tries + 1}
	}
	if refusal = e.admit(ctx, r, &v.admitted); refusal != nil {
		return false, refusal
	}
	v.p = &v.admitted
	if v.p.server != "" {
		return v.pass(e, b), nil
	}
	var server string
	if v.lease, server, refusal = e.acquire(ctx, r, v.p); server != "" {
		v.admitted = passage{target: target{id: v.p.id, port: v.p.port}, server: server}
		return v.pass(e, b), nil
	}
	if v.lease == nil {
		return false, refusal
	}
	v.g = e.upstreams.enter(v.p.id, v.lease)
	ok, full := v.g.board(b, e.limits.PerSandbox)
	if full {
		refusal = tooManyRequests(v.p, e.limits.PerSandbox)
	}
	return ok, refusal
}

// connect opens a connection to the visit's port. The protocol, as in ALPN, is
// what will be spoken if that is a port with TLS.
func (v *visit) connect(ctx context.Context, protocol string) (net.Conn, error) {
	if v.p.server != "" {
		return v.lease.Dial(ctx, v.p.port)
	}
	conn, err := v.lease.DialPatiently(ctx, v.p.port)
	if err != nil || !v.p.https {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakePatience)
	defer cancel()
	// Nobody but the sandbox's own server can be at the other end, and what
	// certificate it made itself is its own affair.
	over := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: hostName(v.p.mask), NextProtos: []string{protocol}})
	if err := over.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("port %d is to speak TLS: %w", v.p.port, err)
	}
	return over, nil
}

// handshakePatience is how long a server inside may take to agree on TLS.
const handshakePatience = 10 * time.Second

// leave ends the visit, however far it came.
func (v *visit) leave(b breaker) {
	if v.g != nil {
		v.g.leave(b)
	}
	if v.lease != nil {
		v.lease.Release()
	}
}

// target finds the sandbox; for a request that names none, by what it proves.
func (e *edge) target(ctx context.Context, r *request) (target, error) {
	if r.way.find != nil {
		return r.way.find(r, hostName(r.host))
	}
	proof, err := r.way.prove(r)
	if err != nil {
		return target{}, err
	}
	id, err := e.signers.find(ctx, e.sandboxes, proof, r.client)
	return target{id: id, port: agentapi.Port, path: r.target}, err
}

// signed is a signed file URL.
type signed struct {
	path, operation, user string
	expiration            *int64 // Unix seconds; nil for never
	signature             string
}

func parseSigned(r *request) (signed, error) {
	q := r.query()
	s := signed{path: q.Get("path"), operation: agentapi.OperationRead, user: q.Get("username"), signature: q.Get("signature")}
	if r.method == http.MethodPost {
		s.operation = agentapi.OperationWrite
	}
	if q.Has("signature_expiration") {
		n, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil {
			return signed{}, routeError("signature_expiration is not a number")
		}
		s.expiration = &n
	}
	return s, nil
}

// bearer is the access token of a sandbox.
type bearer string

func (b bearer) by(token string) bool { return same(token, string(b)) }

func (b bearer) key() proofKey { return proofKey{operation: "bearer", signature: string(b)} }

func (b bearer) size() int { return len(b) }

func (b bearer) unknown() error { return errNoBearer }

// by reports whether the signature was made with a sandbox's token.
func (s signed) by(token string) bool {
	return same(agentapi.Sign(s.path, s.operation, s.user, token, s.expiration), s.signature)
}

func (s signed) expired() bool { return s.expiration != nil && time.Now().Unix() > *s.expiration }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// authorize checks credentials; nil if they suffice.
func (e *edge) authorize(ctx context.Context, r *request, p *passage, to *leases.Admission) *reply {
	wakes := p.asleep && !p.access.Probe && to.AutoResume && to.Secure
	switch {
	case wakes && (p.port == agentapi.Port || runsCode(p)) && !e.agentCredentials(r, p):
		return &reply{Code: http.StatusForbidden, SandboxID: p.id,
			Message: "This sandbox can't be resumed with the credentials provided. Send its access token in the header " + agentapi.HeaderAccessToken}
	case p.port == agentapi.Port:
		return nil
	}
	token, found := previewToken(r)
	switch {
	case found.none():
	case e.sandboxes.CheckPreview(ctx, p.id, p.port, token) != nil:
		if to.PrivatePorts && r.header.Get(headerTraffic) == "" {
			return badPreview(p, found)
		}
	default:
		p.preview = true
		if found.inQuery && navigates(r) {
			return openPreview(r, p, token)
		}
		return nil
	}
	entrance := service.EntranceTo(to.Entrances, p.port)
	closed := to.PrivatePorts || entrance != nil && !entrance.Public
	if !closed {
		return admitBy(entrance, r, p)
	}
	switch token := r.header.Get(headerTraffic); {
	case token == "":
		return &reply{Code: http.StatusForbidden, SandboxID: p.id,
			Message: "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing"}
	case !same(token, e.sandboxes.TrafficToken(p.id)):
		return &reply{Code: http.StatusForbidden, SandboxID: p.id,
			Message: "Sandbox is secured with traffic access token. Provided token in header 'e2b-traffic-access-token' is invalid"}
	}
	return admitBy(entrance, r, p)
}

// admitBy refuses what a public entrance has no route for, before it wakes the
// sandbox. Whoever has the traffic token of a sandbox reaches what is not public.
func admitBy(e *service.Entrance, r *request, p *passage) *reply {
	if e == nil || !e.Public {
		return nil
	}
	status, why := e.Admit(r.method, p.access.Path, r.header)
	if status == 0 {
		return nil
	}
	return &reply{Code: status, SandboxID: p.id, Port: p.port, Message: "The request is not let in: " + why}
}

// runsCode reports whether a request is for the code interpreter to run a cell.
// Its clients send the sandbox's token with that, and with nothing else.
func runsCode(p *passage) bool {
	return p.port == agentapi.CodePort && cleanPath(p.path) == agentapi.PathCode
}

// opensByKey reports whether a request shows an API key to the agent, and no
// access token, and the key may use the sandbox. CubeSandbox's client asks so for
// code to be run. The key itself stays outside.
func (e *edge) opensByKey(r *request, t target, to *leases.Admission) bool {
	if t.port != agentapi.Port && t.port != agentapi.CodePort {
		return false
	}
	key := r.header.Get(headerAPIKey)
	return key != "" && r.header.Get(agentapi.HeaderAccessToken) == "" && to.Secure && e.mayUse != nil && e.mayUse(key, to.Key)
}

// isCredential reports whether a field is replaced where an API key opens the
// agent.
func isCredential(name string) bool {
	return strings.EqualFold(name, headerAPIKey) || strings.EqualFold(name, agentapi.HeaderAccessToken)
}

// agentCredentials reports whether a request could reach anything of the agent:
// it has the sandbox's token, or is a signed file URL. The agent itself checks
// the signature's expiry.
func (e *edge) agentCredentials(r *request, p *passage) bool {
	token := e.sandboxes.EnvdToken(p.id)
	if p.token != "" || same(r.header.Get(agentapi.HeaderAccessToken), token) {
		return true
	}
	if p.port != agentapi.Port || cleanPath(p.path) != "/files" {
		return false
	}
	signed, err := parseSigned(r)
	return err == nil && !signed.expired() && signed.by(token)
}

// pagePatience is how long somebody at a browser looks at nothing while a
// sandbox wakes; then a page says so, and asks again.
const pagePatience = 3 * time.Second

// acquire waits until the sandbox serves. There is one of a lease, the server that has
// the sandbox by now, and a reply; none if ctx has ended.
func (e *edge) acquire(ctx context.Context, r *request, p *passage) (lease *supervisor.Lease, server string, _ *reply) {
	wait := ctx
	if p.asleep && r.method == http.MethodGet && navigates(r) {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, pagePatience)
		defer cancel()
	}
	begin := time.Time{}
	if p.asleep {
		begin = time.Now()
	}
	lease, err := e.sandboxes.Acquire(wait, p.id, p.access)
	switch {
	case err == nil:
		if p.asleep {
			e.counts.woken.Observe(time.Since(begin).Seconds())
		}
		return lease, "", nil
	case ctx.Err() != nil:
		return nil, "", nil
	case wait.Err() != nil:
		return nil, "", wakingPage(p.id)
	}
	if server, is := store.Elsewhere(err); is && e.peers != nil && r.hops < MostHops {
		return nil, server, nil
	}
	if errdef.Is(err, errdef.NotFound) && !lifecycle.Ended(err) { // it was admitted, and has gone since then
		var to passage
		if a := e.elsewhere(ctx, r, p.target, err, &to); a != nil || to.server != "" {
			return nil, to.server, a
		}
	}
	return nil, "", e.refusal(p.id, err)
}

// refusal is the answer to a request that got no lease.
func (e *edge) refusal(id string, err error) *reply {
	if server, is := store.Elsewhere(err); is {
		return takenOver(id, server)
	}
	switch errdef.ClassOf(err) {
	case errdef.NotFound, errdef.WrongState:
		return gone(id, err)
	case errdef.Unavailable, errdef.Unfit, errdef.Exhausted, errdef.Fenced:
	default:
		e.log.Error("access failed", "sandbox", id, "err", err)
		return gone(id, err)
	}
	why, _ := errors.AsType[*errdef.Error](err)
	a := &reply{Code: errdef.Status(why), SandboxID: id, Message: err.Error(), ErrorCode: why.Code}
	if why.Class != errdef.Unfit && !errdef.Lasting(why.Code) {
		a.retryAfter = 1
	}
	switch why.Class {
	case errdef.Unavailable, errdef.Fenced:
		e.log.Warn("sandbox not reachable", "sandbox", id, "err", err)
	case errdef.Unfit: // no retry helps
		e.log.Error("sandbox not reachable", "sandbox", id, "err", err)
	}
	return a
}

// streams reports whether a request has no natural end, or is for a cell of
// code, which has one when it pleases.
func streams(r *request, t target) bool {
	return t.port == interpreter.Port && rawPath(t.path) == interpreter.PathExecute || r.header.Get("Upgrade") != "" ||
		strings.HasPrefix(r.header.Get("Content-Type"), "application/connect+") ||
		strings.HasPrefix(r.header.Get("Content-Type"), "application/grpc") ||
		strings.HasPrefix(r.header.Get("Accept"), "text/event-stream")
}

// probes reports whether a request only asks if the sandbox is there: SDKs
// call that isRunning, and it is no activity.
func probes(r *request, t target) bool {
	return t.port == agentapi.Port && r.method == http.MethodGet && rawPath(t.path) == "/health"
}

func tooManyRequests(p *passage, most int) *reply {
	return &reply{Code: http.StatusTooManyRequests, SandboxID: p.id, ConnectionLimit: most, retryAfter: 1,
		Message: fmt.Sprintf("The sandbox has %d requests under way, which is the limit", most)}
}

func portClosed(p *passage) *reply {
	return &reply{Code: http.StatusBadGateway, SandboxID: p.id, Port: p.port, Message: "The sandbox is running but port is not open"}
}

// brokeOff is the answer where there is none of the sandbox's port, or one that is none.
func brokeOff(p *passage, err error) *reply {
	if p.server != "" {
		return peerFailed(p, err)
	}
	a := &reply{Code: http.StatusBadGateway, SandboxID: p.id, Port: p.port, Message: "The connection to the sandbox's port broke before it answered"}
	e, ok := errors.AsType[*h1.Error](err)
	switch {
	case !ok || e == errNoRoom:
	case e == errHeadTooLarge || e == errTargetTooLarge:
		a.Message = fmt.Sprintf("The server on the sandbox's port answered with a head of more than %d KiB", maxAnswerHead>>10)
	default:
		a.Message = "What the server on the sandbox's port answered is not HTTP/1.1: " + e.Reason
	}
	return a
}
