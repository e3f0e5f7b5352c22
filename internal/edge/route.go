package edge

import (
	"fmt"
	"net"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// The headers that name a sandbox where the host does not.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
)

// target is the sandbox and port that a request is for.
type target struct {
	id   string
	port int
}

var (
	sandboxID = regexp.MustCompile(`^[a-z0-9]+$`)
	// portLabel is what tells a data-plane host from the control plane's.
	portLabel = regexp.MustCompile(`^[0-9]+-`)
)

// routeError is a request that names no sandbox properly; the text is the
// answer.
type routeError string

// Error implements error.
func (e routeError) Error() string { return string(e) }

// Routes reports whether r is for a sandbox rather than for the control plane
// on the same listener.
func Routes(r *http.Request) bool {
	host := hostName(r.Host)
	if byHeader(host) {
		return r.Header.Get(headerSandbox) != "" || r.Header.Get(headerPort) != "" || signedFile(r)
	}
	label, _, dotted := strings.Cut(host, ".")
	return dotted && portLabel.MatchString(label)
}

// signedFile reports whether r is a signed file URL. With E2B_SANDBOX_URL set,
// SDKs make them without anything that names the sandbox.
func signedFile(r *http.Request) bool {
	return r.URL.Path == "/files" && r.URL.Query().Has("signature")
}

// parseTarget finds the sandbox that r names by its host or headers.
func parseTarget(r *http.Request) (target, error) {
	host := hostName(r.Host)
	if byHeader(host) {
		return parseHeaders(r.Header)
	}
	label, _, dotted := strings.Cut(host, ".")
	parts := strings.Split(label, "-")
	if !dotted || len(parts) < 2 {
		return target{}, routeError("Invalid host")
	}
	return newTarget(parts[1], parts[0])
}

func parseHeaders(h http.Header) (target, error) {
	id, port := h.Get(headerSandbox), h.Get(headerPort)
	if id == "" || port == "" {
		return target{}, routeError("missing header: both " + headerSandbox + " and " + headerPort + " are needed")
	}
	return newTarget(id, port)
}

func newTarget(id, port string) (target, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return target{}, routeError(fmt.Sprintf("Invalid sandbox port %q", port))
	}
	if !sandboxID.MatchString(id) {
		return target{}, routeError(fmt.Sprintf("Invalid sandbox ID %q", id))
	}
	return target{id: id, port: int(n)}, nil
}

// hostName strips the port and the brackets of an IPv6 literal.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return strings.ToLower(h)
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// byHeader reports whether requests to host are routed by headers.
func byHeader(host string) bool {
	return host == "localhost" || strings.HasPrefix(host, "sandbox.") || net.ParseIP(host) != nil
}

// reserved are the agent's paths that only the host may use.
var reserved = map[string]bool{
	"/init": true, "/freeze": true, "/unfreeze": true, "/collapse": true,
	"/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
}

func isReserved(t target, urlPath string) bool {
	clean := path.Clean("/" + urlPath)
	return t.port == agentapi.Port && (reserved[clean] || strings.HasPrefix(clean+"/", agentapi.PathPrivate))
}
