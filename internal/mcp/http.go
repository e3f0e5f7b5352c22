package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/client"
)

const (
	// Path is where the server is, over HTTP.
	Path = "/mcp"

	// maxRequest bounds the body of a request, and so a file to write.
	maxRequest = 16 << 20
	// sessionIdle is after how long without a request a session ends.
	sessionIdle = time.Hour
	// checkWithin bounds the check of a key.
	checkWithin = 10 * time.Second
	// stateless is the version of the protocol from which on there are no sessions.
	stateless = "2026-07-28"

	extraClient = "client"
)

// HTTPOptions says how the server is reached over HTTP.
type HTTPOptions struct {
	// Hosts are the names under which it may be asked for, beside those of this
	// machine itself.
	Hosts []string
	// Connect returns a client for an API key.
	Connect func(key string) (*client.Client, error)
}

// Handler serves the protocol's streamable HTTP at [Path]. Each request needs an API
// key of drowse as a bearer token, and works with the rights of that key. A session
// belongs to the key that began it.
//
// A page that a browser shows must not reach the server behind the user's back:
// the Host header must be one of the names, which a name that was bound to this
// address by force is not, and so must the Origin, where there is one.
func (s *Server) Handler(o HTTPOptions) http.Handler {
	get := func(*http.Request) *mcp.Server { return s.sdk }
	common := mcp.StreamableHTTPOptions{
		MaxRequestBodyBytes: maxRequest, SessionTimeout: sessionIdle,
		DisableLocalhostProtection: true, // ours knows more names, and asks always
	}
	without := common
	without.Stateless, without.PropagateRequestCancellation = true, true
	many, single := mcp.NewStreamableHTTPHandler(get, &common), mcp.NewStreamableHTTPHandler(get, &without)
	sessions := &sessions{sdk: s.sdk, of: map[string]*session{}}

	streamable := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= stateless && r.Header.Get("Mcp-Session-Id") == "" {
			single.ServeHTTP(w, r)
			return
		}
		sessions.serve(many, w, r)
	})
	known := auth.RequireBearerToken(verifier(o.Connect), &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(s.bounded(streamable))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status, why := refuse(r, o.Hosts); status != 0 {
			http.Error(w, why, status)
			return
		}
		// Also where nobody reads the body: what is left of it is waited for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.patience))
		w.Header().Set("WWW-Authenticate", "Bearer") // taken back where all is well
		known.ServeHTTP(&welcome{ResponseWriter: w}, r)
	})
}

// welcome is the answer to a request: what asks for a key goes where none is
// missing.
type welcome struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (w *welcome) WriteHeader(status int) {
	if !w.begun && status != http.StatusUnauthorized {
		w.Header().Del("WWW-Authenticate")
	}
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *welcome) Write(b []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *welcome) Flush() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *welcome) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refuse returns the status and the reason for requests that are not for this
// server, or that a page of somebody else makes; 0 for others.
func refuse(r *http.Request, hosts []string) (status int, why string) {
	if !answersTo(r.Host, hosts) {
		return http.StatusForbidden, fmt.Sprintf("this server does not answer to the host %q: start it with --allow-host NAME if that is its name", r.Host)
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !answersTo(u.Host, hosts) {
			return http.StatusForbidden, fmt.Sprintf("requests from pages of %q are not accepted", origin)
		}
	}
	if r.URL.Path != Path {
		return http.StatusNotFound, "nothing is here: the server is at " + Path
	}
	return 0, ""
}

// answersTo reports whether host, perhaps with a port, is this machine or one of the
// names.
func answersTo(host string, names []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return IsLoopback(host) || slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) })
}

// IsLoopback reports whether a host is reached from this machine alone.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// verifier asks drowse whether it knows a key. Nothing is found by the id "0"; a key
// that is not valid does not learn that.
func verifier(connect func(key string) (*client.Client, error)) auth.TokenVerifier {
	return func(ctx context.Context, key string, _ *http.Request) (*auth.TokenInfo, error) {
		c, err := connect(key)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, checkWithin)
		defer cancel()
		switch _, err = c.Find(ctx, "0"); {
		case err == nil, errors.Is(err, client.ErrNotFound):
		case errors.Is(err, client.ErrUnauthorized):
			return nil, fmt.Errorf("%w: send an API key of drowse as the bearer token", auth.ErrInvalidToken)
		default:
			return nil, err
		}
		sum := sha256.Sum256([]byte(key))
		return &auth.TokenInfo{UserID: hex.EncodeToString(sum[:]), Extra: map[string]any{extraClient: c}}, nil
	}
}

// ServeListener serves clients on a listener until ctx ends.
func (s *Server) ServeListener(ctx context.Context, ln net.Listener, o HTTPOptions) error {
	srv := &http.Server{Handler: s.Handler(o), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(s.room.Listener(ln)) }()
	select {
	case err := <-done:
		s.stop()
		return err
	case <-ctx.Done():
		s.stop()
		return srv.Close()
	}
}
