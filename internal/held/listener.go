package held

import (
	"net"
	"sync"
)

// Listener returns ln with its connections counted as sessions of their addresses.
// One for which there is no room is closed at once.
func (r *Room) Listener(ln net.Listener) net.Listener { return listener{ln, r} }

type listener struct {
	net.Listener
	room *Room
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, err := l.room.Session(Who{Address: AddressOf(c.RemoteAddr().String())}); err == nil {
			return &counted{Conn: c, leave: leave}, nil
		}
		c.Close()
	}
}

type counted struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}
