package audit

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/felixge/httpsnoop"
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
		h.ServeHTTP(httpsnoop.Wrap(w, httpsnoop.Hooks{
			WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
				return func(status int) {
					if status == http.StatusSwitchingProtocols || status >= http.StatusOK {
						log(status)
					}
					next(status)
				}
			},
			Write: func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
				return func(p []byte) (int, error) {
					log(http.StatusOK)
					return next(p)
				}
			},
			Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
				return func() (net.Conn, *bufio.ReadWriter, error) {
					log(http.StatusSwitchingProtocols)
					return next()
				}
			},
		}), r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

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
	if (c.key == nil || c.looks) && !refused {
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
