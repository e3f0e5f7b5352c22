package edge

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/sandboxid"
)

// naming is a pair of headers that name a sandbox and its port where the host
// does not.
type naming struct {
	sandbox, port string
	// beside says that clients send the pair to the control plane too, where it
	// means nothing. They send an API key there, and never to a sandbox.
	beside bool
}

// namings are the pairs of all clients. E2B's comes first.
var namings = []naming{
	{sandbox: headerSandbox, port: headerPort},
	{sandbox: "Novita-Sandbox-Id", port: "Novita-Sandbox-Port", beside: true},
}

const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerAPIKey  = "X-Api-Key"
)

// pathRoutes begins the paths under which a sandbox is reached where names
// cannot be: /s/{id}/{port}/…
const pathRoutes = "/s/"

// request is what routing and admission look at, whichever protocol it came
// by.
type request struct {
	method string
	host   string
	target string // raw path and query
	header fields
	client netip.Addr // for the access log
	secure bool       // came by TLS

	loopback bool // came to a loopback address of this machine
	hops     int  // how often other servers of the database have passed it on

	way *way // in which it names a sandbox, as routes decided; nil for the control plane
}

// fields are the header fields of a request.
type fields interface {
	Get(name string) string // the value of the first field of that name, or ""
	Count(name string) int  // how many there are
}

// refuseTarget answers a request that names nothing here that could be asked
// for; nil if it does. A page of a stranger can give its own name an address of
// this machine, and then asks in the name of the browser's owner, who alone
// reaches the loopback address. There, a request for a name that is not the
// server's must show that it knows something that such a page does not: an API
// key, or the id of a sandbox in its headers or in that name.
func (s *Server) refuseTarget(r *request) *reply {
	if !strings.HasPrefix(r.target, "/") && (r.target != "*" || r.method != http.MethodOptions) {
		return &reply{Code: http.StatusBadRequest, Message: "the request target is malformed: its path does not begin with /", plain: true}
	}
	if !r.loopback || s.knows(hostName(r.host)) || r.header.Get(headerAPIKey) != "" || r.header.Get("Authorization") != "" {
		return nil
	}
	return &reply{Code: http.StatusMisdirectedRequest, plain: true,
		Message: fmt.Sprintf("%.80q is not a name of this server: use localhost or an address, or start the server with --domain", r.host)}
}

// knows reports whether a host is the server's (an address, localhost, the
// server's domain, or a name below these), or names a sandbox.
func (s *Server) knows(host string) bool {
	if host == "" || byHeader(host) || isOrBelow(host, "localhost") || s.domain != "" && isOrBelow(host, s.domain) {
		return true
	}
	label, _, dotted := strings.Cut(host, ".")
	return dotted && isPortLabel(label)
}

func isOrBelow(host, domain string) bool {
	rest, ok := strings.CutSuffix(host, domain)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// rawPath returns the path of the request target as it came.
func rawPath(target string) string {
	p, _, _ := strings.Cut(target, "?")
	return p
}

func (r *request) query() url.Values {
	_, raw, _ := strings.Cut(r.target, "?")
	q, _ := url.ParseQuery(raw) // what is malformed is not there
	return q
}

// target is the sandbox and port that a request is for.
type target struct {
	id     string
	port   int
	prefix string // of the path, not known inside the sandbox
	path   string // raw path and query to ask for inside
}

// routeError is a request that names no sandbox properly; the text is the
// answer.
type routeError string

// Error implements error.
func (e routeError) Error() string { return string(e) }

// way is a way in which requests name a sandbox.
type way struct {
	// claims reports whether a request for a host, without its port, comes this way.
	claims func(r *request, host string) bool
	// find returns what such a request names. It is nil where the request names
	// nothing, but proves that it knows a sandbox's token.
	find  func(r *request, host string) (target, error)
	prove func(r *request) (proof, error)
}

// ways are all of them. The first that claims a request has it; a request that
// none claims is for the control plane on the same listener.
var ways = []way{
	// The host is {port}-{id}.domain.
	{claims: hasLabel, find: inLabel},
	// The host is an address, localhost or sandbox.*: a pair of headers, such as
	// E2b-Sandbox-Id and -Port.
	{claims: hasHeaders, find: inHeaders},
	// The path is /s/{id}/{port}/…
	{claims: hasPath, find: inPath},
	// The host is an address, localhost or sandbox.*: a signed URL of a file. With
	// E2B_SANDBOX_URL set, SDKs make them without anything that names the sandbox.
	{claims: hasSignature, prove: bySignature},
	// The host is the same, and the path the agent's: the sandbox's access token.
	// Novita's Python SDK sends nothing else to a sandbox that it connected to by id.
	{claims: hasToken, prove: byToken},
}

// routes decides which way r comes, and reports whether that is for a sandbox
// rather than for the control plane.
func routes(r *request) bool {
	host := hostName(r.host)
	for i := range ways {
		if ways[i].claims(r, host) {
			r.way = &ways[i]
			return true
		}
	}
	return false
}

// namedBy returns the first pair of headers of which r has one, or nil.
func namedBy(r *request) *naming {
	for i := range namings {
		n := &namings[i]
		if r.header.Get(n.sandbox) == "" && r.header.Get(n.port) == "" {
			continue
		}
		if n.beside && r.header.Get(headerAPIKey) != "" {
			continue
		}
		return n
	}
	return nil
}

func hasHeaders(r *request, host string) bool {
	return byHeader(host) && namedBy(r) != nil
}

func inHeaders(r *request, _ string) (target, error) {
	n := namedBy(r)
	if r.header.Count(n.sandbox) > 1 || r.header.Count(n.port) > 1 {
		return target{}, routeError("there is more than one " + n.sandbox + " or " + n.port)
	}
	id, port := r.header.Get(n.sandbox), r.header.Get(n.port)
	if id == "" || port == "" {
		return target{}, routeError("missing header: both " + n.sandbox + " and " + n.port + " are needed")
	}
	return newTarget(id, port, r.target)
}

func hasLabel(_ *request, host string) bool {
	label, _, dotted := strings.Cut(host, ".")
	return dotted && isPortLabel(label) && !byHeader(host)
}

func inLabel(r *request, host string) (target, error) {
	label, _, _ := strings.Cut(host, ".")
	port, rest, _ := strings.Cut(label, "-")
	id, _, _ := strings.Cut(rest, "-")
	return newTarget(id, port, r.target)
}

func hasPath(r *request, _ string) bool { return strings.HasPrefix(r.target, pathRoutes) }

func inPath(r *request, _ string) (target, error) { return parsePath(r.target) }

func hasSignature(r *request, host string) bool {
	return signedFile(r) && byHeader(host)
}

func bySignature(r *request) (proof, error) { return parseSigned(r) }

func hasToken(r *request, host string) bool {
	return r.header.Get(agentapi.HeaderAccessToken) != "" && r.header.Get(headerAPIKey) == "" &&
		byHeader(host) && isAgentPath(rawPath(r.target))
}

func byToken(r *request) (proof, error) { return bearer(r.header.Get(agentapi.HeaderAccessToken)), nil }

// isAgentPath reports whether a path is one of the agent's that clients use.
func isAgentPath(path string) bool {
	switch path {
	case "/files", "/health", "/envs", "/metrics":
		return true
	}
	return strings.HasPrefix(path, "/process.Process/") || strings.HasPrefix(path, "/filesystem.Filesystem/")
}

// isPortLabel tells a data-plane host from the control plane's.
func isPortLabel(label string) bool {
	port, _, ok := strings.Cut(label, "-")
	return ok && port != "" && strings.Trim(port, "0123456789") == ""
}

// signedFile reports whether r is a signed file URL.
func signedFile(r *request) bool {
	return rawPath(r.target) == "/files" && strings.Contains(r.target, "signature=") && r.query().Has("signature")
}

// parsePath splits /s/{id}/{port}/rest.
func parsePath(raw string) (target, error) {
	whole, query, hasQuery := strings.Cut(raw, "?")
	id, rest, _ := strings.Cut(whole[len(pathRoutes):], "/")
	port, rest, _ := strings.Cut(rest, "/")
	t, err := newTarget(id, port, "/"+rest)
	if err != nil {
		return target{}, err
	}
	t.prefix = pathRoutes + id + "/" + port
	if hasQuery {
		t.path += "?" + query
	}
	return t, nil
}

func newTarget(id, port, path string) (target, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return target{}, routeError(fmt.Sprintf("Invalid sandbox port %q", port))
	}
	if !sandboxid.Possible(id) {
		return target{}, routeError(fmt.Sprintf("Invalid sandbox ID %q", id))
	}
	return target{id: id, port: int(n), path: path}, nil
}

// hostName strips the port and the brackets of an IPv6 literal.
func hostName(host string) string {
	if strings.IndexByte(host, ':') >= 0 {
		if h, _, err := net.SplitHostPort(host); err == nil {
			return strings.ToLower(h)
		}
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// byHeader reports whether requests to host are routed by headers.
func byHeader(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "sandbox.") {
		return true
	}
	// Parsing is dear, and most hosts are names.
	couldBeIP := host != "" && ('0' <= host[len(host)-1] && host[len(host)-1] <= '9' || strings.IndexByte(host, ':') >= 0)
	return couldBeIP && net.ParseIP(host) != nil
}

// reserved are the agent's paths that only the host may use.
var reserved = map[string]bool{
	"/init": true, "/freeze": true, "/unfreeze": true, "/collapse": true,
	"/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
}

// cleanPath returns the path that a server inside may take a raw path for:
// decoded, and without dots and doubled slashes.
func cleanPath(target string) string {
	raw := rawPath(target)
	decoded, err := url.PathUnescape(raw)
	if err != nil {
		decoded = raw
	}
	return path.Clean("/" + decoded)
}

func isReserved(t target) (path string, ok bool) {
	if t.port != agentapi.Port {
		return "", false
	}
	clean := cleanPath(t.path)
	return clean, reserved[clean] || strings.HasPrefix(clean+"/", agentapi.PathPrivate)
}
