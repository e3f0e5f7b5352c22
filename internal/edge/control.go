package edge

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/edge/h1"
)

// serveControl gives a request that is for no sandbox to the control plane. Its
// head has been parsed strictly; net/http reads the same bytes again into the
// form that handlers know. False ends the connection.
func (c *conn) serveControl(head string, req *h1.Request) (keep bool) {
	c.startWatching()
	w := &controlWriter{c: c, req: req, header: http.Header{}}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
	if err != nil {
		// Strict as our parser is, net/http knows some more, such as bad URLs.
		c.refuse(&h1.Error{Status: http.StatusBadRequest, Reason: "malformed request"})
		return false
	}
	r = r.WithContext(c.ctx)
	r.RemoteAddr, r.ContentLength, r.Body = c.in.conn.RemoteAddr().String(), max(req.Length, -1), http.NoBody
	if c.peer {
		r = forwardedRequest(r, origin{c.client, c.secure, c.hops})
	} else if t, ok := c.in.conn.(*tls.Conn); ok {
		state := t.ConnectionState()
		r.TLS = &state
	}
	if req.Length != 0 {
		c.stopWatching()
		w.body = &controlBody{c: c, left: req.Length, expects: strings.EqualFold(req.Fields.Get("Expect"), "100-continue")}
		r.Body = w.body
	}
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				c.s.log.Error("handler panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			}
			c.breakOff()
			keep = false
		}
	}()
	c.s.control.ServeHTTP(w, r)
	return w.finish()
}

// controlBody is the body of a request for the control plane.
type controlBody struct {
	c       *conn
	left    int64
	chunks  h1.Chunks
	expects bool // the client waits for a 100
	err     error
}

// Read implements io.Reader.
func (b *controlBody) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.expects {
		b.expects = false
		if _, err := io.WriteString(b.c.in.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			b.err = err
			return 0, err
		}
	}
	n, err := b.read(p)
	b.err = err
	if errors.Is(err, io.EOF) {
		b.c.startWatching()
	}
	return n, err
}

func (b *controlBody) read(p []byte) (int, error) {
	in := &b.c.in
	for {
		if b.left == 0 || b.chunks.Done() {
			return 0, io.EOF
		}
		if len(in.buffered()) == 0 {
			if err := in.fill(); err != nil {
				return 0, unexpected(err)
			}
		}
		if b.left > 0 {
			n := copy(p[:min(int64(len(p)), b.left)], in.buffered())
			in.skip(n)
			b.left -= int64(n)
			return n, nil
		}
		data := in.buffered()
		n, content, err := b.chunks.Next(data[:min(len(data), len(p))])
		in.skip(n)
		if err != nil || len(content) > 0 {
			return copy(p, content), err
		}
	}
}

// Close implements io.Closer.
func (b *controlBody) Close() error { return nil }

// controlWriter is how the control plane answers. A small answer is sent whole,
// with its length; one that is flushed or large, in chunks.
type controlWriter struct {
	c      *conn
	req    *h1.Request
	header http.Header
	body   *controlBody // nil if there is none

	status   int
	out      []byte // of the body, not sent yet
	sending  bool   // the head is sent
	chunked  bool
	told     string // the length that the handler has said when it began; empty for none
	written  int64  // of the body
	hijacked bool   // the handler has the connection, and ends with it
	err      error
}

// controlBuffer is up to how many bytes an answer is held back.
const controlBuffer = 16 << 10

// Header implements http.ResponseWriter.
func (w *controlWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *controlWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.told = status, w.header.Get("Content-Length")
	}
}

// Write implements http.ResponseWriter.
func (w *controlWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.err != nil {
		return 0, w.err
	}
	if w.header.Get("Content-Type") == "" && !w.sending {
		w.header.Set("Content-Type", http.DetectContentType(p))
	}
	for n := 0; ; {
		piece := p[n:min(len(p), n+controlBuffer)]
		w.out = append(w.out, piece...)
		w.written += int64(len(piece))
		if n += len(piece); len(w.out) > controlBuffer {
			if err := w.flush(false); err != nil {
				return n, err
			}
		}
		if n == len(p) {
			return n, nil
		}
	}
}

// Flush implements http.Flusher.
func (w *controlWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *controlWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.flush(false)
}

// SetReadDeadline is for http.ResponseController.
func (w *controlWriter) SetReadDeadline(t time.Time) error { return w.c.in.conn.SetReadDeadline(t) }

// SetWriteDeadline is for http.ResponseController.
func (w *controlWriter) SetWriteDeadline(t time.Time) error { return w.c.in.conn.SetWriteDeadline(t) }

// Hijack implements http.Hijacker, for WebSockets. An answer that was begun with
// WriteHeader is sent first. The connection is the handler's until it returns,
// and is then closed.
func (w *controlWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.sending || w.hijacked || w.body != nil {
		return nil, nil, http.ErrHijacked
	}
	w.hijacked = true
	w.c.stopWatching()
	w.c.endInOrder()
	up := &hijacked{Conn: w.c.in.conn, c: w.c}
	if w.status != 0 {
		head := appendStatusLine(nil, w.status, http.StatusText(w.status))
		head = append(appendHeader(head, w.header), "\r\n"...)
		if _, err := up.Write(head); err != nil {
			return nil, nil, err
		}
	}
	return up, bufio.NewReadWriter(bufio.NewReader(up), bufio.NewWriter(up)), nil
}

// hijacked is a client's connection in the hands of a handler. What was read
// ahead comes first.
type hijacked struct {
	net.Conn
	c *conn
}

// Read implements io.Reader.
func (h *hijacked) Read(p []byte) (int, error) {
	if ahead := h.c.in.buffered(); len(ahead) > 0 {
		n := copy(p, ahead)
		h.c.in.skip(n)
		return n, nil
	}
	n, err := h.Conn.Read(p)
	h.c.note(n)
	return n, err
}

// Write implements io.Writer.
func (h *hijacked) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	h.c.note(n)
	return n, err
}

// flush sends what is held back; last says that there will be no more.
func (w *controlWriter) flush(last bool) error {
	if w.hijacked {
		return http.ErrHijacked
	}
	if w.err != nil {
		return w.err
	}
	var out []byte
	if !w.sending {
		w.sending = true
		out = w.appendHead(out, last)
	}
	switch {
	case w.req.Method == http.MethodHead || !bodyAllowed(w.status):
	case w.chunked:
		if len(w.out) > 0 {
			out = fmt.Appendf(out, "%x\r\n%s\r\n", len(w.out), w.out)
		}
		if last {
			out = append(out, "0\r\n\r\n"...)
		}
	default:
		out = append(out, w.out...)
	}
	w.out = w.out[:0]
	if len(out) > 0 {
		_, w.err = w.c.in.conn.Write(out)
	}
	return w.err
}

func (w *controlWriter) appendHead(out []byte, last bool) []byte {
	w.header.Del("Connection")
	w.header.Del("Transfer-Encoding")
	switch {
	case !bodyAllowed(w.status):
		w.header.Del("Content-Length")
	case last && w.req.Method != http.MethodHead:
		w.header.Set("Content-Length", fmt.Sprint(len(w.out)))
	case w.header.Get("Content-Length") != "" || w.req.Method == http.MethodHead:
	case w.req.Minor == 1:
		w.chunked = true
		w.header.Set("Transfer-Encoding", "chunked")
	}
	if !w.keeps() {
		w.header.Set("Connection", "close")
	}
	if w.header.Get("Date") == "" {
		w.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	out = appendStatusLine(out, w.status, http.StatusText(w.status))
	out = appendHeader(out, w.header)
	return append(out, "\r\n"...)
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// keeps reports whether the connection can go on after this answer: at least,
// what is left of the request must be known, and little. A client that was not
// told that the connection ends would use it again.
func (w *controlWriter) keeps() bool {
	if w.req.Close {
		return false
	}
	b := w.body
	return b == nil || errors.Is(b.err, io.EOF) || b.err == nil && !b.expects && b.left >= 0 && b.left <= drainBytes
}

// finish completes the answer. False if the connection must end.
func (w *controlWriter) finish() bool {
	if w.hijacked {
		return false
	}
	w.WriteHeader(http.StatusOK)
	if w.told != "" && w.told != strconv.FormatInt(w.written, 10) && w.req.Method != http.MethodHead && bodyAllowed(w.status) {
		w.c.breakOff() // nobody may take what there is for all of it
		return false
	}
	if b := w.body; b != nil && b.left == h1.Chunked && !b.expects && !w.sending {
		_ = w.drained(unreadPatience) // to know how much it is
	}
	keep := w.keeps()
	if w.flush(true) != nil {
		w.c.breakOff()
		return false
	}
	w.c.stopWatching()
	if keep && w.drained(lingerFor) {
		return true
	}
	if w.body != nil && !errors.Is(w.body.err, io.EOF) {
		w.c.linger()
	}
	return false
}

// unreadPatience is how long an answer waits for the end of a request that its
// handler did not want to read.
const unreadPatience = 100 * time.Millisecond

// drained reads what is left of the request, if it is little and comes in time.
func (w *controlWriter) drained(patience time.Duration) bool {
	b := w.body
	if b == nil || errors.Is(b.err, io.EOF) {
		return true
	}
	_ = w.c.in.conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.CopyN(io.Discard, b, drainBytes)
	w.c.stopWatching()
	return w.c.in.conn.SetReadDeadline(time.Time{}) == nil && errors.Is(err, io.EOF)
}
