package audit

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// callKey is where a request's context has its *call.
type callKey struct{}

// call is what is known of a call while it goes on.
type call struct {
	mu      sync.Mutex
	key     *Actor
	looks   bool
	sandbox string
	status  int // of the answer; 0 if there is none yet
	logged  bool
	away    bool // another server answers it, and logs it
}

// By notes whose a call is, and whether it does no more than look. A request that
// did not come through a Log's Handler has nothing to note it with.
func By(ctx context.Context, key Actor, looks bool) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.key, c.looks = &key, looks
	}
}

// About notes which sandbox a call is about, or has made.
func About(ctx context.Context, sandbox string) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sandbox = sandbox
	}
}

// Elsewhere notes whether another server answers a call, and logs it.
func Elsewhere(ctx context.Context, away bool) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.away = away
	}
}

// Answered returns with what status a call was answered, and the id of the API key
// that it was of; "" if it had none that is good. It is for handlers within a Log's.
func Answered(ctx context.Context) (key string, status int) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return "", 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.key != nil {
		key = c.key.ID
	}
	return key, c.status
}

// Handler returns a handler that logs the calls that h answers. Only calls whose
// key was asked for (By) are logged, and those that were refused for want of one.
func (l *Log) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{}
		log := func(status int) { c.log(l, r, status) }
		defer log(0) // there was no answer, or it is logged already
		h.ServeHTTP(&answer{w, http.NewResponseController(w), log}, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

// answer logs its status when it begins. It can what the server's own can, over HTTP/1.1
// and over HTTP/2: deadlines through Unwrap.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	log     func(status int)
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols || status >= http.StatusOK {
		a.log(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.log(http.StatusOK)
	return a.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which connect asks for.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is Flush for http.ResponseController.
func (a *answer) FlushError() error { return a.control.Flush() }

// Hijack implements http.Hijacker.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := a.control.Hijack()
	if err == nil {
		a.log(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Login logs that somebody was let into a sandbox by another way than the API, or was
// not.
func (l *Log) Login(key Actor, from net.Addr, sandbox string, in bool) {
	status := http.StatusOK
	if !in {
		status = http.StatusForbidden
	}
	l.add(Entry{At: now(), Key: &key, Address: host(from.String()), Method: "SSH", Sandbox: cut(sandbox), Status: status})
}

// now is the time as entries have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// host is an address without its port.
func host(address string) string {
	if h, _, err := net.SplitHostPort(address); err == nil {
		return h
	}
	return address
}

// log logs the call, once.
func (c *call) log(l *Log, r *http.Request, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logged {
		return
	}
	c.logged, c.status = true, status
	refused := status == http.StatusUnauthorized || status == http.StatusForbidden
	if c.away || (c.key == nil || c.looks) && !refused {
		return
	}
	l.add(Entry{
		At: now(), Key: c.key, Address: host(r.RemoteAddr),
		Method: cut(r.Method), Path: cut(r.URL.EscapedPath()), Sandbox: c.sandbox, Status: status,
	})
}

// cut bounds what a client has sent.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
