package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/drowse-dev/drowse/internal/edge/h1"
)

// maxHead bounds what is read of a connection to learn its name.
const maxHead = 64 << 10

// tlsHandshake is the first byte of a connection that speaks TLS.
const tlsHandshake = 0x16

// sniff reads of a connection which name it is for: that in a TLS greeting, or
// the host of an HTTP request. It returns all that it has read. The name is
// empty where there is none, or no room to look for it.
//
// A client may be silent until the server has spoken. After the time for the name
// the connection has no deadline any more, and can go on without a name.
func sniff(c net.Conn, within time.Duration, l *loan) (head []byte, name string, isHTTP bool) {
	if c.SetReadDeadline(time.Now().Add(within)) != nil {
		return nil, "", false
	}
	defer func() { _ = c.SetReadDeadline(time.Time{}) }() // one that is closed fails at the next read
	// Before the first byte a connection takes no room.
	first := make([]byte, 1)
	if _, err := io.ReadFull(c, first); err != nil || !l.take(sniffBuffers) {
		return nil, "", false
	}
	name, head, isHTTP = nameIn(io.LimitReader(io.MultiReader(bytes.NewReader(first), c), maxHead), l)
	return head, name, isHTTP
}

// nameIn returns the name that the beginning of a connection is for, and what
// has been read to find it.
func nameIn(r io.Reader, l *loan) (name string, read []byte, isHTTP bool) {
	all := kept{loan: l}
	tee := bufio.NewReader(io.TeeReader(r, &all))
	first, err := tee.Peek(1)
	switch {
	case err != nil:
	case first[0] == tlsHandshake:
		name = serverName(tee)
	case first[0] >= 'A' && first[0] <= 'Z' && hasMethod(tee):
		name, isHTTP = httpHost(tee, l), true
	}
	return canonical(name), all.Bytes(), isHTTP
}

// kept is what has been read. It asks for room before it becomes large.
type kept struct {
	bytes.Buffer
	loan *loan
}

// Write implements io.Writer.
func (k *kept) Write(p []byte) (int, error) {
	if k.Len()+len(p) > sniffSmall && k.loan.taken < largeBuffers && !k.loan.take(largeBuffers) {
		return 0, errCrowded
	}
	return k.Buffer.Write(p)
}

// hasMethod reports whether a method comes first. It reads no further than the first
// byte that cannot be part of one: the client may wait for an answer to that.
func hasMethod(r *bufio.Reader) bool {
	for n := 1; ; n++ {
		begin, err := r.Peek(n)
		switch {
		case err != nil:
			return false
		case begin[n-1] == ' ':
			return n > 1
		case !h1.ValidMethod(string(begin)):
			return false
		}
	}
}

// httpHost returns the host of a request, which must be one that all readers
// take for the same.
func httpHost(r *bufio.Reader, l *loan) string {
	head, err := readHead(r, l)
	if err != nil {
		return ""
	}
	req, err := h1.ParseRequest(head, nil)
	if err != nil {
		return ""
	}
	return hostOf(req.Host)
}

// upgrades reports whether a connection begins with a request to go on in
// another protocol.
func upgrades(begin []byte) bool {
	head, err := readHead(bufio.NewReader(bytes.NewReader(begin)), &loan{taken: largeBuffers})
	if err != nil {
		return false
	}
	req, err := h1.ParseRequest(head, nil)
	return err == nil && req.Upgrade != ""
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
