package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

const (
	// mostStrangers is how many connections may be open whose other end has not proved yet
	// that it is a server of the database, and handshakeWithin for how long each.
	mostStrangers   = 64
	handshakeWithin = 5 * time.Second
	acceptAgain     = 100 * time.Millisecond
)

// peerListener accepts connections of those who prove that they are servers.
type peerListener struct {
	net.Listener
	known chan net.Conn
	room  chan struct{} // taken by strangers
	ended chan struct{} // closed with err set
	err   error
}

// run accepts until the listener is closed.
func (p *peerListener) run(config *tls.Config) {
	for {
		conn, err := p.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			p.err = err
			close(p.ended)
			return
		}
		if err != nil { // out of descriptors, most likely: others must end first
			time.Sleep(acceptAgain)
			continue
		}
		p.room <- struct{}{}
		go func() {
			defer func() { <-p.room }()
			p.admit(tls.Server(conn, config))
		}()
	}
}

// admit hands a connection on once its handshake is done.
func (p *peerListener) admit(conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWithin)
	defer cancel()
	if conn.HandshakeContext(ctx) != nil {
		_ = conn.Close()
		return
	}
	select {
	case p.known <- conn:
	case <-p.ended:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (p *peerListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.known:
		return conn, nil
	case <-p.ended:
		return nil, p.err
	}
}
