package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"strings"
)

// PortURL returns the URL of a port of a sandbox as the client that asks can reach
// it, without a path: by host name if there is a domain, and else by path on the
// host that the client has asked.
func PortURL(r *http.Request, domain, sandbox string, port int) string {
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	if domain != "" {
		return fmt.Sprintf("%s://%d-%s.%s", scheme, port, sandbox, domain)
	}
	return fmt.Sprintf("%s://%s/s/%s/%d", scheme, host(r), sandbox, port)
}

// host returns what the request calls this server; for HTTP/1.0, which need not
// say, the address that it came to.
func host(r *http.Request) string {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && r.Host == "" {
		return at.String()
	}
	return r.Host
}
