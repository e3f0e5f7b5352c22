package egress

import (
	"bytes"
	"context"
	"io"
	"net"
)

// Opener takes over the connections of a sandbox to some hosts, to change what is
// sent there.
type Opener interface {
	// Watches reports whether a connection to a port has to say its name first.
	Watches(port uint16) bool
	// Takes reports whether a connection for a name is to be taken over.
	Takes(name string, port uint16) bool
	// Carry carries a connection to its end. It returns why it did not get through,
	// if it did not.
	Carry(t Taken) Reason
}

// Taken is a connection that an [Opener] takes over.
type Taken struct {
	net.Conn        // the sandbox's end, from its first byte on
	Name     string // the host that it is for
	Port     uint16
	TLS      bool // it begins with a TLS greeting; else with an HTTP request
	// Dial connects to the host, and ends the connection that it made before. The
	// error is a [Reason].
	Dial func(ctx context.Context) (net.Conn, error)
	// Refuse notes something of the connection that did not get through.
	Refuse func(Reason)
}

// Error implements error.
func (r Reason) Error() string { return string(r) }

// SetOpener makes o take over connections. It is called before the gate serves.
func (g *Gate) SetOpener(o Opener) { g.opener = o }

// watches reports whether a connection to a port has to say its name although its
// address is allowed.
func (g *Gate) watches(port uint16) bool { return g.opener != nil && g.opener.Watches(port) }

// open has the opener carry a connection on.
func (g *Gate) open(c *conn, head []byte) Reason {
	if !g.room.takeOpened() {
		return ReasonCrowded
	}
	defer g.room.giveOpened()
	c.loan.giveAll()
	return g.opener.Carry(Taken{
		Conn: begun{c.in, io.MultiReader(bytes.NewReader(head), c.in)},
		Name: c.name, Port: c.to.Port(), TLS: len(head) > 0 && head[0] == tlsHandshake,
		Dial: func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			if why := g.redial(ctx, c); why != "" {
				return nil, why
			}
			return c.out, nil
		},
		Refuse: func(why Reason) { g.refuse(c.target(), why) },
	})
}

// redial connects to the host of a connection, whose name decides.
func (g *Gate) redial(ctx context.Context, c *conn) Reason {
	addrs, err := g.lookup(ctx, c.name)
	if err != nil || len(addrs) == 0 {
		return ReasonUnresolved
	}
	g.hangUp(c)
	return g.dial(ctx, c, addrs)
}

// hangUp ends the way on of a connection that is to have another.
func (g *Gate) hangUp(c *conn) {
	g.mu.Lock()
	before := c.out
	c.out = nil
	g.mu.Unlock()
	if before != nil {
		reset(before)
	}
}

// begun is a connection of which something has been read.
type begun struct {
	*net.TCPConn
	r io.Reader
}

// Read implements io.Reader.
func (b begun) Read(p []byte) (int, error) { return b.r.Read(p) }

// WriteTo implements io.WriterTo: the embedded one would leave out the beginning.
func (b begun) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, onlyReader{b.r}) }

type onlyReader struct{ io.Reader }
