package edge

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// streams reports whether a request has no natural end.
func streams(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" ||
		strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") ||
		strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream")
}

// probes reports whether a request only asks if the sandbox is there: SDKs
// call that isRunning, and it is no activity.
func probes(r *http.Request, t target) bool {
	return t.port == agentapi.Port && r.Method == http.MethodGet && r.URL.Path == "/health"
}

// progressBody tells when bytes pass.
type progressBody struct {
	io.ReadCloser
	progress func()
}

// Read implements io.Reader.
func (b *progressBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.progress()
	}
	return n, err
}

// requestBody is the body of a request that streams in while its answer streams
// out. The transport may still be reading it when the answer is complete; the
// server must not take the connection back before that has ended, nor take
// what is left of the body for the next request.
type requestBody struct {
	progressBody

	mu  sync.Mutex // held by Read
	err error      // what ended the body
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.progressBody.Read(p)
	b.err = err
	return n, err
}

// Close implements io.Closer. The server closes the body itself.
func (b *requestBody) Close() error { return nil }

// How much of a body, and for how long, is read on after its answer.
const (
	drainBytes = 64 << 20
	drainTime  = 5 * time.Second
)

// finish reads the body to its end. If that is too far, it breaks the
// connection off.
func (b *requestBody) finish(rc *http.ResponseController) {
	_ = rc.SetReadDeadline(time.Now().Add(drainTime))
	if _, err := io.CopyN(io.Discard, b, drainBytes); err != io.EOF {
		panic(http.ErrAbortHandler)
	}
	_ = rc.SetReadDeadline(time.Time{})
}

// progressConn is the body of an upgraded connection, which is also written.
type progressConn struct {
	progressBody
	w io.Writer
}

// Write implements io.Writer.
func (c *progressConn) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if n > 0 {
		c.progress()
	}
	return n, err
}

func withProgress(body io.ReadCloser, progress func()) io.ReadCloser {
	b := progressBody{ReadCloser: body, progress: progress}
	if w, ok := body.(io.Writer); ok {
		return &progressConn{progressBody: b, w: w}
	}
	return &b
}
