package edge

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"

	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/ration"
)

// Sizes of buffers, in bytes.
const (
	readSize = 4 << 10  // what a connection keeps while it is open
	copySize = 32 << 10 // for bodies that the kernel cannot move by itself
	// spliceMin is the length from which the kernel moves a body by itself.
	spliceMin = 128 << 10
	// spliceStep bounds what moves before progress is noted.
	spliceStep = 1 << 20
)

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// stream is a connection and what has been read ahead from it. It is read by
// one goroutine at a time.
type stream struct {
	conn net.Conn
	buf  []byte // unread: buf[r:w]
	r, w int
	full bool  // the last read filled the buffer: there is more than it holds
	room *room // what the buffer may take beyond readSize
}

// room bounds what the buffers of the connections for one client may take
// together beyond readSize each. Nil bounds nothing.
type room struct {
	all    *ration.Ration
	holder ration.Holder
}

// What buffers take beyond readSize: for heads that are larger or unfinished,
// on either side, and while bodies that the kernel cannot move pass.
const (
	maxBuffers       = 128 << 20 // of all connections together
	maxClientBuffers = 32 << 20  // of those for one client address
)

func (r *room) take(n int) bool { return r == nil || r.all.Take(n, r.holder) }

func (r *room) give(n int) {
	if r != nil && n > 0 {
		r.all.Give(n, r.holder)
	}
}

func newStream(c net.Conn) stream { return stream{conn: c, buf: make([]byte, readSize)} }

func (s *stream) buffered() []byte { return s.buf[s.r:s.w] }

// fill reads more, making room first. It blocks until there is something.
func (s *stream) fill() error {
	switch {
	case s.r == s.w:
		s.r, s.w = 0, 0
		if s.full && len(s.buf) < copySize && s.room.take(copySize-len(s.buf)) {
			s.buf = make([]byte, copySize)
		}
	case s.w == len(s.buf) && s.r > 0:
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	if s.w == len(s.buf) {
		if !s.room.take(len(s.buf)) {
			return errNoRoom
		}
		larger := make([]byte, 2*len(s.buf))
		copy(larger, s.buf)
		s.buf = larger
	}
	// Others first: under load there is something to read by then, and neither a
	// read in vain nor a wait for the poller.
	runtime.Gosched()
	n, err := s.conn.Read(s.buf[s.w:])
	s.w += n
	s.full = s.w == len(s.buf)
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// shrink gives back the room that a large message took.
func (s *stream) shrink() {
	s.full = false
	if len(s.buf) > readSize && s.w-s.r <= readSize {
		small := make([]byte, readSize)
		s.room.give(len(s.buf) - readSize)
		s.w = copy(small, s.buffered())
		s.r, s.buf = 0, small
	}
}

// drop gives back all that the buffer takes, and what is in it. Nobody may read
// the stream after that.
func (s *stream) drop() {
	s.room.give(len(s.buf) - readSize)
	s.buf, s.r, s.w = nil, 0, 0
}

var (
	errHeadTooLarge   = &h1.Error{Status: 431, Reason: "the request's head is too large"}
	errTargetTooLarge = &h1.Error{Status: 414, Reason: "the request's URL is too long"}
	errNoRoom         = &h1.Error{Status: 503, Reason: "the connections from this address, or all of them, have as much buffered as they may: wait for requests to end, then try again"}
	errBareLF         = &h1.Error{Status: 400, Reason: "a line does not end with CR LF"}
)

// readHead returns a message's head, its empty line included. The bytes stay
// unread until skip. io.EOF means that the peer closed between messages.
// started is called when the first byte is there.
func (s *stream) readHead(most, mostLine int, started func()) (string, error) {
	for seen, line := 0, 0; ; {
		for data := s.buffered(); seen < len(data); seen++ {
			if data[seen] != '\n' {
				continue
			}
			if seen == 0 || data[seen-1] != '\r' {
				return "", errBareLF
			}
			switch {
			case line == 0 && seen > mostLine:
				return "", errTargetTooLarge
			case seen >= most:
				return "", errHeadTooLarge
			case seen-line == 1: // an empty line
				return string(data[:seen+1]), nil
			}
			line = seen + 1
		}
		switch {
		case line == 0 && seen > mostLine:
			return "", errTargetTooLarge
		case seen >= most:
			return "", errHeadTooLarge
		}
		if err := s.fill(); err != nil {
			if errors.Is(err, io.EOF) && seen > 0 {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		if seen == 0 && started != nil {
			started()
		}
	}
}

func (s *stream) skip(n int) { s.r += n }

// tcp returns the TCP connection, if there is nothing on top of it.
func (s *stream) tcp() *net.TCPConn {
	c, _ := s.conn.(*net.TCPConn)
	return c
}

// copyN passes on n bytes. note is told of each piece.
func (s *stream) copyN(dst net.Conn, n int64, note func(int)) error {
	for n > 0 && s.r < s.w {
		piece := s.buffered()
		if int64(len(piece)) > n {
			piece = piece[:n]
		}
		if _, err := dst.Write(piece); err != nil {
			return &writeError{err}
		}
		s.skip(len(piece))
		n -= int64(len(piece))
		note(len(piece))
	}
	to, ok := dst.(*net.TCPConn)
	if from := s.tcp(); ok && from != nil {
		for n >= spliceMin {
			moved, err := io.CopyN(to, from, min(n, spliceStep))
			n -= moved
			note(int(moved))
			if err != nil {
				return err
			}
		}
	}
	if n == 0 {
		return nil
	}
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	for n > 0 {
		m, err := s.conn.Read(buf[:min(n, copySize)])
		if m > 0 {
			if _, err := dst.Write(buf[:m]); err != nil {
				return &writeError{err}
			}
			n -= int64(m)
			note(m)
		}
		if err != nil && n > 0 {
			return unexpected(err)
		}
	}
	return nil
}

// copyChunks passes on a chunked body as it is, or only its content if plain.
// note is told of the content.
func (s *stream) copyChunks(dst net.Conn, plain bool, note func(int)) error {
	var c h1.Chunks
	for {
		for data := s.buffered(); len(data) > 0 && !c.Done(); data = s.buffered() {
			before := c.Content()
			n, piece, err := c.Next(data)
			if !plain && err == nil {
				var m int
				m, err = c.Scan(data[n:]) // and the rest of what is here
				n += m
				piece = data[:n]
			}
			if err != nil {
				return err
			}
			if len(piece) > 0 {
				if _, err := dst.Write(piece); err != nil {
					return &writeError{err}
				}
			}
			note(int(c.Content() - before))
			s.skip(n)
		}
		if c.Done() {
			return nil
		}
		if err := s.fill(); err != nil {
			return unexpected(err)
		}
	}
}

// copyAll passes on everything until the peer ends.
func (s *stream) copyAll(dst net.Conn, note func(int)) error {
	for {
		if data := s.buffered(); len(data) > 0 {
			if _, err := dst.Write(data); err != nil {
				return &writeError{err}
			}
			note(len(data))
			s.skip(len(data))
		}
		switch err := s.fill(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// writeError is a failure of the side that is written to.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// breakOff closes a connection so that the peer sees that it broke.
func breakOff(c net.Conn) {
	below := c
	if t, ok := below.(*tls.Conn); ok {
		below = t.NetConn() // without a goodbye
		c = below
	}
	if h, ok := below.(*handed); ok {
		below = h.Conn
	}
	if t, ok := below.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// closeWrite ends the writing direction.
func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}
