package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// maxHead bounds what is read of a connection to learn its name.
const maxHead = 64 << 10

// tlsHandshake is the first byte of a connection that speaks TLS.
const tlsHandshake = 0x16

// sniff reads of a connection which name it is for: that in a TLS greeting, or
// the host of an HTTP request. It returns all that it has read. The name is
// empty where there is none.
func sniff(c net.Conn, within time.Duration) (head []byte, name string) {
	if c.SetReadDeadline(time.Now().Add(within)) != nil {
		return nil, ""
	}
	name, head = nameIn(io.LimitReader(c, maxHead))
	if c.SetReadDeadline(time.Time{}) != nil {
		return nil, ""
	}
	return head, name
}

// nameIn returns the name that the beginning of a connection is for, and what
// has been read to find it.
func nameIn(r io.Reader) (name string, read []byte) {
	var all bytes.Buffer
	tee := bufio.NewReader(io.TeeReader(r, &all))
	first, err := tee.Peek(1)
	switch {
	case err != nil:
	case first[0] == tlsHandshake:
		name = serverName(tee)
	case first[0] >= 'A' && first[0] <= 'Z': // a method
		name = httpHost(tee)
	}
	return canonical(name), all.Bytes()
}

func httpHost(r *bufio.Reader) string {
	req, err := http.ReadRequest(r)
	if err != nil {
		return ""
	}
	host, _, err := net.SplitHostPort(req.Host)
	if err != nil {
		return req.Host
	}
	return host
}

var errRead = errors.New("the greeting has been read")

// serverName reads a TLS greeting and answers nothing.
func serverName(r io.Reader) (name string) {
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name = hello.ServerName
		return nil, errRead
	}}
	_ = tls.Server(silent{r: r}, config).HandshakeContext(context.Background()) // it ends with errRead, or without a name
	return name
}

// silent is a connection that is only read.
type silent struct {
	net.Conn
	r io.Reader
}

// Read implements net.Conn.
func (s silent) Read(p []byte) (int, error) { return s.r.Read(p) }

// Write implements net.Conn.
func (s silent) Write(p []byte) (int, error) { return len(p), nil }

// Close implements net.Conn.
func (s silent) Close() error { return nil }

// The deadline is that of the connection itself.

// SetDeadline implements net.Conn.
func (s silent) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (s silent) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (s silent) SetWriteDeadline(time.Time) error { return nil }
