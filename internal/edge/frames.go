package edge

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// Bounds of HTTP/2.
const (
	// maxStreams is how many requests one connection may have under way.
	maxStreams = 128
	// maxFrame is the least that the protocol allows. net/http makes room for a
	// frame when it knows its length, and most clients send none longer.
	maxFrame = 16 << 10
	// maxDynamicTable bounds what a connection remembers of earlier heads.
	maxDynamicTable = 4 << 10
)

// framesKey is the key of the [frames] of a request's connection in its context.
type framesKey struct{}

// frames is a connection from which net/http reads HTTP/2. net/http waits for
// the rest of a frame, or of a head that goes on in other frames, for as long
// as a connection may be idle. This one looks at the frames as they pass, ends
// the connection when one takes too long, and bounds what unfinished heads and
// unread bodies take. It is read by one goroutine at a time, and written by one.
type frames struct {
	net.Conn
	secure   *tls.ConnectionState // nil if it came without TLS
	peer     bool                 // see conn
	patience time.Duration
	heads    share // of the head that is being read
	bodies   unread
	requests underway
	closed   chan struct{}
	close    func() error

	newest  uint32  // the stream of the latest request
	preface int     // bytes of it that are still to come
	header  [9]byte // of the frame that is being read
	have    int     // bytes of that
	left    int     // bytes of the frame that are still to come after it
	head    bool    // what is read is part of a request's head, which goes on
	late    *time.Timer
	waiting bool // late runs
}

func newFrames(c net.Conn, secure *tls.ConnectionState, patience time.Duration, room *room) *frames {
	f := &frames{
		Conn: c, secure: secure, patience: patience, heads: share{room: room}, closed: make(chan struct{}),
		bodies:  unread{share: share{room: room}, window: initialWindow},
		preface: len(http2Preface) + len("SM\r\n\r\n"),
	}
	f.requests.room = room
	f.bodies.refused = func() { f.requests.more(-1) }
	f.close = sync.OnceValue(func() error {
		close(f.closed)
		f.forget()
		return c.Close()
	})
	return f
}

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if !f.pass(p[:n]) {
		f.end()
		f.forget()
		return 0, errNoRoom
	}
	if err != nil {
		f.forget()
		if f.late != nil {
			f.late.Stop()
		}
	}
	return n, err
}

// Write implements io.Writer.
func (f *frames) Write(p []byte) (int, error) {
	n, err := f.Conn.Write(p)
	f.bodies.sent(p[:n])
	return n, err
}

// Close implements net.Conn. net/http calls it at the end of every connection,
// and need not have read to the end before.
func (f *frames) Close() error { return f.close() }

// end breaks the connection off.
func (f *frames) end() { breakOff(f.Conn) }

// pass looks at bytes that have been read. False if there is no room for what
// they belong to.
func (f *frames) pass(p []byte) bool {
	whole := false // a frame ended in p, outside of a head
	for len(p) > 0 {
		switch {
		case f.preface > 0:
			n := min(f.preface, len(p))
			f.preface -= n
			p = p[n:]
		case f.left > 0:
			n := min(f.left, len(p))
			f.left -= n
			p = p[n:]
		default:
			n := copy(f.header[f.have:], p)
			f.have += n
			p = p[n:]
			if f.have == len(f.header) && !f.begin() {
				return false
			}
		}
		if f.have == len(f.header) && f.left == 0 {
			f.have = 0
			whole = whole || !f.head
		}
	}
	f.wait(whole)
	return true
}

// Types and flags of frames (RFC 9113 §6).
const (
	frameData         = 0
	frameHeaders      = 1
	frameContinuation = 9
	flagEndHeaders    = 4
)

// begin looks at a frame's header. False if there is no room for what it is of.
func (f *frames) begin() bool {
	f.left = int(binary.BigEndian.Uint32(f.header[:4]) >> 8)
	kind, flags := f.header[3], f.header[4]
	switch {
	case kind == frameData:
		return f.bodies.arrive(f.left) || await(f.bodies.fits, f.patience, f.closed)
	case kind != frameHeaders && kind != frameContinuation:
		return true
	}
	if stream := binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31); kind == frameHeaders && stream > f.newest { // else they are trailers
		f.newest = stream
		if !await(func() bool { return f.requests.more(1) }, f.patience, f.closed) {
			return false
		}
	}
	f.head = flags&flagEndHeaders == 0
	if !f.head {
		f.heads.to(0)
		return true
	}
	return f.heads.add(f.left)
}

// wait begins or ends the time that a frame or head has.
func (f *frames) wait(whole bool) {
	unfinished := f.head || f.have > 0 || f.left > 0
	if f.waiting && (whole || !unfinished) {
		f.late.Stop()
		f.waiting = false
	}
	if unfinished && !f.waiting {
		f.waiting = true
		if f.late == nil {
			f.late = time.AfterFunc(f.patience, f.end)
		} else {
			f.late.Reset(f.patience)
		}
	}
}

// forget ends what the connection has, at its end.
func (f *frames) forget() {
	f.heads.end()
	f.bodies.end()
	f.requests.end()
}
