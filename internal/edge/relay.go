package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/supervisor/leases"
)

// exchange is one request for a sandbox on an HTTP/1.1 connection, and its
// answer.
type exchange struct {
	visit
	c    *conn
	head string // of the request, as it came
	req  *h1.Request
	r    *request
	up   *upstream

	taken bool // the body is no longer the client connection's next bytes
	// upload is closed when the body has been read or never will be; nil if it
	// was sent with the head.
	upload   chan struct{}
	unread   bool // the body was not read to its end; valid once upload is closed
	unsent   bool // it was not passed on to its end; likewise
	awaits   bool // the client sends the body only after a 100, which has not come
	status   int  // that was answered; 0 for none
	sent     int64
	received int64
	end      ending // guarded by conn.mu
}

// breakOff implements breaker.
func (x *exchange) breakOff() { x.c.breakOff() }

// serve carries the request out. False ends the connection.
func (x *exchange) serve() (keep bool) {
	begin := x.c.s.begin()
	x.c.startWatching()
	defer func() {
		x.c.s.served(x.r, x.p, "1.1", x.status, x.sent, x.received, begin)
	}()
	defer x.leave(x)
	for begins := true; begins; begins = x.again {
		ok, refusal := x.enter(x.c.ctx, &x.c.s.edge, x.r, x)
		switch {
		case refusal != nil:
			x.c.s.holdBack(x.c.s.ctx, x.c.client, refusal.Code)
			return x.reply(refusal)
		case !ok && x.g != nil && x.g.isCut():
			return x.reply(interrupted(x.p, x.lease.Why()))
		case !ok:
			return x.broken()
		}
		keep = x.relay()
	}
	if x.c.hasGone() && !x.step(nil).cut && !x.g.isCut() && !x.c.s.isClosing() {
		x.hangUp(x.r)
	}
	return keep
}

// reply answers in place of the sandbox, whose connection is not in use.
func (x *exchange) reply(a *reply) bool {
	x.status = a.Code
	x.c.stopWatching()
	drained := !x.req.Close && (x.taken && x.upload == nil || !x.taken && x.c.drain(x.req))
	if x.c.answer(x.r, a, drained, x.req.Method) {
		return true
	}
	if !drained {
		x.c.linger()
	}
	return false
}

// broken ends the exchange so that both peers see that it broke, and waits for
// the end of the upload: the connection's memory is let go after this.
func (x *exchange) broken() bool {
	x.c.breakOff()
	if x.upload != nil {
		<-x.upload
	}
	return false
}

// relay passes the request on and the answer back.
func (x *exchange) relay() bool {
	head, refusal := x.send()
	if x.again {
		return false
	}
	if refusal != nil {
		return x.reply(refusal)
	}
	if head == nil {
		return x.broken()
	}
	if head.Status == http.StatusSwitchingProtocols {
		return x.tunnel(head)
	}
	keep, err := x.answer(head)
	if err != nil {
		if errors.As(err, new(*writeError)) {
			x.c.lost()
		}
		// Whoever reads half an answer must see that it is half.
		x.up.close()
		return x.broken()
	}
	x.step(func(e *ending) { e.complete = true })
	intact := x.c.unbind()
	read := x.endUpload()
	if intact && read && x.reusable(head) {
		x.up.keep()
	} else {
		x.up.close()
	}
	x.c.stopWatching()
	return keep && read
}

// reusable reports whether another request may be sent on the connection after
// this answer. A user's server may have left the body of a request unread, and
// takes it for the next one; so none is used after a body. Nor is one whose
// answer could have a body that it must not have, and that may still come.
func (x *exchange) reusable(resp *h1.Response) bool {
	switch {
	case resp.Close || resp.Minor == 0 || x.unsent:
		return false
	case x.door() == agentapi.Port:
		return true
	case resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified:
		return x.repeatable() && !slices.ContainsFunc(resp.Fields, func(f h1.Field) bool { return isFraming(f.Name) })
	}
	return x.repeatable() && x.req.Method != http.MethodHead
}

// repeatable reports whether the request can be sent twice: it has no body and
// changes nothing.
func (x *exchange) repeatable() bool {
	return x.req.Length == 0 && x.req.Upgrade == "" && isSafe(x.req.Method)
}

// send connects, passes the request on, and reads the head of the answer. A
// request without a body that changes nothing is sent again, once, if the
// connection had been kept and proves to be closed.
func (x *exchange) send() (*h1.Response, *reply) {
	repeatable := x.repeatable()
	up, err := x.g.dial(x.c.ctx, &x.visit, repeatable)
	if err != nil {
		return nil, x.dialFailed(err)
	}
	head, err := x.try(up)
	if err != nil && repeatable && up.reused && x.upload == nil && x.c.ctx.Err() == nil && (isClosed(err) || x.p.server != "" && isClosedPeer(err)) {
		if up, err = x.g.open(x.c.ctx, &x.visit); err != nil {
			return nil, x.dialFailed(err)
		}
		head, err = x.try(up)
	}
	if err == nil {
		return head, nil
	}
	if x.upload != nil && x.c.ctx.Err() == nil {
		x.stopUpload() // it may still read from the client
	}
	switch {
	case x.c.ctx.Err() != nil:
		return nil, nil
	case x.g.isCut():
		return nil, x.cutReply()
	}
	x.failed(err)
	return nil, brokeOff(x.p, err)
}

// failed logs a request whose connection broke before the answer: whether a
// user's server does that is its own affair; the agent does not.
func (x *exchange) failed(err error) {
	if x.p.server != "" {
		x.c.s.logPeer(x.p, err)
		return
	}
	level := slog.LevelDebug
	if x.p.port == agentapi.Port {
		level = slog.LevelWarn
	}
	x.c.s.log.Log(x.c.ctx, level, "request to sandbox failed", "sandbox", x.p.id, "port", x.p.port, "err", err)
}

func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// isClosed reports whether a connection that was kept had been closed by its
// peer before it got the request.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (x *exchange) dialFailed(err error) *reply {
	switch {
	case x.c.ctx.Err() != nil:
		return nil
	case x.g.isCut():
		return x.cutReply()
	case x.p.server != "" && x.beginAgain(x.c.ctx, &x.c.s.edge, err):
		return nil
	case x.p.server != "":
		x.c.s.logPeer(x.p, err)
		return peerFailed(x.p, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return portClosed(x.p)
	}
	x.c.s.log.Warn("sandbox's port could not be reached", "sandbox", x.p.id, "port", x.p.port, "err", err)
	return brokeOff(x.p, err)
}

// try sends the request on a connection and reads the head of its answer,
// passing on those that come before it (RFC 9110 §15.2).
func (x *exchange) try(up *upstream) (*h1.Response, error) {
	x.up = up
	up.room = x.c.in.room
	if !x.c.bind(up.conn) {
		up.close()
		return nil, context.Canceled
	}
	if x.step(nil).cut {
		up.close()
		return nil, leases.ErrCut
	}
	if err := x.sendRequest(); err != nil {
		up.close()
		return nil, err
	}
	for {
		resp, err := x.readAnswer()
		if err != nil {
			up.close()
			return nil, err
		}
		if resp.Status >= 200 || resp.Status == http.StatusSwitchingProtocols {
			return resp, nil
		}
		if resp.Status == http.StatusContinue {
			x.awaits = false
		}
		if x.req.Minor == 0 {
			continue // HTTP/1.0 knows none of these
		}
		x.c.out = x.appendAnswerHead(x.c.out[:0], resp, true)
		if _, err := x.c.in.conn.Write(x.c.out); err != nil {
			up.close()
			return nil, err
		}
	}
}

// readAnswer reads the head of an answer.
func (x *exchange) readAnswer() (*h1.Response, error) {
	head, err := x.up.readHead(maxAnswerHead, maxAnswerHead, nil)
	if err != nil {
		return nil, err
	}
	resp := &x.c.resp
	if *resp, err = h1.ParseResponse(head, x.req.Method, x.c.answerFields[:0]); err != nil {
		return nil, err
	}
	x.c.answerFields = resp.Fields
	x.up.skip(len(head))
	x.lease.Progress(len(head))
	if resp.Status == http.StatusSwitchingProtocols && x.req.Upgrade == "" {
		return nil, errors.New("the sandbox's port switched protocols unasked")
	}
	return resp, nil
}

// sendRequest writes the head, with the body if that is here already; else the
// body follows while the answer may come.
func (x *exchange) sendRequest() error {
	out := x.appendRequestHead(x.c.out[:0])
	in := &x.c.in
	if n := x.req.Length; n != 0 {
		x.c.stopWatching()
		x.taken = true
		if n > 0 && n <= int64(len(in.buffered())) {
			out = append(out, in.buffered()[:n]...)
			in.skip(int(n))
			x.received += n
			x.lease.Progress(int(n))
			x.c.startWatching()
		} else {
			x.upload = make(chan struct{})
			x.awaits = x.req.Fields.Get("Expect") != ""
		}
	}
	x.c.out = out
	_, err := x.up.conn.Write(out)
	if x.upload != nil {
		go x.sendBody(x.up.conn)
	}
	return err
}

// sendBody passes the request's body on. If the sandbox takes no more of it,
// which is its right once it has answered, the rest is thrown away.
func (x *exchange) sendBody(up net.Conn) {
	defer close(x.upload)
	dst := &tolerant{Conn: up, left: drainBytes}
	err := x.c.copyBody(dst, x.req, func(n int) {
		x.received += int64(n)
		x.c.note(n)
		x.lease.Progress(n)
	})
	x.unread, x.unsent = err != nil, err != nil || dst.err != nil
	switch {
	case err == nil:
		x.c.startWatching()
	case errors.As(err, new(*h1.Error)):
		// What comes is no body. There is no answer to that which could not be
		// taken for the sandbox's.
		x.c.s.counts.malformed.Inc()
		x.c.breakOff()
	case errors.As(err, new(*writeError)), isTimeout(err):
		// The answer may be on its way.
	default:
		x.c.breakOff() // the client broke off in the middle
	}
}

// tolerant is a connection that, after it has failed, takes a little more.
type tolerant struct {
	net.Conn
	err  error
	left int
}

// Write implements io.Writer.
func (t *tolerant) Write(p []byte) (int, error) {
	if t.err == nil {
		if _, t.err = t.Conn.Write(p); t.err == nil {
			return len(p), nil
		}
	}
	if t.left -= len(p); t.left < 0 {
		return 0, t.err
	}
	return len(p), nil
}

// endUpload waits a little for the rest of a body whose answer is complete.
// False if it did not come: then the client's connection has been ended.
func (x *exchange) endUpload() bool {
	if x.upload == nil {
		return true
	}
	timer := time.NewTimer(lingerFor)
	defer timer.Stop()
	if x.awaits || x.step(nil).over {
		timer.Reset(0)
	}
	select {
	case <-x.upload:
	case <-timer.C:
		x.stopUpload()
	}
	if x.unread {
		x.c.linger()
	}
	return !x.unread
}

// stopUpload makes the upload end now.
func (x *exchange) stopUpload() {
	_ = x.c.in.conn.SetReadDeadline(past)
	<-x.upload
	_ = x.c.in.conn.SetReadDeadline(time.Time{})
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// answer passes the answer back, whose head is read. It tells whether the
// client's connection can go on after it.
func (x *exchange) answer(resp *h1.Response) (keep bool, err error) {
	x.status = resp.Status
	x.step(func(e *ending) { e.answered = true })
	contentType := resp.Fields.Get("Content-Type")
	if isEventStream(contentType) {
		x.lease.Streams()
	}
	var m messages
	if x.p.server == "" { // that one ends its streams itself
		m = messagesOf(resp.Status, "", contentType)
	}
	keep = !x.req.Close && resp.Length != h1.UntilClose && !x.awaits
	if resp.Close && x.upload != nil && !x.uploaded() {
		keep = false // it will not read the rest, and that may be much
	}
	out := x.appendAnswerHead(x.c.out[:0], resp, keep)
	if n := resp.Length; n > 0 && n <= int64(len(x.up.buffered())) {
		out = append(out, x.up.buffered()[:n]...)
		x.up.skip(int(n))
		x.sent += n
		x.lease.Progress(int(n))
		resp.Length = 0
	}
	x.c.out = out
	if _, err := x.c.in.conn.Write(out); err != nil {
		return false, err
	}
	return keep, x.copyAnswer(resp, m)
}

// uploaded reports whether the body has been read whole.
func (x *exchange) uploaded() bool {
	select {
	case <-x.upload:
		return !x.unread
	default:
		return false
	}
}

func (x *exchange) copyAnswer(resp *h1.Response, m messages) error {
	note := x.noted(&x.sent)
	client := x.c.in.conn
	switch resp.Length {
	case 0:
		return nil
	case h1.Chunked:
		if m != nil && x.req.Minor == 1 {
			return x.passMessages(m, new(h1.Chunks), note)
		}
		return x.up.copyChunks(client, x.req.Minor == 0, note)
	case h1.UntilClose:
		return x.up.copyAll(client, note)
	}
	return x.up.copyN(client, resp.Length, note)
}

// tunnel passes bytes both ways after the protocol was switched, until both
// sides have ended.
func (x *exchange) tunnel(resp *h1.Response) bool {
	x.status = resp.Status
	x.c.stopWatching()
	x.c.out = x.appendAnswerHead(x.c.out[:0], resp, true)
	if _, err := x.c.in.conn.Write(x.c.out); err != nil {
		x.up.close()
		return x.broken()
	}
	x.step(func(e *ending) { e.answered = true })
	var m messages
	if x.p.server == "" {
		m = messagesOf(resp.Status, resp.Fields.Get("Upgrade"), "")
	}
	var inward sync.WaitGroup
	inward.Go(func() {
		if x.bodyEnded() {
			x.pipeInward(m != nil)
		}
	})
	if m == nil {
		x.pipe(x.c.in.conn, &x.up.stream, &x.sent)
	} else {
		x.pipeMessages(m)
	}
	if x.step(nil).over {
		_ = x.c.in.conn.SetReadDeadline(past)
		inward.Wait()
		x.up.close()
		x.leave(x) // and the client has time to read the last message
		x.c.linger()
		return false
	}
	inward.Wait()
	x.up.close()
	return false
}

// bodyEnded waits until the request's body, which may follow the switch, has been
// read, and reports whether the client's next bytes are the tunnel's.
func (x *exchange) bodyEnded() bool {
	if x.upload == nil {
		return true
	}
	<-x.upload
	x.c.stopWatching() // the upload's end has begun it again
	switch {
	case x.step(nil).over:
		return false
	case x.unread:
		x.c.breakOff()
		return false
	}
	return true
}

// pipeInward passes on what the client sends. If what the sandbox says is
// followed, whoever does that sees that it has gone, and says so.
func (x *exchange) pipeInward(followed bool) {
	err := x.copyAll(x.up.conn, &x.c.in, &x.received)
	if followed && (errors.As(err, new(*writeError)) || x.step(nil).over) {
		return
	}
	if err != nil {
		x.c.breakOff()
	}
}

// pipeMessages passes on what the sandbox says on a WebSocket.
func (x *exchange) pipeMessages(m messages) {
	err := x.passMessages(m, nil, x.noted(&x.sent))
	if err == nil && !x.step(nil).over {
		err = closeWrite(x.c.in.conn)
	}
	if err != nil {
		x.c.breakOff()
	}
}

// pipe passes bytes one way. A break is passed on as a break.
func (x *exchange) pipe(dst net.Conn, src *stream, count *int64) {
	if x.copyAll(dst, src, count) != nil {
		x.c.breakOff()
	}
}

// copyAll passes bytes one way, and their end.
func (x *exchange) copyAll(dst net.Conn, src *stream, count *int64) error {
	if err := src.copyAll(dst, x.noted(count)); err != nil {
		return err
	}
	return closeWrite(dst)
}

// noted counts bytes that pass.
func (x *exchange) noted(count *int64) func(int) {
	return func(n int) {
		*count += int64(n)
		x.c.note(n)
		x.lease.Progress(n)
	}
}

func (x *exchange) appendRequestHead(out []byte) []byte {
	if x.p.server != "" {
		return appendForwarded(out, x.head, x.r)
	}
	path := x.p.path
	if x.p.preview {
		path = withoutPreview(path)
	}
	out = append(out, x.req.Method...)
	out = append(out, ' ')
	out = append(out, path...)
	out = append(out, " HTTP/1.1\r\n"...)
	if x.p.mask != "" {
		out = appendField(out, "Host", x.p.mask)
		out = appendField(out, "X-Forwarded-Host", x.req.Host)
	}
	for i := range x.req.Fields {
		f := &x.req.Fields[i]
		if !x.req.Forwarded(f.Name) || x.p.mask != "" && isMasked(f.Name) || x.p.token != "" && isCredential(f.Name) {
			continue
		}
		value := f.Value
		if strings.EqualFold(f.Name, "Cookie") && x.c.s.hidesCookies(value, x.p.preview) {
			if value = x.c.s.withoutCookies(value, x.p.preview); value == "" {
				continue
			}
		}
		out = appendField(out, f.Name, value)
	}
	if x.p.token != "" {
		out = appendField(out, agentapi.HeaderAccessToken, x.p.token)
	}
	if x.req.Upgrade != "" {
		out = appendField(out, "Connection", "Upgrade")
		out = appendField(out, "Upgrade", x.req.Upgrade)
	}
	return append(out, "\r\n"...)
}

func isMasked(name string) bool {
	return strings.EqualFold(name, "Host") || strings.EqualFold(name, "X-Forwarded-Host")
}

// appendAnswerHead appends the head of the sandbox's answer as the client gets
// it.
func (x *exchange) appendAnswerHead(out []byte, resp *h1.Response, keep bool) []byte {
	out = appendStatusLine(out, resp.Status, resp.Reason)
	bodiless := resp.Status < 200 || resp.Status == http.StatusNoContent
	dechunked := x.req.Minor == 0 && resp.Length == h1.Chunked
	for i := range resp.Fields {
		f := &resp.Fields[i]
		switch {
		case !resp.Forwarded(f.Name):
		case (bodiless || dechunked) && isFraming(f.Name):
		case x.p.prefix != "" && ofWholeOrigin(f.Name):
		case x.p.prefix != "":
			out = appendField(out, f.Name, x.p.underPrefix(f.Name, f.Value, x.r.host))
		default:
			out = appendField(out, f.Name, f.Value)
		}
	}
	if policy := x.p.pagePolicy(); policy != "" && resp.Status >= 200 {
		out = appendField(out, headerPolicy, policy)
	}
	switch {
	case resp.Status == http.StatusSwitchingProtocols:
		out = appendField(out, "Connection", "Upgrade")
		out = appendField(out, "Upgrade", resp.Fields.Get("Upgrade"))
	case !keep:
		out = appendField(out, "Connection", "close")
	}
	return append(out, "\r\n"...)
}

func isFraming(name string) bool {
	return strings.EqualFold(name, "Content-Length") || strings.EqualFold(name, "Transfer-Encoding")
}

func appendStatusLine(out []byte, status int, reason string) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(status), 10)
	out = append(out, ' ')
	out = append(out, reason...)
	return append(out, "\r\n"...)
}

func appendField(out []byte, name, value string) []byte {
	out = append(out, name...)
	out = append(out, ": "...)
	out = append(out, value...)
	return append(out, "\r\n"...)
}

func appendHeader(out []byte, h http.Header) []byte {
	for name, values := range h {
		for _, value := range values {
			out = appendField(out, name, oneLine.Replace(value))
		}
	}
	return out
}

// oneLine keeps a value from becoming more than one field.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// appendAnswer appends a whole answer of the server's own.
func appendAnswer(out []byte, status int, h http.Header, body []byte, head bool) []byte {
	out = appendStatusLine(out, status, http.StatusText(status))
	out = appendHeader(out, h)
	out = appendField(out, "Content-Length", strconv.Itoa(len(body)))
	out = append(out, "\r\n"...)
	if head {
		return out
	}
	return append(out, body...)
}
