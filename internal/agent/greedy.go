package agent

import (
	"io"
	"net"
)

// greedyListener accepts connections that read much at a time once there is
// much. In a sandbox each read has a price, whatever its size, and net/http
// reads chunked bodies, and finds the boundaries of forms, 4 KiB at a time.
type greedyListener struct{ net.Listener }

// Accept implements net.Listener.
func (l greedyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
		return &greedyConn{TCPConn: tcp}, nil
	}
	return conn, err
}

// greedyRead is the least size of a read that tells, being filled, of more.
const greedyRead = 2 << 10

type greedyConn struct {
	*net.TCPConn
	more bool             // the last read was filled
	buf  *[copyChunk]byte // nil while nothing is read ahead
	r, w int              // buf[r:w] is
}

// Read implements net.Conn.
func (c *greedyConn) Read(p []byte) (int, error) {
	if c.buf == nil {
		if !c.more || len(p) >= copyChunk || len(p) < greedyRead {
			n, err := c.TCPConn.Read(p)
			c.more = n == len(p) && n >= greedyRead
			return n, err
		}
		buf := copyBuffers.Get().(*[copyChunk]byte)
		n, err := c.TCPConn.Read(buf[:])
		if n == 0 || err != nil {
			copyBuffers.Put(buf)
			c.more = false
			return 0, err
		}
		c.buf, c.r, c.w = buf, 0, n
		c.more = n > len(p)
	}
	n := copy(p, c.buf[c.r:c.w])
	if c.r += n; c.r == c.w {
		copyBuffers.Put(c.buf)
		c.buf = nil
	}
	return n, nil
}

// WriteTo implements io.WriterTo, in place of that of a *net.TCPConn, which
// would pass by what is read ahead.
func (c *greedyConn) WriteTo(w io.Writer) (int64, error) {
	return copyAll(w, c)
}
